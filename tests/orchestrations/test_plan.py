"""Plans: from replies and from people, to text and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.orchestrations import Plan, PlanStep
from stepwell.orchestrations.names import matched_name

NAMES = ("researcher", "writer")
EXPECTED = Plan((PlanStep("Collect the facts.", "researcher"), PlanStep("Write the brief.", "writer")))
STEPS = [{"owner": "researcher", "text": "Collect the facts."}, {"owner": "writer", "text": "Write the brief."}]


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(json.dumps({"steps": STEPS}), id="as asked for"),
        pytest.param(f"```json\n{json.dumps({'steps': STEPS}, indent=1)}\n```", id="in a fence"),
        pytest.param(f"Here you go: {json.dumps(STEPS)}", id="a bare list"),
        pytest.param(str({"steps": STEPS}), id="single quotes"),
        pytest.param(json.dumps({"plan": {"steps": STEPS}}), id="nested"),
        pytest.param(
            json.dumps({"steps": ["Researcher: Collect the facts.", "writer: Write the brief."]}), id="texts for steps"
        ),
        pytest.param(
            '{"steps": [{"agent": "Researcher", "task": "Collect the facts."}, '
            '{"agent": "WRITER", "task": "Write the brief."}]}',
            id="other words",
        ),
        pytest.param("1. researcher: Collect the facts.\n2. writer: Write the brief.", id="numbered"),
        pytest.param("1) Researcher - Collect the facts.\n2) Writer - Write the brief.", id="dashes"),
        pytest.param("- **researcher**: Collect the facts.\n- **writer**: Write the brief.", id="bold bullets"),
        pytest.param("- [researcher]: Collect the facts.\n- [writer]: Write the brief.", id="bracketed"),
        pytest.param("My plan:\n\n* researcher: Collect the facts.\n* writer: Write the brief.\n\nGood?", id="prose"),
        pytest.param("Step 1: researcher: Collect the facts.\nStep 2: writer: Write the brief.", id="steps"),
        pytest.param("researcher: Collect the facts.\nwriter: Write the brief.", id="lines"),
    ],
)
def test_a_plan_is_found_in_a_reply(reply: str) -> None:
    assert Plan.parse(reply, NAMES) == EXPECTED


def test_a_step_of_nobody_on_the_team_keeps_its_words() -> None:
    assert Plan.parse("- designer: Draw it.", NAMES) == Plan((PlanStep("designer: Draw it."),))


def test_what_is_indented_belongs_to_the_step_above() -> None:
    plan = Plan.parse("1. writer: Write it:\n   - short\n   - clear\n2. writer: Send it.", NAMES)

    assert [step.text for step in plan.steps] == ["Write it:\n- short\n- clear", "Send it."]


@pytest.mark.parametrize("nothing", ["", "  \n", "{}", '{"steps": []}'])
def test_nothing_is_no_plan(nothing: str) -> None:
    assert not Plan.parse(nothing, NAMES).steps or nothing.startswith("{")


def test_a_plan_can_be_edited() -> None:
    plan = EXPECTED.added("Check it.", "researcher").reordered([2, 0, 1]).without(1)

    assert plan.text == "1. researcher: Check it.\n2. writer: Write the brief."


def test_owners_that_a_person_wrote_are_found() -> None:
    assert Plan(("Researcher: look", PlanStep("write", "WRITER"))).assigned(NAMES) == Plan(  # type: ignore[arg-type]
        (PlanStep("look", "researcher"), PlanStep("write", "writer"))
    )


words = st.text(alphabet="abcdefghij KLM", min_size=1, max_size=30).map(str.strip).filter(bool)


@given(st.lists(st.builds(PlanStep, words, st.sampled_from(NAMES)), min_size=1, max_size=8))
def test_a_plan_survives_its_text(steps: list[PlanStep]) -> None:
    plan = Plan(tuple(steps))

    assert Plan.parse(plan.text, NAMES) == plan


@pytest.mark.parametrize(
    ("written", "names", "meant"),
    [
        pytest.param("Data Analyst", ("data_analyst", "analyst"), "data_analyst", id="the longer of two"),
        pytest.param("analyst", ("data_analyst", "analyst"), "analyst", id="exactly"),
        pytest.param("re", ("researcher", "reviewer"), None, id="too short a beginning"),
        pytest.param("rese", ("researcher", "reviewer"), "researcher", id="a beginning only one has"),
        pytest.param("A", ("a", "A"), "A", id="case decides when it must"),
        pytest.param("Ab", ("ab", "AB"), None, id="two that differ in case only"),
        pytest.param("  ", NAMES, None, id="nothing"),
    ],
)
def test_who_is_meant(written: str, names: tuple[str, ...], meant: str | None) -> None:
    assert matched_name(written, names) == meant
