"""Runs as a table for people and as JSON for scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from stepwell.cli import consoles
from stepwell.cli.failures import tell
from stepwell.cli.holders import at_work_on
from stepwell.cli.questions import questions_of_run
from stepwell.cli.remedies import Unusable
from stepwell.cli.results import question_json, total
from stepwell.cli.safe_text import one_line

if TYPE_CHECKING:
    from stepwell.checkpointing.storage.protocol import RunInfo

_STANDING = {
    "STARTED": "cut off",
    "IN_PROGRESS": "cut off",
    "IN_PROGRESS_PENDING_REQUESTS": "cut off",
    "IDLE": "done",
    "IDLE_WITH_PENDING_REQUESTS": "waiting",
    "FAILED": "failed",
    "CANCELLED": "interrupted",
    "DAMAGED": "damaged",
}
_WORDS = ("running", "waiting", "answered", "done", "failed", "interrupted", "cancelled", "cut off", "damaged")
_COLOURS = {"done": "green", "waiting": "yellow", "failed": "red", "damaged": "red", "running": "cyan"}


def standing(run: RunInfo) -> str:
    """How a run stands, in a word."""
    if at_work_on(run) is not None and run.state.startswith(("STARTED", "IN_PROGRESS")):
        return "running"
    if run.state == "IDLE_WITH_PENDING_REQUESTS" and not run.pending_requests:
        return "answered"
    if run.stopped_by == "cancel_run":
        return "cancelled"
    return _STANDING.get(run.state, run.state)


def standing_like(word: str) -> Callable[[RunInfo], bool]:
    """Picks runs by a word of the table (`waiting`) or by the state on record (`IDLE_WITH_PENDING_REQUESTS`)."""
    plain = word.strip().lower()
    if plain.upper() in _STANDING:
        return lambda run: run.state == plain.upper()
    if plain in _WORDS:
        return lambda run: standing(run) == plain
    known = f"{', '.join(_WORDS)}, or as it is on record: {', '.join(_STANDING)}"
    raise Unusable(f"--state {word!r}: no run can stand like that; runs are {known}")


def print_runs(runs: Sequence[RunInfo]) -> None:
    from rich.table import Table
    from rich.text import Text

    if not runs:
        tell("no runs")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", "workflow", "state", "saved", "supersteps", "used", "waits for"):
        table.add_column(
            name, overflow="fold", no_wrap=name == "run", justify="right" if name == "supersteps" else "left"
        )
    for run in runs:
        state = standing(run)
        table.add_row(
            Text(one_line(run.run_id)),
            Text(one_line(run.workflow_name, 30)),
            Text(one_line(state), style=_COLOURS.get(state, "")),
            Text(age(run.updated_at)),
            str(run.supersteps),
            Text(total(run.usage)),
            Text(one_line(", ".join(_waits_for(run)), 60)),
        )
    consoles.out().print(table)


def _waits_for(run: RunInfo) -> list[str]:
    words = {"plan": "plan review", "tool": "tool approval", "doubt": "call in doubt"}
    return [words.get(question.kind, question.response_type) for question in questions_of_run(run)]


def age(moment: str) -> str:
    """How long ago, roughly."""
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
    except (ValueError, TypeError):
        return one_line(moment, 30)
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return f"{max(int(seconds), 0)} s ago"


def run_json(run: RunInfo) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "workflow": run.workflow_name,
        "state": run.state,
        "standing": standing(run),
        "updated_at": run.updated_at,
        "supersteps": run.supersteps,
        "usage": run.usage,
        "latest_checkpoint_id": run.latest_checkpoint_id,
        "parent_run_id": run.parent_run_id,
        "parent_checkpoint_id": run.parent_checkpoint_id,
        "stopped_by": run.stopped_by,
        "held_by": at_work_on(run),
        "undelivered_answers": run.undelivered_answers,
        "waiting": [question_json(question) for question in questions_of_run(run)],
    }
