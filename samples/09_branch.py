"""What if? A run is taken up again from an older checkpoint, with other state: a branch, beside the run it left.

    python samples/09_branch.py

It prints the offer of the first run, the one of the branch, and that the first run is what it was.
"""

import asyncio

from stepwell import InMemoryCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext, executor


@executor(id="surveyor")
async def surveyor(well: str, ctx: WorkflowContext[str]) -> None:
    cubic_metres = await ctx.call(measure, well)
    ctx.set_state("silt", cubic_metres)
    ctx.set_state("price", 90)
    await ctx.send_message(well)


def measure(well: str) -> int:
    print(f"  measuring the silt in {well}, which takes a day")
    return 400


@executor(id="estimator")
async def estimator(well: str, ctx: WorkflowContext[None, str]) -> None:
    silt, price = ctx.get_state("silt"), ctx.get_state("price")
    await ctx.yield_output(f"{well}: {silt} cubic metres at {price} euros make {silt * price} euros")


def build(storage: InMemoryCheckpointStorage) -> Workflow:
    builder = WorkflowBuilder(start_executor=surveyor, name="offers", checkpoint_storage=storage)
    return builder.add_edge(surveyor, estimator).build()


async def main() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = build(storage)
    first = await workflow.run("Toorji ka Jhalra", run_id="offer")
    print(first.get_outputs()[0])

    measured = (await storage.list_checkpoints(run_id="offer"))[1]
    print(f"after superstep {measured.iteration_count} the state was: silt {measured.state['silt']}, price 90")
    cheaper = await workflow.branch(measured.checkpoint_id, state={"price": 75}, run_id="offer-with-volunteers")
    print(cheaper.get_outputs()[0])

    for run in await storage.list_runs(workflow_name="offers"):
        print(f"run {run.run_id}, " + (f"a branch of {run.parent_run_id}" if run.parent_run_id else "the first"))
    again = await workflow.run(run_id="offer")
    print(f"the first run still says: {again.get_outputs()[0]}")


if __name__ == "__main__":
    asyncio.run(main())
