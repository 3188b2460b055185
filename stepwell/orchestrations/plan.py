"""A plan that programs can read and people can edit: steps, each with its owner. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepwell.checkpointing.registry import register_type
from stepwell.orchestrations.lenient import objects_in
from stepwell.orchestrations.names import matched_name

_BULLET = re.compile(r"^\s*(?:[-*•–]|\(?\d{1,3}[.):]|[Ss]tep\s+\d{1,3}\s*[.:)-])\s+(?P<text>.*\S)\s*$")
_OWNED = re.compile(
    r"^\s*[\[(*_`]{0,3}(?P<owner>[^:\]\)]{1,80}?)[\])*_`]{0,3}\s*(?::|[–—]|\s-)\s*[*_]{0,2}\s*(?P<text>\S.*)$",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class PlanStep:
    """Something to be done, and who is to do it; without an owner the manager decides when it comes to it."""

    text: str
    owner: str | None = None

    def __str__(self) -> str:
        return f"{self.owner}: {self.text}" if self.owner else self.text


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps by which a team means to do its task. `text` shows it to people, `Plan.parse` reads it back."""

    steps: tuple[PlanStep, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(_step(step) for step in self.steps))

    @property
    def text(self) -> str:
        """One numbered line per step, with its owner."""
        return "\n".join(f"{number}. {step}" for number, step in enumerate(self.steps, 1))

    @property
    def owners(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(step.owner for step in self.steps if step.owner))

    def added(self, text: str, owner: str | None = None, *, at: int | None = None) -> Plan:
        """With one more step, at the end or before step number `at` (from 0)."""
        steps = list(self.steps)
        steps.insert(len(steps) if at is None else at, PlanStep(text, owner))
        return replace(self, steps=tuple(steps))

    def without(self, index: int) -> Plan:
        """Without the step at `index`."""
        steps = list(self.steps)
        del steps[index]
        return replace(self, steps=tuple(steps))

    def reordered(self, order: Sequence[int]) -> Plan:
        """The steps in another order; those that `order` leaves out are gone."""
        return replace(self, steps=tuple(self.steps[index] for index in order))

    def assigned(self, names: Collection[str]) -> Plan:
        """With every owner one of `names`, found in the step's text where a person wrote it there."""
        return Plan(tuple(_assigned(step, names) for step in self.steps))

    @classmethod
    def parse(cls, text: str, names: Collection[str] = ()) -> Plan:
        """The plan in a reply or in a person's words: JSON with steps, or one bullet, number or line per step."""
        return _from_json(text, names) or _from_text(text, names)

    def __bool__(self) -> bool:
        return bool(self.steps)

    def __str__(self) -> str:
        return self.text


register_type(PlanStep, name="stepwell.PlanStep", immutable=True)
register_type(Plan, name="stepwell.Plan", immutable=True)


def plan_schema(names: Sequence[str]) -> dict[str, Any]:
    """The JSON schema a plan is asked for with."""
    step = {
        "type": "object",
        "properties": {
            "owner": {"type": "string", "enum": list(names), "description": "Who does it"},
            "text": {"type": "string", "description": "What is to be done, in one or two sentences"},
        },
        "required": ["owner", "text"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"steps": {"type": "array", "items": step}},
        "required": ["steps"],
        "additionalProperties": False,
    }


def _step(given: Any) -> PlanStep:
    """Answers come as JSON too, so a step may be a dict or a bare text."""
    if isinstance(given, PlanStep):
        return given
    if isinstance(given, str):
        return PlanStep(given)
    if isinstance(given, dict):
        return PlanStep(**given)
    raise TypeError(f"a plan holds PlanSteps, not a {type(given).__qualname__}")


# --- reading ----------------------------------------------------------------------------------------------------------


def _from_json(text: str, names: Collection[str]) -> Plan | None:
    loose: list[PlanStep] = []
    for found in objects_in(text):
        listed = found.get("steps", found.get("plan"))
        if isinstance(listed, dict):
            listed = listed.get("steps")
        if isinstance(listed, list):
            steps = [step for item in listed if (step := _json_step(item, names)) is not None]
            if steps:
                return Plan(tuple(steps))
        if (step := _json_step(found, names)) is not None:
            loose.append(step)  # a bare list of steps
    return Plan(tuple(loose)) if loose else None


def _json_step(item: Any, names: Collection[str]) -> PlanStep | None:
    if isinstance(item, str):
        return _owned(item, names) if item.strip() else None
    if not isinstance(item, dict):
        return None
    fields = {str(key).casefold(): value for key, value in item.items()}
    text = _first(fields, ("text", "step", "task", "action", "description", "instruction"))
    if text is None:
        return None
    owner = _first(fields, ("owner", "agent", "assignee", "who", "name", "participant"))
    known = matched_name(owner, names) if owner and names else owner
    return PlanStep(text, known) if known or not owner else PlanStep(f"{owner}: {text}")


def _first(fields: dict[str, Any], keys: Iterable[str]) -> str | None:
    return next((value.strip() for key in keys if isinstance(value := fields.get(key), str) and value.strip()), None)


def _from_text(text: str, names: Collection[str]) -> Plan:
    """Bullets are steps and what is indented below them belongs to them; without bullets every line is a step."""
    lines = [line for line in text.splitlines() if line.strip() and not line.strip().startswith("```")]
    if not any(map(_BULLET.match, lines)):
        return Plan(tuple(_owned(line.strip(), names) for line in lines))
    steps: list[str] = []
    top = min(len(line) - len(line.lstrip()) for line in lines if _BULLET.match(line))
    for line in lines:
        bullet = _BULLET.match(line)
        indent = len(line) - len(line.lstrip())
        if bullet is not None and indent <= top:
            steps.append(bullet["text"])
        elif steps and (indent > top or bullet is not None):
            steps[-1] += "\n" + line.strip()
    return Plan(tuple(_owned(step, names) for step in steps))


def _owned(text: str, names: Collection[str]) -> PlanStep:
    match = _OWNED.match(text)
    owner = matched_name(match["owner"], names) if match is not None and names else None
    if match is None or owner is None or len(match["owner"].split()) > 5:
        return PlanStep(text)
    return PlanStep(match["text"], owner)


def _assigned(step: PlanStep, names: Collection[str]) -> PlanStep:
    if step.owner is None:
        return _owned(step.text, names)
    known = matched_name(step.owner, names)
    return PlanStep(step.text, known) if known else PlanStep(str(step))
