"""Start or resume: the whole table, cell by cell, and what else `run` takes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import (
    AlreadyAnswered,
    CheckpointNotFound,
    Executor,
    InMemoryCheckpointStorage,
    InvalidId,
    InvalidRunArguments,
    RunBusy,
    RunUnfinished,
    UnknownRequest,
    UnknownRun,
    Workflow,
    WorkflowBuilder,
    WorkflowBusy,
    WorkflowContext,
    WorkflowConvergenceException,
    WorkflowRunState,
    executor,
    handler,
)
from tests.workflows.parts import (
    Asker,
    Counter,
    FailingStorage,
    Fragile,
    PowerLoss,
    Printer,
    Relay,
    alone,
    asking,
    chained,
    checkpoints_of,
    counting,
    only_request,
    request_ids,
    state_of,
    take_until,
    types_in,
)

IDLE = WorkflowRunState.IDLE
WAITING = WorkflowRunState.IDLE_WITH_PENDING_REQUESTS


async def finished(storage: InMemoryCheckpointStorage) -> Workflow:
    workflow = counting(storage, end=3)
    await workflow.run(1, run_id="r")
    return workflow


async def waiting(storage: InMemoryCheckpointStorage) -> tuple[Workflow, str]:
    workflow = asking(storage)
    return workflow, await only_request(await workflow.run("tea", run_id="r"))


async def failed(storage: InMemoryCheckpointStorage) -> tuple[Workflow, Fragile]:
    """A run that failed in its second superstep; its executor has been repaired since."""
    fragile = Fragile()
    workflow = chained([Relay("relay"), fragile], storage)
    with pytest.raises(PowerLoss):
        await workflow.run("x", run_id="r")
    fragile.is_broken = False
    return workflow, fragile


async def cancelled(storage: InMemoryCheckpointStorage) -> Workflow:
    workflow = counting(storage, end=5)
    stream = workflow.run(1, run_id="r", stream=True)
    await take_until(stream, "checkpoint")
    await stream.aclose()
    return workflow


async def crashed() -> tuple[Workflow, FailingStorage]:
    """A run whose storage failed when it saved the second superstep."""
    storage = FailingStorage(at=3)
    workflow = counting(storage, end=5)
    with pytest.raises(PowerLoss):
        await workflow.run(1, run_id="r")
    return workflow, storage


async def limited(storage: InMemoryCheckpointStorage) -> Workflow:
    workflow = counting(storage, end=5, max_iterations=2)
    with pytest.raises(WorkflowConvergenceException):
        await workflow.run(1, run_id="r")
    return workflow


# --- absent -----------------------------------------------------------------------------------------------------------


async def test_absent_with_a_message_it_starts() -> None:
    result = await counting(InMemoryCheckpointStorage()).run(1, run_id="r")
    assert (result.run_id, result.get_outputs(), result.get_final_state()) == ("r", [5], IDLE)


async def test_absent_without_a_message_it_is_unknown() -> None:
    with pytest.raises(UnknownRun, match="there is no run 'r'; pass a message to start it"):
        await counting(InMemoryCheckpointStorage()).run(run_id="r")


async def test_absent_with_responses_it_is_unknown() -> None:
    with pytest.raises(UnknownRun, match="'r'"):
        await counting(InMemoryCheckpointStorage()).run(run_id="r", responses={"q": "a"})


async def test_refusals_create_no_run() -> None:
    storage = InMemoryCheckpointStorage()
    for arguments in ({"run_id": "r"}, {"run_id": "r", "responses": {"q": "a"}}, {"responses": {"q": "a"}}):
        with pytest.raises((UnknownRun, UnknownRequest)):
            await counting(storage).run(**arguments)  # type: ignore[call-overload, unused-ignore]
    assert await storage.list_runs() == []


# --- crashed, failed or cancelled -------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("x",)], ids=["no message", "same message"])
async def test_failed_it_resumes_from_its_last_checkpoint(arguments: tuple[Any, ...]) -> None:
    workflow, fragile = await failed(InMemoryCheckpointStorage())
    result = await workflow.run(*arguments, run_id="r")
    assert (result.get_outputs(), result.get_final_state()) == (["x>relay"], IDLE)
    assert fragile.handled == ["x>relay", "x>relay"]


@pytest.mark.parametrize("arguments", [(), (1,)], ids=["no message", "same message"])
async def test_cancelled_it_resumes_from_its_last_checkpoint(arguments: tuple[Any, ...]) -> None:
    storage = InMemoryCheckpointStorage()
    workflow = await cancelled(storage)
    assert await state_of(storage, "r") == "CANCELLED"
    result = await workflow.run(*arguments, run_id="r")
    assert (result.get_outputs(), result.get_final_state()) == ([5], IDLE)
    assert [c.iteration_count for c in await checkpoints_of(storage, "r")] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("arguments", [(), (1,)], ids=["no message", "same message"])
async def test_crashed_it_resumes_from_its_last_checkpoint(arguments: tuple[Any, ...]) -> None:
    workflow, storage = await crashed()
    result = await workflow.run(*arguments, run_id="r")
    assert result.get_outputs() == [5]
    assert [c.iteration_count for c in await checkpoints_of(storage, "r")] == [0, 1, 2, 3, 4, 5]


async def test_a_checkpoint_that_was_written_without_an_answer_is_gone_on_from() -> None:
    storage = FailingStorage(at=3, after=True)
    workflow = counting(storage, end=5)
    with pytest.raises(PowerLoss):
        await workflow.run(1, run_id="r")
    assert (await workflow.run(run_id="r")).get_outputs() == [5]
    assert [c.iteration_count for c in await checkpoints_of(storage, "r")] == [0, 1, 2, 3, 4, 5]


async def test_crashed_before_its_first_checkpoint_it_starts_with_its_message() -> None:
    storage = FailingStorage(at=1)
    workflow = counting(storage, end=3)
    with pytest.raises(PowerLoss):
        await workflow.run(1, run_id="r")
    with pytest.raises(UnknownRun, match="cut off before its first checkpoint; pass its message again"):
        await workflow.run(run_id="r")
    assert (await workflow.run(1, run_id="r")).get_outputs() == [3]


async def test_failed_with_another_message_it_is_unfinished() -> None:
    workflow, _ = await failed(InMemoryCheckpointStorage())
    with pytest.raises(RunUnfinished, match="run 'r' is FAILED and has not finished its message"):
        await workflow.run("another", run_id="r")


async def test_cancelled_with_another_message_it_is_unfinished() -> None:
    workflow = await cancelled(InMemoryCheckpointStorage())
    with pytest.raises(RunUnfinished, match="is CANCELLED"):
        await workflow.run(2, run_id="r")


async def test_the_line_that_asked_for_a_new_turn_resumes_it_when_it_is_run_again() -> None:
    workflow = await cancelled(InMemoryCheckpointStorage())
    assert (await workflow.run(1, run_id="r", new_turn=True)).get_outputs() == [5]


async def test_failed_with_responses_they_are_answered_if_pending() -> None:
    storage, fragile = InMemoryCheckpointStorage(), Fragile()
    start, asker, relay = Relay("start"), Asker("asker"), Relay("relay")
    builder = WorkflowBuilder(start_executor=start, checkpoint_storage=storage)
    workflow = builder.add_fan_out_edges(start, [asker, relay]).add_edge(relay, fragile).build()
    with pytest.raises(PowerLoss):
        await workflow.run("x", run_id="r")
    fragile.is_broken = False
    [info] = await storage.list_runs()
    [pending] = info.pending_requests
    result = await workflow.run(run_id="r", responses={pending.request_id: "yes"})
    assert sorted(result.get_outputs()) == ["x>start>relay", "x>start? yes"]
    assert result.get_final_state() is IDLE


async def test_failed_with_responses_to_nothing_pending_they_are_unknown() -> None:
    workflow, _ = await failed(InMemoryCheckpointStorage())
    with pytest.raises(UnknownRequest, match="no request 'q' is waiting"):
        await workflow.run(run_id="r", responses={"q": "a"})


# --- waiting for an answer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("tea",)], ids=["no message", "same message"])
async def test_waiting_it_emits_its_requests_again_and_runs_nothing(arguments: tuple[Any, ...]) -> None:
    storage = InMemoryCheckpointStorage()
    workflow, request_id = await waiting(storage)
    before = await storage.list_checkpoint_ids()
    result = await workflow.run(*arguments, run_id="r")
    assert (request_ids(result), result.get_final_state()) == ([request_id], WAITING)
    assert "executor_invoked" not in types_in(result)
    assert await storage.list_checkpoint_ids() == before


async def test_waiting_with_another_message_it_is_unfinished() -> None:
    workflow, _ = await waiting(InMemoryCheckpointStorage())
    with pytest.raises(RunUnfinished, match="is IDLE_WITH_PENDING_REQUESTS"):
        await workflow.run("coffee", run_id="r")


@pytest.mark.parametrize("run_id", ["r", None], ids=["by run id", "by request id"])
async def test_waiting_with_responses_it_goes_on(run_id: str | None) -> None:
    workflow, request_id = await waiting(InMemoryCheckpointStorage())
    result = await workflow.run(run_id=run_id, responses={request_id: "milk"})
    assert (result.run_id, result.get_outputs(), result.get_final_state()) == ("r", ["tea? milk"], IDLE)


# --- finished ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), (1,)], ids=["no message", "same message"])
async def test_finished_it_gives_its_recorded_outputs_and_runs_nothing(arguments: tuple[Any, ...]) -> None:
    storage = InMemoryCheckpointStorage()
    workflow = await finished(storage)
    before = await storage.list_checkpoint_ids()
    result = await workflow.run(*arguments, run_id="r")
    assert (result.get_outputs(), result.get_final_state()) == ([3], IDLE)
    assert "executor_invoked" not in types_in(result)
    assert await storage.list_checkpoint_ids() == before


async def test_the_recorded_outputs_are_announced_with_the_ids_they_had() -> None:
    workflow = counting(InMemoryCheckpointStorage(), end=1)
    first = await workflow.run(1, run_id="r")
    again = await workflow.run(1, run_id="r")
    assert [e.event_id for e in first if e.type == "output"] == [e.event_id for e in again if e.type == "output"]


async def test_finished_with_another_message_it_takes_a_further_turn_with_its_state() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = await finished(storage)
    result = await workflow.run(2, run_id="r")
    latest = await storage.get_latest(run_id="r")
    assert latest is not None
    assert result.get_outputs() == [3]
    assert latest.state["_executor_state"]["counter"] == {"seen": [1, 2, 3, 2, 3]}


async def test_finished_with_the_same_message_and_new_turn_it_takes_a_further_turn() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = await finished(storage)
    await workflow.run(1, run_id="r", new_turn=True)
    latest = await storage.get_latest(run_id="r")
    assert latest is not None
    assert latest.state["_executor_state"]["counter"] == {"seen": [1, 2, 3, 1, 2, 3]}


async def test_finished_with_responses_they_are_already_answered() -> None:
    workflow, request_id = await waiting(InMemoryCheckpointStorage())
    await workflow.run(responses={request_id: "milk"})
    with pytest.raises(AlreadyAnswered, match=r'was answered at .* with "milk"'):
        await workflow.run(run_id="r", responses={request_id: "lemon"})


async def test_the_same_message_means_the_same_content() -> None:
    @executor(id="echo")
    async def echo(message: dict[str, Any], ctx: WorkflowContext[Any, int]) -> None:
        await ctx.yield_output(ctx.superstep)

    workflow = alone(echo, InMemoryCheckpointStorage())
    await workflow.run({"a": 1, "b": [2]}, run_id="r")
    assert (await workflow.run({"b": [2], "a": 1}, run_id="r")).get_outputs() == [1]
    assert (await workflow.run({"a": 1, "b": (2,)}, run_id="r")).get_outputs() == [2]


# --- stopped by a limit -----------------------------------------------------------------------------------------------


async def test_the_limit_says_that_nothing_is_lost() -> None:
    with pytest.raises(WorkflowConvergenceException, match="max_iterations=2 supersteps; nothing is lost: resume it"):
        await counting(max_iterations=2).run(1)


@pytest.mark.parametrize("arguments", [(), (1,)], ids=["no message", "same message"])
async def test_stopped_by_a_limit_that_is_now_higher_it_goes_on(arguments: tuple[Any, ...]) -> None:
    storage = InMemoryCheckpointStorage()
    workflow = await limited(storage)
    assert (await workflow.run(*arguments, run_id="r", max_iterations=9)).get_outputs() == [5]
    assert [c.iteration_count for c in await checkpoints_of(storage, "r")] == [0, 1, 2, 3, 4, 5]


async def test_stopped_by_a_limit_that_is_as_low_as_before_it_stops_again() -> None:
    workflow = await limited(InMemoryCheckpointStorage())
    with pytest.raises(WorkflowConvergenceException):
        await workflow.run(run_id="r")


async def test_stopped_by_a_limit_another_message_is_a_further_turn() -> None:
    workflow = await limited(InMemoryCheckpointStorage())
    assert 5 in (await workflow.run(4, run_id="r", max_iterations=9)).get_outputs()


async def test_the_limit_counts_supersteps_since_the_last_message() -> None:
    workflow = counting(InMemoryCheckpointStorage(), end=3, max_iterations=3)
    for turn in range(4):
        assert (await workflow.run(1, run_id="r", new_turn=turn > 0)).get_outputs() == [3]


async def test_a_run_of_s_supersteps_leaves_s_plus_one_checkpoints_in_order() -> None:
    storage = InMemoryCheckpointStorage()
    await counting(storage, end=4).run(1, run_id="r")
    kept = await checkpoints_of(storage, "r")
    assert [c.iteration_count for c in kept] == [0, 1, 2, 3, 4]
    assert [c.sequence for c in kept] == sorted({c.sequence for c in kept})
    assert [c.previous_checkpoint_id for c in kept] == [None, *(c.checkpoint_id for c in kept[:-1])]


# --- arguments --------------------------------------------------------------------------------------------------------

CONTRADICTIONS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {}, "a message is needed to start a run"),
    ((), {"stream": True}, "a message is needed to start a run"),
    ((1,), {"checkpoint_id": "c"}, "message and checkpoint_id exclude each other"),
    ((1,), {"responses": {"q": "a"}}, "message and responses exclude each other"),
    ((None,), {"checkpoint_id": "c"}, "message and checkpoint_id exclude each other"),
    ((), {"responses": {}}, "responses is empty"),
    ((), {"run_id": "r", "responses": {}}, "responses is empty"),
    ((1,), {"branch": True}, "branch=True needs the checkpoint_id"),
    ((), {"run_id": "r", "new_turn": True}, "new_turn=True needs a message"),
    ((1,), {"max_iterations": 0}, "max_iterations must be at least 1"),
    ((1,), {"on_divergence": "ignore"}, 'on_divergence must be "error" or "recall"'),
]


@pytest.mark.parametrize(("arguments", "options", "words"), CONTRADICTIONS, ids=[row[-1] for row in CONTRADICTIONS])
async def test_what_contradicts_itself_is_refused_and_nothing_changes(
    arguments: tuple[Any, ...], options: dict[str, Any], words: str
) -> None:
    storage = InMemoryCheckpointStorage()
    with pytest.raises(InvalidRunArguments, match=words):
        await counting(storage).run(*arguments, **options)
    assert await storage.list_runs() == []


@pytest.mark.parametrize("storage", [InMemoryCheckpointStorage(), None], ids=["storage", "no storage"])
@pytest.mark.parametrize("run_id", ["", "../up", "a b", "x" * 129, "é"])
async def test_a_run_id_that_is_no_id_is_refused(run_id: str, storage: Any) -> None:
    with pytest.raises(InvalidId, match="is not a valid id; use 1 to 128 of"):
        await counting(storage).run(1, run_id=run_id)


async def test_a_checkpoint_id_needs_a_storage() -> None:
    with pytest.raises(InvalidRunArguments, match="can't be resumed without its storage; pass checkpoint_storage"):
        await counting().run(checkpoint_id="c")


async def test_an_unknown_checkpoint_is_named() -> None:
    with pytest.raises(CheckpointNotFound, match="'c'"):
        await counting(InMemoryCheckpointStorage()).run(checkpoint_id="c")


async def test_the_storage_can_be_given_to_run() -> None:
    storage = InMemoryCheckpointStorage()
    await counting(end=2).run(1, run_id="r", checkpoint_storage=storage)
    assert len(await checkpoints_of(storage, "r")) == 3


async def test_none_is_a_message_when_it_is_passed() -> None:
    @executor(id="none")
    async def take(message: None, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output("got None")

    assert (await alone(take, InMemoryCheckpointStorage()).run(None, run_id="r")).get_outputs() == ["got None"]


# --- run ids ----------------------------------------------------------------------------------------------------------


async def test_without_a_run_id_one_is_made_and_is_on_the_result_and_every_event() -> None:
    workflow = counting(InMemoryCheckpointStorage(), end=2)
    one, other = await workflow.run(1), await workflow.run(1)
    assert one.run_id != other.run_id
    assert {event.run_id for event in one} == {one.run_id}


async def test_each_event_of_a_run_has_an_id_of_its_own() -> None:
    start, asker, printer = Relay("start"), Asker("asker"), Printer("printer")
    builder = WorkflowBuilder(start_executor=start, checkpoint_storage=InMemoryCheckpointStorage())
    result = await builder.add_fan_out_edges(start, [asker, printer]).build().run("x")
    ids = [event.event_id for event in result]
    assert len(ids) == len(set(ids))


async def test_turns_of_a_run_do_not_share_event_ids() -> None:
    workflow = counting(InMemoryCheckpointStorage(), end=2)
    turns = [await workflow.run(1, run_id="r"), await workflow.run(2, run_id="r")]
    one, other = ({event.event_id for event in turn if event.state is not WorkflowRunState.STARTED} for turn in turns)
    assert not {event_id for event_id in one & other if not event_id.endswith("started")}


# --- several at once --------------------------------------------------------------------------------------------------


async def test_a_workflow_of_factories_runs_any_number_of_times_at_once() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = counting(storage, end=5)
    results = await asyncio.gather(*(workflow.run(start, run_id=f"r{start}") for start in range(6)))
    assert [result.get_outputs() for result in results] == [[5]] * 6
    seen = [(await checkpoints_of(storage, f"r{start}"))[-1].state["_executor_state"]["counter"] for start in range(6)]
    assert seen == [{"seen": list(range(start, 6))} for start in range(6)]


class Gate(Executor):
    """Waits until it is opened."""

    def __init__(self, id: str = "gate") -> None:
        super().__init__(id)
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    @handler
    async def wait(self, text: str, ctx: WorkflowContext[Any, str]) -> None:
        self.reached.set()
        await self.open.wait()
        await ctx.yield_output(text)


async def test_instances_serve_one_run_at_a_time_and_the_error_names_the_remedy() -> None:
    gate = Gate()
    workflow = alone(gate)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(_awaited(workflow.run("a")))
        await gate.reached.wait()
        with pytest.raises(WorkflowBusy, match=r"'gate' are executor instances.*pass factories"):
            await workflow.run("b")
        gate.open.set()
    assert first.result().get_outputs() == ["a"]
    assert (await workflow.run("b")).get_outputs() == ["b"]


async def test_instances_are_busy_in_every_workflow_of_their_builder() -> None:
    gate = Gate()
    builder = WorkflowBuilder(start_executor=gate)
    one, other = builder.build(), builder.build()
    async with asyncio.TaskGroup() as group:
        group.create_task(_awaited(one.run("a")))
        await gate.reached.wait()
        with pytest.raises(WorkflowBusy):
            await other.run("b")
        gate.open.set()


async def test_one_run_is_run_by_one_runner() -> None:
    gates: list[Gate] = []

    def make() -> Gate:
        gates.append(Gate())
        return gates[-1]

    workflow = alone(make, InMemoryCheckpointStorage())
    async with asyncio.TaskGroup() as group:
        group.create_task(_awaited(workflow.run("a", run_id="r")))
        while len(gates) < 2:
            await asyncio.sleep(0)
        gate = gates[1]
        await gate.reached.wait()
        with pytest.raises(RunBusy, match="run 'r' is being run by"):
            await workflow.run("a", run_id="r")
        gate.open.set()


async def test_the_state_of_instances_carries_over_from_run_to_run() -> None:
    counter = Counter(end=2)
    workflow = WorkflowBuilder(start_executor=counter).add_edge(counter, counter).build()
    await workflow.run(1)
    await workflow.run(1)
    assert counter.seen == [1, 2, 1, 2]


async def test_a_resume_gives_instances_the_state_of_the_checkpoint() -> None:
    counter, storage = Counter(end=2), InMemoryCheckpointStorage()
    workflow = WorkflowBuilder(start_executor=counter, checkpoint_storage=storage).add_edge(counter, counter).build()
    await workflow.run(1, run_id="r")
    counter.seen = ["something", "else"]  # type: ignore[list-item]
    await workflow.run(2, run_id="r")
    assert counter.seen == [1, 2, 2]


async def test_a_factory_that_fails_leaves_the_run_to_the_next_one() -> None:
    working = True

    def make() -> Counter:
        if not working:
            raise OSError("no licence left")
        return Counter(end=1)

    workflow = alone(make, InMemoryCheckpointStorage())
    working = False
    with pytest.raises(OSError, match="no licence left"):
        await workflow.run(1, run_id="r")
    working = True
    assert (await workflow.run(1, run_id="r")).get_outputs() == [1]


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


# --- the older names --------------------------------------------------------------------------------------------------


async def test_run_streaming_and_run_stream_from_checkpoint_are_there() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = counting(storage, end=3)
    first = [event.data async for event in workflow.run_streaming(1) if event.type == "output"]
    entry = (await storage.list_checkpoints())[0]
    again = workflow.run_stream_from_checkpoint(entry.checkpoint_id, storage)
    assert (first, [event.data async for event in again if event.type == "output"]) == ([3], [3])


async def test_handlers_that_never_wait_do_not_keep_the_event_loop_to_themselves() -> None:
    import asyncio

    class Spins(Executor):
        @handler
        async def spin(self, number: int, ctx: WorkflowContext[int]) -> None:
            await ctx.send_message(number + 1)

    spins = Spins("spins")
    workflow = WorkflowBuilder(start_executor=spins, max_iterations=None).add_edge(spins, spins).build()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await workflow.run(0)
