"""Seed 003, "In-memory vs file-based storage": the same program on either, and a storage of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepwell import (
    CheckpointStorage,
    InMemoryCheckpointStorage,
    InvalidRunArguments,
    SQLiteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowContext,
    executor,
)


@executor(id="shout")
async def shout(text: str, ctx: WorkflowContext[str]) -> None:
    await ctx.send_message(text.upper())


@executor(id="print")
async def show(text: str, ctx: WorkflowContext[str, str]) -> None:
    await ctx.yield_output(text)


def built() -> Workflow:
    return WorkflowBuilder(start_executor=shout, name="shouting").add_edge(shout, show).build()


async def test_no_message_is_an_error_that_says_one_is_needed() -> None:
    workflow = built()
    checkpoint_storage = InMemoryCheckpointStorage()
    with pytest.raises(InvalidRunArguments, match="a message is needed to start a run"):
        await workflow.run(checkpoint_storage=checkpoint_storage, stream=True)


async def test_with_a_message_awaiting_the_stream_runs_it() -> None:
    workflow = built()
    checkpoint_storage = InMemoryCheckpointStorage()

    await workflow.run("hello", checkpoint_storage=checkpoint_storage, stream=True)

    checkpoints = await checkpoint_storage.list_checkpoints(workflow_name=workflow.name)
    assert len(checkpoints) == 3


async def test_the_latest_checkpoint_resumes_after_a_restart(tmp_path: Path) -> None:
    ckpt_dir = tmp_path / "my_checkpoints"
    async with SQLiteCheckpointStorage(ckpt_dir) as checkpoint_storage:
        await built().run("hello", checkpoint_storage=checkpoint_storage, stream=True)

    # Resume from latest checkpoint after restart
    async with SQLiteCheckpointStorage(ckpt_dir) as checkpoint_storage:
        workflow = built()
        latest = await checkpoint_storage.get_latest(workflow_name=workflow.name)
        assert latest is not None
        result = await workflow.run(
            checkpoint_id=latest.checkpoint_id,
            checkpoint_storage=checkpoint_storage,
            stream=True,
        )
        assert result.get_outputs() == ["HELLO"]


class CustomStorage:
    """The protocol's six methods over `to_dict` and `from_dict`, as the seed describes them."""

    def __init__(self) -> None:
        self._checkpoints: dict[str, dict[str, Any]] = {}

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        self._checkpoints[checkpoint.checkpoint_id] = checkpoint.to_dict()
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        return WorkflowCheckpoint.from_dict(self._checkpoints[checkpoint_id])

    async def list_checkpoints(
        self, *, workflow_name: str | None = None, run_id: str | None = None
    ) -> list[WorkflowCheckpoint]:
        found = [WorkflowCheckpoint.from_dict(data) for data in self._checkpoints.values()]
        return [c for c in found if workflow_name in (None, c.workflow_name) and run_id in (None, c.run_id)]

    async def list_checkpoint_ids(self, *, workflow_name: str | None = None, run_id: str | None = None) -> list[str]:
        return [c.checkpoint_id for c in await self.list_checkpoints(workflow_name=workflow_name, run_id=run_id)]

    async def get_latest(
        self, *, workflow_name: str | None = None, run_id: str | None = None
    ) -> WorkflowCheckpoint | None:
        return next(reversed(await self.list_checkpoints(workflow_name=workflow_name, run_id=run_id)), None)

    async def delete(self, checkpoint_id: str) -> bool:
        return self._checkpoints.pop(checkpoint_id, None) is not None


async def test_any_class_with_the_six_methods_is_a_storage() -> None:
    checkpoint_storage = CustomStorage()
    assert isinstance(checkpoint_storage, CheckpointStorage)

    workflow = built()
    await workflow.run("hello", checkpoint_storage=checkpoint_storage)
    latest = await checkpoint_storage.get_latest(workflow_name=workflow.name)
    assert latest is not None
    result = await built().run(checkpoint_id=latest.checkpoint_id, checkpoint_storage=checkpoint_storage)
    assert result.get_outputs() == ["HELLO"]
