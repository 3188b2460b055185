"""What tells a callable from others of its name: `lambda: fetch(n)` is another call with each `n`.

An unkeyed call is known by its name and its arguments. The rest of what it goes by is inside the callable: the
arguments of a `partial`, the variables that a function inside another one uses, the object of a bound method. Of these,
only what can't change is of use: a list that others fill meanwhile looks different at every instant.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import partial
from pathlib import PurePath
from types import FunctionType, MethodType
from typing import Any

from stepwell.checkpointing.registry import IMMUTABLE_SCALARS, known_types

_DEPTH = 4
"""How far functions within functions are followed."""


def call_name(fn: Callable[..., Any]) -> str:
    """What a call of this is named by."""
    return str(getattr(fn, "__qualname__", type(fn).__qualname__)).rpartition("<locals>.")[2]


def brought_along(fn: Any, depth: int = _DEPTH) -> list[Any]:
    """What `fn` brings along that can't change, as far as it can be saved; empty for an ordinary function."""
    if depth == 0:
        return []
    if isinstance(fn, FunctionType):
        return _used(fn, depth) if "<" in fn.__qualname__ else []  # <locals>, <lambda>
    if isinstance(fn, MethodType):
        return [*_unchanging(fn.__self__, depth), *brought_along(fn.__func__, depth)]
    if isinstance(fn, partial):
        given = [*enumerate(fn.args), *fn.keywords.items()]
        return [call_name(fn.func), *_named(given, depth), *brought_along(fn.func, depth - 1)]
    return [] if isinstance(fn, type) else _unchanging(fn, depth)


def _used(fn: FunctionType, depth: int) -> list[Any]:
    """The variables around it that it uses, and its defaults, which are often there for the same."""
    given = [*enumerate(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).items()]
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            given.append((name, cell.cell_contents))
        except ValueError:  # not assigned yet
            continue
    return _named(given, depth)


def _named(given: list[tuple[Any, Any]], depth: int) -> list[Any]:
    return [[name, *kept] for name, value in given if (kept := _unchanging(value, depth))]


def _unchanging(value: Any, depth: int) -> list[Any]:
    """The value if it can't change, or what it brings along if it is a function; else nothing."""
    kind = type(value)
    if isinstance(value, enum.Enum):
        return [kind.__qualname__, value.name]
    if kind in IMMUTABLE_SCALARS or isinstance(value, PurePath):
        return [value]
    if kind is tuple:
        return [value] if depth and all(_unchanging(item, depth - 1) == [item] for item in value) else []
    if isinstance(value, FunctionType | MethodType | partial):
        brought = brought_along(value, depth - 1)
        return [call_name(value), brought] if brought else []
    entry = known_types.entry_for(kind)
    return [value] if entry is not None and entry.immutable else []
