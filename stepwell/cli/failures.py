"""What went wrong, in one sentence on stderr and an exit code; a traceback only for who asks for it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from stepwell import errors
from stepwell.cli import exits
from stepwell.cli.safe_text import safe

_ASKED_FOR_WHAT_IS_NOT_THERE = (
    errors.UnknownRun,
    errors.UnknownRequest,
    errors.CheckpointNotFound,
    errors.InvalidId,
    errors.InvalidRunArguments,
    errors.ResponseTypeMismatch,
    errors.RunUnfinished,
    errors.WorkflowValidationError,
)


class Unusable(Exception):
    """The command can't do what it was asked for; the text says why and what to do."""


@dataclass(slots=True)
class Advice:
    """How to go on; there is none before there is something to go on with."""

    command: str | None = None


def tell(text: str) -> None:
    """Something about the work, not its result."""
    print(safe(text), file=sys.stderr, flush=True)


@contextmanager
def reported(*, show_traceback: bool, advice: Advice | None = None) -> Iterator[None]:
    """End the program with a sentence and an exit code, whatever goes wrong inside."""
    advice = advice or Advice()
    try:
        yield
    except KeyboardInterrupt:
        way = f"; everything up to here is saved, go on with: {advice.command}" if advice.command else ""
        tell(f"\ninterrupted{way}")
        sys.exit(exits.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has had enough. Without this, Python would complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(exits.FAILED)
    except Exception as error:
        if show_traceback:
            traceback.print_exception(error)
        tell(f"stepwell: {sentence(error)}")
        code = exit_code(error)
        if advice.command and code == exits.FAILED:
            tell(f"once that is mended, go on with: {advice.command}")
        sys.exit(code)


def sentence(error: BaseException) -> str:
    """What happened; errors of other people's code are named too, because their texts may say nothing."""
    if isinstance(error, Unusable):
        return str(error)
    text = str(error) or "it gave no reason"
    return f"{type(error).__name__}: {text}"


def exit_code(error: BaseException) -> int:
    return exits.USAGE if isinstance(error, (Unusable, *_ASKED_FOR_WHAT_IS_NOT_THERE)) else exits.FAILED
