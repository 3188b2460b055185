"""What is kept, and where it outlives the process."""

from __future__ import annotations

import typing

from stepwell.checkpointing.checkpoint import PendingRequest, RecordedOutput, WorkflowCheckpoint, WorkflowMessage
from stepwell.checkpointing.codec import OpaqueValue
from stepwell.checkpointing.journal import CallInDoubt, CallVerdict
from stepwell.checkpointing.registry import register_type
from stepwell.checkpointing.retention import FULL_HISTORY, LATEST_ONLY, Retention, keep_last
from stepwell.checkpointing.storage.file import FileCheckpointStorage
from stepwell.checkpointing.storage.memory import InMemoryCheckpointStorage
from stepwell.checkpointing.storage.protocol import CheckpointStorage, PendingSummary, RunInfo
from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
from stepwell.checkpointing.storage.verifying import DamagedRecord, VerificationReport

if typing.TYPE_CHECKING:
    from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage

__all__ = [
    "FULL_HISTORY",
    "LATEST_ONLY",
    "CallInDoubt",
    "CallVerdict",
    "CheckpointStorage",
    "DamagedRecord",
    "FileCheckpointStorage",
    "InMemoryCheckpointStorage",
    "OpaqueValue",
    "PendingRequest",
    "PendingSummary",
    "PostgresCheckpointStorage",
    "RecordedOutput",
    "Retention",
    "RunInfo",
    "SQLiteCheckpointStorage",
    "VerificationReport",
    "WorkflowCheckpoint",
    "WorkflowMessage",
    "keep_last",
    "register_type",
]


def __getattr__(name: str) -> typing.Any:
    """Few programs need Postgres, so its storage is imported when a program first asks for it."""
    if name != "PostgresCheckpointStorage":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage

    globals()[name] = PostgresCheckpointStorage
    return PostgresCheckpointStorage
