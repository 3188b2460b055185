"""What the manager is asked. Every prompt can be replaced; the names in braces are filled in.

The order of what is sent never changes from one call to the next: the conversation first, the question last. So a
provider's prompt cache finds the same beginning each time.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from stepwell.errors import WorkflowValidationError

FACTS: Final = """\
A team is about to work on this request:

{task}

Before anybody starts, take stock, from the request and from memory alone. Use these four headings, with a few short
points under each, and write nothing else:

GIVEN: names, figures and conditions that the request states
TO FIND: what has to be looked up, and where it might be found
TO WORK OUT: what has to be derived, compared or computed
GUESSES: what you recall or suspect, marked as uncertain
"""

PLAN: Final = """\
The members of the team:

{team}

Make a short plan for the request: the fewest steps that will do, each given to the member best suited for it. Leave out
members who are not needed. Reply with JSON: {{"steps": [{{"owner": "<member>", "text": "<what is to be done>"}}]}}
"""

TASK_LEDGER: Final = """\
The request we are working on:

{task}

The team:

{team}

What we know:

{facts}

The plan:

{plan}
"""

FACTS_UPDATE: Final = """\
The work above is to go on with better knowledge. The request is:

{task}

This is the list of what was known before:

{old_facts}

Write the list anew, under the same headings: move what has been confirmed, correct what was wrong, add what was learned
and at least one better guess. Write nothing else.
"""

PLAN_UPDATE: Final = """\
The members of the team:

{team}

If something went wrong above, say to yourself what it was, then make a new plan for the request that avoids it. Do not
repeat what is done and needs no repeating. Reply with JSON: {{"steps": [{{"owner": "<member>", "text": "<what is to be
done>"}}]}}
"""

PLAN_REVISION: Final = """\
A person looked at this plan:

{plan}

and wants it changed:

{feedback}

The members of the team:

{team}

Make the plan anew so that it does what the person asks. Reply with JSON: {{"steps": [{{"owner": "<member>", "text":
"<what is to be done>"}}]}}
"""

PROGRESS_LEDGER: Final = """\
Look at where the team stands with the request above. Answer five questions, each with a short reason:

- is_request_satisfied: is all that was asked for there, in the conversation above? Not if work is still to be done.
- is_in_loop: are the same requests or replies coming again and again?
- is_progress_being_made: did the latest replies add something of value, or is it the beginning?
- next_speaker: who should speak next? One of: {names}
- instruction_or_question: what exactly should they do? Give them what they need to know.

Reply with one JSON object and nothing else:
{{"is_request_satisfied": {{"reason": "<why>", "answer": <true or false>}},
 "is_in_loop": {{"reason": "<why>", "answer": <true or false>}},
 "is_progress_being_made": {{"reason": "<why>", "answer": <true or false>}},
 "next_speaker": {{"reason": "<why>", "answer": "<a name>"}},
 "instruction_or_question": {{"reason": "<why>", "answer": "<what they are to do now, in one or two sentences>"}}}}
"""

FINAL_ANSWER: Final = """\
The work on this request has ended:

{task}

{ending}

Write the answer for the person who asked, from what the team has found and made above. Speak to that person, not to the
team, and do not mention the team's inner workings.
"""

LEDGER_AGAIN: Final = """\
That reply can't be used. {problem} Reply again with the complete, corrected JSON object and nothing else."""

NOBODY_HAS_SPOKEN: Final = """\
You say that the request is satisfied, but no member of the team has said anything yet. Look again: is the answer really
written in the conversation above? If not, choose who speaks first. Reply with the complete JSON object only."""

PLAN_AGAIN: Final = "There are no steps in that reply. Reply again with the JSON object only, with one step at least."

SATISFIED: Final = "The request is satisfied."

_ALLOWED: Final = {
    "facts": {"task", "team"},
    "plan": {"team", "names", "task"},
    "task_ledger": {"task", "team", "facts", "plan"},
    "facts_update": {"task", "old_facts", "team"},
    "plan_update": {"team", "names", "task"},
    "plan_revision": {"plan", "feedback", "team", "names", "task"},
    "progress_ledger": {"task", "team", "names"},
    "final_answer": {"task", "ending"},
}


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of one manager."""

    facts: str = FACTS
    plan: str = PLAN
    task_ledger: str = TASK_LEDGER
    facts_update: str = FACTS_UPDATE
    plan_update: str = PLAN_UPDATE
    plan_revision: str = PLAN_REVISION
    progress_ledger: str = PROGRESS_LEDGER
    final_answer: str = FINAL_ANSWER

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name))

    @classmethod
    def of(cls, replaced: Mapping[str, str | None]) -> Prompts:
        """The standard prompts but for those given."""
        return cls(**{name: text for name, text in replaced.items() if text is not None})


def _check(name: str, text: str) -> None:
    try:
        used = {field for _, field, _, _ in string.Formatter().parse(text) if field is not None}
    except ValueError as error:
        raise WorkflowValidationError(
            f"the {name} prompt can't be filled in: {error}; write {{{{ for a brace"
        ) from error
    unknown = sorted(used - _ALLOWED[name])
    if unknown:
        allowed = ", ".join(f"{{{field}}}" for field in sorted(_ALLOWED[name]))
        raise WorkflowValidationError(
            f"the {name} prompt asks for {{{unknown[0]}}}, which is not known there; "
            f"use {allowed}, and {{{{ for a brace"
        )
