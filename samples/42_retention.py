"""How much of a run is kept: only its last checkpoint, the last few, or all of them.

`LATEST_ONLY` is enough to survive crashes; a full history, the default, lets you look back and branch. What an agent
says is handed on in the shared state, so both are in the checkpoints.

    python samples/42_retention.py

It prints the checkpoints that each policy keeps, and the review that each of them can still tell.
"""

import asyncio

from models import model

from stepwell import (
    FULL_HISTORY,
    LATEST_ONLY,
    Agent,
    AgentExecutor,
    InMemoryCheckpointStorage,
    Retention,
    Workflow,
    WorkflowBuilder,
    keep_last,
)


def durable_review(storage: InMemoryCheckpointStorage) -> Workflow:
    writer = Agent(model("Stepwells are deep."), "Write one short sentence about the subject.", name="writer")
    critic = Agent(model("Deep, but how deep?"), "Criticise the sentence in one line.", name="critic")
    draft = AgentExecutor(writer, id="draft", output_key="draft")
    review = AgentExecutor(critic, id="review", input_key="draft", output_key="review")
    builder = WorkflowBuilder(start_executor=draft, name="DurableReview").with_checkpointing(storage)
    return builder.add_edge(draft, review).build()


async def main() -> None:
    policies: dict[str, Retention] = {
        "LATEST_ONLY": LATEST_ONLY,
        "keep_last(2)": keep_last(2),
        "FULL_HISTORY": FULL_HISTORY,
    }
    for name, retention in policies.items():
        storage = InMemoryCheckpointStorage(retention=retention)
        await durable_review(storage).run("stepwells", run_id="review")
        kept = await storage.list_checkpoints(run_id="review")
        print(f"{name} keeps the checkpoints after supersteps {[each.iteration_count for each in kept]}")
        print(f"  {kept[-1].state['draft']} {kept[-1].state['review']}")


if __name__ == "__main__":
    asyncio.run(main())
