"""A researcher/writer team on scripted models, for tests. Each model keeps what it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepwell import Agent, CheckpointStorage, Message, Workflow
from stepwell.orchestrations import MagenticBuilder
from stepwell.testing import ScriptedChatClient

TASK = "Draft a brief about stepwells."
FACTS = "GIVEN: a brief is wanted"
STEPS = [
    {"owner": "researcher", "text": "Collect the facts."},
    {"owner": "writer", "text": "Write the brief."},
]
PLAN = json.dumps({"steps": STEPS})


def ledger(
    speaker: str = "researcher",
    instruction: str = "Go on.",
    *,
    satisfied: Any = False,
    loop: Any = False,
    progress: Any = True,
) -> str:
    """A well-formed progress ledger."""
    answers = {
        "is_request_satisfied": satisfied,
        "is_in_loop": loop,
        "is_progress_being_made": progress,
        "next_speaker": speaker,
        "instruction_or_question": instruction,
    }
    return json.dumps({item: {"reason": f"about {item}", "answer": answer} for item, answer in answers.items()})


DONE = ledger(satisfied=True)
STALL = ledger(progress=False)


@dataclass
class Team:
    """A team's models and its workflow; `build` makes the workflow anew, as another process would."""

    manager: ScriptedChatClient
    researcher: ScriptedChatClient
    writer: ScriptedChatClient
    options: dict[str, Any] = field(default_factory=dict)

    def build(self, storage: CheckpointStorage | None = None, **options: Any) -> Workflow:
        return MagenticBuilder(
            participants=[
                Agent(self.researcher, "You look things up.", name="researcher", description="Looks things up"),
                Agent(self.writer, "You write.", name="writer", description="Writes"),
            ],
            manager_agent=Agent(self.manager, "You manage.", name="manager"),
            checkpoint_storage=storage,
            **{**self.options, **options},
        ).build()

    @property
    def asked(self) -> list[str]:
        """The purposes of the manager's calls so far."""
        return [purpose(call.messages) for call in self.manager.asked]


def purpose(messages: Sequence[Message]) -> str:
    """What the manager was asked for, judging by the words of the prompt."""
    text = messages[-1].text
    for words, name in (
        ("take stock", "facts"),
        ("list anew", "facts again"),
        ("Make a short plan", "plan"),
        ("make a new plan", "plan again"),
        ("plan anew", "plan revised"),
        ("Answer five questions", "ledger"),
        ("can't be used", "ledger corrected"),
        ("no member of the team has said anything", "ledger doubted"),
        ("Write the answer", "final"),
        ("no steps in that reply", "plan corrected"),
    ):
        if words in text:
            return name
    return text


def team(*ledgers: str, final: str = "The brief.", before: Sequence[str] = (FACTS, PLAN), **options: Any) -> Team:
    """A team whose manager answers: facts, plan, these ledgers, and the final answer."""

    def spoken(who: str) -> Callable[[Sequence[Message]], str]:
        return lambda messages: f"{who} {len(messages)}"

    return Team(
        manager=ScriptedChatClient([*before, *ledgers, final]),
        researcher=ScriptedChatClient(spoken("found")),
        writer=ScriptedChatClient(spoken("wrote")),
        options=options,
    )


def usual(**options: Any) -> Team:
    """Researcher, then writer, then done."""
    return team(ledger("researcher", "Look it up."), ledger("writer", "Write it."), DONE, **options)
