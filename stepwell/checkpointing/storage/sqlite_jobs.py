"""What SQLite storages ask their writer to do, and in which order it may be done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.lease import Fence, Holder
from stepwell.checkpointing.storage.liveness import HolderLock
from stepwell.checkpointing.storage.protocol import Decision
from stepwell.checkpointing.storage.records import CheckpointWrite, OpenRequest
from stepwell.checkpointing.storage.sqlite_seals import RunSeal


@dataclass(slots=True)
class HeldRun:
    """What the writer remembers of a run while a seat holds it."""

    workflow: int
    sweep_at: int
    has_calls: bool
    seal: RunSeal | None = None
    """None for storages that seal otherwise."""


@dataclass(slots=True, eq=False)
class Seat:
    """One storage instance's place at the database; all but its lease belongs to the writer thread."""

    lease_seconds: float
    holder: Holder | None = None
    holder_id: int | None = None
    lock: HolderLock | None = None
    held: dict[int, HeldRun] = field(default_factory=dict)


# --- what is written --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connect:
    """Nothing but a database that is there."""

    run_id: None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """A storage instance is closed."""

    seat: Seat
    run_id: None = None


@dataclass(frozen=True, slots=True)
class OpenRun:
    seat: Seat
    request: OpenRequest

    @property
    def run_id(self) -> str:
        return self.request.run_id


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    seat: Seat
    write: CheckpointWrite

    @property
    def fence(self) -> Fence:
        return self.write.fence

    @property
    def run_id(self) -> str:
        return self.write.fence.run_id


@dataclass(frozen=True, slots=True)
class RecordCall:
    seat: Seat
    fence: Fence
    row: CallRecord
    supersedes: Sequence[str]

    @property
    def run_id(self) -> str:
        return self.fence.run_id


@dataclass(frozen=True, slots=True)
class DropCalls:
    seat: Seat
    fence: Fence
    call_ids: Sequence[str]

    @property
    def run_id(self) -> str:
        return self.fence.run_id


@dataclass(frozen=True, slots=True)
class ReleaseRun:
    seat: Seat
    fence: Fence
    state: str | None
    stopped_by: str | None

    @property
    def run_id(self) -> str:
        return self.fence.run_id


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    run_id: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class CancelRun:
    run_id: str


@dataclass(frozen=True, slots=True)
class DeleteRun:
    run_id: str


@dataclass(frozen=True, slots=True)
class DeleteCheckpoint:
    checkpoint_id: str
    run_id: None = None


Job = (
    Connect
    | Leave
    | OpenRun
    | SaveCheckpoint
    | RecordCall
    | DropCalls
    | ReleaseRun
    | AnswerRequest
    | CancelRun
    | DeleteRun
    | DeleteCheckpoint
)
Fenced = SaveCheckpoint | RecordCall | DropCalls


def _may_share(other: type, job: Job) -> bool:
    """Calls of one run may be recorded together, unless one replaces what another has just written."""
    return other is RecordCall and type(job) is RecordCall and not job.supersedes


def in_waves(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Cut a group so that the jobs of one run come one after the other; those of different runs may change places."""
    wave: list[Job] = []
    kinds: dict[str, type] = {}
    for job in jobs:
        kind, run_id = type(job), job.run_id
        alone = run_id is None or kind is DeleteRun
        other = kinds.get(run_id) if run_id is not None else None
        if wave and (alone or (other is not None and not _may_share(other, job))):
            yield wave
            wave, kinds = [], {}
        wave.append(job)
        if run_id is not None:
            kinds[run_id] = kind
        if alone:
            yield wave
            wave, kinds = [], {}
    if wave:
        yield wave
