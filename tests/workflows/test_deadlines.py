"""Requests with a deadline: whoever next looks at the clock delivers the default, as a decision like any other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepwell import (
    AlreadyAnswered,
    Executor,
    InMemoryCheckpointStorage,
    InvalidRunArguments,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    handler,
    response_handler,
)
from stepwell.testing import CrashingStorage, PowerLoss, time_is
from stepwell.workflows import WorkflowExecutor
from tests.workflows.parts import alone, checkpoints_of, only_request, request_ids, warnings_in

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Patient(Executor):
    """Asks, and waits for an hour."""

    def __init__(self, id: str = "patient", *, deadline: Any = HOUR, default: Any = "whatever") -> None:
        super().__init__(id)
        self.deadline = deadline
        self.default = default

    @handler
    async def ask(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.request_info(f"{text}?", str, deadline=self.deadline, default=self.default)

    @response_handler
    async def answered(self, question: str, answer: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{question} {answer}")


def asking(storage: Any = None, **options: Any) -> Workflow:
    return alone(lambda: Patient(**options), storage, name="asking")


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "in memory"])
async def test_a_resume_before_the_deadline_asks_again_and_one_after_it_delivers_the_default(durable: bool) -> None:
    workflow = asking(InMemoryCheckpointStorage() if durable else None)
    with time_is(NOON):
        waiting = await workflow.run("sure", run_id="r")
    assert waiting.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS

    with time_is(NOON + HOUR / 2):
        still = await workflow.run(run_id="r")
    assert request_ids(still) == request_ids(waiting)
    assert still.get_outputs() == []

    with time_is(NOON + HOUR):
        done = await workflow.run(run_id="r")
    assert done.get_outputs() == ["sure? whatever"]
    assert done.get_final_state() is WorkflowRunState.IDLE
    [warning] = warnings_in(done)
    assert await only_request(waiting) in warning
    assert "default was delivered" in warning


async def test_the_default_is_a_decision_on_the_record_and_counts_once() -> None:
    storage = InMemoryCheckpointStorage()
    with time_is(NOON):
        request_id = await only_request(await asking(storage).run("sure", run_id="r"))
    with time_is(NOON + 2 * HOUR):
        await asking(storage).run(run_id="r")

        decision = await storage.decision("r", request_id)
        assert decision is not None
        assert (decision.value, decision.answered_at) == ('"whatever"', (NOON + 2 * HOUR).isoformat())
        with pytest.raises(AlreadyAnswered, match="whatever"):
            await asking(storage).run(run_id="r", responses={request_id: "too late"})
    # The entry, the question, the default's delivery and what came of it.
    assert [point.iteration_count for point in await checkpoints_of(storage, "r")] == [0, 1, 1, 2]


async def test_a_late_answer_counts_as_long_as_no_default_was_delivered() -> None:
    storage = InMemoryCheckpointStorage()
    with time_is(NOON):
        request_id = await only_request(await asking(storage).run("sure", run_id="r"))
    with time_is(NOON + 2 * HOUR):
        done = await asking(storage).run(run_id="r", responses={request_id: "mine"})

    assert done.get_outputs() == ["sure? mine"]


async def test_an_answer_that_was_recorded_without_the_program_comes_before_the_default() -> None:
    storage = InMemoryCheckpointStorage()
    with time_is(NOON):
        request_id = await only_request(await asking(storage).run("sure", run_id="r"))
    await storage.answer(request_id, "mine")
    with time_is(NOON + 2 * HOUR):
        done = await asking(storage).run(run_id="r")

    assert done.get_outputs() == ["sure? mine"]


def two(storage: Any = None) -> Workflow:
    """One question with a deadline beside one without."""

    class Start(Executor):
        @handler
        async def start(self, text: str, ctx: WorkflowContext[str]) -> None:
            await ctx.send_message(text)

    start = lambda: Start("start")  # noqa: E731
    return (
        WorkflowBuilder(start_executor=start, checkpoint_storage=storage, name="two")
        .add_fan_out_edges(start, [lambda: Patient("hasty"), lambda: Patient("calm", deadline=None, default=None)])
        .build()
    )


async def test_answering_one_request_delivers_the_overdue_default_of_another() -> None:
    storage = InMemoryCheckpointStorage()
    with time_is(NOON):
        waiting = await two(storage).run("sure", run_id="r")
    calm = next(e.request_id for e in waiting.get_request_info_events() if e.source_executor_id == "calm")
    with time_is(NOON + 2 * HOUR):
        done = await two(storage).run(run_id="r", responses={str(calm): "mine"})

    assert sorted(done.get_outputs()) == ["sure? mine", "sure? whatever"]


class Worker(Patient):
    """Goes on working for three supersteps while its question waits, a quarter of an hour each."""

    @handler
    async def ask(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.request_info(f"{text}?", str, deadline=self.deadline, default=self.default)
        await ctx.send_message(1)  # type: ignore[arg-type]

    @handler
    async def work(self, number: int, ctx: WorkflowContext[int, str]) -> None:
        if number < 3:
            await ctx.send_message(number + 1)

    @response_handler
    async def answered(self, question: str, answer: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{question} {answer} in superstep {ctx.superstep}")


def working(storage: Any = None, **options: Any) -> Workflow:
    slot = lambda: Worker(**options)  # noqa: E731
    builder = WorkflowBuilder(start_executor=slot, checkpoint_storage=storage, name="working")
    return builder.add_edge(slot, slot).build()


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "in memory"])
async def test_a_run_at_work_delivers_the_default_between_two_supersteps(durable: bool) -> None:
    storage = InMemoryCheckpointStorage() if durable else None
    result = await working(storage, deadline=timedelta(0)).run("sure")

    assert result.get_outputs() == ["sure? whatever in superstep 2"]
    assert result.get_final_state() is WorkflowRunState.IDLE


async def test_a_run_that_only_waits_ends_at_once_however_short_the_wait() -> None:
    """A deadline that is past when the last superstep ends is delivered; one a moment later is not waited for."""
    with time_is(NOON):
        over = await asking(InMemoryCheckpointStorage(), deadline=timedelta(0)).run("sure")
        waiting = await asking(InMemoryCheckpointStorage(), deadline=timedelta(microseconds=1)).run("sure")

    assert over.get_outputs() == ["sure? whatever"]
    assert waiting.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS


@pytest.mark.parametrize("point", ["before checkpoint#3", "after checkpoint#3", "before checkpoint#4"])
async def test_a_crash_around_the_delivery_of_a_default_delivers_it_once(point: str) -> None:
    disk = InMemoryCheckpointStorage()
    with time_is(NOON):
        await asking(disk).run("sure", run_id="r")
    counted = point.replace("#3", "#1").replace("#4", "#2")
    with time_is(NOON + HOUR):
        with pytest.raises(PowerLoss):
            await asking(CrashingStorage(disk, at=counted)).run(run_id="r")
        done = await asking(disk).run(run_id="r")

    assert done.get_outputs() == ["sure? whatever"]


async def test_recover_delivers_overdue_defaults_at_start_up() -> None:
    storage = InMemoryCheckpointStorage()
    with time_is(NOON):
        await asking(storage).run("late", run_id="late")
    with time_is(NOON + HOUR / 2):
        await asking(storage).run("early", run_id="early")
    with time_is(NOON + HOUR):
        results = await asking(storage).recover()

    assert [(result.run_id, result.get_outputs()) for result in results] == [("late", ["late? whatever"])]


async def test_a_deadline_without_a_default_only_tells_people() -> None:
    storage = InMemoryCheckpointStorage()
    with time_is(NOON):
        waiting = await asking(storage, default=None).run("sure", run_id="r")
    with time_is(NOON + 2 * HOUR):
        still = await asking(storage, default=None).run(run_id="r")

    assert request_ids(still) == request_ids(waiting)
    [info] = await storage.list_runs()
    assert info.pending_requests[0].deadline == (NOON + HOUR).isoformat()


async def test_none_is_a_default_where_none_is_an_answer() -> None:
    class Optional(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext[str, str]) -> None:
            await ctx.request_info(f"{text}?", str | None, deadline=timedelta(0))

        @response_handler
        async def answered(self, question: str, answer: str | None, ctx: WorkflowContext[str, str]) -> None:
            await ctx.yield_output(f"{question} {answer}")

    assert (await alone(Optional("optional")).run("sure")).get_outputs() == ["sure? None"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"default": 5}, "default=5 is no str"),
        ({"deadline": None}, "default='whatever' needs a deadline"),
        ({"deadline": datetime(2030, 1, 1)}, "needs a time zone"),  # noqa: DTZ001
    ],
    ids=["of another type", "without a deadline", "naive"],
)
async def test_a_default_that_could_never_be_delivered_is_refused_when_it_is_given(
    options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidRunArguments, match=complaint):
        await asking(**options).run("sure")


@pytest.mark.parametrize("depth", [1, 3])
async def test_the_deadline_of_an_inner_workflows_request_is_the_parents_business(depth: int) -> None:
    storage = InMemoryCheckpointStorage()

    def build() -> Workflow:
        workflow = asking()
        for number in range(depth):
            sub = WorkflowExecutor(workflow, f"sub-{number}", allow_direct_output=True, propagate_request=True)
            workflow = alone(sub, storage if number == depth - 1 else None, name=f"around-{number}")
        return workflow

    with time_is(NOON):
        await build().run("sure", run_id="r")
    with time_is(NOON + HOUR):
        done = await build().run(run_id="r")

    assert done.get_outputs() == ["sure? whatever"]


def test_the_time_needs_a_zone() -> None:
    with pytest.raises(ValueError, match="time zone"), time_is(datetime(2030, 1, 1)):  # noqa: DTZ001
        pass
