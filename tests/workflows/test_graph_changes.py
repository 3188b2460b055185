"""A graph that has changed since: soft changes are listed, and only what the checkpoint needs must still be there."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import (
    Executor,
    GraphChanged,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowCheckpointException,
    WorkflowContext,
    handler,
)
from tests.workflows.parts import Asker, Counter, Fragile, PowerLoss, Printer, Relay, only_request, warnings_in


class Gatherer(Executor):
    @handler
    async def gather(self, texts: list[str], ctx: WorkflowContext[str, list[str]]) -> None:
        await ctx.yield_output(texts)


def waiting_graph(storage: InMemoryCheckpointStorage, *, extra: bool = False, asker: str = "asker") -> Workflow:
    start, question = Relay("start"), Asker(asker)
    builder = WorkflowBuilder(start_executor=start, checkpoint_storage=storage, name="w").add_edge(start, question)
    if extra:
        builder.add_edge(question, Printer("printer"))
    return builder.build()


async def test_an_added_executor_is_a_warning_that_lists_the_differences() -> None:
    storage = InMemoryCheckpointStorage()
    request_id = await only_request(await waiting_graph(storage).run("x", run_id="r"))
    result = await waiting_graph(storage, extra=True).run(responses={request_id: "yes"})
    assert result.get_outputs() == ["x>start? yes"]
    [warning] = warnings_in(result)
    assert warning.endswith("was written: added executor printer; added edge asker -edge-> printer")


async def test_a_removed_executor_that_nothing_needs_is_a_warning() -> None:
    storage = InMemoryCheckpointStorage()
    request_id = await only_request(await waiting_graph(storage, extra=True).run("x", run_id="r"))
    result = await waiting_graph(storage).run(responses={request_id: "yes"})
    [warning] = warnings_in(result)
    assert "removed executor printer; removed edge asker -edge-> printer" in warning


async def test_a_strict_resume_refuses_what_would_be_a_warning() -> None:
    storage = InMemoryCheckpointStorage()
    request_id = await only_request(await waiting_graph(storage).run("x", run_id="r"))
    with pytest.raises(GraphChanged, match="added executor printer; added edge asker -edge-> printer"):
        await waiting_graph(storage, extra=True).run(responses={request_id: "yes"}, strict_graph=True)
    assert (await waiting_graph(storage).run(responses={request_id: "yes"}, strict_graph=True)).get_outputs()


async def test_an_unchanged_graph_is_no_warning() -> None:
    storage = InMemoryCheckpointStorage()
    request_id = await only_request(await waiting_graph(storage).run("x", run_id="r"))
    assert warnings_in(await waiting_graph(storage).run(responses={request_id: "yes"})) == []


async def test_the_next_resume_is_compared_with_the_graph_that_wrote_last() -> None:
    storage = InMemoryCheckpointStorage()
    request_id = await only_request(await waiting_graph(storage).run("x", run_id="r"))
    await waiting_graph(storage, extra=True).run(responses={request_id: "yes"})
    assert warnings_in(await waiting_graph(storage, extra=True).run("more", run_id="r")) == []


# --- what is needed and gone ------------------------------------------------------------------------------------------


async def test_a_pending_request_needs_its_source() -> None:
    storage = InMemoryCheckpointStorage()
    await waiting_graph(storage).run("x", run_id="r")
    with pytest.raises(GraphChanged, match="executor 'asker' is gone and a request of it is pending") as refusal:
        await waiting_graph(storage, asker="clerk").run(run_id="r")
    assert isinstance(refusal.value, WorkflowCheckpointException)


async def test_kept_state_needs_its_executor() -> None:
    storage = InMemoryCheckpointStorage()

    def built(name: str) -> Workflow:
        counter = Counter(name, end=2)
        return WorkflowBuilder(start_executor=counter, checkpoint_storage=storage).add_edge(counter, counter).build()

    await built("counter").run(1, run_id="r")
    with pytest.raises(GraphChanged, match="executor 'counter' is gone and its state is kept"):
        await built("other").run(2, run_id="r")


def failing_graph(storage: InMemoryCheckpointStorage, *names: str, broken: bool = True) -> Workflow:
    """A chain whose last executor fails, if it is still broken."""
    executors: list[Any] = [*(Relay(name) for name in names[:-1]), Fragile(names[-1])]
    executors[-1].is_broken = broken
    builder = WorkflowBuilder(start_executor=executors[0], checkpoint_storage=storage, name="w")
    return builder.add_chain(executors).build()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("a", "c"), "executor 'b' is gone and a str is queued for it"),
        (("c", "b"), "executor 'a' is gone and a str it sent is queued"),
    ],
    ids=["target gone", "source gone"],
)
async def test_a_queued_message_needs_its_source_and_its_target(names: tuple[str, ...], words: str) -> None:
    storage = InMemoryCheckpointStorage()
    with pytest.raises(PowerLoss):
        await failing_graph(storage, "a", "b").run("x", run_id="r")
    with pytest.raises(GraphChanged, match=words):
        await failing_graph(storage, *names, broken=False).run(run_id="r")


async def test_a_first_message_needs_its_target() -> None:
    storage = InMemoryCheckpointStorage()
    fragile = Fragile("first")
    with pytest.raises(PowerLoss):
        await WorkflowBuilder(start_executor=fragile, checkpoint_storage=storage).build().run("x", run_id="r")
    with pytest.raises(GraphChanged, match="executor 'first' is gone and a str is queued for it"):
        await WorkflowBuilder(start_executor=Relay("second"), checkpoint_storage=storage).build().run(run_id="r")


def gathering(storage: InMemoryCheckpointStorage, sources: list[str], *, broken: bool) -> Workflow:
    """The other sources' messages are collected a superstep before the one on a detour gets there."""
    start, end, fragile = Relay("start"), Gatherer("end"), Fragile("fragile")
    fragile.is_broken = broken
    relays: list[Any] = [Relay(name) for name in sources]
    detour, longer = Relay("detour"), Relay("longer")
    builder = WorkflowBuilder(start_executor=start, checkpoint_storage=storage, name="w")
    builder.add_fan_out_edges(start, [*relays, detour]).add_chain([detour, longer, fragile])
    return builder.add_fan_in_edges([*relays, fragile], end).build()


async def test_what_a_fan_in_has_collected_needs_that_fan_in() -> None:
    storage = InMemoryCheckpointStorage()
    with pytest.raises(PowerLoss):
        await gathering(storage, ["a", "b"], broken=True).run("x", run_id="r")
    with pytest.raises(GraphChanged, match="the fan-in a,b,fragile->end is gone and has collected messages"):
        await gathering(storage, ["a", "b", "c"], broken=False).run(run_id="r")


async def test_a_refused_resume_leaves_the_run_as_it_was() -> None:
    storage = InMemoryCheckpointStorage()
    with pytest.raises(PowerLoss):
        await failing_graph(storage, "a", "b").run("x", run_id="r")
    before = await storage.list_runs()
    with pytest.raises(GraphChanged):
        await failing_graph(storage, "a", "c").run(run_id="r")
    assert await storage.list_runs() == before
    assert (await failing_graph(storage, "a", "b", broken=False).run(run_id="r")).get_outputs() == ["x>a"]


async def test_a_mended_condition_and_a_mended_handler_are_no_change() -> None:
    storage = InMemoryCheckpointStorage()
    with pytest.raises(PowerLoss):
        await failing_graph(storage, "a", "b").run("x", run_id="r")
    result = await failing_graph(storage, "a", "b", broken=False).run(run_id="r", strict_graph=True)
    assert (result.get_outputs(), warnings_in(result)) == (["x>a"], [])
