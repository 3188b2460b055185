"""Checkpoints in a Postgres database: for teams, and for runs on several hosts.

Each storage has a writer thread, which commits together whatever is waiting (see `writer.py` and `postgres_commit.py`).
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from stepwell.checkpointing.checkpoint import WorkflowCheckpoint
from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.lease import Fence
from stepwell.checkpointing.retention import FULL_HISTORY, Retention
from stepwell.checkpointing.storage import postgres_jobs as jobs
from stepwell.checkpointing.storage import postgres_reading as reading
from stepwell.checkpointing.storage import postgres_verification as verification
from stepwell.checkpointing.storage.forking import after_fork_in_child
from stepwell.checkpointing.storage.postgres_reading import TablesMissing
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
from stepwell.checkpointing.storage.verifying import DamagedRecord
from stepwell.checkpointing.values import Node
from stepwell.errors import StorageClosed, StorageError, WorkflowCheckpointException

if TYPE_CHECKING:
    from stepwell.checkpointing.storage import postgres_database

T = TypeVar("T")

logger = logging.getLogger(__name__)

SCHEMA = "stepwell"
LEASE_SECONDS = 30.0
RETRY_SECONDS = 10.0

_storages: WeakSet[PostgresCheckpointStorage] = WeakSet()
_abandoned: list[object] = []


class PostgresCheckpointStorage(RecordingStorage):
    """Checkpoints in the Postgres database that `dsn` names, in the schema `schema`, which is created when it is first
    used. Several applications share a database by using schemas of their own. Tables of an earlier version are read as
    they are, and brought up to date by the first write; programs of that version can't write from then on.

    Use it as an async context manager, or `await storage.close()`. Nothing is connected before the first call, and
    nothing ever blocks the event loop but the first look at the content of a checkpoint that was listed and not loaded.

    A run that a storage holds is free as soon as the storage is closed or its process ends, however it ends and on
    whichever host: the server drops the advisory lock of its session. A holder that is frozen keeps its session; it is
    believed to be alive for `lease_seconds` after it was last heard of, by the server's clock. Whoever was taken over
    can't write any more. Sessions are what all this hangs on, so a pooler in between has to be in session mode.

    If the database can't be reached, reads and writes wait and try again for `retry_seconds`; then the run stops.
    Commits are durable as far as the server is: `synchronous_commit` is set to `on`, and a server that runs with
    `fsync=off` gets a warning in the log.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = SCHEMA,
        retention: Retention = FULL_HISTORY,
        audit: bool = False,
        lease_seconds: float = LEASE_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        super().__init__(retention=retention, audit=audit)
        self._closed = False
        self._database: postgres_database.Database | None = None
        self._make = _maker(dsn, schema, lease_seconds=lease_seconds, retry_seconds=retry_seconds)
        _storages.add(self)

    def __repr__(self) -> str:
        return f"PostgresCheckpointStorage({self._make.target.where})"

    @property
    def schema(self) -> str:
        return self._make.target.schema

    @property
    def identity(self) -> object:
        return self._make.target.identity

    async def __aenter__(self) -> PostgresCheckpointStorage:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for what is being written; let go of the runs, the connections and the thread. Twice does nothing."""
        self._closed = True
        database, self._database = self._database, None
        if database is None:
            return
        leaving = database.writer.submit(jobs.Leave())
        stopping = database.writer.stop()
        try:
            await leaving.decided()
        except WorkflowCheckpointException as error:
            # The sessions end all the same; the row that names them is removed by whoever comes next.
            logger.warning("%r could not be left tidily: %s", self, error)
        finally:
            await stopping
            database.left()

    def __del__(self) -> None:
        database: postgres_database.Database | None = getattr(self, "_database", None)
        if database is None:
            return
        message = f"{self!r} was dropped open; close it, or use `async with`"
        warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
        database.writer.leave(jobs.Leave())
        database.writer.stop_soon()
        database.left()

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _reading(self, read: Callable[..., T], *args: Any) -> T:
        database = self._entered()
        loop = asyncio.get_running_loop()
        now = partial(loop.run_in_executor, database.readers.threads, database.readers.call(read, *args))
        try:
            return await now()
        except TablesMissing:
            await database.writer.write(jobs.Connect())
        return await now()

    def _load_now(self, checkpoint_id: str) -> WorkflowCheckpoint:
        return self._entered().readers.within_snapshot(super()._load_now, checkpoint_id)

    def _get(self, checkpoint_id: str) -> StoredCheckpoint | None:
        return self._entered().read(reading.checkpoint_with_id, checkpoint_id)

    def _latest(self, workflow_name: str | None, run_id: str | None) -> StoredCheckpoint | None:
        return self._entered().read(reading.latest_checkpoint, workflow_name, run_id)

    def _headers(self, workflow_name: str | None, run_id: str | None) -> list[StoredCheckpoint]:
        return self._entered().read(reading.headers, workflow_name, run_id)

    def _reachable(self, refs: Iterable[int]) -> dict[int, Node]:
        return self._entered().read(reading.reachable, refs)

    def _requests_named(self, request_id: str) -> list[RequestRow]:
        return self._entered().read(reading.requests_named, request_id)

    def _calls_of(self, run_id: str) -> Sequence[CallRecord]:
        return self._entered().read(reading.calls_of_run, run_id)

    def _runs(self, workflow_name: str | None, state: str | None) -> list[tuple[RunRow, list[RequestRow], str | None]]:
        return self._entered().read(reading.list_runs, workflow_name, state)

    def _siblings(self, stored: StoredCheckpoint) -> list[str]:
        return self._entered().read(reading.checkpoint_ids_of_run, stored.run_key)

    def _verify_runs(self, damaged: list[DamagedRecord]) -> tuple[int, int]:
        runs, calls, problems = self._entered().read(verification.verify_runs)
        damaged.extend(problems)
        return runs, calls

    async def _node_state(self, run_key: int) -> tuple[int, set[int]]:
        return await self._reading(self._node_state_now, run_key)

    def _node_state_now(self, run_key: int) -> tuple[int, set[int]]:
        return self._entered().read(reading.node_state, run_key)

    # --- writing -----------------------------------------------------------------------------------------------------

    async def _open(self, request: OpenRequest) -> OpenedRun:
        ticket = self._entered().writer.submit(jobs.OpenRun(request))
        try:
            opened: OpenedRun = await ticket.decided()
        except asyncio.CancelledError:
            if isinstance(ticket.outcome, OpenedRun):
                # Nobody will ever know that the run was taken, so it must not stay taken.
                row = ticket.outcome.row
                await self._release(Fence(row.key, row.run_id, row.epoch), None, None)
            raise
        return opened

    async def _write_checkpoint(self, write: CheckpointWrite) -> None:
        await self._in_turn(jobs.SaveCheckpoint(write))

    def _record_call(self, fence: Fence, row: CallRecord, supersedes: Sequence[str]) -> Coroutine[Any, Any, None]:
        database = self._entered()
        ahead = database.ahead.send(fence, row, supersedes)
        return database.writer.write(jobs.RecordCall(fence, row, supersedes, ahead))

    async def _drop_calls(self, fence: Fence, call_ids: Sequence[str]) -> None:
        await self._in_turn(jobs.DropCalls(fence, call_ids))

    async def _release(self, fence: Fence, state: str | None, stopped_by: str | None) -> None:
        await self._in_turn(jobs.ReleaseRun(fence, state, stopped_by))

    async def _in_turn(self, job: jobs.SaveCheckpoint | jobs.DropCalls | jobs.ReleaseRun) -> None:
        """No call that is recorded later overtakes this, which may do away with those that are there."""
        database = self._entered()
        with database.ahead.after(job.fence):
            await database.writer.write(job)

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

    def _entered(self) -> postgres_database.Database:
        if self._database is None:
            if self._closed:
                raise StorageClosed(self._make.target.where)
            self._database = self._make()
        return self._database

    def _forget_parent(self) -> None:
        """This is a forked child. What the parent has open is the parent's."""
        if self._database is not None:
            _abandoned.append(self._database)
            self._database.left()
            self._database = None


def is_there(dsn: str, *, schema: str = SCHEMA, retry_seconds: float = RETRY_SECONDS) -> bool:
    """Has a storage ever been used there? Looking creates nothing."""
    return _maker(dsn, schema, lease_seconds=LEASE_SECONDS, retry_seconds=retry_seconds).is_there()


def _maker(dsn: str, schema: str, *, lease_seconds: float, retry_seconds: float) -> postgres_database.Maker:
    """What talks to Postgres, imported when it is first needed: psycopg is an extra."""
    try:
        from stepwell.checkpointing.storage.postgres_database import Maker
    except ImportError as error:
        problem = f"psycopg is needed for Postgres and can't be imported ({error}): pip install 'stepwell[postgres]'"
        raise StorageError("PostgresCheckpointStorage", problem) from error
    return Maker(dsn, schema, lease_seconds=lease_seconds, retry_seconds=retry_seconds)


def _start_afresh() -> None:
    for storage in list(_storages):
        storage._forget_parent()


after_fork_in_child(_start_afresh)
