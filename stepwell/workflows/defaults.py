"""Delivering the defaults of requests whose deadline has passed; see `deadlines.py` for when that is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stepwell.checkpointing.checkpoint import PendingRequest, WorkflowMessage
from stepwell.checkpointing.codec import Codec
from stepwell.checkpointing.storage.protocol import Decision
from stepwell.errors import ResponseTypeMismatch
from stepwell.workflows.answers import checked_answer, response_type_of
from stepwell.workflows.deadlines import is_overdue, now
from stepwell.workflows.graph import Graph
from stepwell.workflows.message import RESPONSES, ResponseMessage, isolated
from stepwell.workflows.superstep import RunState


@dataclass(frozen=True, slots=True)
class Defaulted:
    """A run after its overdue requests were answered: with decisions like any others."""

    state: RunState
    decisions: tuple[Decision, ...]
    notices: tuple[str, ...]


def overdue(state: RunState, graph: Graph) -> list[PendingRequest]:
    """Requests whose default is to be delivered now. A deadline without a fitting default only tells people of it."""
    return [
        request
        for name, request in state.pending.items()
        if is_overdue(request.deadline) and name not in state.inherited and _is_deliverable(request, graph)
    ]


def _is_deliverable(request: PendingRequest, graph: Graph) -> bool:
    slot = graph.slots.get(request.source_executor_id)
    source = slot.prototype if slot else None
    if request.default is None and response_type_of(request, source) is None:
        return False
    try:
        checked_answer(request, request.default, source)
    except ResponseTypeMismatch:
        return False
    return True


def defaulted(state: RunState, due: Iterable[PendingRequest], graph: Graph) -> Defaulted:
    """Queue the defaults for the executors that asked, as answers that somebody gave."""
    codec, at = Codec(graph.registry), now().isoformat()
    left = dict(state.pending)
    messages: list[WorkflowMessage] = []
    decisions: list[Decision] = []
    notices: list[str] = []
    for request in due:
        del left[request.request_id]
        response = ResponseMessage(request, isolated(request.default))
        messages.append(WorkflowMessage(response, RESPONSES, request.source_executor_id))
        text = codec.encode_text(request.default, path=f"default of {request.request_id}")
        decisions.append(Decision(request.request_id, text, at))
        notices.append(_notice(request))
    after = state._replace(pending=left, inbox=(*state.inbox, *messages))
    return Defaulted(after, tuple(decisions), tuple(notices))


def _notice(request: PendingRequest) -> str:
    return (
        f"request {request.request_id!r} of {request.source_executor_id!r} was not answered by {request.deadline}; "
        "its default was delivered"
    )
