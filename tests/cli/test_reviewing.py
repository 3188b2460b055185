"""review: with the program and without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Stepwell

ORDER = '{"item": "lamp", "euros": 50}'


@pytest.fixture
def brief(stepwell: Stepwell) -> Stepwell:
    """A team that waits for the review of its plan."""
    assert stepwell("run", "team.py:team", "What are stepwells for?", "--run-id", "brief").code == 3
    return stepwell


@pytest.fixture
def order(stepwell: Stepwell) -> Stepwell:
    """A shop that waits for an answer in a type of its own."""
    assert stepwell("run", "shop.py:workflow", ORDER, "--json-message", "--run-id", "order").code == 3
    return stepwell


def test_without_a_terminal_what_waits_is_listed_and_the_end_is_3(brief: Stepwell) -> None:
    told = brief("review")
    assert told.code == 3
    assert "1. researcher: Find out." in told.out
    assert "stepwell review" in told.err


def test_nothing_waiting_is_0(stepwell: Stepwell) -> None:
    stepwell("run", "counting.py:workflow", "1", "--json-message")
    assert stepwell("review").code == 0


def test_an_approval_is_recorded_and_the_next_resume_delivers_it(brief: Stepwell) -> None:
    told = brief("review", "brief", "--approve")
    assert told.code == 0
    assert "stepwell resume TARGET brief" in told.out
    assert brief("resume", "team.py:team", "brief").out == "Steps down to the water.\n"


def test_a_target_goes_on_at_once(brief: Stepwell) -> None:
    told = brief("review", "brief", "--approve", "--target", "team.py:team")
    assert (told.code, told.out) == (0, "Steps down to the water.\n")


def test_a_request_is_named_by_its_own_id_too(brief: Stepwell) -> None:
    [waiting] = brief("review", "--json").json["waiting"]
    assert brief("review", waiting["request_id"], "--approve", "--json").json["recorded"][0]["run_id"] == "brief"


def test_an_edited_plan_is_the_one_that_is_done(brief: Stepwell) -> None:
    Path("plan.txt").write_text("1. writer: Write at once.\n")
    assert brief("review", "brief", "--edit", "plan.txt", "--target", "team.py:team").code == 0
    plans = [moment["plan"] for moment in brief("show", "brief", "--json").json["timeline"] if moment["plan"]]
    assert plans[-1] == "1. writer: Write at once."


def test_a_revision_brings_another_plan_to_review(brief: Stepwell) -> None:
    told = brief("review", "brief", "--revise", "Ask the writer first.", "--target", "team.py:team")
    assert told.code == 3
    assert [waiting["kind"] for waiting in brief("review", "--json").json["waiting"]] == ["plan"]


def test_a_rejection_ends_the_run(brief: Stepwell) -> None:
    told = brief("review", "brief", "--reject", "Too expensive.", "--target", "team.py:team")
    assert told.code == 0
    assert "Too expensive." in told.out


@pytest.mark.parametrize(
    ("words", "said"), [(("--approve",), "paid 4711"), (("--reject", "no money"), "not approve")], ids=["yes", "no"]
)
def test_a_tool_call_is_approved_or_not(stepwell: Stepwell, words: tuple[str, ...], said: str) -> None:
    stepwell("run", "payments.py:build", "Pay it.", "--run-id", "p1")
    assert "pay(" in stepwell("review").out
    assert said in stepwell("review", "p1", *words, "--target", "payments.py:build").out


def test_an_answer_in_the_programs_own_type_is_given_as_json(order: Stepwell) -> None:
    [waiting] = order("review", "--json").json["waiting"]
    assert (waiting["kind"], waiting["response_type"]) == ("other", "Terms")
    assert order("review", "order", "--answer", '{"discount": 0.5}').code == 0
    assert order("resume", "shop.py:workflow", "order").out == "lamp for 25 euros\n"


def test_what_waits_can_be_read_by_a_process_that_has_no_program(order: Stepwell) -> None:
    (order.folder / "shop.py").unlink()
    reader = order.process("review", "--json")
    out, _ = reader.communicate(timeout=60)
    assert reader.returncode == 3
    assert '"item": "lamp"' in out


def test_with_the_program_a_wrong_answer_is_refused_and_nothing_changes(order: Stepwell) -> None:
    told = order("review", "order", "--answer", '{"rebate": 1}', "--target", "shop.py:workflow")
    assert told.code == 2
    assert "discount" in told.err
    assert order("review").code == 3


def test_a_second_answer_is_refused(order: Stepwell) -> None:
    [waiting] = order("review", "--json").json["waiting"]
    assert order("review", waiting["request_id"], "--answer", '{"discount": 0.5}').code == 0
    told = order("review", waiting["request_id"], "--answer", '{"discount": 0.9}')
    assert told.code == 1
    assert "0.5" in told.err
    assert order("review", "order", "--answer", '{"discount": 0.9}').code == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--approve",), "--answer"),
        (("--revise", "x"), "is no plan"),
        (("--answer", "{"), "is no JSON"),
        (("--approve", "--reject", "x"), "exclude each other"),
    ],
    ids=["yes-to-what", "revise-what", "no-json", "two-answers"],
)
def test_an_answer_that_does_not_fit_is_a_usage_error(order: Stepwell, words: tuple[str, ...], problem: str) -> None:
    told = order("review", "order", *words)
    assert told.code == 2
    assert problem in told.err


def test_one_answer_for_several_questions_has_to_say_which(brief: Stepwell) -> None:
    brief("run", "shop.py:workflow", ORDER, "--json-message")
    told = brief("review", "--approve")
    assert told.code == 2
    assert "say which one" in told.err


def test_an_edited_plan_without_a_step_is_refused(brief: Stepwell) -> None:
    Path("plan.txt").write_text("\n")
    told = brief("review", "brief", "--edit", "plan.txt")
    assert told.code == 2
    assert "no step" in told.err
