"""An agent that is killed in the middle of its work, and goes on without asking or looking anything up twice.

Each model call and each tool call is recorded before its result is used. The tool notes in a file what it looked up.

    python samples/14_killed_between_calls.py --kill   # the process is killed while the second look-up is under way
    python samples/14_killed_between_calls.py          # the same line again: what was recorded is replayed
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from models import model

from stepwell import Agent, SQLiteCheckpointStorage, Workflow, WorkflowBuilder, tool
from stepwell.testing import calls

STORE = Path(os.environ.get("STEPWELL_STORE", ".stepwell/guide.db"))
USED = STORE.with_suffix(".used.txt")
DEPTHS = {"Chand Baori": 20, "Rani ki Vav": 28}


@tool
def depth_of(stepwell: str) -> str:
    """Look up how deep a stepwell is."""
    if stepwell == "Rani ki Vav" and "--kill" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    with USED.open("a") as used:
        used.write(f"{stepwell}\n")
    return f"{DEPTHS.get(stepwell, 'unknown')} metres"


def build(storage: SQLiteCheckpointStorage) -> Workflow:
    script = {
        0: calls("depth_of", stepwell="Chand Baori", call_id="first"),
        1: calls("depth_of", stepwell="Rani ki Vav", call_id="second"),
        2: "Rani ki Vav is the deeper one.",
    }
    # This script goes by what has been looked up so far, as a model does; a list would begin anew in each process.
    client = model(lambda messages: script[sum(message.role == "tool" for message in messages)])
    guide = Agent(client, "Look one depth up at a time, then answer.", name="guide", tools=[depth_of])
    return WorkflowBuilder(start_executor=guide, name="guide", checkpoint_storage=storage).build()


async def main() -> None:
    async with SQLiteCheckpointStorage(STORE) as storage:
        workflow = build(storage)
        stream = workflow.run("Which is deeper, Chand Baori or Rani ki Vav?", run_id="question", stream=True)
        async for event in stream:
            if event.type == "call_replayed":
                print(f"from the record: {event.details['name']}")
        result = await stream.get_final_response()
        print(f"guide: {result.get_outputs()[0].text}")
        print(f"looked up: {', '.join(USED.read_text().splitlines())}")
        print(f"model calls: {result.usage['guide']['calls']:.0f}")


if __name__ == "__main__":
    asyncio.run(main())
