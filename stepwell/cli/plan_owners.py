"""Who is to do the steps of a plan that a person has edited, and who in it is nobody of the team."""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepwell.checkpointing.checkpoint import EXECUTOR_STATE
from stepwell.checkpointing.storage.protocol import CheckpointStorage
from stepwell.cli.questions import Question
from stepwell.orchestrations.plan import Plan

_NAMED = re.compile(r"\s*(?P<name>[^:\n]{1,80}?)\s*:\s+\S")
_ALMOST = 0.7
"""How alike several words must be to a name of the team's to be taken for one; else they belong to the step."""


async def with_teams(questions: Iterable[Question], storage: CheckpointStorage) -> list[Question]:
    """The questions, those about plans with the names of everybody in the team, as the run's record has them."""
    return [await _with_team(question, storage) if question.kind == "plan" else question for question in questions]


async def _with_team(question: Question, storage: CheckpointStorage) -> Question:
    checkpoint = await storage.get_latest(run_id=question.run_id)
    if checkpoint is None:
        return question
    # Its content is read when it is first looked at, and that is not for the event loop to wait for.
    states = await asyncio.to_thread(lambda: checkpoint.state.get(EXECUTOR_STATE, {}))
    return replace(question, team=_members(states.get(question.asked_by)))


def _members(orchestrator_state: Any) -> tuple[str, ...]:
    heard = orchestrator_state.get("heard") if isinstance(orchestrator_state, Mapping) else None
    return tuple(heard) if isinstance(heard, Mapping) else ()


def warning_about(plan_text: str, question: Question) -> str | None:
    """What a person should know before an edited plan is followed: a step of nobody in the team has no owner."""
    team = question.team or question.data.plan.owners
    strangers = unknown_owners(plan_text, team)
    if not strangers:
        return None
    nobody = f"{' and '.join(strangers)} {'is' if len(strangers) == 1 else 'are'} not in the team"
    known = f"{'the team is' if question.team else 'the plan had steps for'} {', '.join(team)}"
    return f"{nobody} ({known}); the manager decides who does what has no owner"


def unknown_owners(plan_text: str, team: Sequence[str]) -> tuple[str, ...]:
    """Names that are written before a step like an owner's, and are nobody's in the team."""
    if not team:
        return ()
    steps = Plan.parse(plan_text, team).steps
    named = (found["name"] for step in steps if step.owner is None and (found := _NAMED.match(step.text)))
    return tuple(dict.fromkeys(name for name in named if _looks_like_a_name(name, team)))


def _looks_like_a_name(words: str, team: Sequence[str]) -> bool:
    return " " not in words or bool(difflib.get_close_matches(words, team, n=1, cutoff=_ALMOST))
