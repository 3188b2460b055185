"""Commands for a person to copy into a shell."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from stepwell.cli.passwords import masked


def command_line(*words: str, store: str | None) -> str:
    """In the words this program was started with; the store is named if it was named, without its password."""
    return f"{_program()} {shlex.join([*words, *(['--store', shown_store(store)] if store else [])])}"


def _program() -> str:
    """How to start it again: a clone has it in an environment of its own, which no shell looks into."""
    started = Path(sys.argv[0])
    if started == Path(__file__).with_name("__main__.py"):
        return "python -m stepwell.cli"
    if started.name != "stepwell":
        return "stepwell"  # a program of somebody's that uses this module
    found = shutil.which("stepwell")
    if found is not None and Path(found).resolve() == started.resolve():
        return "stepwell"
    here = Path.cwd()
    return shlex.quote(str(started.relative_to(here) if started.is_relative_to(here) else started))


def shown_store(store: str) -> str:
    """The store for messages: without the passwords that its name holds."""
    return masked(store)
