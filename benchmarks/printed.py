"""Runs a program that prints tables, and keeps what it printed for the documentation.

    python benchmarks/printed.py docs/measured/kills.md python -m tests.orchestrations.kills

The output is shown as it comes. When the program has ended, well or not, the page is written, with the date, the
machine and the exit status; one that was interrupted leaves the page as it was. The exit status is the program's.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from documents import conditions, told


def main(arguments: Sequence[str]) -> int:
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    page, *command = arguments
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as program:
        assert program.stdout is not None
        for line in program.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    text = page_of("".join(lines), command, program.returncode, {"when": when, **conditions()})
    Path(page).parent.mkdir(parents=True, exist_ok=True)
    Path(page).write_text(text, encoding="utf-8")
    return program.returncode


def page_of(printed: str, command: Sequence[str], status: int, document: Mapping[str, Any]) -> str:
    shown = " ".join(["python", *command[1:]] if Path(command[0]).name.startswith("python") else command)
    ending = "It ended well." if status == 0 else f"**It failed, with exit status {status}.**"
    return f"{told(document)}\n\n`{shown}`. {ending}\n\n```text\n{printed.strip()}\n```\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
