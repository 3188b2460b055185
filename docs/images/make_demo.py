"""Makes `demo.svg`, the picture in the README: a real run of the demo, killed with SIGKILL and run again.

    python docs/images/make_demo.py

The first process is killed when the researcher has begun to read. The second one is this program: it resumes the run
and draws, with the functions that draw the live view, how the screen looks while the writer writes.
"""

from __future__ import annotations

import asyncio
import html
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from stepwell import SQLiteCheckpointStorage
from stepwell.cli.demo.team import NAME, TASK, build
from stepwell.cli.live_frame import Scene, frame
from stepwell.cli.live_look import Look
from stepwell.cli.live_recall import recall
from stepwell.cli.live_state import LiveState
from stepwell.cli.live_transcript import lines_of

PICTURE = Path(__file__).with_name("demo.svg")
WIDTH, HEIGHT = 104, 40
ROWS_ABOVE = 24
WORDS_SHOWN = 5
SCRIPTED = {name: value for name, value in os.environ.items() if name not in ("OPENAI_API_KEY", "OPENAI_BASE_URL")}


def killed_in_the_middle(store: Path) -> None:
    """The demo in a process of its own, until it has read something; then SIGKILL."""
    command = [sys.executable, "-m", "stepwell.cli", "demo", "--yes", "--store", str(store)]
    environment = {**SCRIPTED, "DEMO_DELAY": "0.2", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "uses read_note" in line:
                process.send_signal(signal.SIGKILL)
                break


async def resumed(store: Path) -> tuple[LiveState, list[Text]]:
    """The run taken up again, to where the writer is in the middle of the brief: the state, and what is above it."""
    state, above = LiveState(), deque[Text](maxlen=ROWS_ABOVE)
    async with SQLiteCheckpointStorage(store) as storage:
        await recall(state, storage, "demo-1")
        async for event in build(storage).run(TASK, run_id="demo-1", stream=True):
            for entry in state.fold(event):
                lines = list(lines_of(entry, Look(), WIDTH))
                shown = lines if len(lines) <= WORDS_SHOWN else [*lines[:WORDS_SHOWN], Text("│ …", "dim")]
                above.extend(shown)
            turn = state.turns.get("writer")
            if turn is not None and len(turn.text) > 520:
                return state, list(above)
    raise SystemExit("the writer never wrote that much")


def draw(state: LiveState, above: list[Text]) -> str:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for words, style in (("$ make demo", "bold"), ("Killed", "red"), ("$ make demo", "bold")):
        console.print(Text(words, style))
    console.print(Text(f"going on with run {state.run_id}", "dim"))
    console.print(Text("…", "dim"))
    for line in above:
        console.print(line)
    hint = f"try it: kill -9 {os.getpid()}, then run it again"
    console.print(frame(state, Scene(NAME, 9.0, hint), Look(), width=WIDTH, height=HEIGHT))
    return console.export_svg(title="make demo", theme=MONOKAI)


def without_foreign_fonts(svg: str) -> str:
    """The picture loads nothing from anywhere: whatever monospaced font is there will do."""
    local = re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.DOTALL)
    return local.replace("Fira Code", "ui-monospace, Menlo, Consolas")


def with_spaces_as_places(svg: str) -> str:
    """Some viewers drop the spaces at the ends of a text, so each text starts where its first letter is."""

    def moved(found: re.Match[str]) -> str:
        text = found["text"].replace("&#160;", " ")
        cells = len(html.unescape(text))
        cell = float(found["length"]) / max(1, cells)
        lead = len(text) - len(text.lstrip(" "))
        x, length = float(found["x"]) + lead * cell, len(html.unescape(text.strip(" "))) * cell
        kept = text.strip(" ").replace(" ", "&#160;")
        return f'{found["head"]} x="{x:.1f}"{found["mid"]} textLength="{length:.1f}"{found["tail"]}>{kept}</text>'

    pattern = r'(?P<head><text class="[^"]*") x="(?P<x>[\d.]+)"(?P<mid> y="[\d.]+") textLength="(?P<length>[\d.]+)"'
    return re.sub(pattern + r"(?P<tail>[^>]*)>(?P<text>[^<]*)</text>", moved, svg)


def main() -> None:
    os.environ["DEMO_DELAY"] = "0"
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "runs.db")
        killed_in_the_middle(store)
        state, above = asyncio.run(resumed(store))
    PICTURE.write_text(with_spaces_as_places(without_foreign_fonts(draw(state, above))), encoding="utf-8")


if __name__ == "__main__":
    main()
