"""The file storage passes the contracts that every storage passes, and keeps its own promises about the files."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from stepwell.checkpointing import FULL_HISTORY, LATEST_ONLY, Retention
from stepwell.checkpointing.checkpoint import CheckpointContent, RecordedOutput, WorkflowMessage
from stepwell.checkpointing.registry import known_types
from stepwell.checkpointing.storage.file import FileCheckpointStorage
from stepwell.checkpointing.storage.file_operations import Buffer, Disk, served_by
from stepwell.errors import (
    CheckpointDamaged,
    FormatTooNew,
    StorageError,
)
from stepwell.testing import CheckpointStorageContract, RunStorageContract
from stepwell.testing.storage import (
    Label,
    Reopen,
    branched,
    call,
    checkpoint,
    draft,
    finished_run,
    opened,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def storage(path: Path) -> AsyncIterator[FileCheckpointStorage]:
    async with FileCheckpointStorage(path) as storage:
        yield storage


@pytest.fixture
async def reopen() -> AsyncIterator[Reopen]:
    reopened: list[FileCheckpointStorage] = []

    async def again(storage: FileCheckpointStorage) -> FileCheckpointStorage:
        await storage.close()
        reopened.append(FileCheckpointStorage(storage.storage_path, retention=storage.retention, audit=storage.audit))
        return reopened[-1]

    yield again
    for storage in reopened:
        await storage.close()


class TestTheSixMethods(CheckpointStorageContract):
    pass


class TestRuns(RunStorageContract):
    pass


def record_of(path: Path, run_id: str = "run-1") -> Path:
    return path / ".stepwell" / "runs" / run_id / "run.jsonl"


def journal_of(path: Path, run_id: str = "run-1") -> Path:
    return record_of(path, run_id).with_name("journal.jsonl")


def child(script: str, *args: object) -> str:
    """Run a script in a process of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert done.returncode in (0, -9), done.stderr
    return done.stdout.strip()


def history(n: int) -> dict[str, Any]:
    return {"n": n, "items": [{"n": n, "i": i, "text": "x" * 600} for i in range(20)]}


# --- the directory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [str, Path])
async def test_the_path_is_given_by_position_or_by_name(path: Path, kind: Any) -> None:
    async with FileCheckpointStorage(kind(path)) as one, FileCheckpointStorage(storage_path=kind(path)) as other:
        await one.save(checkpoint())
        assert one.storage_path == other.storage_path == path
        assert (await other.load("c1")).state == {"number": 1}


async def test_each_checkpoint_is_a_json_file_that_people_can_read(storage: FileCheckpointStorage, path: Path) -> None:
    log = await opened(storage)
    content = CheckpointContent(
        messages={"desk": [WorkflowMessage("naïve ☃", "desk", "van")]},
        state={"count": 3, "long": "x" * 20_000},
        outputs=[RecordedOutput("van", "output", "done", "e1", 2)],
    )
    saved = await log.save(draft(7, content=content, final=True))

    assert [entry.name for entry in path.iterdir() if entry.suffix == ".json"] == [f"{saved.checkpoint_id}.json"]
    text = (path / f"{saved.checkpoint_id}.json").read_text(encoding="utf-8")
    data = json.loads(text)
    assert (data["header"]["iteration"], data["header"]["run"]) == (7, "run-1")
    assert "naïve ☃" in text
    assert data["content"]["state"]["count"] == 3
    assert len(text) < 2000, "large values are in the run's own file"
    assert data["digest"] == saved.digest


async def test_only_the_owner_can_read_what_is_kept(path: Path) -> None:
    async with FileCheckpointStorage(path) as storage:
        log = await opened(storage)
        await log.record_call(call("a"), supersedes=())
        await log.save(draft(1))
        modes = {entry: stat.S_IMODE(entry.stat().st_mode) for entry in [path, *path.rglob("*")]}
        await log.release()
    assert {mode for entry, mode in modes.items() if entry.is_dir()} == {0o700}
    assert {mode for entry, mode in modes.items() if entry.is_file()} == {0o600}


async def test_no_temporary_file_is_left(storage: FileCheckpointStorage, path: Path) -> None:
    for n in range(5):
        await storage.save(checkpoint(n))
    assert [entry for entry in path.rglob("*") if entry.name.endswith(".tmp")] == []


async def test_files_of_others_in_the_directory_are_left_alone(path: Path) -> None:
    path.mkdir()
    (path / "notes.json").write_text("{}")
    (path / "notes.txt").write_text("mine")
    async with FileCheckpointStorage(path) as storage:
        await storage.save(checkpoint())
        assert await storage.list_checkpoint_ids() == ["c1"]
        await storage.delete("c1")
    assert sorted(entry.name for entry in path.iterdir()) == [".stepwell", "notes.json", "notes.txt"]


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["missing", "empty", "a damaged line", "cut", "of another boot", "a link"])
async def test_the_index_is_made_anew_when_it_can_not_be_relied_on(path: Path, tmp_path: Path, what: str) -> None:
    async with FileCheckpointStorage(path) as storage:
        for number, run in enumerate(("a", "b", "a", "c"), 1):
            await storage.save(checkpoint(number, run=run, workflow="w" if run == "a" else "v"))
    index = path / ".stepwell" / "index"
    data = index.read_bytes()
    changed = {
        "empty": b"",
        "a damaged line": data.replace(b'"c"', b'"d"'),
        "cut": data[: data.index(b"\n") + 1],
        "of another boot": data[data.index(b"\n") + 1 :],
    }
    if what in ("missing", "a link"):
        index.unlink()
    else:
        index.write_bytes(changed[what])
    if what == "a link":
        (tmp_path / "elsewhere").write_bytes(data)
        index.symlink_to(tmp_path / "elsewhere")
    if what == "cut":  # lines are lost with a crash of the machine, which has another boot id afterwards
        index.write_bytes(b"")
    async with FileCheckpointStorage(path) as storage:
        latest = {name: await storage.get_latest(workflow_name=name) for name in (None, "w", "v")}
        assert {name: found and found.checkpoint_id for name, found in latest.items()} == {
            None: "c4",
            "w": "c3",
            "v": "c4",
        }
        assert await storage.list_checkpoint_ids() == ["c1", "c2", "c3", "c4"]


async def test_the_latest_is_found_without_looking_at_other_runs(path: Path) -> None:
    async with FileCheckpointStorage(path) as storage:
        for n in range(6):
            await storage.save(checkpoint(n, run=f"run-{n}"))
        for n in range(5):  # nobody looks here, or it would be noticed
            record_of(path, f"run-{n}").write_bytes(b"rubbish")
        latest = await storage.get_latest(workflow_name="delivery")
        assert latest is not None
        assert latest.checkpoint_id == "c5"


# --- deleting ---------------------------------------------------------------------------------------------------------


async def test_saving_an_id_that_another_run_has_moves_it(storage: FileCheckpointStorage) -> None:
    await storage.save(checkpoint(1, run="a"))
    await storage.save(checkpoint(2, run="a"))
    await storage.save(checkpoint(1, run="b", state={"mine": True}))
    assert await storage.list_checkpoint_ids(run_id="a") == ["c2"]
    assert (await storage.load("c1")).state == {"mine": True}


# --- the journal ------------------------------------------------------------------------------------------------------


async def journalled(path: Path, *, release: bool = True) -> list[bytes]:
    async with FileCheckpointStorage(path) as storage:
        log = await opened(storage)
        for name in ("one", "two", "three"):
            await log.record_call(call(name), supersedes=())
        if release:
            await log.release()
    lines = journal_of(path).read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    return lines


@pytest.mark.parametrize("length", [1, 20, 80, -2])
async def test_a_torn_last_line_counts_as_not_recorded(path: Path, length: int) -> None:
    lines = await journalled(path, release=False)  # whoever leaves a torn line behind gives nothing back
    journal_of(path).write_bytes(lines[0] + lines[1] + lines[2][:length])
    async with FileCheckpointStorage(path) as storage:
        log = await opened(storage)
        assert [row.name for row in log.calls] == ["one", "two"]
        await log.record_call(call("four"), supersedes=())
        await log.release()
        assert [row.name for row in (await opened(storage)).calls] == ["one", "two", "four"]


@pytest.mark.parametrize("line", [0, 1, 2])
async def test_a_line_that_was_whole_and_is_damaged_is_an_error_and_the_run_is_not_taken(path: Path, line: int) -> None:
    lines = await journalled(path)
    lines[line] = lines[line].replace(b"done", b"gone")
    journal_of(path).write_bytes(b"".join(lines))
    async with FileCheckpointStorage(path) as storage:
        with pytest.raises(CheckpointDamaged, match=f"line {line + 1}"):
            await opened(storage)
        assert [run.holder for run in await storage.list_runs()] == [None]
        assert [each.record for each in (await storage.verify()).damaged] == [f"journal of run run-1, line {line + 1}"]


async def test_the_journal_of_another_run_is_not_taken_for_this_ones(path: Path) -> None:
    lines = await journalled(path)
    async with FileCheckpointStorage(path) as storage:
        await finished_run(storage, "run-2")
        journal_of(path, "run-2").write_bytes(b"".join(lines))
        with pytest.raises(CheckpointDamaged, match="journal of run run-2"):
            await opened(storage, "run-2")


# --- dying at every step ----------------------------------------------------------------------------------------------

DYING = """
    import asyncio, os, signal, sys, threading
    from stepwell.checkpointing.storage import file_commit, file_disk, file_journal, file_plan, file_runs, file_sweep
    from stepwell.checkpointing import LATEST_ONLY, FULL_HISTORY
    from stepwell.checkpointing.storage.file import FileCheckpointStorage
    from stepwell.testing.storage import Label, call, draft, opened

    path, event, name, turn, retention = sys.argv[1:]
    turn = int(turn)
    armed = False

    def watch(frame, what, arg):
        global turn
        if not armed or what != event or frame.f_code.co_qualname != name:
            return
        turn -= 1
        if turn == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(watch)

    async def main():
        global armed
        storage = FileCheckpointStorage(path, retention=LATEST_ONLY if retention == "latest" else FULL_HISTORY)
        log = await opened(storage)
        labels = [Label(f"{n} " + "x" * 300) for n in range(20)]
        armed = True
        for n in range(1, 9):
            await log.record_call(call(f"call-{n}"), supersedes=())
            print("call", n, flush=True)
            await log.save(draft(n, {"n": n, "history": labels * n, "text": f"{n}" * 6000}))
            print("saved", n, flush=True)
        await log.release()
        await storage.close()

    asyncio.run(main())
"""

STEPS = [
    ("call", "Append.begin", 3),
    ("return", "Append.begin", 4),
    ("return", "Temporary.begin", 2),
    ("call", "Syncing.plans", 4),
    ("return", "Syncing.plans", 4),
    ("return", "Plan.publish", 4),
    ("call", "Syncing.folders", 4),
    ("return", "Syncing.folders", 4),
    ("call", "Index.append", 2),
    ("return", "Index.append", 2),
    ("call", "FileCommit._remember", 4),
    ("return", "empty", 2),
    ("call", "sweep", 1),
    ("call", "rewrite", 1),
    ("return", "write_all", 12),
    ("call", "replace_file", 1),
    ("return", "replace_file", 1),
]


@pytest.mark.parametrize("retention", ["full", "latest"])
@pytest.mark.parametrize("step", STEPS, ids=[f"{event} {name}" for event, name, _ in STEPS])
async def test_killed_at_any_step_of_a_write_nothing_acknowledged_is_lost(
    path: Path, step: tuple[str, str, int], retention: str
) -> None:
    printed = await asyncio.to_thread(child, DYING, path, *step, retention)
    told = [line.split() for line in printed.splitlines()]
    saved = max((int(n) for what, n in told if what == "saved"), default=0)
    called = max((int(n) for what, n in told if what == "call"), default=0)

    async with FileCheckpointStorage(path) as storage:
        found = await storage.get_latest(workflow_name="delivery")
        assert (found.iteration_count if found else 0) in (saved, saved + 1)
        log = await opened(storage)  # at once: its holder is dead
        latest = await log.latest(known_types)
        number = latest.iteration_count if latest else 0
        assert number in (saved, saved + 1)
        expected = [f"call-{called}"] if number < called else []
        assert [row.name for row in log.calls] in (expected, [f"call-{number + 1}"])
        if latest is not None:
            assert latest.state["text"] == f"{number}" * 6000
            assert len(latest.state["history"]) == 20 * number
        more = await log.save(draft(100, {"label": Label("z" * 300)}, final=True))
        assert (await storage.verify()).ok, await storage.verify()
        newest = await storage.get_latest()
        assert newest is not None
        assert newest.checkpoint_id == more.checkpoint_id
        assert [entry for entry in path.rglob("*") if entry.name.endswith(".json.tmp")] == []


async def test_killed_while_a_run_is_deleted_it_is_gone_or_whole(path: Path) -> None:
    script = """
        import asyncio, os, signal, sys, threading
        from stepwell.checkpointing.storage.file import FileCheckpointStorage
        from stepwell.testing.storage import branched

        path, event, name = sys.argv[1:]

        def watch(frame, what, arg):
            if what == event and frame.f_code.co_qualname == name:
                os.kill(os.getpid(), signal.SIGKILL)

        async def main():
            threading.setprofile(watch)
            storage = FileCheckpointStorage(path)
            await branched(storage)
            await storage.delete_run("trunk")

        asyncio.run(main())
    """
    steps = [("call", "depart"), ("return", "depart"), ("call", "bury"), ("call", "sweep"), ("call", "_leave_behind")]
    for number, (event, name) in enumerate(steps):
        place = path.with_name(f"store-{number}")
        await asyncio.to_thread(child, script, place, event, name)
        async with FileCheckpointStorage(place) as storage:
            await finished_run(storage, "other")
            runs = {run.run_id for run in await storage.list_runs()}
            assert runs == {"branch", "other"} | ({"trunk"} if name == "depart" and event == "call" else set())
            assert (await storage.verify()).ok
            branch = await storage.get_latest(run_id="branch")
            assert branch is not None
            assert len(branch.state["history"]) == 40
            assert (await storage.get_latest(run_id="trunk") is None) == ("trunk" not in runs)


@pytest.mark.parametrize("missing", [0, 1], ids=["the first", "one in the middle"])
async def test_a_line_that_was_taken_out_of_the_journal_is_noticed(path: Path, missing: int) -> None:
    async with FileCheckpointStorage(path) as storage:
        log = await opened(storage)
        for name in ("a", "b", "c"):
            await log.record_call(call(name), supersedes=())
        await log.release()
    lines = journal_of(path).read_bytes().splitlines(keepends=True)
    journal_of(path).write_bytes(b"".join(line for number, line in enumerate(lines) if number != missing))
    async with FileCheckpointStorage(path) as storage:
        with pytest.raises(CheckpointDamaged, match=r"journal of run run-1.*are missing"):
            await opened(storage)
        assert not (await storage.verify()).ok


SMALL_FILES = {"the format": "format", "the index": "index"}


@pytest.mark.parametrize("pattern", SMALL_FILES.values(), ids=SMALL_FILES.keys())
async def test_every_bit_of_the_small_files_is_noticed_or_changes_nothing(path: Path, pattern: str) -> None:
    async with FileCheckpointStorage(path) as storage:
        await branched(storage)
        before = {each.checkpoint_id: each.state for each in await storage.list_checkpoints()}
        newest = (await storage.list_checkpoint_ids())[-1]
    (file,) = [each for each in (path / ".stepwell").glob(pattern) if each.stat().st_size]
    good = file.read_bytes()
    for bit in range(0, len(good) * 8, max(1, len(good) * 8 // 150)):
        changed = bytearray(good)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        async with FileCheckpointStorage(path) as storage:
            with suppress(CheckpointDamaged, FormatTooNew, StorageError):
                found = {each.checkpoint_id: each.state for each in await storage.list_checkpoints()}
                latest = await storage.get_latest()
                assert found == before
                assert latest is not None
                assert latest.checkpoint_id == newest
        file.write_bytes(good)


async def test_every_bit_of_a_familys_names_is_noticed_before_a_value_that_a_branch_needs_is_removed(
    path: Path,
) -> None:
    async with FileCheckpointStorage(path) as storage:
        await branched(storage)
    (file,) = [each for each in (path / ".stepwell" / "families").iterdir() if each.stat().st_size]
    size = file.stat().st_size * 8
    for bit in range(0, size, size // 60):
        place = shutil.copytree(path, path.with_name(f"store-{bit}"))
        changed = bytearray(file.read_bytes())
        changed[bit // 8] ^= 1 << bit % 8
        (place / file.relative_to(path)).write_bytes(changed)
        async with FileCheckpointStorage(place) as storage:
            with pytest.raises(CheckpointDamaged, match="members can't be read"):
                await storage.delete_run("trunk")
            branch = await storage.get_latest(run_id="branch")
            assert branch is not None
            assert len(branch.state["history"]) == 40


# --- a disk that fails ------------------------------------------------------------------------------------------------


class FailsOnce(Disk):
    """The n-th change fails with an I/O error; all others are what they should be."""

    def __init__(self, n: int) -> None:
        self.left = n

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def write(self, descriptor: int, data: Buffer) -> int:
        self._count()
        return super().write(descriptor, data)

    def truncate(self, descriptor: int, size: int) -> None:
        self._count()
        super().truncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        self._count()
        super().sync(descriptor)

    def rename(self, path: Path, target: Path) -> None:
        self._count()
        super().rename(path, target)

    def unlink(self, path: Path) -> None:
        self._count()
        super().unlink(path)


@pytest.mark.parametrize("retention", [FULL_HISTORY, LATEST_ONLY], ids=["all", "latest"])
async def test_whichever_operation_of_a_superstep_fails_nothing_acknowledged_is_lost_and_the_run_goes_on(
    path: Path, retention: Retention
) -> None:
    """Asked again and again, with the next operation failing, until there is none left to fail."""
    for n in count(1):
        place = path.with_name(f"store-{n}")
        disk = FailsOnce(n)
        async with FileCheckpointStorage(place, retention=retention) as storage:
            log = await opened(storage)
            await log.save(draft(1, history(1)))
            done = ["saved 1"]
            with served_by(disk), suppress(StorageError):
                await log.record_call(call("ask"), supersedes=())
                done.append("call")
                await log.save(draft(2, history(2)))
                done.append("saved 2")
            await log.release()
            assert (await storage.verify()).ok
            await go_on_from(storage, done)
        async with FileCheckpointStorage(place) as storage:
            assert (await storage.verify()).ok
            latest = await storage.get_latest(run_id="run-1")
            assert latest is not None
            assert latest.state == history(3)
        if disk.left > 0:
            assert n > 8, "a superstep takes more operations than that"
            return


async def go_on_from(storage: FileCheckpointStorage, done: list[str]) -> None:
    """The run, opened again by the same storage, has what was acknowledged, and takes another checkpoint."""
    log = await opened(storage)
    latest = await log.latest(known_types)
    assert latest is not None
    # What was refused may be there as well: an fsync that fails does not tell what it has done.
    assert latest.iteration_count in ({2} if "saved 2" in done else {1, 2})
    assert latest.state == history(latest.iteration_count)
    if latest.iteration_count == 1 and "call" in done:
        assert [row.name for row in log.calls] == ["ask"]
    await log.save(draft(3, history(3), final=True))
