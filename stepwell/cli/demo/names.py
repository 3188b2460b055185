"""What the demo's runs are called, for whoever meets one in a store."""

from __future__ import annotations

import re
from typing import Final

NAME: Final = "researcher-writer"
"""The name of the demo's workflow."""
TARGET: Final = "stepwell.cli.demo.team:build"
"""The demo's workflow, as other commands take it."""
SCRIPTED: Final = "demo"
REAL: Final = "model"
"""What the ids of runs begin with: those of scripted models, and those of a real one."""


def number_of(run_id: str, prefix: str) -> int | None:
    """The number of a run that the demo has started; None for any other run, and for branches."""
    found = re.fullmatch(rf"{prefix}-(\d+)", run_id)
    return int(found[1]) if found else None


def is_the_demos(workflow_name: str, run_id: str) -> bool:
    """Does `stepwell demo` go on with this run?"""
    return workflow_name == NAME and any(number_of(run_id, prefix) is not None for prefix in (SCRIPTED, REAL))
