"""SIGKILL, at random instants and at named points: nothing is lost, wrong or swapped, nothing recorded is repeated."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults.backends import Backend, open_store
from tests.faults.children import Case
from tests.faults.kills import NAMED_POINTS, REPEAT_POINTS, killed_at_points, killed_until_done, tally
from tests.faults.long import thousand_kills
from tests.faults.oracle import Oracle
from tests.faults.workloads import Desk, expected_of, team


def plain(value: Any) -> Any:
    """As it looks when it has gone through a pipe."""
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("workload", ["rounds", "pairs", "gathered"])
def test_an_uninterrupted_run_makes_every_call_once_and_puts_out_what_is_expected(case: Case, workload: str) -> None:
    case = replace(case, workload=workload, options={"rounds": 3, "call_ms": 1})

    ending = case.live()

    assert ending.output == expected_of(case.shape)
    assert case.account().starts == dict.fromkeys(case.shape.names(), 1)
    assert len(case.account().acknowledged) == len(case.shape.names())
    tally(case, [ending]).check()


@pytest.mark.parametrize("workload", ["rounds", "pairs", "gathered"])
def test_a_run_killed_at_random_instants_ends_as_if_it_had_not_been(case: Case, workload: str) -> None:
    case = replace(case, workload=workload)

    result = killed_until_done(case, random.Random(), kills=6, within=0.4)

    result.check()


def test_a_run_killed_at_every_named_point_in_turn_ends_as_if_it_had_not_been(case: Case) -> None:
    result = killed_at_points(case, random.Random(), NAMED_POINTS[: NAMED_POINTS.index("before last checkpoint")])

    result.check()
    assert result.kills >= len(NAMED_POINTS) // 2


PRELUDE = {"found call": "acknowledged#2"}
"""Some points are only reached by a run that was killed before."""


@pytest.mark.parametrize("point", NAMED_POINTS)
def test_a_kill_repeats_a_finished_call_only_before_its_record_is_durable(case: Case, point: str) -> None:
    case = replace(case, workload="solo", options={"call_ms": 1})
    endings = [case.live(crash_at=PRELUDE[point])] if point in PRELUDE else []
    endings.append(case.live(crash_at=point))
    assert endings[-1].was_killed

    result = tally(case, [*endings, case.live()])

    result.check()
    assert result.repeats.finished == (1 if point in REPEAT_POINTS else 0)


def test_a_run_is_free_the_moment_its_holder_is_killed_however_long_its_lease(case: Case) -> None:
    case = replace(case, options={"lease": 3600, "rounds": 5})

    killed_until_done(case, random.Random(), kills=3, within=0.1).check()


def test_a_store_whose_creation_was_cut_off_is_created_by_the_next(backend: Backend, tmp_path: Path) -> None:
    dice = random.Random()
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        case = Case(backend.place(folder), folder, workload="solo", options={"call_ms": 1})
        killed_until_done(case, dice, kills=2, within=0.012).check()
        backend.tear_down(case.store)


async def test_recover_finishes_what_was_killed(case: Case) -> None:
    case = replace(case, options={"rounds": 3, "call_ms": 1})
    cases = [replace(case, run_id=f"run-{number}") for number in range(3)]
    for one in cases:
        assert one.live(crash_at="acknowledged#7").was_killed
    desk = Desk(Oracle(case.folder / "recovered.oracle"), call_ms=1)

    async with open_store(case.store) as storage:
        results = await team(desk, case.shape).recover(storage)

    assert {result.run_id for result in results} == {one.run_id for one in cases}
    assert [plain(result.get_outputs()) for result in results] == [[expected_of(case.shape)]] * 3


async def test_recover_passes_over_a_run_that_was_killed_before_its_message_was_recorded(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    case = replace(case, options={"rounds": 1, "call_ms": 1})
    assert case.live(crash_at="after open").was_killed

    async with open_store(case.store) as storage:
        recovered = await team(Desk(Oracle(case.oracle)), case.shape).recover(storage)

    assert recovered == []
    assert caplog.records == [], "nothing is wrong, so nothing is complained about"
    assert case.live().output == expected_of(case.shape)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_a_thousand_kills(backend: Backend) -> None:
    assert thousand_kills([backend]) == 0
