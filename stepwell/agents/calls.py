"""How a turn's calls are made: through the journal, under keys that a replay finds again, whatever ran beside them."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel

from stepwell.agents.chat import ChatResponse, Message, wire_digests
from stepwell.agents.client import ChatClient, ChatOptions
from stepwell.agents.content import Content
from stepwell.agents.tools import FunctionTool, ResumedCall, ToolContext, ToolFailure, result_text, ticketed
from stepwell.checkpointing.journal import CallTicket, Usage, durable_call, is_recording
from stepwell.errors import CallFailed, DuplicateCallKey, InvalidArguments

T = TypeVar("T")


@dataclass(slots=True)
class CallKeys:
    """Names the calls of one turn: `<agent>/<turn>/model/3`.

    The turn is named by its caller or by what it was asked, never by a counter that concurrent turns would race on.
    Only turns of one name are numbered: their first call finds the next free number, the others follow it.
    """

    agent: str
    turn: str
    _number: int = 0
    _settled: bool = False

    async def call(
        self,
        key: str,
        fn: Callable[[CallTicket], Awaitable[T]],
        *,
        name: str,
        request: Any,
        at_most_once: bool = False,
        usage: Callable[[T], Usage | None] | None = None,
    ) -> T:
        while True:
            full = self.full(key)
            try:
                result = await durable_call(name, fn, key=full, request=request, at_most_once=at_most_once, usage=usage)
            except DuplicateCallKey as error:
                if self._settled or error.key != full:
                    raise
                self._number += 1
            else:
                self._settled = True
                return result

    def full(self, key: str) -> str:
        number = f"~{self._number}" if self._number else ""
        return f"{self.agent}/{self.turn}{number}/{key}"


def turn_name(conversation: Sequence[Message]) -> str:
    """A name for a turn from what it was asked, the same in every process. Outside of a run nobody needs one."""
    return conversation_digest(conversation)[:12] if is_recording() else "turn"


def conversation_digest(conversation: Sequence[Message]) -> str:
    """A digest of what goes to a model. Each message is digested once in its life, however often it is sent."""
    return hashlib.blake2b(wire_digests(conversation).encode(), digest_size=12).hexdigest()


def journalled_request(messages: Sequence[Message], **more: Any) -> dict[str, Any]:
    """A request as the journal compares it: the last message in words, for people; the conversation by its digest."""
    asked = messages[-1].text[-150:] if messages else ""
    return {"asked": asked, "conversation": conversation_digest(messages), **more}


@dataclass(slots=True)
class ModelCall:
    """One call of the client, streamed or not, and what it cost."""

    client: ChatClient
    messages: list[Message]
    options: ChatOptions
    announce: Callable[[Sequence[Content], str | None], None] | None
    live: bool = False
    """Was the call really made (its updates shown as they came), or answered from the journal?"""
    seconds: float = 0.0

    def request(self) -> dict[str, Any] | None:
        if not is_recording():
            return None
        model = self.options.model or getattr(self.client, "model", None)
        return journalled_request(self.messages, **{**self.options.to_request(), "model": model})

    async def make(self, ticket: CallTicket) -> ChatResponse:
        self.live = True
        options = replace(self.options, idempotency_key=ticket.idempotency_key)
        began = time.monotonic()
        try:
            if self.announce is None:
                return await self.client.get_response(self.messages, options=options)
            return await self._streamed(options, self.announce)
        finally:
            self.seconds = time.monotonic() - began

    async def _streamed(
        self, options: ChatOptions, announce: Callable[[Sequence[Content], str | None], None]
    ) -> ChatResponse:
        updates = []
        async with _closing(self.client.stream_response(self.messages, options=options)) as stream:
            async for update in stream:
                updates.append(update)
                # Calls are shown once the reply is recorded, under the ids that their results will have.
                announce([c for c in update.contents if c.type != "function_call"], update.finish_reason)
        return ChatResponse.from_updates(updates)

    def usage(self, reply: ChatResponse) -> dict[str, float]:
        counted: Mapping[str, int] = reply.usage_details or {}
        return {
            "input_tokens": counted.get("input_token_count", 0),
            "output_tokens": counted.get("output_token_count", 0),
            "total_tokens": counted.get("total_token_count", 0),
            "calls": 1,
            "seconds": round(self.seconds, 3),
        }


@asynccontextmanager
async def _closing(stream: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close the stream however it is left, so that its connection is given back now and not when it is collected."""
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A tool call that was looked at: `ready` to be made, or answered already because it can't be."""

    call: Content
    tool: FunctionTool | None = None
    ready: BaseModel | None = None
    refusal: str | None = None

    @property
    def needs_approval(self) -> bool:
        return self.tool is not None and self.ready is not None and self.tool.needs_approval

    def request(self) -> Content:
        """What a person is asked: the call with its final arguments, defaults filled in."""
        call_id, name = str(self.call.call_id), str(self.call.name)
        final = self.ready.model_dump_json(by_alias=True) if self.ready is not None else "{}"
        return Content.from_function_approval_request(
            call_id, Content.from_function_call(call_id, name, arguments=final)
        )


@dataclass(frozen=True, slots=True)
class ToolCaller:
    """Makes the tool calls of a turn."""

    agent_name: str
    tools: Mapping[str, FunctionTool]
    context: ToolContext
    keys: CallKeys

    def prepare(self, call: Content) -> Prepared:
        tool = self.tools.get(call.name or "")
        if tool is None:
            known = ", ".join(sorted(self.tools)) or "none"
            return Prepared(call, refusal=f"Error: there is no tool {call.name!r}; there are: {known}")
        try:
            return Prepared(call, tool, ready=tool.validate(call.arguments))
        except InvalidArguments as error:
            return Prepared(call, tool, refusal=f"Error: {error}")

    async def make(self, item: Prepared, resumed: ResumedCall | None = None) -> Content:
        """Make the call (or take it up again), or find out from the journal how it went."""
        call_id = str(item.call.call_id)
        if item.tool is None or item.ready is None:
            return _result(call_id, ToolFailure(item.refusal or "Error: the call could not be understood"))
        tool, arguments = item.tool, item.ready

        async def fn(ticket: CallTicket) -> str | ToolFailure:
            context = replace(ticketed(self.context, ticket), call_id=call_id, resumed=resumed)
            return await tool.outcome(arguments, context=context)

        try:
            outcome = await self.keys.call(
                f"tool/{call_id}",
                fn,
                name=f"tool:{tool.name}",
                request={"tool": tool.name, "arguments": arguments.model_dump_json(by_alias=True)},
                at_most_once=tool.at_most_once,
                usage=lambda _: {self.agent_name: {"tool_calls": 1}},
            )
        except CallFailed as error:
            outcome = ToolFailure(f"Error: {error.reason}")
        return _result(call_id, outcome)


def _result(call_id: str, outcome: Any) -> Content:
    if isinstance(outcome, ToolFailure):
        return Content.from_function_result(call_id, result=outcome.text, exception=outcome.text)
    # A person's verdict on a call in doubt may be any value.
    return Content.from_function_result(call_id, result=result_text(outcome))


async def in_order(calls: Sequence[Awaitable[T]]) -> list[T]:
    """Await all of them at once; results in order. If one fails the others are cancelled, and its error is raised."""
    if len(calls) < 2:
        return [await call for call in calls]

    async def run(call: Awaitable[T]) -> T:
        return await call

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(call)) for call in calls]
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    return [task.result() for task in tasks]


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
