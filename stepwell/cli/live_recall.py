"""A run that began before this process did: its plan and how far it had come, from its last checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from stepwell.checkpointing.checkpoint import EXECUTOR_STATE, WorkflowCheckpoint
from stepwell.checkpointing.storage.protocol import CheckpointStorage
from stepwell.cli.live_entries import Saved
from stepwell.cli.live_plan import PlanProgress
from stepwell.cli.live_state import LiveState
from stepwell.orchestrations.manager import MagenticTaskLedger


async def recall(state: LiveState, storage: CheckpointStorage, run_id: str) -> None:
    """Let a view that is about to show the rest of a run begin with what is known of it."""
    checkpoint = await storage.get_latest(run_id=run_id)
    if checkpoint is not None:
        # Its content is read when it is first looked at, and that is not for the event loop to wait for.
        kept = await asyncio.to_thread(lambda: checkpoint.state.get(EXECUTOR_STATE, {}))
        begin_with(state, checkpoint, kept)
        for request in checkpoint.pending_request_info_events.values():
            state.asked_about(request.data)


def begin_with(state: LiveState, checkpoint: WorkflowCheckpoint, executor_states: Mapping[str, Any]) -> None:
    """The pure part: plans, whose steps are ticked by who has spoken, and what the run has used."""
    state.run_id = checkpoint.run_id
    state.saved = Saved(checkpoint.sequence, checkpoint.iteration_count)
    state.totals.count(checkpoint.metadata.get("usage", {}))
    for executor_id, kept in executor_states.items():
        ledger = kept.get("ledger") if isinstance(kept, Mapping) else None
        if isinstance(ledger, MagenticTaskLedger):
            authors = [message.author_name or "" for message in kept.get("history", ())]
            spoken = [name for name in authors if name in ledger.plan.owners]
            state.adopt_plan(executor_id, PlanProgress.after(ledger.plan, spoken, kept.get("speaker")))
