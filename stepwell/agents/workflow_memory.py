"""What a session remembers of the workflow behind it: a run in a storage, or a run inside another run's delivery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepwell.agents.session import AgentSession
from stepwell.agents.workflow_contents import Asked
from stepwell.checkpointing.checkpoint import PendingRequest
from stepwell.workflows.inner import state_of
from stepwell.workflows.superstep import RunState

_STATE = "workflow_run"
_INNER = "inner"


@dataclass(frozen=True, slots=True)
class OwnRun:
    """A run in a storage. All of it is JSON, so the session can be kept anywhere."""

    run_id: str
    settled: str | None = None
    """The checkpoint after the last turn that succeeded: where the next one starts if this one failed."""
    asked: Asked = ()
    told: int = 0
    """How many outputs of a turn that waits for answers have been returned."""
    spent: Mapping[str, int] = field(default_factory=dict)
    """Tokens that earlier responses have accounted for."""

    def keep_in(self, session: AgentSession | None) -> None:
        if session is not None:
            asked = [list(pair) for pair in self.asked]
            kept = {"run_id": self.run_id, "settled": self.settled, "asked": asked, "told": self.told}
            session.state[_STATE] = {**kept, "spent": dict(self.spent)}

    @classmethod
    def of(cls, session: AgentSession | None) -> OwnRun | None:
        kept = session.state.get(_STATE) if session is not None else None
        if kept is None or _INNER in kept:
            return None
        return cls(kept["run_id"], kept.get("settled"), _asked(kept), kept.get("told", 0), kept.get("spent", {}))


@dataclass(frozen=True, slots=True)
class InnerMemory:
    """A run inside another one: all of it is here, and saved with the executor that has the session."""

    record: Mapping[str, Any]
    asked: Asked = ()

    @property
    def state(self) -> RunState:
        return state_of(self.record)

    @property
    def pending(self) -> Mapping[str, PendingRequest]:
        found: Mapping[str, PendingRequest] = self.record["pending_request_info_events"]
        return found

    def keep_in(self, session: AgentSession | None) -> None:
        if session is not None:
            session.state[_STATE] = {_INNER: dict(self.record), "asked": [list(pair) for pair in self.asked]}

    @classmethod
    def of(cls, session: AgentSession | None) -> InnerMemory | None:
        kept = session.state.get(_STATE) if session is not None else None
        return cls(kept[_INNER], _asked(kept)) if kept is not None and _INNER in kept else None


def _asked(kept: Mapping[str, Any]) -> Asked:
    return tuple((content_id, request_id) for content_id, request_id in kept.get("asked", ()))


def open_requests(session: AgentSession) -> dict[str, PendingRequest]:
    """What teams inside this session wait for, in their own types, by the content that stands for it.

    That is the session's own team, or those behind tools of an agent whose calls are under way.
    """
    memory = InnerMemory.of(session)
    if memory is not None:
        return {content_id: memory.pending[request_id] for content_id, request_id in memory.asked}
    found: dict[str, PendingRequest] = {}
    pending = session.pending_approvals
    for call in pending.paused if pending is not None else ():
        inside = open_requests(session.paused_calls[call.call_id])
        found |= {
            str(c.id): inside[name] for name, c in zip(call.inner_ids, call.requests, strict=True) if name in inside
        }
    return found


def request_ids(session: AgentSession) -> set[str]:
    """The requests that can be answered in this session, typed or not."""
    own = OwnRun.of(session) or InnerMemory.of(session)
    ids = {request_id for _, request_id in own.asked} if own is not None else set()
    for inner in session.paused_calls.values():
        ids |= request_ids(inner)
    return ids
