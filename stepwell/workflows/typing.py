"""Does a value fit an annotation, and can what one executor sends be what another accepts?"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_UNIONS = (typing.Union, types.UnionType)


def members(hint: Any) -> tuple[Any, ...]:
    """A union's members; anything else by itself. `Never` has none."""
    if hint in (typing.Never, typing.NoReturn):
        return ()
    if typing.get_origin(hint) in _UNIONS:
        return tuple(member for part in typing.get_args(hint) for member in members(part))
    if typing.get_origin(hint) is typing.Annotated:
        return members(typing.get_args(hint)[0])
    return (type(None),) if hint is None else (hint,)


def is_open(hint: Any) -> bool:
    """Does this annotation say nothing at all?"""
    return hint is Any or hint is object or isinstance(hint, typing.TypeVar)


def fits(value: Any, hint: Any) -> bool:
    """Is `value` what the annotation says, as far as that can be told at run time?"""
    if type(value) is hint or is_open(hint):
        return True
    if hint is None:
        return value is None
    origin = typing.get_origin(hint)
    if origin is None:
        return _fits_class(value, hint)
    if origin in _UNIONS:
        return any(fits(value, member) for member in typing.get_args(hint))
    if origin is typing.Annotated:
        return fits(value, typing.get_args(hint)[0])
    if origin is typing.Literal:
        return any(value == choice and type(value) is type(choice) for choice in typing.get_args(hint))
    return isinstance(value, origin) and _fits_arguments(value, origin, typing.get_args(hint))


def _fits_class(value: Any, hint: Any) -> bool:
    if isinstance(hint, typing.NewType):
        return fits(value, hint.__supertype__)
    if typing.is_typeddict(hint):
        return isinstance(value, dict) and hint.__required_keys__ <= value.keys()
    if hint is float and type(value) is int:
        return True
    if hint is int and type(value) is bool:
        return False
    try:
        return isinstance(value, hint)
    except TypeError:
        # A protocol that can't be checked, or something that is no type: the user vouches for it.
        return True


def _fits_arguments(value: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    if issubclass(origin, tuple):
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return _all_fit(value, arguments[0])
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    if issubclass(origin, Mapping):
        return all(fits(key, arguments[0]) and fits(item, arguments[1]) for key, item in value.items())
    if issubclass(origin, Sequence | set | frozenset) and arguments:
        return _all_fit(value, arguments[0])
    return True


def _all_fit(items: Iterable[Any], hint: Any) -> bool:
    # Conversations are long, and nearly always made of what the annotation names: one look at each type will do.
    return all(type(hint) is type and kind is hint for kind in set(map(type, items))) or all(
        fits(item, hint) for item in items
    )


def may_send(sent: Any, accepted: Any) -> bool:
    """Could a value annotated `sent` be one that `accepted` takes? Doubt counts in favour."""
    if is_open(sent) or is_open(accepted):
        return True
    for one in members(sent):
        for other in members(accepted):
            if _related(one, other):
                return True
    return not members(sent)


def _related(one: Any, other: Any) -> bool:
    if one == other or is_open(one) or is_open(other):
        return True
    plain_one, plain_other = typing.get_origin(one) or one, typing.get_origin(other) or other
    if not isinstance(plain_one, type) or not isinstance(plain_other, type):
        return True
    if not (issubclass(plain_one, plain_other) or issubclass(plain_other, plain_one)):
        return plain_one is int and plain_other is float
    arguments = list(zip(typing.get_args(one), typing.get_args(other), strict=False))
    return all(a is Ellipsis or b is Ellipsis or may_send(a, b) for a, b in arguments)


def type_names(hints: Iterable[Any]) -> tuple[str, ...]:
    return tuple(type_name(hint) for hint in hints)


def type_name(hint: Any) -> str:
    """How an annotation is written in messages to people."""
    if hint is type(None):
        return "None"
    if isinstance(hint, type) and typing.get_origin(hint) is None:
        return hint.__qualname__.rpartition("<locals>.")[2]
    return str(hint).replace("typing.", "")


def is_count(value: Any, least: int) -> bool:
    """Is it a whole number that is large enough? True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_text(value: Any) -> bool:
    """Is it a text with something in it?"""
    return isinstance(value, str) and bool(value)
