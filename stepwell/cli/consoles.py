"""Where things are printed: results on stdout, everything about them on stderr.

Nothing printed here is read as markup, emoji codes or something to colour in: much of it was written by models.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_UNBOUNDED = 400
"""How wide lines may be where nobody's screen is the limit."""


def out() -> Console:
    return _console(stderr=False)


def err() -> Console:
    return _console(stderr=True)


def watching() -> Console:
    """Where a run is shown while it works: not in the way of its output when that goes to a file or a pipe."""
    return out() if sys.stdout.isatty() else err()


def somebody_is_there() -> bool:
    """Is there a person who can see a question and answer it?"""
    return sys.stdin.isatty() and (sys.stdout.isatty() or sys.stderr.isatty())


def kept_for_json(wanted: bool) -> AbstractContextManager[object]:
    """While inside, what programs print goes to stderr, so that stdout holds JSON and nothing else."""
    return redirect_stdout(sys.stderr) if wanted else nullcontext()


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _UNBOUNDED
    return console
