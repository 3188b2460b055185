"""What the scripted manager of samples 20 and 32 says. It answers from the conversation alone, as a real model does."""

from __future__ import annotations

import json
from collections.abc import Sequence

from stepwell import Message
from stepwell.orchestrations import prompts

FACTS = "TO FIND: what stepwells are and what restoring them has brought. TO WORK OUT: what the council should do."
STEPS = [
    {"owner": "researcher", "text": "Read the notes and list the facts a council needs, with figures."},
    {"owner": "writer", "text": "Write the brief from these facts, with a recommendation."},
    {"owner": "researcher", "text": "Check the figures of the brief against the notes."},
]


def manager(messages: Sequence[Message]) -> str:
    """Facts, plan, ledgers, final answer: whichever the last message asks for."""
    asked = messages[-1].text
    if asked.startswith(prompts.FACTS.splitlines()[0]):
        return FACTS
    if asked.startswith(prompts.PROGRESS_LEDGER.splitlines()[0]):
        return _ledger(sum(message.author_name in ("researcher", "writer") for message in messages))
    if "Reply with JSON" in asked:
        return json.dumps({"steps": STEPS})
    written = [message.text for message in messages if message.author_name == "writer"]
    return written[-1].removeprefix("writer:\n")


def _ledger(turns: int) -> str:
    """Step by step through the plan, and done when everybody has had their turn."""
    done = turns >= len(STEPS)
    step = STEPS[min(turns, len(STEPS) - 1)]
    answers = {
        "is_request_satisfied": done,
        "is_in_loop": False,
        "is_progress_being_made": True,
        "next_speaker": step["owner"],
        "instruction_or_question": step["text"],
    }
    return json.dumps({item: {"reason": "so says the plan", "answer": answer} for item, answer in answers.items()})
