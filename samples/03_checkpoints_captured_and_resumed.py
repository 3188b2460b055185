"""Checkpoints of a finished run: captured while it runs, listed, resumed on the same workflow, rehydrated in a new one.

Going on from an older checkpoint is a run of its own, so nothing is overwritten.

    python samples/03_checkpoints_captured_and_resumed.py

It prints the checkpoints of the first run, then what the two others put out and remember.
"""

import asyncio
from typing import Any

from stepwell import Executor, InMemoryCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext, handler


class Station(Executor):
    """Passes a message on, and remembers what came by: the two hooks are all it takes."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.messages: list[str] = []

    @handler
    async def handle(self, message: str, ctx: WorkflowContext[str]) -> None:
        self.messages.append(message)
        await ctx.send_message(f"{message} > {self.id}")

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"messages": self.messages}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.messages = state["messages"]


class Terminus(Executor):
    @handler
    async def handle(self, message: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{message} > {self.id}")


def line() -> tuple[WorkflowBuilder, Station]:
    start, middle, north, south = Station("start"), Station("middle"), Terminus("north"), Terminus("south")
    builder = WorkflowBuilder()
    builder.set_start_executor(start)
    builder.add_edge(start, middle)
    builder.add_edge(middle, north)
    builder.add_edge(middle, south)
    return builder, start


async def resume(workflow: Workflow, checkpoint_id: str, storage: InMemoryCheckpointStorage | None = None) -> None:
    async for event in workflow.run_stream_from_checkpoint(checkpoint_id, storage):
        if event.type == "executor_invoked":
            print(f"  {event.executor_id} runs")
        elif event.type == "output":
            print(f"  output: {event.data}")


async def main() -> None:
    checkpoint_storage = InMemoryCheckpointStorage()
    builder, _ = line()
    workflow = builder.with_checkpointing(checkpoint_storage).build()

    async for event in workflow.run_streaming("train"):
        if event.type == "superstep_completed":
            print(f"superstep {event.iteration} is saved as checkpoint {event.data.sequence}")
    checkpoints = await checkpoint_storage.list_checkpoints()
    print(f"{len(checkpoints)} checkpoints: one at the entry, one after each superstep")

    after_start = checkpoints[1]
    print("resumed on the same workflow:")
    await resume(workflow, after_start.checkpoint_id)

    print("rehydrated in a new one, which has no storage of its own:")
    fresh, start = line()
    await resume(fresh.build(), after_start.checkpoint_id, checkpoint_storage)
    print(f"  start did not run again, but remembers {start.messages}")


if __name__ == "__main__":
    asyncio.run(main())
