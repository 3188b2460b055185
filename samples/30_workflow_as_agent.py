"""A workflow used as one agent: a conversation with it outlives the process that began it.

The session holds the run. It is plain JSON, and each turn sends in only what is new.

    python samples/30_workflow_as_agent.py
"""

import asyncio
import json
import os

from models import model

from stepwell import Agent, AgentSession, SQLiteCheckpointStorage, WorkflowAgent, WorkflowBuilder

STORE = os.environ.get("STEPWELL_STORE", ".stepwell/desk.db")


def build(storage: SQLiteCheckpointStorage, draft: str, text: str) -> WorkflowAgent:
    writer = Agent(model(draft), "Write one sentence about what you are asked.", name="writer")
    editor = Agent(model(text), "Make the last sentence shorter.", name="editor")
    builder = WorkflowBuilder(start_executor=writer, name="desk", checkpoint_storage=storage, output_from=[editor])
    return builder.add_edge(writer, editor).build().as_agent(description="Writes short sentences")


async def first_process() -> str:
    async with SQLiteCheckpointStorage(STORE) as storage:
        desk = build(storage, "A stepwell is a well that one walks down into.", "One walks down into a stepwell.")
        session = desk.create_session()
        response = await desk.run("What is a stepwell?", session=session)
        print(f"desk: {response.text}")
        return json.dumps(session.to_dict())


async def second_process(saved: str) -> None:
    async with SQLiteCheckpointStorage(STORE) as storage:
        desk = build(storage, "Chand Baori has 3,500 steps, in 13 storeys.", "Chand Baori has 3,500 steps.")
        session = AgentSession.from_dict(json.loads(saved))
        stream = desk.run("Name a famous one.", session=session, stream=True)
        print("desk: ", end="")
        async for update in stream:
            print(update.text, end="", flush=True)
        response = await stream.get_final_response()
        [run, *_] = await storage.list_runs(workflow_name="desk")  # the newest first
        print(f"\n{len(saved)} bytes of session, one run of {run.supersteps} supersteps")
        if response.usage_details is not None:
            print(f"this turn took {response.usage_details['total_token_count']} tokens")


async def main() -> None:
    saved = await first_process()
    await second_process(saved)


if __name__ == "__main__":
    asyncio.run(main())
