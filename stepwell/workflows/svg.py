"""A picture as SVG, drawn here: no graphviz, no fonts to install, nothing in it but shapes and escaped text."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from stepwell.workflows.layout import GAP_Y, Layout, Point, Size, arrange
from stepwell.workflows.picture import Arrow, Box, Picture, clean

_MARGIN = 20.0
_PADDING = 18.0
_HEADER = 26.0
_LONGEST = 42
_LABEL, _SMALL = 14.0, 11.0
_FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"

_INK, _PALE, _LINE = "#1f2937", "#6b7280", "#475569"
_FILL = {"executor": "#ffffff", "agent": "#eef6ff", "workflow": "#f8fafc"}
_NEXT, _WAITING, _WAITING_FILL = "#2563eb", "#b45309", "#fef3c7"
_STROKES = {"conditional": "6 4", "multi_selection": "2 4"}


def shortened(text: str) -> str:
    text = clean(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _width(text: str, size: float) -> float:
    """About how wide a text is; a little more rather than less."""
    return sum(size if unicodedata.east_asian_width(c) in "WF" else size * 0.6 for c in text)


@dataclass(frozen=True, slots=True)
class _Lines:
    """What is written in a box, with its size."""

    title: str
    subtitle: str
    notes: tuple[str, ...]

    @property
    def size(self) -> Size:
        widths = [_width(self.title, _LABEL), *(_width(line, _SMALL) for line in (self.subtitle, *self.notes))]
        lines = 1 + bool(self.subtitle) + len(self.notes)
        return Size(max(70.0, max(widths) + 28), 20 + 16 * lines)


def _lines(box: Box) -> _Lines:
    asked = box.mark.waits_for
    notes = [f"waits for {shortened(kind)}" for kind in asked[:2]]
    if len(asked) > 2:
        notes[1:] = [f"and {len(asked) - 1} more answers"]
    if box.mark.is_next:
        notes.append("message queued")
    subtitle = box.subtitle if clean(box.subtitle).casefold() != clean(box.label).casefold() else ""
    return _Lines(shortened(box.label), shortened(subtitle), tuple(notes))


def to_svg(picture: Picture) -> str:
    """The whole document."""
    drawing = _Drawing(picture)
    top = _MARGIN + (24 if picture.caption else 0) + 26  # the arrow that enters
    width = max(drawing.size.width, _width(clean(picture.caption), _SMALL), 60) + 2 * _MARGIN
    height = drawing.size.height + top + _MARGIN
    left = (width - drawing.size.width) / 2
    body = [f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>']
    if picture.caption:
        body.append(_text(width / 2, _MARGIN + 4, clean(picture.caption), size=_SMALL + 1, fill=_PALE))
    body += drawing.shapes(left, top)
    title = escape(clean(picture.title))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{escape(_FONT)}" role="img" aria-label="{title}">\n'
        f"<title>{title}</title>\n{_MARKERS}\n" + "\n".join(body) + "\n</svg>\n"
    )


_MARKERS = (
    '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="11" markerHeight="11" '
    'markerUnits="userSpaceOnUse" '
    f'orient="auto-start-reverse"><path d="M 0 0 L 10 5 L 0 10 z" fill="{_LINE}"/></marker></defs>'
)


class _Drawing:
    """One workflow, laid out; those inside it are boxes with a drawing of their own."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._inside = {box.key: _Drawing(box.inside) for box in picture.boxes.values() if box.inside is not None}
        self._loops = {arrow.source for arrow in picture.arrows if arrow.source == arrow.target}
        links = [(arrow.source, arrow.target) for arrow in picture.arrows]
        labels = {number: _label_size(arrow.label) for number, arrow in enumerate(picture.arrows) if arrow.label}
        sizes = {key: self._outer(self._size(picture.boxes[key]), key) for key in self._keys()}
        pointed = {box.key for box in picture.boxes.values() if box.shape in ("choice", "pick")}
        self._layout: Layout = arrange(
            sizes, links, labels=labels, pointed=pointed, gap_y=GAP_Y - 12 if labels else GAP_Y
        )

    @property
    def size(self) -> Size:
        return self._layout.size

    def _keys(self) -> list[str]:
        start = self._picture.start
        return [start, *(key for key in self._picture.boxes if key != start)]

    def _size(self, box: Box) -> Size:
        if box.shape in ("fork", "join"):
            ends = sum(box.key in (arrow.source, arrow.target) for arrow in self._picture.arrows)
            return Size(max(56.0, 30.0 * ends), 7.0)
        if box.shape in ("choice", "pick"):
            return Size(30.0, 30.0)
        lines = _lines(box).size
        if box.key not in self._inside:
            return lines
        inside = self._inside[box.key].size
        return Size(
            max(inside.width + 2 * _PADDING, lines.width), inside.height + 2 * _PADDING + self._header(box) + 14
        )

    def _header(self, box: Box) -> float:
        return _HEADER + 15 * len(_lines(box).notes)

    def _outer(self, size: Size, key: str) -> Size:
        return Size(size.width + 60, size.height) if key in self._loops else size

    # --- shapes ------------------------------------------------------------------------------------------------------

    def shapes(self, x: float, y: float) -> Iterator[str]:
        centres = self._layout.centres
        for arrow, route in zip(self._picture.arrows, self._layout.routes, strict=True):
            if route:
                yield _path(arrow, [(x + px, y + py) for px, py in route])
            else:
                cx, cy = centres[arrow.source]
                yield _loop(arrow, x + cx, y + cy, self._size(self._picture.boxes[arrow.source]))
        for key in self._keys():
            cx, cy = centres[key]
            yield from self._shape(self._picture.boxes[key], x + cx, y + cy)
        for number, (px, py) in self._layout.labels.items():
            yield _text(x + px, y + py + 4, shortened(self._picture.arrows[number].label), halo=True)

    def _shape(self, box: Box, cx: float, cy: float) -> Iterator[str]:
        size = self._size(box)
        if box.shape in ("fork", "join"):
            yield _rect(cx, cy, size, _Look(_LINE, radius=2))
            if box.label:
                yield _text(
                    cx + size.width / 2 + 8, cy + 4, clean(box.label), size=_SMALL, fill=_WAITING, anchor="start"
                )
        elif box.shape in ("choice", "pick"):
            yield _diamond(cx, cy, size, dashed=box.shape == "pick")
        else:
            if box.is_start:
                yield _entry(cx, cy - size.height / 2)
            yield from self._labelled(box, cx, cy, size)

    def _labelled(self, box: Box, cx: float, cy: float, size: Size) -> Iterator[str]:
        lines, top = _lines(box), cy - size.height / 2
        yield f"<g><title>{escape(clean(box.key))}</title>"
        yield _rect(cx, cy, size, _look(box))
        if box.key in self._inside:
            yield _text(cx - size.width / 2 + 14, top + 20, lines.title, size=_LABEL, weight=600, anchor="start")
            if lines.subtitle:
                after = cx - size.width / 2 + 14 + _width(lines.title, _LABEL) + 8
                yield _text(after, top + 20, lines.subtitle, size=_SMALL, fill=_PALE, anchor="start")
            for number, note in enumerate(lines.notes):
                yield _text(
                    cx - size.width / 2 + 14, top + 37 + 15 * number, note, fill=_note_ink(note), anchor="start"
                )
            inside = self._inside[box.key]
            yield from inside.shapes(cx - inside.size.width / 2, top + self._header(box) + _PADDING + 10)
        else:
            rows = [(lines.title, _LABEL, _INK)] + [(lines.subtitle, _SMALL, _PALE)] * bool(lines.subtitle)
            rows += [(note, _SMALL, _note_ink(note)) for note in lines.notes]
            for number, (text, font, ink) in enumerate(rows):
                weight = 600 if number == 0 else 400
                yield _text(cx, top + 24 + 16 * number, text, size=font, fill=ink, weight=weight)
        yield "</g>"


@dataclass(frozen=True, slots=True)
class _Look:
    fill: str
    stroke: str = _LINE
    width: float = 1.4
    radius: float = 8


def _look(box: Box) -> _Look:
    if box.mark.waits_for:
        return _Look(_WAITING_FILL if box.inside is None else "#fffbeb", _WAITING, 2.2)
    if box.mark.is_next:
        return _Look("#eff6ff", _NEXT, 2.2)
    kind = "agent" if box.subtitle == "agent" else box.shape
    return _Look(_FILL[kind], radius=18 if kind == "agent" else 8)


def _note_ink(note: str) -> str:
    return _NEXT if note == "message queued" else _WAITING


def _rect(cx: float, cy: float, size: Size, look: _Look) -> str:
    return (
        f'<rect x="{cx - size.width / 2:.1f}" y="{cy - size.height / 2:.1f}" width="{size.width:.1f}" '
        f'height="{size.height:.1f}" rx="{look.radius:.0f}" fill="{look.fill}" stroke="{look.stroke}" '
        f'stroke-width="{look.width}"/>'
    )


def _diamond(cx: float, cy: float, size: Size, *, dashed: bool) -> str:
    half = size.width / 2
    dash = ' stroke-dasharray="2 3"' if dashed else ""
    points = f"{cx:.1f},{cy - half:.1f} {cx + half:.1f},{cy:.1f} {cx:.1f},{cy + half:.1f} {cx - half:.1f},{cy:.1f}"
    return f'<polygon points="{points}" fill="#ffffff" stroke="{_LINE}" stroke-width="1.6"{dash}/>'


def _entry(cx: float, y: float) -> str:
    """Where messages from outside come in."""
    x = cx
    return (
        f'<circle cx="{x:.1f}" cy="{y - 20:.1f}" r="4.5" fill="{_LINE}"/>'
        f'<path d="M {x:.1f} {y - 16:.1f} L {x:.1f} {y - 1:.1f}" stroke="{_LINE}" stroke-width="1.4" '
        'marker-end="url(#head)"/>'
    )


def _path(arrow: Arrow, points: list[Point]) -> str:
    """A curve that leaves and arrives upright, with a straight end for the arrowhead."""
    (x, y), (_, before) = points[-1], points[-2]
    end = (x, y - 9 if y > before else y + 9) if arrow.has_head else (x, y)
    parts = [f"M {points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x1, y1), (x2, y2) in pairwise([*points[:-1], end]):
        bend = (y2 - y1) * 0.36
        parts.append(f"C {x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}")
    return _stroke(arrow, f"{' '.join(parts)} L {x:.1f} {y:.1f}")


def _loop(arrow: Arrow, cx: float, cy: float, size: Size) -> str:
    x, y = cx + size.width / 2, cy
    return _stroke(
        arrow, f"M {x:.1f} {y + 10:.1f} C {x + 32:.1f} {y + 22:.1f} {x + 32:.1f} {y - 22:.1f} {x:.1f} {y - 10:.1f}"
    )


def _stroke(arrow: Arrow, d: str) -> str:
    dash = f' stroke-dasharray="{_STROKES[arrow.kind]}"' if arrow.kind in _STROKES else ""
    head = ' marker-end="url(#head)"' if arrow.has_head else ""
    width = 1.4 if arrow.kind not in ("fan_out", "fan_in") else 2.0
    return f'<path d="{d}" fill="none" stroke="{_LINE}" stroke-width="{width}"{dash}{head}/>'


def _label_size(label: str) -> Size:
    return Size(_width(shortened(label), _SMALL) + 10, 16)


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: float = _SMALL,
    fill: str = _INK,
    weight: int = 400,
    anchor: str = "middle",
    halo: bool = False,
) -> str:
    around = ' stroke="#ffffff" stroke-width="4" paint-order="stroke" stroke-linejoin="round"' if halo else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:.0f}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{fill}"{around}>{escape(text)}</text>'
    )
