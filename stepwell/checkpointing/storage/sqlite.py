"""Checkpoints in a SQLite database: the embedded default.

One file, any number of processes on one host, a power cut at any instant. All instances for one path in one process
share a writer thread, which commits together whatever is waiting (see `writer.py` and `sqlite_commit.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from stepwell.checkpointing.checkpoint import WorkflowCheckpoint
from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.lease import Fence
from stepwell.checkpointing.retention import FULL_HISTORY, Retention
from stepwell.checkpointing.storage import sqlite_jobs as jobs
from stepwell.checkpointing.storage import sqlite_reading as reading
from stepwell.checkpointing.storage import sqlite_verification as verification
from stepwell.checkpointing.storage.forking import after_fork_in_child
from stepwell.checkpointing.storage.protocol import Decision
from stepwell.checkpointing.storage.recording import RecordingStorage
from stepwell.checkpointing.storage.records import (
    CheckpointWrite,
    OpenedRun,
    OpenRequest,
    RequestRow,
    RunRow,
    StoredCheckpoint,
)
from stepwell.checkpointing.storage.sqlite_commit import GroupCommit
from stepwell.checkpointing.storage.sqlite_jobs import Seat
from stepwell.checkpointing.storage.sqlite_reading import SnapshotPool
from stepwell.checkpointing.storage.sqlite_schema import MEDIUM_ERRORS, failure
from stepwell.checkpointing.storage.verifying import DamagedRecord, VerificationReport
from stepwell.checkpointing.storage.writer import GroupWriter
from stepwell.checkpointing.values import Node
from stepwell.errors import StorageClosed, WorkflowCheckpointException

T = TypeVar("T")

logger = logging.getLogger(__name__)

LEASE_SECONDS = 30.0


class Database:
    """What the storages for one path in one process share: the writer thread, and the connections that read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.members = 0
        self.ready = False
        self.snapshots = SnapshotPool(path)
        self.writer = GroupWriter(GroupCommit(path, self.snapshots), name=f"stepwell-write {path.name}")


class _OpenDatabases:
    """The databases in use by this process. Entered and left from any thread, and from destructors."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._by_path: dict[Path, Database] = {}

    def enter(self, path: Path) -> Database:
        with self._lock:
            database = self._by_path.get(path)
            if database is None:
                database = self._by_path[path] = Database(path)
            database.members += 1
            return database

    def leave(self, database: Database) -> bool:
        """Was this the last one?"""
        with self._lock:
            database.members -= 1
            last = database.members == 0
            if last and self._by_path.get(database.path) is database:
                del self._by_path[database.path]
            return last


_databases = _OpenDatabases()
_storages: WeakSet[SQLiteCheckpointStorage] = WeakSet()
_abandoned: list[object] = []


class SQLiteCheckpointStorage(RecordingStorage):
    """Checkpoints in the SQLite database at `path`, which is created when it is first used.

    Use it as an async context manager, or `await storage.close()`. Nothing is opened before the first call, and nothing
    ever blocks the event loop but the first look at the content of a checkpoint that was listed and not loaded.

    A run that a storage holds is free as soon as the storage is closed or its process ends, however it ends. A holder
    that is frozen, or on another host, is believed to be alive for `lease_seconds` after it was last heard of; whoever
    was taken over can't write any more. WAL needs shared memory, so all processes have to be on one host: across hosts
    use Postgres.

    Deleted content is overwritten in the database where that costs nothing extra; copies may remain in its write-ahead
    log until that is used again. The file does not shrink, its space is used again.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        retention: Retention = FULL_HISTORY,
        audit: bool = False,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        super().__init__(retention=retention, audit=audit)
        self._closed = False
        self._database: Database | None = None
        self.path = _absolute(path)
        self._seat = Seat(lease_seconds)
        _storages.add(self)

    def __repr__(self) -> str:
        return f"SQLiteCheckpointStorage({str(self.path)!r})"

    @property
    def identity(self) -> object:
        return self.path

    async def __aenter__(self) -> SQLiteCheckpointStorage:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for what is being written; let go of the runs, the file and the thread. Closing twice does nothing."""
        self._closed = True
        database, self._database = self._database, None
        if database is None:
            return
        leaving = database.writer.submit(jobs.Leave(self._seat))
        stopping = database.writer.stop() if _databases.leave(database) else None
        try:
            await leaving.decided()
        except WorkflowCheckpointException as error:
            # The lock is released all the same; the row that names it is removed by whoever comes next.
            logger.warning("%s could not be left tidily: %s", self.path, error)
        finally:
            if stopping is not None:
                await stopping

    def __del__(self) -> None:
        database: Database | None = getattr(self, "_database", None)
        if database is None:
            return
        message = f"{self!r} was dropped open; close it, or use `async with`"
        warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
        database.writer.leave(jobs.Leave(self._seat))
        if _databases.leave(database):
            database.writer.stop_soon()

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _reading(self, read: Callable[..., T], *args: Any) -> T:
        database = self._entered()
        if not database.ready:
            await database.writer.write(jobs.Connect())
            database.ready = True
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(database.snapshots.threads, database.snapshots.call(read, *args))

    def _load_now(self, checkpoint_id: str) -> WorkflowCheckpoint:
        with self._entered().snapshots.snapshot():
            return super()._load_now(checkpoint_id)

    def _get(self, checkpoint_id: str) -> StoredCheckpoint | None:
        with self._entered().snapshots.snapshot() as connection:
            return reading.checkpoint_with_id(connection, checkpoint_id)

    def _latest(self, workflow_name: str | None, run_id: str | None) -> StoredCheckpoint | None:
        with self._entered().snapshots.snapshot() as connection:
            return reading.latest_checkpoint(connection, workflow_name, run_id)

    def _headers(self, workflow_name: str | None, run_id: str | None) -> list[StoredCheckpoint]:
        with self._entered().snapshots.snapshot() as connection:
            return reading.headers(connection, workflow_name, run_id)

    def _reachable(self, refs: Iterable[int]) -> dict[int, Node]:
        with self._entered().snapshots.snapshot() as connection:
            return reading.reachable(connection, refs)

    def _requests_named(self, request_id: str) -> list[RequestRow]:
        with self._entered().snapshots.snapshot() as connection:
            return reading.requests_named(connection, request_id)

    def _runs(self, workflow_name: str | None, state: str | None) -> list[tuple[RunRow, list[RequestRow], str | None]]:
        with self._entered().snapshots.snapshot() as connection:
            return reading.list_runs(connection, workflow_name, state)

    def _verify_now(self) -> VerificationReport:
        try:
            return super()._verify_now()
        except MEDIUM_ERRORS as error:  # not even the tables can be read
            problem = DamagedRecord.of(failure(error, self.path, reading=True), str(self.path))
            return VerificationReport(0, 0, 0, (problem,))

    def _verify_runs(self, damaged: list[DamagedRecord]) -> tuple[int, int]:
        with self._entered().snapshots.snapshot() as connection:
            runs, calls, problems = verification.verify_runs(connection, str(self.path))
        damaged.extend(problems)
        return runs, calls

    async def _node_state(self, run_key: int) -> tuple[int, set[int]]:
        return await self._reading(self._node_state_now, run_key)

    def _node_state_now(self, run_key: int) -> tuple[int, set[int]]:
        with self._entered().snapshots.snapshot() as connection:
            return reading.node_state(connection, run_key)

    # --- writing -----------------------------------------------------------------------------------------------------

    async def _open(self, request: OpenRequest) -> OpenedRun:
        ticket = self._entered().writer.submit(jobs.OpenRun(self._seat, request))
        try:
            opened: OpenedRun = await ticket.decided()
        except asyncio.CancelledError:
            if isinstance(ticket.outcome, OpenedRun):
                # Nobody will ever know that the run was taken, so it must not stay taken.
                row = ticket.outcome.row
                await self._release(Fence(row.key, row.run_id, row.epoch), None, None)
            raise
        return opened

    # These two are asked for in every superstep, so they are no coroutines around the writer's.

    def _write_checkpoint(self, write: CheckpointWrite) -> Coroutine[Any, Any, None]:
        return self._entered().writer.write(jobs.SaveCheckpoint(self._seat, write))

    def _record_call(self, fence: Fence, row: CallRecord, supersedes: Sequence[str]) -> Coroutine[Any, Any, None]:
        return self._entered().writer.write(jobs.RecordCall(self._seat, fence, row, supersedes))

    async def _drop_calls(self, fence: Fence, call_ids: Sequence[str]) -> None:
        await self._entered().writer.write(jobs.DropCalls(self._seat, fence, call_ids))

    async def _release(self, fence: Fence, state: str | None, stopped_by: str | None) -> None:
        await self._entered().writer.write(jobs.ReleaseRun(self._seat, fence, state, stopped_by))

    async def _answer(self, run_id: str, decision: Decision) -> None:
        await self._entered().writer.write(jobs.AnswerRequest(run_id, decision))

    async def _cancel(self, run_id: str) -> None:
        await self._entered().writer.write(jobs.CancelRun(run_id))

    async def _delete(self, checkpoint_id: str) -> bool:
        deleted: bool = await self._entered().writer.write(jobs.DeleteCheckpoint(checkpoint_id))
        return deleted

    async def _delete_run(self, run_id: str) -> bool:
        deleted: bool = await self._entered().writer.write(jobs.DeleteRun(run_id))
        return deleted

    # --- belonging ---------------------------------------------------------------------------------------------------

    def _entered(self) -> Database:
        if self._database is None:
            if self._closed:
                raise StorageClosed(str(self.path))
            self._database = _databases.enter(self.path)
        return self._database

    def _forget_parent(self) -> None:
        """This is a forked child. What the parent has open is the parent's."""
        if self._database is not None:
            # Kept for ever: to close the copies would disturb the originals.
            _abandoned.append((self._database, self._seat))
            self._database = None
        self._seat = Seat(self._seat.lease_seconds)


def _absolute(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    if not text or text == ":memory:" or text.startswith("file:"):
        raise ValueError(f"{text!r} is not the path of a file; to keep nothing, use InMemoryCheckpointStorage()")
    if Path(text).is_absolute():
        return Path(text)
    # Now, and not when the file is opened: the current directory may be another one by then. Asking for it reads no
    # disk, unlike resolving links, which is left to the writer thread.
    return Path(os.fsdecode(os.getcwdb()), text)  # noqa: PTH109 - blockbuster takes Path.cwd() for a blocking call


def _start_afresh() -> None:
    global _databases
    _abandoned.append(_databases)
    _databases = _OpenDatabases()
    for storage in list(_storages):
        storage._forget_parent()


after_fork_in_child(_start_afresh)
