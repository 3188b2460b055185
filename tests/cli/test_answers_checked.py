"""An answer of the wrong type is refused before it is recorded, and one that was recorded leaves no run stuck."""

from __future__ import annotations

import io
from typing import Any

import pexpect
import pytest
from rich.console import Console

from stepwell import CallInDoubt, Content, MagenticPlanReviewRequest, Plan, PlanStep
from stepwell.cli.asking import Person
from stepwell.cli.expected import check_answer
from stepwell.cli.questions import Given, Question, kind_of
from stepwell.workflows.typing import type_name
from tests.cli.conftest import Stepwell

ORDER = '{"item": "lamp", "euros": 50}'
PLAN = MagenticPlanReviewRequest(Plan((PlanStep("Find out.", "researcher"),)))
TOOL = Content.from_function_approval_request("a1", Content.from_function_call("c1", "pay", arguments="{}"))
DOUBT = CallInDoubt("c1", "pay", "[4711]", "2026-01-01T00:00:00")
APPROVAL = type_name(Content | bool)


def question(data: Any, response_type: str) -> Question:
    return Question("q1", "run-1", "clerk", kind_of(data), data, response_type)


@pytest.mark.parametrize(
    ("data", "response_type", "good", "bad"),
    [
        (
            PLAN,
            "MagenticPlanReviewResponse",
            [{"decision": "approve"}, {"decision": "approve", "edited_plan": "1. a: b"}],
            [17, True, {"decision": "maybe"}, {"feedback": "x"}, {"decision": "approve", "edited_plan": ""}],
        ),
        (TOOL, APPROVAL, [True, False], ["yes", 1, None, {"approved": True}]),
        (DOUBT, "CallVerdict", [{"kind": "retry"}, {"kind": "done", "result": [1]}], ["retry", {"kind": "perhaps"}]),
        ("?", "bool", [True], [1, "yes", None]),
        ("?", "str", ["yes"], [1, None, ["yes"]]),
        ("?", "int", [3], [3.5, True, "3"]),
        ("?", "float", [3, 3.5], ["3", False]),
        ("?", "Terms", [1, {"discount": 1}, None], []),
        (PLAN, "Terms", [17], []),
    ],
    ids=["plan", "tool", "doubt", "bool", "str", "int", "float", "the program's", "a plan asked about otherwise"],
)
def test_what_is_known_is_checked(data: Any, response_type: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        check_answer(question(data, response_type), value)
    for value in bad:
        with pytest.raises(ValueError, match="q1 takes"):
            check_answer(question(data, response_type), value)


@pytest.mark.parametrize(
    ("target", "message"), [("team.py:team", "What?"), ("payments.py:build", "Pay.")], ids=["plan", "tool"]
)
def test_a_wrong_answer_is_a_usage_error_and_nothing_is_recorded(stepwell: Stepwell, target: str, message: str) -> None:
    assert stepwell("run", target, message, "--run-id", "r").code == 3
    told = stepwell("review", "r", "--answer", "17")
    assert told.code == 2
    assert "--answer '17' does not fit" in told.err
    [run] = stepwell("runs", "--json").json["runs"]
    assert (run["undelivered_answers"], len(run["waiting"])) == (0, 1)
    assert stepwell("review", "r", "--approve", "--target", target).code == 0


@pytest.fixture
def stuck(stepwell: Stepwell) -> Stepwell:
    """An answer is recorded that only the program could find to be wrong."""
    stepwell("run", "shop.py:workflow", ORDER, "--json-message", "--run-id", "order")
    assert stepwell("review", "order", "--answer", '{"rebate": 1}').code == 0
    assert stepwell("resume", "shop.py:workflow", "order").code == 2
    return stepwell


@pytest.mark.parametrize("named", ["run", "request"])
def test_with_the_program_a_recorded_answer_that_is_wrong_is_replaced(stuck: Stepwell, named: str) -> None:
    asked = next(moment["asked"] for moment in stuck("show", "order", "--json").json["timeline"] if moment["asked"])
    wanted = "order" if named == "run" else asked[0]["request_id"]
    told = stuck("review", wanted, "--answer", '{"discount": 0.5}', "--target", "shop.py:workflow")
    assert (told.code, told.out) == (0, "lamp for 25 euros\n")


def test_a_recorded_answer_that_is_good_is_not_replaced(stepwell: Stepwell) -> None:
    stepwell("run", "shop.py:workflow", ORDER, "--json-message", "--run-id", "order")
    stepwell("review", "order", "--answer", '{"discount": 0.5}')
    told = stepwell("review", "order", "--answer", '{"discount": 0.9}', "--target", "shop.py:workflow")
    assert told.code == 1
    assert "0.5" in told.err
    assert stepwell("resume", "shop.py:workflow", "order").out == "lamp for 25 euros\n"


# --- at a terminal ----------------------------------------------------------------------------------------------------


def ended(terminal: pexpect.spawn[str]) -> int | None:
    terminal.expect(pexpect.EOF)
    terminal.close()
    status: int | None = terminal.exitstatus
    return status


def test_what_does_not_fit_is_asked_for_again() -> None:
    lines, screen = iter(['"three"', "3"]), io.StringIO()
    person = Person(Console(file=screen, width=100), read=lambda prompt: next(lines))
    answer = person(question("How many?", "int"))
    assert isinstance(answer, Given)
    assert answer.value == 3
    assert "q1 takes int" in screen.getvalue()


def test_what_the_program_refuses_is_asked_for_again(stepwell: Stepwell) -> None:
    terminal = stepwell.at_terminal("run", "shop.py:workflow", ORDER, "--json-message", "--run-id", "order")
    terminal.expect("Enter: later")
    terminal.sendline('{"rebate": 1}')
    terminal.expect("That does not count")
    terminal.expect("Enter: later")
    terminal.sendline('{"discount": 0.5}')
    terminal.expect("lamp for 25 euros")
    assert ended(terminal) == 0


def test_a_stuck_run_is_asked_about_at_the_terminal(stuck: Stepwell) -> None:
    terminal = stuck.at_terminal("review", "order", "--target", "shop.py:workflow")
    terminal.expect("Enter: later")
    terminal.sendline('{"discount": 0.5}')
    terminal.expect("lamp for 25 euros")
    assert ended(terminal) == 0


def test_who_was_overtaken_hears_of_it_and_is_asked_the_next_question(stepwell: Stepwell) -> None:
    for name in ("one", "two"):
        stepwell("run", "shop.py:workflow", ORDER, "--json-message", "--run-id", name)
    terminal = stepwell.at_terminal("review")
    terminal.expect("Enter: later")
    first = "two"  # the most recently saved comes first
    assert stepwell("review", first, "--answer", '{"discount": 0.1}').code == 0
    terminal.sendline('{"discount": 0.5}')
    terminal.expect("too late and is not recorded")
    terminal.expect("Enter: later")
    terminal.sendline('{"discount": 0.5}')
    terminal.expect("of run one: answered")
    assert ended(terminal) == 0
    assert stepwell("resume", "shop.py:workflow", first).out == "lamp for 45 euros\n"


def test_who_was_overtaken_in_front_of_a_run_sees_it_go_on(stepwell: Stepwell) -> None:
    terminal = stepwell.at_terminal("run", "shop.py:workflow", ORDER, "--json-message", "--run-id", "order")
    terminal.expect("Enter: later")
    assert stepwell("review", "order", "--answer", '{"discount": 0.1}').code == 0
    terminal.sendline('{"discount": 0.5}')
    terminal.expect("That does not count")
    terminal.expect("lamp for 45 euros")
    assert ended(terminal) == 0


TWO_QUESTIONS = """
from dataclasses import dataclass
from stepwell import Executor, WorkflowBuilder, WorkflowContext, handler, response_handler


@dataclass(frozen=True)
class Size:
    metres: int


class Clerk(Executor):
    @handler
    async def take(self, text: str, ctx: WorkflowContext) -> None:
        await ctx.request_info("How wide?", Size, request_id="wide")
        await ctx.request_info("How deep?", Size, request_id="deep")

    @response_handler
    async def told(self, asked: str, size: Size, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{asked} {size.metres} metres")


workflow = WorkflowBuilder(name="measuring", start_executor=Clerk("clerk")).build()
"""


@pytest.fixture
def measuring(stepwell: Stepwell) -> pexpect.spawn[str]:
    """Somebody who is asked two things at once, and types what no size is for the first."""
    (stepwell.folder / "measuring.py").write_text(TWO_QUESTIONS)
    terminal = stepwell.at_terminal("run", "measuring.py:workflow", "Measure.", "--run-id", "m")
    terminal.expect("How wide")
    terminal.expect("Enter: later")
    return terminal


def test_only_the_answer_that_was_refused_is_asked_for_again(measuring: pexpect.spawn[str]) -> None:
    measuring.sendline('{"feet": 3}')
    measuring.expect("How deep")
    measuring.expect("Enter: later")
    measuring.sendline('{"metres": 9}')
    measuring.expect("That does not count")
    measuring.expect("How wide")
    measuring.expect("Enter: later")
    measuring.sendline('{"metres": 3}')
    measuring.expect("How wide. 3 metres")
    measuring.expect("How deep. 9 metres")
    assert ended(measuring) == 0


def test_the_other_answer_of_who_was_overtaken_counts(stepwell: Stepwell, measuring: pexpect.spawn[str]) -> None:
    assert stepwell("review", "wide", "--answer", '{"metres": 4}').code == 0
    measuring.sendline('{"metres": 3}')
    measuring.expect("How deep")
    measuring.expect("Enter: later")
    measuring.sendline('{"metres": 9}')
    measuring.expect("That does not count")
    measuring.expect("How deep. 9 metres")
    assert ended(measuring) == 0
    sizes = [
        output["data"] for output in stepwell("run", "measuring.py:workflow", "--run-id", "m", "--json").json["outputs"]
    ]
    assert sizes == ["How wide? 4 metres", "How deep? 9 metres"]
