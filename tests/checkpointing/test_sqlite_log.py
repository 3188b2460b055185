"""The write-ahead log is lengthened ahead of whoever goes on writing; that saves time and changes nothing else."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from stepwell.checkpointing.storage import sqlite_log
from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
from stepwell.checkpointing.storage.sqlite_log import LOG_PAGES, make_room
from stepwell.testing.storage import draft, opened

FULL = LOG_PAGES * (4096 + 24)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection with a table, in a write transaction."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE IF NOT EXISTS things (name TEXT)")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO things VALUES ('kept')")
        yield connection


def things(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM things")]


def log_length(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


async def saved(storage: SQLiteCheckpointStorage, count: int) -> None:
    log = await opened(storage)
    for number in range(count):
        await log.save(draft(state={"number": number}))


async def test_whoever_goes_on_writing_finds_room_in_the_log(path: Path) -> None:
    async with SQLiteCheckpointStorage(path) as storage:
        await saved(storage, 40)
        assert log_length(path) == FULL
        assert len(await storage.list_checkpoints()) == 40
    async with SQLiteCheckpointStorage(path) as storage:
        assert len(await storage.list_checkpoints()) == 40
        assert (await storage.verify()).ok


async def test_a_few_commits_are_made_without_it(path: Path) -> None:
    async with SQLiteCheckpointStorage(path) as storage:
        await saved(storage, 3)
        assert log_length(path) < 100 * 4096


async def test_another_process_reads_and_writes_beside_it(path: Path) -> None:
    program = """
        import asyncio, sys
        from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
        from stepwell.testing.storage import draft, opened

        async def main():
            async with SQLiteCheckpointStorage(sys.argv[1]) as storage:
                print(len(await storage.list_checkpoints()))
                log = await opened(storage, run_id="other")
                for number in range(40):
                    await log.save(draft(state={"number": number}))

        asyncio.run(main())
        """
    async with SQLiteCheckpointStorage(path) as storage:
        await saved(storage, 40)
        command = [sys.executable, "-c", textwrap.dedent(program), str(path)]
        other = subprocess.run(command, capture_output=True, text=True, check=True)
        assert other.stdout.strip() == "40"
        assert len(await storage.list_checkpoints()) == 80
        assert (await storage.verify()).ok


async def test_a_process_killed_with_room_in_the_log_loses_nothing(path: Path) -> None:
    program = """
        import asyncio, os, signal, sys
        from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
        from stepwell.testing.storage import draft, opened

        async def main():
            storage = SQLiteCheckpointStorage(sys.argv[1])
            log = await opened(storage)
            for number in range(35):
                await log.save(draft(state={"number": number}))
            os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
        """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert log_length(path) == FULL
    async with SQLiteCheckpointStorage(path) as storage:
        assert len(await storage.list_checkpoints()) == 35
        assert (await storage.verify()).ok


def test_the_log_beside_the_file_that_a_link_leads_to_is_meant(tmp_path: Path) -> None:
    real = tmp_path / "real.db"
    with writing(real) as connection:
        connection.execute("COMMIT")
    link = tmp_path / "link.db"
    link.symlink_to(real)
    with writing(link) as connection:
        make_room(connection, 32)
        connection.execute("COMMIT")
        assert log_length(real) == FULL
    assert things(real) == ["kept", "kept"]


def test_a_disk_that_is_nearly_full_is_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_log, "_TIMES_FREE", 1 << 40)
    with writing(path) as connection:
        before = log_length(path)
        make_room(connection, 32)
        assert log_length(path) == before
        connection.execute("COMMIT")
    assert things(path) == ["kept"]


def test_a_disk_that_takes_only_a_part_gets_it_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite

    def filling_up(descriptor: int, data: bytes, place: int) -> int:
        if place > FULL // 2:
            raise OSError(28, "No space left on device")
        return pwrite(descriptor, data, place)

    monkeypatch.setattr(os, "pwrite", filling_up)
    with writing(path) as connection:
        before = log_length(path)
        make_room(connection, 32)
        assert log_length(path) == before
        connection.execute("COMMIT")
    assert things(path) == ["kept"]
