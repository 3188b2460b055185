"""A storage of your own: six methods, here over one append-only file of JSON lines.

It passes the contract that is shipped in `stepwell.testing`, and so should yours:

    class TestLogStorage(CheckpointStorageContract):
        @pytest.fixture
        def storage(self, tmp_path):
            return LogStorage(tmp_path / "log.jsonl")

Six methods have no journal (calls of an interrupted superstep are made again) and no fence (two processes could resume
one run). The storages that are shipped have both.

    python samples/41_storage_of_your_own.py

It prints what a run left in the file, and its result when a new storage resumes it from there.
"""

import asyncio
import json
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

from stepwell import CheckpointNotFound, WorkflowBuilder, WorkflowCheckpoint, WorkflowContext, executor


class LogStorage:
    """Checkpoints in the order they were saved: one line for each save, one for each deletion."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._kept: dict[str, dict[str, Any]] = {}
        lines = path.read_text("utf-8").split("\n") if path.exists() else [""]
        for line in lines[:-1]:  # what follows the last line break was cut off by a crash
            self._apply(json.loads(line))
        if lines[-1]:
            os.truncate(path, path.stat().st_size - len(lines[-1].encode()))

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        self._write({"save": checkpoint.to_dict()})
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        if checkpoint_id not in self._kept:
            raise CheckpointNotFound(checkpoint_id)
        return WorkflowCheckpoint.from_dict(deepcopy(self._kept[checkpoint_id]))  # nobody may alter what is kept

    async def list_checkpoints(
        self, *, workflow_name: str | None = None, run_id: str | None = None
    ) -> list[WorkflowCheckpoint]:
        ids = await self.list_checkpoint_ids(workflow_name=workflow_name, run_id=run_id)
        return [await self.load(checkpoint_id) for checkpoint_id in ids]

    async def list_checkpoint_ids(self, *, workflow_name: str | None = None, run_id: str | None = None) -> list[str]:
        wanted = {"workflow_name": workflow_name, "run_id": run_id}
        return [
            checkpoint_id
            for checkpoint_id, data in self._kept.items()
            if all(value is None or data[name] == value for name, value in wanted.items())
        ]

    async def get_latest(
        self, *, workflow_name: str | None = None, run_id: str | None = None
    ) -> WorkflowCheckpoint | None:
        ids = await self.list_checkpoint_ids(workflow_name=workflow_name, run_id=run_id)
        return await self.load(ids[-1]) if ids else None

    async def delete(self, checkpoint_id: str) -> bool:
        if checkpoint_id not in self._kept:
            return False
        self._write({"delete": checkpoint_id})
        return True

    def _write(self, entry: dict[str, Any]) -> None:
        """Durable when it returns. It blocks the event loop meanwhile; use a thread if your disk is slow."""
        line = json.dumps(entry)
        with self._path.open("a", encoding="utf-8") as log:
            log.write(line + "\n")
            log.flush()
            os.fsync(log.fileno())
        self._apply(json.loads(line))

    def _apply(self, entry: dict[str, Any]) -> None:
        data = entry.get("save")
        self._kept.pop(data["checkpoint_id"] if data else entry["delete"], None)
        if data:
            self._kept[data["checkpoint_id"]] = data


@executor(id="shout")
async def shout(text: str, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(text.upper())


async def main() -> None:
    path = Path(os.environ.get("STEPWELL_STORE", ".stepwell/log.db")).with_suffix(".jsonl")
    workflow = WorkflowBuilder(start_executor=shout, name="shouting").build()
    await workflow.run("water", run_id="r1", checkpoint_storage=LogStorage(path))
    print(f"{len(path.read_text().splitlines())} lines in {path.name}")

    result = await workflow.run(run_id="r1", checkpoint_storage=LogStorage(path))
    print(f"a new storage on the same file: {result.get_outputs()}")


if __name__ == "__main__":
    asyncio.run(main())
