"""Two agents in a workflow, their words shown as they come.

Updates are live and provisional; the whole replies are recorded, and are what `get_outputs()` returns.

    python samples/11_streaming.py
"""

import asyncio

from models import model

from stepwell import Agent, WorkflowBuilder


async def main() -> None:
    writer = Agent(
        model("Steps lead down to water that the dry season can't reach."),
        "Write one sentence about the subject.",
        name="writer",
    )
    editor = Agent(
        model("Steps lead down to water no dry season reaches."), "Make the last sentence shorter.", name="editor"
    )
    workflow = WorkflowBuilder(start_executor=writer).add_edge(writer, editor).build()

    stream = workflow.run("stepwells", stream=True)
    async for event in stream:
        if event.type == "executor_invoked":
            print(f"{event.executor_id}: ", end="", flush=True)
        elif event.provisional:
            print(event.data.text, end="", flush=True)
        elif event.type == "executor_completed":
            print()

    result = await stream.get_final_response()
    print(f"recorded: {[output.text for output in result.get_outputs()]}")


if __name__ == "__main__":
    asyncio.run(main())
