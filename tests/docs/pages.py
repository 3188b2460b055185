"""The code blocks of a page as one program, run as its reader would run it.

All blocks of a page run in order, in one process, in an empty directory, with warnings as errors and without a way off
this machine. What a block prints is what its `#>` comments say, line by line. The program has the line numbers of the
page, so that a traceback points at it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPOSITORY

RUNNER = Path(__file__).with_name("run_page.py")
FENCE = re.compile(r"^```(?P<language>\w*)")
SAYS = re.compile(r"#> ?(.*)")
MARK = "@@ block "
_QUIET = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "STEPWELL_STORE", "STEPWELL_CRASH_AT")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: the line of its fence, counted from 1, and what is inside."""

    line: int
    language: str
    code: str

    @property
    def promised(self) -> list[str]:
        """What it says it prints."""
        return [found[1].rstrip() for found in SAYS.finditer(self.code)]


def blocks_of(text: str) -> list[Block]:
    """Every fenced block of a page, of any language."""
    found: list[Block] = []
    opened: tuple[int, str] | None = None
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None:
            if fence:
                opened, inside = (number, fence["language"]), []
        elif fence:
            found.append(Block(*opened, "\n".join(inside)))
            opened = None
        else:
            inside.append(line)
    return found


def program_of(text: str) -> str:
    """The page as a program: python blocks where they are, a mark where each begins, nothing elsewhere."""
    lines = [""] * (text.count("\n") + 1)
    for block in blocks_of(text):
        if block.language == "python":
            lines[block.line - 1] = f"print({MARK + str(block.line)!r})"
            code = block.code.splitlines()
            lines[block.line : block.line + len(code)] = code
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a page: how it ended, and what each block printed, by the line of its fence."""

    status: int
    printed: dict[int, list[str]]
    errors: str


def run_page(text: str, *, where: Path, name: str = "page") -> Ran:
    """Run the python blocks of a page in the directory `where`."""
    script = where / f"{name}.py"
    script.write_text(program_of(text), encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key not in _QUIET}
    environment |= {"PYTHONPATH": str(REPOSITORY), "STEPWELL_FORBID_REAL_MODELS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(RUNNER), str(script)],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Ran(done.returncode, _by_block(done.stdout), done.stderr)


def _by_block(printed: str) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    line = 0
    for text in printed.splitlines():
        if text.startswith(MARK):
            line = int(text.removeprefix(MARK))
            found[line] = []
        else:
            found.setdefault(line, []).append(text.rstrip())
    return found
