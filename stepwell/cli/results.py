"""How a run stands when a command ends: for people, for scripts, and as an exit code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepwell.cli import exits
from stepwell.cli.asking import summary_lines
from stepwell.cli.failures import tell
from stepwell.cli.plurals import number_of
from stepwell.cli.safe_text import safe
from stepwell.cli.values import counted, plain, text_of

if TYPE_CHECKING:
    from stepwell.cli.following import Outcome
    from stepwell.cli.questions import Question


def print_json(data: Any) -> None:
    """Pure ASCII: nothing in it can reach a terminal as anything but text, and every tool can read it."""
    print(json.dumps(data, indent=2))


def print_outcome(outcome: Outcome, *, answer_with: str, resume_with: str) -> int:
    """The outputs on stdout, the rest on stderr; returns the exit code."""
    for output in outcome.outputs:
        print(safe(text_of(output)))
    if outcome.replayed:
        tell(replayed(outcome.replayed))
    if used := total(outcome.usage):
        tell(f"run {outcome.run_id}: {used}")
    if outcome.waiting:
        for question in outcome.waiting:
            tell(f"\nwaiting for an answer to {question.request_id}:")
            for line in summary_lines(question):
                tell(f"  {line}")
        tell(f"\nanswer with:     {answer_with}\nthen go on with: {resume_with}")
        return exits.WAITING
    return exits.DONE


def replayed(count: int) -> str:
    """Calls that cost nothing this time, in a sentence."""
    if count == 1:
        return "1 call was replayed from the record and not made again"
    return f"{number_of(count, 'call')} were replayed from the record; none of them was made again"


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "run_id": outcome.run_id,
        "state": outcome.state.value,
        "outputs": [{"text": text_of(output), "data": plain(output)} for output in outcome.outputs],
        "waiting": [question_json(question) for question in outcome.waiting],
        "usage": outcome.usage,
        "replayed_calls": outcome.replayed,
    }


def question_json(question: Question) -> dict[str, Any]:
    return {
        "request_id": question.request_id,
        "run_id": question.run_id,
        "kind": question.kind,
        "asked_by": question.asked_by,
        "asked_at": question.asked_at,
        "deadline": question.deadline,
        "response_type": question.response_type,
        "text": "\n".join(summary_lines(question)),
        "data": plain(question.data),
    }


def total(usage: Mapping[str, Mapping[str, float]]) -> str:
    """All agents' usage together, for people."""
    keys = {key for counts in usage.values() for key in counts}
    return counted({key: sum(counts.get(key, 0) for counts in usage.values()) for key in keys})


def exit_code(outcome: Outcome) -> int:
    return exits.WAITING if outcome.waiting else exits.DONE
