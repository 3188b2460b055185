"""Streams: what is announced when, and that leaving early in any way leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stepwell import (
    Executor,
    InMemoryCheckpointStorage,
    ResponseStream,
    RunBusy,
    RunTakenOver,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowException,
    WorkflowRunState,
    executor,
    handler,
)
from tests.workflows.parts import (
    Asker,
    Counter,
    FailingStorage,
    Fragile,
    ObservedStorage,
    PowerLoss,
    Printer,
    Relay,
    alone,
    asking,
    chained,
    counting,
    holder_of,
    only_request,
    state_of,
    take_until,
    types_in,
)

REPOSITORY = Path(__file__).resolve().parents[2]


class Talker(Executor):
    """Yields, asks and goes on, three times."""

    @handler
    async def talk(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        await ctx.yield_output(number)
        await ctx.request_info(number, str)
        if number < 3:
            await ctx.send_message(number + 1)


def talking(storage: InMemoryCheckpointStorage) -> Workflow:
    slot = lambda: Talker("talker")  # noqa: E731
    return WorkflowBuilder(start_executor=slot, checkpoint_storage=storage).add_edge(slot, slot).build()


async def read_into(heard: list[WorkflowEvent], stream: ResponseStream) -> None:
    """Keep what was heard even if the stream fails."""
    async for event in stream:
        heard.append(event)  # noqa: PERF401


# --- order ------------------------------------------------------------------------------------------------------------


async def test_the_events_of_a_run_come_in_order() -> None:
    events = [event async for event in counting(InMemoryCheckpointStorage(), end=2).run(1, stream=True)]
    superstep = ["superstep_started", "executor_invoked", "executor_completed", "checkpoint"]
    assert types_in(events) == [
        "started",
        "status",
        "checkpoint",
        *superstep[:1],
        "status",
        *superstep[1:],
        "superstep_completed",
        *superstep,
        "output",
        "superstep_completed",
        "status",
    ]
    assert [event.state for event in events if event.type == "status"] == [
        WorkflowRunState.STARTED,
        WorkflowRunState.IN_PROGRESS,
        WorkflowRunState.IDLE,
    ]


async def test_the_state_is_none_on_events_it_does_not_apply_to() -> None:
    events = [event async for event in counting(InMemoryCheckpointStorage()).run(1, stream=True)]
    assert all((event.state is None) == (event.type != "status") for event in events)


async def test_the_stream_and_the_result_tell_the_same_events() -> None:
    stream = counting(InMemoryCheckpointStorage(), end=3).run(1, stream=True)
    events = [event async for event in stream]
    assert list(await stream.get_final_response()) == events


async def test_outputs_requests_and_checkpoints_are_announced_only_once_they_are_durable() -> None:
    storage = ObservedStorage()
    announced = 0
    async for event in talking(storage).run(1, stream=True):
        if event.type in ("output", "request_info", "checkpoint"):
            announced += 1
            assert f"durable {event.iteration}" in storage.diary, event
    assert announced == 10


async def test_what_could_not_be_saved_is_not_announced() -> None:
    heard: list[WorkflowEvent] = []
    stream = talking(FailingStorage(at=3)).run(1, stream=True)
    with pytest.raises(PowerLoss):
        await read_into(heard, stream)
    announced = [(e.type, e.iteration) for e in heard if e.type in ("output", "request_info", "checkpoint")]
    assert announced == [("checkpoint", 0), ("checkpoint", 1), ("output", 1), ("request_info", 1)]
    assert types_in(heard)[-2:] == ["failed", "status"]


async def test_executor_events_are_live() -> None:
    done = asyncio.Event()

    @executor(id="slow")
    async def slow(message: str, ctx: WorkflowContext[str]) -> None:
        await done.wait()

    stream = alone(slow).run("x", stream=True)
    await take_until(stream, "executor_invoked")
    done.set()
    await take_until(stream, "executor_completed")
    await stream.aclose()


async def test_the_last_checkpoint_is_written_and_the_lease_given_back_before_the_last_status() -> None:
    storage = ObservedStorage()
    async for event in counting(storage, end=2).run(1, run_id="r", stream=True):
        if event.state is WorkflowRunState.IDLE:
            assert storage.diary[-2:] == ["durable 2", "released"]
            assert await holder_of(storage, "r") is None


async def test_a_checkpoint_event_carries_the_checkpoint() -> None:
    storage = InMemoryCheckpointStorage()
    stream = counting(storage, end=3).run(1, run_id="r", stream=True)
    heard = [event.data.checkpoint_id async for event in stream if event.type == "checkpoint"]
    assert heard == await storage.list_checkpoint_ids(run_id="r")


async def test_superstep_completed_carries_the_checkpoint_too() -> None:
    result = await counting(InMemoryCheckpointStorage(), end=3).run(1)
    completed = [event.data for event in result if event.type == "superstep_completed"]
    assert completed == [event.data for event in result if event.type == "checkpoint"][1:]


# --- the consumer sets the pace ---------------------------------------------------------------------------------------


async def test_no_superstep_starts_until_the_consumer_has_taken_the_events_of_the_one_before() -> None:
    storage = ObservedStorage()
    stream = counting(storage, end=9).run(1, stream=True)
    async for event in stream:
        for _ in range(20):
            await asyncio.sleep(0)
        ahead = [entry for entry in storage.diary if entry.startswith("durable")]
        assert len(ahead) <= (event.iteration or 0) + 2, "the run went on without its consumer"
        if event.iteration == 4:
            break
    durable = storage.diary.count("durable 5")
    await stream.aclose()
    assert durable == 0


async def test_nothing_runs_until_the_stream_is_read() -> None:
    storage = ObservedStorage()
    stream = counting(storage).run(1, stream=True)
    await asyncio.sleep(0)
    assert storage.diary == []
    del stream


# --- leaving early ----------------------------------------------------------------------------------------------------


class Interrupted(Exception):
    """What a consumer may raise."""


async def by_break(stream: ResponseStream) -> None:
    async for event in stream:
        if event.iteration == 2 and event.type == "checkpoint":
            break
    await stream.aclose()


async def by_dropping(stream: ResponseStream) -> None:
    async for event in stream:
        if event.iteration == 2 and event.type == "checkpoint":
            break
    del stream


async def by_return(stream: ResponseStream) -> None:
    async for event in stream:
        if event.iteration == 2 and event.type == "checkpoint":
            return


async def by_exception(stream: ResponseStream) -> None:
    with pytest.raises(Interrupted):
        async for event in stream:
            if event.iteration == 2 and event.type == "checkpoint":
                raise Interrupted
    # Until here the traceback holds the stream.
    await stream.aclose()


async def by_async_with(stream: ResponseStream) -> None:
    with pytest.raises(Interrupted):
        async with stream:
            await anext(stream)
            raise Interrupted


async def by_cancellation(stream: ResponseStream) -> None:
    reading = asyncio.Event()

    async def read() -> None:
        async for event in stream:
            if event.iteration == 2:
                reading.set()

    task = asyncio.get_running_loop().create_task(read())
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_timeout(stream: ResponseStream) -> None:
    await take_until(stream, "checkpoint")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await stream


WAYS: list[Callable[[ResponseStream], Awaitable[None]]] = [
    by_break,
    by_dropping,
    by_return,
    by_exception,
    by_async_with,
    by_cancellation,
    by_timeout,
]


@pytest.mark.parametrize("leave", WAYS, ids=[way.__name__ for way in WAYS])
async def test_leaving_early_gives_the_run_back_cancelled_and_resumable(
    leave: Callable[[ResponseStream], Awaitable[None]],
) -> None:
    storage = InMemoryCheckpointStorage()
    workflow = counting(storage, end=50)
    await leave(workflow.run(1, run_id="r", stream=True))
    await others_done()
    assert (await state_of(storage, "r"), await holder_of(storage, "r")) == ("CANCELLED", None)
    assert (await workflow.run(run_id="r")).get_outputs() == [50]


@pytest.mark.parametrize("leave", WAYS, ids=[way.__name__ for way in WAYS])
async def test_leaving_early_frees_executor_instances(leave: Callable[[ResponseStream], Awaitable[None]]) -> None:
    counter = Counter(end=50)
    builder = WorkflowBuilder(start_executor=counter, checkpoint_storage=InMemoryCheckpointStorage())
    workflow = builder.add_edge(counter, counter).build()
    await leave(workflow.run(1, run_id="r", stream=True))
    assert (await workflow.run(49, run_id="other")).get_outputs() == [50]


async def others_done() -> None:
    """Wait for whatever a dropped stream has set in motion."""
    gc.collect()
    await asyncio.sleep(0)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others)


async def test_leaving_in_the_middle_of_a_superstep_cancels_the_handler_and_waits_for_it() -> None:
    story: list[str] = []

    @executor(id="slow")
    async def slow(message: str, ctx: WorkflowContext[str]) -> None:
        story.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            story.append("cleaned up")

    storage = InMemoryCheckpointStorage()
    stream = alone(slow, storage).run("x", run_id="r", stream=True)
    await take_until(stream, "executor_invoked")
    await stream.aclose()
    assert story == ["began", "cleaned up"]
    assert await state_of(storage, "r") == "CANCELLED"


async def test_a_handler_that_swallows_its_cancellation_does_not_keep_the_stream_from_closing() -> None:
    class Stubborn(Executor):
        @handler
        async def work(self, number: int, ctx: WorkflowContext[int]) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await ctx.send_message(number + 1)

    stubborn, storage = Stubborn("stubborn"), InMemoryCheckpointStorage()
    builder = WorkflowBuilder(start_executor=stubborn, checkpoint_storage=storage)
    stream = builder.add_edge(stubborn, stubborn).build().run(1, run_id="r", stream=True)
    await take_until(stream, "executor_invoked")
    await stream.aclose()
    assert (await state_of(storage, "r"), await holder_of(storage, "r")) == ("CANCELLED", None)


async def test_leaving_at_the_last_status_changes_nothing() -> None:
    storage = InMemoryCheckpointStorage()
    async for event in asking(storage).run("tea", run_id="r", stream=True):
        if event.state is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS:
            break
    assert await state_of(storage, "r") == "IDLE_WITH_PENDING_REQUESTS"


async def test_returning_at_the_output_of_the_last_superstep_leaves_a_finished_run() -> None:
    storage = InMemoryCheckpointStorage()

    async def first_output() -> Any:
        async for event in counting(storage, end=3).run(1, run_id="r", stream=True):
            if event.type == "output":
                return event.data
        return None

    assert await first_output() == 3
    assert await state_of(storage, "r") == "IDLE"


async def test_a_closed_stream_is_over() -> None:
    stream = counting(InMemoryCheckpointStorage()).run(1, stream=True)
    await anext(stream)
    await stream.aclose()
    assert [event async for event in stream] == []
    with pytest.raises(WorkflowException, match="closed before its run ended; resume the run"):
        await stream.get_final_response()


async def test_closing_twice_or_before_the_start_does_nothing() -> None:
    storage = InMemoryCheckpointStorage()
    stream = counting(storage).run(1, stream=True)
    await stream.aclose()
    await stream.aclose()
    assert [event async for event in stream] == []
    assert await storage.list_runs() == []


async def test_cancelling_an_awaited_run_gives_it_back() -> None:
    reached = asyncio.Event()

    @executor(id="slow")
    async def slow(message: str, ctx: WorkflowContext[str]) -> None:
        reached.set()
        await asyncio.Event().wait()

    storage = InMemoryCheckpointStorage()

    async def work() -> None:
        await alone(slow, storage).run("x", run_id="r")

    task = asyncio.get_running_loop().create_task(work())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await state_of(storage, "r"), await holder_of(storage, "r")) == ("CANCELLED", None)


DROPPED = """
import asyncio, logging
from stepwell import *

class Counter(Executor):
    @handler
    async def count(self, number: int, ctx: WorkflowContext[int]) -> None:
        await asyncio.sleep(0)
        await ctx.send_message(number + 1)

async def main():
    counter, storage = Counter("c"), InMemoryCheckpointStorage()
    workflow = WorkflowBuilder(start_executor=counter, checkpoint_storage=storage).add_edge(counter, counter).build()
    kept = workflow.run(1, stream=True, run_id="kept")
    async for event in kept:
        if event.iteration == 3:
            break
    kept = [kept]
    kept.append(kept)

asyncio.run(main(), debug=True)
"""


def test_a_program_that_ends_with_a_half_read_stream_ends_quietly() -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", DROPPED]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# --- abandoned, and taken over ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["awaited", "streamed"])
async def test_a_new_run_of_the_same_run_closes_an_abandoned_stream_and_waits(again: str) -> None:
    storage = InMemoryCheckpointStorage()
    workflow = counting(storage, end=5)
    abandoned = workflow.run(1, run_id="r", stream=True)
    await take_until(abandoned, "checkpoint")
    if again == "awaited":
        result = await workflow.run(1, run_id="r")
    else:
        result = await workflow.run(1, run_id="r", stream=True)
    assert result.get_outputs() == [5]
    assert await anext(event.state async for event in abandoned if event.type == "status") is WorkflowRunState.CANCELLED
    with pytest.raises(RunTakenOver, match="'r' was taken over by a later run"):
        await anext(abandoned)


async def test_an_abandoned_stream_of_instances_makes_way_for_the_same_run() -> None:
    counter = Counter(end=5)
    builder = WorkflowBuilder(start_executor=counter, checkpoint_storage=InMemoryCheckpointStorage())
    workflow = builder.add_edge(counter, counter).build()
    abandoned = workflow.run(1, run_id="r", stream=True)
    await take_until(abandoned, "checkpoint")
    assert (await workflow.run(run_id="r")).get_outputs() == [5]
    await abandoned.aclose()


async def test_a_stream_that_is_being_read_is_not_taken_over() -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    @executor(id="slow")
    async def slow(message: str, ctx: WorkflowContext[str, str]) -> None:
        reached.set()
        await go_on.wait()
        await ctx.yield_output(message)

    workflow = alone(slow, InMemoryCheckpointStorage())

    async def read() -> list[Any]:
        return (await workflow.run("x", run_id="r", stream=True)).get_outputs()

    async with asyncio.TaskGroup() as group:
        reader = group.create_task(read())
        await reached.wait()
        with pytest.raises(RunBusy):
            await workflow.run("x", run_id="r")
        go_on.set()
    assert reader.result() == ["x"]


# --- to the end -------------------------------------------------------------------------------------------------------


async def test_awaiting_a_stream_runs_it_to_its_end() -> None:
    result = await counting(InMemoryCheckpointStorage(), end=3).run(1, stream=True)
    assert result.get_outputs() == [3]


async def test_the_final_response_can_be_had_in_the_middle_and_after_the_end() -> None:
    stream = counting(InMemoryCheckpointStorage(), end=3).run(1, stream=True)
    await anext(stream)
    result = await stream.get_final_response()
    assert await stream.get_final_response() is result
    assert await stream is result


async def test_a_stream_without_a_storage_works_the_same_but_for_checkpoints() -> None:
    events = [event async for event in counting(end=3).run(1, stream=True)]
    assert "checkpoint" not in types_in(events)
    assert [event.data for event in events if event.type == "output"] == [3]


async def test_answers_can_be_streamed() -> None:
    storage = InMemoryCheckpointStorage()
    request_id = await only_request(await asking(storage).run("tea"))
    stream = asking(storage).run(responses={request_id: "milk"}, stream=True)
    assert [event.data async for event in stream if event.type == "output"] == ["tea? milk"]


# --- failures ---------------------------------------------------------------------------------------------------------


async def test_a_failure_is_told_and_then_raised() -> None:
    storage = InMemoryCheckpointStorage()
    heard: list[WorkflowEvent] = []
    stream = chained([Relay("relay"), Fragile()], storage).run("x", run_id="r", stream=True)
    with pytest.raises(PowerLoss) as failure:
        await read_into(heard, stream)
    assert types_in(heard)[-3:] == ["executor_failed", "failed", "status"]
    assert heard[-1].state is WorkflowRunState.FAILED
    [told] = [event for event in heard if event.type == "executor_failed"]
    assert (told.executor_id, told.details.error_type, told.details.message) == ("fragile", "PowerLoss", "x>relay")
    assert "in executor 'fragile', superstep 2 of run 'r'" in failure.value.__notes__
    assert (await state_of(storage, "r"), await holder_of(storage, "r")) == ("FAILED", None)


async def test_a_failure_before_the_start_is_raised_by_the_first_read() -> None:
    stream = counting(InMemoryCheckpointStorage()).run(run_id="absent", stream=True)
    with pytest.raises(Exception, match="there is no run 'absent'"):
        await anext(stream)


async def test_siblings_of_a_failed_executor_are_cancelled_and_awaited_before_run_raises() -> None:
    story: list[str] = []
    at_work = asyncio.Event()

    @executor(id="sibling")
    async def sibling(message: str, ctx: WorkflowContext[str]) -> None:
        try:
            at_work.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            story.append("sibling cleaned up")

    @executor(id="failing")
    async def failing(message: str, ctx: WorkflowContext[str]) -> None:
        await at_work.wait()
        raise PowerLoss

    start = Relay("start")
    workflow = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, [sibling, failing]).build()
    with pytest.raises(PowerLoss):
        await workflow.run("x")
    assert story == ["sibling cleaned up"]


async def test_a_failed_superstep_leaves_nothing_behind() -> None:
    story: list[str] = []

    @executor(id="good")
    async def good(message: str, ctx: WorkflowContext[str, str]) -> None:
        ctx.set_state("k", "written")
        await ctx.yield_output("too early")
        await ctx.request_info("too early", str)
        await ctx.send_message("too early")
        story.append("good")

    storage, start, fragile, end = InMemoryCheckpointStorage(), Relay("start"), Fragile(), Printer("end")
    builder = WorkflowBuilder(start_executor=start, checkpoint_storage=storage)
    workflow = builder.add_fan_out_edges(start, [good, fragile]).add_edge(good, end).build()
    with pytest.raises(PowerLoss):
        await workflow.run("x", run_id="r")
    latest = await storage.get_latest(run_id="r")
    assert latest is not None
    assert story == ["good"]
    assert (latest.iteration_count, list(latest.outputs), dict(latest.pending_request_info_events)) == (1, [], {})
    assert "k" not in latest.state


async def test_a_failing_condition_fails_the_next_superstep_and_what_was_done_is_saved() -> None:
    def broken(_: Any) -> bool:
        raise PowerLoss("condition")

    storage, start, asker = InMemoryCheckpointStorage(), Relay("start"), Asker("asker")
    builder = WorkflowBuilder(start_executor=start, checkpoint_storage=storage)
    with pytest.raises(PowerLoss) as failure:
        await builder.add_edge(start, asker, broken).build().run("x", run_id="r")
    assert "while choosing where a message of 'start' goes (edge)" in failure.value.__notes__
    latest = await storage.get_latest(run_id="r")
    assert latest is not None
    assert latest.iteration_count == 1
    fixed_start, fixed_asker = Relay("start"), Asker("asker")
    fixed = WorkflowBuilder(start_executor=fixed_start, checkpoint_storage=storage).add_edge(fixed_start, fixed_asker)
    assert len((await fixed.build().run(run_id="r")).get_request_info_events()) == 1
