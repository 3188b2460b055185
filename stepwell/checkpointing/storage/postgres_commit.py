"""How a group of writes becomes one transaction, and what happens when the connection is lost on the way.

Jobs of one kind and of different runs are done together; jobs of one run keep their order. The statements are sent as
a pipeline with the commit at its end, so that a group takes one round trip, however large it is. Each fence is checked
by a statement of the same transaction: if one fails, nothing takes place and the group is done again job by job, so
that the one that may not write gets its error and the others go through. Groups of nothing but calls to be recorded,
or of nothing but checkpoints, which is what most groups are, are a single statement. Most calls come here already sent
(see `postgres_ahead.py`); only their answers have to be waited for.

A lost connection is replaced and the group done again, for as long as patience lasts. If it was lost while the commit
was under way, nobody can tell from here whether it took place. Each transaction leaves its number in the holder's row,
so the new connection looks there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg

from stepwell.checkpointing.lease import Holder
from stepwell.checkpointing.storage import postgres_schema
from stepwell.checkpointing.storage.forking import fork_guard
from stepwell.checkpointing.storage.postgres_ahead import Ahead, SendingAhead
from stepwell.checkpointing.storage.postgres_bulk import ANNOUNCE_HOLDER, MARK_HOLDER
from stepwell.checkpointing.storage.postgres_connection import (
    END_PREDECESSOR,
    MEDIUM_ERRORS,
    Connection,
    Target,
    connect,
    failure,
    is_the_databases,
    may_pass,
)
from stepwell.checkpointing.storage.postgres_jobs import (
    Connect,
    Debt,
    Disown,
    Job,
    Leave,
    OpenRun,
    RecordCall,
    ReleaseRun,
    SaveCheckpoint,
    in_waves,
)
from stepwell.checkpointing.storage.postgres_lane import MOST_UNDER_WAY
from stepwell.checkpointing.storage.postgres_liveness import Liveness
from stepwell.checkpointing.storage.postgres_readers import Readers
from stepwell.checkpointing.storage.postgres_transaction import Contested, Transaction
from stepwell.checkpointing.storage.postgres_work import Work, is_plain
from stepwell.errors import StorageError, WorkflowCheckpointException

logger = logging.getLogger(__name__)

J = TypeVar("J", bound=Job)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_DEBT_SECONDS = 1.0
_FEW = 16


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A commit that may or may not have taken place."""

    number: int
    outcomes: list[Any]
    effects: Sequence[Callable[[], object]]


class GroupCommit:
    """The `Medium` of a Postgres storage: one connection, used by the writer thread only."""

    def __init__(
        self, target: Target, holder: Holder, readers: Readers, *, lease_seconds: float, retry_seconds: float
    ) -> None:
        self._target = target
        self._holder = str(holder)
        self._name = f"stepwell write {holder.instance}"
        self._readers = readers
        self._lease_seconds = lease_seconds
        self._retry_seconds = retry_seconds
        self._work = Work(target, holder)
        self._liveness = Liveness(target, holder)
        self._guard = fork_guard()
        self._connection: Connection | None = None
        self._was_connected = False
        self._is_announced = False
        self._number = 0
        self._commits = 0
        self._doubt: _Doubt | None = None
        self._failing_since: float | None = None
        self._heard_of = 0.0
        self._owed: list[Debt] = []
        """Runs that were given back, or opened in vain, while the database could not be reached."""

    @property
    def ahead(self) -> SendingAhead:
        return self._liveness.ahead

    # --- groups ------------------------------------------------------------------------------------------------------

    def commit(self, jobs: Sequence[Job]) -> Sequence[Any]:
        self.ahead.is_crowded = len(jobs) > MOST_UNDER_WAY
        landed = {id(job): ahead for job in jobs if (ahead := self._landed(job)) is not None}
        left = [job for job in jobs if id(job) not in landed]
        before = self._commits
        outcomes = dict(zip(map(id, left), self._usual(left), strict=True))
        if self._commits > before:
            # All that the server had committed by then is on disk, unless it crashed and has forgotten it.
            outcomes |= {key: None for key, ahead in landed.items() if ahead.writing is self._connection}
        if in_doubt := [job for job in jobs if id(job) not in outcomes]:
            outcomes |= zip(map(id, in_doubt), self._usual(in_doubt), strict=True)
        return [outcomes[id(job)] for job in jobs]

    def _landed(self, job: Job) -> Ahead | None:
        if type(job) is not RecordCall or job.ahead is None:
            return None
        with self._guard:
            return job.ahead if job.ahead.landed() else None

    def _usual(self, jobs: Sequence[Job]) -> Sequence[Any]:
        if not self._was_connected and all(type(job) is Leave for job in jobs):
            return [None] * len(jobs)  # it was never there
        with self._guard:
            try:
                outcomes = self._persistently(jobs)
                # Refused for a job's own sake, such as a right that was taken away: it is owed all the same.
                self._remember_debts(_failed(jobs, outcomes))
                return outcomes
            except MEDIUM_ERRORS as error:
                self._disconnect()
                self._remember_debts(jobs)
                return [failure(error, self._target) for _ in jobs]
            except WorkflowCheckpointException as error:  # these are no tables of ours
                return [copy(error) for _ in jobs]

    def _persistently(self, jobs: Sequence[Job]) -> list[Any]:
        self._doubt = None
        pause = _FIRST_PAUSE
        while True:
            try:
                outcomes = self._attempt(jobs)
            except MEDIUM_ERRORS as error:
                self._disconnect()
                if not may_pass(error) or self._patience_is_over() or all(type(job) is Leave for job in jobs):
                    raise
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                self._failing_since = None
                return outcomes

    def _patience_is_over(self) -> bool:
        """Patience is for one outage, not for each write that meets it."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        return now - self._failing_since >= self._retry_seconds

    def _attempt(self, jobs: Sequence[Job]) -> list[Any]:
        connection = self._connected()
        if jobs and all(type(job) is Connect for job in jobs):
            return [None] * len(jobs)
        self._announced(connection)
        if self._doubt is not None and self._was_committed(connection, self._doubt):
            return self._done(self._doubt)
        owed = list(self._owed)
        outcomes = self._committed(connection, [*owed, *jobs])
        self._owed[: len(owed)] = _failed(owed, outcomes)
        return outcomes[len(owed) :]

    def _committed(self, connection: Connection, jobs: Sequence[Job]) -> list[Any]:
        try:
            if not jobs:
                return self._at_once(connection, self._work.mark_alone, jobs, [])
            if calls := _only_calls(jobs):
                return self._at_once(connection, self._work.record_alone, calls, [])
            if saves := _only_plain_saves(jobs):
                return self._at_once(connection, self._work.save_alone, saves, self._work.after_saving(saves))
            return self._transaction(connection, lambda transaction: self._in_waves(transaction, jobs), pipelined=True)
        except Exception as error:
            if is_the_databases(error):
                raise
            if len(jobs) == 1 and not isinstance(error, Contested):
                return [self._refusal(error)]
        return self._transaction(connection, lambda transaction: self._one_by_one(transaction, jobs), pipelined=False)

    def _in_waves(self, transaction: Transaction, jobs: Sequence[Job]) -> list[Any]:
        return [outcome for wave in in_waves(jobs) for outcome in self._wave(transaction, wave)]

    def _wave(self, transaction: Transaction, jobs: Sequence[Job]) -> list[Any]:
        outcomes: dict[int, Any] = {}
        for kind in dict.fromkeys(map(type, jobs)):
            mine = [job for job in jobs if type(job) is kind]
            outcomes.update(zip(map(id, mine), self._work.do(transaction, kind, mine), strict=True))
        return [outcomes[id(job)] for job in jobs]

    def _one_by_one(self, transaction: Transaction, jobs: Sequence[Job]) -> list[Any]:
        return [self._on_its_own(transaction, job) for job in jobs]

    def _on_its_own(self, transaction: Transaction, job: Job) -> Any:
        before = transaction.remembered()
        transaction.execute("SAVEPOINT job")
        try:
            (outcome,) = self._work.do(transaction, type(job), [job])
        except Exception as error:
            if is_the_databases(error):
                raise
            transaction.recall(before)
            transaction.execute("ROLLBACK TO SAVEPOINT job")
            outcome = self._refusal(error)
        transaction.execute("RELEASE SAVEPOINT job")
        return outcome

    def _refusal(self, error: Exception) -> Exception:
        return failure(error, self._target) if isinstance(error, psycopg.Error) else error

    # --- one transaction ---------------------------------------------------------------------------------------------

    def _transaction(
        self, connection: Connection, work: Callable[[Transaction], list[Any]], *, pipelined: bool
    ) -> list[Any]:
        self._number += 1
        lock = self._liveness.lock()
        try:
            with connection.pipeline() if pipelined else nullcontext() as pipeline:
                transaction = Transaction(connection, pipeline)
                transaction.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
                transaction.execute(MARK_HOLDER, (self._holder, lock, self._lease_seconds, self._number))
                outcomes = work(transaction)
                self._doubt = _Doubt(self._number, outcomes, transaction.effects)
                committing = transaction.execute("COMMIT")
            if committing.statusmessage != "COMMIT":
                raise psycopg.InternalError(f"the server answered COMMIT with {committing.statusmessage}")
        except BaseException:
            self._undo(connection)
            raise
        return self._done(self._doubt)

    def _at_once(
        self,
        connection: Connection,
        work: Callable[[Connection, Sequence[Any], Sequence[J]], None],
        jobs: Sequence[J],
        effects: Sequence[Callable[[], object]],
    ) -> list[Any]:
        """A single statement, which is a transaction by itself."""
        self._number += 1
        mark = (self._holder, self._liveness.lock(), self._lease_seconds, self._number)
        self._doubt = _Doubt(self._number, [None] * len(jobs), effects)
        try:
            work(connection, mark, jobs)
        except BaseException:
            self._undo(connection)
            raise
        return self._done(self._doubt)

    def _done(self, doubt: _Doubt) -> list[Any]:
        self._doubt = None
        self._heard_of = time.monotonic()
        self._commits += 1
        for effect in doubt.effects:
            effect()
        return doubt.outcomes

    def _undo(self, connection: Connection) -> None:
        try:
            if not connection.closed:
                self._doubt = None  # the server has answered
                # The number makes it a statement that psycopg has not seen: only then does it look at what came of it,
                # and forgets that it has prepared statements which the server passed over after the one that failed.
                connection.execute(f"ROLLBACK -- {self._number}")
        except MEDIUM_ERRORS:
            # The server undoes it by itself when it misses us; the error that counts is on its way already.
            self._disconnect()

    def _was_committed(self, connection: Connection, doubt: _Doubt) -> bool:
        row = connection.execute("SELECT commits FROM holders WHERE holder = %s", (self._holder,)).fetchone()
        return row is not None and int(row[0]) >= doubt.number

    # --- the connection ----------------------------------------------------------------------------------------------

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = connect(self._target, self._name, writing=True)
            try:
                postgres_schema.prepare(connection, self._target)
            except BaseException:
                connection.close()
                raise
            self._connection = self.ahead.writing = connection
            self._is_announced = False
        return self._connection

    def _announced(self, connection: Connection) -> None:
        """Be known to the database before anything depends on it.

        The server may still be busy with the connection that was lost: what that one wrote has to be decided before
        anybody looks, and what it has locked must not stay locked. Writing the holder's row waits for both.
        """
        if self._is_announced:
            return
        if self._was_connected:
            connection.execute(END_PREDECESSOR, (self._name,))
        self._was_connected = True
        connection.execute(ANNOUNCE_HOLDER, (self._holder, self._liveness.lock(), self._lease_seconds, 0))
        self._is_announced = True

    def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection, self.ahead.writing = self._connection, None, None
            with suppress(*MEDIUM_ERRORS):  # it is given up for lost
                connection.close()

    def close(self) -> None:
        with self._guard:
            self._liveness.close()
            self._readers.close()
            self._disconnect()

    # --- leases and debts --------------------------------------------------------------------------------------------

    def pause(self) -> float | None:
        if self._owed:
            return _DEBT_SECONDS
        if not self._work.held:
            return None
        return max(0.0, self._heard_of + self._lease_seconds / 3 - time.monotonic())

    def tick(self) -> None:
        """Say that this holder lives although it has nothing to write, and give back what is owed."""
        with self._guard:
            self._liveness.check()
            self._heard_of = time.monotonic()
            try:
                self._doubt = None
                self._attempt([])
            except (*MEDIUM_ERRORS, WorkflowCheckpointException) as error:
                self._disconnect()
                logger.warning("%s", failure(error, self._target))

    def _remember_debts(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if type(job) is ReleaseRun:
                self._work.held.pop(job.fence.run_key, None)
                self._owed.append(job)
            elif type(job) is OpenRun:
                self._owed.append(Disown(job.run_id))


def _failed(jobs: Sequence[J], outcomes: Sequence[Any]) -> list[J]:
    """The jobs that the database refused; `outcomes` may go on beyond them."""
    return [job for job, outcome in zip(jobs, outcomes, strict=False) if isinstance(outcome, StorageError)]


def _only_calls(jobs: Sequence[Job]) -> list[RecordCall]:
    """These jobs, if all they do is to record calls that replace no others."""
    calls = [job for job in jobs if type(job) is RecordCall and not job.supersedes]
    return calls if len(calls) == len(jobs) else []


def _only_plain_saves(jobs: Sequence[Job]) -> list[SaveCheckpoint]:
    """These jobs, if all they do is to save checkpoints of different runs.

    And if they are few: of many, the server does the first while the last are still being encoded.
    """
    if len(jobs) > _FEW:
        return []
    saves = [job for job in jobs if type(job) is SaveCheckpoint and is_plain(job)]
    return saves if len(saves) == len(jobs) == len({job.run_id for job in jobs}) else []
