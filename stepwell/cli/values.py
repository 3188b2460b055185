"""Values of any program as plain JSON for scripts, and as a line or two for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stepwell.checkpointing.codec import TAG, Codec, OpaqueValue
from stepwell.cli.plurals import number_of
from stepwell.errors import CodecError

TYPE = "$type"
"""The key under which the type of an object is told."""


def plain(value: Any) -> Any:
    """The value as JSON data: objects are their fields, with the name of their type under `$type`."""
    try:
        return _untagged(json.loads(Codec().encode_text(value)))
    except CodecError:
        return {TYPE: type(value).__qualname__, "text": str(value)}


def _untagged(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_untagged(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if not isinstance(tree.get(TAG), str):
        return {key: _untagged(item) for key, item in tree.items()}
    data = _untagged(tree.get("v"))
    if "t" not in tree:
        return _without_tag(tree[TAG], data)
    return {TYPE: tree["t"], **(data if isinstance(data, dict) else {"value": data})}


def _without_tag(tag: str, data: Any) -> Any:
    """Built-in types lose their tag; dicts whose keys are not texts become dicts whose keys are."""
    if tag == "dict" and isinstance(data, list):
        return {key if isinstance(key, str) else json.dumps(key): item for key, item in data}
    return data


def type_of(value: Any) -> str:
    """The short name of a value's type, also if this process does not know the type."""
    if isinstance(value, OpaqueValue):
        return value.type_name.rpartition(":")[2].rpartition(".")[2]
    return type(value).__name__


def text_of(value: Any) -> str:
    """What a person wants to read of a value: its text if it has one, otherwise its content. Not yet safe to print."""
    if isinstance(value, str):
        return value
    for reading in (_own_text, _inner_text):
        text = reading(value)
        if text is not None:
            return text
    data = plain(value)
    if isinstance(data, dict) and TYPE in data:
        fields = {key: item for key, item in data.items() if key != TYPE}
        return f"{type_of(value)} {_json(fields)}" if fields else type_of(value)
    return _json(data)


def _own_text(value: Any) -> str | None:
    text = getattr(value, "text", None)
    return text if isinstance(text, str) and text else None


def _inner_text(value: Any) -> str | None:
    """The envelopes that teams and agents send each other: what is inside is what people want to read."""
    match type(value).__name__:
        case "ResponseMessage":
            return f"answer: {text_of(value.response)}"
        case "GroupChatRequestMessage":
            return value.additional_instruction or "asked to speak"
        case "GroupChatResponseMessage":
            return text_of(value.message)
        case "GroupChatParticipantMessage" | "AgentExecutorRequest":
            return _joined(value.messages)
        case "AgentExecutorResponse":
            return text_of(value.agent_response)
        case "MagenticPlanReviewRequest":
            return f"review of the plan: {value.plan.text}"
        case "MagenticPlanReviewResponse":
            return _decision(value)
        case "Content" if value.type == "function_approval_request" and value.function_call is not None:
            return f"may it call {value.function_call.name}({value.function_call.arguments})?"
    return None


def _joined(messages: Sequence[Any]) -> str:
    return "\n".join(text_of(message) for message in messages)


def _decision(review: Any) -> str:
    edited = f" with an edited plan: {review.edited_plan.text}" if review.edited_plan else ""
    feedback = f": {review.feedback}" if review.feedback else ""
    return f"{review.decision}{edited}{feedback}"


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False)


def counted(usage: Mapping[str, float]) -> str:
    """Usage for people: `2 calls, 237 tokens`."""
    parts = []
    if calls := int(usage.get("calls", 0)):
        parts.append(number_of(calls, "call"))
    if tokens := int(usage.get("total_tokens", 0)):
        parts.append(number_of(tokens, "token"))
    return ", ".join(parts)
