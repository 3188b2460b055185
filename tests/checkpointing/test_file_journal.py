"""Calls are written down at once, acknowledged when they are durable, and missed when they are gone."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stepwell.checkpointing.storage.file import FileCheckpointStorage
from stepwell.checkpointing.storage.file_operations import Buffer, Disk, served_by
from stepwell.errors import CheckpointDamaged, RunTakenOver, StorageError
from stepwell.testing.storage import call, draft, opened


def journal_of(path: Path, run_id: str = "run-1") -> Path:
    return path / ".stepwell" / "runs" / run_id / "journal.jsonl"


def record_of(path: Path, run_id: str = "run-1") -> Path:
    return path / ".stepwell" / "runs" / run_id / "run.jsonl"


def written(path: Path) -> int:
    return journal_of(path).read_bytes().count(b"\n")


async def until_written(path: Path, lines: int) -> None:
    """The test's time limit is the only one."""
    while written(path) < lines:
        await asyncio.sleep(0.002)


def queue_is_taken(storage: FileCheckpointStorage) -> None:
    """The writer thread has taken what there was to do, and is at it."""
    queue = storage._entered().writer._queue
    while not queue.empty():
        time.sleep(0.001)


def open_files() -> list[Path]:
    found: list[Path] = []
    for link in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):
            found.append(link.readlink())
    return found


def names(log: object) -> list[str]:
    return [row.name for row in log.calls]  # type: ignore[attr-defined]


class Gate(Disk):
    """An fsync of a journal begins, tells so, and ends when it is let through; it may end with an error."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.through = threading.Semaphore(0)
        self.error: OSError | None = None
        self.passed = 0

    def sync(self, descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name != "journal.jsonl" or self.error is _OPEN:
            super().sync(descriptor)
            return
        self.begun.release()
        self.through.acquire()
        self.passed += 1
        if self.error is not None:
            raise self.error
        super().sync(descriptor)


_OPEN = OSError("no gate any more")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def gate() -> Iterator[Gate]:
    disk = Gate()
    with served_by(disk):
        yield disk
        disk.through.release(1000)


# --- at once ----------------------------------------------------------------------------------------------------------


async def test_a_call_is_written_while_an_earlier_one_is_made_durable_and_acknowledged_after_an_fsync_of_its_own(
    path: Path, gate: Gate
) -> None:
    async with FileCheckpointStorage(path) as storage:
        log = await opened(storage)
        first = asyncio.create_task(log.record_call(call("first"), supersedes=()))
        await asyncio.to_thread(gate.begun.acquire)
        second = asyncio.create_task(log.record_call(call("second"), supersedes=()))
        await until_written(path, 2)
        assert not first.done()
        assert not second.done()
        gate.through.release()
        await first
        await asyncio.to_thread(gate.begun.acquire)
        assert not second.done(), "its line was written after that fsync had begun"
        gate.through.release()
        await second
        assert gate.passed == 2


async def test_what_waits_for_an_fsync_is_made_durable_by_the_next_one_together(path: Path, gate: Gate) -> None:
    async with FileCheckpointStorage(path) as storage:
        log = await opened(storage)
        first = asyncio.create_task(log.record_call(call("first"), supersedes=()))
        await asyncio.to_thread(gate.begun.acquire)
        others = [asyncio.create_task(log.record_call(call(f"{n}"), supersedes=())) for n in range(20)]
        await until_written(path, 21)
        gate.through.release(2)
        await asyncio.gather(first, *others)
        assert gate.passed == 2


async def test_nothing_else_is_done_to_a_run_before_its_calls_are_durable(path: Path, gate: Gate) -> None:
    async with FileCheckpointStorage(path) as storage:
        log = await opened(storage)
        recorded = asyncio.create_task(log.record_call(call("first"), supersedes=()))
        await asyncio.to_thread(gate.begun.acquire)
        before = record_of(path).read_bytes()
        saved = asyncio.create_task(log.save(draft(1)))
        other = asyncio.create_task(opened(storage, "run-2"))  # behind the save in the queue
        await asyncio.to_thread(queue_is_taken, storage)
        assert record_of(path).read_bytes() == before
        gate.through.release()
        await asyncio.gather(recorded, saved)
        await (await other).release()
        await log.release()


async def test_more_runs_than_files_may_be_open_record_their_calls_at_once(path: Path) -> None:
    async with FileCheckpointStorage(path) as storage:
        logs = [await opened(storage, f"run-{n}") for n in range(80)]
        for turn in ("one", "two"):
            await asyncio.gather(*(log.record_call(call(f"{turn} of {log.run_id}"), supersedes=()) for log in logs))
        for log in logs:
            await log.release()
            mine = await opened(storage, log.run_id, create=False)
            assert names(mine) == [f"one of {log.run_id}", f"two of {log.run_id}"]
            await mine.release()
        assert not [each for each in open_files() if each.name == "journal.jsonl" and each.is_relative_to(path)]


async def test_calls_recorded_at_once_are_whole_lines_in_one_order(path: Path) -> None:
    async with FileCheckpointStorage(path) as storage:
        log = await opened(storage)
        rows = [call(f"call-{n}", result="r" * (n * 997 % 9000)) for n in range(60)]
        await asyncio.gather(*(log.record_call(row, supersedes=()) for row in rows))
        await log.release()
        again = await opened(storage)
        assert sorted(names(again)) == sorted(row.name for row in rows)
        assert {row.result for row in again.calls} == {row.result for row in rows}
        await again.release()


# --- failures ---------------------------------------------------------------------------------------------------------


async def test_an_fsync_that_fails_fails_everybody_who_was_not_acknowledged_and_nothing_of_it_stays(
    path: Path, gate: Gate
) -> None:
    async with FileCheckpointStorage(path) as storage:
        log = await opened(storage)
        gate.through.release()
        await log.record_call(call("good"), supersedes=())
        await asyncio.to_thread(gate.begun.acquire)
        first = asyncio.create_task(log.record_call(call("first"), supersedes=()))
        await asyncio.to_thread(gate.begun.acquire)
        second = asyncio.create_task(log.record_call(call("second"), supersedes=()))
        await until_written(path, 3)
        gate.error = OSError(errno.EIO, os.strerror(errno.EIO))
        gate.through.release(1)
        # What the disk says to the next fsync does not matter: an error is reported once.
        await asyncio.to_thread(gate.begun.acquire)
        gate.error = _OPEN
        gate.through.release(10)
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StorageError, StorageError]
        assert written(path) == 1
        await log.record_call(call("after the repair"), supersedes=())
        await log.release()
        again = await opened(storage)
        assert names(again) == ["good", "after the repair"]
        await again.release()
        assert (await storage.verify()).ok


class Full(Disk):
    """Takes half of one line, and then there is no room."""

    def __init__(self) -> None:
        self.is_full = False

    def write(self, descriptor: int, data: Buffer) -> int:
        if not self.is_full:
            return super().write(descriptor, data)
        if len(data) < 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(descriptor, data[: len(data) - 50])


async def test_a_line_for_which_there_is_no_room_leaves_nothing_behind(path: Path) -> None:
    disk = Full()
    with served_by(disk):
        async with FileCheckpointStorage(path) as storage:
            log = await opened(storage)
            await log.record_call(call("good"), supersedes=())
            disk.is_full = True
            refused = [log.record_call(call(name), supersedes=()) for name in ("one", "two")]
            outcomes = await asyncio.gather(*refused, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [StorageError, StorageError]
            disk.is_full = False
            assert written(path) == 1
            await log.record_call(call("after the repair"), supersedes=())
            await log.release()
            again = await opened(storage)
            assert names(again) == ["good", "after the repair"]
            await again.release()


async def test_whoever_was_taken_over_can_not_write_with_a_journal_it_still_has_open(path: Path) -> None:
    async with FileCheckpointStorage(path) as frozen, FileCheckpointStorage(path) as other:
        log = await opened(frozen)
        await log.record_call(call("mine"), supersedes=())
        await frozen._release(log._fence, None, None)  # type: ignore[attr-defined] # as if its lease had run out
        theirs = await opened(other)
        assert names(theirs) == ["mine"]
        with pytest.raises(RunTakenOver):
            await log.record_call(call("late"), supersedes=())
        await theirs.record_call(call("theirs"), supersedes=())
        await theirs.release()
        again = await opened(other)
        assert names(again) == ["mine", "theirs"]
        await again.release()


async def test_a_journal_that_was_removed_under_its_holders_hands_is_an_error_and_not_a_silent_loss(path: Path) -> None:
    async with FileCheckpointStorage(path) as storage:
        log = await opened(storage)
        await log.record_call(call("one"), supersedes=())
        journal_of(path).unlink()
        with pytest.raises(StorageError, match="shorter than what was written"):
            await log.record_call(call("two"), supersedes=())


def test_a_forked_child_keeps_no_file_of_its_parents_open(path: Path) -> None:
    script = """
        import asyncio, os, sys, warnings
        from pathlib import Path
        from stepwell.checkpointing.storage.file import FileCheckpointStorage
        from stepwell.testing.storage import call, opened
        from tests.checkpointing.test_file_journal import open_files

        def kept_open():
            return [each for each in open_files() if each.is_relative_to(sys.argv[1])]

        async def main():
            async with FileCheckpointStorage(sys.argv[1]) as storage:
                log = await opened(storage)
                await log.record_call(call("one"), supersedes=())
                assert len(kept_open()) > 2
                warnings.simplefilter("ignore", DeprecationWarning)  # to fork while there are threads
                child = os.fork()
                if child == 0:
                    os._exit(len(kept_open()))
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                await log.record_call(call("two"), supersedes=())
                await log.release()

        asyncio.run(main())
    """
    root = Path(__file__).parents[2]
    arguments = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=root, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")


# --- lines that are missing -------------------------------------------------------------------------------------------


async def three_calls(path: Path) -> None:
    """A run that was given back in the middle of a superstep: it failed, say."""
    async with FileCheckpointStorage(path) as storage:
        log = await opened(storage)
        await log.save(draft(1))
        for name in ("one", "two", "three"):
            await log.record_call(call(name), supersedes=())
        await log.release(state="FAILED")


def lose_lines(file: Path, lines: int) -> None:
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-lines]))


@pytest.mark.parametrize("lines", [1, 2, 3])
async def test_whole_lines_that_are_missing_from_the_end_of_a_journal_are_noticed(path: Path, lines: int) -> None:
    await three_calls(path)
    lose_lines(journal_of(path), lines)
    async with FileCheckpointStorage(path) as storage:
        with pytest.raises(CheckpointDamaged, match="lines at its end are missing") as caught:
            await opened(storage)
        newest = await storage.newest_checkpoint_id("run-1")
        assert caught.value.good_ancestor == newest
        assert not (await storage.verify()).ok


async def test_a_missing_journal_is_noticed(path: Path) -> None:
    await three_calls(path)
    journal_of(path).unlink()
    async with FileCheckpointStorage(path) as storage:
        with pytest.raises(CheckpointDamaged, match="lines at its end are missing"):
            await storage.list_calls("run-1")


async def test_calls_that_a_resumer_has_found_are_missed_when_they_are_gone_although_it_died(path: Path) -> None:
    async with FileCheckpointStorage(path) as storage:
        log = await opened(storage)
        for name in ("one", "two"):
            await log.record_call(call(name), supersedes=())
    async with FileCheckpointStorage(path) as storage:  # the first one was closed without giving the run back
        assert names(await opened(storage)) == ["one", "two"]
    lose_lines(journal_of(path), 1)
    async with FileCheckpointStorage(path) as storage:
        with pytest.raises(CheckpointDamaged, match="lines at its end are missing"):
            await opened(storage)


async def test_calls_that_a_checkpoint_has_forgotten_are_not_missed(path: Path) -> None:
    await three_calls(path)
    async with FileCheckpointStorage(path) as storage:
        log = await opened(storage)
        await log.save(draft(2, final=True))
        assert written(path) == 0
        assert names(await opened(storage)) == []
        assert (await storage.verify()).ok


async def test_audited_calls_that_are_missing_are_noticed(path: Path) -> None:
    async with FileCheckpointStorage(path, audit=True) as storage:
        log = await opened(storage)
        for n in range(3):
            await log.record_call(call(f"call-{n}"), supersedes=())
            await log.save(draft(n, final=n == 2))
    lose_lines(journal_of(path), 1)
    async with FileCheckpointStorage(path) as storage:
        with pytest.raises(CheckpointDamaged, match="lines at its end are missing"):
            await storage.list_calls("run-1")


async def test_a_record_that_has_lost_what_the_journal_knows_of_is_noticed(path: Path) -> None:
    async with FileCheckpointStorage(path) as storage:
        log = await opened(storage)
        await log.save(draft(1))
        await log.save(draft(2))
        await log.record_call(call("ask"), supersedes=())
    lose_lines(record_of(path), 1)
    for checkpoint in path.glob("*2.json"):
        checkpoint.unlink()  # so that only the journal knows of it
    (path / ".stepwell" / "index").unlink()
    async with FileCheckpointStorage(path) as storage:
        with pytest.raises(CheckpointDamaged, match="lacks notes"):
            await opened(storage)


@pytest.mark.parametrize("lines", [1, 2])
async def test_saves_that_are_missing_from_the_end_of_a_record_are_noticed_without_the_index(
    path: Path, lines: int
) -> None:
    async with FileCheckpointStorage(path) as storage:
        log = await opened(storage)
        for n in (1, 2, 3):
            await log.save(draft(n))
        await (await opened(storage, "run-2")).save(draft(1, final=True))
    lose_lines(record_of(path), lines)
    (path / ".stepwell" / "index").unlink()  # as after a restart of the machine
    async with FileCheckpointStorage(path) as storage:
        with pytest.raises(CheckpointDamaged, match="its last lines are missing"):
            await opened(storage)
        with pytest.raises(CheckpointDamaged, match="its last lines are missing"):
            await storage.get_latest(run_id="run-1")
        assert (await storage.get_latest(run_id="run-2")) is not None
        assert await storage.delete_run("run-1")
        assert (await storage.verify()).ok


async def test_a_record_of_which_only_the_first_line_is_left_is_damaged(path: Path) -> None:
    async with FileCheckpointStorage(path) as storage:
        await (await opened(storage)).release()
    file = record_of(path)
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0])
    (path / ".stepwell" / "index").unlink(missing_ok=True)
    async with FileCheckpointStorage(path) as storage:
        with pytest.raises(CheckpointDamaged):
            await opened(storage)


async def test_a_removed_checkpoint_whose_file_stayed_does_not_make_its_run_a_damaged_one(path: Path) -> None:
    async with FileCheckpointStorage(path) as storage:
        log = await opened(storage)
        await log.save(draft(1))
        newest = await log.save(draft(2, final=True))
        file = path / f"{newest.checkpoint_id}.json"
        content = file.read_bytes()
        assert await storage.delete(newest.checkpoint_id)
        file.write_bytes(content)  # as if its remover had been killed before it removed the file
    (path / ".stepwell" / "index").unlink()
    async with FileCheckpointStorage(path) as storage:
        assert len(await storage.list_checkpoints(run_id="run-1")) == 1
        await (await opened(storage)).release()
