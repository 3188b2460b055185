"""A message that reaches nobody is a warning that names what is missing."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from stepwell import Executor, InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, executor, handler
from tests.workflows.parts import Counter, Printer, Relay, alone, chained, warnings_in


class Bytes(Executor):
    @handler
    async def take(self, data: bytes | str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output("taken")


def sender(data: Any, target: str | None = None) -> Any:
    @executor(id="sender")
    async def send(message: str, ctx: WorkflowContext[Any]) -> None:
        await ctx.send_message(data, target_id=target)

    return send


async def warning_of(workflow: Any, message: Any = "x") -> str:
    result = await workflow.run(message)
    [warning] = warnings_in(result)
    assert isinstance(warning, str)
    return warning


@pytest.mark.parametrize("storage", [InMemoryCheckpointStorage, None], ids=["storage", "no storage"])
async def test_a_missing_edge_is_named(storage: Any) -> None:
    warning = await warning_of(alone(Relay("relay"), storage() if storage else None))
    assert "'relay' sent str, but no edge leaves 'relay'; add_edge(relay, …)" in warning


async def test_a_message_to_oneself_without_an_edge_names_the_edge_to_add() -> None:
    warning = await warning_of(alone(Counter()), 1)
    assert "a loop needs add_edge(counter, counter)" in warning


async def test_a_missing_edge_to_a_named_target_is_named() -> None:
    workflow = chained([sender("x", target="zoe"), Printer("printer")])
    assert "sent str to 'zoe', but no edge leads from 'sender' there; add_edge(sender, zoe)" in await warning_of(
        workflow
    )


async def test_a_missing_handler_is_named_with_what_is_accepted() -> None:
    warning = await warning_of(chained([sender(5), Bytes("bytes")]))
    assert warning == "'sender' sent int, which no handler takes: 'bytes' accepts bytes, str; add a @handler for it"


async def test_a_fan_in_whose_target_takes_no_list_is_named() -> None:
    start, a, b, end = Relay("start"), Relay("a"), Relay("b"), Printer("end")
    builder = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, [a, b]).add_fan_in_edges([a, b], end)
    warning = await warning_of(builder.build())
    assert "the fan-in to 'end' collected a list of str, but it accepts str; add a @handler for the list" in warning


async def test_a_message_that_one_of_several_takes_is_no_warning() -> None:
    send = sender(b"x")
    builder = WorkflowBuilder(start_executor=send).add_fan_out_edges(send, [Bytes("bytes"), Printer("printer")])
    assert warnings_in(await builder.build().run("x")) == []


@pytest.mark.parametrize("target", [None, "printer"], ids=["untargeted", "targeted"])
async def test_a_condition_that_chooses_nobody_is_a_choice_and_no_warning(target: str | None) -> None:
    send, printer = sender("x", target), Printer("printer")
    workflow = WorkflowBuilder(start_executor=send).add_edge(send, printer, condition=lambda _: False).build()
    assert warnings_in(await workflow.run("x")) == []


async def test_two_lost_messages_are_two_warnings_with_ids_of_their_own() -> None:
    @executor(id="twice")
    async def twice(message: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message("one")
        await ctx.send_message("two")

    events = [event for event in await alone(twice).run("x") if event.type == "warning"]
    assert len({event.event_id for event in events}) == 2


async def test_a_message_lost_beside_one_that_arrives_is_warned_about() -> None:
    @executor(id="both")
    async def both(message: str, ctx: WorkflowContext[Any]) -> None:
        await ctx.send_message("fine")
        await ctx.send_message(5)

    result = await chained([both, Printer("printer")]).run("x")
    assert (result.get_outputs(), len(warnings_in(result))) == (["fine>printer"], 1)


async def test_a_warning_is_logged_with_its_run(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="stepwell"):
        await alone(Relay("relay")).run("x", run_id="r7")
    assert ["run r7: 'relay' sent str" in message for message in caplog.messages] == [True]


async def test_a_warning_shows_types_and_not_contents() -> None:
    assert "secret" not in await warning_of(chained([sender(["secret"]), Bytes("bytes")]))
