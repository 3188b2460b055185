"""The SQLite storage passes the contracts that every storage passes, and keeps its own promises about the file."""

from __future__ import annotations

import asyncio
import gc
import gzip
import os
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stepwell.checkpointing import FULL_HISTORY, LATEST_ONLY, keep_last
from stepwell.checkpointing.registry import known_types
from stepwell.checkpointing.storage import sqlite_reading
from stepwell.checkpointing.storage.protocol import BranchPoint, RunLog
from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
from stepwell.checkpointing.storage.sqlite_schema import SCHEMA_VERSION, connect_writer
from stepwell.errors import (
    AlreadyAnswered,
    CheckpointDamaged,
    CheckpointNotFound,
    FormatTooNew,
    RunBusy,
    RunTakenOver,
    StorageClosed,
    StorageError,
)
from stepwell.testing import CheckpointStorageContract, RunStorageContract
from stepwell.testing.storage import (
    Label,
    Reopen,
    asked,
    branched,
    call,
    checkpoint,
    decided,
    draft,
    finished_run,
    opened,
)
from tests.histories.office import HERE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
async def storage(path: Path) -> AsyncIterator[SQLiteCheckpointStorage]:
    async with SQLiteCheckpointStorage(path) as storage:
        yield storage


@pytest.fixture
async def reopen() -> AsyncIterator[Reopen]:
    reopened: list[SQLiteCheckpointStorage] = []

    async def again(storage: SQLiteCheckpointStorage) -> SQLiteCheckpointStorage:
        await storage.close()
        reopened.append(SQLiteCheckpointStorage(storage.path, retention=storage.retention, audit=storage.audit))
        return reopened[-1]

    yield again
    for storage in reopened:
        await storage.close()


class TestTheSixMethods(CheckpointStorageContract):
    pass


class TestRuns(RunStorageContract):
    pass


@contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """The database as SQLite itself sees it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def count(path: Path, table: str) -> int:
    with raw(path) as connection:
        (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(rows)


def threads(path: Path) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == f"stepwell-write {path.name}"]


# --- the file ---------------------------------------------------------------------------------------------------------


async def test_nothing_is_created_before_the_first_use(tmp_path: Path) -> None:
    async with SQLiteCheckpointStorage(tmp_path / "folder" / "runs.db"):
        pass
    assert list(tmp_path.iterdir()) == []


async def test_only_the_owner_can_read_what_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "runs.db"
    async with SQLiteCheckpointStorage(path) as storage:
        await storage.save(checkpoint())
        modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in path.parent.iterdir()}
    assert modes == {"runs.db": 0o600, "runs.db-wal": 0o600, "runs.db-shm": 0o600, "runs.db.holders": 0o700}
    assert stat.S_IMODE(path.parent.stat().st_mode) == stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", [":memory:", "", "file:runs.db?mode=memory"])
def test_a_database_that_is_no_file_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="InMemoryCheckpointStorage"):
        SQLiteCheckpointStorage(name)


async def test_a_relative_path_means_the_directory_it_was_given_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with SQLiteCheckpointStorage("runs.db") as storage:
        monkeypatch.chdir(tmp_path / "elsewhere")
        await storage.save(checkpoint())
    assert (tmp_path / "runs.db").exists()


async def test_a_path_with_odd_characters_is_a_path(tmp_path: Path) -> None:
    path = tmp_path / "50% off?mode=ro#1 ☃.db"
    async with SQLiteCheckpointStorage(path) as storage:
        await storage.save(checkpoint())
        assert (await storage.load("c1")).state == {"number": 1}
    assert path.exists()


async def test_a_closed_storage_leaves_one_file_and_an_empty_folder(path: Path) -> None:
    async with SQLiteCheckpointStorage(path) as storage:
        await storage.save(checkpoint())
        await storage.load("c1")
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["runs.db", "runs.db.holders"]
    assert list((path.parent / "runs.db.holders").iterdir()) == []
    assert count(path, "holders") == 0


async def test_every_commit_reaches_the_disk(storage: SQLiteCheckpointStorage, path: Path) -> None:
    await storage.save(checkpoint())
    with raw(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    # FULL is a property of the writing connection, so it has to be asked there.
    script = """
        from pathlib import Path
        import sys
        from stepwell.checkpointing.storage.sqlite_schema import connect_writer
        print(connect_writer(Path(sys.argv[1])).execute("PRAGMA synchronous").fetchone()[0])
    """
    assert child(script, path) == "2"


async def test_a_later_schema_is_refused_by_name(path: Path) -> None:
    async with SQLiteCheckpointStorage(path) as storage:
        await storage.save(checkpoint())
    with raw(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    async with SQLiteCheckpointStorage(path) as storage:
        with pytest.raises(FormatTooNew, match="schema 99"):
            await storage.load("c1")
        with pytest.raises(FormatTooNew, match="schema 99"):
            await storage.save(checkpoint(2))


@pytest.fixture
def first_version(path: Path) -> Path:
    """A database as the first version has left it."""
    path.write_bytes(gzip.decompress((HERE / "1" / "sqlite-1.db.gz").read_bytes()))
    return path


def version_of(path: Path) -> int:
    with raw(path) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


async def test_a_database_of_the_first_version_is_brought_up_to_date_once_by_whoever_comes_first(
    first_version: Path,
) -> None:
    assert version_of(first_version) == 1
    for connection in await asyncio.gather(*(asyncio.to_thread(connect_writer, first_version) for _ in range(6))):
        connection.close()
    assert version_of(first_version) == SCHEMA_VERSION
    async with SQLiteCheckpointStorage(first_version) as storage:
        assert (await storage.verify()).ok
        assert {run.run_id for run in await storage.list_runs()} == {"cut", "finished", "waiting"}


async def test_a_database_that_can_not_be_brought_up_to_date_stays_as_it_is(first_version: Path) -> None:
    with raw(first_version) as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE UPDATE ON requests BEGIN SELECT RAISE(ABORT, 'there is no room'); END"
        )
        before = list(connection.iterdump())
    async with SQLiteCheckpointStorage(first_version) as storage:
        with pytest.raises(StorageError, match="there is no room"):
            await storage.list_runs()
        with raw(first_version) as connection:
            assert list(connection.iterdump()) == before
            assert version_of(first_version) == 1
            connection.execute("DROP TRIGGER full")
        assert len(await storage.list_runs()) == 3
        assert (await storage.verify()).ok


async def test_a_call_that_was_damaged_before_there_were_seals_stays_damaged(first_version: Path) -> None:
    with raw(first_version) as connection:
        connection.execute("UPDATE calls SET body = replace(body, 'CUT', 'PUT')")
    async with SQLiteCheckpointStorage(first_version) as storage:
        assert {each.record.split()[0] for each in (await storage.verify()).damaged} == {"call"}
        with pytest.raises(CheckpointDamaged, match="call"):
            await opened(storage, "cut")


async def test_the_database_of_another_program_is_left_alone(path: Path) -> None:
    with raw(path) as connection:
        connection.execute("CREATE TABLE accounts (id)")
    before = path.read_bytes()
    async with SQLiteCheckpointStorage(path) as storage:
        with pytest.raises(StorageError, match="another program"):
            await storage.save(checkpoint())
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_is_named(path: Path) -> None:
    path.write_bytes(b"this is a letter to my aunt, and quite a long one" * 100)
    async with SQLiteCheckpointStorage(path) as storage:
        with pytest.raises(StorageError, match=r"runs\.db.*not a database"):
            await storage.save(checkpoint())


async def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    async with SQLiteCheckpointStorage(tmp_path / "a file" / "runs.db") as storage:
        with pytest.raises(StorageError, match=r"a file/runs\.db"):
            await storage.get_latest()


# --- opening and closing ----------------------------------------------------------------------------------------------


async def test_storages_for_one_path_share_one_thread_until_the_last_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    one, other = SQLiteCheckpointStorage(path), SQLiteCheckpointStorage(path)
    await one.save(checkpoint(1))
    await other.save(checkpoint(2))
    assert len(threads(path)) == 1
    await one.close()
    assert await other.list_checkpoint_ids() == ["c1", "c2"]
    await other.close()
    while threads(path):  # it has nothing left to do but to end
        await asyncio.sleep(0.001)


async def test_closing_twice_does_nothing(storage: SQLiteCheckpointStorage) -> None:
    await storage.save(checkpoint())
    await storage.close()
    await storage.close()


async def test_a_closed_storage_says_so(storage: SQLiteCheckpointStorage) -> None:
    await storage.save(checkpoint())
    (listed,) = await storage.list_checkpoints()
    await storage.close()
    with pytest.raises(StorageClosed):
        await storage.load("c1")
    with pytest.raises(StorageClosed):
        await storage.save(checkpoint(2))
    with pytest.raises(StorageClosed):
        _ = listed.state


async def test_closing_waits_for_what_is_being_written(path: Path) -> None:
    storage = SQLiteCheckpointStorage(path)
    log = await opened(storage)
    saving = asyncio.create_task(log.save(draft(1, {"kept": True})))
    await asyncio.sleep(0)
    await storage.close()
    saved = await saving

    async with SQLiteCheckpointStorage(path) as again:
        assert (await again.load(saved.checkpoint_id)).state == {"kept": True}


async def test_runs_are_free_once_their_storage_is_closed(path: Path) -> None:
    storage = SQLiteCheckpointStorage(path)
    await opened(storage)
    await storage.close()
    async with SQLiteCheckpointStorage(path) as other:
        await opened(other)


async def test_a_storage_dropped_open_warns_and_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "dropped.db"

    async def forget() -> None:
        await opened(SQLiteCheckpointStorage(path))
        gc.collect()

    with pytest.warns(ResourceWarning, match=r"dropped\.db.*dropped open"):
        await forget()
    while threads(path):
        await asyncio.sleep(0.001)
    assert list((tmp_path / "dropped.db.holders").iterdir()) == []


async def test_one_storage_serves_event_loops_in_several_threads(storage: SQLiteCheckpointStorage) -> None:
    async def work(name: str) -> None:
        log = await opened(storage, name)
        for n in range(5):
            await log.save(draft(n, {"name": name, "n": n}))
        await log.release()

    await asyncio.gather(work("here"), *[asyncio.to_thread(asyncio.run, work(f"run-{n}")) for n in range(3)])

    for name in ("here", "run-0", "run-1", "run-2"):
        latest = await storage.get_latest(run_id=name)
        assert latest is not None
        assert latest.state == {"name": name, "n": 4}


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workflow", "run"), [(None, None), ("delivery", None), (None, "run-1"), ("delivery", "run-1")]
)
async def test_the_latest_is_looked_up_and_not_searched_for(
    storage: SQLiteCheckpointStorage, path: Path, workflow: str | None, run: str | None
) -> None:
    await finished_run(storage, "run-1")

    def explained() -> list[str]:
        statements: list[str] = []
        with raw(path) as connection:
            connection.set_trace_callback(statements.append)
            assert sqlite_reading.latest_checkpoint(connection, workflow, run) is not None
            connection.set_trace_callback(None)
            return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statements[0]}")]

    plan = await asyncio.to_thread(explained)
    steps = [step for step in plan if step.startswith(("SCAN", "SEARCH", "USE TEMP"))]
    # Without a condition, "scan" means to walk the table from its end; the limit stops that at the first row.
    first, *others = steps
    assert first.startswith("SEARCH") or (first == "SCAN c" and workflow is run is None)
    assert all(step.startswith("SEARCH") for step in others)


async def test_content_is_read_when_it_is_asked_for(storage: SQLiteCheckpointStorage) -> None:
    log = await opened(storage)
    saved = await log.save(draft(1, {"history": [Label(f"{n}" * 100) for n in range(40)]}, final=True))
    (listed,) = await storage.list_checkpoints()
    assert (await asyncio.to_thread(lambda: listed.state)) == (await asyncio.to_thread(lambda: saved.state))


async def test_a_read_sees_one_instant_while_the_run_goes_on(path: Path) -> None:
    """With LATEST_ONLY the checkpoint being read is deleted under the reader's hands, again and again."""
    async with SQLiteCheckpointStorage(path, retention=LATEST_ONLY) as storage:
        log = await opened(storage)
        await log.save(draft(0, _history(0)))
        going = True

        async def run() -> None:
            nonlocal going
            for n in range(1, 120):
                await log.save(draft(n, _history(n)))
            going = False

        async def look() -> None:
            while going:
                latest = await storage.get_latest(run_id="run-1")
                assert latest is not None
                assert latest.state == _history(latest.iteration_count)

        await asyncio.gather(run(), look(), look())


def _history(n: int) -> dict[str, Any]:
    return {"n": n, "items": [{"n": n, "i": i, "text": "x" * 600} for i in range(20)]}


# --- groups -----------------------------------------------------------------------------------------------------------


async def _many(storage: SQLiteCheckpointStorage, names: list[str]) -> dict[str, RunLog]:
    return dict(zip(names, await asyncio.gather(*[opened(storage, name) for name in names]), strict=True))


async def test_one_who_may_not_write_does_not_disturb_the_others(storage: SQLiteCheckpointStorage, path: Path) -> None:
    logs = await _many(storage, [f"run-{n}" for n in range(30)])
    with raw(path) as connection:
        connection.execute("UPDATE runs SET epoch = epoch + 1 WHERE run_id = 'run-7'")
    saves = [log.save(draft(1, {"name": name}, final=True)) for name, log in logs.items()]
    outcomes = await asyncio.gather(*saves, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes if isinstance(outcome, Exception)] == [RunTakenOver]
    assert isinstance(outcomes[7], RunTakenOver)
    assert len(await storage.list_checkpoint_ids()) == 29


async def test_calls_and_checkpoints_of_a_group_are_each_fenced(storage: SQLiteCheckpointStorage, path: Path) -> None:
    logs = await _many(storage, [f"run-{n}" for n in range(10)])
    with raw(path) as connection:
        connection.execute("UPDATE runs SET epoch = epoch + 1 WHERE run_id IN ('run-3', 'run-4')")
    writes: list[Any] = [log.record_call(call("c"), supersedes=()) for log in list(logs.values())[:5]]
    writes += [log.save(draft(1)) for log in list(logs.values())[4:]]
    writes += [opened(storage, "run-0"), opened(storage, "new")]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)

    failed = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, Exception)]
    assert [(index, type(outcomes[index])) for index in failed] == [
        (3, RunTakenOver),
        (4, RunTakenOver),
        (5, RunTakenOver),
        (11, RunBusy),
    ]
    assert (count(path, "calls"), count(path, "checkpoints")) == (3, 5)


async def test_a_second_answer_in_a_group_is_refused_alone(storage: SQLiteCheckpointStorage) -> None:
    logs = await _many(storage, [f"run-{n}" for n in range(10)])
    await asyncio.gather(*[log.save(draft(1, pending=[asked("q")])) for log in logs.values()])
    await storage.answer("q", True, run_id="run-5")
    saves = [log.save(draft(2, decisions=[decided("q")], final=True)) for log in logs.values()]
    outcomes = await asyncio.gather(*saves, return_exceptions=True)

    assert [index for index, outcome in enumerate(outcomes) if isinstance(outcome, AlreadyAnswered)] == [5]
    assert sum(isinstance(outcome, Exception) for outcome in outcomes) == 1


async def test_a_value_that_sqlite_can_not_take_fails_alone(storage: SQLiteCheckpointStorage) -> None:
    logs = await _many(storage, ["good", "bad", "also-good"])
    saves = [
        logs["good"].save(draft(1)),
        logs["bad"].save(draft(2**70)),
        logs["also-good"].save(draft(1)),
    ]
    good, bad, also_good = await asyncio.gather(*saves, return_exceptions=True)
    assert isinstance(bad, OverflowError)
    assert await storage.list_checkpoint_ids() == [
        saved.checkpoint_id for saved in (good, also_good) if not isinstance(saved, BaseException)
    ]


async def test_thousands_of_writes_at_once_are_all_kept(storage: SQLiteCheckpointStorage, path: Path) -> None:
    async def work(name: str) -> None:
        log = await opened(storage, name)
        await asyncio.gather(*[log.record_call(call(f"call-{n}"), supersedes=()) for n in range(3)])
        await log.save(draft(1, {"name": name, "label": Label(name * 60)}))
        await log.save(draft(2, {"name": name}, final=True))

    await asyncio.gather(*[work(f"run-{n}") for n in range(1500)])

    assert (count(path, "runs"), count(path, "checkpoints"), count(path, "calls")) == (1500, 3000, 0)
    for name in ("run-0", "run-777", "run-1499"):
        first, second = await storage.list_checkpoints(run_id=name)
        assert (await storage.load(first.checkpoint_id)).state == {"name": name, "label": Label(name * 60)}
        assert (await storage.load(second.checkpoint_id)).state == {"name": name}


async def test_the_writes_of_one_run_keep_their_order(storage: SQLiteCheckpointStorage) -> None:
    log = await opened(storage)
    tasks = [
        asyncio.create_task(log.record_call(call("inner"), supersedes=())),
        asyncio.create_task(log.record_call(call("outer"), supersedes=[call("inner").call_id])),
        asyncio.create_task(log.save(draft(1))),
        asyncio.create_task(log.record_call(call("next"), supersedes=())),
        asyncio.create_task(log.release()),
    ]
    await asyncio.gather(*tasks)
    again = await opened(storage)
    assert [row.name for row in again.calls] == ["next"]


async def test_a_call_recorded_together_with_a_checkpoint_goes_with_the_next_one(
    storage: SQLiteCheckpointStorage, path: Path
) -> None:
    log = await opened(storage)
    await log.record_call(call("first"), supersedes=())
    await asyncio.gather(log.save(draft(1)), log.record_call(call("second"), supersedes=()))
    assert count(path, "calls") == 1
    await log.save(draft(2))
    assert count(path, "calls") == 0


# --- cancellation -----------------------------------------------------------------------------------------------------


async def test_a_cancelled_opening_gives_the_run_back(storage: SQLiteCheckpointStorage) -> None:
    await finished_run(storage, "run-1")
    opening = asyncio.create_task(opened(storage))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert (await opened(storage)).info is not None


async def test_nothing_is_written_after_a_cancelled_save_has_returned(storage: SQLiteCheckpointStorage) -> None:
    log = await opened(storage)
    for n in range(20):
        saving = asyncio.create_task(log.save(draft(n)))
        for _ in range(n % 3):
            await asyncio.sleep(0)
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        before = await storage.list_checkpoint_ids()
        await asyncio.sleep(0.002)
        assert await storage.list_checkpoint_ids() == before


# --- retention --------------------------------------------------------------------------------------------------------


async def test_old_checkpoints_go_and_what_they_held_goes_with_them(path: Path) -> None:
    async with SQLiteCheckpointStorage(path, retention=keep_last(3)) as storage:
        log = await opened(storage)
        for n in range(400):
            await log.save(draft(n, _history(n)))
            if n % 100 == 99:
                assert [len(await storage.list_checkpoint_ids()), (await storage.get_latest()).state] == [  # type: ignore[union-attr]
                    3,
                    _history(n),
                ]
        assert count(path, "nodes") < 1200
        for kept in await storage.list_checkpoint_ids():
            loaded = await storage.load(kept)
            assert loaded.state == _history(loaded.iteration_count)


async def test_a_history_that_only_grows_survives_every_sweep(path: Path) -> None:
    history: list[Label] = []
    async with SQLiteCheckpointStorage(path, retention=LATEST_ONLY) as storage:
        log = await opened(storage)
        for n in range(700):
            history.append(Label(f"message {n} " * 10))
            await log.save(draft(n, {"history": history, "scratch": [{"n": n, "text": "y" * 600}]}))
        with raw(path) as connection:
            (sweeps,) = connection.execute("SELECT sweeps FROM runs").fetchone()
        assert sweeps >= 2
    async with SQLiteCheckpointStorage(path) as storage:
        latest = await storage.get_latest()
        assert latest is not None
        assert latest.state["history"] == history


async def test_a_sweep_in_one_run_leaves_its_branches_whole(path: Path) -> None:
    history = [Label(f"message {n} " * 10) for n in range(100)]
    async with SQLiteCheckpointStorage(path) as storage:
        log = await opened(storage)
        point = await log.save(draft(1, {"history": history}))
        branch = await opened(storage, "branch", branch_of=BranchPoint(point.checkpoint_id, "run-1"))
        await branch.load(point.checkpoint_id, known_types)
        await branch.save(draft(2, {"history": history, "mine": True}, final=True))
        await log.release()
    async with SQLiteCheckpointStorage(path, retention=LATEST_ONLY) as storage:
        log = await opened(storage)
        for n in range(300):
            await log.save(draft(n, _history(n)))
        latest = await storage.get_latest(run_id="branch")
        assert latest is not None
        assert latest.state == {"history": history, "mine": True}
        with pytest.raises(CheckpointNotFound):
            await storage.load(point.checkpoint_id)


async def test_nodes_of_a_deleted_run_stay_while_a_branch_needs_them(
    storage: SQLiteCheckpointStorage, path: Path
) -> None:
    _, leaf = await branched(storage)
    await finished_run(storage, "stranger")
    assert await storage.delete_run("trunk")
    (stranger,) = await storage.list_checkpoint_ids(run_id="stranger")
    await storage.delete(stranger)  # a sweep of another family
    assert (await storage.load(leaf.checkpoint_id)).content is not None
    assert leaf.run_id is not None
    assert await storage.delete_run(leaf.run_id)
    assert [count(path, table) for table in ("nodes", "departed", "checkpoints")] == [0, 0, 0]


async def test_a_number_is_never_given_to_a_second_node(storage: SQLiteCheckpointStorage, path: Path) -> None:
    """A log that remembers a swept node by its number must not find another one there."""
    log = await opened(storage)
    saved = await log.save(draft(1, {"label": Label("x" * 200)}, final=True))
    with raw(path) as connection:
        (first,) = connection.execute("SELECT max(id) FROM nodes").fetchone()
    await storage.delete(saved.checkpoint_id)
    await (await opened(storage)).save(draft(2, {"label": Label("y" * 200)}, final=True))
    with raw(path) as connection:
        (second,) = connection.execute("SELECT max(id) FROM nodes").fetchone()
    assert second > first


async def test_a_checkpoint_saved_by_hand_leaves_nothing_when_it_is_deleted(
    storage: SQLiteCheckpointStorage, path: Path
) -> None:
    await storage.save(checkpoint(1, run=None, state={"label": Label("x" * 300)}))
    assert await storage.delete("c1")
    assert [count(path, table) for table in ("runs", "checkpoints", "nodes", "departed")] == [0, 0, 0, 0]


async def test_what_was_deleted_is_not_in_the_file(path: Path) -> None:
    secret = "the combination is 12-34-56"
    async with SQLiteCheckpointStorage(path) as storage:
        log = await opened(storage)
        await log.record_call(call(secret), supersedes=())
        await log.save(draft(1, {"small": secret, "large": Label(secret * 30)}, pending=[asked(secret)]))
        await log.record_call(call(secret), supersedes=())
        await log.release()
        await finished_run(storage, "other")
        assert await storage.delete_run("run-1")
    assert secret.encode() not in path.read_bytes()


async def test_audited_calls_stay(path: Path) -> None:
    async with SQLiteCheckpointStorage(path, audit=True) as storage:
        log = await opened(storage)
        for n in range(3):
            await log.record_call(call(f"call-{n}"), supersedes=())
            await log.save(draft(n))
        await log.release()
        assert [row.name for row in (await opened(storage)).calls] == ["call-0", "call-1", "call-2"]
    assert storage.retention is FULL_HISTORY


# --- damage -----------------------------------------------------------------------------------------------------------

_CHECKPOINT = "UPDATE checkpoints SET {} WHERE id = 2"
_NODE = "UPDATE nodes SET {} WHERE id = (SELECT max(id) FROM nodes)"
DAMAGE = {
    "a changed body": _CHECKPOINT.format("body = replace(body, 'forty', 'fifty')"),
    "a changed header": _CHECKPOINT.format("header = replace(header, '\"iteration\":2', '\"iteration\":9')"),
    "a header that is no text": _CHECKPOINT.format("header = x'ff00fe'"),
    "a body that is no text": _CHECKPOINT.format("body = x'7b7d'"),
    "a body that is not UTF-8": _CHECKPOINT.format("body = CAST(x'ff' AS TEXT) || body"),
    "a changed digest": _CHECKPOINT.format("digest = x'00112233445566778899aabbccddeeff'"),
    "references cut short": _CHECKPOINT.format("refs = substr(refs, 1, 3)"),
    "references to something else": _CHECKPOINT.format("refs = (SELECT refs FROM checkpoints WHERE id = 1)"),
    "a changed node": _NODE.format("body = replace(body, 'zz', 'yy')"),
    "a line break in a node": _NODE.format("body = replace(body, 'zz', char(10))"),
    "a missing node": "DELETE FROM nodes WHERE id = (SELECT max(id) FROM nodes)",
    "a node's changed digest": _NODE.format("digest = x'00'"),
    "a node's references cut short": _NODE.format("refs = x'010203'"),
}


@pytest.mark.parametrize("statement", DAMAGE.values(), ids=DAMAGE.keys())
async def test_damage_is_noticed_and_the_newest_good_ancestor_named(
    storage: SQLiteCheckpointStorage, path: Path, statement: str
) -> None:
    log = await opened(storage)
    good = await log.save(draft(1, {"label": Label("a" * 300)}))
    bad = await log.save(draft(2, {"number": "forty", "label": Label("z" * 300)}, final=True))
    with raw(path) as connection:
        assert connection.execute(statement).rowcount == 1
    with pytest.raises(CheckpointDamaged) as caught:
        await storage.load(bad.checkpoint_id)
    assert caught.value.good_ancestor == good.checkpoint_id
    with pytest.raises(CheckpointDamaged):
        await storage.get_latest(run_id="run-1")
    fallen_back = await storage.get_latest(run_id="run-1", fallback=True)
    assert fallen_back is not None
    assert fallen_back.checkpoint_id == good.checkpoint_id


async def test_damage_that_a_checkpoint_does_not_refer_to_is_not_in_its_way(
    storage: SQLiteCheckpointStorage, path: Path
) -> None:
    log = await opened(storage)
    labels = [Label(f"{n} " + "a" * 300) for n in range(30)]
    whole = await log.save(draft(1, {"first": labels[:10], "last": labels[20:]}))
    await log.save(draft(2, {"labels": [labels[0], Label("b" * 300), *labels[1:]]}, final=True))
    with raw(path) as connection:
        assert connection.execute("UPDATE nodes SET body = replace(body, 'bb', 'cc') WHERE body LIKE '%bb%'").rowcount
    loaded = await storage.load(whole.checkpoint_id)
    assert loaded.state == {"first": labels[:10], "last": labels[20:]}


async def test_a_damaged_call_is_noticed_and_the_run_not_taken(storage: SQLiteCheckpointStorage, path: Path) -> None:
    log = await opened(storage)
    await log.record_call(call("one", result='"paid"'), supersedes=())
    await log.release()
    with raw(path) as connection:
        connection.execute("UPDATE calls SET body = replace(body, 'paid', 'owed')")
    with pytest.raises(CheckpointDamaged, match="one"):
        await opened(storage)
    (run,) = await storage.list_runs()
    assert run.holder is None


async def test_pages_overwritten_with_rubbish_are_an_error_that_names_the_file(path: Path) -> None:
    async with SQLiteCheckpointStorage(path) as storage:
        log = await opened(storage)
        for n in range(30):
            await log.save(draft(n, _history(n)))
    content = bytearray(path.read_bytes())
    for page in range(1, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xa5" * 64
    path.write_bytes(content)
    async with SQLiteCheckpointStorage(path) as storage:
        with pytest.raises((CheckpointDamaged, StorageError), match=r"runs\.db|damaged"):
            await storage.get_latest(run_id="run-1")
        with pytest.raises((CheckpointDamaged, StorageError), match=r"runs\.db|damaged"):
            await opened(storage)


# --- a medium that fails ----------------------------------------------------------------------------------------------


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
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_full_disk_stops_the_run_and_repairing_it_lets_it_go_on(path: Path) -> None:
    script = """
        import asyncio, resource, sys
        from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
        from stepwell.errors import StorageError
        from stepwell.testing.storage import call, draft, opened

        def room(size):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

        async def main():
            async with SQLiteCheckpointStorage(sys.argv[1]) as storage:
                log = await opened(storage)
                saved = []
                room(1_000_000)
                try:
                    for n in range(1000):
                        await log.record_call(call(f"call-{n}"), supersedes=())
                        saved.append(await log.save(draft(n, {"n": n, "text": f"{n}" * 4000})))
                except StorageError as error:
                    assert sys.argv[1] in str(error), error
                else:
                    raise AssertionError("the disk never filled up")
                for again in range(3):
                    try:
                        await log.save(draft(9999))
                    except StorageError:
                        continue
                room(resource.RLIM_INFINITY)
                await log.release()
                log = await opened(storage)
                latest = await storage.get_latest(run_id="run-1")
                assert latest.iteration_count in (saved[-1].iteration_count, 9999), latest
                for checkpoint in saved:
                    await storage.load(checkpoint.checkpoint_id)
                await log.save(draft(10_000, final=True))
                print(len(saved) > 10)

        asyncio.run(main())
    """
    assert child(script, path) == "True"


def test_a_database_locked_by_somebody_else_is_an_error_and_not_a_wait_for_ever(path: Path) -> None:
    script = """
        import asyncio, sqlite3, sys
        from stepwell.checkpointing.storage import sqlite_schema
        from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
        from stepwell.errors import StorageError
        from stepwell.testing.storage import draft, opened

        sqlite_schema.BUSY_SECONDS = 0.05

        async def main():
            async with SQLiteCheckpointStorage(sys.argv[1]) as storage:
                log = await opened(storage)
                stranger = sqlite3.connect(sys.argv[1], isolation_level=None)
                stranger.execute("BEGIN IMMEDIATE")
                try:
                    await log.save(draft(1))
                except StorageError as error:
                    print("SQLITE_BUSY" in str(error))
                stranger.execute("ROLLBACK")
                stranger.close()
                await log.save(draft(2, final=True))

        asyncio.run(main())
    """
    assert child(script, path) == "True"


async def test_a_database_that_was_deleted_is_an_error(storage: SQLiteCheckpointStorage, path: Path) -> None:
    log = await opened(storage)
    await log.save(draft(1))
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink()
    with pytest.raises(StorageError, match="removed or replaced"):
        await log.save(draft(2))


async def test_a_log_of_a_database_that_was_replaced_can_not_write_to_the_new_one(
    storage: SQLiteCheckpointStorage, path: Path
) -> None:
    log = await opened(storage)
    await log.save(draft(1))
    assert len(await storage.list_runs()) == 1
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink()
    child(WORKER, path, "new")
    with pytest.raises(StorageError, match="removed or replaced"):
        await log.save(draft(2))
    with pytest.raises(RunTakenOver):
        await log.save(draft(3))
    assert len(await storage.list_runs()) == 5
    await (await opened(storage)).save(draft(1, final=True))


# --- several processes ------------------------------------------------------------------------------------------------

WORKER = """
    import asyncio, sys
    from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
    from stepwell.testing.storage import call, draft, opened

    async def work(storage, name):
        log = await opened(storage, name)
        for n in range(10):
            await log.record_call(call(f"{name} {n}"), supersedes=())
            await log.save(draft(n, {"name": name, "n": n}, final=n == 9))

    async def main():
        async with SQLiteCheckpointStorage(sys.argv[1]) as storage:
            await asyncio.gather(*[work(storage, f"run-{sys.argv[2]}-{n}") for n in range(5)])

    asyncio.run(main())
"""


async def test_processes_that_create_and_fill_one_database_at_once(path: Path) -> None:
    await asyncio.gather(*[asyncio.to_thread(child, WORKER, path, n) for n in range(6)])

    async with SQLiteCheckpointStorage(path) as storage:
        runs = await storage.list_runs()
        assert len(runs) == 30
        assert len(await storage.list_checkpoint_ids()) == 300
        for run in runs:
            latest = await storage.get_latest(run_id=run.run_id)
            assert latest is not None
            assert latest.state == {"name": run.run_id, "n": 9}
    assert count(path, "calls") == 0
