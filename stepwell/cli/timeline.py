"""What happened in a run, superstep by superstep, read out of its checkpoints without the program that made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepwell import orchestrations  # noqa: F401  - so that plans and ledgers come back as what they are
from stepwell.checkpointing.checkpoint import EXECUTOR_STATE, WorkflowCheckpoint
from stepwell.checkpointing.codec import Codec
from stepwell.checkpointing.journal import CallRecord
from stepwell.cli.remedies import what_happened
from stepwell.cli.values import plain, text_of, type_of
from stepwell.errors import WorkflowCheckpointException

if TYPE_CHECKING:
    from stepwell.checkpointing.storage.recording import RecordingStorage

_OUTSIDE = {"__input__": "you", "__responses__": "you"}


@dataclass(frozen=True, slots=True)
class Said:
    """A message in flight, or an output."""

    source: str
    target: str | None
    type: str
    text: str


@dataclass(frozen=True, slots=True)
class Decided:
    """What a person was asked, and what they said."""

    request_id: str
    asked_by: str
    asked: str
    answer: Any
    answered_at: str


@dataclass(frozen=True, slots=True)
class Moment:
    """One checkpoint, and what is new in it."""

    checkpoint_id: str
    sequence: int
    superstep: int
    at: str
    kind: str
    """`message` (from outside), `superstep`, or `answers`."""
    bytes: int
    """The size of the whole state, were it written down by itself; on disk, what did not change is there once."""
    messages: tuple[Said, ...] = ()
    outputs: tuple[Said, ...] = ()
    asked: tuple[Said, ...] = ()
    """Requests; the source is who asks, the target the request's id."""
    decisions: tuple[Decided, ...] = ()
    plan: str | None = None
    ledger: Mapping[str, Any] | None = None
    used: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    problem: str | None = None
    """Why it can't be read."""


async def timeline(storage: RecordingStorage, run_id: str, *, last: int | None) -> tuple[list[Moment], int]:
    """The newest moments of a run, oldest first, and how many earlier ones were left out."""
    headers = await storage.list_checkpoints(run_id=run_id)
    skipped = max(len(headers) - last, 0) if last is not None else 0
    before: WorkflowCheckpoint | None = None
    if skipped:
        before = await _loaded(storage, headers[skipped - 1])
    moments = []
    for header in headers[skipped:]:
        checkpoint = await _loaded(storage, header)
        if isinstance(checkpoint, str):
            moments.append(_unreadable(header, checkpoint))
            continue
        moments.append(await _moment(storage, checkpoint, before if isinstance(before, WorkflowCheckpoint) else None))
        before = checkpoint
    return moments, skipped


async def _loaded(storage: RecordingStorage, header: WorkflowCheckpoint) -> Any:
    """The checkpoint, or why it can't be read: one damaged record must not hide the others."""
    try:
        return await storage.load(header.checkpoint_id)
    except WorkflowCheckpointException as error:
        return what_happened(error)


def _unreadable(header: WorkflowCheckpoint, problem: str) -> Moment:
    return Moment(
        header.checkpoint_id, header.sequence, header.iteration_count, header.timestamp, "superstep", 0, problem=problem
    )


async def _moment(
    storage: RecordingStorage, checkpoint: WorkflowCheckpoint, before: WorkflowCheckpoint | None
) -> Moment:
    plan, ledger = _team(checkpoint)
    old_plan, old_ledger = _team(before) if before else (None, None)
    pending = checkpoint.pending_request_info_events
    known = before.pending_request_info_events if before else {}
    return Moment(
        checkpoint.checkpoint_id,
        checkpoint.sequence,
        checkpoint.iteration_count,
        checkpoint.timestamp,
        kind=_kind(checkpoint, before),
        bytes=len(Codec().encode_text(checkpoint.content.fields())),
        messages=tuple(_message(message) for sent in checkpoint.messages.values() for message in sent),
        outputs=tuple(_output(output) for output in checkpoint.outputs[len(before.outputs) if before else 0 :]),
        asked=tuple(_request(key, request) for key, request in pending.items() if key not in known),
        decisions=await _decisions(storage, checkpoint, {k: r for k, r in known.items() if k not in pending}),
        plan=plan if plan != old_plan else None,
        ledger=ledger if ledger != old_ledger else None,
        used=_used(checkpoint, before),
    )


def _kind(checkpoint: WorkflowCheckpoint, before: WorkflowCheckpoint | None) -> str:
    if "__responses__" in checkpoint.messages:
        return "answers"
    if before is None or checkpoint.iteration_count == before.iteration_count:
        return "message" if "__input__" in checkpoint.messages else "superstep"
    return "superstep"


def _message(message: Any) -> Said:
    source = _OUTSIDE.get(message.source_id, message.source_id)
    return Said(source, message.target_id, type_of(message.data), text_of(message.data))


def _output(output: Any) -> Said:
    return Said(output.executor_id, output.kind, type_of(output.data), text_of(output.data))


def _request(request_id: str, request: Any) -> Said:
    return Said(request.source_executor_id, request_id, type_of(request.data), text_of(request.data))


async def _decisions(
    storage: RecordingStorage, checkpoint: WorkflowCheckpoint, answered: Mapping[str, Any]
) -> tuple[Decided, ...]:
    found = []
    for request_id, request in answered.items():
        decision = await storage.decision(str(checkpoint.run_id), request_id)
        if decision is not None:
            answer = Codec().decode_text(decision.value, path=f"answer to {request_id}")
            found.append(
                Decided(request_id, request.source_executor_id, text_of(request.data), answer, decision.answered_at)
            )
    return tuple(found)


def _team(checkpoint: WorkflowCheckpoint) -> tuple[str | None, Mapping[str, Any] | None]:
    """The plan and the progress ledger of a Magentic team, if there is one in this workflow."""
    for state in checkpoint.state.get(EXECUTOR_STATE, {}).values():
        if isinstance(state, Mapping) and type(state.get("ledger")).__name__ == "MagenticTaskLedger":
            progress = state.get("progress")
            return state["ledger"].plan.text, progress.to_dict() if progress is not None else None
    return None, None


def _used(checkpoint: WorkflowCheckpoint, before: WorkflowCheckpoint | None) -> dict[str, dict[str, float]]:
    """What this superstep cost: usage is recorded as it adds up."""
    now: Mapping[str, Mapping[str, float]] = checkpoint.metadata.get("usage", {})
    then: Mapping[str, Mapping[str, float]] = before.metadata.get("usage", {}) if before else {}
    spent = {
        who: {key: value - then.get(who, {}).get(key, 0) for key, value in counts.items()}
        for who, counts in now.items()
    }
    return {who: counts for who, counts in spent.items() if any(counts.values())}


# --- for scripts ------------------------------------------------------------------------------------------------------


def moment_json(moment: Moment) -> dict[str, Any]:
    return {
        "checkpoint_id": moment.checkpoint_id,
        "sequence": moment.sequence,
        "superstep": moment.superstep,
        "at": moment.at,
        "kind": moment.kind,
        "bytes": moment.bytes,
        "messages": [{"from": s.source, "to": s.target, "type": s.type, "text": s.text} for s in moment.messages],
        "outputs": [{"from": s.source, "kind": s.target, "type": s.type, "text": s.text} for s in moment.outputs],
        "asked": [{"by": s.source, "request_id": s.target, "type": s.type, "text": s.text} for s in moment.asked],
        "decisions": [decided_json(decided) for decided in moment.decisions],
        "plan": moment.plan,
        "ledger": moment.ledger,
        "usage": moment.used,
        "problem": moment.problem,
    }


def decided_json(decided: Decided) -> dict[str, Any]:
    return {
        "request_id": decided.request_id,
        "asked_by": decided.asked_by,
        "asked": decided.asked,
        "answer": plain(decided.answer),
        "answered_at": decided.answered_at,
    }


def call_json(call: CallRecord) -> dict[str, Any]:
    return {
        "call_id": call.call_id,
        "scope": call.scope,
        "name": call.name,
        "request": call.request_preview,
        "started_at": call.started_at,
        "finished": call.finished,
        "at_most_once": call.at_most_once,
        "error": call.error,
        "verdict": call.verdict,
        "result": plain(Codec().decode_text(call.result)) if call.result is not None else None,
        "usage": call.usage,
    }
