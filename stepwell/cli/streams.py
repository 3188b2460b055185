"""stdin, stdout and stderr as a program expects them, however it was started; and an end that notices a full disk."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Final

from stepwell.cli import exits

_STANDARD: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_streams() -> None:
    """Put /dev/null where a stream is closed, so that no file that is opened later takes its number.

    Without stdin nobody is there to ask, and without stderr nobody listens. Without stdout the result has nowhere to
    go, so nothing is begun.
    """
    without_output = sys.stdout is None
    _fill_the_gaps()
    for name, mode in _STANDARD:
        if getattr(sys, name) is None:
            number = ("stdin", "stdout", "stderr").index(name)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    if without_output:
        _say("stdout is closed, so there is nowhere to print the result; send it to /dev/null if you want none")
        sys.exit(exits.FAILED)


def _fill_the_gaps() -> None:
    """A file that is opened gets the lowest number that is free."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


def flushed(code: int) -> int:
    """Write what is left of the output; the exit code is then this one, or says that it could not be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        if code != exits.FAILED:
            return unwritable(error)
        discard_output()  # what went wrong has been said
    return code


def unwritable(error: OSError) -> int:
    """Say that stdout does not take any more (unless its reader just went away), and give up what is left for it."""
    discard_output()
    if not isinstance(error, BrokenPipeError):
        _say(f"the output can't be written: {error.strerror or error}")
    return exits.FAILED


def discard_output() -> None:
    """Without this, Python would try once more when it ends, and complain."""
    # Somebody's replacement of stdout need not be a file.
    with suppress(io.UnsupportedOperation):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _say(text: str) -> None:
    with suppress(OSError):  # there is nowhere left to say so
        print(f"stepwell: {text}", file=sys.stderr, flush=True)
