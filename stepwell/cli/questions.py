"""A question that a run asks a person, and the answer: one shape whether it comes from a live run or out of a store.

Answers are JSON data, because that is what both doors take: `workflow.run(responses=…)` makes the type that was asked
for out of it, and `storage.answer(…)` records it for the next resume to do so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from stepwell import orchestrations  # noqa: F401  - so that plan reviews come back as what they are
from stepwell.checkpointing.codec import Codec
from stepwell.checkpointing.journal import CallInDoubt
from stepwell.checkpointing.storage.protocol import PendingSummary, RunInfo
from stepwell.cli.plurals import number_of
from stepwell.workflows.events import WorkflowEvent
from stepwell.workflows.typing import type_name

Kind = Literal["plan", "tool", "doubt", "other"]


@dataclass(frozen=True, slots=True)
class Question:
    """Something that waits for a person's word."""

    request_id: str
    run_id: str
    asked_by: str
    kind: Kind
    data: Any
    """What is shown: a plan review, a tool call, a call in doubt, or whatever the program asked with; an
    `OpaqueValue` where the program's types are not at hand."""
    response_type: str
    asked_at: str | None = None
    deadline: str | None = None
    workflow: str = ""
    """The name of the workflow that asks, if it is known."""
    team: tuple[str, ...] = ()
    """Of a plan: everybody who can be given a step, if that is known."""


@dataclass(frozen=True, slots=True)
class Given:
    """An answer: JSON data for the run, and the words that tell people what was decided."""

    value: Any
    words: str


class Later(Enum):
    """The person does not answer now."""

    LATER = "later"


LATER = Later.LATER
Answer = Given | Literal[Later.LATER]


def question_of_event(event: WorkflowEvent) -> Question:
    """From a `request_info` event of a run under way."""
    return Question(
        request_id=str(event.request_id),
        run_id=str(event.run_id),
        asked_by=str(event.source_executor_id or event.executor_id or ""),
        kind=kind_of(event.data),
        data=event.data,
        response_type=event.response_type if isinstance(event.response_type, str) else type_name(event.response_type),
    )


def question_of_summary(run: RunInfo, request: PendingSummary) -> Question:
    """From what a store keeps of it: the types of teams and agents are known, the program's own need not be."""
    data = Codec().decode_text(request.shown, path=f"request {request.request_id}", strict=False)
    return Question(
        request_id=request.request_id,
        run_id=run.run_id,
        asked_by=request.source_executor_id,
        kind=kind_of(data),
        data=data,
        response_type=request.response_type,
        asked_at=request.asked_at,
        deadline=request.deadline,
        workflow=run.workflow_name,
    )


def questions_of_run(run: RunInfo) -> tuple[Question, ...]:
    return tuple(question_of_summary(run, request) for request in run.pending_requests)


def kind_of(data: Any) -> Kind:
    """Which of the questions this program knows how to ask."""
    if isinstance(data, CallInDoubt):
        return "doubt"
    # By name: whoever sees one of these has imported its module already, and nobody else should have to.
    match type(data).__module__, type(data).__name__:
        case "stepwell.orchestrations.review", "MagenticPlanReviewRequest":
            return "plan"
        case "stepwell.agents.content", "Content" if data.type == "function_approval_request":
            return "tool"
    return "other"


# --- the answers ------------------------------------------------------------------------------------------------------


def approve(question: Question) -> Given:
    """Yes, to a plan as it is or to a tool call."""
    return Given(True, "approved") if question.kind == "tool" else Given({"decision": "approve"}, "approved")


def approve_edited(plan_text: str) -> Given:
    """Yes, to the plan as the person has changed it."""
    from stepwell.orchestrations.plan import Plan

    plan = Plan.parse(plan_text)
    if not plan:
        raise ValueError("the edited plan has no step; to call the task off, reject it")
    return Given(
        {"decision": "approve", "edited_plan": plan.text},
        f"approved as edited, with {number_of(len(plan.steps), 'step')}",
    )


def revise(feedback: str) -> Given:
    """Make another plan that heeds this."""
    if not feedback.strip():
        raise ValueError("say what should be different")
    return Given({"decision": "revise", "feedback": feedback}, "sent back for revision")


def reject(question: Question, reason: str) -> Given:
    """No, to a plan or to a tool call."""
    if question.kind == "tool":
        return Given(False, "not approved")
    return Given({"decision": "reject", "feedback": reason}, "rejected")


def verdict(kind: Literal["done", "retry", "fail"], *, result: Any = None, reason: str = "") -> Given:
    """A person's word on a call in doubt."""
    words = {"done": "declared done", "retry": "to be made again", "fail": "declared failed"}
    return Given({"kind": kind, "result": result, "reason": reason}, words[kind])
