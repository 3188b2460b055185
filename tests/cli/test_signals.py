"""Ctrl-C, SIGKILL and real terminals, in real processes."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pexpect
import pytest

from tests.cli.conftest import PATIENCE, Stepwell

COUNT = ("run", "counting.py:workflow", "3", "--json-message", "--run-id", "c1")
LATER = r"\[l\]ater: "


def hanging(stepwell: Stepwell, *words: str) -> subprocess.Popen[str]:
    """A run that is in the middle of something; unless another is named, of its second superstep."""
    sign = stepwell.folder / "hangs"
    process = stepwell.process(*(words or COUNT), HANG=str(sign))
    deadline = time.monotonic() + PATIENCE
    while not sign.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the run never got that far"
        time.sleep(0.02)
    return process


def test_ctrl_c_leaves_everything_saved_and_says_how_to_go_on(stepwell: Stepwell) -> None:
    process = hanging(stepwell)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "go on with: python -m stepwell.cli resume counting.py:workflow c1" in err
    [run] = stepwell("runs", "--json").json["runs"]
    assert (run["standing"], run["supersteps"], run["held_by"]) == ("interrupted", 1, None)
    assert stepwell("resume", "counting.py:workflow", "c1").out == "3\n"


def test_a_killed_run_goes_on_at_once(stepwell: Stepwell) -> None:
    process = hanging(stepwell)
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert [run["standing"] for run in stepwell("runs", "--json").json["runs"]] == ["cut off"]
    assert stepwell("resume", "counting.py:workflow", "c1").out == "3\n"


def test_a_run_at_work_is_shown_as_running_and_can_not_be_run_twice(stepwell: Stepwell) -> None:
    process = hanging(stepwell)
    assert [run["standing"] for run in stepwell("runs", "--json").json["runs"]] == ["running"]
    told = stepwell("resume", "counting.py:workflow", "c1")
    assert told.code == 1
    assert f"process {process.pid}" in told.err
    assert "c1" in stepwell("prune", "--keep", "1", "--json").json["stayed"]


def test_a_reader_that_goes_away_is_no_error_worth_a_traceback(stepwell: Stepwell) -> None:
    stepwell("run", "team.py:team", "What are stepwells for?", "--run-id", "brief", "--yes")
    reader = stepwell.process("show", "brief", "--json")
    assert reader.stdout is not None
    reader.stdout.close()
    assert reader.stderr is not None
    assert "Traceback" not in reader.stderr.read()
    reader.stderr.close()
    reader.wait(timeout=PATIENCE)


def test_a_call_in_doubt_is_decided_from_the_command_line(stepwell: Stepwell) -> None:
    process = hanging(stepwell, "run", "charging.py:workflow", "4711", "--run-id", "c1")
    process.kill()
    process.communicate(timeout=PATIENCE)
    told = stepwell("resume", "charging.py:workflow", "c1")
    assert told.code == 3
    assert "charge" in told.err
    assert stepwell("review", "c1", "--approve").code == 2
    [waiting] = stepwell("review", "--json").json["waiting"]
    assert waiting["kind"] == "doubt"
    assert stepwell("review", "c1", "--answer", '{"kind": "done", "result": "receipt 9"}').code == 0
    assert stepwell("resume", "charging.py:workflow", "c1").out == "receipt 9\n"


# --- at a terminal ----------------------------------------------------------------------------------------------------


def ended(terminal: pexpect.spawn[str]) -> int | None:
    terminal.expect(pexpect.EOF)
    terminal.close()
    status: int | None = terminal.exitstatus
    return status


def test_a_plan_is_edited_and_approved_at_the_terminal(stepwell: Stepwell) -> None:
    terminal = stepwell.at_terminal("run", "team.py:team", "What are stepwells for?", "--run-id", "brief")
    for expected, typed in (
        (LATER, "e"),
        ("Find out", ""),
        ("> ", "-"),
        ("one more", "writer: Sing."),
        ("one more", ""),
        ("approve this plan", "y"),
    ):
        terminal.expect(expected)
        terminal.sendline(typed)
    terminal.expect("Steps down to the water")
    assert ended(terminal) == 0
    plans = [moment["plan"] for moment in stepwell("show", "brief", "--json").json["timeline"] if moment["plan"]]
    assert plans[-1] == "1. researcher: Find out.\n2. writer: Sing."


def test_ctrl_c_at_a_question_leaves_the_run_waiting(stepwell: Stepwell) -> None:
    terminal = stepwell.at_terminal("run", "team.py:team", "What are stepwells for?", "--run-id", "brief")
    terminal.expect(LATER)
    terminal.sendintr()
    terminal.expect("go on with: python -m stepwell.cli resume team.py:team brief")
    assert ended(terminal) == 130
    assert stepwell("review").code == 3


def test_later_ends_with_3(stepwell: Stepwell) -> None:
    terminal = stepwell.at_terminal("run", "team.py:team", "What are stepwells for?", "--run-id", "brief")
    terminal.expect(LATER)
    terminal.sendline("l")
    terminal.expect("stepwell.cli review brief")
    assert ended(terminal) == 3


def test_review_asks_at_the_terminal_without_the_program(stepwell: Stepwell) -> None:
    stepwell("run", "shop.py:workflow", '{"item": "lamp", "euros": 50}', "--json-message", "--run-id", "order")
    (stepwell.folder / "shop.py").rename(stepwell.folder / "gone.txt")
    terminal = stepwell.at_terminal("review")
    terminal.expect("clerk asks:")
    terminal.expect("lamp")
    terminal.expect("later")
    terminal.sendline('{"discount": 0.5}')
    terminal.expect("stepwell.cli resume TARGET order")
    assert ended(terminal) == 0
    (stepwell.folder / "gone.txt").rename(stepwell.folder / "shop.py")
    assert stepwell("resume", "shop.py:workflow", "order").out == "lamp for 25 euros\n"


@pytest.mark.parametrize("words", [("runs",), ("show", "brief")])
def test_colour_is_left_out_where_it_is_not_wanted(stepwell: Stepwell, words: tuple[str, ...]) -> None:
    stepwell("run", "team.py:team", "What are stepwells for?", "--run-id", "brief")
    plain = stepwell.at_terminal(*words)
    plain.expect(pexpect.EOF)
    assert "\x1b[3" not in str(plain.before)
    plain.close()
    coloured = stepwell.at_terminal(*words, NO_COLOR="")
    coloured.expect(pexpect.EOF)
    assert "\x1b[3" in str(coloured.before)
    coloured.close()


def test_the_store_folder_is_where_the_user_is(stepwell: Stepwell) -> None:
    process = stepwell.process(*COUNT)
    assert process.communicate(timeout=PATIENCE)[0] == "3\n"
    assert Path(stepwell.folder, ".stepwell", "runs.db").exists()
