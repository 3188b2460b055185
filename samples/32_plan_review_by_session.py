"""A Magentic team as an agent. Its plan waits for a person, and all that has to be kept meanwhile is the session.

    python samples/32_plan_review_by_session.py ask       # plans, saves the session as JSON, and ends
    python samples/32_plan_review_by_session.py show      # any time later, any number of times: the plan again
    python samples/32_plan_review_by_session.py approve   # the team goes to work; what was planned is not planned again

Without an argument it does all three, one after the other.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import brief_script
from models import is_configured

from stepwell import (
    Agent,
    AgentSession,
    ChatClient,
    MagenticBuilder,
    Message,
    OpenAIChatClient,
    SQLiteCheckpointStorage,
    WorkflowAgent,
)
from stepwell.testing import ScriptedChatClient

STORE = Path(os.environ.get("STEPWELL_STORE", ".stepwell/review.db"))
SESSION = STORE.with_suffix(".session.json")
TASK = "Write a one-page brief on stepwells for a city council."


def client(script: Callable[[Sequence[Message]], str]) -> ChatClient:
    return OpenAIChatClient() if is_configured() else ScriptedChatClient(script)


def build(storage: SQLiteCheckpointStorage) -> WorkflowAgent:
    # Sample 20 has the same team with tools to look things up with.
    researcher = Agent(client(lambda _: "They are wells that one walks down into."), name="researcher")
    writer = Agent(client(lambda _: "Stepwells: restore yours."), name="writer")
    team = MagenticBuilder(
        participants=[researcher, writer],
        manager_agent=Agent(client(brief_script.manager), name="manager"),
        name="brief-writers",
        enable_plan_review=True,
        checkpoint_storage=storage,
    ).build()
    return team.as_agent()


async def ask() -> None:
    async with SQLiteCheckpointStorage(STORE) as storage:
        team = build(storage)
        session = team.create_session()
        response = await team.run(TASK, session=session)
        SESSION.write_text(json.dumps(session.to_dict()))
        print(f"{len(response.user_input_requests)} request waits; the session is in {SESSION.name}")


async def show(*, approve: bool = False) -> None:
    session = AgentSession.from_dict(json.loads(SESSION.read_text()))
    async with SQLiteCheckpointStorage(STORE) as storage:
        team = build(storage)
        response = await team.run(session=session)
        for request in response.user_input_requests:
            print(f"the plan:\n{team.request_data(request).plan.text}")
        if approve and response.user_input_requests:
            answers = [request.to_function_approval_response(True) for request in response.user_input_requests]
            response = await team.run(answers, session=session)
            SESSION.write_text(json.dumps(session.to_dict()))
            print(f"answer: {response.text}")
        [run, *_] = await storage.list_runs(workflow_name="brief-writers")  # the newest first
        print(f"the manager was asked {run.usage['manager']['calls']:.0f} times so far")


async def main() -> None:
    match sys.argv[1:]:
        case ["ask"]:
            await ask()
        case ["show"]:
            await show()
        case ["approve"]:
            await show(approve=True)
        case _:
            await ask()
            await show()
            await show(approve=True)


if __name__ == "__main__":
    asyncio.run(main())
