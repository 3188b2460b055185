"""Several processes run the same line at once: one of them does the work, the others are told who."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.faults.children import Case, Ending
from tests.faults.workloads import expected_of


@pytest.fixture
def slow(case: Case) -> Case:
    """A run that takes long enough for everybody to try while one is at it."""
    return replace(case, options={"rounds": 12, "call_ms": 40})


def at_once(case: Case, number: int) -> list[Ending]:
    """This many processes, all ready before the first of them opens the store."""
    with ExitStack() as stack:
        children = [stack.enter_context(case.start(gate=True)) for _ in range(number)]
        for child in children:
            child.wait_for("ready")
        for child in children:
            child.say("go")
        return [child.ended() for child in children]


def one_of(endings: list[Ending]) -> Ending:
    """The one that did the work; all others have to have been refused, with an error that names it."""
    [winner] = [ending for ending in endings if ending.output is not None]
    for loser in endings:
        if loser is not winner:
            assert loser.error == "RunBusy", loser
            [told] = loser.told("error")
            assert f"process {winner.pid} " in told["holder"], told
            assert f"process {winner.pid} " in told["text"], told
    return winner


@pytest.mark.parametrize("number", [2, 8])
def test_of_many_resumers_one_does_the_work_and_no_call_is_made_by_two(slow: Case, number: int) -> None:
    assert slow.live(crash_at="acknowledged#20", call_ms=1).was_killed
    before = slow.account()

    winner = one_of(at_once(slow, number))

    assert winner.output == expected_of(slow.shape)
    resumed = slow.account().since(before)
    assert set(resumed.starts.values()) == {1}
    assert all(makers == {winner.pid} for makers in resumed.makers.values())
    repeats = slow.account().repeats()
    assert (repeats.acknowledged, repeats.found) == (0, 0)


@pytest.mark.parametrize("number", [8])
def test_of_many_who_start_a_new_run_in_a_new_store_one_does_the_work(slow: Case, number: int) -> None:
    winner = one_of(at_once(slow, number))

    assert winner.output == expected_of(slow.shape)
    assert slow.account().starts == dict.fromkeys(slow.shape.names(), 1)


def test_of_many_who_come_when_the_work_is_done_nobody_calls_anything(case: Case) -> None:
    case = replace(case, options={"rounds": 2, "call_ms": 1})
    expected = case.live().output
    before = case.account()

    endings = at_once(case, 4)

    # Whoever looks while another one does is told that the run is busy, and may come again.
    assert {ending.error for ending in endings} <= {None, "RunBusy"}
    served = [ending.output for ending in endings if ending.error is None]
    assert served == [expected] * len(served) != []
    assert case.account().since(before).starts.total() == 0


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_of_many_resumers_one_does_the_work_however_often_they_come(slow: Case) -> None:
    dice = random.Random()
    for number in range(25):
        run = replace(slow, run_id=f"run-{number}")
        assert run.live(crash_at=f"acknowledged#{dice.randint(1, 60)}", call_ms=1).was_killed
        before = run.account()

        winner = one_of(at_once(run, 8))

        assert winner.output == expected_of(run.shape)
        assert set(run.account().since(before).starts.values()) == {1}
        assert run.account().repeats().acknowledged == 0
