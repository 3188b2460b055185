"""Runs seen from outside: which there are, resuming those that were interrupted, cancelling and deleting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import (
    InMemoryCheckpointStorage,
    InvalidRunArguments,
    RunBusy,
    UnknownRun,
    Workflow,
    WorkflowContext,
    executor,
)
from tests.workflows.parts import (
    Fragile,
    PowerLoss,
    alone,
    asking,
    counting,
    only_request,
    request_ids,
    state_of,
    take_until,
)


async def interrupt(workflow: Workflow, message: Any, run_id: str, *, at: str = "checkpoint") -> None:
    stream = workflow.run(message, run_id=run_id, stream=True)
    await take_until(stream, at)
    await stream.aclose()


# --- recover ----------------------------------------------------------------------------------------------------------


async def test_recover_resumes_every_interrupted_run() -> None:
    storage = InMemoryCheckpointStorage()
    for number in range(3):
        await interrupt(counting(storage), number, f"r{number}")
    results = await counting(storage).recover(storage)
    assert {result.run_id: result.get_outputs() for result in results} == {"r0": [5], "r1": [5], "r2": [5]}


async def test_recover_uses_the_storage_of_the_workflow() -> None:
    storage = InMemoryCheckpointStorage()
    await interrupt(counting(storage), 1, "r")
    assert [result.run_id for result in await counting(storage).recover()] == ["r"]


async def test_recover_leaves_finished_waiting_and_failed_runs_alone() -> None:
    storage = InMemoryCheckpointStorage()
    await counting(storage, name="w").run(1, run_id="finished")
    await asking(storage, name="w").run("tea", run_id="waiting")
    with pytest.raises(PowerLoss):
        await alone(Fragile(), storage, name="w").run("x", run_id="failed")
    assert await counting(storage, name="w").recover() == []


async def test_recover_leaves_runs_of_other_workflows_alone() -> None:
    storage = InMemoryCheckpointStorage()
    await interrupt(counting(storage, name="mine"), 1, "r")
    assert await counting(storage, name="yours").recover() == []


async def test_recover_leaves_runs_that_were_cancelled_on_purpose() -> None:
    storage = InMemoryCheckpointStorage()
    await interrupt(counting(storage), 1, "r")
    await storage.cancel_run("r")
    assert await counting(storage).recover() == []
    assert (await counting(storage).run(run_id="r")).get_outputs() == [5]


async def test_recover_delivers_answers_that_were_recorded_meanwhile() -> None:
    storage = InMemoryCheckpointStorage()
    request_id = await only_request(await asking(storage).run("tea", run_id="r"))
    await storage.answer(request_id, "milk")
    assert [result.get_outputs() for result in await asking(storage).recover()] == [["tea? milk"]]


async def test_recover_leaves_a_run_that_is_being_run_to_its_runner() -> None:
    storage = InMemoryCheckpointStorage()
    reached, go_on = asyncio.Event(), asyncio.Event()

    @executor(id="slow")
    async def slow(message: str, ctx: WorkflowContext[Any, str]) -> None:
        reached.set()
        await go_on.wait()
        await ctx.yield_output(message)

    workflow = alone(slow, storage)

    async def work() -> list[Any]:
        return (await workflow.run("x", run_id="r")).get_outputs()

    async with asyncio.TaskGroup() as group:
        running = group.create_task(work())
        await reached.wait()
        assert await workflow.recover() == []
        go_on.set()
    assert running.result() == ["x"]


async def test_a_run_that_fails_again_does_not_keep_the_others_from_going_on() -> None:
    storage = InMemoryCheckpointStorage()
    broken: set[str] = set()

    @executor(id="worker")
    async def work(message: str, ctx: WorkflowContext[Any, str]) -> None:
        if message in broken:
            raise PowerLoss(message)
        await asyncio.sleep(0)
        await ctx.yield_output(message)

    workflow = alone(work, storage)
    for name in ("a", "b", "c"):
        await interrupt(workflow, name, name, at="executor_invoked")
    broken.add("b")
    assert sorted(result.run_id for result in await workflow.recover()) == ["a", "c"]
    assert await state_of(storage, "b") == "FAILED"


async def test_recover_needs_a_storage() -> None:
    with pytest.raises(InvalidRunArguments, match=r"recover\(\) needs a storage"):
        await counting().recover()


# --- list_runs --------------------------------------------------------------------------------------------------------


async def test_runs_are_listed_the_most_recently_saved_first() -> None:
    storage = InMemoryCheckpointStorage()
    for name in ("a", "b", "c"):
        await counting(storage, end=2).run(1, run_id=name)
    await counting(storage, end=2).run(2, run_id="a")
    assert [info.run_id for info in await storage.list_runs()] == ["a", "c", "b"]


async def test_a_listed_run_tells_how_it_stands() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = asking(storage, name="teahouse")
    request_id = await only_request(await workflow.run("tea", run_id="r"))
    [info] = await storage.list_runs()
    latest = await storage.get_latest(run_id="r")
    assert latest is not None
    assert (info.run_id, info.workflow_name, info.state) == ("r", "teahouse", "IDLE_WITH_PENDING_REQUESTS")
    assert (info.supersteps, info.latest_checkpoint_id, info.holder) == (1, latest.checkpoint_id, None)
    [pending] = info.pending_requests
    assert (pending.request_id, pending.source_executor_id, pending.shown) == (request_id, "asker", '"tea?"')
    assert (pending.request_type, pending.response_type) == ("str", "str")


async def test_runs_can_be_listed_by_workflow_and_by_state() -> None:
    storage = InMemoryCheckpointStorage()
    await counting(storage, name="counting").run(1, run_id="done")
    await asking(storage, name="asking").run("tea", run_id="waiting")
    assert [info.run_id for info in await storage.list_runs(workflow_name="counting")] == ["done"]
    assert [info.run_id for info in await storage.list_runs(state="IDLE_WITH_PENDING_REQUESTS")] == ["waiting"]


async def test_a_failed_run_tells_why() -> None:
    storage = InMemoryCheckpointStorage()
    with pytest.raises(PowerLoss):
        await alone(Fragile(), storage).run("x", run_id="r")
    [info] = await storage.list_runs(state="FAILED")
    assert info.stopped_by == "PowerLoss: x"


# --- cancel_run, delete_run -------------------------------------------------------------------------------------------


async def test_a_cancelled_run_can_still_be_answered() -> None:
    storage = InMemoryCheckpointStorage()
    request_id = await only_request(await asking(storage).run("tea", run_id="r"))
    await storage.cancel_run("r")
    assert await state_of(storage, "r") == "CANCELLED"
    assert request_ids(await asking(storage).run(run_id="r")) == [request_id]
    assert (await asking(storage).run(responses={request_id: "milk"})).get_outputs() == ["tea? milk"]


async def test_a_deleted_run_is_gone() -> None:
    storage = InMemoryCheckpointStorage()
    await counting(storage).run(1, run_id="r")
    assert await storage.delete_run("r")
    assert not await storage.delete_run("r")
    assert (await storage.list_runs(), await storage.list_checkpoint_ids()) == ([], [])
    with pytest.raises(UnknownRun):
        await counting(storage).run(run_id="r")


async def test_an_unknown_run_can_not_be_cancelled() -> None:
    with pytest.raises(UnknownRun):
        await InMemoryCheckpointStorage().cancel_run("r")


async def test_a_run_that_is_held_can_be_neither_cancelled_nor_deleted() -> None:
    storage = InMemoryCheckpointStorage()
    stream = counting(storage).run(1, run_id="r", stream=True)
    await take_until(stream, "checkpoint")
    with pytest.raises(RunBusy):
        await storage.cancel_run("r")
    with pytest.raises(RunBusy):
        await storage.delete_run("r")
    assert (await stream).get_outputs() == [5]
