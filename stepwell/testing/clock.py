"""The time as you like it, for tests of deadlines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from stepwell.workflows.deadlines import clock


@contextmanager
def time_is(moment: datetime) -> Iterator[None]:
    """Within this block runs believe that it is `moment`: what they ask is asked then, and earlier deadlines are past.

    Waits and timeouts are not affected; only requests and their deadlines read this clock.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} needs a time zone, for example datetime(2030, 1, 1, tzinfo=UTC)")
    token = clock.set(lambda: moment)
    try:
        yield
    finally:
        clock.reset(token)
