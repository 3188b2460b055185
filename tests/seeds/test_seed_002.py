"""Seed 002, "Checkpoint & resume": the loop that recovers by itself, and the state hooks."""

from __future__ import annotations

import random
from typing import Any

import pytest
from typing_extensions import override

from stepwell import (
    Executor,
    InMemoryCheckpointStorage,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowContext,
    WorkflowValidationError,
    executor,
    handler,
)


class PowerCut(Exception):
    """What the sample recovers from."""


class WorkerExecutor(Executor):
    def __init__(self) -> None:
        super().__init__("worker")
        self._results: dict[int, int] = {}  # Internal state

    @handler
    async def work(self, number: int, ctx: WorkflowContext[int, dict[int, int]]) -> None:
        if random.random() < 0.5:
            raise PowerCut
        self._results[number] = number * number
        if number > 1:
            await ctx.send_message(number - 1)
        else:
            await ctx.yield_output(self._results)

    @override
    async def on_checkpoint_save(self) -> dict[str, Any]:
        """Save executor state into checkpoint."""
        return {"results": self._results}

    @override
    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Restore executor state from checkpoint."""
        self._results = state.get("results", {})


@executor(id="start")
async def start(number: int, ctx: WorkflowContext[int]) -> None:
    await ctx.send_message(number)


async def recovering_run() -> Any:
    worker = WorkerExecutor()

    # Build workflow with checkpoint storage
    checkpoint_storage = InMemoryCheckpointStorage()
    workflow_builder = (
        WorkflowBuilder(start_executor=start, checkpoint_storage=checkpoint_storage)
        .add_edge(start, worker)
        .add_edge(worker, worker)  # Self-loop
    )

    # Run with automatic recovery
    latest_checkpoint: WorkflowCheckpoint | None = None
    while True:
        workflow = workflow_builder.build()

        event_stream = (
            workflow.run(message=10, stream=True)  # Fresh start
            if latest_checkpoint is None
            else workflow.run(checkpoint_id=latest_checkpoint.checkpoint_id, stream=True)  # Resume
        )

        try:
            async for event in event_stream:
                if event.type == "checkpoint":
                    latest_checkpoint = event.data  # Save checkpoint
                elif event.type == "output":
                    return event.data
        except PowerCut:
            continue


@pytest.mark.parametrize("seed", range(5))
async def test_the_sample_recovers_until_it_is_done(seed: int) -> None:
    random.seed(seed)
    assert await recovering_run() == {number: number * number for number in range(1, 11)}


async def test_the_hooks_as_the_seed_prints_them_lack_a_super_init_and_the_error_says_so() -> None:
    class Printed(WorkerExecutor):
        def __init__(self) -> None:
            self._results = {}  # Internal state

    with pytest.raises(WorkflowValidationError, match=r"Printed has no id; call super\(\).__init__\(id=…\)"):
        WorkflowBuilder(start_executor=Printed())
