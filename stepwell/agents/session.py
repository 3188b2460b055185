"""A conversation that outlives a turn: `AgentSession`, and where its history is kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from uuid import uuid4

from stepwell.agents.approval import PendingApprovals
from stepwell.agents.chat import Message
from stepwell.agents.content import Content
from stepwell.checkpointing.registry import register_type

_PENDING = "pending_approvals"
_PAUSED = "paused_calls"
_TAG = "$type"
_SESSION = "session"
_TYPES: Mapping[str, type[Message] | type[Content] | type[PendingApprovals]] = {
    "message": Message,
    "content": Content,
    "pending_approvals": PendingApprovals,
}


class AgentSession:
    """One conversation with one agent. `state` is the agent's and its history provider's, and yours.

    Put only what a checkpoint can hold into `state`. A session serves one turn at a time.
    """

    def __init__(
        self,
        session_id: str | None = None,
        *,
        service_session_id: str | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self.session_id = session_id if session_id is not None else uuid4().hex
        self.service_session_id = service_session_id
        self.state: dict[str, Any] = dict(state or {})

    @property
    def pending_approvals(self) -> PendingApprovals | None:
        """The tool calls that wait for a person, with the arguments that will be run."""
        found = self.state.get(_PENDING)
        return found if isinstance(found, PendingApprovals) else None

    @pending_approvals.setter
    def pending_approvals(self, pending: PendingApprovals | None) -> None:
        if pending is None:
            self.state.pop(_PENDING, None)
        else:
            self.state[_PENDING] = pending

    @property
    def paused_calls(self) -> Mapping[str, AgentSession]:
        """The conversations behind tool calls that are under way: the agents in them wait for a person."""
        found: Mapping[str, AgentSession] = self.state.get(_PAUSED, {})
        return found

    @paused_calls.setter
    def paused_calls(self, sessions: Mapping[str, AgentSession]) -> None:
        if sessions:
            self.state[_PAUSED] = dict(sessions)
        else:
            self.state.pop(_PAUSED, None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, for a store of your own. Checkpoints take the session as it is."""
        return {
            "session_id": self.session_id,
            "service_session_id": self.service_session_id,
            "state": _dump(self.state, "state"),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AgentSession:
        return cls(
            data["session_id"], service_session_id=data.get("service_session_id"), state=_load(data.get("state", {}))
        )

    def __repr__(self) -> str:
        return f"AgentSession({self.session_id!r}, state={sorted(self.state)})"


def _dump(value: Any, path: str) -> Any:
    if type(value) is AgentSession:
        return {_TAG: _SESSION, "value": value.to_dict()}
    for tag, cls in _TYPES.items():
        if type(value) is cls:
            return {_TAG: tag, "value": value.to_dict()}
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) for key in value) or _TAG in value:
            raise TypeError(f"{path} must have string keys other than {_TAG!r} to become JSON")
        return {key: _dump(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_dump(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"{path} is a {type(value).__qualname__}, which is no JSON; keep it out of the session's state")


def _load(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.get(_TAG) == _SESSION:
            return AgentSession.from_dict(value["value"])
        cls = _TYPES.get(value.get(_TAG, ""))
        if cls is not None:
            return cls.from_dict(value["value"])
        return {key: _load(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_load(item) for item in value]
    return value


class HistoryProvider(ABC):
    """Where an agent's conversations are kept between turns.

    `get_messages` is asked once before a turn, `save_messages` told after it what the turn added; a turn that failed
    adds nothing but approved calls that were made. `state` is the session's, for providers that keep it inside.
    """

    DEFAULT_SOURCE_ID: ClassVar[str] = "history"

    def __init__(self, source_id: str | None = None, *, load_messages: bool = True) -> None:
        self.source_id = source_id if source_id is not None else self.DEFAULT_SOURCE_ID
        self.load_messages = load_messages
        """Without it the history is only written: an audit trail, not a memory."""

    @abstractmethod
    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]: ...

    @abstractmethod
    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> None: ...


class InMemoryHistoryProvider(HistoryProvider):
    """Keeps the history inside the session, so that it is saved and restored together with it. The default."""

    DEFAULT_SOURCE_ID: ClassVar[str] = "in_memory"

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        return list((state or {}).get(self.source_id, ()))

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if state is not None:
            state.setdefault(self.source_id, []).extend(messages)


def _encode(session: AgentSession) -> dict[str, Any]:
    # Messages stay objects: the codec stores each of them once per run.
    return {
        "session_id": session.session_id,
        "service_session_id": session.service_session_id,
        "state": session.state,
    }


def _decode(data: dict[str, Any]) -> AgentSession:
    return AgentSession(data["session_id"], service_session_id=data["service_session_id"], state=data["state"])


register_type(AgentSession, name="stepwell.AgentSession", encode=_encode, decode=_decode)
