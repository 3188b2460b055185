"""What went wrong, in one sentence on stderr and an exit code; a traceback only for who asks for it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from stepwell import errors
from stepwell.cli import exits
from stepwell.cli.remedies import Advice, Unusable, sentence, way_on
from stepwell.cli.safe_text import safe
from stepwell.cli.streams import discard_output

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
        discard_output()  # whoever read it has had enough
        sys.exit(exits.FAILED)
    except (Exception, SystemExit) as error:  # a program that ends itself has not done what it was to do
        if show_traceback:
            tell("".join(traceback.format_exception(error)).rstrip())
        tell(f"stepwell: {sentence(error, advice)}")
        code = exit_code(error)
        if code == exits.FAILED and (way_on_from_here := way_on(error, advice)):
            tell(way_on_from_here)
        sys.exit(code)


def exit_code(error: BaseException) -> int:
    return exits.USAGE if isinstance(error, (Unusable, *_ASKED_FOR_WHAT_IS_NOT_THERE)) else exits.FAILED
