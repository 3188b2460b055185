"""A storage of somebody else's, with just the six methods, used as one that has runs.

What it can't do is not pretended: there is no journal, so the calls of an interrupted superstep are made again, and
no fence, so nothing stops two processes from resuming one run. Checkpoints, resuming, branches and "a decision counts
once" work from the checkpoints alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from stepwell.checkpointing.checkpoint import WorkflowCheckpoint, new_id
from stepwell.checkpointing.codec import Codec
from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.registry import TypeRegistry
from stepwell.checkpointing.storage.protocol import (
    BranchPoint,
    CheckpointDraft,
    CheckpointStorage,
    Decision,
    PendingSummary,
    RunInfo,
    RunLog,
    RunStorage,
)
from stepwell.errors import AlreadyAnswered, InvalidRunArguments, UnknownRequest

_NEEDED = ("save", "load", "list_checkpoints", "list_checkpoint_ids", "get_latest", "delete")


def run_storage(storage: CheckpointStorage, workflow_name: str) -> RunStorage:
    """The storage itself if it has runs, else an adapter; `workflow_name` is for storages that must be given one."""
    if hasattr(storage, "open_run"):
        return cast(RunStorage, storage)
    missing = [name for name in _NEEDED if not hasattr(storage, name)]
    if missing:
        raise InvalidRunArguments(f"{storage!r} is no checkpoint storage: it lacks {', '.join(missing)}")
    return cast(RunStorage, PlainStorageRuns(storage, workflow_name))


class PlainStorageRuns:
    """Runs on top of the six methods."""

    def __init__(self, storage: CheckpointStorage, workflow_name: str) -> None:
        self._storage = storage
        self._workflow_name = workflow_name

    @property
    def identity(self) -> object:
        return id(self._storage)

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        return await self._storage.load(checkpoint_id)

    async def open_run(
        self,
        run_id: str,
        *,
        workflow_name: str,
        registry: TypeRegistry,
        create: bool,
        branch_of: BranchPoint | None = None,
    ) -> RunLog | None:
        latest = await self._latest(run_id)
        if latest is None and not create:
            return None
        return PlainRun(self._storage, run_id, workflow_name, latest, branch_of)

    async def newest_checkpoint_id(self, run_id: str) -> str | None:
        latest = await self._latest(run_id)
        return None if latest is None else latest.checkpoint_id

    async def decision(self, run_id: str, request_id: str) -> Decision | None:
        latest = await self._latest(run_id)
        return None if latest is None else _decisions(latest).get(request_id)

    async def run_waiting_for(self, request_id: str) -> str | None:
        for checkpoint in reversed(await self._list()):
            if request_id in checkpoint.pending_request_info_events or request_id in _decisions(checkpoint):
                return checkpoint.run_id
        return None

    async def list_runs(self, *, workflow_name: str | None = None, state: str | None = None) -> list[RunInfo]:
        latest: dict[str, WorkflowCheckpoint] = {}
        for checkpoint in await self._list(workflow_name):
            if checkpoint.run_id:
                latest.pop(checkpoint.run_id, None)
                latest[checkpoint.run_id] = checkpoint
        infos = [_info(checkpoint) for checkpoint in reversed(latest.values())]
        return [info for info in infos if state in (None, info.state)]

    async def answer(self, request_id: str, value: Any, *, run_id: str | None = None) -> None:
        raise InvalidRunArguments(
            f"{self._storage!r} can't record the answer to {request_id!r} by itself; pass it to run(responses=…)"
        )

    async def cancel_run(self, run_id: str) -> None:
        raise InvalidRunArguments(f"{self._storage!r} can't mark run {run_id!r} as cancelled")

    async def delete_run(self, run_id: str) -> bool:
        mine = [checkpoint for checkpoint in await self._list() if checkpoint.run_id == run_id]
        for checkpoint in mine:
            await self._storage.delete(checkpoint.checkpoint_id)
        return bool(mine)

    async def _latest(self, run_id: str) -> WorkflowCheckpoint | None:
        if "run_id" in inspect.signature(self._storage.get_latest).parameters:
            return await self._storage.get_latest(**self._naming(self._storage.get_latest), run_id=run_id)
        mine = [checkpoint for checkpoint in await self._list() if checkpoint.run_id == run_id]
        return mine[-1] if mine else None

    async def _list(self, workflow_name: str | None = None) -> list[WorkflowCheckpoint]:
        method = self._storage.list_checkpoints
        named = self._naming(method) if workflow_name is None else {"workflow_name": workflow_name}
        return list(await method(**named))

    def _naming(self, method: Any) -> dict[str, Any]:
        """All workflows' checkpoints if the storage can give them, else those of the workflow at hand."""
        name = inspect.signature(method).parameters.get("workflow_name")
        is_needed = name is not None and name.default is name.empty
        return {"workflow_name": self._workflow_name} if is_needed else {}


@dataclass(slots=True)
class PlainRun:
    """A run whose only record is its checkpoints."""

    storage: CheckpointStorage
    run_id: str
    workflow_name: str
    found: WorkflowCheckpoint | None
    branch_of: BranchPoint | None
    _latest: WorkflowCheckpoint | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._latest = self.found

    @property
    def info(self) -> RunInfo | None:
        return None if self.found is None else _info(self.found)

    @property
    def calls(self) -> Sequence[CallRecord]:
        return ()

    @property
    def decisions(self) -> Mapping[str, Decision]:
        return {} if self._latest is None else _decisions(self._latest)

    async def latest(self, registry: TypeRegistry) -> WorkflowCheckpoint | None:
        return None if self.found is None else _own(self.found, registry)

    async def load(self, checkpoint_id: str, registry: TypeRegistry) -> WorkflowCheckpoint:
        return _own(await self.storage.load(checkpoint_id), registry)

    async def save(self, draft: CheckpointDraft) -> WorkflowCheckpoint:
        answered = dict(self._latest.metadata.get("answered", {})) if self._latest else {}
        for decision in draft.decisions:
            if decision.request_id in answered:
                at, value = answered[decision.request_id]
                raise AlreadyAnswered(decision.request_id, self.run_id, at, value)
            answered[decision.request_id] = [decision.answered_at, decision.value]
        metadata = {**draft.metadata, "run_state": draft.run_state, "usage": draft.usage}
        if answered:
            metadata["answered"] = answered
        previous = self._latest.checkpoint_id if self._latest else None
        checkpoint = WorkflowCheckpoint(
            self.workflow_name,
            draft.graph_signature_hash,
            checkpoint_id=new_id(),
            previous_checkpoint_id=previous or (self.branch_of.checkpoint_id if self.branch_of else None),
            run_id=self.run_id,
            sequence=self._latest.sequence + 1 if self._latest else 1,
            iteration_count=draft.iteration_count,
            metadata=metadata,
            **_copied(draft.content.fields()),
        )
        await self.storage.save(checkpoint)
        self._latest = checkpoint
        return checkpoint

    async def record_call(self, row: CallRecord, *, supersedes: Sequence[str]) -> None:
        """Nowhere to record it: the call is made again if its superstep is."""

    async def drop_calls(self, call_ids: Sequence[str]) -> None:
        """There are none."""

    async def release(self, *, state: str | None = None, stopped_by: str | None = None) -> None:
        """There is no lease to give back."""


def _own(checkpoint: WorkflowCheckpoint, registry: TypeRegistry) -> WorkflowCheckpoint:
    """A copy, every type known: a storage may hand out what it holds, and a run changes what it is given."""
    codec = Codec(registry)
    path = f"checkpoint {checkpoint.checkpoint_id}"
    content = codec.decode_text(codec.encode_text(checkpoint.content.fields(), path=path), path=path, strict=True)
    return WorkflowCheckpoint(**checkpoint._header(), **content)


def _copied(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What is saved must not change with the run, and what can't be saved is refused here as everywhere."""
    codec = Codec()
    copied: dict[str, Any] = codec.decode_text(codec.encode_text(dict(fields), path="checkpoint"), path="checkpoint")
    return copied


def _decisions(checkpoint: WorkflowCheckpoint) -> dict[str, Decision]:
    answered = checkpoint.metadata.get("answered", {})
    return {request_id: Decision(request_id, value, at) for request_id, (at, value) in answered.items()}


def _info(checkpoint: WorkflowCheckpoint) -> RunInfo:
    pending = checkpoint.pending_request_info_events.values()
    if checkpoint.run_id is None:
        raise UnknownRequest(checkpoint.checkpoint_id, ())
    return RunInfo(
        run_id=checkpoint.run_id,
        workflow_name=checkpoint.workflow_name,
        state=checkpoint.metadata.get("run_state", "IDLE"),
        pending_requests=tuple(
            PendingSummary(
                p.request_id, p.source_executor_id, p.request_type, p.response_type, p.asked_at, "", p.deadline
            )
            for p in pending
        ),
        updated_at=checkpoint.timestamp,
        supersteps=checkpoint.iteration_count,
        usage=checkpoint.metadata.get("usage", {}),
        latest_checkpoint_id=checkpoint.checkpoint_id,
    )
