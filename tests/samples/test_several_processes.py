"""Samples whose point is that one process ends, or is killed, and another one goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.samples.conftest import Run, Start


def test_an_approval_asked_for_by_one_process_is_given_by_another(run: Run) -> None:
    asked = run("12", "ask")
    assert "paid" not in asked

    rejected = run("12", "reject")

    assert "I did not pay" in rejected
    assert "***" not in rejected


def test_a_plan_made_by_one_process_is_shown_and_approved_by_others(run: Run) -> None:
    asked, shown, approved = [run("32", word) for word in ("ask", "show", "approve")]

    assert "the session is in runs.session.json" in asked
    assert "2. writer: Write the brief" in shown
    assert "answer: " in approved
    assert "asked 7 times" in approved


def test_a_finished_team_asks_nobody_a_second_time(run: Run) -> None:
    first, again = run("20"), run("20")

    assert "the plan:" in first
    assert "the plan:" not in again
    assert first.endswith(again)


def test_a_draft_is_asked_for_revised_and_published_by_four_processes(run: Run) -> None:
    asked, waiting = run("05", "ask", "stepwells"), run("05", "waiting")
    revised, published = run("05", "answer", "revise", "shorter, please"), run("05", "answer", "approve")

    assert asked == waiting == "version 1 waits for a Verdict: All about stepwells.\n"
    assert revised == "version 2 waits for a Verdict: On stepwells (shorter, please).\n"
    assert published == "published, version 2: On stepwells (shorter, please).\n"


def test_the_inner_workflow_goes_on_in_another_process_and_asks_its_model_nothing_twice(run: Run) -> None:
    asked, approved = run("06", "ask"), run("06", "approve")

    assert asked.count("the model writes") == 2
    assert approved.startswith("IDLE: ['Everything about wel")
    assert "(135 characters) is accepted" in approved


@pytest.mark.parametrize(
    ("answers", "end"),
    [
        ([("approve",)], "final result: Stepwells keep water within reach"),
        ([("revise", "Ask a lawyer."), ("approve",)], "final result: Stepwells keep water within reach"),
        ([("edit", "writer: Write it all.")], "  manager to writer: Write it all.\nfinal result: "),
        ([("reject", "Too expensive.")], "final result: The plan was rejected: Too expensive."),
    ],
    ids=lambda value: value[0][0] if isinstance(value, list) else None,
)
def test_a_plan_on_disk_is_answered_by_other_processes(run: Run, answers: list[tuple[str, ...]], end: str) -> None:
    assert run("21", "plan").startswith("the plan waits:\n1. researcher")

    *before, last = [run("21", *answer) for answer in answers]

    assert all("the plan waits again:" in printed for printed in before)
    assert end in last
    assert "researcher" not in last or answers[-1] == ("approve",)


@pytest.mark.parametrize(("word", "result", "payments"), [("done", "seen on the statement", 1), ("retry", "4711", 2)])
def test_a_payment_cut_off_by_a_kill_is_not_repeated_until_a_person_says_so(
    start: Start, run: Run, tmp_path: Path, word: str, result: str, payments: int
) -> None:
    assert start("08").returncode == -signal.SIGKILL

    asked = run("08")
    decided = run("08", word)

    assert "in doubt: transfer(" in asked
    assert "IDLE_WITH_PENDING_REQUESTS: []" in asked
    assert asked.count("120 euros for invoice-4711") == 1
    assert "IDLE: ['filed: receipt" in decided
    assert result in decided
    statement = (tmp_path / "runs.statement.txt").read_text("utf-8").splitlines()
    assert len(statement) == payments
    assert len(set(statement)) == 1, "a second payment carries the key of the first"


def test_an_agent_killed_at_work_repeats_nothing_that_was_recorded(start: Start, run: Run) -> None:
    assert start("14", "--kill").returncode == -signal.SIGKILL

    printed = run("14")

    assert printed.count("from the record: model:guide") == 2
    assert printed.count("from the record: tool:depth_of") == 1
    assert "looked up: Chand Baori, Rani ki Vav\n" in printed
    assert "model calls: 3" in printed


def test_runs_cut_off_by_a_kill_are_recovered_when_the_program_starts_again(start: Start, run: Run) -> None:
    killed = start("43", "--kill")
    assert killed.returncode == -signal.SIGKILL
    assert killed.stdout == "recovered 0 runs that were cut off\n"

    again = run("43")

    assert "recovered 0 runs" not in again
    assert "300 of 300 orders came out right, in 300 runs" in again
