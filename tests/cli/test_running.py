"""run, resume and branch."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Stepwell


def test_a_run_prints_its_output_on_stdout_and_ends_with_0(stepwell: Stepwell) -> None:
    told = stepwell("run", "counting.py:workflow", "3", "--json-message", "--run-id", "c1")
    assert (told.code, told.out) == (0, "3\n")


def test_the_default_store_is_made_where_the_command_is_given(stepwell: Stepwell) -> None:
    stepwell("run", "counting.py:workflow", "1", "--json-message")
    assert (stepwell.folder / ".stepwell" / "runs.db").is_file()


def test_the_environment_names_the_store(stepwell: Stepwell) -> None:
    stepwell("run", "counting.py:workflow", "1", "--json-message", env={"STEPWELL_STORE": "here/other.db"})
    assert (stepwell.folder / "here" / "other.db").is_file()
    assert not (stepwell.folder / ".stepwell").exists()


def test_a_module_is_named_without_its_suffix(stepwell: Stepwell) -> None:
    assert stepwell("run", "counting:workflow", "2", "--json-message").out == "2\n"


def test_a_function_that_takes_one_argument_gets_the_storage(stepwell: Stepwell) -> None:
    told = stepwell("run", "shop.py:build", '{"item": "lamp", "euros": 50}', "--json-message")
    assert told.code == 3, told.err


def test_an_async_function_may_build_the_workflow(stepwell: Stepwell) -> None:
    told = stepwell("run", "shop.py:build_async", '{"item": "lamp", "euros": 50}', "--json-message")
    assert told.code == 3, told.err


def test_a_run_that_waits_ends_with_3_and_says_how_to_answer(stepwell: Stepwell) -> None:
    told = stepwell("run", "team.py:team", "What are stepwells for?", "--run-id", "brief")
    assert told.code == 3
    assert "stepwell review brief" in told.err
    assert "stepwell resume team.py:team brief" in told.err
    assert "1. researcher: Find out." in told.err


def test_yes_approves_the_plan_beforehand(stepwell: Stepwell) -> None:
    told = stepwell("run", "team.py:team", "What are stepwells for?", "--yes")
    assert (told.code, told.out) == (0, "Steps down to the water.\n")


def test_yes_approves_tool_calls(stepwell: Stepwell) -> None:
    told = stepwell("run", "payments.py:build", "Pay it.", "--yes")
    assert (told.code, told.out) == (0, "It says: paid 4711\n")


def test_json_of_a_run_is_all_there_is_on_stdout(stepwell: Stepwell) -> None:
    told = stepwell("run", "team.py:team", "What are stepwells for?", "--run-id", "brief", "--json")
    assert told.code == 3
    assert told.json["state"] == "IDLE_WITH_PENDING_REQUESTS"
    assert told.json["waiting"][0]["kind"] == "plan"
    assert told.json["usage"]["manager"]["calls"] == 2


def test_a_failed_run_ends_with_1_and_one_sentence_and_can_be_resumed(stepwell: Stepwell) -> None:
    told = stepwell("run", "counting.py:workflow", "3", "--json-message", "--run-id", "c1", env={"FAIL": "1"})
    assert told.code == 1
    assert "RuntimeError: the counter broke" in told.err
    assert "Traceback" not in told.err
    assert "go on with: stepwell resume counting.py:workflow c1" in told.err
    assert stepwell("resume", "counting.py:workflow", "c1").out == "3\n"


def test_the_traceback_is_shown_to_who_asks_for_it(stepwell: Stepwell) -> None:
    words = ("run", "counting.py:workflow", "3", "--json-message", "--traceback")
    assert "Traceback" in stepwell(*words, env={"FAIL": "1"}).err


def test_running_a_finished_run_again_tells_its_output_again(stepwell: Stepwell) -> None:
    words = ("run", "counting.py:workflow", "2", "--json-message", "--run-id", "c1")
    assert stepwell(*words).out == stepwell(*words).out == "2\n"


def test_another_message_for_an_unfinished_run_is_refused(stepwell: Stepwell) -> None:
    stepwell("run", "team.py:team", "What are stepwells for?", "--run-id", "brief")
    told = stepwell("run", "team.py:team", "Something else.", "--run-id", "brief")
    assert told.code == 2
    assert "brief" in told.err


def test_a_branch_leaves_the_old_run_as_it_was_and_takes_changed_state(stepwell: Stepwell) -> None:
    stepwell("run", "counting.py:workflow", "3", "--json-message", "--run-id", "c1")
    first, *_ = stepwell("show", "c1", "--json").json["timeline"]
    told = stepwell("branch", "counting.py:workflow", first["checkpoint_id"], "--run-id", "c2", "--set", "count=7")
    assert (told.code, told.out) == (0, "8\n")
    runs = {run["run_id"]: run for run in stepwell("runs", "--json").json["runs"]}
    assert runs["c2"]["parent_run_id"] == "c1"
    assert runs["c1"]["supersteps"] == 3


def test_a_branch_takes_its_state_from_a_file_and_from_inside_values(stepwell: Stepwell) -> None:
    stepwell("run", "shop.py:workflow", '{"item": "lamp", "euros": 50}', "--json-message", "--run-id", "o1")
    newest = stepwell("show", "o1", "--json").json["timeline"][-1]["checkpoint_id"]
    Path("edits.json").write_text(json.dumps({"colour": "blue"}))
    words = ("--run-id", "o2", "--state", "edits.json", "--set", 'customer.name="Ada"')
    assert stepwell("branch", "shop.py:workflow", newest, *words).code == 3
    assert stepwell("review", "o2", "--answer", '{"discount": 0.5}', "--target", "shop.py:workflow").code == 0
    assert stepwell("review", "o1", "--answer", '{"discount": 0.1}', "--target", "shop.py:workflow").code == 0


def test_a_message_that_is_no_text_is_asked_for_as_json(stepwell: Stepwell) -> None:
    told = stepwell("run", "counting.py:workflow", "3")
    assert told.code == 2
    assert "--json-message" in told.err


def test_a_message_of_the_wrong_shape_is_refused_before_anything_starts(stepwell: Stepwell) -> None:
    told = stepwell("run", "shop.py:workflow", '{"item": "lamp"}', "--json-message", "--run-id", "o1")
    assert told.code == 2
    assert "euros" in told.err
    assert not stepwell("runs", store=".").out.count("o1")


def test_what_a_program_prints_does_not_get_into_the_json(stepwell: Stepwell) -> None:
    told = stepwell("run", "noisy.py:build", "hello", "--json")
    assert [output["data"] for output in told.json["outputs"]] == ["hello"]
    assert all(word in told.err for word in ("imported", "built", "handled"))
