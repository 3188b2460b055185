"""Checkpoints in a SQLite database: the embedded default.

One file, any number of processes on one host, a power cut at any instant. All instances for one path in one process
share a writer thread, which commits together whatever is waiting (see `writer.py` and `sqlite_commit.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from stepwell.checkpointing.checkpoint import WorkflowCheckpoint
from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.retention import FULL_HISTORY, Retention
from stepwell.checkpointing.storage import sqlite_reading as reading
from stepwell.checkpointing.storage import sqlite_verification as verification
from stepwell.checkpointing.storage.records import (
    RequestRow,
    RunRow,
    StoredCheckpoint,
)
from stepwell.checkpointing.storage.seated import LEASE_SECONDS, Places, SeatedStorage, absolute
from stepwell.checkpointing.storage.sqlite_commit import GroupCommit
from stepwell.checkpointing.storage.sqlite_reading import SnapshotPool
from stepwell.checkpointing.storage.sqlite_schema import MEDIUM_ERRORS, failure
from stepwell.checkpointing.storage.verifying import DamagedRecord, VerificationReport
from stepwell.checkpointing.storage.writer import GroupWriter
from stepwell.checkpointing.values import Node, NodeLines, ValueDecoder

T = TypeVar("T")


class Database:
    """What the storages for one path in one process share: the writer thread, and the connections that read."""

    def __init__(self, path: Path) -> None:
        self.ready = False
        self.snapshots = SnapshotPool(path)
        self.writer = GroupWriter(GroupCommit(path, self.snapshots), name=f"stepwell-write {path.name}")


class SQLiteCheckpointStorage(SeatedStorage[Database]):
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

    _places = Places(Database)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        retention: Retention = FULL_HISTORY,
        audit: bool = False,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        super().__init__(_file(path), retention=retention, audit=audit, lease_seconds=lease_seconds)

    @property
    def path(self) -> Path:
        return self._path

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _reading(self, read: Callable[..., T], *args: Any) -> T:
        database = await self._prepared()
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
            read = reading.reachable(connection, refs)
            return {
                node.id: node for nodes in read for node in (nodes.apart() if isinstance(nodes, NodeLines) else nodes)
            }

    def _give_nodes(self, refs: Iterable[int], decoder: ValueDecoder) -> None:
        with self._entered().snapshots.snapshot() as connection:
            for nodes in reading.reachable(connection, refs):
                if isinstance(nodes, NodeLines):
                    decoder.add_lines(nodes)
                else:
                    decoder.add(nodes)

    def _requests_named(self, request_id: str) -> list[RequestRow]:
        with self._entered().snapshots.snapshot() as connection:
            return reading.requests_named(connection, request_id)

    def _calls_of(self, run_id: str) -> Sequence[CallRecord]:
        with self._entered().snapshots.snapshot() as connection:
            run = reading.runs_with_ids(connection, [run_id]).get(run_id)
            return reading.calls_of_run(connection, run.row.key) if run is not None else ()

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


def _file(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    if not text or text == ":memory:" or text.startswith("file:"):
        raise ValueError(f"{text!r} is not the path of a file; to keep nothing, use InMemoryCheckpointStorage()")
    return absolute(text)
