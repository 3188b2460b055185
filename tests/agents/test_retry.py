"""RetryPolicy: caps, jitter, Retry-After, cancellation; with a clock that only moves when somebody sleeps."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from stepwell.retry import NO_RETRY, RetryPolicy, RetryWait, retrying


class Clock:
    """Time that passes by sleeping only."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Flaky:
    """Fails a number of times, then succeeds."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


STEADY = RetryPolicy(max_attempts=4, max_seconds=100, initial_wait=1, max_wait=3, jitter=0)


async def test_a_passing_failure_is_tried_again_with_growing_waits() -> None:
    clock, call = Clock(), Flaky(OSError(), OSError(), OSError())

    assert await retrying(STEADY, call, sleep=clock.sleep, clock=clock) == "done"
    assert clock.slept == [1, 2, 3]


async def test_the_attempt_cap_raises_the_last_error_itself() -> None:
    clock, last = Clock(), OSError("last")
    call = Flaky(OSError(), OSError(), OSError(), last, OSError())

    with pytest.raises(OSError, match="last") as caught:
        await retrying(STEADY, call, sleep=clock.sleep, clock=clock)

    assert caught.value is last
    assert call.calls == 4


async def test_no_wait_begins_that_would_end_after_the_time_cap() -> None:
    clock, call = Clock(), Flaky(*[OSError() for _ in range(9)])
    policy = RetryPolicy(max_attempts=9, max_seconds=4, initial_wait=1, max_wait=60, jitter=0)

    with pytest.raises(OSError):
        await retrying(policy, call, sleep=clock.sleep, clock=clock)

    assert clock.slept == [1, 2]


async def test_an_error_that_is_not_transient_is_not_tried_again() -> None:
    call = Flaky(ValueError())

    with pytest.raises(ValueError):
        await retrying(STEADY, call, is_transient=lambda error: isinstance(error, OSError))

    assert call.calls == 1


async def test_the_policy_names_the_errors_it_is_for() -> None:
    call = Flaky(ValueError())

    with pytest.raises(ValueError):
        await retrying(RetryPolicy(retry_on=(OSError,)), call)

    assert call.calls == 1


async def test_a_wait_that_the_server_asks_for_replaces_ours() -> None:
    clock, call = Clock(), Flaky(OSError(7), OSError(0))

    await retrying(STEADY, call, retry_after=lambda error: error.args[0], sleep=clock.sleep, clock=clock)

    assert clock.slept == [7, 0]


async def test_a_wait_beyond_the_time_cap_is_not_waited_for() -> None:
    clock, call = Clock(), Flaky(OSError())

    with pytest.raises(OSError):
        await retrying(STEADY, call, retry_after=lambda _: 3600.0, sleep=clock.sleep, clock=clock)

    assert clock.slept == []


async def test_each_wait_is_announced_before_it_begins() -> None:
    clock, first = Clock(), OSError("first")
    waits: list[RetryWait] = []

    await retrying(STEADY, Flaky(first), on_wait=waits.append, sleep=clock.sleep, clock=clock)

    assert waits == [RetryWait(attempt=1, seconds=1, error=first)]


async def test_cancellation_is_never_retried() -> None:
    call = Flaky(asyncio.CancelledError())

    with pytest.raises(asyncio.CancelledError):
        await retrying(STEADY, call)

    assert call.calls == 1


async def test_one_attempt_is_a_policy_too() -> None:
    call = Flaky(OSError())

    with pytest.raises(OSError):
        await retrying(NO_RETRY, call)

    assert call.calls == 1


@pytest.mark.parametrize(
    ("attempt", "chance", "wait"),
    [
        pytest.param(2, 0.0, 1.0, id="first retry"),
        pytest.param(3, 0.0, 2.0, id="doubles"),
        pytest.param(9, 0.0, 10.0, id="bounded"),
        pytest.param(10**9, 0.0, 10.0, id="bounded forever"),
        pytest.param(2, 1.0, 0.5, id="all of the jitter"),
    ],
)
def test_waits_grow_and_leave_a_share_to_chance(attempt: int, chance: float, wait: float) -> None:
    policy = RetryPolicy(initial_wait=1, max_wait=10, jitter=0.5)

    assert policy.wait_before(attempt, chance=chance) == wait


@pytest.mark.parametrize(
    "bad", [{"max_attempts": 0}, {"max_seconds": -1}, {"jitter": 2}, {"initial_wait": -1}], ids=str
)
def test_a_policy_that_makes_no_sense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        RetryPolicy(**bad)  # type: ignore[arg-type]


def test_a_policy_is_a_value() -> None:
    assert RetryPolicy(max_attempts=2) == RetryPolicy(max_attempts=2)
    assert pickle.loads(pickle.dumps(RetryPolicy())) == RetryPolicy()
    assert len({RetryPolicy(), RetryPolicy()}) == 1
