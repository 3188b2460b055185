"""The SQLite storage passes the contracts that every storage passes, and keeps its own promises about the file."""

from __future__ import annotations

import asyncio
import gzip
import sqlite3
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stepwell.checkpointing.storage import sqlite_reading
from stepwell.checkpointing.storage.protocol import RunLog
from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
from stepwell.checkpointing.storage.sqlite_schema import SCHEMA_VERSION, connect_writer
from stepwell.errors import (
    CheckpointDamaged,
    RunBusy,
    RunTakenOver,
    StorageError,
)
from stepwell.testing import CheckpointStorageContract, RunStorageContract
from stepwell.testing.storage import (
    Label,
    Reopen,
    call,
    checkpoint,
    draft,
    finished_run,
    opened,
)
from tests.checkpointing.processes import WORKER, child
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


# --- the file ---------------------------------------------------------------------------------------------------------


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


def _history(n: int) -> dict[str, Any]:
    return {"n": n, "items": [{"n": n, "i": i, "text": "x" * 600} for i in range(20)]}


# --- groups -----------------------------------------------------------------------------------------------------------


async def _many(storage: SQLiteCheckpointStorage, names: list[str]) -> dict[str, RunLog]:
    return dict(zip(names, await asyncio.gather(*[opened(storage, name) for name in names]), strict=True))


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


async def test_a_call_recorded_together_with_a_checkpoint_goes_with_the_next_one(
    storage: SQLiteCheckpointStorage, path: Path
) -> None:
    log = await opened(storage)
    await log.record_call(call("first"), supersedes=())
    await asyncio.gather(log.save(draft(1)), log.record_call(call("second"), supersedes=()))
    assert count(path, "calls") == 1
    await log.save(draft(2))
    assert count(path, "calls") == 0


# --- retention --------------------------------------------------------------------------------------------------------


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


# --- damage -----------------------------------------------------------------------------------------------------------


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


async def test_a_log_of_a_database_that_was_replaced_can_not_write_to_the_new_one(
    storage: SQLiteCheckpointStorage, path: Path
) -> None:
    log = await opened(storage)
    await log.save(draft(1))
    assert len(await storage.list_runs()) == 1
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink()
    child(WORKER, f"sqlite:{path}", "new")
    with pytest.raises(StorageError, match="removed or replaced"):
        await log.save(draft(2))
    with pytest.raises(RunTakenOver):
        await log.save(draft(3))
    assert len(await storage.list_runs()) == 5
    await (await opened(storage)).save(draft(1, final=True))
