"""How far a team has come with its plan, judged by who has spoken. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from stepwell.orchestrations.plan import Plan, PlanStep

Standing = Literal["open", "current", "done"]


@dataclass(slots=True)
class PlanProgress:
    """A plan whose steps are ticked as their owners speak.

    Nobody records which step a turn belongs to, so a turn counts for the first open step of whoever speaks. A step
    that was passed over stays open, and that is what the view shows.
    """

    plan: Plan = field(default_factory=Plan)
    done: set[int] = field(default_factory=set)
    current: int | None = None

    def asked(self, name: str) -> None:
        """This participant was asked to speak."""
        self.current = self._open_step_of(name)

    def spoke(self, name: str) -> None:
        """This participant has spoken."""
        step = self.current if self.current in self._steps_for(name) else self._open_step_of(name)
        if step is not None:
            self.done.add(step)
        self.current = None

    def standing(self, index: int) -> Standing:
        if index in self.done:
            return "done"
        return "current" if index == self.current else "open"

    @property
    def steps(self) -> list[tuple[PlanStep, Standing]]:
        return [(step, self.standing(index)) for index, step in enumerate(self.plan.steps)]

    @property
    def focus(self) -> int:
        """The step to look at: the one being worked on, or the first that is open."""
        if self.current is not None:
            return self.current
        still_open = (index for index in range(len(self.plan.steps)) if index not in self.done)
        return next(still_open, max(0, len(self.plan.steps) - 1))

    @classmethod
    def after(cls, plan: Plan, speakers: Iterable[str], asked: str | None = None) -> PlanProgress:
        """The progress of a plan that was made before this process began, from who has spoken since."""
        progress = cls(plan)
        for name in speakers:
            progress.spoke(name)
        if asked is not None:
            progress.asked(asked)
        return progress

    def _steps_for(self, name: str) -> list[int]:
        return [index for index, step in enumerate(self.plan.steps) if step.owner in (name, None)]

    def _open_step_of(self, name: str) -> int | None:
        left = [index for index in self._steps_for(name) if index not in self.done]
        own = (index for index in left if self.plan.steps[index].owner == name)
        return next(own, left[0] if left else None)
