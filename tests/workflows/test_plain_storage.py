"""A storage of the user's own, with just the six methods."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import (
    AlreadyAnswered,
    InvalidRunArguments,
    RunUnfinished,
    UnknownRun,
    Workflow,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowContext,
    WorkflowConvergenceException,
    executor,
)
from tests.workflows.parts import Asker, Counter, Fragile, PowerLoss, Relay, alone, chained, only_request, take_until


class Shelf:
    """Keeps the very objects it is given, in a dict."""

    def __init__(self) -> None:
        self.kept: dict[str, WorkflowCheckpoint] = {}

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        self.kept[checkpoint.checkpoint_id] = checkpoint
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        return self.kept[checkpoint_id]

    async def list_checkpoints(
        self, *, workflow_name: str | None = None, run_id: str | None = None
    ) -> list[WorkflowCheckpoint]:
        return [
            checkpoint
            for checkpoint in self.kept.values()
            if workflow_name in (None, checkpoint.workflow_name) and run_id in (None, checkpoint.run_id)
        ]

    async def list_checkpoint_ids(self, *, workflow_name: str | None = None, run_id: str | None = None) -> list[str]:
        return [c.checkpoint_id for c in await self.list_checkpoints(workflow_name=workflow_name, run_id=run_id)]

    async def get_latest(
        self, *, workflow_name: str | None = None, run_id: str | None = None
    ) -> WorkflowCheckpoint | None:
        return next(reversed(await self.list_checkpoints(workflow_name=workflow_name, run_id=run_id)), None)

    async def delete(self, checkpoint_id: str) -> bool:
        return self.kept.pop(checkpoint_id, None) is not None


class Drawer:
    """Keeps JSON-like dicts, and knows workflows but no runs: every method that lists needs a workflow's name."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        self.kept[checkpoint.checkpoint_id] = checkpoint.to_dict()
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        return WorkflowCheckpoint.from_dict(self.kept[checkpoint_id])

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        found = map(WorkflowCheckpoint.from_dict, self.kept.values())
        return [checkpoint for checkpoint in found if checkpoint.workflow_name == workflow_name]

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        return [checkpoint.checkpoint_id for checkpoint in await self.list_checkpoints(workflow_name=workflow_name)]

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        return next(reversed(await self.list_checkpoints(workflow_name=workflow_name)), None)

    async def delete(self, checkpoint_id: str) -> bool:
        return self.kept.pop(checkpoint_id, None) is not None


class Bag(Shelf):
    """Takes any keyword and heeds none of them but the workflow's name."""

    async def get_latest(self, **options: Any) -> WorkflowCheckpoint | None:
        return next(reversed(await self.list_checkpoints(workflow_name=options.get("workflow_name"))), None)


STORAGES = pytest.mark.parametrize("kind", [Shelf, Drawer, Bag])


def counting(storage: Any, *, end: int = 5, **options: Any) -> Workflow:
    slot = lambda: Counter(end=end)  # noqa: E731
    return WorkflowBuilder(start_executor=slot, checkpoint_storage=storage, **options).add_edge(slot, slot).build()


def asking(storage: Any) -> Workflow:
    return alone(lambda: Asker("asker"), storage)


@STORAGES
async def test_a_run_of_s_supersteps_leaves_s_plus_one_checkpoints(kind: Any) -> None:
    storage = kind()
    assert (await counting(storage, end=3).run(1)).get_outputs() == [3]
    assert len(storage.kept) == 4


@STORAGES
async def test_an_interrupted_run_resumes_by_run_id(kind: Any) -> None:
    storage = kind()
    stream = counting(storage).run(1, run_id="r", stream=True)
    await take_until(stream, "executor_completed")
    await stream.aclose()
    assert (await counting(storage).run(1, run_id="r")).get_outputs() == [5]


@STORAGES
async def test_runs_are_told_apart(kind: Any) -> None:
    storage = kind()
    workflow = counting(storage)
    await workflow.run(1, run_id="one")
    await workflow.run(4, run_id="two")
    latest = await storage.get_latest(workflow_name=workflow.name)
    assert latest.state["_executor_state"]["counter"] == {"seen": [4, 5]}
    assert (await workflow.run(run_id="one")).get_outputs() == [5]
    with pytest.raises(UnknownRun):
        await workflow.run(run_id="three")


@STORAGES
async def test_the_newest_checkpoint_continues_and_an_older_one_branches(kind: Any) -> None:
    storage = kind()
    workflow = counting(storage)
    await workflow.run(1, run_id="r")
    kept = await storage.list_checkpoints(workflow_name=workflow.name)
    newest = await workflow.run(checkpoint_id=kept[-1].checkpoint_id)
    branch = await workflow.run(checkpoint_id=kept[2].checkpoint_id)
    assert (newest.run_id, newest.get_outputs()) == ("r", [5])
    assert (branch.run_id != "r", branch.get_outputs()) == (True, [5])


@STORAGES
async def test_resuming_changes_nothing_in_the_checkpoint_resumed(kind: Any) -> None:
    storage = kind()
    workflow = counting(storage)
    await workflow.run(1, run_id="r")
    kept = await storage.list_checkpoints(workflow_name=workflow.name)
    before = [checkpoint.to_dict() for checkpoint in kept]
    for checkpoint in kept:
        await workflow.run(checkpoint_id=checkpoint.checkpoint_id, branch=True)
    after = [(await storage.load(checkpoint.checkpoint_id)).to_dict() for checkpoint in kept]
    assert after == before


@STORAGES
async def test_a_request_survives_and_is_answered_once(kind: Any) -> None:
    storage = kind()
    request_id = await only_request(await asking(storage).run("tea", run_id="r"))
    assert (await asking(storage).run(responses={request_id: "milk"})).get_outputs() == ["tea? milk"]
    with pytest.raises(AlreadyAnswered, match="milk"):
        await asking(storage).run(run_id="r", responses={request_id: "lemon"})


@STORAGES
async def test_a_decision_counts_whichever_checkpoint_is_named(kind: Any) -> None:
    storage = kind()
    request_id = await only_request(await asking(storage).run("tea", run_id="r"))
    await asking(storage).run(responses={request_id: "milk"})
    for checkpoint in await storage.list_checkpoints(workflow_name=asking(storage).name):
        with pytest.raises(AlreadyAnswered):
            await asking(storage).run(checkpoint_id=checkpoint.checkpoint_id, responses={request_id: "lemon"})


@STORAGES
async def test_an_explicit_branch_can_be_answered_differently(kind: Any) -> None:
    storage = kind()
    workflow = asking(storage)
    request_id = await only_request(await workflow.run("tea", run_id="r"))
    await workflow.run(responses={request_id: "milk"})
    asked = (await storage.list_checkpoints(workflow_name=workflow.name))[1]
    result = await workflow.run(checkpoint_id=asked.checkpoint_id, responses={request_id: "lemon"}, branch=True)
    assert result.get_outputs() == ["tea? lemon"]


@STORAGES
async def test_another_message_is_refused_or_a_further_turn_as_everywhere(kind: Any) -> None:
    storage = kind()
    fragile = Fragile()
    workflow = chained([Relay("relay"), fragile], storage)
    with pytest.raises(PowerLoss):
        await workflow.run("x", run_id="r")
    with pytest.raises(RunUnfinished):
        await workflow.run("y", run_id="r")
    fragile.is_broken = False
    assert (await workflow.run("x", run_id="r")).get_outputs() == ["x>relay"]
    assert (await workflow.run("y", run_id="r")).get_outputs() == ["y>relay"]


@STORAGES
async def test_a_limit_can_be_raised(kind: Any) -> None:
    workflow = counting(kind(), max_iterations=2)
    with pytest.raises(WorkflowConvergenceException):
        await workflow.run(1, run_id="r")
    assert (await workflow.run(run_id="r", max_iterations=9)).get_outputs() == [5]


@STORAGES
async def test_recover_resumes_what_was_interrupted(kind: Any) -> None:
    storage = kind()
    stream = counting(storage).run(1, run_id="r", stream=True)
    await take_until(stream, "executor_completed")
    await stream.aclose()
    assert [result.get_outputs() for result in await counting(storage).recover()] == [[5]]


@STORAGES
async def test_without_a_journal_the_calls_of_an_interrupted_superstep_are_made_again(kind: Any) -> None:
    asked: list[str] = []
    broken = True

    async def ask(question: str) -> str:
        asked.append(question)
        return question

    @executor(id="worker")
    async def work(message: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(await ctx.call(ask, message))
        if broken:
            raise PowerLoss

    workflow = alone(work, kind())
    with pytest.raises(PowerLoss):
        await workflow.run("q", run_id="r")
    broken = False
    assert (await workflow.run(run_id="r")).get_outputs() == ["q"]
    assert asked == ["q", "q"]


async def test_a_class_that_lacks_a_method_is_refused_by_name() -> None:
    class Half:
        async def save(self, checkpoint: Any) -> str:
            return ""

    with pytest.raises(InvalidRunArguments, match="is no checkpoint storage: it lacks load, list_checkpoints"):
        await counting(None).run(1, checkpoint_storage=Half())  # type: ignore[call-overload, unused-ignore]
