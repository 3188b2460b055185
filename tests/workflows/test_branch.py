"""Branches: going on from an older checkpoint, with nothing overwritten."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import (
    AlreadyAnswered,
    Executor,
    InMemoryCheckpointStorage,
    InvalidRunArguments,
    Workflow,
    WorkflowCheckpoint,
    WorkflowContext,
    executor,
    handler,
    response_handler,
)
from tests.workflows.parts import alone, asking, chained, checkpoints_of, counting, only_request, request_ids


async def counted(storage: InMemoryCheckpointStorage) -> tuple[Workflow, list[WorkflowCheckpoint]]:
    workflow = counting(storage, end=4)
    await workflow.run(1, run_id="trunk")
    return workflow, await checkpoints_of(storage, "trunk")


async def answered(storage: InMemoryCheckpointStorage) -> tuple[Workflow, str, list[WorkflowCheckpoint]]:
    """A run that asked at superstep 1 and was answered with milk."""
    workflow = asking(storage)
    request_id = await only_request(await workflow.run("tea", run_id="trunk"))
    await workflow.run(responses={request_id: "milk"})
    return workflow, request_id, await checkpoints_of(storage, "trunk")


async def test_the_newest_checkpoint_continues_the_run() -> None:
    workflow, kept = await counted(InMemoryCheckpointStorage())
    assert (await workflow.run(checkpoint_id=kept[-1].checkpoint_id)).run_id == "trunk"


@pytest.mark.parametrize("index", [0, 1, 2, 3])
async def test_an_older_checkpoint_starts_a_run_of_its_own(index: int) -> None:
    storage = InMemoryCheckpointStorage()
    workflow, kept = await counted(storage)
    result = await workflow.run(checkpoint_id=kept[index].checkpoint_id)
    assert result.run_id != "trunk"
    assert result.get_outputs() == [4]
    [info] = [run for run in await storage.list_runs() if run.run_id == result.run_id]
    assert (info.parent_run_id, info.parent_checkpoint_id) == ("trunk", kept[index].checkpoint_id)


async def test_a_branch_overwrites_nothing() -> None:
    storage = InMemoryCheckpointStorage()
    workflow, kept = await counted(storage)
    before = [checkpoint.to_dict() for checkpoint in kept]
    await workflow.run(checkpoint_id=kept[1].checkpoint_id)
    assert [checkpoint.to_dict() for checkpoint in await checkpoints_of(storage, "trunk")] == before


async def test_the_first_checkpoint_of_a_branch_follows_the_one_it_leaves() -> None:
    storage = InMemoryCheckpointStorage()
    workflow, kept = await counted(storage)
    result = await workflow.run(checkpoint_id=kept[1].checkpoint_id, run_id="twig", branch=True)
    twig = await checkpoints_of(storage, "twig")
    assert result.run_id == "twig"
    assert twig[0].previous_checkpoint_id == kept[1].checkpoint_id
    assert [checkpoint.iteration_count for checkpoint in twig] == [1, 2, 3, 4]


async def test_the_newest_checkpoint_branches_if_asked_to() -> None:
    workflow, kept = await counted(InMemoryCheckpointStorage())
    result = await workflow.run(checkpoint_id=kept[-1].checkpoint_id, branch=True)
    assert result.run_id != "trunk"


async def test_a_branch_can_branch() -> None:
    storage = InMemoryCheckpointStorage()
    workflow, kept = await counted(storage)
    await workflow.run(checkpoint_id=kept[1].checkpoint_id, run_id="twig", branch=True)
    twig = await checkpoints_of(storage, "twig")
    assert (await workflow.run(checkpoint_id=twig[1].checkpoint_id, run_id="leaf")).get_outputs() == [4]
    assert len(await checkpoints_of(storage, "twig")) == len(twig)


async def test_a_branch_outlives_its_parent() -> None:
    storage = InMemoryCheckpointStorage()
    workflow, kept = await counted(storage)
    await workflow.run(checkpoint_id=kept[1].checkpoint_id, run_id="twig", branch=True)
    await storage.delete_run("trunk")
    twig = await checkpoints_of(storage, "twig")
    assert (await workflow.run(checkpoint_id=twig[0].checkpoint_id)).get_outputs() == [4]


async def test_a_branch_needs_a_run_id_that_is_free() -> None:
    storage = InMemoryCheckpointStorage()
    workflow, kept = await counted(storage)
    await workflow.run(1, run_id="taken")
    with pytest.raises(InvalidRunArguments, match="run 'taken' exists already; give the branch another run_id"):
        await workflow.run(checkpoint_id=kept[1].checkpoint_id, run_id="taken")
    assert (await workflow.run(run_id="taken")).get_outputs() == [4]


async def test_a_branch_makes_fresh_calls() -> None:
    asked: list[str] = []

    def ask(text: str) -> str:
        asked.append(text)
        return f"{text} #{len(asked)}"

    @executor(id="caller")
    async def call(text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(await ctx.call(ask, text))

    storage = InMemoryCheckpointStorage()
    workflow = alone(call, storage)
    await workflow.run("q", run_id="trunk")
    entry, _ = await checkpoints_of(storage, "trunk")
    assert (await workflow.run(checkpoint_id=entry.checkpoint_id)).get_outputs() == ["q #2"]
    assert (await workflow.run(run_id="trunk")).get_outputs() == ["q #1"]


# --- decisions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 1, 2, 3])
async def test_an_answer_given_counts_whichever_checkpoint_is_named(index: int) -> None:
    workflow, request_id, kept = await answered(InMemoryCheckpointStorage())
    assert len(kept) == 4
    with pytest.raises(AlreadyAnswered, match='with "milk"; to try another answer, pass the checkpoint_id and branch'):
        await workflow.run(checkpoint_id=kept[index].checkpoint_id, responses={request_id: "lemon"})


async def test_a_refused_answer_leaves_no_branch_behind() -> None:
    storage = InMemoryCheckpointStorage()
    workflow, request_id, kept = await answered(storage)
    with pytest.raises(AlreadyAnswered):
        await workflow.run(checkpoint_id=kept[1].checkpoint_id, responses={request_id: "lemon"})
    assert [run.run_id for run in await storage.list_runs()] == ["trunk"]


async def test_an_explicit_branch_can_be_answered_differently() -> None:
    storage = InMemoryCheckpointStorage()
    workflow, request_id, kept = await answered(storage)
    result = await workflow.run(checkpoint_id=kept[1].checkpoint_id, responses={request_id: "lemon"}, branch=True)
    assert result.get_outputs() == ["tea? lemon"]
    assert (await workflow.run(run_id="trunk")).get_outputs() == ["tea? milk"]


async def test_a_decision_counts_once_in_a_branch_too() -> None:
    storage = InMemoryCheckpointStorage()
    workflow, request_id, kept = await answered(storage)
    checkpoint_id = kept[1].checkpoint_id
    await workflow.run(checkpoint_id=checkpoint_id, responses={request_id: "lemon"}, branch=True, run_id="twig")
    with pytest.raises(AlreadyAnswered, match="'twig'"):
        await workflow.run(run_id="twig", responses={request_id: "rum"})


async def test_a_branch_with_a_wrong_answer_leaves_nothing_behind() -> None:
    storage = InMemoryCheckpointStorage()
    workflow, request_id, kept = await answered(storage)
    with pytest.raises(Exception, match="must be str"):
        await workflow.run(checkpoint_id=kept[1].checkpoint_id, responses={request_id: 5}, branch=True)
    assert [run.run_id for run in await storage.list_runs()] == ["trunk"]


async def test_a_branch_from_a_checkpoint_with_a_request_emits_it_again() -> None:
    workflow, request_id, kept = await answered(InMemoryCheckpointStorage())
    result = await workflow.run(checkpoint_id=kept[1].checkpoint_id)
    assert request_ids(result) == [request_id]


async def test_a_request_that_still_waits_is_answered_in_its_run_and_not_by_an_older_checkpoint() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = asking(storage)
    request_id = await only_request(await workflow.run("tea", run_id="trunk"))
    entry, _ = await checkpoints_of(storage, "trunk")
    with pytest.raises(InvalidRunArguments, match=r"is not the newest of run 'trunk'.*answer it there"):
        await workflow.run(checkpoint_id=entry.checkpoint_id, responses={request_id: "milk"})


async def waiting_later(storage: InMemoryCheckpointStorage) -> tuple[Workflow, str, str]:
    """A run that waits for an answer in a later superstep than the one that asked; an older checkpoint has it too."""

    class Ask(Executor):
        @handler
        async def on_text(self, text: str, ctx: WorkflowContext[str]) -> None:
            await ctx.request_info(text, str)
            await ctx.send_message(text)

        @response_handler
        async def on_answer(self, question: str, answer: str, ctx: WorkflowContext[str, str]) -> None:
            await ctx.yield_output(f"{question} {answer}")

    @executor(id="more")
    async def more(text: str, ctx: WorkflowContext[str]) -> None:
        ctx.set_state("more", text)

    workflow = chained([Ask("ask"), more], storage)
    request_id = await only_request(await workflow.run("pay?", run_id="trunk"))
    older = next(kept for kept in await checkpoints_of(storage, "trunk") if kept.pending_request_info_events)
    return workflow, request_id, older.checkpoint_id


@pytest.mark.parametrize("door", ["the branch", "any run", "the storage"])
async def test_what_is_answered_in_a_run_after_a_branch_was_made_is_not_answered_again_there(door: str) -> None:
    storage = InMemoryCheckpointStorage()
    workflow, request_id, older = await waiting_later(storage)
    branch = await workflow.run(checkpoint_id=older)
    assert request_ids(branch) == [request_id]
    assert (await workflow.run(run_id="trunk", responses={request_id: "no"})).get_outputs() == ["pay? no"]
    with pytest.raises(AlreadyAnswered, match="'trunk'"):
        if door == "the branch":
            await workflow.run(run_id=branch.run_id, responses={request_id: "yes"})
        elif door == "any run":
            await workflow.run(responses={request_id: "yes"})
        else:
            await storage.answer(request_id, "yes")
    assert (await workflow.run(run_id=branch.run_id)).get_outputs() == []


async def test_what_a_branch_found_waiting_is_answered_in_the_run_that_asked() -> None:
    storage = InMemoryCheckpointStorage()
    workflow, request_id, older = await waiting_later(storage)
    branch = await workflow.run(checkpoint_id=older)
    with pytest.raises(InvalidRunArguments, match=r"was asked by run 'trunk'.*waits there"):
        await workflow.run(run_id=branch.run_id, responses={request_id: "yes"})
    twig = await workflow.run(checkpoint_id=(await checkpoints_of(storage, branch.run_id))[0].checkpoint_id)
    with pytest.raises(InvalidRunArguments, match=r"was asked by run 'trunk'.*waits there"):
        await workflow.run(run_id=twig.run_id, responses={request_id: "yes"})
    assert (await workflow.run(responses={request_id: "no"})).run_id == "trunk"


async def test_a_branch_of_a_branch_that_is_asked_for_by_name_can_be_answered() -> None:
    storage = InMemoryCheckpointStorage()
    workflow, request_id, older = await waiting_later(storage)
    branch = await workflow.run(checkpoint_id=older)
    [newest, *_] = reversed(await checkpoints_of(storage, branch.run_id))
    result = await workflow.run(checkpoint_id=newest.checkpoint_id, responses={request_id: "yes"}, branch=True)
    assert result.get_outputs() == ["pay? yes"]
    assert (await workflow.run(run_id="trunk", responses={request_id: "no"})).get_outputs() == ["pay? no"]


# --- changed state ----------------------------------------------------------------------------------------------------


def remembering(storage: InMemoryCheckpointStorage) -> Workflow:
    @executor(id="write")
    async def write(message: str, ctx: WorkflowContext[str]) -> None:
        ctx.set_state("colour", "red")
        ctx.set_state("size", "small")
        await ctx.send_message(message)

    @executor(id="read")
    async def read(message: str, ctx: WorkflowContext[str, Any]) -> None:
        await ctx.yield_output((ctx.get_state("colour"), ctx.get_state("size")))

    return chained([write, read], storage)


async def test_a_branch_can_start_with_changed_state() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = remembering(storage)
    assert (await workflow.run("x", run_id="trunk")).get_outputs() == [("red", "small")]
    _, middle, _ = await checkpoints_of(storage, "trunk")
    result = await workflow.branch(middle.checkpoint_id, state={"colour": "blue"}, run_id="twig")
    assert (result.run_id, result.get_outputs()) == ("twig", [("blue", "small")])
    assert (await storage.load(middle.checkpoint_id)).state["colour"] == "red"


@pytest.mark.parametrize("key", ["_executor_state", "_fan_in", "_graph"])
async def test_a_branch_can_not_change_what_the_engine_keeps(key: str) -> None:
    storage = InMemoryCheckpointStorage()
    workflow = remembering(storage)
    await workflow.run("x", run_id="trunk")
    _, middle, _ = await checkpoints_of(storage, "trunk")
    with pytest.raises(InvalidRunArguments, match=f"state= can't change '{key}'; it changes shared state only"):
        await workflow.branch(middle.checkpoint_id, state={key: {}})


async def test_a_branch_can_be_streamed_and_resumed() -> None:
    storage = InMemoryCheckpointStorage()
    workflow, kept = await counted(storage)
    stream = workflow.branch(kept[0].checkpoint_id, run_id="twig", stream=True)
    async for event in stream:
        if event.type == "checkpoint":
            break
    await stream.aclose()
    assert (await workflow.run(run_id="twig")).get_outputs() == [4]


async def test_a_checkpoint_of_another_storage_object_can_be_branched_after_copying() -> None:
    storage, copy = InMemoryCheckpointStorage(), InMemoryCheckpointStorage()
    workflow, kept = await counted(storage)
    for checkpoint in kept:
        await copy.save(WorkflowCheckpoint.from_dict(checkpoint.to_dict()))
    assert (await workflow.run(checkpoint_id=kept[2].checkpoint_id, checkpoint_storage=copy)).get_outputs() == [4]


async def test_a_builder_without_a_storage_can_branch_in_a_given_one() -> None:
    storage = InMemoryCheckpointStorage()
    _, kept = await counted(storage)
    rebuilt = counting(end=4)
    assert rebuilt.checkpoint_storage is None
    result = await rebuilt.branch(kept[1].checkpoint_id, checkpoint_storage=storage)
    assert result.get_outputs() == [4]
