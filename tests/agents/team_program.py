"""A conversation with a team, one turn per process: the program that is killed by `test_team_kills.py`.

    python -m tests.agents.team_program <team> <store> <folder> <what is said, or "--approve", or "--look">

The session is a JSON file in the folder, written when it is made and after every turn. Each call that is really made
leaves a line in `calls` before it answers. What a model says depends on the conversation alone, as with a real one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell import Agent, AgentResponse, AgentSession, Message, WorkflowAgent, WorkflowBuilder, tool
from stepwell.orchestrations import MagenticBuilder
from stepwell.testing import ScriptedChatClient, calls
from stepwell.testing.crash import CrashingStorage, reached
from tests.faults.backends import open_store
from tests.orchestrations.teams import DONE, FACTS, PLAN, ledger, purpose

IN_FLIGHT = "call in flight"

Script = Callable[[Sequence[Message]], tuple[str, Any]]
"""From a conversation to what the call is about, and the reply."""


@dataclass
class Desk:
    """Where every call that is really made is noted."""

    log: Path

    def note(self, name: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{name}\n")
        reached(IN_FLIGHT)

    def agent(self, name: str, script: Script, **options: Any) -> Agent:
        def answer(messages: Sequence[Message]) -> Any:
            about, reply = script(messages)
            self.note(f"{name}: {about}")
            return reply

        return Agent(ScriptedChatClient(answer), name=name, description=name, **options)


# --- the teams --------------------------------------------------------------------------------------------------------


def asked(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages if message.role == "user"]


def research(messages: Sequence[Message]) -> tuple[str, Any]:
    topic = asked(messages)[-1]
    if messages[-1].role == "tool":
        return f"answers {topic}", f"notes about {len(asked(messages))} question(s)"
    return f"looks up {topic}", calls("look_up", topic=topic)


def write(messages: Sequence[Message]) -> tuple[str, Any]:
    return f"turn {len(asked(messages))}", f"Heard {len(messages)} messages, asked: {', '.join(asked(messages))}."


def managing(*members: str) -> Script:
    """Each member speaks once, in order, then the manager is satisfied."""

    def manage(messages: Sequence[Message]) -> tuple[str, str]:
        spoken = sum(message.author_name in members for message in messages)
        match purpose(messages):
            case "facts" | "facts again" as about:
                return about, FACTS
            case "plan" | "plan again" as about:
                return about, PLAN
            case "ledger":
                return f"ledger {spoken}", ledger(members[spoken]) if spoken < len(members) else DONE
            case other:
                return other, f"The brief of {', '.join(members)}."

    return manage


def boss(messages: Sequence[Message]) -> tuple[str, Any]:
    if messages[-1].role == "tool":
        return "answers", f"They say: {messages[-1].contents[0].result}"
    return "delegates", calls("office", task="have it drafted")


def pair(desk: Desk) -> WorkflowAgent:
    """Two agents in a row, one of them with a tool."""

    @tool
    def look_up(topic: str) -> str:
        """Look it up."""
        desk.note(f"tool: {topic}")
        return f"notes on {topic}"

    researcher, writer = desk.agent("researcher", research, tools=[look_up]), desk.agent("writer", write)
    return WorkflowBuilder(start_executor=researcher, name="pair").add_edge(researcher, writer).build().as_agent()


def crew(desk: Desk) -> WorkflowAgent:
    """A manager and two members, whose plan a person looks at."""
    return (
        MagenticBuilder(
            participants=[desk.agent("researcher", write), desk.agent("writer", write)],
            manager_agent=desk.agent("manager", managing("researcher", "writer")),
            name="crew",
            enable_plan_review=True,
        )
        .build()
        .as_agent()
    )


def tower(desk: Desk) -> WorkflowAgent:
    """A crew inside a team inside a team: a participant of one, which is a tool of an agent in the other."""
    office = MagenticBuilder(
        participants=[crew(desk)], manager_agent=desk.agent("director", managing("crew")), name="office"
    ).build()
    chief = desk.agent("boss", boss, tools=[office.as_agent().as_tool()])
    return WorkflowBuilder(start_executor=chief, name="tower").build().as_agent()


TEAMS: dict[str, Callable[[Desk], WorkflowAgent]] = {"pair": pair, "crew": crew, "tower": tower}


# --- one turn ---------------------------------------------------------------------------------------------------------


def load(agent: WorkflowAgent, path: Path) -> AgentSession:
    if path.exists():
        return AgentSession.from_dict(json.loads(path.read_text()))
    session = agent.create_session()
    save(session, path)
    return session


def save(session: AgentSession, path: Path) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(session.to_dict()))
    draft.replace(path)


async def turn(agent: WorkflowAgent, session: AgentSession, word: str, storage: Any) -> AgentResponse:
    if word == "--look":
        return await agent.run(session=session, checkpoint_storage=storage)
    if word != "--approve":
        return await agent.run(word, session=session, checkpoint_storage=storage)
    shown = await agent.run(session=session, checkpoint_storage=storage)
    if not shown.user_input_requests:
        return shown  # The process before this one was killed after it had been heard.
    [request] = shown.user_input_requests
    return await agent.run([request.to_function_approval_response(True)], session=session, checkpoint_storage=storage)


async def main(team: str, store: str, folder: Path, word: str) -> None:
    agent = TEAMS[team](Desk(folder / "calls"))
    session = load(agent, folder / "session.json")
    async with open_store(store) as storage:
        response = await turn(agent, session, word, CrashingStorage(storage))
        runs = await storage.list_runs()
    save(session, folder / "session.json")
    shown = [agent.request_data(request) for request in response.user_input_requests]
    told = {"text": response.text, "asks": [f"{type(data).__name__}: {data.plan.text}" for data in shown]}
    print(json.dumps({**told, "runs": len(runs), "usage": runs[0].usage}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
