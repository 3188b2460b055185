"""Each sample runs offline, in a process of its own, and prints what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "samples"

PRINTS = {
    "01_counter.py": [
        "superstep 3: count is 3",
        "superstep 4: count is 4",
        "counted to 5, state: IDLE",
        "checkpoints: 6",
    ],
    "10_agent_with_tools.py": ['called depth_of({"stepwell": "Chand Baori"})', "28 metres against 20"],
    "11_streaming.py": ["writer: Steps lead down", "editor: Steps lead down", "recorded: ["],
    "12_approval_across_a_restart.py": [
        'waiting for approval: pay({"invoice":"4711","euros":120})',
        "*** 120 euros paid for 4711 ***",
        "a second answer is refused: AlreadyAnswered",
    ],
    "13_structured_output.py": ["Chand Baori has 13 storeys"],
    "30_workflow_as_agent.py": [
        "desk: One walks down into a stepwell.",
        "desk: Chand Baori has 3,500 steps.",
        "one run of 4 supersteps",
    ],
    "31_team_in_a_team.py": [
        'secretary wants to pay({"invoice":"4711","euros":120})',
        "*** 120 euros paid for 4711 ***",
        "answer: Invoice 4711 is settled.",
        "1 run; who was asked: checker 1x, payer 2x, secretary 2x",
    ],
    "32_plan_review_by_session.py": [
        "1 request waits",
        "1. researcher: Read the notes",
        "the manager was asked 2 times so far",
        "answer: Stepwells: restore yours.",
        "the manager was asked 7 times so far",
    ],
}


def run(sample: str, where: Path, *arguments: str) -> str:
    quiet = {"OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"}
    environment = {name: value for name, value in os.environ.items() if name not in quiet}
    environment["STEPWELL_STORE"] = str(where / "runs.db")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SAMPLES / sample), *arguments],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("sample", PRINTS)
def test_a_sample_prints_what_it_promises(sample: str, tmp_path: Path) -> None:
    printed = run(sample, tmp_path)

    positions = [printed.find(line) for line in PRINTS[sample]]
    assert -1 not in positions, printed
    assert positions == sorted(positions), printed


def test_an_approval_asked_for_by_one_process_is_given_by_another(tmp_path: Path) -> None:
    asked = run("12_approval_across_a_restart.py", tmp_path, "ask")
    assert "paid" not in asked

    rejected = run("12_approval_across_a_restart.py", tmp_path, "reject")

    assert "I did not pay" in rejected
    assert "***" not in rejected


def test_a_plan_made_by_one_process_is_shown_and_approved_by_others(tmp_path: Path) -> None:
    asked, shown, approved = [
        run("32_plan_review_by_session.py", tmp_path, word) for word in ("ask", "show", "approve")
    ]

    assert "the session is in runs.session.json" in asked
    assert "2. writer: Write the brief" in shown
    assert "answer: Stepwells: restore yours." in approved
    assert "asked 7 times" in approved
