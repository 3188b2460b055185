"""What reading everything has found."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.errors import CheckpointDamaged, WorkflowCheckpointException


@dataclass(frozen=True, slots=True)
class DamagedRecord:
    """A record that can't be relied on."""

    record: str
    problem: str
    good_ancestor: str | None = None
    """The newest checkpoint before it that is whole."""

    @classmethod
    def of(cls, error: WorkflowCheckpointException, record: str) -> DamagedRecord:
        if isinstance(error, CheckpointDamaged):
            return cls(error.record, error.problem, error.good_ancestor)
        return cls(record, str(error))


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """How much was read, and what of it is damaged."""

    runs: int
    checkpoints: int
    calls: int
    damaged: tuple[DamagedRecord, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.damaged
