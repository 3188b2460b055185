"""What the command line ends with, so that scripts can tell."""

from __future__ import annotations

from typing import Final

DONE: Final = 0
FAILED: Final = 1
"""A run failed, a store is damaged, or something stood in the way."""
USAGE: Final = 2
"""What was asked for can't be: no such run, store, target or option."""
WAITING: Final = 3
"""A run waits for a person."""
INTERRUPTED: Final = 130
"""Ctrl-C; the run can be resumed."""
