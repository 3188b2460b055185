"""One program, three storages: memory for tests, a folder of JSON for looking at, SQLite for most programs.

Only the line that makes the storage differs. PostgresCheckpointStorage, for several hosts, would be a fourth.

    python samples/40_memory_file_or_database.py

It prints what each storage holds after a run, and what is left after a restart.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from stepwell import (
    CheckpointStorage,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    InvalidId,
    SQLiteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)

FOLDER = Path(os.environ.get("STEPWELL_STORE", ".stepwell/storages.db")).parent


@executor(id="shout")
async def shout(text: str, ctx: WorkflowContext[str]) -> None:
    await ctx.send_message(text.upper())


@executor(id="repeat")
async def repeat(text: str, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(f"{text}! {text}!")


def build() -> Workflow:
    return WorkflowBuilder(start_executor=shout, name="echo").add_edge(shout, repeat).build()


async def first_process(checkpoint_storage: CheckpointStorage) -> None:
    workflow = build()
    await workflow.run("water", checkpoint_storage=checkpoint_storage, stream=True)  # awaiting the stream runs it
    checkpoints = await checkpoint_storage.list_checkpoints(workflow_name=workflow.name)
    print(f"{type(checkpoint_storage).__name__}: {len(checkpoints)} checkpoints saved")


async def after_a_restart(checkpoint_storage: CheckpointStorage) -> None:
    workflow = build()
    latest = await checkpoint_storage.get_latest(workflow_name=workflow.name)
    if latest is None:
        print("  after a restart: nothing is left")
        return
    result = await workflow.run(checkpoint_id=latest.checkpoint_id, checkpoint_storage=checkpoint_storage, stream=True)
    print(f"  after a restart: {result.get_outputs()}")


async def main() -> None:
    kinds: list[Callable[[], InMemoryCheckpointStorage | FileCheckpointStorage | SQLiteCheckpointStorage]] = [
        InMemoryCheckpointStorage,
        lambda: FileCheckpointStorage(FOLDER / "checkpoints"),
        lambda: SQLiteCheckpointStorage(FOLDER / "checkpoints.db"),
    ]
    for make in kinds:
        async with make() as storage:
            await first_process(storage)
        async with make() as storage:
            await after_a_restart(storage)
    print(f"the folder holds {len(list((FOLDER / 'checkpoints').glob('*.json')))} JSON files, one for each checkpoint")

    async with FileCheckpointStorage(FOLDER / "checkpoints") as storage:
        try:
            await storage.load("../../etc/passwd")
        except InvalidId as error:
            print(f"InvalidId: {error}")


if __name__ == "__main__":
    asyncio.run(main())
