"""Does a graph make sense? Each complaint names the executors and the fix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from stepwell.errors import (
    EdgeDuplicationError,
    GraphConnectivityError,
    TypeCompatibilityError,
    WorkflowValidationError,
    listed,
)
from stepwell.workflows.edges import FanIn
from stepwell.workflows.graph import Graph
from stepwell.workflows.typing import is_open, may_send, type_names


def validate(graph: Graph) -> None:
    """Raise the first thing that is wrong with the graph."""
    _check_arity(graph)
    _check_duplicates(graph)
    _check_reachable(graph)
    _check_handlers(graph)
    _check_types(graph)
    _check_instances(graph)
    _check_state_keys(graph)
    _check_outputs(graph)


def _edges(graph: Graph) -> Iterator[tuple[str, str]]:
    for group in graph.groups:
        for source in group.sources:
            for target in group.targets:
                yield source, target


def _check_arity(graph: Graph) -> None:
    for group in graph.groups:
        if group.kind == "fan_out" and len(group.targets) < 2:
            raise WorkflowValidationError(
                f"the fan-out from {listed(group.sources)} has {len(group.targets)} target(s); use add_edge for one"
            )
        if group.kind == "fan_in" and len(group.sources) < 2:
            raise WorkflowValidationError(
                f"the fan-in to {listed(group.targets)} has {len(group.sources)} source(s); use add_edge for one"
            )
        if group.kind == "multi_selection" and not group.targets:
            raise WorkflowValidationError(
                f"the multi-selection from {listed(group.sources)} has no targets; give it those it may select"
            )
        if group.kind in ("fan_out", "multi_selection", "fan_in"):
            names = group.sources if group.kind == "fan_in" else group.targets
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise EdgeDuplicationError(
                    twice[0] if group.kind == "fan_in" else group.sources[0],
                    group.targets[0] if group.kind == "fan_in" else twice[0],
                )


def _check_duplicates(graph: Graph) -> None:
    plain = Counter(
        (source, target)
        for group in graph.groups
        if group.kind in ("edge", "fan_out", "fan_in")
        for source in group.sources
        for target in group.targets
    )
    for (source, target), count in plain.items():
        if count > 1:
            raise EdgeDuplicationError(source, target)


def _reached_from(graph: Graph, start: str) -> set[str]:
    """Where messages of `start` can lead to in the end; `start` itself only by a loop."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for group in graph.leaving.get(waiting.pop(), ()):
            waiting += [target for target in group.targets if target not in reached]
            reached.update(group.targets)
    return reached


def _check_reachable(graph: Graph) -> None:
    reached = {graph.start} | _reached_from(graph, graph.start)
    lost = [name for name in graph.slots if name not in reached]
    if lost:
        raise GraphConnectivityError(
            f"{listed(lost)} can't be reached from the start executor {graph.start!r}; add an edge to them or leave "
            "them out"
        )


def _check_handlers(graph: Graph) -> None:
    for name, slot in graph.slots.items():
        if not slot.prototype.input_types:
            raise WorkflowValidationError(
                f"executor {name!r} ({type(slot.prototype).__name__}) has no handler; decorate an async method with "
                "@handler"
            )


def _check_types(graph: Graph) -> None:
    for group in graph.groups:
        if isinstance(group, FanIn):
            continue  # It delivers a list; what is in it is checked when it arrives.
        for source in group.sources:
            for target in group.targets:
                _check_edge(graph, source, target)


def _check_edge(graph: Graph, source: str, target: str) -> None:
    sends = graph.slots[source].prototype.output_types
    accepts = graph.slots[target].prototype.input_types
    if not sends or any(map(is_open, sends)):
        return
    if not any(may_send(one, other) for one in sends for other in accepts):
        raise TypeCompatibilityError(source, target, type_names(sends), type_names(accepts))


def _check_instances(graph: Graph) -> None:
    """One executor object in two places at once would mix up what it keeps for each."""
    count = Counter(id(slot.prototype) for slot in graph.exclusive)
    twice = [slot.id for slot in graph.exclusive if count[id(slot.prototype)] > 1]
    if twice:
        raise WorkflowValidationError(
            f"the executor instance {twice[0]!r} is in the workflow more than once, through workflows inside it; build "
            "the inner workflow once for each place, or with factories (for example `lambda: MyExecutor('id')`)"
        )


def _check_state_keys(graph: Graph) -> None:
    """A key that is read has to be written before; who may write anything gets the benefit of the doubt."""
    for name, slot in graph.slots.items():
        for key in slot.prototype.state_reads:
            before = [graph.slots[other].prototype for other in graph.slots if name in _reached_from(graph, other)]
            if not any(other.state_writes is None or key in other.state_writes for other in before):
                written = sorted({key for other in before for key in other.state_writes or ()})
                raise WorkflowValidationError(
                    f"executor {name!r} reads the state {key!r}, which nothing before it writes (written before it: "
                    f"{listed(written) or 'nothing'}); correct the key, or give an executor before it "
                    f"output_key={key!r}"
                )


def _check_outputs(graph: Graph) -> None:
    for label, names in (
        ("output_from", graph.output_from or ()),
        ("intermediate_output_from", graph.intermediate_from),
    ):
        unknown = [name for name in names if name not in graph.slots]
        if unknown:
            raise WorkflowValidationError(
                f"{label} names {listed(unknown)}, which the workflow lacks; it has {listed(graph.slots)}"
            )
    both = (graph.output_from or frozenset()) & graph.intermediate_from
    if both:
        raise WorkflowValidationError(f"{listed(sorted(both))} can't be in output_from and intermediate_output_from")
