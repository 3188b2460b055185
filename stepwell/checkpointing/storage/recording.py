"""What every storage shipped here has in common: the six methods, runs, and the log the engine writes to.

A backend supplies rows in and rows out (the methods that begin with an underscore). Reads are plain functions, called
wherever the backend wants reads to happen; writes are coroutines that return when the write is durable and raise when
it is not, and each of them is one transaction with the fence inside.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

from stepwell.checkpointing.checkpoint import CheckpointContent, WorkflowCheckpoint, checked_id, new_id
from stepwell.checkpointing.codec import Codec
from stepwell.checkpointing.journal import CallRecord, usage_text
from stepwell.checkpointing.lease import Fence
from stepwell.checkpointing.registry import TypeRegistry, known_types
from stepwell.checkpointing.retention import FULL_HISTORY, Retention
from stepwell.checkpointing.storage.protocol import BranchPoint, CheckpointDraft, Decision, RunInfo, RunLog
from stepwell.checkpointing.storage.records import (
    CheckpointWrite,
    OpenedRun,
    OpenRequest,
    RequestRow,
    RunRow,
    StaleMemory,
    StoredCheckpoint,
    header_text,
    parse_header,
    parse_usage,
)
from stepwell.checkpointing.storage.verifying import DamagedRecord, VerificationReport
from stepwell.checkpointing.values import Node, Root, ValueDecoder, ValueEncoder, ValueMemory, digest_of
from stepwell.errors import (
    CheckpointDamaged,
    CheckpointNotFound,
    FormatTooNew,
    InvalidRunArguments,
    UnknownRequest,
    WorkflowCheckpointException,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

SAVED_BY_HAND = "SAVED"
"""The state of a pseudo-run that holds one checkpoint saved through `save` and belonging to no run."""

DAMAGED = "DAMAGED"
"""The state in which a run is listed whose rows are not what was written; it is never stored."""

_OFF_LOOP_SECONDS = 0.001
"""Encoding that takes longer leaves the event loop: at once if it is much longer, otherwise when it happens again."""


def now() -> str:
    return datetime.now(UTC).isoformat()


class RecordingStorage(ABC):
    """A `RunStorage` on top of a backend's rows."""

    def __init__(self, *, retention: Retention = FULL_HISTORY, audit: bool = False) -> None:
        self.retention = retention
        self.audit = audit
        self._open_here: set[str] = set()
        """The runs that a log of this instance is open for."""

    # --- the six methods ---------------------------------------------------------------------------------------------

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Keep a checkpoint made by hand. Saving an id again replaces it."""
        checked_id("checkpoint_id", checkpoint.checkpoint_id)
        run_id = checked_id("run_id", checkpoint.run_id or f"saved.{checkpoint.checkpoint_id}"[:128])
        request = OpenRequest(run_id, checkpoint.workflow_name, create=True)
        opened = await self._open(request)
        log = RecordedRun(self, opened, known_types)
        kept = False
        try:
            await log.save_as_is(checkpoint, state=opened.row.state if not opened.created else SAVED_BY_HAND)
            kept = True
        finally:
            await log.release()
            if opened.created and not kept:
                await self._delete_run(run_id)
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        checked_id("checkpoint_id", checkpoint_id)
        return await self._reading(self._load_now, checkpoint_id)

    async def list_checkpoints(
        self, *, workflow_name: str | None = None, run_id: str | None = None
    ) -> list[WorkflowCheckpoint]:
        """Oldest first, with their content read on first access. Without `run_id`, what is damaged hides nothing else:
        a checkpoint whose header can't be read is left out, with a warning in the log. `list_runs` and `verify` name
        what is damaged; with `run_id` it is an error."""
        listed: list[WorkflowCheckpoint] = []
        for row in await self._reading(self._headers, workflow_name, run_id):
            try:
                listed.append(self._lazy(row))
            except CheckpointDamaged as damage:
                if run_id is not None:
                    raise
                logger.warning("a checkpoint is left out of a list: %s", damage)
        return listed

    async def list_checkpoint_ids(self, *, workflow_name: str | None = None, run_id: str | None = None) -> list[str]:
        return [row.checkpoint_id for row in await self._reading(self._headers, workflow_name, run_id)]

    async def get_latest(
        self, *, workflow_name: str | None = None, run_id: str | None = None, fallback: bool = False
    ) -> WorkflowCheckpoint | None:
        """The one saved last. With `fallback`, the newest readable one if that is damaged."""
        try:
            return await self._reading(self._load_latest, workflow_name, run_id)
        except CheckpointDamaged:
            if not fallback:
                raise
        return await self._reading(self._newest_good, workflow_name, run_id)

    async def delete(self, checkpoint_id: str) -> bool:
        checked_id("checkpoint_id", checkpoint_id)
        return await self._delete(checkpoint_id)

    # --- runs --------------------------------------------------------------------------------------------------------

    async def open_run(
        self,
        run_id: str,
        *,
        workflow_name: str,
        registry: TypeRegistry,
        create: bool,
        branch_of: BranchPoint | None = None,
    ) -> RunLog | None:
        is_open_here = checked_id("run_id", run_id) in self._open_here
        request = OpenRequest(run_id, workflow_name, create, branch_of, reclaim=not is_open_here)
        self._open_here.add(run_id)
        try:
            opened = await self._open(request)
        except BaseException as error:
            if not is_open_here:
                self._open_here.discard(run_id)
            if isinstance(error, KeyError):
                return None
            raise
        return RecordedRun(self, opened, registry)

    @property
    def identity(self) -> object:
        return id(self)

    async def newest_checkpoint_id(self, run_id: str) -> str | None:
        stored = await self._reading(self._latest, None, checked_id("run_id", run_id))
        return None if stored is None else stored.checkpoint_id

    async def decision(self, run_id: str, request_id: str) -> Decision | None:
        rows = await self._reading(self._requests_named, request_id)
        return next((row.decision for row in rows if row.run_id == run_id), None)

    async def run_waiting_for(self, request_id: str) -> str | None:
        rows = await self._reading(self._requests_named, request_id)
        waiting = [row.run_id for row in rows if row.decision is None]
        if len(waiting) > 1:
            raise InvalidRunArguments(
                f"request {request_id!r} waits in the runs {', '.join(map(repr, waiting))}; say which one with run_id=…"
            )
        return next(iter(waiting), rows[0].run_id if rows else None)

    async def list_runs(self, *, workflow_name: str | None = None, state: str | None = None) -> list[RunInfo]:
        rows = await self._reading(self._runs, workflow_name, state)
        return [run_info(row, requests, latest) for row, requests, latest in rows if row.state != SAVED_BY_HAND]

    async def list_calls(self, run_id: str) -> list[CallRecord]:
        """The recorded calls of a run, in the order in which they were made: those of the superstep under way, with
        `audit=True` all of them."""
        return list(await self._reading(self._calls_of, checked_id("run_id", run_id)))

    async def answer(self, request_id: str, value: Any, *, run_id: str | None = None) -> None:
        """Record an answer (JSON data) without the program; the next resume checks its type and delivers it."""
        target = run_id or await self.run_waiting_for(request_id)
        if target is None:
            raise UnknownRequest(request_id, ())
        text = Codec().encode_text(value, path="answer")
        await self._answer(target, Decision(request_id, text, now(), typed=False))

    async def cancel_run(self, run_id: str) -> None:
        await self._cancel(checked_id("run_id", run_id))

    async def delete_run(self, run_id: str) -> bool:
        return await self._delete_run(checked_id("run_id", run_id))

    async def verify(self) -> VerificationReport:
        """Read everything there is, and say what is damaged. Damage is reported, never raised."""
        return await self._reading(self._verify_now)

    # --- what a backend supplies -------------------------------------------------------------------------------------

    @abstractmethod
    async def _reading(self, read: Callable[..., T], *args: Any) -> T:
        """Call a read function where reads belong."""

    @abstractmethod
    def _get(self, checkpoint_id: str) -> StoredCheckpoint | None: ...

    @abstractmethod
    def _latest(self, workflow_name: str | None, run_id: str | None) -> StoredCheckpoint | None: ...

    @abstractmethod
    def _headers(self, workflow_name: str | None, run_id: str | None) -> list[StoredCheckpoint]:
        """Oldest first; the roots may lack their text."""

    @abstractmethod
    def _reachable(self, refs: Iterable[int]) -> dict[int, Node]:
        """These nodes and all they lead to; what is missing is left out."""

    @abstractmethod
    def _requests_named(self, request_id: str) -> list[RequestRow]: ...

    @abstractmethod
    def _calls_of(self, run_id: str) -> Sequence[CallRecord]: ...

    @abstractmethod
    def _runs(
        self, workflow_name: str | None, state: str | None
    ) -> list[tuple[RunRow, list[RequestRow], str | None]]: ...

    @abstractmethod
    async def _open(self, request: OpenRequest) -> OpenedRun:
        """Take the lease; `KeyError` if the run does not exist and is not to be created, `RunBusy` if it is held."""

    @abstractmethod
    async def _write_checkpoint(self, write: CheckpointWrite) -> None: ...

    @abstractmethod
    async def _record_call(self, fence: Fence, row: CallRecord, supersedes: Sequence[str]) -> None: ...

    @abstractmethod
    async def _drop_calls(self, fence: Fence, call_ids: Sequence[str]) -> None: ...

    @abstractmethod
    async def _release(self, fence: Fence, state: str | None, stopped_by: str | None) -> None: ...

    @abstractmethod
    async def _node_state(self, run_key: int) -> tuple[int, set[int]]:
        """How often nodes were swept, and the ids of this run's family that are left."""

    @abstractmethod
    async def _answer(self, run_id: str, decision: Decision) -> None: ...

    @abstractmethod
    async def _cancel(self, run_id: str) -> None: ...

    @abstractmethod
    async def _delete(self, checkpoint_id: str) -> bool: ...

    @abstractmethod
    async def _delete_run(self, run_id: str) -> bool: ...

    # --- reading -----------------------------------------------------------------------------------------------------

    def _load_now(self, checkpoint_id: str) -> WorkflowCheckpoint:
        stored = self._get(checkpoint_id)
        if stored is None:
            raise CheckpointNotFound(checkpoint_id, repr(self))
        return self._decoded(stored, known_types, strict=False)

    def _load_latest(self, workflow_name: str | None, run_id: str | None) -> WorkflowCheckpoint | None:
        stored = self._latest(workflow_name, run_id)
        return None if stored is None else self._decoded(stored, known_types, strict=False)

    def _newest_good(self, workflow_name: str | None, run_id: str | None) -> WorkflowCheckpoint | None:
        for row in reversed(self._readable(workflow_name, run_id)):
            try:
                return self._load_now(row.checkpoint_id)
            except WorkflowCheckpointException:
                continue
        return None

    def _decoded(
        self, stored: StoredCheckpoint, registry: TypeRegistry, *, strict: bool, memory: ValueMemory | None = None
    ) -> WorkflowCheckpoint:
        try:
            header = parse_header(stored)
            content = self._content(stored, registry, strict=strict, memory=memory)
        except CheckpointDamaged as damage:
            raise self._with_ancestor(damage, stored) from damage
        except FormatTooNew:
            if self._is_sealed(stored):
                raise
            # A single changed bit makes a format of the future out of today's.
            changed = CheckpointDamaged(stored.checkpoint_id, "its content does not match its digest")
            raise self._with_ancestor(changed, stored) from None
        return WorkflowCheckpoint(**header, **content.fields())

    def _is_sealed(self, stored: StoredCheckpoint) -> bool:
        root = stored.root
        nodes = self._reachable(root.refs)
        digests = [nodes[ref].digest for ref in root.refs if ref in nodes]
        return len(digests) == len(root.refs) and digest_of(stored.header + root.text, digests) == root.digest

    def _content(
        self, stored: StoredCheckpoint, registry: TypeRegistry, *, strict: bool, memory: ValueMemory | None = None
    ) -> CheckpointContent:
        decoder = ValueDecoder(registry, strict=strict, path=f"checkpoint {stored.checkpoint_id}", memory=memory)
        self._give_nodes(stored.root.refs, decoder)
        decoded = decoder.root(stored.header, stored.root)
        if not isinstance(decoded, dict):
            raise CheckpointDamaged(stored.checkpoint_id, "its content is not an object")
        return CheckpointContent.of(decoded)

    def _give_nodes(self, refs: Iterable[int], decoder: ValueDecoder) -> None:
        """What is `_reachable`, for backends that can do better than to make an object of each."""
        decoder.add(self._reachable(refs).values())

    def _with_ancestor(self, damage: CheckpointDamaged, stored: StoredCheckpoint) -> CheckpointDamaged:
        """The same damage, naming the checkpoint and the newest one before it that is whole."""
        problem = damage.problem if damage.record == stored.checkpoint_id else f"{damage.record}: {damage.problem}"
        return CheckpointDamaged(stored.checkpoint_id, problem, self._good_ancestor(stored))

    def _good_ancestor(self, damaged: StoredCheckpoint) -> str | None:
        ids = self._siblings(damaged)
        older = ids[: ids.index(damaged.checkpoint_id)] if damaged.checkpoint_id in ids else ids
        for checkpoint_id in reversed(older):
            try:
                stored = self._get(checkpoint_id)
                if stored is not None and parse_header(stored):
                    self._content(self._whole(stored), known_types, strict=False)
                    return checkpoint_id
            except WorkflowCheckpointException:
                continue
        return None

    def _siblings(self, stored: StoredCheckpoint) -> list[str]:
        """The checkpoints of the same run, oldest first, whatever is wrong with them."""
        return [row.checkpoint_id for row in self._readable(None, None) if row.run_key == stored.run_key]

    def _readable(self, workflow_name: str | None, run_id: str | None) -> list[StoredCheckpoint]:
        """Like `_headers`, and what can't be read is left out: for those who look for something that is whole."""
        return self._headers(workflow_name, run_id)

    def _verify_now(self) -> VerificationReport:
        damaged: list[DamagedRecord] = []
        rows: list[StoredCheckpoint] = []
        try:
            rows = self._readable(None, None)
        except WorkflowCheckpointException as error:
            damaged.append(DamagedRecord.of(error, repr(self)))
        for row in rows:
            try:
                self._load_now(row.checkpoint_id)
            except CheckpointNotFound:
                continue  # deleted while we read
            except WorkflowCheckpointException as error:
                damaged.append(DamagedRecord.of(error, row.checkpoint_id))
        runs, calls = self._verify_runs(damaged)
        return VerificationReport(runs, len(rows), calls, tuple(damaged))

    def _verify_runs(self, damaged: list[DamagedRecord]) -> tuple[int, int]:
        """Read what does not belong to checkpoints, adding what is damaged; how many runs and calls there are."""
        return len(self._runs(None, None)), 0

    def _whole(self, stored: StoredCheckpoint) -> StoredCheckpoint:
        """With its content, for backends that read it only when it is needed."""
        return stored

    def _lazy(self, stored: StoredCheckpoint) -> WorkflowCheckpoint:
        header = parse_header(stored)
        return WorkflowCheckpoint(**header, read=self._content_now)

    def _content_now(self, checkpoint_id: str) -> CheckpointContent:
        """A checkpoint's content, when somebody looks at it."""
        return self._load_now(checkpoint_id).content


class RecordedRun:
    """The `RunLog` of every storage shipped here: encodes, remembers what is stored, writes through the fence."""

    def __init__(self, storage: RecordingStorage, opened: OpenedRun, registry: TypeRegistry) -> None:
        row = opened.row
        self._storage = storage
        self._opened = opened
        self._registry = registry
        self._fence = Fence(row.key, row.run_id, row.epoch)
        self._memory = ValueMemory(opened.next_node)
        self._encoder = ValueEncoder(registry, self._memory)
        self._id_prefix = new_id()[:24]
        self._read = storage._content_now  # one for all of the run's checkpoints: many of them are kept at once
        self._sweeps = row.sweeps
        self._sequence = row.sequence
        self._previous = opened.latest
        self._slowness = 0
        self._released = False

    @property
    def run_id(self) -> str:
        return self._fence.run_id

    @property
    def info(self) -> RunInfo | None:
        if self._opened.created:
            return None
        latest = self._opened.latest
        return run_info(self._opened.row, self._opened.requests, latest.checkpoint_id if latest else None)

    @property
    def calls(self) -> Sequence[CallRecord]:
        return self._opened.calls

    @property
    def decisions(self) -> Mapping[str, Decision]:
        return {row.summary.request_id: row.decision for row in self._opened.requests if row.decision is not None}

    async def latest(self, registry: TypeRegistry) -> WorkflowCheckpoint | None:
        stored = self._opened.latest
        if stored is None:
            return None

        def read() -> WorkflowCheckpoint:
            return self._storage._decoded(stored, registry, strict=True, memory=self._memory)

        return await self._storage._reading(read)

    async def load(self, checkpoint_id: str, registry: TypeRegistry) -> WorkflowCheckpoint:
        def read() -> WorkflowCheckpoint:
            stored = self._storage._get(checkpoint_id)
            if stored is None:
                raise CheckpointNotFound(checkpoint_id, repr(self._storage))
            return self._storage._decoded(stored, registry, strict=True, memory=self._memory)

        return await self._storage._reading(read)

    async def save(self, draft: CheckpointDraft) -> WorkflowCheckpoint:
        previous = self._previous
        # Unique like a random id, and cheaper: the prefix is random, the rest counts.
        checkpoint_id = f"{self._id_prefix}{self._sequence + 1:08x}"
        checkpoint = WorkflowCheckpoint(
            self._opened.row.workflow_name,
            draft.graph_signature_hash,
            checkpoint_id=checkpoint_id,
            previous_checkpoint_id=previous.checkpoint_id if previous else self._opened.row.parent_checkpoint_id,
            run_id=self.run_id,
            sequence=self._sequence + 1,
            timestamp=now(),
            iteration_count=draft.iteration_count,
            metadata=draft.metadata,
            read=self._read,
        )
        stored = await self._write(checkpoint, draft)
        checkpoint.digest = stored.root.digest.hex()
        self._sequence += 1
        self._previous = stored
        if draft.final:
            self._released = True
            self._storage._open_here.discard(self.run_id)
        return checkpoint

    async def save_as_is(self, checkpoint: WorkflowCheckpoint, *, state: str) -> None:
        """Keep a checkpoint with the header it came with; what else is known of the run stays as it is."""
        pending = [item for item in checkpoint.pending_request_info_events.values() if hasattr(item, "asked_at")]
        draft = CheckpointDraft(
            graph_signature_hash=checkpoint.graph_signature_hash,
            iteration_count=checkpoint.iteration_count,
            content=checkpoint.content,
            metadata=checkpoint.metadata,
            run_state=state,
            pending=() if checkpoint.run_id is None else tuple(_summary(item) for item in pending),
            usage=parse_usage(self._opened.row.usage),
            keep_calls=True,
        )
        await self._write(checkpoint, draft)

    async def record_call(self, row: CallRecord, *, supersedes: Sequence[str]) -> None:
        await self._storage._record_call(self._fence, row, supersedes)

    async def drop_calls(self, call_ids: Sequence[str]) -> None:
        await self._storage._drop_calls(self._fence, call_ids)

    async def release(self, *, state: str | None = None, stopped_by: str | None = None) -> None:
        if not self._released:
            self._released = True
            # Even if the medium is gone: after its repair this instance may open the run again.
            self._storage._open_here.discard(self.run_id)
            await self._storage._release(self._fence, state, stopped_by)

    async def _write(self, checkpoint: WorkflowCheckpoint, draft: CheckpointDraft) -> StoredCheckpoint:
        previous_digest = self._previous.root.digest.hex() if self._previous else None
        header = header_text(checkpoint, previous_digest, draft.run_state)
        while True:
            if self._slowness > 1 or _looks_large(draft.content):
                root, nodes = await self._encode_elsewhere(header, draft.content)
            else:
                root, nodes = self._encode(header, draft.content)
            stored = StoredCheckpoint(checkpoint.checkpoint_id, self._fence.run_key, header, root)
            write = CheckpointWrite(
                fence=self._fence,
                workflow_name=checkpoint.workflow_name,
                stored=stored,
                nodes=nodes,
                state=draft.run_state,
                sequence=max(checkpoint.sequence, self._sequence),
                supersteps=draft.iteration_count,
                usage=usage_text(draft.usage),
                updated_at=checkpoint.timestamp,
                requests=draft.pending,
                decisions=draft.decisions,
                delivers=draft.delivers,
                expected_sweeps=self._sweeps,
                keep=self._storage.retention.count,
                forget_calls=not (self._storage.audit or draft.keep_calls),
                final=draft.final,
            )
            try:
                await self._storage._write_checkpoint(write)
            except StaleMemory:
                self._memory.forget(nodes)
                self._sweeps, left = await self._storage._node_state(self._fence.run_key)
                self._memory.retain(left)
            except BaseException:
                # Nothing was written, so nothing of it may be referred to later.
                self._memory.forget(nodes)
                raise
            else:
                self._memory.tidy()
                return stored

    async def _encode_elsewhere(self, header: str, content: CheckpointContent) -> tuple[Root, list[Node]]:
        """What takes long must not keep the event loop."""
        try:
            return await asyncio.to_thread(self._encode, header, content)
        except asyncio.CancelledError:
            # The thread goes on and notes nodes that nobody will write.
            self._memory = ValueMemory(self._memory.next_id)
            self._encoder = ValueEncoder(self._registry, self._memory)
            raise

    def _encode(self, header: str, content: CheckpointContent) -> tuple[Root, list[Node]]:
        began = time.perf_counter()
        memory, encoder = self._memory, self._encoder
        try:
            text, refs = encoder.root(content.fields(), "checkpoint")
            root = encoder.sealed(header, text, refs)
        except BaseException:
            memory.forget(encoder.new_nodes)
            raise
        took = (time.perf_counter() - began) / _OFF_LOOP_SECONDS
        # A little slow just once may have been the machine, and a thread costs more than it saves.
        self._slowness = 0 if took < 1 else self._slowness + (2 if took > 5 else 1)
        return root, encoder.new_nodes


def _summary(pending: Any) -> Any:
    from stepwell.checkpointing.storage.protocol import PendingSummary

    return PendingSummary(
        request_id=pending.request_id,
        source_executor_id=pending.source_executor_id,
        request_type=pending.request_type,
        response_type=pending.response_type,
        asked_at=pending.asked_at,
        shown=Codec().encode_text(pending.data, path="request"),
        deadline=pending.deadline,
    )


def _looks_large(content: CheckpointContent) -> bool:
    """A cheap guess for content that was never encoded before, such as a first message of several megabytes."""
    for messages in islice(content.messages.values(), 4):
        for message in messages[:4]:
            if hasattr(message.data, "__len__") and len(message.data) > 50_000:
                return True
    return False


def damaged_row(row: RunRow, damage: CheckpointDamaged) -> RunRow:
    """A run as it is listed if it can't be relied on; the problem is told in place of why it stopped."""
    problem = damage.problem if damage.record == f"run {row.run_id}" else f"{damage.record}: {damage.problem}"
    return replace(row, state=DAMAGED, stopped_by=problem, usage="{}")


def run_info(row: RunRow, requests: Iterable[RequestRow], latest_checkpoint_id: str | None) -> RunInfo:
    requests = list(requests)
    return RunInfo(
        run_id=row.run_id,
        workflow_name=row.workflow_name,
        state=row.state,
        pending_requests=tuple(item.summary for item in requests if item.decision is None),
        updated_at=row.updated_at,
        supersteps=row.supersteps,
        usage=parse_usage(row.usage),
        latest_checkpoint_id=latest_checkpoint_id,
        parent_checkpoint_id=row.parent_checkpoint_id,
        parent_run_id=row.parent_run_id,
        stopped_by=row.stopped_by,
        undelivered_answers=sum(1 for item in requests if item.decision is not None and not item.decision.typed),
        holder=row.holder,
    )


def decision_text(decision: Decision) -> str:
    """An answer for an error message: short, and as JSON."""
    text = decision.value
    return text if len(text) <= 300 else text[:299] + "…"


def request_json(rows: Iterable[Any]) -> str:
    return json.dumps(list(rows), separators=(",", ":"))
