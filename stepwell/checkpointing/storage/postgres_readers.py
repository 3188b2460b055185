"""Where reads happen: a pool of a few connections, each used by one thread at a time, and threads to use them in.

Not psycopg's own pool: that one makes connections in threads of its own, with growing pauses, and whoever waits is told
that it took too long, not why. Here they are made by whoever needs one, so a wrong password or a full server is named
in the error, and a database that is back is used at once. Idle ones are kept; there are never more than threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from stepwell.checkpointing.storage.forking import fork_guard
from stepwell.checkpointing.storage.postgres_connection import (
    MEDIUM_ERRORS,
    Connection,
    Target,
    connect,
    failure,
    may_pass,
)
from stepwell.checkpointing.storage.postgres_reading import Rows
from stepwell.checkpointing.storage.postgres_schema import AS_UPGRADED, SCHEMA_VERSION, version_to_read
from stepwell.errors import StorageClosed

T = TypeVar("T")

_THREADS = 4
_PAUSE_SECONDS = 0.1


class Readers:
    """Connections that only read. A read sees the database as it was when the read began, however long it takes.

    Tables of an earlier version are read as they are; if there are none, a read fails with `TablesMissing`.
    """

    def __init__(self, target: Target, *, retry_seconds: float) -> None:
        self._target = target
        self._retry_seconds = retry_seconds
        self._idle: list[tuple[Connection, threading.Lock]] = []
        self._closed = False
        self._is_up_to_date = False
        self._current = threading.local()
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="stepwell-read")

    def call(self, read: Callable[..., T], *args: Any) -> Callable[[], T]:
        """`read(*args)` within one snapshot, ready to be called in any thread."""
        return partial(self.within_snapshot, read, *args)

    def within_snapshot(self, read: Callable[..., T], *args: Any) -> T:
        """Call it; again, with another connection, if the one it had was lost, until patience is at its end."""
        if getattr(self._current, "rows", None) is not None:
            return read(*args)
        deadline = time.monotonic() + self._retry_seconds
        while True:
            try:
                with self._snapshot():
                    return read(*args)
            except MEDIUM_ERRORS as error:
                if not may_pass(error) or time.monotonic() >= deadline:
                    raise failure(error, self._target, reading=True) from None
                if not self._idle:
                    time.sleep(_PAUSE_SECONDS)

    @property
    def rows(self) -> Rows:
        """For the read under way in this thread."""
        rows: Rows = self._current.rows
        return rows

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        if self._closed:
            raise StorageClosed(self._target.where)
        connection, guard = self._borrowed()
        with guard:
            try:
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                self._current.rows = _rows_of(connection, self._before_queries(connection))
                yield
            except MEDIUM_ERRORS:  # not worth finding out what state it is in
                connection.close()
                raise
            finally:
                self._current.rows = None
                self._give_back(connection, guard)

    def _before_queries(self, connection: Connection) -> str:
        if self._is_up_to_date:
            return ""
        version = version_to_read(connection, self._target)
        self._is_up_to_date = version == SCHEMA_VERSION
        return AS_UPGRADED.get(version, "")

    def _borrowed(self) -> tuple[Connection, threading.Lock]:
        with suppress(IndexError):  # another thread was faster, or there is none
            return self._idle.pop()
        return connect(self._target, "stepwell read"), fork_guard()

    def _give_back(self, connection: Connection, guard: threading.Lock) -> None:
        if not connection.closed:
            try:
                connection.execute("ROLLBACK")
            except MEDIUM_ERRORS:
                # What was read is whole; only the connection is gone.
                connection.close()
                return
            self._idle.append((connection, guard))
        if self._closed:
            self._drain()

    def _drain(self) -> None:
        with suppress(IndexError):  # another thread was faster
            while True:
                self._idle.pop()[0].close()

    def close(self) -> None:
        self._closed = True
        self.threads.shutdown(wait=False)
        self._drain()


def _rows_of(connection: Connection, before_queries: str) -> Rows:
    def rows(query: str, values: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return connection.execute(before_queries + query, values, binary=True).fetchall()

    return rows
