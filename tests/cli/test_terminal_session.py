"""A session at a real terminal: the demo, its plan edited, killed in the middle, run again; then the other commands.

Nothing waits for a fixed time: each step waits for what the screen says.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest
from rich.cells import cell_len

STEPWELL = [sys.executable, "-m", "stepwell.cli"]
TEAM = "stepwell.cli.demo.team:build"
PATIENCE = 60

pytestmark = pytest.mark.timeout(300)


def environment(folder: Path, **more: str) -> dict[str, str]:
    unwanted = ("OPENAI_", "YES", "MAKELEVEL", "VISUAL", "EDITOR", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    store = str(folder / "runs.db")
    return {**kept, "STEPWELL_STORE": store, "TERM": "xterm-256color", "DEMO_DELAY": "0.2", **more}


class Screen:
    """Somebody at a terminal of so many columns."""

    def __init__(self, folder: Path, columns: int, *words: str, **more: str) -> None:
        self.shown = ""
        self.child: Any = pexpect.spawn(
            STEPWELL[0],
            [*STEPWELL[1:], *words],
            env=environment(folder, **more),
            cwd=str(folder),
            dimensions=(40, columns),
            encoding="utf-8",
            timeout=PATIENCE,
        )

    def reads(self, pattern: str) -> str:
        self.child.expect(pattern)
        self.shown += self.child.before + self.child.after
        return str(self.child.match[0])

    def types(self, text: str) -> None:
        self.child.send(text + "\r")

    def leaves(self) -> int:
        self.child.expect(pexpect.EOF)
        self.shown += self.child.before
        self.child.close()
        return self.child.exitstatus if self.child.exitstatus is not None else -self.child.signalstatus

    @property
    def lines(self) -> list[str]:
        """What was ever written, without the escapes that moved and coloured it."""
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown)
        return re.split(r"[\r\n]+", plain)


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Another process, without a terminal."""
    return subprocess.run(
        [*STEPWELL, *words],
        cwd=folder,
        env=environment(folder, DEMO_DELAY="0"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize("columns", [80, 120])
def test_the_demo_is_edited_killed_run_again_and_looked_at_from_another_process(tmp_path: Path, columns: int) -> None:
    first = Screen(tmp_path, columns, "demo")
    first.reads("starting run demo-1")
    first.reads(r"\[a\]pprove")
    first.types("e")
    first.reads("Read the notes and list the facts[^\r\n]*\r?\n> ")
    first.types("")
    first.reads("Write the brief from these facts[^\r\n]*\r?\n> ")
    first.types("writer: Write a very short brief.")
    first.reads("Check the figures of the brief[^\r\n]*\r?\n> ")
    first.types("-")
    first.reads("one more")
    first.types("")
    first.reads(r"approve this plan\?")
    first.types("y")
    first.reads("The models are scripted")
    first.reads("read_note")
    first.child.kill(signal.SIGKILL)
    assert first.leaves() == -signal.SIGKILL
    hidden, visible = first.shown.rfind("\x1b[?25l"), first.shown.rfind("\x1b[?25h")
    assert visible > hidden, "the terminal was left without a cursor"

    again = Screen(tmp_path, columns, "demo", DEMO_DELAY="0.05")
    again.reads("going on with run demo-1")
    again.reads("The brief")
    replayed = again.reads(r"\d+ calls were replayed from the record")
    assert again.leaves() == 0
    assert int(replayed.split()[0]) >= 2
    assert any("Write a very short brief." in line for line in again.lines)
    assert not any("Check the figures" in line for line in again.lines)
    assert "# Stepwells: a brief for the council" in again.lines
    edges = {cell_len(line) for line in first.lines + again.lines if line.startswith(("╭", "╰"))}
    assert edges == {columns}

    runs = json.loads(command(tmp_path, "runs", "--json").stdout)
    assert "demo-1" in json.dumps(runs)
    shown = command(tmp_path, "show", "demo-1")
    assert shown.returncode == 0, shown.stderr
    assert "Write a very short brief." in shown.stdout

    timeline = json.loads(command(tmp_path, "show", "demo-1", "--json").stdout)["timeline"]
    asked = next(point["checkpoint_id"] for point in timeline if point["asked"])
    branched = command(tmp_path, "branch", TEAM, asked, "--run-id", "other", "--yes")
    assert branched.returncode == 0, branched.stderr
    assert "# Stepwells: a brief for the council" in branched.stdout

    waiting = command(tmp_path, "demo")
    assert waiting.returncode == 3, waiting.stderr
    reviewed = command(tmp_path, "review", "demo-2", "--approve")
    assert reviewed.returncode == 0, reviewed.stderr
    finished = command(tmp_path, "demo")
    assert finished.returncode == 0, finished.stderr
    assert "going on with run demo-2" in finished.stdout


def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    first = Screen(tmp_path, 80, "demo", "--yes")
    first.reads("read_note")
    first.child.sendintr()
    first.reads("interrupted")
    first.reads("go on with")
    assert first.leaves() == 130
    assert first.shown.rfind("\x1b[?25h") > first.shown.rfind("\x1b[?25l")

    again = command(tmp_path, "demo", "--yes")
    assert again.returncode == 0, again.stderr
    assert "going on with run demo-1" in again.stdout


def test_a_plan_can_be_sent_back_in_words_and_rejected(tmp_path: Path) -> None:
    screen = Screen(tmp_path, 80, "demo", DEMO_DELAY="0.05")
    screen.reads(r"\[a\]pprove")
    screen.types("Please mention the cost.")
    screen.reads("another plan of 4 steps, 3 as before")
    screen.reads("The plan:")
    screen.reads(r"\[a\]pprove")
    screen.types("j")
    screen.reads("why not")
    screen.types("too dear")
    screen.reads("The plan was rejected: too dear")
    assert screen.leaves() == 0
    heeded = "writer Heed what the person asked for: Please mention the cost."
    lines = [" ".join(line.split()) for line in screen.lines]
    assert {f"+ 4 {heeded}", "4. writer: " + heeded.removeprefix("writer ")} <= set(lines)


def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path) -> None:
    screen = Screen(tmp_path, 80, "demo", "--yes", TERM="dumb", DEMO_DELAY="0")
    screen.reads("researcher uses read_note")
    assert screen.leaves() == 0
    assert "\x1b" not in screen.shown
