"""Programs that do what nobody expects: the run says what happened, and nothing of another run is harmed."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stepwell import (
    AwaitedCancelled,
    CheckpointStorage,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    InvalidRunArguments,
    LimitExceeded,
    SQLiteCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    WorkflowValidationError,
    executor,
    keep_last,
)
from stepwell.checkpointing.codec import Codec
from stepwell.checkpointing.journal import request_digest
from tests.workflows.parts import alone, asking, chained, only_request


@pytest.fixture(params=["memory", "file", "sqlite"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CheckpointStorage]:
    if request.param == "memory":
        yield InMemoryCheckpointStorage()
        return
    make = FileCheckpointStorage if request.param == "file" else SQLiteCheckpointStorage
    async with make(tmp_path / "store") as store:
        yield store


# --- values -----------------------------------------------------------------------------------------------------------


async def test_state_that_contains_itself_is_refused_where_it_lies(storage: CheckpointStorage) -> None:
    root: dict[str, Any] = {"children": []}
    root["children"].append({"parent": root})

    @executor(id="plant")
    async def plant(_: str, ctx: WorkflowContext) -> None:
        ctx.set_state("tree", root)

    with pytest.raises(LimitExceeded, match=r"tree.*depth limit"):
        await alone(plant, storage).run("go")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({1: "a", 2: "b"}, {2: "b", 1: "a"}),
        ({("x",): 1, ("y",): 2}, {("y",): 2, ("x",): 1}),
        (Counter("ab"), Counter("ba")),
        (defaultdict(int, {1: 1, 2: 2}), defaultdict(int, {2: 2, 1: 1})),
    ],
)
def test_a_request_is_the_same_in_whatever_order_its_keys_came(one: Any, other: Any) -> None:
    assert request_digest(Codec(), one) == request_digest(Codec(), other)


# --- wrong types ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_id", [7, uuid4(), "", b"x"])
async def test_a_request_id_that_is_no_text_is_refused_and_harms_no_other_run(storage: Any, request_id: Any) -> None:
    @executor(id="ask")
    async def ask(_: str, ctx: WorkflowContext) -> None:
        await ctx.request_info("?", str, request_id=request_id)

    with pytest.raises(InvalidRunArguments, match="request_id"):
        await alone(ask, storage).run("go", run_id="r")
    [run] = await storage.list_runs()
    assert run.state == "FAILED"
    assert await storage.delete_run("r")


@pytest.mark.parametrize("deadline", [5, "tomorrow", timedelta.max])
async def test_a_deadline_that_is_none_is_refused(deadline: Any) -> None:
    @executor(id="ask")
    async def ask(_: str, ctx: WorkflowContext) -> None:
        await ctx.request_info("?", str, deadline=deadline)

    with pytest.raises(InvalidRunArguments, match="deadline"):
        await alone(ask, InMemoryCheckpointStorage()).run("go")


@pytest.mark.parametrize("options", [{"name": 5}, {"name": ""}, {"max_iterations": "3"}, {"max_iterations": True}])
def test_a_builder_wants_a_name_and_a_number(options: Any) -> None:
    with pytest.raises(WorkflowValidationError, match=next(iter(options))):
        WorkflowBuilder(**options)


@pytest.mark.parametrize("arguments", [{"responses": [1]}, {"responses": {5: "x"}}, {"max_iterations": 1.5}])
async def test_a_run_wants_answers_by_id_and_a_number(arguments: Any) -> None:
    @executor(id="nothing")
    async def nothing(_: str, ctx: WorkflowContext) -> None: ...

    with pytest.raises(InvalidRunArguments, match=next(iter(arguments))):
        await alone(nothing, InMemoryCheckpointStorage()).run(run_id="r", **arguments)


@pytest.mark.parametrize("count", ["2", 1.5, True, 0])
def test_a_number_of_checkpoints_is_kept(count: Any) -> None:
    with pytest.raises(ValueError, match="keep_last"):
        keep_last(count)


# --- cancellation and exits -------------------------------------------------------------------------------------------


async def test_waiting_for_what_somebody_else_cancelled_is_a_failure_and_not_an_interruption(storage: Any) -> None:
    @executor(id="wait")
    async def wait(_: str, ctx: WorkflowContext) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    workflow = alone(wait, storage)
    with pytest.raises(AwaitedCancelled, match="'wait'"):
        await workflow.run("go", run_id="r")
    [run] = await storage.list_runs()
    assert run.state == "FAILED"
    assert await workflow.recover() == []


async def test_recovering_goes_on_after_a_run_whose_handler_waits_for_what_was_cancelled() -> None:
    storage, broken = InMemoryCheckpointStorage(), True

    @executor(id="first")
    async def first(text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text)

    @executor(id="second")
    async def second(text: str, ctx: WorkflowContext[Any, str]) -> None:
        if broken:
            await asyncio.sleep(3600)
        if text == "bad":
            raise asyncio.CancelledError
        await ctx.yield_output(text)

    workflow = chained([first, second], storage)
    for text in ("bad", "good"):
        async for event in workflow.run(text, run_id=text, stream=True):
            if event.type == "executor_invoked" and event.executor_id == "second":
                break
    broken = False
    assert [result.get_outputs() for result in await workflow.recover()] == [["good"]]


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
async def test_a_process_that_lives_on_after_all_can_resume_what_was_cut_off(
    storage: Any, ending: type[BaseException]
) -> None:
    ends = True

    @executor(id="desk")
    async def desk(text: str, ctx: WorkflowContext[Any, str]) -> None:
        if ends:
            raise ending
        await ctx.yield_output(text)

    workflow = alone(desk, storage)
    with pytest.raises(ending):
        await workflow.run("go", run_id="r")
    ends = False
    assert (await workflow.run(run_id="r")).get_outputs() == ["go"]


# --- events -----------------------------------------------------------------------------------------------------------


async def test_who_reads_events_cannot_change_what_is_on_its_way() -> None:
    @executor(id="send")
    async def send(items: list[str], ctx: WorkflowContext[list[str], list[str]]) -> None:
        await ctx.send_message(items)
        await ctx.yield_output(items)

    @executor(id="receive")
    async def receive(items: list[str], ctx: WorkflowContext[Any, list[str]]) -> None:
        await ctx.yield_output(items)

    stream = chained([send, receive], InMemoryCheckpointStorage()).run(["a"], stream=True)
    async for event in stream:
        if event.type == "executor_invoked":
            event.data.append("meddled")
        if event.type == "executor_completed":
            for data in event.data:
                data.append("meddled")
    result = await stream.get_final_response()
    assert result.get_outputs() == [["a"], ["a"]]
    assert result.get_final_state() is WorkflowRunState.IDLE


# --- growth -----------------------------------------------------------------------------------------------------------


async def test_what_a_checkpoint_says_of_itself_does_not_grow_with_the_questions_asked() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = asking(storage)
    lengths = []
    for _ in range(12):
        request_id = await only_request(await workflow.run("tea", run_id="r", new_turn=True))
        await workflow.run(run_id="r", responses={request_id: "milk"})
        latest = await storage.get_latest(run_id="r")
        assert latest is not None
        lengths.append(len(str(latest.metadata)))
    assert lengths[-1] <= lengths[1] + 10
