"""What a handler can do, and that nobody sees what is not meant for him."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import (
    Executor,
    InMemoryCheckpointStorage,
    InvalidRunArguments,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    executor,
    handler,
)
from tests.workflows.parts import Printer, Relay, alone, chained, warnings_in


@executor(id="start")
async def start(message: str, ctx: WorkflowContext[str]) -> None:
    await ctx.send_message(message)


def side_by_side(*executors: Any, storage: Any = None) -> Any:
    """`start`, then all of these in one superstep."""
    builder = WorkflowBuilder(start_executor=start, checkpoint_storage=storage)
    return builder.add_fan_out_edges(start, executors).build()


# --- messages ---------------------------------------------------------------------------------------------------------


class Spoiler(Executor):
    """Adds its name to the list it gets, and yields the list."""

    @handler
    async def spoil(self, names: list[Any], ctx: WorkflowContext[list[Any], list[Any]]) -> None:
        names.append(self.id)
        names[0]["by"] = self.id
        await ctx.yield_output(names)


async def test_each_receiver_gets_its_own_copy_of_a_message() -> None:
    @executor(id="begin")
    async def begin(message: str, ctx: WorkflowContext[list[Any]]) -> None:
        await ctx.send_message([{}])

    a, b = Spoiler("a"), Spoiler("b")
    workflow = WorkflowBuilder(start_executor=begin).add_fan_out_edges(begin, [a, b]).build()
    assert (await workflow.run("x")).get_outputs() == [[{"by": "a"}, "a"], [{"by": "b"}, "b"]]


async def test_a_message_is_copied_at_the_end_of_the_superstep_and_not_later() -> None:
    class Keeper(Executor):
        """Keeps the list it sends and adds to it whenever it is called."""

        def __init__(self, id: str) -> None:
            super().__init__(id)
            self.kept: list[str] = []

        @handler
        async def keep(self, message: str, ctx: WorkflowContext[list[str] | str]) -> None:
            await ctx.send_message(self.kept)
            self.kept.append(message)
            if len(self.kept) < 2:
                await ctx.send_message("again")

    class Reader(Executor):
        @handler
        async def read(self, kept: list[str], ctx: WorkflowContext[Any, list[str]]) -> None:
            await asyncio.sleep(0)
            await ctx.yield_output(kept)

    keeper, reader = Keeper("keeper"), Reader("reader")
    workflow = WorkflowBuilder(start_executor=keeper).add_fan_out_edges(keeper, [keeper, reader]).build()
    assert (await workflow.run("first")).get_outputs() == [["first"], ["first", "again"]]


async def test_the_caller_can_go_on_changing_the_message_it_passed() -> None:
    message: list[Any] = [{}]
    await alone(Spoiler("a")).run(message)
    assert message == [{}]


async def test_what_a_consumer_does_to_an_output_does_not_reach_the_record() -> None:
    class Lister(Executor):
        @handler
        async def give(self, number: int, ctx: WorkflowContext[int, list[int]]) -> None:
            await ctx.yield_output([number])
            if number < 3:
                await ctx.send_message(number + 1)

    storage, lister = InMemoryCheckpointStorage(), Lister("lister")
    workflow = WorkflowBuilder(start_executor=lister, checkpoint_storage=storage).add_edge(lister, lister).build()
    async for event in workflow.run(1, run_id="r", stream=True):
        if event.type == "output":
            event.data.append("spoilt")
    assert (await workflow.run(run_id="r")).get_outputs() == [[1], [2], [3]]


async def test_a_request_is_what_it_was_when_it_was_asked() -> None:
    plan = ["one"]

    @executor(id="planner")
    async def ask(message: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(plan, str)
        plan.append("two")

    result = await alone(ask, InMemoryCheckpointStorage()).run("x")
    assert [event.data for event in result.get_request_info_events()] == [["one"]]


async def test_a_target_narrows_a_message_to_one_of_the_executors_its_edges_lead_to() -> None:
    @executor(id="sender")
    async def send(message: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(message, target_id="b")

    workflow = WorkflowBuilder(start_executor=send).add_fan_out_edges(send, [Printer("a"), Printer("b")]).build()
    assert (await workflow.run("x")).get_outputs() == ["x>b"]


# --- shared state -----------------------------------------------------------------------------------------------------


def writer(name: str, value: Any, key: str = "k") -> Any:
    @executor(id=name)
    async def write(message: str, ctx: WorkflowContext[str, Any]) -> None:
        ctx.set_state(key, value)
        await ctx.send_message(message)

    return write


def reader(name: str = "reader", key: str = "k") -> Any:
    @executor(id=name)
    async def read(message: Any, ctx: WorkflowContext[str, Any]) -> None:
        await ctx.yield_output(ctx.get_state(key, "nothing"))

    return read


async def test_a_write_is_seen_in_the_next_superstep() -> None:
    assert (await chained([writer("w", 1), reader()]).run("x")).get_outputs() == [1]


async def test_a_write_is_not_seen_by_siblings() -> None:
    wrote = asyncio.Event()

    @executor(id="writer")
    async def write(message: str, ctx: WorkflowContext[str]) -> None:
        ctx.set_state("k", "written")
        wrote.set()

    @executor(id="sibling")
    async def sibling(message: str, ctx: WorkflowContext[str, Any]) -> None:
        await wrote.wait()
        await ctx.yield_output(ctx.get_state("k", "nothing"))

    assert (await side_by_side(write, sibling).run("x")).get_outputs() == ["nothing"]


async def test_an_executor_sees_its_own_writes() -> None:
    @executor(id="w")
    async def write(message: str, ctx: WorkflowContext[str, Any]) -> None:
        ctx.set_state("k", 1)
        await ctx.yield_output(ctx.get_state("k"))

    assert (await alone(write).run("x")).get_outputs() == [1]


async def test_an_executor_that_gets_two_messages_in_a_superstep_loses_no_write() -> None:
    @executor(id="twice")
    async def twice(message: str, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(1)
        await ctx.send_message(2)

    @executor(id="sum")
    async def add(number: int, ctx: WorkflowContext[int, int]) -> None:
        ctx.set_state("sum", ctx.get_state("sum", 0) + number)
        await ctx.yield_output(ctx.get_state("sum"))

    assert (await chained([twice, add]).run("x")).get_outputs() == [1, 3]


async def test_reading_gives_a_private_copy() -> None:
    @executor(id="spoiler")
    async def spoil(message: str, ctx: WorkflowContext[str, Any]) -> None:
        ctx.get_state("k").append("spoilt")
        await ctx.send_message(message)

    assert (await chained([writer("w", ["clean"]), spoil, reader()]).run("x")).get_outputs() == [["clean"]]


async def test_writing_takes_a_private_copy() -> None:
    @executor(id="w")
    async def write(message: str, ctx: WorkflowContext[str, Any]) -> None:
        value = ["clean"]
        ctx.set_state("k", value)
        value.append("spoilt")
        await ctx.send_message(message)

    assert (await chained([write, reader()]).run("x")).get_outputs() == [["clean"]]


async def test_of_two_siblings_that_write_one_key_the_one_declared_last_wins_with_a_warning_naming_both() -> None:
    first, second, last = writer("b", "first"), writer("a", "second"), Printer("p")
    builder = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, [first, second])
    check = reader()
    workflow = builder.add_edge(first, last).add_edge(second, check).build()
    result = await workflow.run("x")
    assert "second" in result.get_outputs()
    [warning] = warnings_in(result)
    assert warning == "'b' and 'a' both wrote the state 'k' in one superstep; 'a', declared later, wins"


async def test_siblings_that_write_different_keys_are_not_warned_about() -> None:
    result = await side_by_side(writer("a", 1, "x"), writer("b", 2, "y")).run("x")
    assert not [text for text in warnings_in(result) if "both wrote" in text]


async def test_state_lasts_from_turn_to_turn_of_a_run_and_not_from_run_to_run() -> None:
    @executor(id="count")
    async def count(message: str, ctx: WorkflowContext[str, int]) -> None:
        ctx.set_state("n", ctx.get_state("n", 0) + 1)
        await ctx.yield_output(ctx.get_state("n"))

    workflow = alone(count, InMemoryCheckpointStorage())
    turns = [(await workflow.run(text, run_id="r")).get_outputs() for text in ("a", "b")]
    other = (await workflow.run("a", run_id="other")).get_outputs()
    assert (turns, other) == ([[1], [2]], [1])


@pytest.mark.parametrize("key", ["_executor_state", "_fan_in", "_graph"])
async def test_keys_the_engine_uses_are_refused(key: str) -> None:
    with pytest.raises(InvalidRunArguments, match=f"the state key '{key}' is reserved"):
        await alone(writer("w", 1, key)).run("x")


# --- who, where, which ------------------------------------------------------------------------------------------------


async def test_a_handler_knows_who_sent_the_message() -> None:
    @executor(id="who")
    async def who(message: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(ctx.get_source_executor_id())

    assert (await chained([Relay("sender"), who]).run("x")).get_outputs() == ["sender"]


async def test_after_a_fan_in_there_are_several_senders() -> None:
    @executor(id="who")
    async def who(messages: list[str], ctx: WorkflowContext[str, Any]) -> None:
        await ctx.yield_output(ctx.source_executor_ids)
        with pytest.raises(InvalidRunArguments, match="got messages from a, b; use source_executor_ids"):
            ctx.get_source_executor_id()

    a, b = Relay("a"), Relay("b")
    builder = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, [a, b]).add_fan_in_edges([a, b], who)
    assert (await builder.build().run("x")).get_outputs() == [("a", "b")]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_handler_knows_its_run_superstep_and_whether_it_is_streamed(stream: bool) -> None:
    @executor(id="e")
    async def tell(message: str, ctx: WorkflowContext[str, Any]) -> None:
        await ctx.yield_output((ctx.run_id, ctx.superstep, ctx.is_streaming()))

    workflow = chained([Relay("a"), tell])
    result = await workflow.run("x", run_id="r", stream=True) if stream else await workflow.run("x", run_id="r")
    assert result.get_outputs() == [("r", 2, stream)]


async def test_custom_events_come_when_the_superstep_has_ended_and_carry_run_and_executor() -> None:
    @executor(id="e")
    async def tell(message: str, ctx: WorkflowContext[str, Any]) -> None:
        await ctx.add_event(WorkflowEvent("progress", data="half"))
        await ctx.add_event(WorkflowEvent("progress", data="done"))

    result = await alone(tell).run("x", run_id="r")
    events = [event for event in result if event.type == "progress"]
    assert [(e.data, e.run_id, e.executor_id, e.iteration) for e in events] == [
        ("half", "r", "e", 1),
        ("done", "r", "e", 1),
    ]
    assert len({event.event_id for event in events}) == 2
