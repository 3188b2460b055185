"""How a group of writes reaches the disk: under the locks of the families involved, with as few waits as possible."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

from stepwell.checkpointing.storage.file_disk import Layout, failure, lock_file, unlock
from stepwell.checkpointing.storage.file_index import Entry, Index, IndexWrong
from stepwell.checkpointing.storage.file_keeping import Keeping
from stepwell.checkpointing.storage.file_operations import unlink
from stepwell.checkpointing.storage.file_plan import Plan, Syncing
from stepwell.checkpointing.storage.file_reading import Reader
from stepwell.checkpointing.storage.file_runs import Moved, Runs
from stepwell.checkpointing.storage.file_scribe import Entrusted, Scribe, tell
from stepwell.checkpointing.storage.file_seats import Seats
from stepwell.checkpointing.storage.file_sweep import sweep
from stepwell.checkpointing.storage.file_work import FirstRemove, Work
from stepwell.checkpointing.storage.forking import fork_guard
from stepwell.checkpointing.storage.sqlite_jobs import (
    Connect,
    DeleteCheckpoint,
    DeleteRun,
    Job,
    Leave,
    OpenRun,
    in_waves,
)
from stepwell.errors import CheckpointDamaged, StorageError, WorkflowCheckpointException

logger = logging.getLogger(__name__)

_LARGEST_CHUNK = 64
"""So many runs' files are open at once."""


@dataclass(frozen=True, slots=True)
class Reindex:
    """Make the index anew."""

    run_id: None = None


class FileCommit:
    """The `Medium` of file storages, used by the writer thread only."""

    def __init__(self, layout: Layout, reader: Reader) -> None:
        self._layout = layout
        self._reader = reader
        self._index = Index(layout.index)
        self._seats = Seats(layout)
        self._runs = Runs(layout, self._index)
        self._work = Work(layout, self._runs, self._seats)
        self._keeping = Keeping(layout, self._runs, self._index, self._seats)
        self._syncing = Syncing()
        self._scribe = Scribe(layout, self._runs, self._seats, self._work, self._locked)
        self._guard = fork_guard()
        self._alone: dict[type, Callable[[Any], Any]] = {
            Connect: lambda job: None,
            Leave: lambda job: None,
            Reindex: lambda job: self._reindexed(),
            DeleteRun: self._delete_run,
            DeleteCheckpoint: self._delete_checkpoint,
        }

    def woken_by(self, wake: Callable[[], None]) -> None:
        """How to have the writer thread come round although nobody has anything to write."""
        self._scribe.wake = wake

    def commit(self, jobs: Sequence[Any]) -> Sequence[Any]:
        """Calls are written at once and told of when they are durable; all else is done when this returns."""
        with self._guard:
            rest = self._scribe.take(jobs)
            outcomes = dict(zip(map(id, rest), self._told(rest), strict=True)) if rest else {}
            return [outcomes.get(id(job)) for job in jobs]

    def _told(self, jobs: Sequence[Any]) -> Sequence[Any]:
        """The outcomes of these, and calls among them are told theirs."""
        calls = [job for job in jobs if type(job) is Entrusted]
        try:
            self._scribe.make_way(jobs)
            outcomes = self._committed([job.job if type(job) is Entrusted else job for job in jobs])
            self._scribe.look_round(jobs)
        except BaseException as error:
            tell(calls, error)
            raise
        for job, outcome in zip(jobs, outcomes, strict=True):
            if type(job) is Entrusted:
                tell([job], outcome)
        return outcomes

    def _committed(self, jobs: Sequence[Any]) -> Sequence[Any]:
        if all(type(job) is Leave for job in jobs):
            self._let_go(jobs)
            return [None] * len(jobs)
        try:
            self._connected(jobs)
            return [outcome for wave in in_waves(jobs) for outcome in self._wave(wave)]
        except OSError as error:
            return [failure(error, self._layout.root) for _ in jobs]
        except WorkflowCheckpointException as error:
            return [copy(error) for _ in jobs]
        finally:
            self._let_go(jobs)

    def _connected(self, jobs: Sequence[Any]) -> None:
        self._keeping.connect()
        if any(type(job) is not Connect for job in jobs):
            self._keeping.tidy()
            for job in jobs:
                if type(job) is OpenRun and job.seat.holder is None:
                    self._seats.take(job.seat)
            self._seats.renew()

    # --- together ----------------------------------------------------------------------------------------------------

    def _wave(self, jobs: Sequence[Job]) -> list[Any]:
        if len(jobs) == 1 and type(jobs[0]) in self._alone:
            return [self._outcome(lambda: self._alone[type(jobs[0])](jobs[0]))]
        chunks = (jobs[start : start + _LARGEST_CHUNK] for start in range(0, len(jobs), _LARGEST_CHUNK))
        return [outcome for chunk in chunks for outcome in self._chunk(chunk)]

    def _chunk(self, jobs: Sequence[Job]) -> list[Any]:
        plans: list[Plan] = []
        try:
            with self._locked([origin for job in jobs if (origin := self._origin(job)) is not None]):
                plans = [self._planned(job) for job in jobs]
                self._carry_out(plans)
        except OSError as error:
            return [failure(error, self._layout.root) for _ in jobs]
        except WorkflowCheckpointException as error:
            return [copy(error) for _ in jobs]
        finally:
            for plan in plans:
                plan.close()
            self._runs.tidy()
        return [self._again(job, plan.outcome) for job, plan in zip(jobs, plans, strict=True)]

    def _planned(self, job: Job) -> Plan:
        try:
            return self._work.plan(job)
        except Exception as error:  # a refusal is this job's outcome and nobody else's
            return Plan(error, failed=True)

    def _carry_out(self, plans: Sequence[Plan]) -> None:
        self._each(plans, Plan.begin)
        self._syncing.plans([plan for plan in plans if not plan.failed])
        self._each(plans, Plan.publish)
        self._settle_folders(plans)
        self._tell_index(plans)
        for plan in plans:
            if not plan.failed:
                self._remember(plan)
        while self._runs.to_sweep:
            self._swept(self._runs.to_sweep.pop())

    def _each(self, plans: Sequence[Plan], step: Callable[[Plan], None]) -> None:
        for plan in plans:
            if not plan.failed:
                try:
                    step(plan)
                except OSError as error:
                    plan.fail(error)

    def _settle_folders(self, plans: Sequence[Plan]) -> None:
        failed = self._syncing.folders({folder for plan in plans if not plan.failed for folder in plan.folders})
        for plan in plans:
            error = next((failed[folder] for folder in plan.folders if folder in failed), None)
            if error is not None and not plan.failed:
                self._in_doubt(plan, error)

    def _tell_index(self, plans: Sequence[Plan]) -> None:
        """After everything else is durable, and before anybody hears of it."""
        told = [plan for plan in plans if plan.entry is not None and not plan.failed]
        entries = [*self._runs.untold, *(plan.entry for plan in told if plan.entry is not None)]
        if not entries:
            return
        try:
            self._append(entries)
        except OSError as error:
            for plan in told:
                self._in_doubt(plan, error)
        else:
            self._runs.untold.clear()

    def _append(self, entries: list[Entry]) -> None:
        try:
            self._index.append(entries)
            if self._index.is_long:
                unlink(self._layout.index)
        except (OSError, IndexWrong) as error:
            # Without an index, the next one to need it makes it anew from the records, which have it all.
            logger.warning("%s could not be added to, it will be made anew: %s", self._layout.index, error)
            unlink(self._layout.index)

    def _in_doubt(self, plan: Plan, error: OSError) -> None:
        """It may have happened: say that it failed, and find out when somebody looks."""
        plan.failed, plan.outcome = True, error
        for clean in plan.on_failure:
            clean()

    def _remember(self, plan: Plan) -> None:
        for effect in plan.effects:
            try:
                effect()
            except OSError as error:  # it is saved; what is left to do is tidying up
                logger.warning("%s could not be tidied up: %s", self._layout.root, error)

    def _swept(self, run_id: str) -> None:
        """The save is durable whatever comes of this: what could not be swept stays, and is swept another time."""
        try:
            record = self._runs.get(run_id)
            if record is not None:
                sweep(self._layout, record)
        except (OSError, WorkflowCheckpointException) as error:
            logger.warning("run %r could not be swept: %s", run_id, error)

    def _again(self, job: Job, outcome: Any) -> Any:
        """The outcome, unless the job met somebody who has to go first or who was faster."""
        if isinstance(outcome, FirstRemove):
            removed = self._outcome(lambda: self._delete_checkpoint(outcome.job))
            return removed if isinstance(removed, Exception) else self._chunk([job])[0]
        if isinstance(outcome, Moved):
            return self._chunk([job])[0]
        if isinstance(outcome, OSError):
            if type(job) is OpenRun and outcome.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return self._chunk([job])[0]
            return failure(outcome, self._layout.root)
        return outcome

    # --- alone -------------------------------------------------------------------------------------------------------

    def _outcome(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except OSError as error:
            return failure(error, self._layout.root)
        except Exception as error:  # a refusal is this job's outcome
            return error
        finally:
            self._runs.tidy()

    def _delete_run(self, job: DeleteRun) -> bool:
        try:
            origin = self._runs.origin(job.run_id)
            if origin is None:
                return False
            with self._locked([origin]):
                return self._keeping.delete_run(job.run_id)
        except CheckpointDamaged:
            with ExitStack() as stack:
                self._lock(stack, self._layout.lock.name, fcntl.LOCK_EX)
                if not self._keeping.delete_unreadable(job.run_id):
                    raise
            return True

    def _delete_checkpoint(self, job: DeleteCheckpoint) -> bool:
        record = self._keeping.owner(job.checkpoint_id)
        if record is None:
            return False
        with self._locked([record.birth.origin]):
            return self._keeping.delete_checkpoint(record.run_id, job.checkpoint_id)

    # --- locks -------------------------------------------------------------------------------------------------------

    def _origin(self, job: Job) -> str | None:
        run_id = job.run_id
        origin = self._runs.origin(run_id) if run_id is not None else None
        if origin is None and type(job) is OpenRun and job.request.branch_of is not None:
            parent = self._runs.keeping(job.request.branch_of.checkpoint_id)
            return parent.birth.origin if parent is not None else None
        return origin

    @contextmanager
    def _locked(self, origins: Sequence[str]) -> Iterator[None]:
        """Have the store to share, and these families to ourselves."""
        with ExitStack() as stack:
            self._lock(stack, self._layout.lock.name, fcntl.LOCK_SH)
            self._refresh_index(stack)
            for origin in sorted(set(origins)):  # in one order everywhere, so that nobody waits in a circle
                self._lock(stack, os.path.join("families", origin), fcntl.LOCK_EX)  # noqa: PTH118
            self._runs.locked = set(origins)
            stack.callback(setattr, self._runs, "locked", None)
            yield

    def _lock(self, stack: ExitStack, name: str, how: int) -> None:
        path = self._layout.inner / name
        descriptor = lock_file(path, how)
        if descriptor is None:
            raise StorageError(str(path), "another process keeps it locked")
        stack.callback(unlock, descriptor)

    def _refresh_index(self, stack: ExitStack) -> None:
        try:
            self._index.refresh()
        except IndexWrong:
            stack.close()  # the store is shared, and for this it must not be
            self._reindexed()
            self._lock(stack, self._layout.lock.name, fcntl.LOCK_SH)
            self._index.refresh()

    def _reindexed(self) -> None:
        with ExitStack() as stack:
            self._lock(stack, self._layout.lock.name, fcntl.LOCK_EX)
            try:
                self._index.refresh()  # somebody else may have been faster
            except IndexWrong:
                self._keeping.reindex()
                self._index.refresh()

    # --- living ------------------------------------------------------------------------------------------------------

    def pause(self) -> float | None:
        return self._seats.pause()

    def tick(self) -> None:
        with self._guard:
            try:
                self._seats.renew()
            except OSError as error:
                logger.warning("the leases in %s could not be renewed: %s", self._layout.root, error)

    def close(self) -> None:
        with self._guard:
            self._scribe.close()
            self._seats.leave_all()
            self._reader.close()
            self._syncing.close()

    def _let_go(self, jobs: Sequence[Any]) -> None:
        """One who leaves must not look alive."""
        for job in jobs:
            if type(job) is Leave:
                self._seats.leave(job.seat)
