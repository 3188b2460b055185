"""agent-framework-orchestrations' Magentic team, with agents that answer at once and its file checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_framework import AgentResponse, BaseAgent, FileCheckpointStorage, Message
from agent_framework.orchestrations import MagenticBuilder
from magentic_script import TASK, WORKERS, Script
from measure import Figures, Stopwatch, bytes_under, contend


class Speaker(BaseAgent):  # type: ignore[misc]
    """Says the next thing at once."""

    def __init__(self, name: str, say: Callable[[], str]) -> None:
        super().__init__(name=name, description="speaks")
        self._say = say

    async def run(self, messages: Any = None, *, stream: bool = False, session: Any = None, **_: Any) -> AgentResponse:
        return AgentResponse(messages=[Message("assistant", [self._say()], author_name=self.name)])


async def team(*, rounds: int, directory: str | None = None) -> Figures:
    script = Script(rounds)
    workflow = MagenticBuilder(
        participants=[Speaker(name, script.worker) for name in WORKERS],
        manager_agent=Speaker("manager", script.manager),
        checkpoint_storage=FileCheckpointStorage(directory) if directory is not None else None,
    ).build()
    with Stopwatch() as watch:
        await workflow.run(TASK)
    figures = script.figures(watch.seconds, rounds)
    return figures if directory is None else {**figures, "bytes": bytes_under(directory)}


if __name__ == "__main__":
    contend({"team": team})
