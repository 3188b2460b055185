"""What a live view writes down and leaves on the screen: one entry for each thing worth reading again later.

Entries hold what happened as it was said. Making it safe to print is the business of whoever prints it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from stepwell.orchestrations.plan import Plan


def words_of(value: Any) -> str:
    """A message, an output or an event of somebody's program in words: what it says, or how it prints itself."""
    try:
        told = value if isinstance(value, str) else getattr(value, "text", None)
        return told if isinstance(told, str) and told else repr(value)
    except Exception as error:  # Their code, and it may be at work on the value right now.
        return f"<{type(value).__name__} that can't be shown: {type(error).__name__}>"


@dataclass(frozen=True, slots=True)
class Planned:
    """There is a plan, or another one."""

    plan: Plan
    by: str
    before: Plan | None = None
    """The plan whose place it takes."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The manager let somebody speak, and said why."""

    by: str
    speaker: str
    instruction: str
    reason: str


@dataclass(frozen=True, slots=True)
class Judged:
    """What the manager thinks of the progress, where that is news: it is done, or it is stuck."""

    by: str
    verdict: Literal["satisfied", "in a loop", "no progress"]
    reason: str


@dataclass(frozen=True, slots=True)
class ToolUsed:
    """A tool was called; `result` is None if none was seen."""

    who: str
    name: str
    arguments: str
    result: str | None


@dataclass(frozen=True, slots=True)
class Said:
    """An agent's words, up to a tool call or the end of its turn."""

    who: str
    text: str


@dataclass(frozen=True, slots=True)
class Worked:
    """An executor that is no agent has handled a message."""

    who: str
    took: Any
    gave: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Yielded:
    """An executor yielded something that was not shown as it came."""

    who: str
    value: Any
    is_final: bool


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint is durable."""

    sequence: int
    superstep: int
    is_step: bool = True
    """Does it end a superstep? Else it holds a message or an answer that has come in."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Calls that the record answered in one superstep, none of them made again."""

    count: int


@dataclass(frozen=True, slots=True)
class Noted:
    """Something to be aware of."""

    kind: Literal["warning", "retry", "error", "team", "event", "request"]
    text: str
    who: str | None = None


Entry: TypeAlias = Planned | Asked | Judged | ToolUsed | Said | Worked | Yielded | Saved | Replayed | Noted
