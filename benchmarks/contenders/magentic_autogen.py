"""AutoGen's MagenticOneGroupChat, with a model client and agents that answer at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_agentchat.teams import MagenticOneGroupChat
from autogen_core.models import ChatCompletionClient, CreateResult, ModelInfo, RequestUsage
from magentic_script import TASK, WORKERS, Script
from measure import Figures, Stopwatch, contend

NOTHING = RequestUsage(prompt_tokens=0, completion_tokens=0)


class Model(ChatCompletionClient):  # type: ignore[misc]
    """Says the next thing at once."""

    def __init__(self, say: Callable[[], str]) -> None:
        self._say = say

    async def create(self, messages: Any, **_: Any) -> CreateResult:
        return CreateResult(finish_reason="stop", content=self._say(), usage=NOTHING, cached=False)

    def create_stream(self, messages: Any, **_: Any) -> Any:
        raise NotImplementedError

    async def close(self) -> None: ...

    def actual_usage(self) -> RequestUsage:
        return NOTHING

    def total_usage(self) -> RequestUsage:
        return NOTHING

    def count_tokens(self, messages: Any, **_: Any) -> int:
        return 0

    def remaining_tokens(self, messages: Any, **_: Any) -> int:
        return 10**6

    @property
    def capabilities(self) -> Any:
        return self.model_info

    @property
    def model_info(self) -> ModelInfo:
        return ModelInfo(
            vision=False, function_calling=False, json_output=True, family="unknown", structured_output=False
        )


class Worker(BaseChatAgent):  # type: ignore[misc]
    """Says a kilobyte at once."""

    def __init__(self, name: str, say: Callable[[], str]) -> None:
        super().__init__(name, "speaks")
        self._say = say

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage,)

    async def on_messages(self, messages: Any, cancellation_token: Any) -> Response:
        return Response(chat_message=TextMessage(content=self._say(), source=self.name))

    async def on_reset(self, cancellation_token: Any) -> None: ...


async def team(*, rounds: int) -> Figures:
    script = Script(rounds)
    group = MagenticOneGroupChat(
        [Worker(name, script.worker) for name in WORKERS], Model(script.manager), max_turns=rounds + 10
    )
    with Stopwatch() as watch:
        await group.run(task=TASK)
    return script.figures(watch.seconds, rounds)


if __name__ == "__main__":
    contend({"team": team})
