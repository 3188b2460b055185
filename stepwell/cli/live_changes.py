"""What is different about a plan that takes another one's place. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from stepwell.orchestrations.plan import Plan, PlanStep


@dataclass(frozen=True, slots=True)
class Change:
    """A step of one of two plans, with its number there."""

    kind: Literal["kept", "new", "gone"]
    number: int
    step: PlanStep


def changes(before: Plan, after: Plan) -> list[Change]:
    """Every step of both plans, in the order to read them: a step that is gone stands before what replaces it."""
    return list(_changes(before, after))


def _changes(before: Plan, after: Plan) -> Iterator[Change]:
    matching = SequenceMatcher(None, before.steps, after.steps, autojunk=False)
    for kind, start, end, new_start, new_end in matching.get_opcodes():
        if kind != "equal":
            yield from (Change("gone", index + 1, before.steps[index]) for index in range(start, end))
        told: Literal["kept", "new"] = "kept" if kind == "equal" else "new"
        yield from (Change(told, index + 1, after.steps[index]) for index in range(new_start, new_end))
