"""A plan that takes another one's place: what is different is shown, and only that."""

from __future__ import annotations

import pytest

from stepwell.cli.live_changes import changes
from stepwell.cli.live_entries import Planned
from stepwell.cli.live_lines import plain_lines
from stepwell.cli.live_look import Look
from stepwell.cli.live_transcript import lines_of
from stepwell.orchestrations import Plan, PlanStep

FIND, WRITE, CHECK = PlanStep("find", "researcher"), PlanStep("write", "writer"), PlanStep("check", "researcher")
POEM = PlanStep("write a poem", "writer")
PLAN = Plan((FIND, WRITE, CHECK))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param((FIND, WRITE, CHECK, POEM), ["kept 1", "kept 2", "kept 3", "new 4"], id="one more"),
        pytest.param((FIND, CHECK), ["kept 1", "gone 2", "kept 2"], id="one less"),
        pytest.param((FIND, POEM, CHECK), ["kept 1", "gone 2", "new 2", "kept 3"], id="one replaced"),
        pytest.param((POEM,), ["gone 1", "gone 2", "gone 3", "new 1"], id="all replaced"),
        pytest.param((FIND, WRITE, CHECK), ["kept 1", "kept 2", "kept 3"], id="the same"),
        pytest.param((FIND, PlanStep("write", "researcher"), CHECK), ["kept 1", "gone 2", "new 2", "kept 3"],
                     id="another owner"),
    ],
)  # fmt: skip
def test_every_step_of_both_plans_is_accounted_for(after: tuple[PlanStep, ...], expected: list[str]) -> None:
    assert [f"{change.kind} {change.number}" for change in changes(PLAN, Plan(after))] == expected


def transcript(entry: Planned) -> list[str]:
    return [str(line).rstrip() for line in lines_of(entry, Look(), 80)]


def test_the_first_plan_is_shown_whole() -> None:
    assert transcript(Planned(PLAN, "manager")) == [
        "manager plans 3 steps",
        "  1 researcher  find",
        "  2 writer      write",
        "  3 researcher  check",
    ]


def test_of_a_revised_plan_only_what_is_different_is_shown() -> None:
    assert transcript(Planned(Plan((FIND, POEM, CHECK)), "manager", PLAN)) == [
        "manager has another plan of 3 steps, 2 as before",
        "- 2 writer  write",
        "+ 2 writer  write a poem",
    ]


def test_a_plan_with_nothing_of_the_one_before_is_shown_whole() -> None:
    assert transcript(Planned(Plan((POEM,)), "manager", PLAN)) == [
        "manager has another plan of 1 step",
        "  1 writer  write a poem",
    ]


def test_a_log_has_the_whole_plan_with_its_changes_marked() -> None:
    assert list(plain_lines(Planned(Plan((FIND, POEM)), "manager", Plan((FIND, WRITE))))) == [
        "manager has another plan:",
        "  1. researcher: find",
        "- 2. writer: write",
        "+ 2. writer: write a poem",
    ]
