"""How far a plan has come, by who has spoken."""

from __future__ import annotations

import pytest

from stepwell.cli.live_plan import PlanProgress
from stepwell.orchestrations import Plan, PlanStep

PLAN = Plan((PlanStep("find", "researcher"), PlanStep("write", "writer"), PlanStep("check", "researcher")))


def standings(progress: PlanProgress) -> list[str]:
    return [standing for _, standing in progress.steps]


def test_a_step_is_current_when_its_owner_is_asked_and_done_when_it_has_spoken() -> None:
    progress = PlanProgress(PLAN)

    progress.asked("researcher")
    assert standings(progress) == ["current", "open", "open"]

    progress.spoke("researcher")
    assert standings(progress) == ["done", "open", "open"]


def test_a_step_that_is_passed_over_stays_open() -> None:
    progress = PlanProgress(PLAN)

    progress.asked("writer")
    progress.spoke("writer")

    assert standings(progress) == ["open", "done", "open"]


def test_whoever_speaks_out_of_turn_ticks_a_step_of_its_own() -> None:
    progress = PlanProgress(PLAN)

    progress.asked("writer")
    progress.spoke("researcher")

    assert standings(progress) == ["done", "open", "open"]


def test_somebody_without_a_step_left_ticks_nothing() -> None:
    progress = PlanProgress.after(PLAN, ["writer", "writer", "stranger"])

    assert standings(progress) == ["open", "done", "open"]


def test_a_step_without_an_owner_is_anybodys() -> None:
    progress = PlanProgress.after(Plan((PlanStep("anything"),)), ["writer"])

    assert standings(progress) == ["done"]


@pytest.mark.parametrize(
    ("spoken", "asked", "focus"),
    [([], None, 0), (["researcher"], None, 1), (["researcher"], "writer", 1), (["researcher", "writer"], None, 2)],
)
def test_the_focus_is_on_what_is_being_done_or_comes_next(spoken: list[str], asked: str | None, focus: int) -> None:
    assert PlanProgress.after(PLAN, spoken, asked).focus == focus


def test_an_empty_plan_has_a_focus_too() -> None:
    assert PlanProgress().focus == 0
