"""Checkpoints in a directory of JSON files, for people to look at and for one host's programs to share.

    <checkpoint_id>.json                  one checkpoint: header, messages, requests, outputs (see `file_json.py`)
    .stepwell/runs/<run_id>/run.jsonl     the run's values, and how it stands (`file_record.py`)
    .stepwell/runs/<run_id>/journal.jsonl the calls of the superstep under way (`file_journal.py`, `file_scribe.py`)
    .stepwell/index                       which run was saved last (`file_index.py`)
    .stepwell/families/, holders/         locks: of a run and its branches, and of those who may hold runs
    .stepwell/departed/                   values of deleted runs that branches still need

Each write happens under the lock of its run, with the epoch checked, and in an order that makes every crash harmless:
`file_plan.py` says which and why.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from stepwell.checkpointing.checkpoint import WorkflowCheckpoint, checked_id
from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.lease import Fence
from stepwell.checkpointing.registry import TypeRegistry, known_types
from stepwell.checkpointing.retention import FULL_HISTORY, Retention
from stepwell.checkpointing.storage.file_commit import FileCommit, Reindex
from stepwell.checkpointing.storage.file_disk import Layout, failure
from stepwell.checkpointing.storage.file_index import IndexWrong
from stepwell.checkpointing.storage.file_journal import read_journal
from stepwell.checkpointing.storage.file_reading import Reader, content_of
from stepwell.checkpointing.storage.file_record import RunRecord
from stepwell.checkpointing.storage.file_scribe import Entrusted, MakeGood
from stepwell.checkpointing.storage.recording import damaged_row
from stepwell.checkpointing.storage.records import (
    OpenedRun,
    OpenRequest,
    RequestRow,
    RunRow,
    StoredCheckpoint,
)
from stepwell.checkpointing.storage.seated import LEASE_SECONDS, Places, SeatedStorage, absolute
from stepwell.checkpointing.storage.sqlite_jobs import RecordCall
from stepwell.checkpointing.storage.verifying import DamagedRecord
from stepwell.checkpointing.storage.writer import GroupWriter, Ticket
from stepwell.checkpointing.values import Node, ValueMemory
from stepwell.errors import CheckpointDamaged, CheckpointNotFound, WorkflowCheckpointException

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Store:
    """What the storages for one directory in one process share: the writer thread, and what was read."""

    def __init__(self, path: Path) -> None:
        layout = Layout(path)
        self.ready = False
        self.reader = Reader(layout)
        commit = FileCommit(layout, self.reader)
        self.writer = GroupWriter(commit, name=f"stepwell-write {path.name}")
        commit.woken_by(partial(self.writer.leave, MakeGood()))

    def record(self, job: RecordCall) -> Coroutine[Any, Any, None]:
        """Have a call written down; to be awaited until it is durable."""
        ticket = Ticket(job)
        self.writer.leave(Entrusted(ticket))
        return ticket.decided()


class FileCheckpointStorage(SeatedStorage[Store]):
    """Checkpoints in the directory `storage_path`, one readable JSON file each.

    Use it as an async context manager, or `await storage.close()`. Nothing is opened before the first call, and nothing
    ever blocks the event loop but the first look at the content of a checkpoint that was listed and not loaded.

    Any number of processes on one host may share the directory, and the machine may lose power at any instant. It has
    to be on a local file system: locks and fsync mean something else on network drives. Across hosts use Postgres.

    A run that a storage holds is free as soon as the storage is closed or its process ends, however it ends. A holder
    that is frozen is believed to be alive for `lease_seconds` after it was last heard of; whoever was taken over can't
    write any more.
    """

    _places = Places(Store)

    def __init__(
        self,
        storage_path: str | os.PathLike[str],
        *,
        retention: Retention = FULL_HISTORY,
        audit: bool = False,
        lease_seconds: float = LEASE_SECONDS,
        allowed_checkpoint_types: Iterable[str] | None = None,
    ) -> None:
        # `allowed_checkpoint_types` is what programs for agent-framework pass to get their own types unpickled. It is
        # taken and not needed: the types a workflow declares are known, and nothing here can run code.
        path = _directory(storage_path)
        super().__init__(path, retention=retention, audit=audit, lease_seconds=lease_seconds)

    @property
    def storage_path(self) -> Path:
        return self._path

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _reading(self, read: Callable[..., T], *args: Any) -> T:
        store = await self._prepared()
        loop = asyncio.get_running_loop()

        def attempt() -> T:
            with self._looking():
                return read(*args)

        for _ in range(3):
            try:
                return await loop.run_in_executor(store.reader.threads, attempt)
            except IndexWrong:
                await store.writer.write(Reindex())
        return await loop.run_in_executor(store.reader.threads, attempt)

    def _looking(self) -> _Looking:
        return _Looking(self._entered().reader)

    def _load_now(self, checkpoint_id: str) -> WorkflowCheckpoint:
        with self._looking() as reader:
            try:
                return super()._load_now(checkpoint_id)
            except CheckpointDamaged:
                if reader.keeping(checkpoint_id) is None:  # deleted while we looked
                    raise CheckpointNotFound(checkpoint_id, repr(self)) from None
                raise

    def _load_latest(self, workflow_name: str | None, run_id: str | None) -> WorkflowCheckpoint | None:
        while True:
            stored = self._latest(workflow_name, run_id)
            try:
                return None if stored is None else self._decoded(stored, known_types, strict=False)
            except CheckpointDamaged:
                now = self._latest(workflow_name, run_id)
                if now is not None and stored is not None and now.checkpoint_id == stored.checkpoint_id:
                    raise  # it is still the latest, so it was not deleted under our hands

    def _decoded(
        self, stored: StoredCheckpoint, registry: TypeRegistry, *, strict: bool, memory: ValueMemory | None = None
    ) -> WorkflowCheckpoint:
        with self._looking() as reader:
            try:
                return super()._decoded(self._whole(stored), registry, strict=strict, memory=memory)
            except CheckpointDamaged:
                reader.forget()
            try:
                whole = self._whole(stored)
            except CheckpointDamaged as damage:
                raise self._with_ancestor(damage, stored) from damage
            return super()._decoded(whole, registry, strict=strict, memory=memory)

    def _whole(self, stored: StoredCheckpoint) -> StoredCheckpoint:
        """With its content, if that was not read yet."""
        if stored.root.text:
            return stored
        with self._looking() as reader:
            found = reader.keeping(stored.checkpoint_id)
            if found is None:
                raise CheckpointDamaged(stored.checkpoint_id, "no run keeps it any more")
            return content_of(reader.layout, found[1], found[0].key)

    def _get(self, checkpoint_id: str) -> StoredCheckpoint | None:
        with self._looking() as reader:
            found = reader.keeping(checkpoint_id)
            return None if found is None else found[1].stored(found[0].key)

    def _latest(self, workflow_name: str | None, run_id: str | None) -> StoredCheckpoint | None:
        with self._looking() as reader:
            if run_id is None:
                found = reader.newest(workflow_name)
                return None if found is None else found[1].stored(found[0].key)
            reader.index.refresh()
            record = reader.run(checked_id("run_id", run_id))
            if record is None or workflow_name not in (None, record.birth.workflow_name):
                return None
            newest = reader.complete(record).newest
            return newest.stored(record.key) if newest is not None else None

    def _headers(self, workflow_name: str | None, run_id: str | None) -> list[StoredCheckpoint]:
        if run_id is None:
            return self._readable(workflow_name, None)  # one run's damage is not to hide the others
        with self._looking() as reader:
            reader.index.refresh()
            record = reader.run(checked_id("run_id", run_id))
            if record is None or workflow_name not in (None, record.birth.workflow_name):
                return []
            return _in_order([reader.complete(record)])

    def _readable(self, workflow_name: str | None, run_id: str | None) -> list[StoredCheckpoint]:
        with self._looking() as reader:
            names = [run_id] if run_id is not None else list(reader.run_ids())
            records: list[RunRecord] = []
            for name in names:
                try:
                    record = reader.run(name)
                except CheckpointDamaged as damage:
                    logger.warning("the checkpoints of run %r are left out: %s", name, damage)
                    continue
                if record is not None and workflow_name in (None, record.birth.workflow_name):
                    records.append(record)
            return _in_order(records)

    def _siblings(self, stored: StoredCheckpoint) -> list[str]:
        with self._looking() as reader:
            found = reader.keeping(stored.checkpoint_id)
            return [] if found is None else list(found[0].saved)

    def _reachable(self, refs: Iterable[int]) -> dict[int, Node]:
        with self._looking() as reader:
            return reader.reachable(refs)

    def _requests_named(self, request_id: str) -> list[RequestRow]:
        with self._looking() as reader:
            return reader.requests_named(request_id)

    def _calls_of(self, run_id: str) -> Sequence[CallRecord]:
        with self._looking() as reader:
            return _calls(reader, run_id)

    def _runs(self, workflow_name: str | None, state: str | None) -> list[tuple[RunRow, list[RequestRow], str | None]]:
        with self._looking() as reader:
            listed = [_listed(reader, run_id) for run_id in reader.run_ids()]
        chosen = [
            (saved_at, run)
            for saved_at, run in filter(None, listed)
            # Whose a run is that can't be read at all, nobody can tell.
            if workflow_name in (None, run[0].workflow_name or workflow_name) and state in (None, run[0].state)
        ]
        return [run for _, run in sorted(chosen, key=lambda each: each[0], reverse=True)]

    def _verify_runs(self, damaged: list[DamagedRecord]) -> tuple[int, int]:
        runs = calls = 0
        with self._looking() as reader:
            reader.index.refresh()
            for run_id in reader.run_ids():
                runs += 1
                try:
                    record = reader.run(run_id)
                    if record is None:
                        continue
                    if record.lost_values:
                        damaged.append(DamagedRecord(f"run {run_id}", f"{record.lost_values} values can't be read"))
                    calls += len(_calls(reader, run_id))
                    reader.complete(record)
                except WorkflowCheckpointException as error:
                    damaged.append(DamagedRecord.of(error, f"run {run_id}"))
        return runs, calls

    async def _node_state(self, run_key: int) -> tuple[int, set[int]]:
        def read() -> tuple[int, set[int]]:
            with self._looking() as reader:
                return reader.node_state(run_key)

        return await self._reading(read)

    def _record_call(self, fence: Fence, row: CallRecord, supersedes: Sequence[str]) -> Coroutine[Any, Any, None]:
        return self._entered().record(RecordCall(self._seat, fence, row, supersedes))

    async def _open(self, request: OpenRequest) -> OpenedRun:
        opened = await super()._open(request)
        self._entered().reader.place(opened.row.key, opened.row.run_id)
        return opened


class _Looking:
    """One thread at a time looks at the store; what the disk has against it is told in terms of stepwell."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __enter__(self) -> Reader:
        self._reader.lock.acquire()
        return self._reader

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._reader.lock.release()
        if isinstance(error, OSError):
            raise failure(error, self._reader.layout.root) from error


def _calls(reader: Reader, run_id: str) -> Sequence[CallRecord]:
    """The calls that count, as of one instant: the journal may be that of a record which was read too early."""
    while (record := reader.run(run_id)) is not None:
        serial = record.serial
        try:
            return read_journal(record)[0]
        except CheckpointDamaged:
            again = reader.run(run_id)
            if again is not None and again.serial == serial:
                raise
    return ()


def _listed(reader: Reader, run_id: str) -> tuple[int, tuple[RunRow, list[RequestRow], str | None]] | None:
    """When a run was last saved, and what there is to tell of it: that it is damaged, if it is."""
    row = RunRow(key=0, run_id=run_id, workflow_name="", state="", epoch=0, holder=None, origin=run_id)
    saved_at, newest = 0, None
    try:
        record = reader.run(run_id)
        if record is None:
            return None
        row = record.row
        if record.newest is not None:
            saved_at, newest = record.newest.n, record.newest.checkpoint_id
        record.check()
        return saved_at, (row, list(record.requests.values()), newest)
    except CheckpointDamaged as damage:
        return saved_at, (damaged_row(row, damage), [], newest)


def _in_order(records: Iterable[RunRecord]) -> list[StoredCheckpoint]:
    found = [(saved.n, record.key, saved) for record in records for saved in record.saved.values()]
    return [saved.stored(key) for _, key, saved in sorted(found, key=lambda each: each[:2])]


def _directory(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    if not text:
        raise ValueError("the path of a directory is needed; to keep nothing, use InMemoryCheckpointStorage()")
    return absolute(text)
