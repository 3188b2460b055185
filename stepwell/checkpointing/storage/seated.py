"""Storages on this machine's disk: how an instance comes, takes its seat, has things written, and goes.

All instances for one path in a process share a *place*: one writer thread, and whatever is needed to read. Each has a
seat there, by which the writer knows whose runs are whose.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import warnings
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar
from weakref import WeakSet

from stepwell.checkpointing.checkpoint import checked_id
from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.lease import Fence
from stepwell.checkpointing.retention import Retention
from stepwell.checkpointing.storage import sqlite_jobs as jobs
from stepwell.checkpointing.storage.forking import after_fork_in_child
from stepwell.checkpointing.storage.protocol import Decision
from stepwell.checkpointing.storage.recording import RecordingStorage
from stepwell.checkpointing.storage.records import CheckpointWrite, OpenedRun, OpenRequest
from stepwell.checkpointing.storage.sqlite_jobs import Seat
from stepwell.checkpointing.storage.writer import GroupWriter
from stepwell.errors import StorageClosed, WorkflowCheckpointException

logger = logging.getLogger(__name__)

LEASE_SECONDS = 30.0


class Place(Protocol):
    """What the storages for one path in one process share."""

    writer: GroupWriter
    ready: bool
    """Is it there? Then it can be read without asking the writer to create it."""


P = TypeVar("P", bound=Place)


class Places(Generic[P]):
    """The places in use by this process. Entered and left from any thread, and from destructors."""

    def __init__(self, make: Callable[[Path], P]) -> None:
        self._make = make
        self._lock = threading.RLock()
        self._by_path: dict[Path, tuple[P, list[int]]] = {}

    def enter(self, path: Path) -> P:
        with self._lock:
            if path not in self._by_path:
                self._by_path[path] = (self._make(path), [0])
            place, members = self._by_path[path]
            members[0] += 1
            return place

    def leave(self, path: Path) -> bool:
        """Was this the last one?"""
        with self._lock:
            _, members = self._by_path[path]
            members[0] -= 1
            if not members[0]:
                del self._by_path[path]
            return not members[0]

    def start_afresh(self) -> None:
        """This is a forked child: the places are the parent's, and to close the copies would disturb the originals."""
        _abandoned.append(self._by_path)
        self._lock = threading.RLock()
        self._by_path = {}


_storages: WeakSet[SeatedStorage[Any]] = WeakSet()
_abandoned: list[object] = []
"""Kept for ever by forked children, so that nothing of their parents' is closed."""


class SeatedStorage(RecordingStorage, Generic[P]):
    """A storage with a seat at the place for its path; nothing is opened before the first call."""

    _places: Places[P]
    """One for all instances of a class."""

    def __init__(self, path: Path, *, retention: Retention, audit: bool, lease_seconds: float) -> None:
        super().__init__(retention=retention, audit=audit)
        self._closed = False
        self._place: P | None = None
        self._path = path
        self._seat = Seat(lease_seconds)
        _storages.add(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._path)!r})"

    @property
    def identity(self) -> object:
        return self._path

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for what is being written; let go of the runs, the files and the thread. Closing twice does nothing."""
        self._closed = True
        place, self._place = self._place, None
        if place is None:
            return
        leaving = place.writer.submit(jobs.Leave(self._seat))
        stopping = place.writer.stop() if self._places.leave(self._path) else None
        try:
            await leaving.decided()
        except WorkflowCheckpointException as error:
            # The lock is released all the same; the row that names it is removed by whoever comes next.
            logger.warning("%s could not be left tidily: %s", self._path, error)
        finally:
            if stopping is not None:
                await stopping

    def __del__(self) -> None:
        place: P | None = getattr(self, "_place", None)
        if place is None:
            return
        message = f"{self!r} was dropped open; close it, or use `async with`"
        warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
        place.writer.leave(jobs.Leave(self._seat))
        if self._places.leave(self._path):
            place.writer.stop_soon()

    def _entered(self) -> P:
        if self._place is None:
            if self._closed:
                raise StorageClosed(str(self._path))
            self._place = self._places.enter(self._path)
        return self._place

    async def _prepared(self) -> P:
        """The place, which is really there: a reader would find nothing to open."""
        place = self._entered()
        if not place.ready:
            await place.writer.write(jobs.Connect())
            place.ready = True
        return place

    def _forget_parent(self) -> None:
        """This is a forked child. What the parent has open is the parent's."""
        if self._place is not None:
            _abandoned.append((self._place, self._seat))
            self._place = None
        self._seat = Seat(self._seat.lease_seconds)

    # --- writing -----------------------------------------------------------------------------------------------------

    async def _open(self, request: OpenRequest) -> OpenedRun:
        place = self._entered()
        ticket = place.writer.submit(jobs.OpenRun(self._seat, request))
        try:
            opened: OpenedRun = await ticket.decided()
        except asyncio.CancelledError:
            if isinstance(ticket.outcome, OpenedRun):
                # Nobody will ever know that the run was taken, so it must not stay taken.
                row = ticket.outcome.row
                await self._release(Fence(row.key, row.run_id, row.epoch), None, None)
            raise
        place.ready = True
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
        await self._entered().writer.write(jobs.AnswerRequest(checked_id("run_id", run_id), decision))

    async def _cancel(self, run_id: str) -> None:
        await self._entered().writer.write(jobs.CancelRun(run_id))

    async def _delete(self, checkpoint_id: str) -> bool:
        deleted: bool = await self._entered().writer.write(jobs.DeleteCheckpoint(checkpoint_id))
        return deleted

    async def _delete_run(self, run_id: str) -> bool:
        deleted: bool = await self._entered().writer.write(jobs.DeleteRun(run_id))
        return deleted


def absolute(path: str) -> Path:
    """Made absolute now, and not when it is first used: the current directory may be another one by then.

    Asking for that reads no disk, unlike resolving links, which is left to the writer thread.
    """
    if Path(path).is_absolute():
        return Path(path)
    return Path(os.fsdecode(os.getcwdb()), path)  # noqa: PTH109 - blockbuster takes Path.cwd() for a blocking call


def _start_afresh() -> None:
    for places in {type(storage)._places for storage in _storages}:
        places.start_afresh()
    for storage in list(_storages):
        storage._forget_parent()


after_fork_in_child(_start_afresh)
