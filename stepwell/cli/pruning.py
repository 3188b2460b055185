"""`prune`: remove runs, or all but their newest checkpoints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.checkpointing.registry import TypeRegistry
from stepwell.cli import exits, options
from stepwell.cli.failures import reported
from stepwell.cli.holders import at_work_on
from stepwell.cli.plurals import number_of
from stepwell.cli.remedies import Advice, Unusable
from stepwell.cli.safe_text import safe
from stepwell.cli.sessions import session
from stepwell.errors import CheckpointDamaged, RunBusy

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

    with reported(show_traceback=traceback, advice=Advice(store=store)):
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
            print(safe(f"{verb} {number_of(count, 'checkpoint')} of run {run_id}"))
        for run_id, why in self.stayed.items():
            print(safe(f"run {run_id} stays: {why}"))
        if not self.runs and not self.checkpoints:
            print("nothing to remove")


async def pruned(storage: RecordingStorage, wanted: Wanted, *, keep: int | None, dry_run: bool) -> Removed:
    """Remove what is wanted gone; a run that somebody holds stays.

    The list is old by the time its last run is reached, so each run is taken and read once more right before it is
    removed. What remains is the instant between letting go of it and removing it: the storages have no removal on
    condition. Whoever takes the run in that instant keeps it, and only a whole turn within it would be lost.
    """
    removed = Removed([], {}, {})
    for run in await storage.list_runs(workflow_name=wanted.workflow):
        if run.state == "DAMAGED" and not wanted.finished:
            # It may well wait for a person: what it is can't be told, so it is not for this command to remove it.
            removed.stayed[run.run_id] = f"it is damaged: {run.stopped_by}"
            continue
        if not wanted.includes(run):
            continue
        if holder := at_work_on(run):
            removed.stayed[run.run_id] = f"{holder} is working on it"
        elif keep is not None:
            await _thin(storage, run.run_id, keep, removed, dry_run=dry_run)
        elif run.pending_requests or run.undelivered_answers:
            removed.stayed[run.run_id] = "it waits for a person, or has an answer to deliver"
        else:
            await _remove(storage, run, removed, dry_run=dry_run)
    return removed


async def _thin(storage: RecordingStorage, run_id: str, keep: int, removed: Removed, *, dry_run: bool) -> None:
    surplus = (await storage.list_checkpoint_ids(run_id=run_id))[:-keep]
    for checkpoint_id in surplus if not dry_run else ():
        await storage.delete(checkpoint_id)
    if surplus:
        removed.checkpoints[run_id] = len(surplus)


async def _remove(storage: RecordingStorage, run: RunInfo, removed: Removed, *, dry_run: bool) -> None:
    if dry_run:
        removed.runs.append(run.run_id)
        return
    try:
        if reason := await _has_changed(storage, run):
            removed.stayed[run.run_id] = reason
        elif await storage.delete_run(run.run_id):
            removed.runs.append(run.run_id)
    except RunBusy as busy:
        removed.stayed[run.run_id] = f"{busy.holder} is working on it"
    except CheckpointDamaged as damaged:
        removed.stayed[run.run_id] = f"it can't be read ({damaged.problem}), so nobody can tell how it stands"


async def _has_changed(storage: RecordingStorage, seen: RunInfo) -> str | None:
    """Why a run must stay after all, read while it is held so that nobody goes on with it; None if nothing is new."""
    log = await storage.open_run(seen.run_id, workflow_name=seen.workflow_name, registry=TypeRegistry(), create=False)
    if log is None:
        return None  # somebody else removed it; there is nothing to remove
    try:
        now = log.info
    finally:
        await log.release()
    if now is None or now.pending_requests or now.undelivered_answers:
        return "it waits for a person by now"
    return None if (now.state, now.updated_at) == (seen.state, seen.updated_at) else "it has gone on meanwhile"


def _cutoff(age: str | None) -> datetime | None:
    if age is None:
        return None
    match = re.fullmatch(r"(\d{1,6}) ?(s|min|h|d|w)", age.strip())
    if match is None:
        raise Unusable(f"--older-than {age!r}: write an age such as 90min, 12h, 30d or 8w")
    try:
        return datetime.now(UTC) - timedelta(**{_UNITS[match[2]]: int(match[1])})
    except OverflowError as error:
        raise Unusable(f"--older-than {age!r} is before the first of all years; no run is that old") from error
