"""Each sample prints what it promises, without arguments and from beginning to end."""

from __future__ import annotations

import re

import pytest

from tests.samples.conftest import SAMPLES, Run

PRINTS = {
    "01": [
        "superstep 3: count is 3",
        "superstep 4: count is 4",
        "counted to 5, state: IDLE",
        "checkpoints: 6",
    ],
    "02": [
        "did not answer; going on from superstep 3",
        "did not answer; going on from superstep 9",
        "done: the factor pairs of 10 are [(1, 10), (2, 5), (5, 2), (10, 1)], of 10 numbers in all",
    ],
    "03": [
        "superstep 3 is saved as checkpoint 4",
        "4 checkpoints: one at the entry, one after each superstep",
        "resumed on the same workflow:\n  middle runs\n",
        "  output: train > start > middle > south",
        "rehydrated in a new one, which has no storage of its own:\n  middle runs\n",
        "start did not run again, but remembers ['train']",
    ],
    "04": [
        "complaint: legal sees a risk, the tone is angry",
        "invoice: 4711 goes to billing",
        "advert: thrown away",
        "flowchart TD",
        'switch_0 -->|"else"| bin',
    ],
    "05": [
        "version 1 waits for a Verdict: All about stepwells.\nversion 1 waits",
        "version 2 waits for a Verdict: On stepwells (shorter, please).",
        "published, version 2: On stepwells (shorter, please).",
    ],
    "06": [
        "(the model writes about wells)",
        "(the model writes about stepwells)",
        "IDLE_WITH_PENDING_REQUESTS: ['Everything about wel… (23 characters) is accepted']",
        "IDLE: ['Everything about wel… (23 characters) is accepted', 'Everything about ste… (135 characters) is acc",
    ],
    "07": [
        "looking Jaipur up, which costs money\n  forecaster tries again: ConnectionError",
        "Publish 'sun at 26.9 N, 75.8 E'?",
        "nobody said yes in time, so it is not published",
        "ExecutorTimeout: executor 'sleeper' did not finish",
    ],
    "09": [
        "measuring the silt in Toorji ka Jhalra",
        "at 90 euros make 36000 euros",
        "at 75 euros make 30000 euros",
        "run offer-with-volunteers, a branch of offer",
        "the first run still says: Toorji ka Jhalra: 400 cubic metres at 90 euros make 36000 euros",
    ],
    "10": ['called depth_of({"stepwell": "Chand Baori"})', "28 metres against 20"],
    "11": ["writer: Steps lead down", "editor: Steps lead down", "recorded: ["],
    "12": [
        'waiting for approval: pay({"invoice":"4711","euros":120})',
        "*** 120 euros paid for 4711 ***",
        "a second answer is refused: AlreadyAnswered",
    ],
    "13": ["Chand Baori has 13 storeys"],
    "14": ["guide: Rani ki Vav is the deeper one.", "looked up: Chand Baori, Rani ki Vav", "model calls: 3"],
    "20": ["1. researcher: ", "2. writer: ", "the brief: ", "manager: ", " model calls"],
    "21": [
        "the plan waits:\n1. researcher: Find out what stepwells are for.",
        "manager to researcher: Find out what stepwells are for.",
        "manager to writer: Write the brief.",
        "final result: Stepwells keep water within reach: restore yours.",
    ],
    "22": [
        "round 1, surveyor: Measure the water level.",
        "round 4, inspector: Check the measurement.",
        "The water is at 12.1 metres, checked. (It was sent back 1 time.)",
    ],
    "23": [
        "calculator, asked to 'Add it up.': 2000 + 350 = 2350 tonnes",
        "answer: 2350 tonnes were cleared in all.",
    ],
    "30": [
        "desk: One walks down into a stepwell.",
        "desk: Chand Baori has 3,500 steps.",
        "one run of 4 supersteps",
    ],
    "31": [
        'secretary wants to pay({"invoice":"4711","euros":120})',
        "*** 120 euros paid for 4711 ***",
        "answer: Invoice 4711 is settled.",
        "1 run; who was asked: checker 1x, payer 2x, secretary 2x",
    ],
    "32": [
        "1 request waits",
        "1. researcher: Read the notes",
        "the manager was asked 2 times so far",
        "answer: ",
        "the manager was asked 7 times so far",
    ],
    "33": [
        "assistant: They gather people.\n  reviewer: True, at least in summer.",
        "checkpoints after supersteps [0, 1, 2, 2, 3, 4]",
        "from its middle:\n  assistant: They gather people.\n  reviewer: True, all year round.",
    ],
    "40": [
        "InMemoryCheckpointStorage: 3 checkpoints saved\n  after a restart: nothing is left",
        "FileCheckpointStorage: 3 checkpoints saved\n  after a restart: ['WATER! WATER!']",
        "SQLiteCheckpointStorage: 3 checkpoints saved\n  after a restart: ['WATER! WATER!']",
        "the folder holds 3 JSON files",
        "InvalidId: ",
    ],
    "41": ["2 lines in runs.jsonl", "a new storage on the same file: ['WATER']"],
    "42": [
        "LATEST_ONLY keeps the checkpoints after supersteps [2]",
        "Stepwells are deep. Deep, but how deep?",
        "keep_last(2) keeps the checkpoints after supersteps [1, 2]",
        "FULL_HISTORY keeps the checkpoints after supersteps [0, 1, 2]",
    ],
    "43": [
        "recovered 0 runs that were cut off",
        "300 of 300 orders came out right, in 300 runs",
        "this process packed 300 of them",
    ],
    "51": [
        "approve this? A note on stepwells.\nthe run waits",
        "pending in the checkpoint: True",
        "output: A note on stepwells. (approved)",
    ],
}
ELSEWHERE = {"08": "test_several_processes.py", "50": "test_yours.py"}
"""Samples that do not come to a good end in one process, or are tests."""


@pytest.mark.parametrize("number", PRINTS)
def test_a_sample_prints_what_it_promises(number: str, run: Run) -> None:
    printed = run(number)

    position = 0
    for line in PRINTS[number]:
        found = printed.find(line, position)
        assert found >= 0, f"{line!r} is not where it should be in:\n{printed}"
        position = found + len(line)
    run(number)  # A second time, where it has been before, it comes to a good end too.


def test_every_sample_is_run() -> None:
    assert sorted(path.name[:2] for path in SAMPLES.glob("[0-9]*.py")) == sorted({*PRINTS, *ELSEWHERE})


def test_every_sample_is_in_the_list_and_says_how_it_is_run() -> None:
    listed = re.findall(r"^\| \[\w+\]\((\w+\.py)\)", (SAMPLES / "README.md").read_text("utf-8"), flags=re.MULTILINE)
    names = sorted(path.name for path in SAMPLES.glob("[0-9]*.py"))

    assert listed == names
    silent = [name for name in names if f" samples/{name}" not in (SAMPLES / name).read_text("utf-8")]
    assert silent == []
