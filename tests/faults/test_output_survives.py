"""A result that nobody saw is not lost: the same line again returns it, and nothing runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults.children import Case
from tests.faults.workloads import expected_of


@pytest.mark.parametrize("point", ["after last checkpoint", "before output", "after output"])
@pytest.mark.parametrize("stream", [False, True], ids=["awaited", "streamed"])
def test_killed_between_the_last_checkpoint_and_the_caller_the_same_line_returns_the_output(
    case: Case, point: str, stream: bool
) -> None:
    case = replace(case, options={"rounds": 2, "call_ms": 1, "stream": stream})
    assert case.live(crash_at=point).was_killed
    before = case.account()

    again = case.live()

    assert again.output == expected_of(case.shape)
    assert case.account().since(before).starts.total() == 0


def test_asking_for_a_finished_run_again_and_again_runs_nothing(case: Case) -> None:
    case = replace(case, options={"rounds": 2, "call_ms": 1})
    first = case.live()
    before = case.account()

    assert [case.live().output for _ in range(2)] == [first.output] * 2
    assert case.account().since(before).starts.total() == 0


def test_killed_before_the_last_checkpoint_no_call_of_the_run_is_made_again(case: Case) -> None:
    case = replace(case, options={"rounds": 2, "call_ms": 1})
    assert case.live(crash_at="before last checkpoint").was_killed
    before = case.account()

    assert case.live().output == expected_of(case.shape)
    assert case.account().since(before).starts.total() == 0
