"""A person at a terminal, asked and answering."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stepwell import CallInDoubt, Content, MagenticPlanReviewRequest, OpaqueValue, Plan, PlanStep
from stepwell.cli.asking import Person, approving, nobody
from stepwell.cli.questions import LATER, Answer, Given, Kind, Question, kind_of

PLAN = Plan((PlanStep("Find out.", "researcher"), PlanStep("Write.", "writer")))
CALL = Content.from_function_call("call-1", "pay", arguments='{"invoice": 4711}')


def question(data: Any, response_type: str = "str") -> Question:
    return Question("q1", "run-1", "clerk", kind_of(data), data, response_type)


PLAN_QUESTION = question(MagenticPlanReviewRequest(PLAN, facts="Little is known."))
TOOL_QUESTION = question(Content.from_function_approval_request("a1", CALL))
DOUBT_QUESTION = question(CallInDoubt("c1", "pay", "[4711]", "2026-01-01T00:00:00"))


class Desk:
    """Somebody who types these lines and then leaves."""

    def __init__(self, *lines: str) -> None:
        self._lines: Iterator[str] = iter(lines)
        self._screen = io.StringIO()
        self._person = Person(Console(file=self._screen, markup=False, highlight=False, width=100), read=self._read)

    def asked(self, what: Question) -> Answer:
        return self._person(what)

    @property
    def seen(self) -> str:
        return self._screen.getvalue()

    def _read(self, prompt: str) -> str:
        self._screen.write(prompt)
        line = next(self._lines, None)
        if line is None:
            raise EOFError
        return line


@pytest.fixture(autouse=True)
def no_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.delenv("VISUAL", raising=False)


@pytest.mark.parametrize(
    ("what", "lines", "value"),
    [
        (PLAN_QUESTION, ["a"], {"decision": "approve"}),
        (PLAN_QUESTION, ["yes"], {"decision": "approve"}),
        (PLAN_QUESTION, ["?", "", "A"], {"decision": "approve"}),
        (PLAN_QUESTION, ["r", "Shorter."], {"decision": "revise", "feedback": "Shorter."}),
        (PLAN_QUESTION, ["r", "", "r", "Shorter."], {"decision": "revise", "feedback": "Shorter."}),
        (PLAN_QUESTION, ["ask the writer first"], {"decision": "revise", "feedback": "ask the writer first"}),
        (PLAN_QUESTION, ["j", "Too dear."], {"decision": "reject", "feedback": "Too dear."}),
        (
            PLAN_QUESTION,
            ["e", "", "-", "writer: Write a poem.", "", "y"],
            {"decision": "approve", "edited_plan": "1. researcher: Find out.\n2. writer: Write a poem."},
        ),
        (PLAN_QUESTION, ["e", "-", "-", "", "a"], {"decision": "approve"}),
        (PLAN_QUESTION, ["e", "", "", "", "a"], {"decision": "approve"}),
        (PLAN_QUESTION, ["e", "x: y", "", "", "n", "j", ""], {"decision": "reject", "feedback": ""}),
        (TOOL_QUESTION, ["y"], True),
        (TOOL_QUESTION, ["what?", "n"], False),
        (DOUBT_QUESTION, ["d", "{", '{"ok": 1}'], {"kind": "done", "result": {"ok": 1}, "reason": ""}),
        (DOUBT_QUESTION, ["d", ""], {"kind": "done", "result": None, "reason": ""}),
        (DOUBT_QUESTION, ["r"], {"kind": "retry", "result": None, "reason": ""}),
        (DOUBT_QUESTION, ["f", "It bounced."], {"kind": "fail", "result": None, "reason": "It bounced."}),
        (question("How many?", "int"), ["many", "3"], 3),
        (question("Which?", "str"), ["the blue one"], "the blue one"),
        (question("Really?", "bool"), ["no"], False),
        (question(OpaqueValue("shop:Order", {"item": "lamp"}), "Terms"), ['{"discount": 1}'], {"discount": 1}),
    ],
)
def test_what_is_typed_is_what_is_answered(what: Question, lines: list[str], value: Any) -> None:
    answer = Desk(*lines).asked(what)
    assert isinstance(answer, Given)
    assert answer.value == value


@pytest.mark.parametrize("what", [PLAN_QUESTION, TOOL_QUESTION, DOUBT_QUESTION], ids=lambda what: str(what.kind))
@pytest.mark.parametrize("lines", [["l"], []], ids=["later", "end of input"])
def test_later_answers_nothing(what: Question, lines: list[str]) -> None:
    assert Desk(*lines).asked(what) is LATER


def test_an_empty_line_means_later_where_anything_may_be_typed() -> None:
    assert Desk("").asked(question("How many?", "int")) is LATER


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        (PLAN_QUESTION, ["Little is known.", "1. researcher: Find out.", "2. writer: Write."]),
        (TOOL_QUESTION, ["clerk wants to call a tool", 'pay({"invoice": 4711})']),
        (DOUBT_QUESTION, ["pay", "[4711]", "2026-01-01"]),
        (question(OpaqueValue("shop:Order", {"item": "lamp"}), "Terms"), ["Order", "lamp", "Terms, as JSON"]),
    ],
    ids=["plan", "tool", "doubt", "other"],
)
def test_a_person_sees_what_they_decide_about(what: Question, shown: list[str]) -> None:
    desk = Desk()
    desk.asked(what)
    assert all(text in desk.seen for text in shown)


def test_a_plan_is_edited_in_the_editor_of_the_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "my editor.py"
    editor.write_text("import sys, pathlib; pathlib.Path(sys.argv[1]).write_text('- writer: Only write.\\n')")
    monkeypatch.setenv("EDITOR", f"{sys.executable} '{editor}'")
    answer = Desk("e", "y").asked(PLAN_QUESTION)
    assert isinstance(answer, Given)
    assert answer.value["edited_plan"] == "1. writer: Only write."


def test_an_owner_that_nobody_knows_can_be_corrected() -> None:
    desk = Desk("e", "", "writr: Write.", "", "e", "", "writer: Rhyme.", "", "y")
    answer = desk.asked(PLAN_QUESTION)
    assert isinstance(answer, Given)
    assert answer.value["edited_plan"] == "1. researcher: Find out.\n2. writer: Rhyme."
    assert desk.seen.count("writr is not in the team (the plan had steps for researcher, writer)") == 1


def test_an_editor_that_fails_leaves_the_plan_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "/nowhere/to/be/found")
    desk = Desk("e", "a")
    answer = desk.asked(PLAN_QUESTION)
    assert isinstance(answer, Given)
    assert answer.value == {"decision": "approve"}
    assert "did not work" in desk.seen


@pytest.mark.parametrize(
    ("what", "kind"),
    [(PLAN_QUESTION, "plan"), (TOOL_QUESTION, "tool"), (DOUBT_QUESTION, "doubt"), (question(7), "other")],
)
def test_who_said_yes_beforehand_says_yes_to_plans_and_tools_only(what: Question, kind: Kind) -> None:
    assert what.kind == kind
    assert (approving(what) is LATER) == (kind in ("doubt", "other"))
    assert nobody(what) is LATER


def test_a_class_of_the_users_with_a_known_name_is_not_mistaken() -> None:
    class MagenticPlanReviewRequest:
        pass

    assert kind_of(MagenticPlanReviewRequest()) == "other"


def test_what_is_known_is_told_again_only_if_it_has_changed() -> None:
    desk = Desk("shorter, please", "shorter still", "a")
    revised = Plan((PlanStep("Write.", "writer"),))
    for review in (
        MagenticPlanReviewRequest(PLAN, facts="Little is known."),
        MagenticPlanReviewRequest(revised, facts="Little is known."),
        MagenticPlanReviewRequest(revised, facts="More is known."),
    ):
        desk.asked(question(review))

    assert desk.seen.count("What is known:") == 2
    assert desk.seen.count("Little is known.") == desk.seen.count("More is known.") == 1
    assert desk.seen.count("The plan:") == 3


def test_another_run_is_told_what_is_known_from_the_start() -> None:
    desk = Desk("a", "a")
    desk.asked(PLAN_QUESTION)
    desk.asked(replace(PLAN_QUESTION, run_id="run-2"))

    assert desk.seen.count("Little is known.") == 2
