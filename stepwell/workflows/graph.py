"""A workflow's definition: executors, edges, and what they are called."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from stepwell.checkpointing.registry import (
    TypeRegistry,
    annotations_of,
    known_types,
    record_types_in,
    records_beside,
    register_type,
)
from stepwell.checkpointing.storage.protocol import CheckpointStorage
from stepwell.workflows.edges import EdgeGroup, FanIn
from stepwell.workflows.executor import Executor, FunctionExecutor
from stepwell.workflows.message import INPUT, RESPONSES

OutputKind = Literal["output", "intermediate"]

_EDGE = re.compile(r"(.*) -[a-z_]+-> (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for an executor: how a run gets one, and one to look at."""

    id: str
    make: Callable[[], Executor]
    prototype: Executor
    exclusive: bool
    """The same object serves every run, so only one run at a time."""


@dataclass(frozen=True, slots=True)
class GraphShape:
    """A graph's outline as its checkpoints keep it, to tell what has changed since."""

    executors: tuple[str, ...]
    edges: tuple[str, ...]

    def differences(self, now: GraphShape) -> tuple[str, ...]:
        """What is different now, in words."""
        return tuple(
            f"{verb} {kind} {name}"
            for kind, before, after in (
                ("executor", self.executors, now.executors),
                ("edge", self.edges, now.edges),
            )
            for verb, names in (("removed", set(before) - set(after)), ("added", set(after) - set(before)))
            for name in sorted(names)
        )

    def targets_of(self, source: str) -> list[str]:
        """The executors that an edge led to from `source`."""
        found = (_EDGE.fullmatch(edge) for edge in self.edges)
        names = {name for edge in found if edge and source in edge[1].split("+") for name in edge[2].split("+")}
        return sorted(names.intersection(self.executors))


register_type(GraphShape, name="stepwell:GraphShape", immutable=True)


@dataclass(frozen=True)
class Graph:
    """Executors in the order of their declaration, edges, the start, and whose yields are what."""

    name: str
    slots: dict[str, Slot]
    groups: tuple[EdgeGroup, ...]
    start: str
    max_iterations: int | None
    storage: CheckpointStorage | None
    description: str | None = None
    output_from: frozenset[str] | None = None
    intermediate_from: frozenset[str] = frozenset()

    @cached_property
    def order(self) -> dict[str, int]:
        return {executor_id: index for index, executor_id in enumerate(self.slots)}

    @cached_property
    def leaving(self) -> dict[str, tuple[EdgeGroup, ...]]:
        """Edge groups by source."""
        table: dict[str, list[EdgeGroup]] = {}
        for group in self.groups:
            for source in group.sources:
                table.setdefault(source, []).append(group)
        return {source: tuple(groups) for source, groups in table.items()}

    @cached_property
    def unconditional(self) -> dict[str, tuple[tuple[EdgeGroup, tuple[str, ...]], ...]]:
        """Where messages go by their source alone: every edge that leaves it, and its targets."""
        sources = {**dict.fromkeys(self.slots, ()), **self.leaving, INPUT: (), RESPONSES: ()}
        return {
            source: tuple((group, group.targets) for group in groups)
            for source, groups in sources.items()
            if not any(group.chooses for group in groups)
        }

    @cached_property
    def fan_ins(self) -> dict[str, FanIn]:
        return {group.name: group for group in self.groups if isinstance(group, FanIn)}

    @cached_property
    def inner(self) -> dict[str, Graph]:
        """The workflows inside this one, by the executor they are in."""
        graphs = {name: slot.prototype.inner_graph for name, slot in self.slots.items()}
        return {name: graph for name, graph in graphs.items() if graph is not None}

    @cached_property
    def exclusive(self) -> tuple[Slot, ...]:
        """Executor instances, those of workflows inside this one included."""
        own = [slot for slot in self.slots.values() if slot.exclusive]
        return (*own, *(slot for graph in self.inner.values() for slot in graph.exclusive))

    @cached_property
    def shape(self) -> GraphShape:
        executors = list(self.slots)
        edges = [f"{'+'.join(g.sources)} -{g.kind}-> {'+'.join(g.targets)}" for g in self.groups]
        for name, graph in self.inner.items():
            executors += [f"{name}/{inside}" for inside in graph.shape.executors]
            edges += [f"in {name}: {edge}" for edge in graph.shape.edges]
        return GraphShape(tuple(sorted(executors)), tuple(sorted(edges)))

    @cached_property
    def signature(self) -> str:
        """Which executors and edges there are; conditions and code are not part of it, so they can be mended."""
        return signature_of(self.shape, self.start)

    @cached_property
    def registry(self) -> TypeRegistry:
        """Every type the graph declares, known to the codec without anyone doing anything."""
        types = {cls for slot in self.slots.values() for cls in declared_types(slot.prototype)}
        for cls in types:
            if known_types.entry_for(cls) is None:
                register_type(cls)
        return known_types.child(types)

    def kind_of(self, executor_id: str) -> OutputKind:
        """What a yield of this executor is announced as."""
        if self.output_from is None:
            return "intermediate" if executor_id in self.intermediate_from else "output"
        return "output" if executor_id in self.output_from else "intermediate"

    def is_silent(self, executor_id: str) -> bool:
        """Were outputs designated, and this executor's yields not among them?"""
        designated = self.output_from is not None
        return designated and executor_id not in self.output_from | self.intermediate_from  # type: ignore[operator]


def signature_of(shape: GraphShape, start: str) -> str:
    text = json.dumps([shape.executors, shape.edges, start])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def declared_types(executor: Executor) -> Iterable[type]:
    """Types an executor can send, receive, ask, or keep: by its annotations, and by its module's record types."""
    for spec in executor.specs:
        for hint in (*spec.accepts, *spec.sends, *spec.yields, *spec.responds_to):
            yield from record_types_in(hint)
    for hint in annotations_of(type(executor)).values():
        yield from record_types_in(hint)
    if executor.inner_graph is not None:
        for slot in executor.inner_graph.slots.values():
            yield from declared_types(slot.prototype)
    home: Any = executor.function if isinstance(executor, FunctionExecutor) else type(executor)
    if not home.__module__.startswith("stepwell."):
        yield from records_beside(home)
