"""`prune`: remove runs, or all but their newest checkpoints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli import exits, options
from stepwell.cli.failures import Unusable, reported
from stepwell.cli.holders import at_work_on
from stepwell.cli.safe_text import safe
from stepwell.cli.sessions import session
from stepwell.errors import RunBusy

if TYPE_CHECKING:
    from stepwell.checkpointing.storage.protocol import RunInfo
    from stepwell.checkpointing.storage.recording import RecordingStorage

_UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def prune(
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, help="Keep the runs, and this many checkpoints of each.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Only runs last saved so long ago: 30d, 12h, 90min."),
    ] = None,
    finished: Annotated[bool, typer.Option("--finished", help="Only runs that are done.")] = False,
    workflow: Annotated[
        str | None, typer.Option("--workflow", help="Only runs of the workflow with this name.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    store: options.Store = None,
    as_json: options.Json = False,
    traceback: options.Traceback = False,
) -> None:
    """Remove old runs, or with --keep only their old checkpoints. Runs at work or waiting for a person stay.

    \b
    Examples:
      stepwell prune --finished --older-than 30d --dry-run
      stepwell prune --keep 5
    """
    from stepwell.cli.results import print_json

    with reported(show_traceback=traceback):
        if keep is None and older_than is None and not finished:
            raise Unusable(
                "say what may go: --finished, --older-than AGE, or --keep N; --dry-run shows what that means"
            )
        wanted = Wanted(_cutoff(older_than), finished=finished, workflow=workflow)
        with session(store) as here:
            removed = here.run(pruned(here.storage, wanted, keep=keep, dry_run=dry_run))
    if as_json:
        print_json({"dry_run": dry_run, **removed.as_json()})
    else:
        removed.tell(dry_run=dry_run)
    raise typer.Exit(exits.DONE)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs are meant."""

    before: datetime | None
    finished: bool
    workflow: str | None

    def includes(self, run: RunInfo) -> bool:
        if self.finished and run.state != "IDLE":
            return False
        return self.before is None or datetime.fromisoformat(run.updated_at) < self.before


@dataclass(slots=True)
class Removed:
    """What went, and what stayed although it was meant."""

    runs: list[str]
    checkpoints: dict[str, int]
    stayed: dict[str, str]

    def as_json(self) -> dict[str, object]:
        return {"runs": self.runs, "checkpoints": self.checkpoints, "stayed": self.stayed}

    def tell(self, *, dry_run: bool) -> None:
        verb = "would remove" if dry_run else "removed"
        for run_id in self.runs:
            print(safe(f"{verb} run {run_id}"))
        for run_id, count in self.checkpoints.items():
            print(safe(f"{verb} {count} checkpoints of run {run_id}"))
        for run_id, why in self.stayed.items():
            print(safe(f"run {run_id} stays: {why}"))
        if not self.runs and not self.checkpoints:
            print("nothing to remove")


async def pruned(storage: RecordingStorage, wanted: Wanted, *, keep: int | None, dry_run: bool) -> Removed:
    """Remove what is wanted gone; a run that somebody holds stays."""
    removed = Removed([], {}, {})
    for run in await storage.list_runs(workflow_name=wanted.workflow):
        if not wanted.includes(run):
            continue
        if holder := at_work_on(run):
            removed.stayed[run.run_id] = f"{holder} is working on it"
        elif keep is not None:
            await _thin(storage, run.run_id, keep, removed, dry_run=dry_run)
        elif run.pending_requests or run.undelivered_answers:
            removed.stayed[run.run_id] = "it waits for a person, or has an answer to deliver"
        else:
            await _remove(storage, run.run_id, removed, dry_run=dry_run)
    return removed


async def _thin(storage: RecordingStorage, run_id: str, keep: int, removed: Removed, *, dry_run: bool) -> None:
    surplus = (await storage.list_checkpoint_ids(run_id=run_id))[:-keep]
    for checkpoint_id in surplus if not dry_run else ():
        await storage.delete(checkpoint_id)
    if surplus:
        removed.checkpoints[run_id] = len(surplus)


async def _remove(storage: RecordingStorage, run_id: str, removed: Removed, *, dry_run: bool) -> None:
    try:
        if dry_run or await storage.delete_run(run_id):
            removed.runs.append(run_id)
    except RunBusy as busy:
        removed.stayed[run_id] = str(busy)


def _cutoff(age: str | None) -> datetime | None:
    if age is None:
        return None
    match = re.fullmatch(r"(\d{1,6}) ?(s|min|h|d|w)", age.strip())
    if match is None:
        raise Unusable(f"--older-than {age!r}: write an age such as 90min, 12h, 30d or 8w")
    return datetime.now(UTC) - timedelta(**{_UNITS[match[2]]: int(match[1])})
