"""A workflow that is interrupted and goes on where it was.

An executor sends itself a message until it has counted to five. Every superstep leaves a checkpoint. The first attempt
is left in the middle; the second one, a freshly built workflow, resumes the run and finishes it.

    python samples/01_counter.py
"""

import asyncio

from stepwell import Executor, InMemoryCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext, handler


class Counter(Executor):
    """Counts. What it keeps between messages goes through the two checkpoint hooks."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._count = 0

    @handler
    async def count(self, limit: int, ctx: WorkflowContext[int, str]) -> None:
        self._count += 1
        print(f"  superstep {ctx.superstep}: count is {self._count}")
        if self._count < limit:
            await ctx.send_message(limit)
        else:
            await ctx.yield_output(f"counted to {self._count}")

    async def on_checkpoint_save(self) -> dict[str, int]:
        return {"count": self._count}

    async def on_checkpoint_restore(self, state: dict[str, int]) -> None:
        self._count = state["count"]


def build(storage: InMemoryCheckpointStorage) -> Workflow:
    counter = Counter("counter")
    return (
        WorkflowBuilder(start_executor=counter, name="counting", checkpoint_storage=storage)
        .add_edge(counter, counter)
        .build()
    )


async def main() -> None:
    storage = InMemoryCheckpointStorage()

    print("first attempt, left after the fourth checkpoint:")
    saved = 0
    async for event in build(storage).run(5, stream=True, run_id="demo"):
        if event.type == "checkpoint":
            saved += 1
            if saved == 4:
                break

    print("second attempt, the same line again:")
    result = await build(storage).run(5, run_id="demo")

    print(f"result: {result.get_outputs()[0]}, state: {result.get_final_state()}")
    print(f"checkpoints: {len(await storage.list_checkpoint_ids(run_id='demo'))}")


if __name__ == "__main__":
    asyncio.run(main())
