"""The seam between the engine and whatever outlives the process.

`CheckpointStorage` is what anybody can write: six methods. `RunStorage` is what the storages shipped here offer on top:
opening a run gives a `RunLog`, the only thing the engine writes to. Behind it are the fence, the journal and the
growth; the engine sees none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from stepwell.checkpointing.checkpoint import CheckpointContent, WorkflowCheckpoint
from stepwell.checkpointing.journal import CallRecord, Usage
from stepwell.checkpointing.registry import TypeRegistry


@runtime_checkable
class CheckpointStorage(Protocol):
    """Where checkpoints outlive the process.

    A `save` that returned is what every later `get_latest` sees, here or in the next process.
    A `save` that raised or was cancelled leaves the previous latest readable.
    What a storage hands out can never alter what it holds.
    Lists and `get_latest` go by the order of saving, never by the clock.

    A class with just these six works, without the journal (calls of an interrupted superstep are made again) and
    without the fence (nothing stops two processes from resuming one run).
    """

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Keep `checkpoint` and return its id."""
        ...

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """The checkpoint with this id, or `CheckpointNotFound`."""
        ...

    async def list_checkpoints(
        self, *, workflow_name: str | None = None, run_id: str | None = None
    ) -> list[WorkflowCheckpoint]:
        """Oldest first."""
        ...

    async def list_checkpoint_ids(self, *, workflow_name: str | None = None, run_id: str | None = None) -> list[str]:
        """Oldest first."""
        ...

    async def get_latest(
        self, *, workflow_name: str | None = None, run_id: str | None = None
    ) -> WorkflowCheckpoint | None:
        """The one saved last, or None."""
        ...

    async def delete(self, checkpoint_id: str) -> bool:
        """Remove it; was it there?"""
        ...


@dataclass(frozen=True, slots=True)
class PendingSummary:
    """A request that waits for an answer, readable without the program that asked."""

    request_id: str
    source_executor_id: str
    request_type: str
    response_type: str
    asked_at: str
    shown: str
    """The request's data as typed JSON: what the person saw."""
    deadline: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer to a request. `typed` answers were checked by the program; others arrive as bare JSON."""

    request_id: str
    value: str
    answered_at: str
    typed: bool = True
    replaces_unusable: bool = False
    """The program found an answer that was recorded without it to be of the wrong type; this one counts instead."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run, as `list_runs` tells it."""

    run_id: str
    workflow_name: str
    state: str
    """That of its newest checkpoint, or how it was left. `DAMAGED` if what the storage keeps of the run is not what was
    written: then `stopped_by` says what is wrong, no requests are told, and all that can be done with the run is to
    look at it, to branch off one of its good checkpoints, and to delete it."""
    pending_requests: tuple[PendingSummary, ...] = ()
    updated_at: str = ""
    supersteps: int = 0
    usage: Usage = field(default_factory=dict)
    latest_checkpoint_id: str | None = None
    parent_checkpoint_id: str | None = None
    parent_run_id: str | None = None
    stopped_by: str | None = None
    """Why it stopped: an error's text, `max_iterations`, or `cancel_run`; of a damaged run, the damage."""
    undelivered_answers: int = 0
    """Answers recorded without the program, which the next resume delivers."""
    holder: str | None = None
    """Who runs it right now."""


class CheckpointDraft(NamedTuple):
    """A checkpoint to be saved, and what has to become true in the same instant."""

    graph_signature_hash: str
    iteration_count: int
    content: CheckpointContent
    metadata: Mapping[str, Any]
    run_state: str
    pending: Sequence[PendingSummary] = ()
    usage: Usage = MappingProxyType({})
    decisions: Sequence[Decision] = ()
    """Answers this checkpoint delivers; saving fails with `AlreadyAnswered` if one of them was given before."""
    final: bool = False
    """The run stops here: give the lease back in the same transaction."""
    delivers: Sequence[str] = ()
    """Requests whose answers were recorded without the program and are delivered by this checkpoint."""
    keep_calls: bool = False
    """The superstep under way is not over, so its calls stay in the journal."""


class RunLog(Protocol):
    """One run, held by one runner. Every write is fenced, and durable when it returns."""

    @property
    def run_id(self) -> str: ...

    @property
    def info(self) -> RunInfo | None:
        """The run as it was found; None if opening created it."""
        ...

    @property
    def calls(self) -> Sequence[CallRecord]:
        """What the journal holds for the superstep that was cut off."""
        ...

    @property
    def decisions(self) -> Mapping[str, Decision]:
        """Every answer recorded for this run, by request id."""
        ...

    async def latest(self, registry: TypeRegistry) -> WorkflowCheckpoint | None:
        """The checkpoint to go on from, every type known (`UnknownType` if not)."""
        ...

    async def load(self, checkpoint_id: str, registry: TypeRegistry) -> WorkflowCheckpoint:
        """A checkpoint of this run or of the one it branches off, every type known."""
        ...

    async def save(self, draft: CheckpointDraft) -> WorkflowCheckpoint:
        """Make the checkpoint durable and forget the superstep's calls."""
        ...

    async def record_call(self, row: CallRecord, *, supersedes: Sequence[str]) -> None:
        """Make a call's row durable, in place of the rows of calls made inside it."""
        ...

    async def drop_calls(self, call_ids: Sequence[str]) -> None: ...

    async def release(self, *, state: str | None = None, stopped_by: str | None = None) -> None:
        """Give the run back, saying how it was left. Releasing twice does nothing."""
        ...


@dataclass(frozen=True, slots=True)
class BranchPoint:
    """Where a branch leaves its parent."""

    checkpoint_id: str
    run_id: str


class RunStorage(CheckpointStorage, Protocol):
    """A storage with journal and fence."""

    async def open_run(
        self,
        run_id: str,
        *,
        workflow_name: str,
        registry: TypeRegistry,
        create: bool,
        branch_of: BranchPoint | None = None,
    ) -> RunLog | None:
        """Take the run's lease. None if it does not exist and `create` is false; `RunBusy` if another runner has it."""
        ...

    @property
    def identity(self) -> object:
        """Equal for storages that keep the same runs."""
        ...

    async def newest_checkpoint_id(self, run_id: str) -> str | None: ...

    async def decision(self, run_id: str, request_id: str) -> Decision | None:
        """What this run was answered, if it was."""
        ...

    async def run_waiting_for(self, request_id: str) -> str | None:
        """The run that asked this, answered or not; an error if several wait for an answer to it."""
        ...

    async def list_runs(self, *, workflow_name: str | None = None, state: str | None = None) -> list[RunInfo]:
        """Runs, the most recently saved first. A damaged one is listed as `DAMAGED` and hides none of the others."""
        ...

    async def answer(self, request_id: str, value: Any, *, run_id: str | None = None) -> None:
        """Record an answer (JSON data) without the program; the next resume checks its type and delivers it."""
        ...

    async def cancel_run(self, run_id: str) -> None:
        """Mark a run that nobody holds as cancelled; it can still be resumed."""
        ...

    async def delete_run(self, run_id: str) -> bool:
        """Remove everything of a run that nobody holds; was it there?"""
        ...
