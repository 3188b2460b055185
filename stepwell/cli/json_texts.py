"""JSON that a person or a script wrote."""

from __future__ import annotations

import json
from typing import Any

from stepwell.checkpointing.codec import MAX_DEPTH


def parsed_json(text: str) -> Any:
    """What the text says; `ValueError` if it is no JSON, or nested deeper than a checkpoint can be."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if _is_deeper(value, MAX_DEPTH):
        raise ValueError(_TOO_DEEP)
    return value


_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"


def _is_deeper(value: Any, levels: int) -> bool:
    """Level by level, and not by calling itself: a text may be as deep as the parser allows."""
    level = [value]
    for _ in range(levels):
        level = [item for each in level for item in _inside(each)]
        if not level:
            return False
    return True


def _inside(value: Any) -> list[Any]:
    """The lists and dicts in a value."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, dict | list)]
