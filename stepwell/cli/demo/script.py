"""What the scripted models of the demo say. They answer from the conversation alone, as real models do.

The words come from the notes: the researcher really reads them with its tools, and the brief is made of what it found.
The manager goes by the plan in the conversation, so that a plan which a person has edited is the one that is followed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from stepwell.agents.chat import Message
from stepwell.orchestrations import prompts
from stepwell.orchestrations.plan import Plan, PlanStep
from stepwell.testing import calls

MEMBERS = ("researcher", "writer")

FACTS = """\
GIVEN: a one-page brief on stepwells, for a city council that thinks about restoring one
TO FIND: what stepwells are, two famous ones, why they decayed, what restoring them has brought (the notes have it)
TO WORK OUT: what the council should take from this
GUESSES: they store monsoon water (to be confirmed)"""

STEPS = (
    PlanStep("Read the notes and list the facts a council needs, with figures.", "researcher"),
    PlanStep("Write the brief from these facts, with a recommendation.", "writer"),
    PlanStep("Check the figures of the brief against the notes.", "researcher"),
)
HEED = "Heed what the person asked for: "
INSTRUCTIONS = {
    STEPS[0]: "Search the notes on stepwells, read what you find, and list the facts with figures.",
    STEPS[1]: "Write a one-page brief for the council from the researcher's facts. End with a recommendation.",
    STEPS[2]: "Check every figure in the brief against the notes, and say whether it can go out.",
}
REASONS = {
    STEPS[0]: "nothing is known yet but what the request says, and the researcher has the notes",
    STEPS[1]: "the facts are on the table, so the brief can be written",
    STEPS[2]: "figures that go to a council should be checked by whoever looked them up",
}


# --- the manager ------------------------------------------------------------------------------------------------------


def manager(messages: Sequence[Message]) -> str:
    """Facts, plan, ledgers, final answer: whichever the last message asks for."""
    asked = messages[-1].text
    if _begins(asked, prompts.FACTS) or _begins(asked, prompts.FACTS_UPDATE):
        return FACTS
    if _begins(asked, prompts.PLAN_REVISION):
        before, _, wish = asked.partition("and wants it changed:")
        wish = wish.rpartition("The members of the team:")[0].strip()
        return _as_json((*Plan.parse(before.partition("\n")[2], MEMBERS).steps, PlanStep(HEED + wish, "writer")))
    if "Reply with JSON" in asked:
        return _as_json(STEPS)
    if _begins(asked, prompts.PROGRESS_LEDGER):
        return _ledger(_plan(messages), sum(message.author_name in MEMBERS for message in messages))
    return _said_by("writer", messages) or _said_by("researcher", messages)


def _as_json(steps: Sequence[PlanStep]) -> str:
    return json.dumps({"steps": [{"owner": step.owner, "text": step.text} for step in steps]})


def _plan(messages: Sequence[Message]) -> tuple[PlanStep, ...]:
    """The plan the team was told last."""
    told = [message.text for message in messages if _begins(message.text, prompts.TASK_LEDGER)]
    return Plan.parse(told[-1].partition("The plan:\n")[2], MEMBERS).steps if told else STEPS


def _ledger(plan: Sequence[PlanStep], turns: int) -> str:
    done = turns >= len(plan)
    step = plan[min(turns, len(plan) - 1)]
    answers = {
        "is_request_satisfied": ("every step of the plan is done" if done else "work is left", done),
        "is_in_loop": ("each turn has been a new one", False),
        "is_progress_being_made": ("the team follows its plan", True),
        "next_speaker": (REASONS.get(step, "it is next in the plan"), step.owner or "writer"),
        "instruction_or_question": ("it follows from the plan", INSTRUCTIONS.get(step, step.text)),
    }
    return json.dumps({item: {"reason": reason, "answer": answer} for item, (reason, answer) in answers.items()})


# --- the team ---------------------------------------------------------------------------------------------------------


def researcher(messages: Sequence[Message]) -> Any:
    """Searches, reads everything that was found at once, then reports; asked to check a draft, it checks."""
    draft, asked = _said_by("writer", messages), _last_from_others(messages)
    if draft and "check" in asked.lower():
        return _checked(draft, messages)
    results = [content.result for message in messages if message.role == "tool" for content in message.contents]
    if not results:
        return calls("search_notes", query="stepwell")
    if len(results) == 1:
        return tuple(calls("read_note", title=title) for title in json.loads(str(results[0])))
    points = [line for text in results[1:] for line in _points(str(text))]
    return "What the notes say:\n" + "\n".join(points)


def _checked(draft: str, messages: Sequence[Message]) -> str:
    known = "\n".join(message.text for message in messages if message.author_name == "researcher")
    points = _points(draft)
    good = sum(point in known for point in points)
    verdict = "It can go out." if good == len(points) else "It can't go out yet."
    return f"{good} of {len(points)} statements are in the notes as they stand in the brief. {verdict}"


def writer(messages: Sequence[Message]) -> str:
    """A brief of what the researcher found, and of what a person asked for besides."""
    picked = [line for line in _found(messages) if any(char.isdigit() for char in line)][:8]
    wishes = _wishes(messages) if HEED in _last_from_others(messages) else []
    return "\n".join(
        [
            "# Stepwells: a brief for the council",
            "",
            "Stepwells store monsoon water, cool the places around them, and draw people. What is known:",
            "",
            *(picked or ["- nothing that the researcher has found"]),
            "",
            "Recommendation: survey the city's stepwell, clear it of debris, and plan to remove silt every few years.",
            *(["", f"To be settled before the vote, as the council asked: {' '.join(wishes)}"] if wishes else []),
        ]
    )


def _wishes(messages: Sequence[Message]) -> list[str]:
    """What a person asked for, however often the team was told."""
    told = (line.partition(HEED)[2] for message in messages for line in message.text.splitlines())
    return list(dict.fromkeys(filter(None, told)))


def _found(messages: Sequence[Message]) -> list[str]:
    return [line for message in messages if message.author_name == "researcher" for line in _points(message.text)]


def _points(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("- ")]


def _begins(text: str, prompt: str) -> bool:
    return text.startswith(prompt.splitlines()[0])


def _last_from_others(messages: Sequence[Message]) -> str:
    return next((message.text for message in reversed(messages) if message.role == "user"), "")


def _said_by(name: str, messages: Sequence[Message]) -> str:
    said = [message.text for message in messages if message.author_name == name]
    return said[-1].removeprefix(f"{name}:\n") if said else ""
