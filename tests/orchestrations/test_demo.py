"""The demo, as people run it: with and without a terminal, cut off and taken up again."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = [sys.executable, "-W", "error", "-m", "stepwell.cli", "demo"]


def environment(folder: Path, **more: str) -> dict[str, str]:
    real = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "YES", "STEPWELL_STORE", "MAKELEVEL", "VISUAL", "EDITOR")
    kept = {name: value for name, value in os.environ.items() if name not in real}
    return {**kept, "STEPWELL_STORE": str(folder / "store" / "runs.db"), "PYTHONUNBUFFERED": "1", **more}


def demo(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEMO, *arguments],
        cwd=folder,
        env=environment(folder, **more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("yes", ["--yes", "YES=1"])
def test_it_approves_by_itself_when_told_so_and_prints_the_brief(tmp_path: Path, yes: str) -> None:
    done = demo(tmp_path, "--yes") if yes == "--yes" else demo(tmp_path, YES="1")

    assert done.returncode == 0, done.stderr
    assert "scripted" in done.stdout
    assert "1. researcher: Read the notes" in done.stdout
    assert "researcher uses read_note" in done.stdout
    assert "# Stepwells: a brief for the council" in done.stdout
    assert "UNESCO" in done.stdout
    assert re.search(r"saved: checkpoint \d+", done.stdout)


def test_without_a_terminal_it_says_how_to_answer_and_waits(tmp_path: Path) -> None:
    waiting = demo(tmp_path, MAKELEVEL="1")
    answered = demo(tmp_path, YES="1")

    assert waiting.returncode == 3
    assert "make demo YES=1" in waiting.stdout
    assert "demo --yes" in waiting.stdout
    assert "review demo-1" in waiting.stdout
    assert answered.returncode == 0, answered.stderr
    assert "going on with run demo-1" in answered.stdout
    assert "manager: 7 model calls" in answered.stdout


def test_killed_and_run_again_it_goes_on_and_says_what_was_replayed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*DEMO, "--yes"],
        cwd=tmp_path,
        env=environment(tmp_path, DEMO_DELAY="0.2"),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "uses read_note" in line:
                process.send_signal(signal.SIGKILL)
                break

    again = demo(tmp_path, "--yes")

    assert again.returncode == 0, again.stderr
    replayed = re.search(r"(\d+) calls were replayed", again.stdout)
    assert replayed is not None
    assert int(replayed[1]) >= 2
    assert "manager: 7 model calls" in again.stdout


def test_a_person_at_the_terminal_can_have_the_plan_changed(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        DEMO,
        cwd=tmp_path,
        env=environment(tmp_path, DEMO_DELAY="0"),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    ) as process:
        os.close(theirs)
        os.write(ours, b"Mention the cost.\nName who pays.\ny\n")
        assert process.stdout is not None
        shown = process.stdout.read()
    os.close(ours)

    assert process.returncode == 0
    assert "4. writer: Heed what the person asked for: Mention the cost." in shown
    assert "+ 5. writer: Heed what the person asked for: Name who pays." in shown, "what is new is marked"
    assert shown.count("GIVEN: a one-page brief") == 1, "and what is known is not told again"
    assert "as the council asked: Mention the cost. Name who pays." in shown
    assert "# Stepwells: a brief for the council" in shown


def test_finished_runs_are_left_alone(tmp_path: Path) -> None:
    demo(tmp_path, "--yes")

    assert "starting run demo-2" in demo(tmp_path, "--yes").stdout


def test_another_run_can_be_started_while_one_waits(tmp_path: Path) -> None:
    demo(tmp_path)

    assert "starting run demo-2" in demo(tmp_path, "--yes", "--new").stdout


def test_the_store_that_was_named_is_named_in_what_to_do_next(tmp_path: Path) -> None:
    store = tmp_path / "elsewhere.db"

    done = demo(tmp_path, "--yes", "--store", str(store))

    assert store.exists()
    assert f"show demo-1 --store {store}" in done.stdout


def test_it_says_which_real_model_it_would_use(tmp_path: Path) -> None:
    # Nothing listens there: the demo says what it talks to, fails in one sentence, and says how to go on.
    failed = demo(tmp_path, "--yes", OPENAI_BASE_URL="http://127.0.0.1:9/v1", STEPWELL_FORBID_REAL_MODELS="1")

    assert failed.returncode == 1
    assert "a real one, at http://127.0.0.1:9/v1" in failed.stdout
    assert "starting run model-1" in failed.stdout
    assert "go on with" in failed.stderr
    assert "Traceback" not in failed.stderr
