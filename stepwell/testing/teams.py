"""A manager that needs no model: for tests, examples and documentation of teams."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from stepwell.agents.chat import Message
from stepwell.orchestrations import prompts
from stepwell.orchestrations.plan import Plan, PlanStep
from stepwell.testing.models import ScriptedChatClient


def scripted_manager(
    *steps: tuple[str, str], answer: str, facts: str = "Nothing is known yet.", model: str = "scripted"
) -> ScriptedChatClient:
    """A manager's model that plans these steps (who, what), has them done in turn and ends with `answer`.

    It goes by the conversation alone, as a real model does: made anew in another process it goes on where it was, and
    what it has done is the plan that was approved, edited or not. It knows the standard manager's own prompts only.
    """
    plan = _json({"steps": [{"owner": owner, "text": text} for owner, text in steps]})
    planned = Plan(tuple(PlanStep(text, owner) for owner, text in steps))

    def reply(messages: Sequence[Message]) -> str:
        asked = messages[-1].text
        if _is(asked, prompts.FACTS) or _is(asked, prompts.FACTS_UPDATE):
            return facts
        if "Reply with JSON" in asked:
            return plan
        if _is(asked, prompts.PROGRESS_LEDGER):
            return _ledger(messages, planned)
        if _is(asked, prompts.FINAL_ANSWER):
            return answer
        raise AssertionError(f"scripted_manager knows the standard prompts only, and was asked {asked[:200]!r}")

    return ScriptedChatClient(reply, model=model)


def scripted_ledger(speaker: str, instruction: str, *, satisfied: bool = False, progress: bool = True) -> str:
    """A progress ledger as a manager's model writes it, for scripts of your own."""
    answers = {
        "is_request_satisfied": satisfied,
        "is_in_loop": False,
        "is_progress_being_made": progress,
        "next_speaker": speaker,
        "instruction_or_question": instruction,
    }
    return _json({item: {"reason": "so it is", "answer": answer} for item, answer in answers.items()})


def _ledger(messages: Sequence[Message], planned: Plan) -> str:
    """Whose turn it is: the plan's steps one after the other, one for each reply there has been."""
    named = re.search(r"One of: (.*)", messages[-1].text)
    names = [name.strip() for name in named[1].split(",")] if named else list(planned.owners)
    plan = _approved(messages, names) or planned
    turn = sum(message.author_name in names for message in messages)
    step = plan.steps[min(turn, len(plan.steps) - 1)]
    return scripted_ledger(step.owner or names[0], step.text, satisfied=turn >= len(plan.steps))


def _approved(messages: Sequence[Message], names: Sequence[str]) -> Plan | None:
    """The plan as the team was told it, which a person may have edited."""
    told = [message.text for message in messages if _is(message.text, prompts.TASK_LEDGER)]
    return Plan.parse(told[-1].rpartition("The plan:")[2], names) if told else None


def _is(text: str, prompt: str) -> bool:
    return text.lstrip().startswith(prompt.splitlines()[0])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
