"""Draws the diagrams of the concepts: `python docs/images/diagrams.py`, from anywhere.

Each has a pale background of its own, so it can be read on a light page and on a dark one.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).parent

INK, FAINT, PAPER = "#0f172a", "#64748b", "#f8fafc"
WHITE, TEAL, AMBER, ROSE, SLATE = "#ffffff", "#ccfbf1", "#fef3c7", "#ffe4e6", "#e2e8f0"
FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"


class Drawing:
    """Boxes, arrows and words on a sheet of paper."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = width, height
        self._title = title
        self._parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, text: str = "", *, fill: str = WHITE, dash: str = "") -> None:
        style = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" fill="{fill}" stroke="{FAINT}"{style}/>'
        )
        lines = text.split("\n") if text else []
        top = y + h / 2 - (len(lines) - 1) * 9
        for number, line in enumerate(lines):
            self.words(x + w / 2, top + number * 18 + 5, line, bold=number == 0)

    def words(
        self, x: float, y: float, text: str, *, bold: bool = False, faint: bool = False, at: str = "middle"
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        colour = FAINT if faint else INK
        self._parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{at}" font-size="13" fill="{colour}"{weight}>{escape(text)}</text>'
        )

    def arrow(self, *points: tuple[float, float], dash: str = "") -> None:
        path = " L ".join(f"{x} {y}" for x, y in points)
        style = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<path d="M {path}" fill="none" stroke="{FAINT}" stroke-width="1.5"{style} marker-end="url(#head)"/>'
        )

    def cross(self, x: float, y: float) -> None:
        self._parts.append(
            f'<path d="M {x - 7} {y - 7} L {x + 7} {y + 7} M {x - 7} {y + 7} L {x + 7} {y - 7}" stroke="#be123c" '
            'stroke-width="3" fill="none"/>'
        )

    def svg(self) -> str:
        width, height = self._size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'font-family="{FONT}" role="img" aria-label="{escape(self._title)}">\n<title>{escape(self._title)}</title>'
        )
        marker = (
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9" '
            f'markerUnits="userSpaceOnUse" orient="auto">'
            f'<path d="M 0 0 L 10 5 L 0 10 z" fill="{FAINT}"/></marker></defs>'
        )
        sheet = f'<rect width="{width}" height="{height}" rx="10" fill="{PAPER}"/>'
        return "\n".join([head, marker, sheet, *self._parts, "</svg>"]) + "\n"


def superstep() -> Drawing:
    sheet = Drawing(820, 300, "A superstep: deliver, run, collect, save, announce")
    sheet.box(20, 110, 110, 60, "messages\nin the queue", fill=SLATE)
    sheet.box(165, 40, 330, 200, fill=WHITE, dash="6 4")
    sheet.words(330, 62, "superstep n", bold=True)
    sheet.box(185, 80, 120, 60, "writer\nhandler", fill=TEAL)
    sheet.box(185, 160, 120, 60, "editor\nhandler", fill=TEAL)
    sheet.box(345, 110, 130, 80, "effects\nsent, yielded,\nasked, written", fill=WHITE)
    sheet.arrow((130, 130), (185, 110))
    sheet.arrow((130, 150), (185, 190))
    sheet.arrow((305, 110), (345, 135))
    sheet.arrow((305, 190), (345, 165))
    sheet.box(530, 110, 120, 80, "checkpoint\none commit,\nfsynced", fill=AMBER)
    sheet.arrow((475, 150), (530, 150))
    sheet.box(690, 60, 110, 60, "events\nannounced", fill=SLATE)
    sheet.box(690, 170, 110, 60, "messages\nfor n + 1", fill=SLATE)
    sheet.arrow((650, 140), (690, 95))
    sheet.arrow((650, 160), (690, 195))
    sheet.arrow((745, 230), (745, 275), (75, 275), (75, 170))
    sheet.words(410, 268, "the next superstep")
    return sheet


def run() -> Drawing:
    sheet = Drawing(820, 330, "A run: the states it stands in, and what the same line does in each")
    sheet.box(20, 130, 100, 50, "absent", fill=SLATE)
    sheet.box(240, 120, 150, 70, "at work\nIN_PROGRESS", fill=TEAL)
    sheet.box(560, 30, 240, 60, "done\nIDLE", fill=WHITE)
    sheet.box(560, 125, 240, 60, "waits for an answer\nIDLE_WITH_PENDING_REQUESTS", fill=AMBER)
    sheet.box(560, 240, 240, 60, "interrupted\ncrashed, FAILED, CANCELLED", fill=ROSE)
    sheet.arrow((120, 155), (240, 155))
    sheet.words(180, 147, "a message")
    sheet.arrow((390, 135), (475, 60), (560, 60))
    sheet.arrow((390, 150), (560, 150))
    sheet.words(475, 143, "asks a person")
    sheet.arrow((390, 178), (475, 265), (560, 265))
    sheet.arrow((560, 285), (285, 285), (285, 190))
    sheet.words(422, 303, "the same line again, or recover()")
    sheet.arrow((560, 175), (420, 175), (390, 170))
    sheet.words(490, 192, "responses={…}")
    sheet.arrow((560, 45), (310, 45), (310, 120))
    sheet.words(425, 38, "another message: a further turn")
    return sheet


def checkpoint() -> Drawing:
    sheet = Drawing(820, 320, "Checkpoints: small roots over values that are stored once")
    for number, x in enumerate((60, 310, 560), 1):
        sheet.box(x, 50, 190, 70, f"checkpoint {number}\nheader, digest,\nreferences", fill=AMBER)
    sheet.arrow((310, 70), (250, 70))
    sheet.arrow((560, 70), (500, 70))
    sheet.words(280, 40, "names its parent")
    for number, x in enumerate((60, 230, 400, 570), 1):
        sheet.box(x, 220, 140, 50, f"message {number}", fill=TEAL)
    for root, values in ((120, (130,)), (380, (130, 300)), (640, (130, 300, 470, 640))):
        for offset, value in enumerate(values):
            sheet.arrow((root + offset * 20, 120), (value, 220))
    sheet.words(
        410, 300, "Each value once per run, wherever it appears. Deleting a root drops what nothing else refers to."
    )
    return sheet


def journal() -> Drawing:
    sheet = Drawing(820, 330, "The journal: calls recorded inside a superstep answer after a crash")
    sheet.words(20, 45, "first process", at="start", bold=True)
    sheet.words(20, 195, "second process", at="start", bold=True)
    for number, x in enumerate((150, 310), 1):
        sheet.box(x, 20, 130, 50, f"call {number}\nmade, recorded", fill=TEAL)
        sheet.arrow((x + 65, 70), (x + 65, 110))
    sheet.box(470, 20, 130, 50, "call 3\nin flight", fill=ROSE)
    sheet.cross(640, 45)
    sheet.words(665, 50, "SIGKILL", at="start")
    sheet.box(140, 110, 320, 36, "journal: call 1, call 2", fill=AMBER)
    for number, x in enumerate((150, 310), 1):
        sheet.arrow((x + 65, 146), (x + 65, 180))
        sheet.box(x, 180, 130, 50, f"call {number}\nreplayed", fill=WHITE, dash="5 4")
    sheet.box(470, 180, 130, 50, "call 3\nsame key, again", fill=TEAL)
    sheet.box(640, 180, 150, 50, "checkpoint\nthe rows go", fill=AMBER)
    sheet.arrow((280, 205), (310, 205))
    sheet.arrow((440, 205), (470, 205))
    sheet.arrow((600, 205), (640, 205))
    sheet.words(410, 280, "A recorded call is never made again. One cut in flight is made again with the same")
    sheet.words(410, 300, "idempotency key; if it is at most once, a person is asked instead.")
    return sheet


def lease() -> Drawing:
    sheet = Drawing(820, 320, "The lease: one runner per run, checked in every write")
    sheet.words(20, 65, "process A", at="start", bold=True)
    sheet.words(20, 265, "process B", at="start", bold=True)
    sheet.box(120, 35, 150, 50, "takes the run\nepoch 1", fill=TEAL)
    sheet.box(320, 35, 150, 50, "frozen\nits lease runs out", fill=SLATE, dash="5 4")
    sheet.box(620, 35, 180, 50, "wakes up and writes\nepoch 1", fill=ROSE)
    sheet.box(120, 140, 680, 40, "the store: run, holder, epoch", fill=AMBER)
    sheet.box(120, 235, 150, 50, "asks too early\nRunBusy", fill=ROSE)
    sheet.box(420, 235, 170, 50, "takes it over\nepoch 2", fill=TEAL)
    sheet.arrow((195, 85), (195, 140))
    sheet.arrow((195, 235), (195, 180))
    sheet.arrow((505, 235), (505, 180))
    sheet.arrow((710, 85), (710, 132), dash="5 4")
    sheet.cross(710, 128)
    sheet.words(690, 118, "RunTakenOver", at="end")
    sheet.words(
        410, 308, "A holder that is dead, and not only silent, is recognised at once by a lock that died with it."
    )
    return sheet


def main() -> None:
    for draw in (superstep, run, checkpoint, journal, lease):
        (HERE / f"concept-{draw.__name__}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
