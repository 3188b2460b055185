"""What to do about an error is said in commands that can be copied, and not where they would only fail again."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from stepwell import errors
from stepwell.cli.remedies import Advice, sentence, way_on
from tests.cli.conftest import Stepwell

RESUME = "stepwell resume team.py:team brief"
KNOWN = Advice(RESUME, target="team.py:team", run_id="brief")


@pytest.mark.parametrize(
    ("error", "said", "afterwards"),
    [
        (errors.CheckpointDamaged("c2", "torn", "c1"), "stepwell branch team.py:team c1 --run-id brief-mended", None),
        (errors.CheckpointDamaged("c2", "torn"), "stepwell verify", None),
        (errors.CheckpointNotFound("c9"), "stepwell show RUN_ID", f"once that is mended, go on with: {RESUME}"),
        (errors.AlreadyAnswered("q", "brief", "noon", "yes"), "stepwell branch team.py:team CHECKPOINT_ID", None),
        (errors.GraphChanged("c1", ("x is gone",)), "name the workflow that began this run", None),
        (errors.RunBusy("brief", "process 7"), "process 7; wait for it, or stop it", f"then go on with: {RESUME}"),
        (errors.RunUnfinished("brief", "FAILED"), RESUME, f"once that is mended, go on with: {RESUME}"),
        (
            errors.ReplayDivergence("c", "a", "b"),
            "can be made anew",
            f"make them anew and go on with: {RESUME} --recall",
        ),
        (
            errors.WorkflowConvergenceException("brief", 5),
            "allow more",
            f"go on with: {RESUME} --max-iterations 10",
        ),
        (errors.StorageError("disk", "full"), "disk: full", f"once that is mended, go on with: {RESUME}"),
        (
            TypeError("no"),
            "TypeError: no; that is an error in the program, or a bug in stepwell; --traceback shows where",
            f"what was done before is saved; with the code corrected, go on with: {RESUME}",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_error_says_what_to_do(error: Exception, said: str, afterwards: str | None) -> None:
    assert said in sentence(error, KNOWN)
    assert way_on(error, KNOWN) == afterwards


def test_a_command_without_a_program_blames_no_program() -> None:
    assert "that is a bug in stepwell" in sentence(TypeError("no"), Advice())
    assert way_on(TypeError("no"), Advice()) is None


def test_the_advice_about_damage_can_be_followed(stepwell: Stepwell) -> None:
    stepwell("run", "team.py:team", "What are stepwells for?", "--run-id", "brief", "--yes")
    newest = stepwell("show", "brief", "--json").json["timeline"][-1]["checkpoint_id"]
    with sqlite3.connect(".stepwell/runs.db") as database:
        change = "UPDATE checkpoints SET header = replace(header, 'team', 'tram') WHERE checkpoint_id = ?"
        assert database.execute(change, (newest,)).rowcount == 1
    database.close()
    told = stepwell("resume", "team.py:team", "brief")
    assert told.code == 1
    [sentence_said] = told.err.strip().splitlines()
    command = sentence_said.partition("with: stepwell ")[2].split()
    assert command[0] == "branch"
    assert stepwell(*command).out == "Steps down to the water.\n"


def test_another_workflow_than_the_runs_own_is_not_recommended_again(stepwell: Stepwell) -> None:
    stepwell("run", "team.py:team", "What are stepwells for?", "--run-id", "brief")
    told = stepwell("resume", "counting.py:workflow", "brief")
    assert told.code == 1
    assert "GraphChanged" in told.err
    assert "go on with" not in told.err


def test_a_checkpoint_that_is_not_there_is_looked_for_with_show(stepwell: Stepwell) -> None:
    stepwell("run", "counting.py:workflow", "1", "--json-message", "--run-id", "c1")
    assert "stepwell show RUN_ID" in stepwell("branch", "counting.py:workflow", "0000").err


def test_the_second_answer_hears_of_the_first(stepwell: Stepwell) -> None:
    stepwell("run", "team.py:team", "What are stepwells for?", "--run-id", "brief")
    assert stepwell("review", "brief", "--approve").code == 0
    told = stepwell("review", "brief", "--reject", "Too dear.")
    assert told.code == 1
    assert "was answered at" in told.err
    assert "approve" in told.err
    assert "stepwell branch TARGET CHECKPOINT_ID" in told.err


def test_a_run_of_the_demo_goes_on_with_the_demo(stepwell: Stepwell, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "YES"):
        monkeypatch.delenv(name, raising=False)
    assert stepwell("demo").code == 3
    assert "\n  stepwell demo\n" in stepwell("review", "demo-1", "--approve").out


@pytest.mark.parametrize("target", ["nowhere.py:team", "team.py:squad", "shop.py:breaks", "broken.py:team"])
def test_a_wrong_target_leaves_no_store_behind(stepwell: Stepwell, target: str) -> None:
    assert stepwell("run", target, "hello").code == 2
    assert not Path(".stepwell").exists()
    assert stepwell("run", target, "hello", "--store", "kept/").code == 2
    assert not Path("kept").exists()


def test_a_state_that_no_run_has_is_refused_with_those_there_are(stepwell: Stepwell) -> None:
    stepwell("run", "team.py:team", "What are stepwells for?", "--run-id", "brief")
    told = stepwell("runs", "--state", "bogus")
    assert told.code == 2
    assert "waiting, answered, done, failed" in told.err
    assert "IDLE_WITH_PENDING_REQUESTS" in told.err
    for word in ("waiting", "idle_with_pending_requests"):
        assert [run["run_id"] for run in stepwell("runs", "--state", word, "--json").json["runs"]] == ["brief"]


def test_verify_counts_what_it_read(stepwell: Stepwell) -> None:
    stepwell("run", "counting.py:workflow", "1", "--json-message")
    assert stepwell("verify").out == "1 run and 2 checkpoints read; all of it is good\n"


def test_a_tool_approved_in_another_process_is_named_when_its_result_comes(stepwell: Stepwell) -> None:
    stepwell("run", "payments.py:build", "Pay it.", "--run-id", "p1")
    stepwell("review", "p1", "--approve")
    assert 'clerk uses pay(invoice="4711")\n    result: paid 4711' in stepwell("resume", "payments.py:build", "p1").err


def test_a_step_of_somebody_unknown_is_warned_of(stepwell: Stepwell) -> None:
    stepwell("run", "team.py:team", "What are stepwells for?", "--run-id", "brief")
    Path("plan.txt").write_text("nobody: Do x.\nwriter: Note this: write.\n")
    told = stepwell("review", "brief", "--edit", "plan.txt")
    assert told.code == 0
    assert "nobody is not in the team (the team is researcher, writer)" in told.err
