"""A holder that is frozen: within its lease the run is its own, after it anybody's, and then its writes are refused."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.children import LIFETIME_SECONDS, Case, Child, Ending, Stuck
from tests.faults.workloads import expected_of

SHORT_LEASE = 0.5


@pytest.fixture
def slow(case: Case) -> Case:
    """Calls that last, so that a holder can be frozen in the middle of some."""
    return replace(case, options={"rounds": 3, "call_ms": 150})


def until(happened: Callable[[], bool]) -> None:
    """Wait for something that other processes do."""
    deadline = time.monotonic() + LIFETIME_SECONDS
    while not happened():
        if time.monotonic() > deadline:
            raise Stuck("it never happened")
        time.sleep(0.005)


def calls_under_way(case: Case, child: Child) -> int:
    mine = case.account().of(child.pid)
    return len(mine.only("start")) - len(mine.only("finish"))


def frozen_in_a_call(case: Case, child: Child) -> None:
    """Freeze it while each of its workers is in a call: then the next thing any of them does is a write."""

    def frozen() -> bool:
        if calls_under_way(case, child) < case.shape.workers:
            return False
        child.send(signal.SIGSTOP)
        time.sleep(0.02)  # a signal takes its time
        if calls_under_way(case, child) == case.shape.workers:
            return True
        child.send(signal.SIGCONT)
        return False

    until(frozen)


def taken_over(case: Case) -> Child:
    """A process that has the run; whoever comes before the lease has run out is refused, and another one comes."""
    deadline = time.monotonic() + LIFETIME_SECONDS
    while time.monotonic() < deadline:
        child = case.start()
        while child.listen_for(0.02):
            if calls_under_way(case, child):
                return child
        ending = child.ended()
        assert ending.error == "RunBusy", ending
    raise Stuck("the run was never free")


def refused(child: Child) -> Ending:
    """Let it go on: its next write is refused, and it makes no further call."""
    child.send(signal.SIGCONT)
    ending = child.ended()
    assert ending.output is None
    assert ending.error == "RunTakenOver", ending
    return ending


def test_a_frozen_holder_is_taken_over_after_its_lease_and_its_next_write_is_refused(slow: Case) -> None:
    with slow.start(lease=SHORT_LEASE) as first:
        frozen_in_a_call(slow, first)
        before = slow.account()
        with taken_over(slow) as second:
            [told] = refused(first).told("error")
            assert f"process {second.pid} " in told["holder"], "the error names who has the run now"
            assert second.ended().output == expected_of(slow.shape)

    afterwards = slow.account().since(before)
    assert afterwards.of(first.pid).starts.total() == 0, "it made a call although the run was not its own"
    assert afterwards.of(first.pid).acknowledged == set(), "a write of it was let through"
    assert slow.account().repeats().acknowledged == 0
    assert set(afterwards.of(second.pid).starts.values()) == {1}


def test_a_holder_that_wakes_up_after_the_run_was_finished_by_another_is_refused(slow: Case) -> None:
    with slow.start(lease=SHORT_LEASE) as first:
        frozen_in_a_call(slow, first)
        before = slow.account()
        with taken_over(slow) as second:
            output = second.ended().output
        refused(first)

    assert output == expected_of(slow.shape)
    assert slow.account().since(before).of(first.pid).starts.total() == 0
    assert slow.live().output == output, "what the first one did to the record"


def test_a_holder_that_merely_slept_goes_on(slow: Case) -> None:
    with slow.start(lease=SHORT_LEASE) as child:
        frozen_in_a_call(slow, child)
        time.sleep(3 * SHORT_LEASE)
        child.send(signal.SIGCONT)

        assert child.ended().output == expected_of(slow.shape)

    assert slow.account().starts == dict.fromkeys(slow.shape.names(), 1)


def test_a_frozen_holder_keeps_its_run_for_as_long_as_its_lease_lasts(slow: Case) -> None:
    with slow.start(lease=3600) as child:
        frozen_in_a_call(slow, child)
        others = [slow.live() for _ in range(3)]
        child.send(signal.SIGCONT)

        assert child.ended().output == expected_of(slow.shape)

    assert [other.error for other in others] == ["RunBusy"] * 3
    assert all(f"process {child.pid} " in told["holder"] for other in others for told in other.told("error"))
    assert slow.account().starts == dict.fromkeys(slow.shape.names(), 1)


def test_a_frozen_holder_that_is_killed_is_replaced_at_once(slow: Case) -> None:
    with slow.start(lease=3600) as child:
        frozen_in_a_call(slow, child)
        assert child.kill().was_killed

    assert slow.live(call_ms=1).output == expected_of(slow.shape)
    assert slow.account().repeats().acknowledged == 0
