"""Finding runs by their ids."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from stepwell.cli.remedies import Unusable

if TYPE_CHECKING:
    from stepwell.checkpointing.storage.protocol import RunInfo
    from stepwell.checkpointing.storage.recording import RecordingStorage


async def run_named(storage: RecordingStorage, run_id: str) -> RunInfo:
    """The run with this id, or an error that names those that are there."""
    runs = await storage.list_runs()
    for run in runs:
        if run.run_id == run_id:
            return run
    ids = [run.run_id for run in runs]
    near = difflib.get_close_matches(run_id, ids, n=3) or ids[:3]
    hint = f"did you mean {' or '.join(near)}?" if near else "there are no runs in it"
    raise Unusable(f"there is no run {run_id!r} in this store; {hint}")
