"""Until when a request waits, and what is decided when nobody has answered by then.

Nothing polls. A run looks at the clock when it is resumed and after each of its supersteps; one that only waits has
ended, and the next resume delivers what is overdue. A person's answer counts as long as no default was delivered.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

from stepwell.errors import InvalidRunArguments
from stepwell.workflows.typing import fits, type_name

Clock = Callable[[], datetime]


def _utc() -> datetime:
    return datetime.now(UTC)


clock: ContextVar[Clock] = ContextVar("stepwell_clock", default=_utc)
"""Where requests and deadlines read the time; `stepwell.testing.time_is` sets another."""


def now() -> datetime:
    return clock.get()()


def moment(deadline: datetime | timedelta | None, asked_at: datetime) -> str | None:
    """A deadline as it is recorded."""
    if deadline is None:
        return None
    if isinstance(deadline, timedelta):
        try:
            return (asked_at + deadline).isoformat()
        except OverflowError:
            raise InvalidRunArguments(f"deadline {deadline!r} is beyond the end of the calendar") from None
    if not isinstance(deadline, datetime):
        raise InvalidRunArguments(f"deadline {deadline!r} is neither a datetime nor a timedelta")
    if deadline.tzinfo is None:
        raise InvalidRunArguments(f"deadline {deadline!r} needs a time zone, for example datetime.now(UTC) + …")
    return deadline.isoformat()


def check_default(default: Any, response_type: Any, deadline: object) -> None:
    """Refuse a default that could never be delivered: where it is given, not when its time has come."""
    if default is None:
        return
    if deadline is None:
        raise InvalidRunArguments(f"default={default!r} needs a deadline=… after which it is delivered")
    if not fits(default, response_type):
        raise InvalidRunArguments(f"default={default!r} is no {type_name(response_type)}, which is the response_type")


def is_overdue(deadline: str | None) -> bool:
    return deadline is not None and datetime.fromisoformat(deadline) <= now()
