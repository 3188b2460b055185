"""A run inside a delivery of another run: no storage of its own, its calls in the journal of the run around it.

What it is between two of the outer supersteps is part of whatever runs it (`WorkflowExecutor` keeps it in the parent's
checkpoint, a workflow that is used as an agent in that agent's session). After a crash it replays from there, the
recorded calls answering.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stepwell.checkpointing.checkpoint import (
    CheckpointContent,
    PendingRequest,
    RecordedOutput,
    WorkflowCheckpoint,
    WorkflowMessage,
)
from stepwell.errors import GraphChanged, UnknownRequest
from stepwell.workflows.answers import checked_answer
from stepwell.workflows.context import WorkflowContext
from stepwell.workflows.events import WorkflowEvent
from stepwell.workflows.executor import Executor
from stepwell.workflows.graph import Graph
from stepwell.workflows.message import INPUT, RESPONSES, ResponseMessage, isolated
from stepwell.workflows.runner import Runner
from stepwell.workflows.superstep import Advance, Outcome, RunState, content_of, metadata_of, state_from

Context = WorkflowContext[Any, Any]

OWN_BUSINESS = frozenset({"started", "status", "superstep_started", "superstep_completed", "checkpoint", "failed"})
"""Events of an inner run that say nothing about the run around it."""


class InnerHost(Protocol):
    """Whoever runs a workflow inside a delivery, and takes what comes out of it."""

    def announce(self, event: WorkflowEvent, ctx: Context) -> None:
        """An inner executor's own event."""
        ...

    def hand_on(self, output: RecordedOutput, ctx: Context) -> None:
        """What the inner workflow yields."""
        ...

    def pass_on(self, request: PendingRequest, ctx: Context) -> None:
        """What the inner workflow asks."""
        ...


@dataclass(slots=True)
class InnerRun:
    """A run that was begun inside another one: what it is, and the executors it is at work with."""

    state: RunState
    executors: Mapping[str, Executor]
    is_restored: bool = True
    """Do the executors have what `state` says they keep?"""


@dataclass(slots=True, kw_only=True)
class InnerRunner(Runner):
    """The one loop, for a run that is saved and announced by the run around it."""

    host: InnerHost
    ctx: Context

    def _overdue(self, state: RunState) -> list[PendingRequest]:
        """Whoever was asked counts the time: the parent if the request is its own, else the executors around it."""
        return []

    def _announce(
        self,
        step: Advance,
        outcomes: Sequence[Outcome],
        checkpoint: WorkflowCheckpoint | None,
        number: int,
        warnings: Sequence[str],
    ) -> None:
        for text in warnings:
            self.warn(text, number)
        for outcome in outcomes:
            for event in (event for effects in outcome.effects for event in effects.events or ()):
                event.executor_id = event.executor_id or outcome.executor_id
                self.host.announce(event, self.ctx)
        for output in step.outputs:
            self.host.hand_on(output, self.ctx)
        for request in step.requests:
            self.host.pass_on(request, self.ctx)


# --- what comes in ----------------------------------------------------------------------------------------------------


def told(state: RunState, data: Any, graph: Graph) -> RunState:
    """A message for the start executor; after the first one it begins a further turn."""
    message = WorkflowMessage(data, INPUT, graph.start)
    turn = state.turn + 1 if state.iteration else state.turn
    return state._replace(inbox=(*state.inbox, message), turn=turn, turn_began=state.iteration)


def answered(state: RunState, answers: Mapping[str, Any], graph: Graph) -> RunState:
    """Answers queued for the executors that asked; all of them are good or nothing changes."""
    messages: list[WorkflowMessage] = []
    for request_id, answer in answers.items():
        asked = state.pending.get(request_id)
        if asked is None:
            raise UnknownRequest(request_id, tuple(state.pending))
        slot = graph.slots.get(asked.source_executor_id)
        if slot is None:
            problem = f"executor {asked.source_executor_id!r} of {graph.name!r} is gone and a request of it is pending"
            raise GraphChanged(f"of request {request_id}", (problem,))
        response = ResponseMessage(asked, isolated(checked_answer(asked, answer, slot.prototype)))
        messages.append(WorkflowMessage(response, RESPONSES, slot.id))
    left = {name: request for name, request in state.pending.items() if name not in answers}
    return state._replace(pending=left, inbox=(*state.inbox, *messages), turn_began=state.iteration)


# --- executors --------------------------------------------------------------------------------------------------------


def fresh_executors(graph: Graph) -> dict[str, Executor]:
    return {name: slot.make() for name, slot in graph.slots.items()}


async def take_up(run: InnerRun, graph: Graph) -> None:
    """Give the executors what they kept: all of them after a restore, else those that serve other runs too."""
    for name, kept in run.state.executor_states.items():
        slot = graph.slots.get(name)
        if slot is not None and (slot.exclusive or not run.is_restored):
            await run.executors[name].on_checkpoint_restore(isolated(kept))


async def remember_pristine(graph: Graph, executors: Mapping[str, Executor], pristine: dict[str, Any]) -> None:
    """Add to `pristine` what executor instances keep that no inner run has used yet."""
    for name, slot in graph.slots.items():
        if slot.exclusive and slot.prototype.keeps_state and name not in pristine:
            pristine[name] = isolated(await executors[name].on_checkpoint_save())


async def set_aside(state: RunState, executors: Iterable[tuple[str, Executor]]) -> RunState:
    """The run as it is kept: outputs have been handed on, and usage is counted where the journal is."""
    kept = {name: isolated(await executor.on_checkpoint_save()) for name, executor in executors if executor.keeps_state}
    return state._replace(executor_states=kept, outputs=(), usage={})


# --- checkpoints ------------------------------------------------------------------------------------------------------


def record_of(state: RunState, graph: Graph) -> dict[str, Any]:
    """An inner run as the checkpoint around it holds it: the same fields as a checkpoint of its own would have."""
    return {"iteration_count": state.iteration, "metadata": metadata_of(state), **content_of(state, graph).fields()}


def state_of(record: Mapping[str, Any]) -> RunState:
    content = CheckpointContent.of(record)
    checkpoint = WorkflowCheckpoint(
        "", "", iteration_count=record["iteration_count"], metadata=record["metadata"], **content.fields()
    )
    return state_from(checkpoint)
