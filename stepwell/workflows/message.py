"""Messages between executors, and why nobody can change somebody else's."""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from stepwell.checkpointing.checkpoint import PendingRequest, WorkflowMessage
from stepwell.checkpointing.registry import IMMUTABLE_SCALARS, known_types, register_type

__all__ = ["INPUT", "RESPONSES", "ResponseMessage", "WorkflowMessage", "is_immutable", "isolated"]

logger = logging.getLogger(__name__)

INPUT = "__input__"
"""The source of what comes in from outside."""
RESPONSES = "__responses__"
"""The source of answers to requests."""

_AS_GOOD_AS_THEIR_ITEMS = frozenset({tuple, frozenset})


@dataclass(frozen=True, slots=True)
class ResponseMessage:
    """An answer on its way to the executor that asked."""

    request: PendingRequest
    response: Any


register_type(ResponseMessage, name="stepwell:ResponseMessage", immutable=False)


def is_immutable(value: Any) -> bool:
    """Can this value be shared without anyone noticing?"""
    cls = type(value)
    return _all_immutable(value) if cls in _AS_GOOD_AS_THEIR_ITEMS else _is_immutable_type(cls)


def _all_immutable(items: Collection[Any]) -> bool:
    # Conversations are long, so it is asked of each type, not of each item.
    kinds = set(map(type, items))
    if kinds.isdisjoint(_AS_GOOD_AS_THEIR_ITEMS):
        return all(map(_is_immutable_type, kinds))
    return all(map(is_immutable, items))


def _is_immutable_type(cls: type) -> bool:
    if cls in IMMUTABLE_SCALARS:
        return True
    entry = known_types.entry_for(cls)
    return entry is not None and entry.immutable


def isolated(value: Any) -> Any:
    """A copy that shares nothing that can change; immutable parts are kept as they are."""
    if is_immutable(value):
        return value
    if type(value) is list and _all_immutable(value):
        return value.copy()
    if type(value) is dict and _all_immutable(value.values()):
        return value.copy()
    return _deep(value)


def _deep(value: Any) -> Any:
    try:
        return copy.deepcopy(value, _copied_at_once(value))
    except TypeError as error:
        # Sockets, locks and the like: they can't be copied, and without a storage they may travel as they are.
        logger.debug("a %s can't be copied and is shared: %s", type(value).__name__, error)
        return value


def _copied_at_once(value: Any) -> dict[int, Any]:
    """The conversations that a record or a dict holds, as `deepcopy` notes what it has copied: it would go through them
    message by message, and make new ones of those that can't change."""
    parts = value.values() if type(value) is dict else getattr(value, "__dict__", {}).values()
    flat = [part for part in parts if type(part) in (list, tuple) and _all_immutable(part)]
    return {id(part): part.copy() if type(part) is list else part for part in flat}
