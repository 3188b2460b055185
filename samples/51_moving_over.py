"""A program written for Microsoft Agent Framework's Python workflows. Its import line is all that was changed.

It was:

    from agent_framework import Executor, FileCheckpointStorage, Workflow, WorkflowBuilder, ...

    python samples/51_moving_over.py

It prints the question, the checkpoint that waits for its answer, and what a second workflow made of the answer.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from stepwell import (
    Executor,
    FileCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    handler,
    response_handler,
)

CHECKPOINTS = Path(os.environ.get("STEPWELL_STORE", ".stepwell/moved.db")).with_suffix(".checkpoints")


class Writer(Executor):
    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._drafts: list[str] = []

    @handler
    async def write(self, topic: str, ctx: WorkflowContext[str]) -> None:
        self._drafts.append(f"A note on {topic}.")
        await ctx.send_message(self._drafts[-1])

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"drafts": self._drafts}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._drafts = state.get("drafts", [])


class Gateway(Executor):
    @handler
    async def review(self, draft: str, ctx: WorkflowContext[str]) -> None:
        await ctx.request_info(request_data=draft, response_type=str)

    @response_handler
    async def decided(self, original_request: str, response: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(f"{original_request} ({response})")


def create_workflow(checkpoint_storage: FileCheckpointStorage) -> Workflow:
    writer, gateway = Writer(id="writer"), Gateway(id="gateway")
    builder = WorkflowBuilder(name="notes", start_executor=writer, checkpoint_storage=checkpoint_storage)
    return builder.add_edge(writer, gateway).build()


async def main() -> None:
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    storage = FileCheckpointStorage(CHECKPOINTS)
    workflow = create_workflow(storage)

    request_id = ""
    async for event in workflow.run("stepwells", stream=True):
        if event.type == "request_info":
            request_id = event.request_id
            print(f"approve this? {event.data}")
        elif event.type == "status" and event.state == WorkflowRunState.IDLE_WITH_PENDING_REQUESTS:
            print("the run waits")

    checkpoint = await storage.get_latest(workflow_name=workflow.name)
    assert checkpoint is not None
    print(f"pending in the checkpoint: {request_id in checkpoint.pending_request_info_events}")

    workflow = create_workflow(storage)
    async for event in workflow.run(
        checkpoint_id=checkpoint.checkpoint_id, responses={request_id: "approved"}, stream=True
    ):
        if event.type == "output":
            print(f"output: {event.data}")


if __name__ == "__main__":
    asyncio.run(main())
