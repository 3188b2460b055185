"""A program that recovers by itself: it keeps the last checkpoint it heard of, and goes on from there after a failure.

The worker finds the factor pairs of ten numbers, one per superstep, and keeps them in a dict with int keys and tuples.
Every third attempt at its work fails. What it had found by then is in the checkpoint, with its types.

    python samples/02_recover_in_a_loop.py

It prints one line per failure, then the pairs it found.
"""

import asyncio
from dataclasses import dataclass
from itertools import count
from typing import Any

from stepwell import (
    Executor,
    InMemoryCheckpointStorage,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowContext,
    executor,
    handler,
)

Pairs = dict[int, list[tuple[int, int]]]
attempts = count(1)


@dataclass
class ComputeTask:
    remaining_numbers: list[int]


@executor(id="start")
async def start(upper_limit: int, ctx: WorkflowContext[ComputeTask]) -> None:
    await ctx.send_message(ComputeTask(list(range(1, upper_limit + 1))))


class Worker(Executor):
    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._pairs: Pairs = {}

    @handler
    async def compute(self, task: ComputeTask, ctx: WorkflowContext[ComputeTask, Pairs]) -> None:
        if next(attempts) % 3 == 0:
            raise ConnectionError("the computing service did not answer")
        n = task.remaining_numbers.pop(0)
        self._pairs[n] = [(i, n // i) for i in range(1, n + 1) if n % i == 0]
        if task.remaining_numbers:
            await ctx.send_message(task)
        else:
            await ctx.yield_output(self._pairs)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"pairs": self._pairs}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._pairs = state.get("pairs", {})


async def main() -> None:
    worker = Worker("worker")
    builder = (
        WorkflowBuilder(start_executor=start, checkpoint_storage=InMemoryCheckpointStorage())
        .add_edge(start, worker)
        .add_edge(worker, worker)  # it sends what is left to itself
    )
    latest: WorkflowCheckpoint | None = None
    while True:
        workflow = builder.build()
        stream = (
            workflow.run(10, stream=True)
            if latest is None
            else workflow.run(checkpoint_id=latest.checkpoint_id, stream=True)
        )
        try:
            async for event in stream:
                if event.type == "checkpoint":
                    latest = event.data
                elif event.type == "output":
                    print(f"done: the factor pairs of 10 are {event.data[10]}, of {len(event.data)} numbers in all")
                    return
        except ConnectionError as error:
            assert latest is not None
            print(f"{error}; going on from superstep {latest.iteration_count}")


if __name__ == "__main__":
    asyncio.run(main())
