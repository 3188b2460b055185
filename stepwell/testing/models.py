"""Models that say what they are told to: test your agents and teams without a network, a key or a bill.

    model = ScriptedChatClient([calls("look_up", city="Rome"), "It is sunny."])
    agent = Agent(model, tools=[look_up])

Each reply is used for one model call, in order; a reply of several contents is a tuple or a `Message`. A function of
the messages instead of the list decides by what was said: that is for teams whose members speak at the same time.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeAlias

from stepwell.agents.agent import Agent
from stepwell.agents.chat import ChatResponse, ChatResponseUpdate, Message
from stepwell.agents.client import ChatOptions, forbid_real_models, real_models_allowed
from stepwell.agents.content import Content, FrozenDict

__all__ = [
    "Asked",
    "Delayed",
    "ScriptExhausted",
    "ScriptLeftOver",
    "ScriptedChatClient",
    "Streamed",
    "calls",
    "forbid_real_models",
    "real_models_allowed",
]


@dataclass(frozen=True, slots=True)
class Delayed:
    """A reply that takes its time."""

    seconds: float
    reply: Reply


@dataclass(frozen=True, slots=True)
class Streamed:
    """A reply in these pieces; with `error` it breaks off after them. Asked without streaming, it comes at once."""

    pieces: tuple[str | Content, ...]
    error: Exception | None = None


Reply: TypeAlias = "str | Content | Message | ChatResponse | Delayed | Streamed | Exception | Sequence[str | Content]"
Script: TypeAlias = "Callable[[Sequence[Message]], Reply | Awaitable[Reply]]"


def calls(name: str, /, *, call_id: str | None = None, **arguments: Any) -> Content:
    """A tool call for a script; without a `call_id` the client numbers it."""
    return Content.from_function_call(call_id or "", name, arguments=json.dumps(arguments))


class ScriptExhausted(AssertionError):
    """The model was asked once more than the script foresaw."""


class ScriptLeftOver(AssertionError):
    """The model was asked less often than the script foresaw."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One call, as it reached the model."""

    messages: tuple[Message, ...]
    options: ChatOptions

    @property
    def text(self) -> str:
        """What was said last."""
        return self.messages[-1].text if self.messages else ""


class ScriptedChatClient:
    """A `ChatClient` that answers from a list of replies, or from a function of the messages (sync or async).

    A reply is a text, contents, a `Message`, a `ChatResponse`, an exception to raise, `Delayed(…)` or `Streamed(…)`.
    `asked` keeps every call. Leaving `async with`, or `check()`, complains about replies that nobody asked for.

    A list begins again with each new client, in another process too. Calls that were recorded are not made again there,
    so give it the replies that are still to come, or a function, which can find its place from the conversation.
    """

    def __init__(self, *replies: Reply | list[Reply] | Script, model: str = "scripted") -> None:
        self.model = model
        self.asked: list[Asked] = []
        self._left: list[Reply] = []
        self._script: Script | None = None
        self._numbered = 0
        match replies:
            case [list() as listed]:
                self._left = list(listed)
            case [script] if callable(script):
                self._script = script
            case _:
                self.add(*replies)  # type: ignore[arg-type]

    def add(self, *replies: Reply) -> Self:
        """More replies for the end of the list."""
        self._left.extend(replies)
        return self

    @property
    def texts(self) -> list[str]:
        """What was said last in each call: the shortest way to see who was asked what."""
        return [asked.text for asked in self.asked]

    def check(self) -> None:
        if self._left:
            raise ScriptLeftOver(
                f"scripted replies that were not asked for: {len(self._left)}, the next is {self._left[0]!r}"
            )

    def as_agent(self, *, instructions: str | None = None, **options: Any) -> Agent:
        """An agent that asks this model; takes what `Agent` takes."""
        return Agent(self, instructions, **options)

    async def get_response(self, messages: Sequence[Message], *, options: ChatOptions) -> ChatResponse:
        reply = await self._next(messages, options)
        if isinstance(reply, Streamed):
            if reply.error is not None:
                raise reply.error
            reply = list(reply.pieces)
        return self._response(reply, messages)

    async def stream_response(
        self, messages: Sequence[Message], *, options: ChatOptions
    ) -> AsyncIterator[ChatResponseUpdate]:
        reply = await self._next(messages, options)
        pieces = reply if isinstance(reply, Streamed) else Streamed(())
        for piece in pieces.pieces:
            yield ChatResponseUpdate((piece if isinstance(piece, Content) else Content.from_text(piece),))
            await asyncio.sleep(0)
        if pieces.error is not None:
            raise pieces.error
        whole = self._response(list(reply.pieces) if isinstance(reply, Streamed) else reply, messages)
        if not isinstance(reply, Streamed):
            for content in (content for message in whole.messages for content in message.contents):
                for part in _words(content):
                    yield ChatResponseUpdate((part,))
                    await asyncio.sleep(0)
        usage = (Content.from_usage(whole.usage_details),) if whole.usage_details else ()
        yield ChatResponseUpdate(usage, finish_reason=whole.finish_reason, model=whole.model)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.check()

    async def _next(self, messages: Sequence[Message], options: ChatOptions) -> Reply:
        self.asked.append(Asked(tuple(messages), options))
        reply = await self._take(messages)
        while isinstance(reply, Delayed):
            await asyncio.sleep(reply.seconds)
            reply = reply.reply
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def _take(self, messages: Sequence[Message]) -> Reply:
        if self._script is not None:
            reply: Any = self._script(messages)
            answer: Reply = await reply if inspect.isawaitable(reply) else reply
            return answer
        if not self._left:
            said = messages[-1].text if messages else ""
            raise ScriptExhausted(
                f"no scripted reply is left for call {len(self.asked)}, which ends with {said[:200]!r}"
            )
        return self._left.pop(0)

    def _response(self, reply: Reply, messages: Sequence[Message]) -> ChatResponse:
        if isinstance(reply, ChatResponse):
            return reply
        assert not isinstance(reply, Delayed | Streamed | Exception)
        message = reply if isinstance(reply, Message) else Message("assistant", reply)
        contents = [self._with_id(content) for content in message.contents]
        wants = any(content.type == "function_call" for content in contents)
        usage = _counted(messages, contents)
        return ChatResponse(
            (message.with_contents(contents),),
            finish_reason="tool_calls" if wants else "stop",
            model=self.model,
            usage_details=usage,
        )

    def _with_id(self, content: Content) -> Content:
        if content.type != "function_call" or content.call_id:
            return content
        self._numbered += 1
        return Content.from_function_call(f"call_{self._numbered}", str(content.name), arguments=content.arguments)


def _words(content: Content) -> list[Content]:
    if content.type != "text" or not content.text:
        return [content]
    return [Content.from_text(word) for word in content.text.replace(" ", " \0").split("\0")]


def _counted(messages: Iterable[Message], contents: Iterable[Content]) -> FrozenDict[int]:
    """Token counts that are not true but stay the same: a word is a token."""
    asked = sum(len(message.text.split()) for message in messages)
    said = sum(len((content.text or "").split()) + 1 for content in contents)
    return FrozenDict({"input_token_count": asked, "output_token_count": said, "total_token_count": asked + said})
