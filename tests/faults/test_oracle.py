"""The witnesses themselves: a storage that breaks a promise is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.backends import FORGETFUL
from tests.faults.children import Case
from tests.faults.kills import finish, swapped
from tests.faults.oracle import Account, Entry, Oracle, Repeats
from tests.faults.workloads import Shape, expected_of


@pytest.mark.parametrize(
    ("story", "repeats"),
    [
        pytest.param("start finish recorded", Repeats(), id="made once"),
        pytest.param("start start finish recorded", Repeats(cut=1), id="cut off"),
        pytest.param("start finish start finish recorded", Repeats(finished=1), id="finished and not recorded"),
        pytest.param("start finish recorded start", Repeats(acknowledged=1), id="acknowledged"),
        pytest.param("start finish found start", Repeats(found=1), id="found"),
        pytest.param("start finish recorded found start", Repeats(acknowledged=1), id="acknowledged and found"),
        pytest.param("start finish start start finish", Repeats(finished=2), id="finished once, made three times"),
    ],
)
def test_a_repeat_is_counted_by_how_far_the_call_had_come(story: str, repeats: Repeats) -> None:
    account = Account(tuple(Entry(1, what, "key", "call") for what in story.split()))

    assert account.repeats() == repeats


def test_what_one_process_notes_others_read_in_order(tmp_path: Path) -> None:
    first, second = Oracle(tmp_path / "o"), Oracle(tmp_path / "o")
    first.note("start", "k1", "call 1")
    second.note("start", "k2", "call 2")
    first.note("finish", "k1", "call 1")

    account = Account.read(tmp_path / "o")

    assert [(entry.what, entry.call) for entry in account.entries] == [
        ("start", "call 1"),
        ("start", "call 2"),
        ("finish", "call 1"),
    ]


def test_a_key_that_changes_or_is_shared_is_noticed() -> None:
    changing = Account((Entry(1, "start", "k1", "a"), Entry(2, "start", "k2", "a")))
    shared = Account((Entry(1, "start", "k1", "a"), Entry(1, "start", "k1", "b")))

    assert changing.unstable_keys() == {"a"}
    assert shared.unstable_keys() == {"a", "b"}


def test_two_workers_answers_that_changed_places_are_noticed() -> None:
    shape = Shape(workers=2, calls=2, rounds=1)
    output = expected_of(shape)
    assert swapped(output, shape) == 0

    output[0]["answers"], output[1]["answers"] = output[1]["answers"], output[0]["answers"]

    assert swapped(output, shape) == 4


def test_a_storage_that_forgets_what_it_acknowledged_is_found_out(tmp_path: Path) -> None:
    case = Case(FORGETFUL.place(tmp_path), tmp_path, workload="solo", options={"call_ms": 1})

    result = finish(case, [lambda: case.live(crash_at="acknowledged#2")])

    assert result.repeats.acknowledged == 2
    with pytest.raises(AssertionError):
        result.check()
