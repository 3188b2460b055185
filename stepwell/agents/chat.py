"""What is said: messages, and the responses of models and agents.

`Message` is deeply immutable. Responses are containers around messages; a `ChatResponse` is what one model call
returned (and what the journal records of it), an `AgentResponse` is what an agent's whole turn came to.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Self, TypeAlias

from stepwell.agents.content import (
    NOTHING,
    ChatValue,
    Content,
    FrozenDict,
    UsageDetails,
    canonical_json,
    freeze,
    merged,
    plain_text,
    thaw,
)
from stepwell.checkpointing.registry import register_type

Contents: TypeAlias = "str | Content | Sequence[str | Content | Mapping[str, Any]]"
AgentRunInputs: TypeAlias = "str | Content | Message | Sequence[str | Content | Message]"
"""What an agent can be asked: a text, a message, or several of them."""


_ABOUT_TOOLS = frozenset(("function_call", "function_approval_request"))


class Message(ChatValue):
    """Something said by someone. `role` is `system`, `user`, `assistant` or `tool`.

    There is no `message_id` unless one is given: two messages that say the same are the same.
    """

    __slots__ = (
        "_is_plain",
        "_wire_digest",
        "additional_properties",
        "author_name",
        "contents",
        "message_id",
        "role",
    )

    role: str
    contents: tuple[Content, ...]
    author_name: str | None
    message_id: str | None
    additional_properties: FrozenDict[Any]
    _is_plain: bool
    _wire_digest: str

    def __init__(
        self,
        role: str,
        contents: Contents | None = None,
        *,
        text: str | None = None,
        author_name: str | None = None,
        message_id: str | None = None,
        additional_properties: Mapping[str, Any] | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "role", freeze(role))
        put(self, "contents", _contents(contents if contents is not None else text))
        put(self, "author_name", author_name)
        put(self, "message_id", message_id)
        more = freeze(additional_properties, path="additional_properties") if additional_properties else NOTHING
        put(self, "additional_properties", more)

    @property
    def text(self) -> str:
        """All text contents, joined."""
        return "".join(content.text or "" for content in self.contents if content.type == "text")

    @property
    def is_plain(self) -> bool:
        """Has it nothing to do with tools: no call, no result, nothing to be approved? Found out once."""
        try:
            return self._is_plain
        except AttributeError:
            plain = self.role != "tool" and not any(content.type in _ABOUT_TOOLS for content in self.contents)
            object.__setattr__(self, "_is_plain", plain)
            return plain

    @property
    def wire_digest(self) -> str:
        """A digest of what goes to a model, which a `message_id` does not. Computed once: histories are long."""
        try:
            return self._wire_digest
        except AttributeError:
            said = [self.role, self.author_name, [c.key for c in self.contents], thaw(self.additional_properties)]
            text = canonical_json(said)
            digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
            object.__setattr__(self, "_wire_digest", digest)
            return digest

    def with_contents(self, contents: Iterable[Content]) -> Message:
        """The same message, saying something else."""
        return Message(
            self.role,
            tuple(contents),
            author_name=self.author_name,
            message_id=self.message_id,
            additional_properties=self.additional_properties,
        )

    def with_author(self, author_name: str | None) -> Message:
        return Message(
            self.role,
            self.contents,
            author_name=author_name,
            message_id=self.message_id,
            additional_properties=self.additional_properties,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON data with the fields that are set."""
        result: dict[str, Any] = {"role": self.role, "contents": [content.to_dict() for content in self.contents]}
        if self.author_name is not None:
            result["author_name"] = self.author_name
        if self.message_id is not None:
            result["message_id"] = self.message_id
        if self.additional_properties:
            result["additional_properties"] = thaw(self.additional_properties)
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            data["role"],
            data.get("contents", ()),
            author_name=data.get("author_name"),
            message_id=data.get("message_id"),
            additional_properties=data.get("additional_properties"),
        )

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        author = f", author_name={self.author_name!r}" if self.author_name else ""
        return f"Message({self.role!r}, {list(self.contents)!r}{author})"


# What was found out once of each message of a conversation is asked for at every call: without a step of Python each.
_found_plain = attrgetter("_is_plain")
_found_digest = attrgetter("_wire_digest")


def all_plain(conversation: Sequence[Message]) -> bool:
    """Are these messages that have nothing to do with tools?"""
    try:
        return all(map(_found_plain, conversation))
    except AttributeError:
        return all(message.is_plain for message in conversation)


def wire_digests(conversation: Sequence[Message]) -> str:
    """The digests of these messages, in a row."""
    try:
        return "".join(map(_found_digest, conversation))
    except AttributeError:
        return "".join([message.wire_digest for message in conversation])


def _contents(given: Contents | None) -> tuple[Content, ...]:
    if given is None:
        return ()
    if isinstance(given, str | Content):
        given = [given]
    return tuple(_content(item) for item in given)


def _content(item: str | Content | Mapping[str, Any]) -> Content:
    if type(item) is dict:
        return Content.from_dict(item)
    if isinstance(item, Content):
        return item
    if isinstance(item, str):
        return Content.from_text(item)
    if isinstance(item, Mapping):
        return Content.from_dict(item)
    raise TypeError(f"a message holds strings and Content, not a {type(item).__qualname__}")


def as_messages(given: AgentRunInputs | None) -> list[Message]:
    """Whatever an agent may be asked, as messages; bare texts and contents are the user's."""
    if given is None:
        return []
    items = [given] if isinstance(given, str | Content | Message) else given
    return [item if isinstance(item, Message) else Message("user", [item]) for item in items]


def add_usage_details(*usages: UsageDetails | None) -> FrozenDict[int] | None:
    """The sum of token counts; None if nobody reported any."""
    total: dict[str, int] = {}
    for usage in usages:
        for name, count in (usage or {}).items():
            total[name] = total.get(name, 0) + count
    return FrozenDict(total) if any(usage is not None for usage in usages) else None


def text_of(messages: Iterable[Message]) -> str:
    return "\n".join(text for message in messages if (text := message.text))


# --- one model call ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """What a model answered to one call.

    `finish_reason`: `stop`, `tool_calls`, `length` (cut off), `content_filter`, `refusal`, or what the provider said.
    """

    messages: tuple[Message, ...]
    finish_reason: str | None = None
    model: str | None = None
    response_id: str | None = None
    usage_details: FrozenDict[int] | None = None

    @property
    def text(self) -> str:
        return text_of(self.messages)

    @property
    def function_calls(self) -> tuple[Content, ...]:
        return tuple(c for message in self.messages for c in message.contents if c.type == "function_call")

    @classmethod
    def of(cls, reply: str | Content | Sequence[str | Content] | Message, **fields: Any) -> ChatResponse:
        """A response with one assistant message; handy for providers and scripts."""
        message = reply if isinstance(reply, Message) else Message("assistant", reply)
        return cls((message,), **fields)

    @classmethod
    def from_updates(cls, updates: Iterable[ChatResponseUpdate]) -> ChatResponse:
        """The whole reply that a stream's updates amount to; usage contents become `usage_details`."""
        contents: list[Content] = []
        usages: list[UsageDetails] = []
        last: dict[str, Any] = {}
        for update in updates:
            usages.extend(c.usage_details for c in update.contents if c.usage_details is not None)
            contents.extend(c for c in update.contents if c.type != "usage")
            named = {"finish_reason": update.finish_reason, "model": update.model, "response_id": update.response_id}
            last |= {name: value for name, value in named.items() if value is not None}
        return cls((Message("assistant", merged(contents)),), usage_details=add_usage_details(*usages), **last)

    def to_dict(self) -> dict[str, Any]:
        fields = {
            "finish_reason": self.finish_reason,
            "model": self.model,
            "response_id": self.response_id,
            "usage_details": thaw(self.usage_details),
        }
        return {"messages": [message.to_dict() for message in self.messages]} | _set_only(fields)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ChatResponse:
        return cls(
            tuple(Message.from_dict(message) for message in data["messages"]),
            finish_reason=data.get("finish_reason"),
            model=data.get("model"),
            response_id=data.get("response_id"),
            usage_details=freeze(data.get("usage_details")),
        )


@dataclass(frozen=True, slots=True)
class ChatResponseUpdate:
    """A piece of a streamed reply. Text comes as it is written, a function call when it is complete."""

    contents: tuple[Content, ...] = ()
    finish_reason: str | None = None
    model: str | None = None
    response_id: str | None = None

    @property
    def text(self) -> str:
        return "".join(content.text or "" for content in self.contents if content.type == "text")


def _set_only(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


# --- an agent's turn --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class AgentResponse:
    """What an agent's turn came to: all it said and did, in order."""

    messages: list[Message] = field(default_factory=list)
    value: Any = None
    """The validated `output_type`, when the agent has one."""
    usage_details: FrozenDict[int] | None = None
    finish_reason: str | None = None
    response_id: str | None = None
    agent_id: str | None = None
    additional_properties: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.messages = as_messages(self.messages)

    def __deepcopy__(self, memo: dict[int, Any]) -> AgentResponse:
        # Messages can't change, so a copy shares them; every output of a run is copied once.
        again = copy.copy(self)
        again.messages = list(self.messages)
        again.value = copy.deepcopy(self.value, memo)
        again.additional_properties = copy.deepcopy(self.additional_properties, memo)
        return again

    @property
    def text(self) -> str:
        """All that the agent said, without tool calls and their results."""
        return text_of(message for message in self.messages if message.role != "tool")

    @property
    def user_input_requests(self) -> list[Content]:
        """What waits for a person; answer each with `.to_function_approval_response(...)` in the next run."""
        return [content for message in self.messages for content in message.contents if content.user_input_request]

    @classmethod
    async def from_update_generator(cls, updates: AsyncIterable[AgentResponseUpdate]) -> AgentResponse:
        return cls.from_updates([update async for update in updates])

    @classmethod
    def from_updates(cls, updates: Iterable[AgentResponseUpdate]) -> AgentResponse:
        """The response that updates amount to, for agents of your own that only stream."""
        messages: list[Message] = []
        run: list[AgentResponseUpdate] = []
        usages: list[UsageDetails] = []
        finish: str | None = None
        for update in updates:
            usages.extend(c.usage_details for c in update.contents if c.usage_details is not None)
            finish = update.finish_reason or finish
            if run and _speaker(run[0]) != _speaker(update):
                messages.append(_joined(run))
                run = []
            run.append(update)
        if run:
            messages.append(_joined(run))
        spoken = [message for message in messages if message.contents]
        return cls(spoken, usage_details=add_usage_details(*usages), finish_reason=finish)

    def to_dict(self) -> dict[str, Any]:
        """JSON data; `value` is left out, it is the parsed form of the text."""
        fields = {
            "usage_details": thaw(self.usage_details),
            "finish_reason": self.finish_reason,
            "response_id": self.response_id,
            "agent_id": self.agent_id,
            "additional_properties": self.additional_properties or None,
        }
        return {"messages": [message.to_dict() for message in self.messages]} | _set_only(fields)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AgentResponse:
        return cls(
            [Message.from_dict(message) for message in data["messages"]],
            usage_details=freeze(data.get("usage_details")),
            finish_reason=data.get("finish_reason"),
            response_id=data.get("response_id"),
            agent_id=data.get("agent_id"),
            additional_properties=dict(data.get("additional_properties", {})),
        )

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class AgentResponseUpdate:
    """A piece of an agent's streamed turn: text as it is written, tool calls, tool results, requests for approval."""

    contents: tuple[Content, ...] = ()
    role: str | None = "assistant"
    author_name: str | None = None
    agent_id: str | None = None
    response_id: str | None = None
    message_id: str | None = None
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "contents", _contents(self.contents))

    @property
    def text(self) -> str:
        return "".join(content.text or "" for content in self.contents if content.type == "text")

    @property
    def user_input_requests(self) -> list[Content]:
        return [content for content in self.contents if content.user_input_request]

    def __str__(self) -> str:
        return self.text


def _speaker(update: AgentResponseUpdate) -> tuple[str | None, str | None, str | None]:
    return update.role, update.author_name, update.message_id


def _joined(updates: Sequence[AgentResponseUpdate]) -> Message:
    contents = [content for update in updates for content in update.contents if content.type != "usage"]
    first = updates[0]
    return Message(
        first.role or "assistant", merged(contents), author_name=first.author_name, message_id=first.message_id
    )


def _encode_response(response: AgentResponse) -> dict[str, Any]:
    # Messages stay objects: the codec stores each once per run, wherever it appears.
    fields = {name: getattr(response, name) for name in AgentResponse.__slots__}
    fields["usage_details"] = thaw(response.usage_details)
    fields["additional_properties"] = response.additional_properties or None
    return _set_only(fields)


def _decode_response(data: dict[str, Any]) -> AgentResponse:
    return AgentResponse(**{**data, "usage_details": freeze(data.get("usage_details"))})


def _message_record(message: Message) -> list[Any]:
    """A message as checkpoints keep it: `[role, contents, author, id, properties]`, plain text as plain strings.

    A resumed conversation reads thousands of these, so what is not there is not written.
    """
    contents = [c.text if c.is_plain_text else c.to_dict() for c in message.contents]
    record = [message.role, contents, message.author_name, message.message_id, thaw(message.additional_properties)]
    while record and not record[-1]:
        record.pop()
    return record


_set_role, _set_contents, _set_author, _set_id, _set_more = (
    vars(Message)[name].__set__ for name in ("role", "contents", "author_name", "message_id", "additional_properties")
)


def _recorded_message(record: list[Any]) -> Message:
    if len(record) == 2:
        (role, contents), author, message_id, more = record, None, None, None
    else:
        role, contents, author, message_id, more = (record + _NOT_WRITTEN[len(record) :])[:5]
    message = object.__new__(Message)
    _set_role(message, role)
    _set_contents(message, tuple([plain_text(c) if type(c) is str else Content.from_dict(c) for c in contents]))
    _set_author(message, author)
    _set_id(message, message_id)
    _set_more(message, freeze(more) if more else NOTHING)
    return message


_NOT_WRITTEN: list[Any] = ["", (), None, None, None]


register_type(Message, name="stepwell.Message", encode=_message_record, decode=_recorded_message, immutable=True)
register_type(
    ChatResponse,
    name="stepwell.ChatResponse",
    encode=ChatResponse.to_dict,
    decode=ChatResponse.from_dict,
    immutable=True,
)
register_type(AgentResponse, name="stepwell.AgentResponse", encode=_encode_response, decode=_decode_response)
register_type(AgentResponseUpdate, name="stepwell.AgentResponseUpdate", immutable=True)
