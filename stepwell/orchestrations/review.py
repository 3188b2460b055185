"""A person looks at the plan: what is shown, and what can be answered."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stepwell.agents.chat import Message, as_messages, text_of
from stepwell.checkpointing.registry import register_type
from stepwell.orchestrations.ledger import MagenticProgressLedger
from stepwell.orchestrations.plan import Plan

Feedback = str | Message | Sequence[str | Message]


@dataclass(frozen=True, slots=True)
class MagenticPlanReviewResponse:
    """A person's decision about a plan; made by the methods of `MagenticPlanReviewRequest`.

    As JSON: `{"decision": "approve"}`, with `edited_plan` (a text, or `{"steps": [{"owner": …, "text": …}]}`) if it was
    changed, or `{"decision": "revise", "feedback": …}`, or `{"decision": "reject", "feedback": …}`.
    """

    decision: Literal["approve", "revise", "reject"]
    feedback: str = ""
    edited_plan: Plan | None = None

    @staticmethod
    def approve(edited_plan: Plan | str | None = None) -> MagenticPlanReviewResponse:
        return MagenticPlanReviewResponse("approve", edited_plan=_plan(edited_plan))

    @staticmethod
    def revise(feedback: Feedback) -> MagenticPlanReviewResponse:
        text = text_of(as_messages(feedback))
        if not text.strip():
            raise ValueError("revise() needs feedback: say what should be different")
        return MagenticPlanReviewResponse("revise", feedback=text)

    @staticmethod
    def reject(reason: str = "") -> MagenticPlanReviewResponse:
        return MagenticPlanReviewResponse("reject", feedback=reason)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Lets a JSON answer give the edited plan as a text."""
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(
            _checked, core_schema.no_info_before_validator_function(_from_json, handler(source))
        )


@dataclass(frozen=True, slots=True)
class MagenticPlanReviewRequest:
    """A plan that waits for a person's word.

    `is_stalled`: the team got nowhere with its plan; `current_progress` says how it stood. `plan` is then the new plan
    or, if `before_replan`, the one it is stuck with: approving goes on with it, revising asks for another.
    """

    plan: Plan
    facts: str = ""
    current_progress: MagenticProgressLedger | None = None
    is_stalled: bool = False
    before_replan: bool = False
    reviews_left: int | None = None
    """How often this plan can still be sent back; None if nobody counts."""
    request_id: str = ""

    def approve(self, edited_plan: Plan | str | None = None) -> MagenticPlanReviewResponse:
        """Go ahead, with this plan or with the edited one: a text, or a `Plan` with other steps."""
        return MagenticPlanReviewResponse.approve(edited_plan)

    def revise(self, feedback: Feedback) -> MagenticPlanReviewResponse:
        """Have the manager make another plan that heeds this, and show it."""
        return MagenticPlanReviewResponse.revise(feedback)

    def reject(self, reason: str = "") -> MagenticPlanReviewResponse:
        """Do not do it. The run ends with an explanation."""
        return MagenticPlanReviewResponse.reject(reason)


register_type(MagenticPlanReviewRequest, name="stepwell.MagenticPlanReviewRequest", immutable=True)
register_type(MagenticPlanReviewResponse, name="stepwell.MagenticPlanReviewResponse", immutable=True)


def _plan(given: Plan | str | None) -> Plan | None:
    if given is None:
        return None
    plan = Plan.parse(given) if isinstance(given, str) else given
    if not isinstance(plan, Plan):
        raise TypeError(f"edited_plan is a text or a Plan, not a {type(given).__qualname__}")
    if not any(re.search(r"\w", step.text) for step in plan.steps):
        raise ValueError("the edited plan has no step; to call the task off, reject it")
    return plan


def _from_json(data: Any) -> Any:
    if isinstance(data, Mapping) and isinstance(data.get("edited_plan"), str):
        return {**data, "edited_plan": _plan(data["edited_plan"])}
    return data


def _checked(response: MagenticPlanReviewResponse) -> MagenticPlanReviewResponse:
    """An answer that came as JSON has to say what one made by the methods has to."""
    if response.decision == "revise":
        return MagenticPlanReviewResponse.revise(response.feedback)
    _plan(response.edited_plan)
    return response
