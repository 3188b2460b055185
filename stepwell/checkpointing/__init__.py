"""What is kept, and where it outlives the process."""

from stepwell.checkpointing.checkpoint import PendingRequest, RecordedOutput, WorkflowCheckpoint, WorkflowMessage
from stepwell.checkpointing.codec import OpaqueValue
from stepwell.checkpointing.journal import CallInDoubt, CallVerdict
from stepwell.checkpointing.registry import register_type
from stepwell.checkpointing.retention import FULL_HISTORY, LATEST_ONLY, Retention, keep_last
from stepwell.checkpointing.storage.memory import InMemoryCheckpointStorage
from stepwell.checkpointing.storage.protocol import CheckpointStorage, PendingSummary, RunInfo
from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage

__all__ = [
    "FULL_HISTORY",
    "LATEST_ONLY",
    "CallInDoubt",
    "CallVerdict",
    "CheckpointStorage",
    "InMemoryCheckpointStorage",
    "OpaqueValue",
    "PendingRequest",
    "PendingSummary",
    "RecordedOutput",
    "Retention",
    "RunInfo",
    "SQLiteCheckpointStorage",
    "WorkflowCheckpoint",
    "WorkflowMessage",
    "keep_last",
    "register_type",
]
