"""stepwell's Magentic team, through its public API, with SQLite where something is to be kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from magentic_script import TASK, WORKERS, Script
from measure import Figures, Stopwatch, bytes_under, contend

from stepwell import Agent, ChatOptions, ChatResponse, ChatResponseUpdate, MagenticBuilder, Message


class Model:
    """Says the next thing at once."""

    model = "none"

    def __init__(self, say: Callable[[], str]) -> None:
        self._say = say

    async def get_response(self, messages: Sequence[Message], *, options: ChatOptions) -> ChatResponse:
        return ChatResponse.of(self._say())

    async def stream_response(
        self, messages: Sequence[Message], *, options: ChatOptions
    ) -> AsyncIterator[ChatResponseUpdate]:
        yield ChatResponseUpdate((await self.get_response(messages, options=options)).messages[0].contents)


async def team(*, rounds: int, directory: str | None = None) -> Figures:
    script = Script(rounds)
    storage: Any = None
    if directory is not None:
        from stepwell import SQLiteCheckpointStorage

        storage = SQLiteCheckpointStorage(Path(directory, "stepwell.db"))
    workflow = MagenticBuilder(
        participants=[Agent(Model(script.worker), name=name, description="speaks") for name in WORKERS],
        manager_agent=Agent(Model(script.manager), name="manager"),
        checkpoint_storage=storage,
    ).build()
    with Stopwatch() as watch:
        result = await workflow.run(TASK)
    assert result.get_outputs()[0].text == "It is done."
    if storage is None or directory is None:
        return script.figures(watch.seconds, rounds)
    await storage.close()
    return {**script.figures(watch.seconds, rounds), "bytes": bytes_under(directory)}


if __name__ == "__main__":
    contend({"team": team})
