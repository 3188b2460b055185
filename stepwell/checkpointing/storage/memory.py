"""Checkpoints in this process's memory: every promise but durability, so semantics can be tested without a disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.lease import Fence, Holder
from stepwell.checkpointing.retention import FULL_HISTORY, Retention
from stepwell.checkpointing.storage.protocol import Decision
from stepwell.checkpointing.storage.recording import SAVED_BY_HAND, RecordingStorage, decision_text, now
from stepwell.checkpointing.storage.records import (
    NODES_PER_RUN,
    CheckpointWrite,
    OpenedRun,
    OpenRequest,
    RequestRow,
    RunRow,
    StaleMemory,
    StoredCheckpoint,
)
from stepwell.checkpointing.storage.verifying import DamagedRecord
from stepwell.checkpointing.values import Node
from stepwell.errors import AlreadyAnswered, RunBusy, RunTakenOver, UnknownRequest, UnknownRun

T = TypeVar("T")

Checkpoints = dict[str, StoredCheckpoint]
"""By id, in the order of saving."""


@dataclass(slots=True)
class _Run:
    """Everything of one run but its nodes."""

    row: RunRow
    next_node: int
    checkpoints: Checkpoints = field(default_factory=dict)
    calls: dict[str, CallRecord] = field(default_factory=dict)
    requests: dict[str, RequestRow] = field(default_factory=dict)
    saved: int = 0
    """When it was saved last, as a count of all saves."""

    @property
    def waiting(self) -> tuple[str, ...]:
        return tuple(request_id for request_id, row in self.requests.items() if row.decision is None)


@dataclass(slots=True)
class _Family:
    """A run and its branches: they share nodes, which outlive the run that wrote them."""

    runs: dict[int, _Run] = field(default_factory=dict)
    nodes: set[int] = field(default_factory=set)


class InMemoryCheckpointStorage(RecordingStorage):
    """For tests and short-lived programs. Isolated both ways: what goes in or comes out is never shared."""

    def __init__(self, *, retention: Retention = FULL_HISTORY, audit: bool = False) -> None:
        super().__init__(retention=retention, audit=audit)
        self._holder = Holder.here()
        self._by_run: dict[str, _Run] = {}
        self._by_key: dict[int, _Run] = {}
        self._by_workflow: dict[str, Checkpoints] = {}
        self._families: dict[str, _Family] = {}
        self._asked_by: dict[str, dict[int, _Run]] = {}
        self._checkpoints: Checkpoints = {}
        self._nodes: dict[int, Node] = {}
        self._next_key = 1
        self._saves = 0

    def __repr__(self) -> str:
        return f"InMemoryCheckpointStorage({len(self._checkpoints)} checkpoints)"

    async def __aenter__(self) -> InMemoryCheckpointStorage:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Nothing to close; here so that storages can be exchanged."""

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _reading(self, read: Callable[..., T], *args: Any) -> T:
        return read(*args)

    def _get(self, checkpoint_id: str) -> StoredCheckpoint | None:
        return self._checkpoints.get(checkpoint_id)

    def _latest(self, workflow_name: str | None, run_id: str | None) -> StoredCheckpoint | None:
        return next(reversed(self._selected(workflow_name, run_id).values()), None)

    def _headers(self, workflow_name: str | None, run_id: str | None) -> list[StoredCheckpoint]:
        return list(self._selected(workflow_name, run_id).values())

    def _selected(self, workflow_name: str | None, run_id: str | None) -> Checkpoints:
        if run_id is None:
            return self._checkpoints if workflow_name is None else self._by_workflow.get(workflow_name, {})
        run = self._by_run.get(run_id)
        if run is None or workflow_name not in (None, run.row.workflow_name):
            return {}
        return run.checkpoints

    def _reachable(self, refs: Iterable[int]) -> dict[int, Node]:
        found: dict[int, Node] = {}
        waiting = list(refs)
        while waiting:
            node = self._nodes.get(waiting.pop())
            if node is not None and node.id not in found:
                found[node.id] = node
                waiting.extend(node.refs)
        return found

    def _requests_named(self, request_id: str) -> list[RequestRow]:
        return [run.requests[request_id] for run in self._asked_by.get(request_id, {}).values()]

    def _calls_of(self, run_id: str) -> Sequence[CallRecord]:
        run = self._by_run.get(run_id)
        return tuple(run.calls.values()) if run is not None else ()

    def _runs(self, workflow_name: str | None, state: str | None) -> list[tuple[RunRow, list[RequestRow], str | None]]:
        runs = [
            run
            for run in self._by_run.values()
            if workflow_name in (None, run.row.workflow_name) and state in (None, run.row.state)
        ]
        runs.sort(key=lambda run: run.saved, reverse=True)
        return [(run.row, list(run.requests.values()), next(reversed(run.checkpoints), None)) for run in runs]

    def _verify_runs(self, damaged: list[DamagedRecord]) -> tuple[int, int]:
        return len(self._by_run), sum(len(run.calls) for run in self._by_run.values())

    # --- writing -----------------------------------------------------------------------------------------------------

    async def _open(self, request: OpenRequest) -> OpenedRun:
        run = self._by_run.get(request.run_id)
        created = run is None
        if run is None:
            if not request.create:
                raise KeyError(request.run_id)
            run = self._create(request)
        elif run.row.holder is not None and not request.reclaim:
            raise RunBusy(run.row.run_id, f"{self._holder.described} (this process)")
        run.row = replace(run.row, epoch=run.row.epoch + 1, holder=str(self._holder))
        return OpenedRun(
            row=run.row,
            created=created,
            next_node=run.next_node,
            latest=next(reversed(run.checkpoints.values()), None),
            calls=tuple(run.calls.values()),
            requests=tuple(run.requests.values()),
        )

    def _create(self, request: OpenRequest) -> _Run:
        parent = request.branch_of
        key = self._next_key
        row = RunRow(
            key=key,
            run_id=request.run_id,
            workflow_name=request.workflow_name,
            state="STARTED",
            epoch=0,
            holder=None,
            origin=self._origin(request),
            updated_at=now(),
            parent_checkpoint_id=parent.checkpoint_id if parent else None,
            parent_run_id=parent.run_id if parent else None,
        )
        self._next_key += 1
        run = self._by_run[row.run_id] = self._by_key[key] = _Run(row, next_node=key * NODES_PER_RUN + 1)
        self._families.setdefault(row.origin, _Family()).runs[key] = run
        return run

    def _origin(self, request: OpenRequest) -> str:
        parent = self._checkpoints.get(request.branch_of.checkpoint_id) if request.branch_of else None
        return self._by_key[parent.run_key].row.origin if parent is not None else request.run_id

    def _fenced(self, fence: Fence) -> _Run:
        run = self._by_run.get(fence.run_id)
        if run is None or not _holds(fence, run.row):
            raise RunTakenOver(fence.run_id, "another runner, or it was deleted")
        return run

    async def _write_checkpoint(self, write: CheckpointWrite) -> None:
        run = self._fenced(write.fence)
        row = run.row
        if row.sweeps != write.expected_sweeps:
            raise StaleMemory
        for decision in write.decisions:
            _refuse_second_answer(run.requests.get(decision.request_id), decision)
        self._keep_nodes(run, write.nodes)
        self._keep_checkpoint(run, write.stored)
        self._keep_requests(run, write)
        if write.forget_calls:
            run.calls.clear()
        run.row = replace(
            row,
            state=write.state,
            sequence=write.sequence,
            supersteps=write.supersteps,
            usage=write.usage,
            updated_at=write.updated_at,
            stopped_by=None,
            holder=None if write.final else row.holder,
        )
        if write.keep is not None:
            self._retain(run, write.keep)

    def _keep_nodes(self, run: _Run, nodes: Sequence[Node]) -> None:
        self._nodes.update((node.id, node) for node in nodes)
        self._families[run.row.origin].nodes.update(node.id for node in nodes)
        run.next_node = max([run.next_node, *(node.id + 1 for node in nodes)])

    def _keep_checkpoint(self, run: _Run, stored: StoredCheckpoint) -> None:
        if stored.checkpoint_id in self._checkpoints:
            self._discard(self._checkpoints[stored.checkpoint_id])
        workflow = self._by_workflow.setdefault(run.row.workflow_name, {})
        for index in (self._checkpoints, workflow, run.checkpoints):
            index[stored.checkpoint_id] = stored
        self._saves += 1
        run.saved = self._saves

    def _keep_requests(self, run: _Run, write: CheckpointWrite) -> None:
        requests = run.requests
        for summary in write.requests:
            requests.setdefault(summary.request_id, RequestRow(summary, None, run.row.run_id))
            self._asked_by.setdefault(summary.request_id, {})[run.row.key] = run
        for decision in write.decisions:
            requests[decision.request_id] = replace(requests[decision.request_id], decision=decision)
        for request_id in write.delivers:
            answered = requests[request_id]
            assert answered.decision is not None
            requests[request_id] = replace(answered, decision=replace(answered.decision, typed=True))

    def _discard(self, stored: StoredCheckpoint) -> _Run:
        run = self._by_key[stored.run_key]
        for index in (self._checkpoints, self._by_workflow[run.row.workflow_name], run.checkpoints):
            del index[stored.checkpoint_id]
        return run

    def _retain(self, run: _Run, keep: int) -> None:
        surplus = list(run.checkpoints.values())[:-keep]
        for stored in surplus:
            self._discard(stored)
        if surplus:
            self._sweep(run.row.origin)

    def _sweep(self, origin: str) -> None:
        """Drop what no checkpoint of the family refers to; nobody else can refer to it."""
        family = self._families[origin]
        roots = [ref for run in family.runs.values() for kept in run.checkpoints.values() for ref in kept.root.refs]
        doomed = family.nodes - self._reachable(roots).keys()
        for node_id in doomed:
            del self._nodes[node_id]
        family.nodes -= doomed
        if doomed:
            for run in family.runs.values():
                run.row = replace(run.row, sweeps=run.row.sweeps + 1)

    async def _record_call(self, fence: Fence, row: CallRecord, supersedes: Sequence[str]) -> None:
        calls = self._fenced(fence).calls
        for call_id in supersedes:
            calls.pop(call_id, None)
        calls[row.call_id] = row

    async def _drop_calls(self, fence: Fence, call_ids: Sequence[str]) -> None:
        calls = self._fenced(fence).calls
        for call_id in call_ids:
            calls.pop(call_id, None)

    async def _release(self, fence: Fence, state: str | None, stopped_by: str | None) -> None:
        run = self._by_run.get(fence.run_id)
        if run is not None and _holds(fence, run.row):
            run.row = replace(
                run.row, holder=None, state=state or run.row.state, stopped_by=stopped_by or run.row.stopped_by
            )

    async def _node_state(self, run_key: int) -> tuple[int, set[int]]:
        row = self._by_key[run_key].row
        return row.sweeps, set(self._families[row.origin].nodes)

    async def _answer(self, run_id: str, decision: Decision) -> None:
        run = self._by_run.get(run_id)
        if run is None:
            raise UnknownRun(run_id, "list_runs() shows the runs there are")
        if decision.request_id not in run.requests:
            raise UnknownRequest(decision.request_id, run.waiting)
        _refuse_second_answer(run.requests[decision.request_id], decision)
        run.requests[decision.request_id] = replace(run.requests[decision.request_id], decision=decision)

    async def _cancel(self, run_id: str) -> None:
        run = self._held_by_nobody(run_id)
        if run is None:
            raise UnknownRun(run_id, "list_runs() shows the runs there are")
        run.row = replace(run.row, state="CANCELLED", stopped_by="cancel_run", epoch=run.row.epoch + 1)

    async def _delete(self, checkpoint_id: str) -> bool:
        stored = self._checkpoints.get(checkpoint_id)
        if stored is None:
            return False
        run = self._discard(stored)
        if run.row.state == SAVED_BY_HAND and not run.checkpoints and run.row.holder is None:
            self._forget_run(run)
        else:
            self._sweep(run.row.origin)
        return True

    async def _delete_run(self, run_id: str) -> bool:
        run = self._held_by_nobody(run_id)
        if run is None:
            return False
        self._forget_run(run)
        return True

    def _forget_run(self, run: _Run) -> None:
        row = run.row
        for stored in list(run.checkpoints.values()):
            self._discard(stored)
        for request_id in run.requests:
            del self._asked_by[request_id][row.key]
        del self._by_run[row.run_id], self._by_key[row.key], self._families[row.origin].runs[row.key]
        self._sweep(row.origin)
        if not self._families[row.origin].runs:
            del self._families[row.origin]

    def _held_by_nobody(self, run_id: str) -> _Run | None:
        run = self._by_run.get(run_id)
        if run is not None and run.row.holder is not None:
            raise RunBusy(run_id, f"{self._holder.described} (this process)")
        return run


def _holds(fence: Fence, row: RunRow) -> bool:
    return row.key == fence.run_key and row.epoch == fence.epoch and row.holder is not None


def _refuse_second_answer(row: RequestRow | None, decision: Decision) -> None:
    if row is None:
        raise UnknownRequest(decision.request_id, ())
    given = row.decision
    if given is not None and (given.typed or not decision.replaces_unusable):
        raise AlreadyAnswered(decision.request_id, row.run_id, given.answered_at, decision_text(given))
