"""A graph as something to draw: boxes, junctions and arrows, and where a run is among them. Pure data, no format."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stepwell.checkpointing.checkpoint import EXECUTOR_STATE, FAN_IN_STATE, PendingRequest, WorkflowCheckpoint
from stepwell.checkpointing.storage.protocol import RunInfo
from stepwell.workflows.edges import Edge, EdgeGroup, FanIn, FanOut, SwitchCase
from stepwell.workflows.executor import Executor, FunctionExecutor
from stepwell.workflows.graph import Graph
from stepwell.workflows.message import INPUT

Shape = Literal["executor", "workflow", "fork", "join", "choice", "pick"]
"""`fork` and `join` are a fan-out and a fan-in, `choice` is a switch, `pick` a multi-selection."""

ArrowKind = Literal["edge", "conditional", "fan_out", "fan_in", "switch", "multi_selection"]

RunStanding = WorkflowCheckpoint | RunInfo
"""How a run stands: what it is drawn from."""


_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def clean(text: str) -> str:
    """Text that any viewer takes: one line, no control characters, nothing that turns the line around."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", " ".join(text.split()))


@dataclass(frozen=True, slots=True)
class Mark:
    """What a run has to do with an executor right now."""

    waits_for: tuple[str, ...] = ()
    """What it has asked and has no answer to."""
    is_next: bool = False
    """A message is queued for it."""


NOTHING = Mark()


@dataclass(frozen=True, slots=True)
class Box:
    """An executor, a workflow inside, or a junction where arrows part or meet."""

    key: str
    label: str
    shape: Shape = "executor"
    subtitle: str = ""
    is_start: bool = False
    mark: Mark = NOTHING
    inside: Picture | None = None


@dataclass(frozen=True, slots=True)
class Arrow:
    source: str
    target: str
    kind: ArrowKind = "edge"
    label: str = ""
    has_head: bool = True


@dataclass(frozen=True, slots=True)
class Picture:
    """One workflow: what is in it, and what leads where. Keys are unique in the whole of it."""

    title: str
    boxes: Mapping[str, Box]
    arrows: tuple[Arrow, ...]
    start: str
    caption: str = ""

    def all_boxes(self) -> Iterator[Box]:
        for box in self.boxes.values():
            yield box
            if box.inside is not None:
                yield from box.inside.all_boxes()


@dataclass(frozen=True, slots=True)
class Position:
    """Where one run of one graph is. `inside` is the same for the workflows in it, by executor."""

    marks: Mapping[str, Mark] = field(default_factory=dict)
    collected: Mapping[str, str] = field(default_factory=dict)
    inside: Mapping[str, Position] = field(default_factory=dict)


def picture_of(graph: Graph, standing: RunStanding | None = None) -> Picture:
    """The picture of a workflow; with the standing of a run, where that is."""
    position = position_of(graph, standing) if standing is not None else Position()
    return _picture(graph, position, "", _caption(standing))


# --- the graph --------------------------------------------------------------------------------------------------------


def _picture(graph: Graph, position: Position, path: str, caption: str = "") -> Picture:
    boxes = {f"{path}{name}": _box(graph, name, position, path) for name in graph.slots}
    arrows: list[Arrow] = []
    for index, group in enumerate(graph.groups):
        for part in _group(group, f"{path}({index})", path, position):
            if isinstance(part, Box):
                boxes[part.key] = part
            else:
                arrows.append(part)
    return Picture(graph.name, boxes, tuple(arrows), f"{path}{graph.start}", caption)


def _box(graph: Graph, name: str, position: Position, path: str) -> Box:
    executor = graph.slots[name].prototype
    inner = executor.inner_graph
    inside = _picture(inner, position.inside.get(name, Position()), f"{path}{name}/") if inner is not None else None
    return Box(
        f"{path}{name}",
        name,
        "executor" if inner is None else "workflow",
        inner.name if inner is not None else _subtitle(executor),
        name == graph.start,
        position.marks.get(name, NOTHING),
        inside,
    )


def _subtitle(executor: Executor) -> str:
    if isinstance(executor, FunctionExecutor):
        return "function"
    return "agent" if hasattr(executor, "agent") else type(executor).__name__


def _group(group: EdgeGroup, key: str, path: str, position: Position) -> Iterator[Box | Arrow]:
    sources, targets = ([f"{path}{name}" for name in names] for names in (group.sources, group.targets))
    if isinstance(group, Edge):
        is_free = group.condition is None
        label = "" if group.condition is None else _condition_name(group.condition, "on a condition")
        yield Arrow(sources[0], targets[0], "edge" if is_free else "conditional", label)
    elif isinstance(group, FanIn):
        yield Box(key, position.collected.get(group.name, ""), "join")
        yield from (Arrow(source, key, "fan_in", has_head=False) for source in sources)
        yield Arrow(key, targets[0], "fan_in")
    elif isinstance(group, FanOut):
        yield Box(key, "", "fork")
        yield Arrow(sources[0], key, "fan_out", has_head=False)
        yield from (Arrow(key, target, "fan_out") for target in targets)
    elif isinstance(group, SwitchCase):
        yield Box(key, "", "choice")
        yield Arrow(sources[0], key, "switch", has_head=False)
        names = [_condition_name(condition, f"case {n}") for n, (condition, _) in enumerate(group.cases, 1)]
        yield from (
            Arrow(key, target, "switch", label) for target, label in zip(targets, [*names, "else"], strict=True)
        )
    else:
        yield Box(key, "", "pick")
        yield Arrow(sources[0], key, "multi_selection", _condition_name(group.selection, ""), has_head=False)
        yield from (Arrow(key, target, "multi_selection") for target in targets)


def _condition_name(condition: Callable[..., Any], otherwise: str) -> str:
    name = clean(str(getattr(condition, "__name__", "")))
    return name if name and name != "<lambda>" else otherwise


# --- the run ----------------------------------------------------------------------------------------------------------


def position_of(graph: Graph, standing: RunStanding) -> Position:
    """Where the run is. A list of runs tells what is asked; a checkpoint also what is queued, at every depth."""
    if isinstance(standing, RunInfo):
        waits: dict[str, list[str]] = {}
        for summary in standing.pending_requests:
            waits.setdefault(summary.source_executor_id, []).append(summary.response_type)
        return Position({name: Mark(tuple(kinds)) for name, kinds in waits.items()})
    content = standing.content
    return _position(graph, content.messages, content.state, content.pending_request_info_events)


def _position(
    graph: Graph, messages: Mapping[str, Any], state: Mapping[str, Any], pending: Mapping[str, Any]
) -> Position:
    waits: dict[str, list[str]] = {}
    for request in pending.values():
        if isinstance(request, PendingRequest):
            waits.setdefault(request.source_executor_id, []).append(request.response_type)
    coming = {
        target for source, queued in messages.items() for one in queued for target in _receivers(graph, source, one)
    }
    marks = {name: Mark(tuple(waits.get(name, ())), name in coming) for name in {*waits, *coming}}
    collected = {
        name: f"{sum(map(bool, by_source.values()))} of {len(graph.fan_ins[name].sources)}"
        for name, by_source in state.get(FAN_IN_STATE, {}).items()
        if name in graph.fan_ins
    }
    kept = state.get(EXECUTOR_STATE, {})
    inside = {name: _inside(inner, kept.get(name)) for name, inner in graph.inner.items()}
    return Position(marks, collected, inside)


def _receivers(graph: Graph, source: str, message: Any) -> list[str]:
    """Who can get a queued message: conditions have not been asked yet, so all they may choose from."""
    if message.target_id is not None:
        return [message.target_id]
    if source == INPUT:
        return [graph.start]
    return [target for group in graph.leaving.get(source, ()) for target in group.targets]


def _inside(graph: Graph, kept: Any) -> Position:
    """All runs of an inner workflow together: one picture shows what any of them waits for."""
    records = kept.get("runs", {}).values() if isinstance(kept, Mapping) else ()
    positions = [_position(graph, r["messages"], r["state"], r["pending_request_info_events"]) for r in records]
    marks: dict[str, Mark] = {}
    for position in positions:
        for name, mark in position.marks.items():
            before = marks.get(name, NOTHING)
            marks[name] = Mark((*before.waits_for, *mark.waits_for), before.is_next or mark.is_next)
    inside: dict[str, Position] = {}
    for position in positions:
        inside.update({name: deeper for name, deeper in position.inside.items() if deeper.marks or deeper.inside})
    return Position(marks, inside=inside)


def _caption(standing: RunStanding | None) -> str:
    if isinstance(standing, RunInfo):
        return f"run {standing.run_id}: {standing.state}, superstep {standing.supersteps}"
    if standing is not None:
        return f"run {standing.run_id}, superstep {standing.iteration_count}"
    return ""
