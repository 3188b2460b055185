"""The store can't be written to: the run stops at once, what was recorded stays, and after the repair it goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.backends import Backend, open_store
from tests.faults.children import Case, Ending
from tests.faults.oracle import Account
from tests.faults.troubles import files_of, small_disk
from tests.faults.workloads import expected_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these troubles are made with Linux's means")


@pytest.fixture
def quick(case: Case, backend: Backend, request: pytest.FixtureRequest) -> Case:
    """A short run, on a backend that the test's trouble can befall."""
    parameters = getattr(request.node, "callspec", None)
    trouble = parameters.params.get("trouble", "permissions") if parameters else "permissions"
    if trouble not in backend.troubles:
        pytest.skip(f"{trouble} is no trouble of {backend.name}'s")
    return replace(case, options={"rounds": 6, "call_ms": 2})


def during(account: Account) -> Account:
    """What happened between the trouble and its repair."""
    marks = [index for index, entry in enumerate(account.entries) if entry.what in ("trouble", "repair")]
    assert [account.entries[mark].what for mark in marks] == ["trouble", "repair"]
    return Account(account.entries[marks[0] : marks[1]])


def assert_it_stopped_in_that_superstep(case: Case, ending: Ending) -> None:
    [told] = ending.told("error")
    assert told["type"] == "StorageError", told
    trouble = during(case.account())
    written_after = trouble.acknowledged & {entry.key for entry in trouble.only("finish")}
    assert written_after == set(), "a record was acknowledged although nothing could be written"
    assert trouble.only("output") == []
    by_worker = [call.partition(".")[0] for call in trouble.starts.elements()]
    assert len(by_worker) == len(set(by_worker)), "a worker went on to another call without a record of the last"


def assert_nobody_went_on_without_a_record(case: Case, ending: Ending) -> None:
    """A full disk still takes what fits into the blocks a file has: such a record is as good as any."""
    [told] = ending.told("error")
    assert told["type"] == "StorageError", told
    trouble = during(case.account())
    assert trouble.only("output") == []
    recorded = {entry.call for entry in trouble.only("finish") if entry.key in trouble.acknowledged}
    unrecorded = [call.partition(".")[0] for call in trouble.starts if call not in recorded]
    assert len(unrecorded) == len(set(unrecorded)), "a worker went on to another call without a record of the last"


async def assert_checkpoints_are_good(case: Case) -> None:
    async with open_store(case.store) as storage:
        for checkpoint_id in await storage.list_checkpoint_ids(run_id=case.run_id):
            assert (await storage.load(checkpoint_id)).state


def assert_nothing_recorded_is_repeated(case: Case) -> None:
    account = case.account()
    assert (account.repeats().acknowledged, account.repeats().found) == (0, 0)
    # What had finished when its record was refused is all that may be made again: one call per worker.
    assert account.repeats().finished <= case.shape.workers


@pytest.mark.parametrize("trouble", ["space", "io"])
@pytest.mark.parametrize("calls", [1, 13, 30])
async def test_after_the_repair_the_same_process_goes_on_with_the_same_storage(
    quick: Case, trouble: str, calls: int
) -> None:
    ending = quick.live(trouble=f"{trouble}#{calls}")

    assert_it_stopped_in_that_superstep(quick, ending)
    assert ending.output == expected_of(quick.shape)
    assert_nothing_recorded_is_repeated(quick)
    await assert_checkpoints_are_good(quick)


@pytest.mark.parametrize("trouble", ["space", "io"])
async def test_after_the_repair_another_process_goes_on(quick: Case, trouble: str) -> None:
    first = quick.live(trouble=f"{trouble}#13", leave=True)
    assert_it_stopped_in_that_superstep(quick, first)
    await assert_checkpoints_are_good(quick)

    assert quick.live().output == expected_of(quick.shape)
    assert_nothing_recorded_is_repeated(quick)


@pytest.mark.parametrize("calls", [1, 13])
async def test_a_disk_that_is_really_full_stops_the_run_and_a_bigger_one_lets_it_go_on(
    quick: Case, backend: Backend, tmp_path: Path, calls: int
) -> None:
    if "full" not in backend.troubles:
        pytest.skip(f"{backend.name} does not keep its runs in a place of ours")
    place = tmp_path / "small"
    try:
        with small_disk(place):
            small = replace(quick, store=backend.place(place))
            ending = small.live(trouble=f"full#{calls}")

            assert_nobody_went_on_without_a_record(small, ending)
            assert ending.output == expected_of(small.shape)
            assert_nothing_recorded_is_repeated(small)
            await assert_checkpoints_are_good(small)
    except PermissionError as error:
        pytest.skip(f"{error.strerror}: it takes root's rights")


# --- no permission ----------------------------------------------------------------------------------------------------


@contextmanager
def read_only(paths: list[Path]) -> Iterator[None]:
    modes = {path: path.stat().st_mode for path in paths}
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode & 0o7777)


def test_a_run_does_not_start_in_a_directory_that_is_read_only(quick: Case, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    location = place / Path(quick.store.partition(":")[2]).name
    quick = replace(quick, store=f"{quick.store.partition(':')[0]}:{location}")

    with read_only([place]):
        assert quick.live(mortal=True).error == "StorageError"
    assert quick.account().starts.total() == 0

    assert quick.live(mortal=True).output == expected_of(quick.shape)
    assert quick.account().starts == dict.fromkeys(quick.shape.names(), 1)


def test_a_store_that_has_become_read_only_stops_the_resume_and_loses_nothing(quick: Case) -> None:
    assert quick.live(crash_at="acknowledged#13").was_killed
    before = quick.account()

    store = files_of(quick.store)
    with read_only([*store, *{path.parent for path in store}]):
        ending = quick.live(mortal=True)
        assert ending.error == "StorageError", ending
    assert quick.account().since(before).starts.total() == 0

    assert quick.live(mortal=True).output == expected_of(quick.shape)
    assert_nothing_recorded_is_repeated(quick)
