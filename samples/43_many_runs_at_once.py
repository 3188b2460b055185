"""Hundreds of runs of one workflow at once, on one SQLite file; and what to do when the program starts again.

Executors are given as factories, so each run has its own. After a crash, `recover` resumes every run that was cut off,
without knowing who had asked for it.

    python samples/43_many_runs_at_once.py --kill   # killed with SIGKILL when a third of the orders is done
    python samples/43_many_runs_at_once.py          # recovers, does the rest, and prints what came of it
"""

import asyncio
import os
import signal
import sys
from itertools import count
from pathlib import Path

from stepwell import Executor, SQLiteCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext, handler

STORE = Path(os.environ.get("STEPWELL_STORE", ".stepwell/orders.db"))
ORDERS = 300
packed = count(1)


class Clerk(Executor):
    @handler
    async def take(self, order: int, ctx: WorkflowContext[int]) -> None:
        price = await ctx.call(self._look_up, order)
        await ctx.send_message(price)

    async def _look_up(self, order: int) -> int:
        await asyncio.sleep(0)  # a model or a database would be asked here
        return order * 3


class Packer(Executor):
    @handler
    async def pack(self, price: int, ctx: WorkflowContext[None, str]) -> None:
        if next(packed) == ORDERS // 3 and "--kill" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        await ctx.yield_output(f"packed for {price} euros")


def build(storage: SQLiteCheckpointStorage) -> Workflow:
    clerk, packer = (lambda: Clerk("clerk")), (lambda: Packer("packer"))
    builder = WorkflowBuilder(start_executor=clerk, name="orders", checkpoint_storage=storage)
    return builder.add_edge(clerk, packer).build()


async def main() -> None:
    async with SQLiteCheckpointStorage(STORE) as storage:
        workflow = build(storage)
        recovered = await workflow.recover()
        print(f"recovered {len(recovered)} runs that were cut off", flush=True)

        async with asyncio.TaskGroup() as group:  # those that are finished answer from the record
            tasks = [group.create_task(place(workflow, order)) for order in range(ORDERS)]
        right = sum(task.result() == f"packed for {order * 3} euros" for order, task in enumerate(tasks))
        print(f"{right} of {ORDERS} orders came out right, in {len(await storage.list_runs())} runs")
        print(f"this process packed {next(packed) - 1} of them")


async def place(workflow: Workflow, order: int) -> str:
    result = await workflow.run(order, run_id=f"order-{order}")
    return str(result.get_outputs()[0])


if __name__ == "__main__":
    asyncio.run(main())
