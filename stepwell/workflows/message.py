"""Messages between executors, and why nobody can change somebody else's."""

from __future__ import annotations

import copy
import logging
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


@dataclass(frozen=True, slots=True)
class ResponseMessage:
    """An answer on its way to the executor that asked."""

    request: PendingRequest
    response: Any


register_type(ResponseMessage, name="stepwell:ResponseMessage", immutable=False)


def is_immutable(value: Any) -> bool:
    """Can this value be shared without anyone noticing?"""
    cls = type(value)
    if cls in IMMUTABLE_SCALARS:
        return True
    if cls is tuple or cls is frozenset:
        return all(map(is_immutable, value))
    entry = known_types.entry_for(cls)
    return entry is not None and entry.immutable


def isolated(value: Any) -> Any:
    """A copy that shares nothing that can change; immutable parts are kept as they are."""
    if is_immutable(value):
        return value
    if type(value) is list and all(map(is_immutable, value)):
        return value.copy()
    if type(value) is dict and all(map(is_immutable, value.values())):
        return value.copy()
    return _deep(value)


def _deep(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except TypeError as error:
        # Sockets, locks and the like: they can't be copied, and without a storage they may travel as they are.
        logger.debug("a %s can't be copied and is shared: %s", type(value).__name__, error)
        return value
