"""What a Postgres storage asks its writer to do, and in which order it may be done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.lease import Fence
from stepwell.checkpointing.storage.protocol import Decision
from stepwell.checkpointing.storage.records import CheckpointWrite, OpenRequest

if TYPE_CHECKING:
    from stepwell.checkpointing.storage.postgres_ahead import Ahead  # psycopg is an extra


@dataclass(frozen=True, slots=True)
class Connect:
    """Nothing but tables that are there."""

    run_id: None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """The storage is closed."""

    run_id: None = None


@dataclass(frozen=True, slots=True)
class OpenRun:
    request: OpenRequest

    @property
    def run_id(self) -> str:
        return self.request.run_id


@dataclass(frozen=True, slots=True)
class Disown:
    """Give a run back that this storage may have opened without getting to know."""

    run_id: str


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    write: CheckpointWrite

    @property
    def fence(self) -> Fence:
        return self.write.fence

    @property
    def run_id(self) -> str:
        return self.write.fence.run_id


@dataclass(frozen=True, slots=True)
class RecordCall:
    fence: Fence
    row: CallRecord
    supersedes: Sequence[str]
    ahead: Ahead | None = None
    """It was sent ahead, and whether it is durable is still to be seen."""

    @property
    def run_id(self) -> str:
        return self.fence.run_id


@dataclass(frozen=True, slots=True)
class DropCalls:
    fence: Fence
    call_ids: Sequence[str]

    @property
    def run_id(self) -> str:
        return self.fence.run_id


@dataclass(frozen=True, slots=True)
class ReleaseRun:
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


Fenced = SaveCheckpoint | RecordCall | DropCalls
Debt = ReleaseRun | Disown
"""What has to be made good when the database is back."""
Job = Connect | Leave | OpenRun | Fenced | Debt | AnswerRequest | CancelRun | DeleteRun | DeleteCheckpoint


def in_waves(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Cut a group so that the jobs of one run come one after the other; those of different runs may change places."""
    wave: list[Job] = []
    kinds: dict[str, type] = {}
    for job in jobs:
        alone = job.run_id is None or type(job) is DeleteRun
        other = None if job.run_id is None else kinds.get(job.run_id)
        if wave and (alone or (other is not None and not _may_share(other, job))):
            yield wave
            wave, kinds = [], {}
        wave.append(job)
        if job.run_id is not None:
            kinds[job.run_id] = type(job)
        if alone:
            yield wave
            wave, kinds = [], {}
    if wave:
        yield wave


def _may_share(other: type, job: Job) -> bool:
    """Calls of one run may be recorded together, unless one replaces what another has just written."""
    return other is RecordCall and type(job) is RecordCall and not job.supersedes
