"""The engine as a fold: `plan` says what the next superstep delivers, `advance` what has become of the run after it.

Both are pure: no clock, no ids, no storage. Outcomes are taken in the order of declaration, not in the order of
finishing, so a replay arrives at the same state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from stepwell.checkpointing.checkpoint import (
    EXECUTOR_STATE,
    FAN_IN_STATE,
    GRAPH_SHAPE,
    RESERVED_STATE_KEYS,
    CheckpointContent,
    PendingRequest,
    RecordedOutput,
    WorkflowCheckpoint,
    WorkflowMessage,
)
from stepwell.checkpointing.journal import Usage
from stepwell.errors import DuplicateRequest
from stepwell.workflows.context import Effects, is_derived
from stepwell.workflows.edges import EdgeGroup, FanIn
from stepwell.workflows.graph import Graph
from stepwell.workflows.message import INPUT, RESPONSES, isolated
from stepwell.workflows.typing import type_name, type_names

Route = tuple[EdgeGroup, tuple[str, ...]]
"""An edge group, and the targets it selected for a message."""

Collected = Mapping[str, Mapping[str, tuple[Any, ...]]]
"""What fan-ins have so far: by fan-in, by source."""


_NOTHING: Mapping[str, Any] = {}
"""One for all: states are never written to."""

# What follows are named tuples, and not frozen dataclasses, which take three times as long to make: there is one of
# each in every superstep.


class RunState(NamedTuple):
    """Everything a run is between two supersteps."""

    iteration: int = 0
    turn: int = 0
    turn_began: int = 0
    """The iteration in which the latest message from outside came in."""
    input_digest: str | None = None
    inbox: tuple[WorkflowMessage, ...] = ()
    shared: Mapping[str, Any] = _NOTHING
    executor_states: Mapping[str, Any] = _NOTHING
    collected: Collected = _NOTHING
    pending: Mapping[str, PendingRequest] = _NOTHING
    used_request_ids: frozenset[str] = frozenset()
    """Those that the program chose itself: it may choose one twice."""
    inherited: Mapping[str, Sequence[str]] = _NOTHING
    """For a branch that nobody asked for by name: pending requests of another run, which are answered there. Each with
    that run, and with time and answer if it was answered before the branch was made."""
    outputs: tuple[RecordedOutput, ...] = ()
    usage: Usage = _NOTHING

    @property
    def turn_outputs(self) -> tuple[RecordedOutput, ...]:
        return tuple(output for output in self.outputs if output.turn == self.turn)


class Delivery(NamedTuple):
    """One message for one executor."""

    data: Any
    sources: tuple[str, ...]


class Plan(NamedTuple):
    """A superstep to be: who gets what, what fan-ins keep waiting for, and what reaches nobody."""

    deliveries: Mapping[str, Sequence[Delivery]]
    collected: Collected
    warnings: tuple[str, ...] = ()


class Outcome(NamedTuple):
    """What one executor did in a superstep."""

    executor_id: str
    effects: Sequence[Effects]
    state: Any = None
    """What it keeps now; None if it keeps nothing or nobody asked."""


class Advance(NamedTuple):
    """The state after a superstep, and what happened on the way there."""

    state: RunState
    outputs: tuple[RecordedOutput, ...]
    requests: tuple[PendingRequest, ...]
    warnings: tuple[str, ...]


def plan(state: RunState, routes: Sequence[Sequence[Route]], graph: Graph) -> Plan:
    """Deliver the queued messages; `routes` holds, for each of them, what the edges selected."""
    deliveries: dict[str, list[Delivery]] = {}
    collected = {name: dict(by_source) for name, by_source in state.collected.items()} if state.collected else {}
    warnings: list[str] = []
    answers: list[WorkflowMessage] = []
    for message, selected in zip(state.inbox, routes, strict=True):
        if message.source_id == INPUT:
            _hand_over(message, graph, deliveries)
        elif message.source_id == RESPONSES:
            answers.append(message)
        else:
            problem = _deliver(message, selected, graph, deliveries, collected)
            if problem is not None:
                warnings.append(problem)
    if collected:
        _release_fan_ins(graph, collected, deliveries, warnings)
    # Last, because an answer may arrive for a superstep that was cut off: what was to be delivered in it keeps its
    # place, and with it its calls in the journal.
    for message in answers:
        _hand_over(message, graph, deliveries)
    if len(deliveries) > 1:
        deliveries = {name: deliveries[name] for name in sorted(deliveries, key=graph.order.__getitem__)}
    return Plan(deliveries, collected, tuple(warnings))


def _hand_over(message: WorkflowMessage, graph: Graph, deliveries: dict[str, list[Delivery]]) -> None:
    """What comes from outside takes no edge."""
    direct = Delivery(message.data, (message.source_id,))
    deliveries.setdefault(message.target_id or graph.start, []).append(direct)


def _deliver(
    message: WorkflowMessage,
    selected: Sequence[Route],
    graph: Graph,
    deliveries: dict[str, list[Delivery]],
    collected: dict[str, dict[str, tuple[Any, ...]]],
) -> str | None:
    """Put one message where it goes; if it reaches nobody for lack of an edge or a handler, say so."""
    data, source, named = message.data, message.source_id, message.target_id
    from_source = Delivery(data, (source,))
    reached = False
    refused: list[str] = []
    for group, targets in selected:
        for target in targets:
            if named is not None and named != target:
                continue
            if isinstance(group, FanIn):
                waiting = collected.setdefault(group.name, {})
                waiting[source] = (*waiting.get(source, ()), data)
                reached = True
            elif graph.slots[target].prototype.can_handle(data):
                deliveries.setdefault(target, []).append(from_source)
                reached = True
            else:
                refused.append(target)
    return None if reached else _why_unreached(message, selected, refused, graph)


def _why_unreached(
    message: WorkflowMessage, selected: Sequence[Route], refused: Sequence[str], graph: Graph
) -> str | None:
    what = f"{message.source_id!r} sent {type_name(type(message.data))}"
    if refused:
        takers = "; ".join(
            f"{name!r} accepts {', '.join(type_names(graph.slots[name].prototype.input_types))}" for name in refused
        )
        return f"{what}, which no handler takes: {takers}; add a @handler for it"
    if message.target_id is not None and not any(message.target_id in group.targets for group, _ in selected):
        return (
            f"{what} to {message.target_id!r}, but no edge leads from {message.source_id!r} there; "
            f"add_edge({message.source_id}, {message.target_id})"
        )
    if not selected:
        return (
            f"{what}, but no edge leaves {message.source_id!r}; add_edge({message.source_id}, …) to where it should go "
            f"(a loop needs add_edge({message.source_id}, {message.source_id})), or yield_output it"
        )
    return None  # Its edges' conditions chose nobody, which is a choice.


def _release_fan_ins(
    graph: Graph,
    collected: dict[str, dict[str, tuple[Any, ...]]],
    deliveries: dict[str, list[Delivery]],
    warnings: list[str],
) -> None:
    for name, by_source in list(collected.items()):
        group = graph.fan_ins.get(name)
        if group is None or not all(by_source.get(source) for source in group.sources):
            continue
        del collected[name]
        data = [item for source in group.sources for item in by_source[source]]
        target = graph.slots[group.target].prototype
        if target.can_handle(data):
            deliveries.setdefault(group.target, []).append(Delivery(data, group.sources))
        else:
            kinds = ", ".join(sorted({type_name(type(item)) for item in data}))
            warnings.append(
                f"the fan-in to {group.target!r} collected a list of {kinds}, but it accepts "
                f"{', '.join(type_names(target.input_types))}; add a @handler for the list"
            )


def advance(state: RunState, done: Plan, outcomes: Iterable[Outcome], graph: Graph) -> Advance:
    """Fold one superstep's outcomes into the state the next one starts from."""
    iteration = state.iteration + 1
    inbox: list[WorkflowMessage] = []
    outputs: list[RecordedOutput] = []
    requests: list[PendingRequest] = []
    kept: dict[str, Any] = {}
    written: dict[str, tuple[str, Any]] = {}
    warnings: list[str] = []
    for outcome in outcomes:
        source = outcome.executor_id
        for delivery, effects in enumerate(outcome.effects):
            for data, target in effects.sent:
                inbox.append(WorkflowMessage(isolated(data), source, target))
            if effects.yielded and not graph.is_silent(source):
                outputs.extend(_recorded(effects, source, delivery, iteration, state.turn, graph))
            if effects.requested:
                requests.extend(_new_requests(effects.requested, requests))
            if effects.state:
                _write(effects.state, source, written, warnings)
        if outcome.state is not None:
            kept[source] = outcome.state
    after = RunState(
        iteration=iteration,
        turn=state.turn,
        turn_began=state.turn_began,
        input_digest=state.input_digest,
        inbox=tuple(inbox),
        shared={**state.shared, **{k: v for k, (_, v) in written.items()}} if written else state.shared,
        executor_states={**state.executor_states, **kept} if kept else state.executor_states,
        collected=done.collected,
        pending={**state.pending, **{r.request_id: r for r in requests}} if requests else state.pending,
        used_request_ids=state.used_request_ids,
        inherited=state.inherited,
        outputs=state.outputs + tuple(outputs) if outputs else state.outputs,
        usage=state.usage,
    )
    if chosen := [request.request_id for request in requests if not is_derived(request.request_id)]:
        after = after._replace(used_request_ids=after.used_request_ids.union(chosen))
    return Advance(after, tuple(outputs), tuple(requests), tuple(warnings))


def _recorded(
    effects: Effects, source: str, delivery: int, iteration: int, turn: int, graph: Graph
) -> list[RecordedOutput]:
    kind = graph.kind_of(source)
    return [
        RecordedOutput(
            source,
            kind,
            isolated(data),
            f"{iteration}.{source}.{delivery}.{ordinal}",
            iteration,
            turn,
            shown=effects.shown is not None and ordinal in effects.shown,
        )
        for ordinal, data in enumerate(effects.yielded)
    ]


def _new_requests(asked: Sequence[PendingRequest], others: Sequence[PendingRequest]) -> Sequence[PendingRequest]:
    """Executors at work side by side can't see each other's request ids; one of two equal ones would be lost."""
    taken = {other.request_id for other in others}
    for request in asked:
        if request.request_id in taken:
            raise DuplicateRequest(request.request_id, request.source_executor_id)
    return asked


def _write(writes: Mapping[str, Any], source: str, written: dict[str, tuple[str, Any]], warnings: list[str]) -> None:
    for key, value in writes.items():
        if key in written and written[key][0] != source:
            warnings.append(
                f"{written[key][0]!r} and {source!r} both wrote the state {key!r} in one superstep; "
                f"{source!r}, declared later, wins"
            )
        written[key] = (source, value)


# --- to and from checkpoints ------------------------------------------------------------------------------------------


def content_of(state: RunState, graph: Graph) -> CheckpointContent:
    """The state as a checkpoint keeps it."""
    messages: dict[str, list[WorkflowMessage]] = {}
    for message in state.inbox:
        messages.setdefault(message.source_id, []).append(message)
    kept = {**state.shared, EXECUTOR_STATE: state.executor_states or {}, GRAPH_SHAPE: graph.shape}
    if state.collected:
        kept[FAN_IN_STATE] = state.collected
    return CheckpointContent(messages, kept, state.pending or {}, state.outputs)


def metadata_of(state: RunState) -> dict[str, Any]:
    """The counters a checkpoint's header shows."""
    metadata: dict[str, Any] = {"turn": state.turn, "turn_began": state.turn_began}
    if state.input_digest is not None:
        metadata["input"] = state.input_digest
    if state.usage:
        metadata["usage"] = state.usage
    if state.inherited:
        metadata["decided_before"] = {key: list(of) for key, of in state.inherited.items()}
    if state.used_request_ids:
        metadata["asked"] = sorted(state.used_request_ids)
    return metadata


def state_from(checkpoint: WorkflowCheckpoint) -> RunState:
    """The state a checkpoint holds."""
    metadata = checkpoint.metadata
    state = checkpoint.state
    return RunState(
        iteration=checkpoint.iteration_count,
        turn=metadata.get("turn", 0),
        turn_began=metadata.get("turn_began", 0),
        input_digest=metadata.get("input"),
        inbox=tuple(message for messages in checkpoint.messages.values() for message in messages),
        shared={key: value for key, value in state.items() if key not in RESERVED_STATE_KEYS},
        executor_states=state.get(EXECUTOR_STATE, {}),
        collected=state.get(FAN_IN_STATE, {}),
        pending=checkpoint.pending_request_info_events,
        used_request_ids=frozenset(metadata.get("asked", ())),
        inherited=metadata.get("decided_before", {}),
        outputs=tuple(checkpoint.outputs),
        usage=metadata.get("usage", {}),
    )
