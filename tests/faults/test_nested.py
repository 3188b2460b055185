"""SIGKILL inside workflows inside workflows, with requests pending at each level: the harness of `test_kills.py`."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.faults.children import Case
from tests.faults.kills import killed_at_points, killed_until_done, tally
from tests.faults.nested import GATE_CALLS, LEVELS
from tests.faults.workloads import expected_of

POINTS = (
    "after open",
    "before call",
    "after call",
    "acknowledged",
    "found call",
    "in call",
    "finished call",
    "before checkpoint",
    "after checkpoint",
    "before last checkpoint",
    "after last checkpoint",
    "before output",
)


@pytest.fixture
def nested(case: Case) -> Case:
    return replace(case, workload="nested", program="tests.faults.nested", options={"call_ms": 2})


def test_an_uninterrupted_run_asks_at_every_level_at_once_and_makes_every_call_once(nested: Case) -> None:
    ending = nested.live()

    assert ending.output == expected_of(nested.shape)
    asked = [told["data"] for told in ending.told("request")]
    assert sorted(asked[:LEVELS]) == [f"level {number}" for number in range(1, LEVELS + 1)]
    assert nested.account().starts == dict.fromkeys([*nested.shape.names(), *GATE_CALLS], 1)
    tally(nested, [ending]).check()


def test_a_run_killed_at_random_instants_ends_as_if_it_had_not_been(nested: Case) -> None:
    # Long enough to outlast the first instant on any machine; how many more it takes is a matter of speed.
    slow = replace(nested, options={"call_ms": 8, "rounds": 30})

    result = killed_until_done(slow, random.Random(), kills=5, within=0.25)

    result.check()
    assert result.kills >= 1


def test_a_run_killed_at_named_points_ends_as_if_it_had_not_been(nested: Case) -> None:
    result = killed_at_points(nested, random.Random(7), POINTS)

    result.check()
    assert result.kills >= len(POINTS) // 3


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_up_to_two_hundred_kills_through_four_levels(nested: Case) -> None:
    dice = random.Random()
    for number in range(40):
        one = replace(nested, run_id=f"run-{number}", options={"call_ms": 8, "rounds": 10})
        killed_until_done(one, dice, kills=5, within=0.25).check()
