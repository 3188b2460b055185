"""Answers to requests: are they what was asked for?"""

from __future__ import annotations

import asyncio
import builtins
import sys
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any

from stepwell.checkpointing.checkpoint import PendingRequest
from stepwell.checkpointing.codec import OpaqueValue
from stepwell.checkpointing.journal import CallInDoubt, CallVerdict
from stepwell.checkpointing.registry import is_model
from stepwell.errors import ResponseTypeMismatch
from stepwell.workflows.executor import Executor
from stepwell.workflows.typing import fits, type_name


def response_type_of(request: PendingRequest, source: Executor | None) -> Any:
    """The type that was asked for, found again by its name among what the executor's response handlers take.

    None if there is no such type any more; then any answer that a handler takes will do.
    """
    if isinstance(request.data, CallInDoubt):
        return CallVerdict
    hints = [hint for spec in source.specs if spec.responds_to for hint in spec.accepts] if source else []
    unions = [_union(spec.accepts) for spec in source.specs if spec.responds_to] if source else []
    for hint in (*hints, *unions):
        if type_name(hint) == request.response_type:
            return hint
    plain = getattr(builtins, request.response_type, None)
    return plain if isinstance(plain, type) else None


def _union(hints: tuple[Any, ...]) -> Any:
    union = hints[0]
    for hint in hints[1:]:
        union = union | hint
    return union


async def get_ready(answers: Iterable[Any]) -> None:
    """If an answer has to be made from JSON data, import what that needs, away from the event loop."""
    from_json = any(isinstance(answer, Mapping | OpaqueValue) for answer in answers)
    if from_json and "pydantic.type_adapter" not in sys.modules:
        await asyncio.to_thread(_adapter, int)


def _adapter(expected: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(expected)


def checked_answer(request: PendingRequest, answer: Any, source: Executor | None) -> Any:
    """The answer as the executor gets it: of the type asked for, made from JSON data if need be."""
    expected = response_type_of(request, source)
    if expected is None:
        return _taken_by_a_handler(request, answer, source)
    if fits(answer, expected):
        return answer
    return _made_from_json(request, answer, expected)


def _taken_by_a_handler(request: PendingRequest, answer: Any, source: Executor | None) -> Any:
    hints = [hint for spec in source.specs if spec.responds_to for hint in spec.accepts] if source else []
    if hints and not any(fits(answer, hint) for hint in hints):
        for hint in hints:
            if _is_buildable(hint) and isinstance(answer, Mapping):
                return _made_from_json(request, answer, hint)
        names = " or ".join(type_name(hint) for hint in hints)
        raise ResponseTypeMismatch(request.request_id, names, f"got {_shown(answer)}")
    return answer


def _made_from_json(request: PendingRequest, answer: Any, expected: Any) -> Any:
    name = type_name(expected)
    if isinstance(answer, OpaqueValue):
        answer = answer.data
    if not _is_buildable(expected) or not isinstance(answer, Mapping):
        raise ResponseTypeMismatch(request.request_id, name, f"got {_shown(answer)}")
    from pydantic import ValidationError

    try:
        return _adapter(expected).validate_python(dict(answer))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, p['loc'])) or 'value'}: {p['msg']}" for p in error.errors()[:5])
        raise ResponseTypeMismatch(request.request_id, name, problems) from error


def _is_buildable(hint: Any) -> bool:
    return isinstance(hint, type) and (is_dataclass(hint) or is_model(hint))


def _shown(answer: Any) -> str:
    text = repr(answer)
    return f"{type(answer).__name__} {text if len(text) < 100 else text[:99] + '…'}"
