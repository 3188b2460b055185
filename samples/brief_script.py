"""What the scripted models of sample 20 say. They answer from the conversation alone, as real models do.

The words come from the notes: the researcher really reads them with its tools, and the brief is made of what it found.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from stepwell import Message
from stepwell.orchestrations import prompts
from stepwell.testing import calls

FACTS = """\
GIVEN: a one-page brief on stepwells, for a city council that thinks about restoring one
TO FIND: what stepwells are, two famous ones, why they decayed, what restoring them has brought (the notes have it)
TO WORK OUT: what the council should take from this
GUESSES: they store monsoon water (to be confirmed)"""

STEPS = [
    {"owner": "researcher", "text": "Read the notes and list the facts a council needs, with figures."},
    {"owner": "writer", "text": "Write the brief from these facts, with a recommendation."},
    {"owner": "researcher", "text": "Check the figures of the brief against the notes."},
]
INSTRUCTIONS = [
    ("researcher", "Search the notes on stepwells, read what you find, and list the facts with figures."),
    ("writer", "Write a one-page brief for the council from the researcher's facts. End with a recommendation."),
    ("researcher", "Check every figure in the brief against the notes, and say whether it can go out."),
]


def manager(messages: Sequence[Message]) -> str:
    """Facts, plan, ledgers, final answer: whichever the last message asks for."""
    asked = messages[-1].text
    if _begins(asked, prompts.FACTS) or _begins(asked, prompts.FACTS_UPDATE):
        return FACTS
    if _begins(asked, prompts.PLAN_REVISION):
        wish = asked.split("and wants it changed:")[1].split("The members of the team:")[0].strip()
        heeded = {"owner": "writer", "text": f"Heed what the person asked for: {wish}"}
        return json.dumps({"steps": [*STEPS, heeded]})
    if "Reply with JSON" in asked:
        return json.dumps({"steps": STEPS})
    if _begins(asked, prompts.PROGRESS_LEDGER):
        return _ledger(sum(message.author_name in ("researcher", "writer") for message in messages))
    return _said_by("writer", messages)


def _ledger(turns: int) -> str:
    done = turns >= len(INSTRUCTIONS)
    speaker, instruction = INSTRUCTIONS[min(turns, len(INSTRUCTIONS) - 1)]
    answers = {
        "is_request_satisfied": ("the brief is written and checked" if done else "work is left", done),
        "is_in_loop": ("each turn has been a new one", False),
        "is_progress_being_made": ("the team follows its plan", True),
        "next_speaker": ("it is next in the plan", speaker),
        "instruction_or_question": ("it follows from the plan", instruction),
    }
    return json.dumps({item: {"reason": reason, "answer": answer} for item, (reason, answer) in answers.items()})


def researcher(messages: Sequence[Message]) -> Any:
    """Searches, reads everything that was found at once, then reports; the second time it checks."""
    if "Check every figure" in _last_from_others(messages):
        draft = _said_by("writer", messages)
        known = "\n".join(message.text for message in messages if message.author_name == "researcher")
        points = [line for line in draft.splitlines() if line.startswith("- ")]
        good = sum(point in known for point in points)
        return f"{good} of {len(points)} statements are in the notes as they stand in the brief. It can go out."
    results = [content.result for message in messages if message.role == "tool" for content in message.contents]
    if not results:
        return calls("search_notes", query="stepwell")
    if len(results) == 1:
        return tuple(calls("read_note", title=title) for title in json.loads(results[0]))
    points = [line for text in results[1:] for line in str(text).splitlines() if line.startswith("- ")]
    return "What the notes say:\n" + "\n".join(points)


def writer(messages: Sequence[Message]) -> str:
    """A brief of what the researcher found."""
    found = [line for line in _said_by("researcher", messages).splitlines() if line.startswith("- ")]
    picked = [line for line in found if any(char.isdigit() for char in line)][:8]
    return "\n".join(
        [
            "# Stepwells: a brief for the council",
            "",
            "Stepwells store monsoon water, cool the places around them, and draw people. What is known:",
            "",
            *picked,
            "",
            "Recommendation: survey the city's stepwell, clear it of debris, and plan to remove silt every few years.",
        ]
    )


def _begins(text: str, prompt: str) -> bool:
    return text.startswith(prompt.splitlines()[0])


def _last_from_others(messages: Sequence[Message]) -> str:
    return next((m.text for m in reversed(messages) if m.role == "user"), "")


def _said_by(name: str, messages: Sequence[Message]) -> str:
    said = [message.text for message in messages if message.author_name == name]
    return said[-1].removeprefix(f"{name}:\n") if said else ""
