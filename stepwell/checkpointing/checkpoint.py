"""WorkflowCheckpoint: the persisted format, versioned.

A checkpoint's header (ids, order, counters) is always there. Its content (messages, state, requests, outputs) is read
when it is first looked at, so a list of checkpoints or a kept event holds no state in memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from stepwell.checkpointing.codec import Codec
from stepwell.checkpointing.registry import register_type
from stepwell.errors import FormatTooNew, InvalidId, Undecodable

FORMAT = "1.0"
EXECUTOR_STATE = "_executor_state"
FAN_IN_STATE = "_fan_in"
GRAPH_SHAPE = "_graph"
RESERVED_STATE_KEYS = frozenset({EXECUTOR_STATE, FAN_IN_STATE, GRAPH_SHAPE})

_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def checked_id(kind: str, value: object) -> str:
    """The one gate before an id reaches a path or a query."""
    if not isinstance(value, str) or not _ID.fullmatch(value) or value in (".", ".."):
        raise InvalidId(kind, str(value))
    return value


def new_id() -> str:
    return uuid4().hex


def check_format(record: str, version: object) -> None:
    """Old formats stay readable; newer ones are refused by name."""
    match = re.fullmatch(r"(\d{1,6})\.(\d{1,6})", str(version))
    if match is None:
        raise Undecodable(record, f"{str(version)[:40]!r} is not a format number")
    if int(match[1]) > int(FORMAT.partition(".")[0]):
        raise FormatTooNew(record, str(version), FORMAT)


@dataclass(frozen=True, slots=True)
class WorkflowMessage:
    """A message in flight: sent by an executor, not delivered yet."""

    data: Any
    source_id: str
    target_id: str | None = None


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A question to the outside that has no answer yet. Reads like the `request_info` event that announced it."""

    request_id: str
    source_executor_id: str
    data: Any
    request_type: str
    response_type: str
    asked_at: str
    deadline: str | None = None
    default: Any = None
    delivery: str = ""

    type: str = field(default="request_info", init=False)


@dataclass(frozen=True, slots=True)
class RecordedOutput:
    """Something an executor yielded, as the record keeps it."""

    executor_id: str
    kind: str
    data: Any
    event_id: str
    iteration: int
    turn: int = 0
    shown: bool = False
    """Its pieces were announced live; only known while its superstep is, so it is not written."""


register_type(
    WorkflowMessage,
    name="stepwell:WorkflowMessage",
    encode=lambda m: [m.source_id, m.target_id, m.data],
    decode=lambda v: WorkflowMessage(v[2], v[0], v[1]),
    immutable=False,
)
register_type(PendingRequest, name="stepwell:PendingRequest", immutable=False)
register_type(
    RecordedOutput,
    name="stepwell:RecordedOutput",
    encode=lambda o: [o.executor_id, o.kind, o.event_id, o.iteration, o.turn, o.data],
    decode=lambda v: RecordedOutput(v[0], v[1], v[5], v[2], v[3], v[4]),
    # Its data is a copy that was recorded when it was yielded; whatever a reader does to it later is not the record.
    immutable=True,
)


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """What a checkpoint holds besides its header."""

    messages: Mapping[str, Sequence[WorkflowMessage]] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    pending_request_info_events: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[Any] = ()

    @classmethod
    def of(cls, decoded: Mapping[str, Any]) -> CheckpointContent:
        """From decoded data, which may lack what an older or simpler writer did not store."""
        return cls(
            messages=decoded.get("messages", {}),
            state=decoded.get("state", {}),
            pending_request_info_events=decoded.get("pending_request_info_events", {}),
            outputs=decoded.get("outputs", ()),
        )

    def fields(self) -> dict[str, Any]:
        return {
            "messages": self.messages,
            "state": self.state,
            "pending_request_info_events": self.pending_request_info_events,
            "outputs": self.outputs,
        }


def _now() -> str:
    return datetime.now(UTC).isoformat()


class WorkflowCheckpoint:
    """A workflow run as it was at the end of a superstep.

    `previous_checkpoint_id` and `sequence` give the order within the run; clocks play no part in it.
    """

    __slots__ = (
        "_content",
        "_read",
        "checkpoint_id",
        "digest",
        "graph_signature_hash",
        "iteration_count",
        "metadata",
        "previous_checkpoint_id",
        "run_id",
        "sequence",
        "timestamp",
        "version",
        "workflow_name",
    )

    def __init__(
        self,
        workflow_name: str,
        graph_signature_hash: str,
        *,
        checkpoint_id: str | None = None,
        previous_checkpoint_id: str | None = None,
        run_id: str | None = None,
        sequence: int = 0,
        timestamp: str | None = None,
        messages: Mapping[str, Sequence[WorkflowMessage]] | None = None,
        state: Mapping[str, Any] | None = None,
        pending_request_info_events: Mapping[str, Any] | None = None,
        outputs: Sequence[Any] = (),
        iteration_count: int = 0,
        metadata: Mapping[str, Any] | None = None,
        version: str = FORMAT,
        digest: str | None = None,
        read: Callable[[str], CheckpointContent] | None = None,
    ) -> None:
        self.workflow_name = workflow_name
        self.graph_signature_hash = graph_signature_hash
        self.checkpoint_id = checkpoint_id or new_id()
        self.previous_checkpoint_id = previous_checkpoint_id
        self.run_id = run_id
        self.sequence = sequence
        self.timestamp = timestamp or _now()
        self.iteration_count = iteration_count
        self.metadata = dict(metadata or {})
        self.version = version
        self.digest = digest
        self._read = read
        self._content = (
            None
            if read is not None
            else CheckpointContent(messages or {}, state or {}, pending_request_info_events or {}, tuple(outputs))
        )

    @property
    def content(self) -> CheckpointContent:
        if self._content is None:
            assert self._read is not None
            self._content = self._read(self.checkpoint_id)
        return self._content

    @property
    def messages(self) -> Mapping[str, Sequence[WorkflowMessage]]:
        """What is in flight, by the executor that sent it."""
        return self.content.messages

    @property
    def state(self) -> Mapping[str, Any]:
        """Shared state, and the executors' own under `_executor_state`."""
        return self.content.state

    @property
    def pending_request_info_events(self) -> Mapping[str, Any]:
        """Unanswered requests by id."""
        return self.content.pending_request_info_events

    @property
    def outputs(self) -> Sequence[Any]:
        """What the run has yielded so far."""
        return self.content.outputs

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, complete: what a storage of your own can write anywhere."""
        content = Codec().encode_text(self.content.fields(), path=f"checkpoint {self.checkpoint_id}")
        return {**self._header(), "metadata": deepcopy(dict(self.metadata)), "content": content}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WorkflowCheckpoint:
        """Take back what `to_dict` gave."""
        record = str(data.get("checkpoint_id"))
        check_format(record, data.get("version"))
        content = data.get("content")
        decoded = Codec().decode_text(content, path=f"checkpoint {record}") if isinstance(content, str) else None
        if not isinstance(decoded, dict) or any(data.get(name) is None for name in _REQUIRED):
            raise Undecodable(f"checkpoint {record}", f"it lacks one of {', '.join(_REQUIRED)}")
        header = {name: data[name] for name in _HEADER if name in data}
        header["metadata"] = deepcopy(dict(data.get("metadata") or {}))
        return cls(**header, **CheckpointContent.of(decoded).fields())

    def _header(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _HEADER}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorkflowCheckpoint):
            return NotImplemented
        return self._header() == other._header() and self.content == other.content

    def __hash__(self) -> int:
        return hash(self.checkpoint_id)

    def __repr__(self) -> str:
        return (
            f"WorkflowCheckpoint({self.checkpoint_id!r}, workflow_name={self.workflow_name!r}, run_id={self.run_id!r}, "
            f"sequence={self.sequence}, iteration_count={self.iteration_count})"
        )


_REQUIRED = ("workflow_name", "graph_signature_hash", "checkpoint_id", "content")
_HEADER = (
    "workflow_name",
    "graph_signature_hash",
    "checkpoint_id",
    "previous_checkpoint_id",
    "run_id",
    "sequence",
    "timestamp",
    "iteration_count",
    "metadata",
    "version",
)
