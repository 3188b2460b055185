"""Trying again: one policy, one function. The only file that imports tenacity.

Used at the network's edge (model calls) and by executors. What to retry is the caller's knowledge, how long is the
user's; between them stands a value that can be compared, printed and replaced.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import tenacity

T = TypeVar("T")

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and for how long to try again.

    There is an attempt cap *and* a time cap: no wait begins that would end after `max_seconds`. Waits double from
    `initial_wait` to `max_wait`; `jitter` is the share of each wait that is left to chance, so that a thousand clients
    do not come back at the same instant. A server's Retry-After replaces the computed wait.
    """

    max_attempts: int = 5
    max_seconds: float = 120.0
    initial_wait: float = 0.5
    max_wait: float = 30.0
    jitter: float = 0.5
    retry_on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts={self.max_attempts}: there is at least one attempt")
        if self.max_seconds < 0 or self.initial_wait < 0 or self.max_wait < 0:
            raise ValueError("max_seconds, initial_wait and max_wait can't be negative")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter={self.jitter} is a share of the wait, between 0 and 1")

    def covers(self, error: BaseException) -> bool:
        """Is this one of the errors the policy is for? Cancellation never is."""
        return isinstance(error, self.retry_on) and isinstance(error, Exception)

    def wait_before(self, attempt: int, *, chance: float) -> float:
        """Seconds to wait before attempt number `attempt` (2 is the first retry); `chance` is drawn from [0, 1)."""
        # The exponent is bounded because a float overflows long before anybody has waited that often.
        full = min(self.max_wait, self.initial_wait * 2.0 ** min(attempt - 2, 60))
        return full * (1 - self.jitter * chance)


NO_RETRY = RetryPolicy(max_attempts=1)
"""One attempt, no more."""


@dataclass(frozen=True, slots=True)
class RetryWait:
    """An attempt failed, and another one follows in `seconds`."""

    attempt: int
    """The attempt that failed, counted from 1."""
    seconds: float
    error: Exception


async def retrying(
    policy: RetryPolicy,
    fn: Callable[[], Awaitable[T]],
    *,
    is_transient: Callable[[Exception], bool] | None = None,
    retry_after: Callable[[Exception], float | None] | None = None,
    on_wait: Callable[[RetryWait], None] | None = None,
    sleep: Sleep = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
    chance: Callable[[], float] = random.random,
) -> T:
    """Await `fn()` until it succeeds, its error is not worth another attempt, or the policy is used up.

    The last error is raised as it was. `is_transient` narrows what the policy covers; `retry_after` reads a wait that
    the other side asked for: it is honoured in full, or, if the time cap does not allow it, the error raised at once.
    """
    began = clock()

    def worth_it(error: BaseException) -> bool:
        return isinstance(error, Exception) and policy.covers(error) and (is_transient is None or is_transient(error))

    def wait(state: tenacity.RetryCallState) -> float:
        asked = retry_after(_error(state)) if retry_after is not None else None
        return asked if asked is not None else policy.wait_before(state.attempt_number + 1, chance=chance())

    def stop(state: tenacity.RetryCallState) -> bool:
        return (
            state.attempt_number >= policy.max_attempts or clock() - began + state.upcoming_sleep > policy.max_seconds
        )

    def announce(state: tenacity.RetryCallState) -> None:
        if on_wait is not None:
            on_wait(RetryWait(state.attempt_number, state.upcoming_sleep, _error(state)))

    attempts = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(worth_it),
        wait=wait,
        stop=stop,
        before_sleep=announce,
        sleep=sleep,
        reraise=True,
    )
    return await attempts(fn)


def _error(state: tenacity.RetryCallState) -> Exception:
    outcome = state.outcome
    error = outcome.exception() if outcome is not None else None
    # tenacity asks these questions only about attempts that raised an error the predicate accepted.
    assert isinstance(error, Exception)
    return error
