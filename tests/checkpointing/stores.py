"""The durable stores as they look from outside: what is kept in them, who is alive there, and ways to alter them."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from stepwell.checkpointing.storage.liveness import HolderLocks
from stepwell.checkpointing.storage.postgres_liveness import HELD_LOCKS
from tests.faults.backends import BACKENDS, backend_of, open_store
from tests.postgres_server import server

TABLES = ("runs", "checkpoints", "nodes", "calls", "requests", "departed")


class Store(ABC):
    """One durable store; whoever opens it in another process finds it by its address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.kind, _, self.location = address.partition(":")

    def open(self, **options: Any) -> Any:
        return open_store(self.address, **options)

    @property
    @abstractmethod
    def name(self) -> str:
        """What messages and threads call it."""

    def writers(self) -> int:
        """How many threads of this process write to it."""
        return sum(thread.name == f"stepwell-write {self.name}" for thread in threading.enumerate())

    @abstractmethod
    def kept(self) -> dict[str, int]:
        """How many records of each kind there are."""

    @abstractmethod
    def values(self) -> int:
        """How much is kept of what checkpoints refer to, in a measure of its own."""

    @abstractmethod
    def sweeps(self) -> object:
        """Another one after values that nothing refers to were removed from `run-1`."""

    later_version: str
    """How the store calls a version that is not there yet."""

    @abstractmethod
    def become_later_version(self) -> None:
        """As if a later version of the library had written it."""

    # --- who holds runs ----------------------------------------------------------------------------------------------

    @abstractmethod
    def alive(self) -> int:
        """How many storages show that they live, whatever became of those who said so before."""

    @abstractmethod
    def named(self) -> int:
        """How many holders the store has a note of, alive or dead."""

    @abstractmethod
    def leases(self) -> list[str]:
        """Until when each of its holders counts as alive."""

    @abstractmethod
    def expire_leases(self) -> None:
        """As if nobody had been heard of for a long time."""


async def until(happened: Callable[[], bool]) -> None:
    """Wait for something that others do; the test's time limit is the only one."""
    while not happened():
        await asyncio.sleep(0.005)


# --- on this machine's disk -------------------------------------------------------------------------------------------


class StoreOnDisk(Store):
    """One whose holders have lock files."""

    @property
    def path(self) -> Path:
        return Path(self.location)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    @abstractmethod
    def locks(self) -> Path:
        """The folder with the lock files."""

    @abstractmethod
    def files(self) -> list[Path]:
        """Everything that what is kept may be in."""

    @abstractmethod
    def remove(self) -> None:
        """As if somebody had deleted it while it is in use."""

    def alive(self) -> int:
        return sum(HolderLocks(self.locks).is_held(lock.stem) for lock in self._lock_files())

    def named(self) -> int:
        return len(self._lock_files())

    def _lock_files(self) -> list[Path]:
        return sorted(self.locks.iterdir()) if self.locks.exists() else []


class FileStore(StoreOnDisk):
    later_version = "file store 99"

    @property
    def _inner(self) -> Path:
        return self.path / ".stepwell"

    @property
    def locks(self) -> Path:
        return self._inner / "holders"

    def files(self) -> list[Path]:
        return [entry for entry in self.path.rglob("*") if entry.is_file()]

    def remove(self) -> None:
        shutil.rmtree(self.path)

    def kept(self) -> dict[str, int]:
        folders = {name: len(list((self._inner / name).iterdir())) for name in ("runs", "departed", "families", "new")}
        journals = [journal.read_bytes().count(b"\n") for journal in (self._inner / "runs").glob("*/journal.jsonl")]
        return folders | {"checkpoints": len(list(self.path.glob("*.json"))), "calls": sum(journals)}

    def values(self) -> int:
        return sum(record.stat().st_size for record in (self._inner / "runs").glob("*/run.jsonl"))

    def sweeps(self) -> object:
        record = self._inner / "runs" / "run-1" / "run.jsonl"
        return record.read_bytes().partition(b"\n")[0]  # a record is written anew without what is not needed

    def become_later_version(self) -> None:
        (self._inner / "format").write_text("stepwell file store 99\n")

    def leases(self) -> list[str]:
        return [lock.read_text() for lock in self._lock_files()]

    def expire_leases(self) -> None:
        for lock in self._lock_files():
            lock.write_text("0 0".ljust(63) + "\n")


class StoreOfRows(Store):
    """One whose records are rows that can be changed behind its back."""

    later_version = "schema 99"

    @abstractmethod
    def ask(self, query: str) -> Any:
        """The first column of the only row."""

    @abstractmethod
    def change(self, statement: str) -> int:
        """Carry it out; how many rows were changed?"""

    def kept(self) -> dict[str, int]:
        return {table: self.ask(f"SELECT count(*) FROM {table}") for table in TABLES}

    def values(self) -> int:
        return self.kept()["nodes"]

    def sweeps(self) -> object:
        return self.ask("SELECT sweeps FROM runs WHERE run_id = 'run-1'")


class SQLiteStore(StoreOnDisk, StoreOfRows):
    @property
    def locks(self) -> Path:
        return self.path.with_name(f"{self.path.name}.holders")

    def files(self) -> list[Path]:
        return [file for file in self._files() if file.exists()]

    def _files(self) -> Iterator[Path]:
        return (self.path.with_name(self.path.name + suffix) for suffix in ("", "-wal", "-shm"))

    def remove(self) -> None:
        for file in self._files():
            file.unlink()

    @contextmanager
    def _raw(self) -> Iterator[sqlite3.Connection]:
        """The database as SQLite itself sees it."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            yield connection

    def ask(self, query: str) -> Any:
        with self._raw() as connection:
            return connection.execute(query).fetchone()[0]

    def change(self, statement: str) -> int:
        with self._raw() as connection:
            return connection.execute(statement).rowcount

    def become_later_version(self) -> None:
        self.change("PRAGMA user_version = 99")

    def leases(self) -> list[str]:
        with self._raw() as connection:
            return [repr(row) for row in connection.execute("SELECT expires, expires_here FROM holders ORDER BY id")]

    def expire_leases(self) -> None:
        self.change("UPDATE holders SET expires = 0, expires_here = 0")


# --- on a server ------------------------------------------------------------------------------------------------------


class PostgresStore(StoreOfRows):
    @property
    def name(self) -> str:
        return self.location.partition("@")[0]

    @contextmanager
    def _raw(self) -> Iterator[Any]:
        """The schema as Postgres itself sees it."""
        with server().connection() as connection:
            connection.execute(f"SET search_path TO {self.name}")
            yield connection

    def ask(self, query: str) -> Any:
        with self._raw() as connection:
            return connection.execute(query).fetchone()[0]

    def change(self, statement: str) -> int:
        with self._raw() as connection:
            return int(connection.execute(statement).rowcount)

    def become_later_version(self) -> None:
        self.change("UPDATE stepwell_version SET version = 99")

    def alive(self) -> int:
        return int(self.ask(f"SELECT count(*) FROM holders WHERE lock IN ({HELD_LOCKS})"))

    def named(self) -> int:
        return int(self.ask("SELECT count(*) FROM holders"))

    def leases(self) -> list[str]:
        with self._raw() as connection:
            return [str(row) for row in connection.execute("SELECT alive_until FROM holders ORDER BY holder")]

    def expire_leases(self) -> None:
        self.change("UPDATE holders SET alive_until = now() - interval '1 day'")


STORES: dict[str, type[Store]] = {"sqlite": SQLiteStore, "file": FileStore, "postgres": PostgresStore}
ON_DISK = ("sqlite", "file")
OF_ROWS = ("sqlite", "postgres")


@contextmanager
def fresh_store(kind: str, folder: Path) -> Iterator[Store]:
    """A store that nobody has used yet, gone afterwards."""
    store = STORES[kind](BACKENDS[kind].place(folder))
    yield store
    backend_of(store.address).tear_down(store.address)
