"""Chat Completions on the wire, without any I/O: what is sent, and how to read what comes back.

Replies are validated with pydantic before anything believes them: the SDK builds its objects without looking, so that a
proxy's error page arrives as a "completion".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, Field, ValidationError

from stepwell.agents.chat import ChatResponse, Message
from stepwell.agents.client import ChatOptions, ToolSpec
from stepwell.agents.content import Content, FrozenDict, thaw
from stepwell.agents.schema import instructions_for, strict_schema
from stepwell.agents.tools import result_text
from stepwell.errors import MalformedReply, RequestRejected, StreamInterrupted

Feature: TypeAlias = Literal[
    "json_schema", "json_object", "stream_options", "parallel_tool_calls", "max_tokens", "max_completion_tokens"
]
"""What some servers lack. The client finds out, and asks without it."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


# --- what is sent -----------------------------------------------------------------------------------------------------


def request_body(
    messages: Sequence[Message], options: ChatOptions, *, model: str, stream: bool, lacks: frozenset[Feature]
) -> dict[str, Any]:
    """The request, as the SDK's `create` takes it."""
    wire = [item for message in messages for item in _messages(message)]
    body: dict[str, Any] = {
        "model": options.model or model,
        "messages": wire,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "seed": options.seed,
        "stop": list(options.stop) if options.stop else None,
        _limit_name(lacks): options.max_tokens,
        **_tools(options, lacks),
    }
    if options.response_format is not None:
        body |= _format(options, lacks, wire)
    if stream:
        body |= {"stream": True, "stream_options": None if "stream_options" in lacks else {"include_usage": True}}
    if options.extra:
        body["extra_body"] = thaw(options.extra)
    return {name: value for name, value in body.items() if value is not None}


def _limit_name(lacks: frozenset[Feature]) -> str:
    # OpenAI's newer models know only the long name, most other servers only the short one.
    return "max_tokens" if "max_completion_tokens" in lacks and "max_tokens" not in lacks else "max_completion_tokens"


def _tools(options: ChatOptions, lacks: frozenset[Feature]) -> dict[str, Any]:
    if not options.tools:
        return {}
    choice = options.tool_choice
    named = choice is not None and choice not in ("auto", "none", "required")
    return {
        "tools": [_tool(tool) for tool in options.tools],
        "tool_choice": {"type": "function", "function": {"name": choice}} if named else choice,
        "parallel_tool_calls": None if "parallel_tool_calls" in lacks else options.parallel_tool_calls,
    }


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": clean(tool.description), "parameters": thaw(tool.parameters)}
    return {"type": "function", "function": function}


def _format(options: ChatOptions, lacks: frozenset[Feature], wire: list[dict[str, Any]]) -> dict[str, Any]:
    """Ask for JSON in the strongest way that this server understands."""
    assert options.response_format is not None
    schema = thaw(options.response_format.schema)
    if "json_schema" not in lacks:
        strict = strict_schema(schema)
        declared = {"name": options.response_format.name, "schema": strict or schema, "strict": strict is not None}
        return {"response_format": {"type": "json_schema", "json_schema": declared}}
    wire.append({"role": "user", "content": instructions_for(schema)})
    return {} if "json_object" in lacks else {"response_format": {"type": "json_object"}}


def _messages(message: Message) -> list[dict[str, Any]]:
    results = [content for content in message.contents if content.type == "function_result"]
    if results or message.role == "tool":
        return [
            {"role": "tool", "tool_call_id": result.call_id, "content": clean(result_text(thaw(result.result)))}
            for result in results
        ]
    wire: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.author_name and message.role != "system" and _NAME.fullmatch(message.author_name):
        wire["name"] = message.author_name
    calls = [_call(content) for content in message.contents if content.type == "function_call"]
    if calls:
        wire["tool_calls"] = calls
        wire["content"] = wire["content"] or None
    return [wire]


def _call(content: Content) -> dict[str, Any]:
    arguments = content.arguments
    text = arguments if isinstance(arguments, str) else json.dumps(thaw(arguments) or {}, ensure_ascii=False)
    return {"id": content.call_id, "type": "function", "function": {"name": content.name, "arguments": clean(text)}}


def _content(message: Message) -> str | list[dict[str, Any]]:
    shown = [content for content in message.contents if content.type in ("text", "data", "uri")]
    if all(content.type == "text" for content in shown):
        return clean("".join(content.text or "" for content in shown))
    return [_part(content) for content in shown]


def _part(content: Content) -> dict[str, Any]:
    if content.type == "text":
        return {"type": "text", "text": clean(content.text or "")}
    media = content.media_type or ""
    if media.startswith("image/") or (content.type == "uri" and not media):
        return {"type": "image_url", "image_url": {"url": content.uri}}
    if content.type == "uri":
        raise RequestRejected("", f"Chat Completions takes no link to {media}; pass the bytes with Content.from_data")
    if media in ("audio/wav", "audio/mpeg", "audio/mp3"):
        payload = (content.uri or "").partition(",")[2]
        return {"type": "input_audio", "input_audio": {"data": payload, "format": "wav" if "wav" in media else "mp3"}}
    name = content.additional_properties.get("filename", "file")
    return {"type": "file", "file": {"filename": name, "file_data": content.uri}}


def clean(text: str) -> str:
    """Text that UTF-8 can carry: half an emoji, as cut-off replies contain, would fail the whole request."""
    return text.encode("utf-8", "replace").decode() if any("\ud800" <= char <= "\udfff" for char in text) else text


# --- what comes back --------------------------------------------------------------------------------------------------


class _Function(BaseModel):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _ToolCall(BaseModel):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Said(BaseModel):
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(BaseModel):
    finish_reason: str | None = None
    message: _Said | None = None
    delta: _Said | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None

    def details(self) -> FrozenDict[int]:
        asked, said = self.prompt_tokens or 0, self.completion_tokens or 0
        total = self.total_tokens or asked + said
        return FrozenDict({"input_token_count": asked, "output_token_count": said, "total_token_count": total})


class _Completion(BaseModel):
    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = Field(default=None)
    usage: _Usage | None = None


def read_completion(data: Any, *, model: str) -> ChatResponse:
    """A whole reply from its JSON; MalformedReply if it is none."""
    parsed = _parsed(data, model)
    if not parsed.choices:
        raise MalformedReply(model, "the reply has no choices")
    assembly = Assembly(model)
    choice = parsed.choices[0]
    said = choice.message or choice.delta
    if said is None:
        raise MalformedReply(model, "the reply's choice has no message")
    contents = assembly.take(said)
    assembly.finish_reason = choice.finish_reason or "stop"
    return ChatResponse(
        (Message("assistant", [*contents, *assembly.calls()]),),
        finish_reason=assembly.finished(),
        model=parsed.model,
        response_id=parsed.id,
        usage_details=parsed.usage.details() if parsed.usage is not None else None,
    )


def _parsed(data: Any, model: str) -> _Completion:
    if not isinstance(data, Mapping):
        raise MalformedReply(model, f"the reply is a JSON {type(data).__name__}, not a chat completion")
    if data.get("error") and not data.get("choices"):
        raise MalformedReply(model, f"the server reported success and sent an error: {str(data['error'])[:500]}")
    try:
        return _Completion.model_validate(data)
    except ValidationError as error:
        where = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:3])
        raise MalformedReply(model, f"the reply is no chat completion ({where})") from None


@dataclass(slots=True)
class _PartialCall:
    index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""

    def extend(self, delta: _ToolCall) -> None:
        self.id = self.id or delta.id or ""
        function = delta.function or _Function()
        if function.name and function.name != self.name:  # some servers repeat the name in each piece
            self.name += function.name
        arguments = function.arguments
        self.arguments += json.dumps(arguments) if isinstance(arguments, dict) else arguments or ""


@dataclass(slots=True)
class Assembly:
    """A streamed reply being put together: text is passed on as it comes, a tool call when all of it is there."""

    model: str
    finish_reason: str | None = None
    refused: bool = False
    usage: FrozenDict[int] | None = None
    response_id: str | None = None
    answered_by: str | None = None
    _calls: list[_PartialCall] = field(default_factory=list)

    def chunk(self, data: Any) -> list[Content]:
        """What one chunk adds that can be shown."""
        parsed = _parsed(data, self.model)
        self.response_id = parsed.id or self.response_id
        self.answered_by = parsed.model or self.answered_by
        if parsed.usage is not None:
            self.usage = parsed.usage.details()
        if not parsed.choices:
            return []
        choice = parsed.choices[0]
        self.finish_reason = choice.finish_reason or self.finish_reason
        said = choice.delta or choice.message
        return self.take(said) if said is not None else []

    def take(self, said: _Said) -> list[Content]:
        contents = []
        if said.reasoning_content:
            contents.append(Content.from_text_reasoning(text=clean(said.reasoning_content)))
        if text := _text(said.content):
            contents.append(Content.from_text(clean(text)))
        if said.refusal:
            self.refused = True
            contents.append(Content.from_text(clean(said.refusal)))
        for delta in said.tool_calls or ():
            self._call_for(delta).extend(delta)
        return contents

    def _call_for(self, delta: _ToolCall) -> _PartialCall:
        """The call this piece belongs to. Not every server counts with `index`: some leave it out or send 0 for all."""
        same = [call for call in self._calls if delta.index is not None and call.index == delta.index]
        if delta.index is None:
            same = self._calls[-1:]
        if same and (not delta.id or not same[-1].id or delta.id == same[-1].id):
            return same[-1]
        self._calls.append(_PartialCall(delta.index))
        return self._calls[-1]

    def calls(self) -> list[Content]:
        return [Content.from_function_call(call.id, call.name, arguments=clean(call.arguments)) for call in self._calls]

    def finished(self) -> str:
        """Why the reply ended; StreamInterrupted if it just stopped coming."""
        if self.finish_reason is None:
            raise StreamInterrupted(self.model, "the stream ended without a finish_reason")
        if self.refused:
            return "refusal"
        # Several servers say "stop" although they want a tool called.
        return "tool_calls" if self._calls and self.finish_reason == "stop" else self.finish_reason


def _text(content: str | list[dict[str, Any]] | None) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part.get("text"), str))
    return content or ""
