"""A decision counts once, and one that can't be used does not wedge the run."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import (
    AlreadyAnswered,
    Executor,
    InMemoryCheckpointStorage,
    InvalidRunArguments,
    ResponseTypeMismatch,
    SQLiteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    handler,
    response_handler,
)


class Asks(Executor):
    """Asks for a colour, as often as it is told to."""

    @handler
    async def start(self, times: int, ctx: WorkflowContext[int, str]) -> None:
        await ctx.request_info({"left": times}, str, request_id=self.name_of(times))

    def name_of(self, times: int) -> str | None:
        return None

    @response_handler
    async def answered(self, request: dict[str, int], colour: str, ctx: WorkflowContext[int, str]) -> None:
        await ctx.yield_output(colour)
        if request["left"] > 1:
            await ctx.send_message(request["left"] - 1)


class AsksByName(Asks):
    def name_of(self, times: int) -> str:
        return "colour"


def asking(kind: type[Asks] = Asks, **options: Any) -> Workflow:
    def make() -> Asks:
        return kind("asks")

    return WorkflowBuilder(start_executor=make, name="asking", **options).add_edge(make, make).build()


@pytest.fixture(params=["memory", "sqlite"])
async def storage(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    if request.param == "memory":
        yield InMemoryCheckpointStorage()
    else:
        async with SQLiteCheckpointStorage(tmp_path / "runs.db") as opened:
            yield opened


async def test_an_answer_of_the_wrong_type_recorded_without_the_program_can_be_replaced(storage: Any) -> None:
    paused = await asking().run(1, run_id="r", checkpoint_storage=storage)
    [event] = paused.get_request_info_events()
    await storage.answer(event.request_id, 5)

    with pytest.raises(ResponseTypeMismatch):
        await asking().run(run_id="r", checkpoint_storage=storage)
    result = await asking().run(responses={event.request_id: "red"}, run_id="r", checkpoint_storage=storage)

    assert result.get_outputs() == ["red"]


async def test_a_good_answer_recorded_without_the_program_can_not(storage: Any) -> None:
    paused = await asking().run(1, run_id="r", checkpoint_storage=storage)
    [event] = paused.get_request_info_events()
    await storage.answer(event.request_id, "red")

    with pytest.raises(AlreadyAnswered):
        await asking().run(responses={event.request_id: "blue"}, run_id="r", checkpoint_storage=storage)

    assert (await asking().run(run_id="r", checkpoint_storage=storage)).get_outputs() == ["red"]


async def test_a_request_id_that_waits_in_two_runs_has_to_be_told_apart(storage: Any) -> None:
    workflow = asking(AsksByName)
    for run_id in ("one", "two"):
        await workflow.run(1, run_id=run_id, checkpoint_storage=storage)

    with pytest.raises(InvalidRunArguments, match=r"'one', 'two'|'two', 'one'"):
        await workflow.run(responses={"colour": "red"}, checkpoint_storage=storage)

    result = await workflow.run(responses={"colour": "red"}, run_id="two", checkpoint_storage=storage)
    assert result.get_outputs() == ["red"]


async def test_a_branch_nobody_asked_for_can_not_decide_again(storage: Any) -> None:
    paused = await asking().run(1, run_id="r", checkpoint_storage=storage)
    [event] = paused.get_request_info_events()
    older = (await storage.get_latest(run_id="r")).checkpoint_id
    await asking().run(responses={event.request_id: "red"}, checkpoint_storage=storage)

    branch = await asking().run(checkpoint_id=older, checkpoint_storage=storage)

    assert branch.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    with pytest.raises(AlreadyAnswered, match="red"):
        await asking().run(responses={event.request_id: "blue"}, run_id=branch.run_id, checkpoint_storage=storage)


async def test_a_branch_that_was_asked_for_may_decide_differently(storage: Any) -> None:
    paused = await asking().run(1, run_id="r", checkpoint_storage=storage)
    [event] = paused.get_request_info_events()
    older = (await storage.get_latest(run_id="r")).checkpoint_id
    await asking().run(responses={event.request_id: "red"}, checkpoint_storage=storage)

    other = await asking().run(
        checkpoint_id=older, branch=True, responses={event.request_id: "blue"}, checkpoint_storage=storage
    )

    assert other.get_outputs() == ["blue"]
    assert (await asking().run(run_id="r", checkpoint_storage=storage)).get_outputs() == ["red"]


async def test_a_long_talk_with_a_person_does_not_use_up_the_supersteps() -> None:
    storage, workflow = InMemoryCheckpointStorage(), asking(max_iterations=3)
    result = await workflow.run(10, run_id="r", checkpoint_storage=storage)

    while result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS:
        [event] = result.get_request_info_events()
        result = await workflow.run(responses={event.request_id: "red"}, checkpoint_storage=storage)

    assert result.get_outputs() == ["red"] * 10


async def test_a_fan_in_that_never_completes_is_mentioned() -> None:
    class Splits(Executor):
        @handler
        async def split(self, text: str, ctx: WorkflowContext[str]) -> None:
            await ctx.send_message(text, target_id="left")

    class Passes(Executor):
        @handler
        async def go(self, text: str, ctx: WorkflowContext[str]) -> None:
            await ctx.send_message(text)

    class Joins(Executor):
        @handler
        async def join(self, texts: list[str], ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output("".join(texts))

    split, left, right, join = Splits("split"), Passes("left"), Passes("right"), Joins("join")
    workflow = (
        WorkflowBuilder(start_executor=split)
        .add_fan_out_edges(split, [left, right])
        .add_fan_in_edges([left, right], join)
        .build()
    )

    result = await workflow.run("x")

    [warning] = [event.data for event in result if event.type == "warning"]
    assert "'join' is still waiting for 'right'" in warning


async def test_a_finished_run_can_be_read_while_somebody_else_holds_it() -> None:
    storage, workflow = InMemoryCheckpointStorage(), asking()
    paused = await workflow.run(1, run_id="r", checkpoint_storage=storage)
    [event] = paused.get_request_info_events()
    await workflow.run(responses={event.request_id: "red"}, checkpoint_storage=storage)
    log = await storage.open_run("r", workflow_name="asking", registry=workflow.graph.registry, create=False)
    assert log is not None

    assert (await workflow.run(run_id="r", checkpoint_storage=storage)).get_outputs() == ["red"]
