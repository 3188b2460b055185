"""prune removes a run only if it still is what it was when it was chosen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stepwell import Executor, SQLiteCheckpointStorage, WorkflowBuilder, WorkflowContext, handler, response_handler
from stepwell.checkpointing.storage.protocol import RunInfo
from stepwell.cli.pruning import Wanted, pruned
from stepwell.workflows.workflow import Workflow

FINISHED = Wanted(before=None, finished=True, workflow=None)


class Clerk(Executor):
    @handler
    async def take(self, text: str, ctx: WorkflowContext[None, str]) -> None:
        if text.endswith("?"):
            await ctx.request_info(text, str)
        else:
            await ctx.yield_output(text)

    @response_handler
    async def answered(self, asked: str, answer: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(answer)


class Busy(SQLiteCheckpointStorage):
    """Something happens in it between the reading of the list and what is done about it."""

    meanwhile: Callable[[], Awaitable[Any]] | None = None

    async def list_runs(self, *, workflow_name: str | None = None, state: str | None = None) -> list[RunInfo]:
        runs = await super().list_runs(workflow_name=workflow_name, state=state)
        if self.meanwhile is not None:
            await self.meanwhile()
        return runs


def office(storage: Busy) -> Workflow:
    return WorkflowBuilder(name="office", start_executor=Clerk("clerk"), checkpoint_storage=storage).build()


@pytest.mark.parametrize(
    ("message", "reason"),
    [("And another thing?", "it waits for a person by now"), ("One more.", "it has gone on meanwhile")],
    ids=["it asks", "it goes on"],
)
async def test_a_run_that_went_on_since_it_was_chosen_stays(tmp_path: Path, message: str, reason: str) -> None:
    async with Busy(tmp_path / "runs.db") as storage:
        workflow = office(storage)
        await workflow.run("Done.", run_id="r")
        storage.meanwhile = lambda: workflow.run(message, run_id="r")
        removed = await pruned(storage, FINISHED, keep=None, dry_run=False)
        assert (removed.runs, removed.stayed) == ([], {"r": reason})
        storage.meanwhile = None
        [run] = await storage.list_runs()
        assert (run.run_id, run.holder) == ("r", None)
        assert run.state == ("IDLE_WITH_PENDING_REQUESTS" if message.endswith("?") else "IDLE")


async def test_a_run_that_did_not_change_goes(tmp_path: Path) -> None:
    async with Busy(tmp_path / "runs.db") as storage:
        workflow = office(storage)
        for name in ("a", "b"):
            await workflow.run("Done.", run_id=name)
        await workflow.run("Really?", run_id="c")
        removed = await pruned(storage, FINISHED, keep=None, dry_run=False)
        assert sorted(removed.runs) == ["a", "b"]
        assert [run.run_id for run in await storage.list_runs()] == ["c"]


async def test_a_run_that_somebody_else_removed_is_not_counted(tmp_path: Path) -> None:
    async with Busy(tmp_path / "runs.db") as storage:
        await office(storage).run("Done.", run_id="r")
        storage.meanwhile = lambda: storage.delete_run("r")
        removed = await pruned(storage, FINISHED, keep=None, dry_run=False)
        assert (removed.runs, removed.stayed) == ([], {})
