"""The rows every storage keeps, whatever they are written with.

run         who it is, how it stands, who holds it
checkpoint  a header, and the root of its content
node        a value stored once (see `values.py`)
call        a journal row
request     a question to a person, what was shown and what was answered
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from operator import attrgetter
from typing import Any, NamedTuple

from stepwell.checkpointing.checkpoint import FORMAT, WorkflowCheckpoint, check_format
from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.json_text import json_writer
from stepwell.checkpointing.lease import Fence
from stepwell.checkpointing.storage.protocol import BranchPoint, Decision, PendingSummary
from stepwell.checkpointing.values import Node, Root
from stepwell.errors import CheckpointDamaged, FormatTooNew, NotSavable, Undecodable

NODES_PER_RUN = 1 << 32
"""Node ids are `run_key * NODES_PER_RUN + n`: a run takes its own without asking, branches refer to their parent's."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as it is stored."""

    key: int
    run_id: str
    workflow_name: str
    state: str
    epoch: int
    holder: str | None
    origin: str
    """The first ancestor's run id; a run and all its branches share it."""
    sweeps: int = 0
    sequence: int = 0
    supersteps: int = 0
    usage: str = "{}"
    updated_at: str = ""
    parent_checkpoint_id: str | None = None
    parent_run_id: str | None = None
    stopped_by: str | None = None


class StoredCheckpoint(NamedTuple):
    """A checkpoint as it is stored. The root's digest covers the header too."""

    checkpoint_id: str
    run_key: int
    header: str
    root: Root


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A request and, once there is one, its answer."""

    summary: PendingSummary
    decision: Decision | None
    run_id: str


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What opening a run needs to know."""

    run_id: str
    workflow_name: str
    create: bool
    branch_of: BranchPoint | None = None
    reclaim: bool = False
    """This instance has no log of the run open: if the row says that it holds it, giving it back once failed."""


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """What opening a run found."""

    row: RunRow
    created: bool
    next_node: int
    latest: StoredCheckpoint | None
    calls: tuple[CallRecord, ...] = ()
    requests: tuple[RequestRow, ...] = ()


class CheckpointWrite(NamedTuple):
    """One checkpoint's transaction; a named tuple, because there is one in every superstep."""

    fence: Fence
    workflow_name: str
    stored: StoredCheckpoint
    nodes: Sequence[Node]
    state: str
    sequence: int
    supersteps: int
    usage: str
    updated_at: str
    requests: Sequence[PendingSummary] = ()
    """Requests that are pending now; rows that exist already stay as they are."""
    decisions: Sequence[Decision] = ()
    delivers: Sequence[str] = ()
    """Requests whose recorded answers reach the program with this checkpoint: they count as typed from now on."""
    expected_sweeps: int = 0
    keep: int | None = None
    forget_calls: bool = True
    final: bool = False


class StaleMemory(Exception):
    """Nodes were swept since this log last looked; it has to find out what is left and encode again."""


def header_text(checkpoint: WorkflowCheckpoint, previous_digest: str | None, run_state: str) -> str:
    return _json(
        {
            "format": checkpoint.version,
            "workflow": checkpoint.workflow_name,
            "graph": checkpoint.graph_signature_hash,
            "id": checkpoint.checkpoint_id,
            "previous": checkpoint.previous_checkpoint_id,
            "previous_digest": previous_digest,
            "run": checkpoint.run_id,
            "sequence": checkpoint.sequence,
            "at": checkpoint.timestamp,
            "iteration": checkpoint.iteration_count,
            "state": run_state,
            "metadata": checkpoint.metadata,
        }
    )


_header_text = json_writer(allow_nan=False)


def _json(header: dict[str, Any]) -> str:
    try:
        return _header_text(header)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotSavable("checkpoint.metadata", "value that is not JSON", f"keep metadata plain ({error})") from error


def parse_header(stored: StoredCheckpoint) -> dict[str, Any]:
    """The header as keyword arguments of `WorkflowCheckpoint`."""
    try:
        header = json.loads(stored.header)
        if not isinstance(header, dict) or header["id"] != stored.checkpoint_id:
            raise ValueError("it belongs to another checkpoint")
        check_format(stored.checkpoint_id, header["format"])
        return {
            "workflow_name": header["workflow"],
            "graph_signature_hash": header["graph"],
            "checkpoint_id": header["id"],
            "previous_checkpoint_id": header["previous"],
            "run_id": header["run"],
            "sequence": header["sequence"],
            "timestamp": header["at"],
            "iteration_count": header["iteration"],
            "metadata": header["metadata"],
            "version": header["format"],
            "digest": stored.root.digest.hex(),
        }
    except (ValueError, KeyError, TypeError, RecursionError, Undecodable) as error:
        raise CheckpointDamaged(stored.checkpoint_id, f"its header can't be read: {error}") from error


_call_text = json_writer()
_CALL_FIELDS = tuple(field.name for field in dataclass_fields(CallRecord))
_call_values = attrgetter(*_CALL_FIELDS)


def call_text(row: CallRecord) -> str:
    # Not `asdict`, which copies whatever it finds; a record is made of plain values.
    return _call_text(dict(zip(_CALL_FIELDS, _call_values(row), strict=True)))


def call_digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def parse_call(call_id: str, text: str, digest: bytes) -> CallRecord:
    if call_digest(text) != digest:
        raise CheckpointDamaged(f"call {call_id}", "its content does not match its digest")
    fields = json.loads(text)
    if unknown := fields.keys() - set(_CALL_FIELDS):
        raise FormatTooNew(f"call {call_id}", f"with {', '.join(sorted(unknown))}", FORMAT)
    row = CallRecord(**fields)
    if row.call_id != call_id:
        raise CheckpointDamaged(f"call {call_id}", "it belongs to another call")
    return row


def parse_usage(text: str) -> Mapping[str, Mapping[str, float]]:
    try:
        usage = json.loads(text)
    except (ValueError, RecursionError):
        usage = None
    if not isinstance(usage, dict) or not all(isinstance(each, dict) for each in usage.values()):
        raise CheckpointDamaged("the usage of a run", "it can't be read")
    return usage


@dataclass(slots=True)
class SweepReport:
    """What a deletion removed."""

    checkpoints: list[str] = field(default_factory=list)
    nodes: set[int] = field(default_factory=set)
