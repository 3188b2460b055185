"""Edges: which executors a message goes to.

Every kind answers one question, `select(message data)`, purely. A fan-in also waits: what it has collected so far is
part of the run's state, not of the edge.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from stepwell.errors import WorkflowException

TargetT = TypeVar("TargetT")

Condition = Callable[[Any], "bool | Awaitable[bool]"]
Selection = Callable[[Any, list[str]], "list[str] | Awaitable[list[str]]"]


class SwitchArm(Generic[TargetT]):
    """An arm of a switch: a `Case` or the `Default`."""

    target: TargetT


@dataclass(frozen=True)
class Case(SwitchArm[TargetT]):
    """One arm of a switch: taken if `condition(message)` is true and no earlier one was."""

    condition: Condition
    target: TargetT


@dataclass(frozen=True)
class Default(SwitchArm[TargetT]):
    """The last arm of a switch: taken if no case is."""

    target: TargetT


@dataclass(frozen=True, slots=True)
class Edge:
    """From one executor to another, perhaps on a condition."""

    source: str
    target: str
    condition: Condition | None = None

    kind = "edge"

    @property
    def chooses(self) -> bool:
        """Does it depend on the message where that goes?"""
        return self.condition is not None

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.target,)

    async def select(self, data: Any) -> tuple[str, ...]:
        return (self.target,) if await _truth(self.condition, data) else ()


@dataclass(frozen=True, slots=True)
class FanOut:
    """From one executor to several at once."""

    source: str
    targets: tuple[str, ...]

    kind = "fan_out"
    chooses = False

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    async def select(self, data: Any) -> tuple[str, ...]:
        return self.targets


@dataclass(frozen=True)
class FanIn:
    """From several executors to one, which gets the list of their messages once each has sent one."""

    sources: tuple[str, ...]
    target: str

    kind = "fan_in"
    chooses = False

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.target,)

    @cached_property
    def name(self) -> str:
        """Its place in a checkpoint; the same in every process that builds this graph."""
        return f"{','.join(self.sources)}->{self.target}"

    async def select(self, data: Any) -> tuple[str, ...]:
        return (self.target,)


@dataclass(frozen=True, slots=True)
class SwitchCase:
    """From one executor to the first target whose case holds, or to the default."""

    source: str
    cases: tuple[tuple[Condition, str], ...]
    default: str

    kind = "switch"
    chooses = True

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def targets(self) -> tuple[str, ...]:
        return (*(target for _, target in self.cases), self.default)

    async def select(self, data: Any) -> tuple[str, ...]:
        for condition, target in self.cases:
            if await _truth(condition, data):
                return (target,)
        return (self.default,)


@dataclass(frozen=True, slots=True)
class MultiSelection:
    """From one executor to those of its targets that a function picks."""

    source: str
    targets: tuple[str, ...]
    selection: Selection

    kind = "multi_selection"
    chooses = True

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    async def select(self, data: Any) -> tuple[str, ...]:
        picked = self.selection(data, list(self.targets))
        chosen: Sequence[str] = await picked if isinstance(picked, Awaitable) else picked
        unknown = [target for target in chosen if target not in self.targets]
        if unknown:
            raise WorkflowException(
                f"the selection function after {self.source!r} picked {unknown[0]!r}; it may pick from {self.targets}"
            )
        return tuple(dict.fromkeys(chosen))


EdgeGroup = Edge | FanOut | FanIn | SwitchCase | MultiSelection


async def _truth(condition: Condition | None, data: Any) -> bool:
    if condition is None:
        return True
    verdict = condition(data)
    return bool(await verdict if isinstance(verdict, Awaitable) else verdict)
