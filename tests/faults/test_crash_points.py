"""`stepwell.testing.crash` for people's own tests: a program loses power at a point, and a new one goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepwell import Executor, InMemoryCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext, handler
from stepwell.testing import CRASH_POINTS, Crash, CrashingStorage, PowerLoss
from stepwell.testing.crash import lose_power
from tests.faults.backends import Backend


class Clerk(Executor):
    """Asks three questions, the last of them at most once."""

    def __init__(self, asked: list[str]) -> None:
        super().__init__("clerk")
        self._asked = asked

    @handler
    async def work(self, task: str, ctx: WorkflowContext[str, list[str]]) -> None:
        answers = [await ctx.call(self.ask, f"{task} {number}") for number in (1, 2)]
        answers.append(await ctx.call(self.ask, f"{task} 3", at_most_once=True))
        await ctx.yield_output(answers)

    async def ask(self, question: str) -> str:
        self._asked.append(question)
        return question.upper()


def office(asked: list[str]) -> Workflow:
    return WorkflowBuilder(start_executor=lambda: Clerk(asked), name="office").build()


AGAIN = {"found call", "before release", "after release"}
"""Points that a first, undisturbed attempt does not pass."""

AFTER_THE_LAST_CALL = ("after call#3", "before last checkpoint", "after last checkpoint")


@pytest.mark.parametrize("point", [p for p in CRASH_POINTS if p not in AGAIN])
async def test_a_program_that_lost_power_at_any_point_goes_on_without_repeating_what_was_recorded(point: str) -> None:
    asked: list[str] = []
    disk = InMemoryCheckpointStorage()

    with pytest.raises(PowerLoss, match=point):
        await office(asked).run("file", run_id="r", checkpoint_storage=CrashingStorage(disk, at=point))
    before = list(asked)
    result = await office(asked).run("file", run_id="r", checkpoint_storage=disk)

    in_doubt = {str(event.request_id): event.data.retry() for event in result.get_request_info_events()}
    if in_doubt:
        assert point == "after start"
        result = await office(asked).run(responses=in_doubt, checkpoint_storage=disk)
    assert result.get_outputs() == [["FILE 1", "FILE 2", "FILE 3"]]
    repeated = ["file 1"] if point == "before call" else []
    assert sorted(asked) == sorted([*repeated, "file 1", "file 2", "file 3"])
    assert asked[: len(before)] == before


@pytest.mark.parametrize("point", AFTER_THE_LAST_CALL)
async def test_after_the_last_record_no_call_is_made_again(point: str) -> None:
    asked: list[str] = []
    disk = InMemoryCheckpointStorage()

    with pytest.raises(PowerLoss):
        await office(asked).run("file", run_id="r", checkpoint_storage=CrashingStorage(disk, at=point))
    await office(asked).run("file", run_id="r", checkpoint_storage=disk)

    assert asked == ["file 1", "file 2", "file 3"]


async def test_power_can_be_lost_again_while_resuming(backend: Backend, tmp_path: Path) -> None:
    asked: list[str] = []
    async with backend.open(backend.place(tmp_path).partition(":")[2]) as disk:
        for point in ("after call#2", "found call#2", "after open", "before last checkpoint"):
            with pytest.raises(PowerLoss):
                await office(asked).run("file", run_id="r", checkpoint_storage=CrashingStorage(disk, at=point))
        result = await office(asked).run("file", run_id="r", checkpoint_storage=disk)

    assert result.get_outputs() == [["FILE 1", "FILE 2", "FILE 3"]]
    assert asked == ["file 1", "file 2", "file 3"]


async def test_a_watcher_sees_the_points_in_order() -> None:
    seen: list[str] = []
    storage = CrashingStorage(InMemoryCheckpointStorage(), watcher=lambda point, subject: seen.append(point))

    await office([]).run("file", run_id="r", checkpoint_storage=storage)

    assert seen[:6] == [
        "before open",
        "after open",
        "before checkpoint",
        "after checkpoint",
        "before call",
        "after call",
    ]
    assert seen.index("after start") < seen.index("before last checkpoint") < seen.index("after last checkpoint")


def test_the_nth_time_a_point_is_reached_is_the_one_that_counts() -> None:
    crash = Crash("after call#3", die=lose_power)
    for _ in range(2):
        crash("after call")
    crash("before call")
    with pytest.raises(PowerLoss):
        crash("after call")


@pytest.mark.parametrize("wrong", ["after call#0", "after call#x", "after call#-1"])
def test_a_count_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="crash point"):
        Crash(wrong)


def test_a_point_that_no_storage_has_is_refused() -> None:
    with pytest.raises(ValueError, match="after call"):
        CrashingStorage(InMemoryCheckpointStorage(), at="after lunch")


def test_a_storage_without_runs_is_refused() -> None:
    class Plain:
        """No storage at all."""

    plain: Any = Plain()
    with pytest.raises(TypeError, match="no runs"):
        CrashingStorage(plain)
