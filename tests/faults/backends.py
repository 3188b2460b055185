"""The storages that the fault suites run on. A new one is one more entry in `BACKENDS`."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.lease import Fence
from stepwell.checkpointing.storage.file import FileCheckpointStorage
from stepwell.checkpointing.storage.file_commit import FileCommit
from stepwell.checkpointing.storage.file_plan import Syncing
from stepwell.checkpointing.storage.file_scribe import Scribe
from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage
from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
from tests.postgres_server import server

Reached = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Backend:
    """A durable storage: how a place for it is made, and how a process opens it there."""

    name: str
    set_up: Callable[[Path], str]
    """Make an empty place under this folder; its location is whatever `open` understands."""
    open: Callable[..., Any]
    """The storage at a location; takes `lease_seconds`."""
    troubles: frozenset[str] = frozenset()
    """Which of the troubles of `troubles.py` can befall it."""
    tear_down: Callable[[str], None] = lambda location: None
    around_commits: Callable[[Reached], None] | None = None
    """Have the points `before commit` and `after commit` told, deep inside the storage, if there is a way to."""

    def place(self, folder: Path) -> str:
        """A fresh store, as workers take it on their command line."""
        return f"{self.name}:{self.set_up(folder)}"


def open_store(store: str, *, lease_seconds: float | None = None, **options: Any) -> Any:
    """The storage that a string like `sqlite:/tmp/runs.db` names."""
    name, _, location = store.partition(":")
    lease = {} if lease_seconds is None else {"lease_seconds": lease_seconds}
    return _ALL[name].open(location, **lease, **options)


def backend_of(store: str) -> Backend:
    return _ALL[store.partition(":")[0]]


# --- SQLite -----------------------------------------------------------------------------------------------------------


def _sqlite_place(folder: Path) -> str:
    return str(folder / "runs.db")


class _SqliteCommits:
    """Looks on while threads use SQLite: it tells of each statement before it runs, the interpreter when it has run."""

    def __init__(self, reached: Reached) -> None:
        self._reached = reached
        self._traced: set[int] = set()
        self._committing = threading.local()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event not in ("c_call", "c_return") or getattr(arg, "__name__", "") != "execute":
            return
        connection = arg.__self__
        if isinstance(connection, sqlite3.Connection) and id(connection) not in self._traced:
            self._traced.add(id(connection))
            connection.set_trace_callback(self._before)
        if event == "c_return" and getattr(self._committing, "now", False):
            self._committing.now = False
            self._reached("after commit")

    def _before(self, statement: str) -> None:
        if statement == "COMMIT":
            self._committing.now = True
            self._reached("before commit")


def _around_sqlite_commits(reached: Reached) -> None:
    threading.setprofile(_SqliteCommits(reached))


SQLITE = Backend(
    "sqlite",
    _sqlite_place,
    SQLiteCheckpointStorage,
    troubles=frozenset({"space", "io", "full", "permissions"}),
    around_commits=_around_sqlite_commits,
)


# --- files ------------------------------------------------------------------------------------------------------------


def _file_place(folder: Path) -> str:
    return str(folder / "store")


class _FileCommits:
    """Looks on while threads write: one function takes a group all the way to the disk, but calls are written by a
    second one and made durable by a third."""

    def __init__(self, reached: Reached) -> None:
        self._reached = reached
        self._points = {
            ("call", FileCommit._carry_out.__code__): "before commit",
            ("return", FileCommit._carry_out.__code__): "after commit",
            ("call", Scribe._write.__code__): "before commit",
            ("return", Syncing.journals.__code__): "after commit",
        }

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if (point := self._points.get((event, frame.f_code))) is not None:
            self._reached(point)


def _around_file_commits(reached: Reached) -> None:
    threading.setprofile(_FileCommits(reached))


FILE = Backend(
    "file",
    _file_place,
    FileCheckpointStorage,
    troubles=frozenset({"space", "io", "full", "permissions"}),
    around_commits=_around_file_commits,
)


# --- Postgres ---------------------------------------------------------------------------------------------------------


def _postgres_place(folder: Path) -> str:
    """A schema that is not there yet, on the server of this process; workers get to know how to reach both."""
    return f"{server().fresh_schema()}@{server().dsn}"


def _open_postgres(location: str, **options: Any) -> PostgresCheckpointStorage:
    schema, _, dsn = location.partition("@")
    return PostgresCheckpointStorage(dsn, schema=schema, **options)


def _drop_postgres(store: str) -> None:
    server().drop(store.partition(":")[2].partition("@")[0])


class _PostgresCommits:
    """Looks on while threads use psycopg: before what commits is sent, and when its answer has come back."""

    def __init__(self, reached: Reached) -> None:
        import psycopg

        from stepwell.checkpointing.storage import postgres_bulk as bulk
        from stepwell.checkpointing.storage.postgres_commit import GroupCommit
        from stepwell.checkpointing.storage.postgres_lane import Lane

        self._reached = reached
        alone = (bulk.RECORD_AT_ONCE, bulk.SAVE_AT_ONCE, bulk.SAVE_AT_ONCE_WITH_NODES)
        self._commits = ("COMMIT", *(each.statement for each in alone))
        self._execute = psycopg.Connection.execute.__code__
        self._sends = Lane.send.__code__
        self._done = GroupCommit._done.__code__

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event != "call":
            return
        if code is self._done:
            self._reached("after commit")
        elif code is self._sends or (code is self._execute and frame.f_locals["query"] in self._commits):
            self._reached("before commit")


def _around_postgres_commits(reached: Reached) -> None:
    commits = _PostgresCommits(reached)
    threading.setprofile(commits)
    sys.setprofile(commits)  # calls are sent by the thread of the event loop


POSTGRES = Backend(
    "postgres",
    _postgres_place,
    _open_postgres,
    tear_down=_drop_postgres,
    around_commits=_around_postgres_commits,
)

BACKENDS = {backend.name: backend for backend in (SQLITE, FILE, POSTGRES)}
"""Those that have to keep the promises."""


# --- one that breaks a promise, for the tests of the tests ------------------------------------------------------------


class ForgetfulStorage(SQLiteCheckpointStorage):
    """Acknowledges the record of a call and does not write it."""

    async def _record_call(self, fence: Fence, row: CallRecord, supersedes: Sequence[str]) -> None:
        return


FORGETFUL = Backend("forgetful", _sqlite_place, ForgetfulStorage)

_ALL = {**BACKENDS, FORGETFUL.name: FORGETFUL}
