"""Is an answer what was asked for? Told without the program, as far as that is possible.

An answer that is recorded is checked by the program only when it is delivered, and by then nobody is there to correct
it. So what stepwell itself asks, and what is asked for in plain types, is checked before anything is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepwell.cli.questions import Question
from stepwell.workflows.typing import fits, type_name

if TYPE_CHECKING:
    from pydantic import ValidationError

_PLAIN: Mapping[str, type] = {"bool": bool, "str": str, "int": int, "float": float}
_SHAPES = {
    "plan": '{"decision": "approve"}, {"decision": "revise", "feedback": …} or {"decision": "reject", "feedback": …}',
    "tool": "true or false",
    "doubt": '{"kind": "done", "result": …}, {"kind": "retry"} or {"kind": "fail", "reason": …}',
}


def check_answer(question: Question, value: Any) -> None:
    """`ValueError` if this is known to be of the wrong type; the program's own types are for the program to check."""
    expected = _expected(question)
    if expected is None or fits(value, expected):
        return
    problem = _problem_as_json(value, expected)
    if problem is not None:
        raise ValueError(f"{question.request_id} takes {shape_of(question)}: {problem}")


def shape_of(question: Question) -> str:
    """What an answer looks like as JSON."""
    return _SHAPES.get(question.kind, question.response_type)


def _expected(question: Question) -> type | None:
    """The type asked for; None if only the program knows it."""
    match question.kind:
        case "doubt":
            from stepwell.checkpointing.journal import CallVerdict

            return CallVerdict
        case "plan":
            from stepwell.orchestrations.review import MagenticPlanReviewResponse

            return MagenticPlanReviewResponse if _asks_for(question, MagenticPlanReviewResponse) else None
        case "tool":
            from stepwell.agents.content import Content

            return bool if _asks_for(question, Content | bool) else None
    return _PLAIN.get(question.response_type)


def _asks_for(question: Question, hint: Any) -> bool:
    return question.response_type == type_name(hint)


def _problem_as_json(value: Any, expected: type) -> str | None:
    """What keeps the value from becoming one of these; None if nothing does."""
    if expected in _PLAIN.values() or not isinstance(value, Mapping):
        return f"this is {_shown(value)}"
    from pydantic import TypeAdapter, ValidationError

    try:
        TypeAdapter(expected).validate_python(dict(value))
    except ValidationError as error:
        return _first_of(error)
    return None


def _first_of(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'value'}: {first['msg']}"


def _shown(value: Any) -> str:
    text = repr(value)
    return f"a {type(value).__name__}, {text if len(text) <= 60 else text[:59] + '…'}"
