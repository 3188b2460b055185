"""The door to any model: a small protocol, and the options that go through it.

A provider is a class with two methods:

    class Parrot:
        model = "parrot-1"

        async def get_response(self, messages, *, options):
            return ChatResponse.of(messages[-1].text)

        async def stream_response(self, messages, *, options):
            for word in messages[-1].text.split():
                yield ChatResponseUpdate((Content.from_text(word + " "),))

Retries, timeouts and typed errors are the provider's business. Recording and replaying calls is not: the agent does it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Protocol, runtime_checkable

from stepwell.agents.chat import ChatResponse, ChatResponseUpdate, Message
from stepwell.agents.content import NOTHING, FrozenDict, freeze, thaw
from stepwell.errors import RealModelForbidden

run_client_kwargs: ContextVar[Mapping[str, Any]] = ContextVar("stepwell_client_kwargs", default=NOTHING)
"""`client_kwargs` of the run at hand, for the client alone (headers, a tenant, …). Never persisted, never hashed."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What a model is told of a tool. `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: FrozenDict[Any]


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """The reply must be JSON that fits `schema`."""

    name: str
    schema: FrozenDict[Any]


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Everything about a model call but the messages. None means: as the provider likes."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    seed: int | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str | None = None
    """`auto`, `none`, `required`, or the name of a tool."""
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    extra: FrozenDict[Any] = NOTHING
    """Further fields of the request body, as the provider names them."""
    idempotency_key: str | None = None
    """The same for every attempt at this call; no part of what is asked."""

    @classmethod
    def of(cls, given: ChatOptions | Mapping[str, Any] | None) -> ChatOptions:
        """Options from a dict; what is no option of ours goes to `extra` and so to the provider as it is."""
        if given is None:
            return UNSAID
        if isinstance(given, ChatOptions):
            return given
        known = {field.name for field in fields(cls)} - {"extra"}
        named = {_OTHER_NAMES.get(name, name): value for name, value in given.items()}
        values = {name: value for name, value in named.items() if name in known}
        if isinstance(values.get("stop"), str | list):
            values["stop"] = (values["stop"],) if isinstance(values["stop"], str) else tuple(values["stop"])
        declared = values.get("response_format")
        if isinstance(declared, Mapping):
            values["response_format"] = _response_format(declared)
        rest = {name: value for name, value in named.items() if name not in known | {"extra"}}
        return cls(**values, extra=freeze({**rest, **named.get("extra", {})}, path="options"))

    def over(self, base: ChatOptions) -> ChatOptions:
        """These options, completed by `base` where they say nothing."""
        if self is UNSAID:
            return base
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) not in (None, ())}
        return replace(base, **{**given, "extra": FrozenDict({**base.extra, **self.extra})})

    def to_request(self) -> dict[str, Any]:
        """What is asked for, as JSON data; the journal compares it when a call is replayed."""
        result = dict(zip(_PLAIN, _plain_values(self), strict=True))
        result["stop"] = None if self.stop is None else list(self.stop)
        # Schemas as texts that are made once: they go with every call, and only their equality matters here.
        result["tools"] = [[t.name, t.parameters.text] for t in self.tools] or None
        if self.response_format is not None:
            result["response_format"] = self.response_format.schema.text
        result["extra"] = thaw(self.extra) or None
        return {name: value for name, value in result.items() if value is not None}


UNSAID = ChatOptions()
"""Options that leave everything to others."""

_PLAIN = tuple(
    field.name
    for field in fields(ChatOptions)
    if field.name not in ("tools", "response_format", "extra", "idempotency_key")
)
_plain_values = attrgetter(*_PLAIN)

_OTHER_NAMES = {"model_id": "model", "allow_multiple_tool_calls": "parallel_tool_calls"}


def _response_format(declared: Mapping[str, Any]) -> ResponseFormat:
    """A JSON schema, bare or wrapped as Chat Completions wrap it."""
    wrapped = declared.get("json_schema", {})
    schema = wrapped.get("schema", declared)
    return ResponseFormat(
        wrapped.get("name") or schema.get("title") or "output", freeze(schema, path="response_format")
    )


@runtime_checkable
class ChatClient(Protocol):
    """A model that can be asked.

    A reply is returned whole or not at all: a call that could not be completed raises a `ChatClientException`, after
    whatever retries the client thinks fit. Cancelling a call gives its connection back. One client serves concurrent
    calls. If it has a `model` attribute, that name is part of what is recorded.
    """

    async def get_response(self, messages: Sequence[Message], *, options: ChatOptions) -> ChatResponse: ...

    def stream_response(
        self, messages: Sequence[Message], *, options: ChatOptions
    ) -> AsyncIterator[ChatResponseUpdate]:
        """The reply in pieces. The iterator ends normally only when the reply is complete."""
        ...


# --- the switch that keeps tests away from real models ----------------------------------------------------------------

_FORBIDDING = "STEPWELL_FORBID_REAL_MODELS"
_allowed: ContextVar[bool | None] = ContextVar("stepwell_real_models_allowed", default=None)
_forbidden_in_process = False


def forbid_real_models(*, forbidden: bool = True) -> None:
    """Make real model requests of this process raise `RealModelForbidden`; STEPWELL_FORBID_REAL_MODELS=1 does too."""
    global _forbidden_in_process
    _forbidden_in_process = forbidden


@contextmanager
def real_models_allowed(allowed: bool = True) -> Iterator[None]:
    """Allow (or, with False, forbid) real model requests inside the block, whatever the process says."""
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


def check_real_model_allowed(client: str) -> None:
    """Providers call this before a request leaves the process."""
    allowed = _allowed.get()
    if allowed is None:
        allowed = not (_forbidden_in_process or os.environ.get(_FORBIDDING, "") not in ("", "0"))
    if not allowed:
        raise RealModelForbidden(client)
