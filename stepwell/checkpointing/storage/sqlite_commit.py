"""How a group of writes becomes one transaction.

Jobs of one kind and of different runs are done together; jobs of one run keep their order. Each fence is checked by the
statement that does the work: if it changes fewer rows than it should, everything is undone and the group is done again
job by job, so that the one that may not write gets its error and the others go through.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from stepwell.checkpointing.storage.forking import fork_guard
from stepwell.checkpointing.storage.sqlite_jobs import Job, Leave, in_waves
from stepwell.checkpointing.storage.sqlite_log import make_room
from stepwell.checkpointing.storage.sqlite_reading import SnapshotPool
from stepwell.checkpointing.storage.sqlite_schema import MEDIUM_ERRORS, connect_writer, failure, file_at, is_busy
from stepwell.checkpointing.storage.sqlite_seats import Seats
from stepwell.checkpointing.storage.sqlite_work import Transaction, Work
from stepwell.errors import WorkflowCheckpointException

logger = logging.getLogger(__name__)


class GroupCommit:
    """The `Medium` of SQLite storages: one connection, used by the writer thread only."""

    def __init__(self, path: Path, snapshots: SnapshotPool) -> None:
        self._path = path
        self._name = str(path)
        self._snapshots = snapshots
        self._seats = Seats(path)
        self._work = Work(self._seats)
        self._guard = fork_guard()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._commits = 0

    def commit(self, jobs: Sequence[Job]) -> Sequence[Any]:
        kinds = set(map(type, jobs))
        if kinds == {Leave} and all(job.seat.holder_id is None for job in jobs if type(job) is Leave):
            return [None] * len(jobs)  # they were never there
        with self._guard:
            try:
                return self._committed(jobs)
            except MEDIUM_ERRORS as error:
                self._recover(error)
                return [failure(error, self._path) for _ in jobs]
            except WorkflowCheckpointException as error:  # this is no database of ours
                return [copy(error) for _ in jobs]
            finally:
                if Leave in kinds:
                    self._let_go(jobs)

    def _committed(self, jobs: Sequence[Job]) -> list[Any]:
        connection = self._connected()
        try:
            return self._transaction(connection, lambda transaction: self._in_waves(transaction, jobs))
        except Exception as error:
            if _is_the_mediums(error):
                raise
            if len(jobs) == 1:
                return [self._refusal(error)]
        return self._transaction(connection, lambda transaction: self._one_by_one(transaction, jobs))

    def _transaction(self, connection: sqlite3.Connection, work: Callable[[Transaction], list[Any]]) -> list[Any]:
        connection.execute("BEGIN IMMEDIATE")
        transaction = Transaction(connection)
        try:
            self._commits += 1
            make_room(connection, self._commits)
            outcomes = work(transaction)
            self._seats.renew(connection)
            connection.execute("COMMIT")
        except BaseException:
            self._undo(transaction)
            raise
        for effect in transaction.effects:
            effect()
        return outcomes

    def _undo(self, transaction: Transaction) -> None:
        self._work.forget()
        try:
            transaction.undo()
        finally:
            if transaction.connection.in_transaction:
                transaction.execute("ROLLBACK")

    def _in_waves(self, transaction: Transaction, jobs: Sequence[Job]) -> list[Any]:
        if len(jobs) == 1:
            return self._work.do(transaction, type(jobs[0]), jobs)
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
        mark = transaction.mark
        transaction.execute("SAVEPOINT job")
        try:
            (outcome,) = self._work.do(transaction, type(job), [job])
        except Exception as error:
            if _is_the_mediums(error):
                raise
            transaction.undo(mark)
            self._work.forget()
            transaction.execute("ROLLBACK TO job")
            outcome = self._refusal(error)
        transaction.execute("RELEASE job")
        return outcome

    def _refusal(self, error: Exception) -> Exception:
        return failure(error, self._path) if isinstance(error, sqlite3.Error) else error

    # --- the connection ----------------------------------------------------------------------------------------------

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect_writer(self._path)
            self._commits = 0
            self._file = file_at(self._name)
        elif file_at(self._name) != self._file:
            # Nobody would ever find what is written to a file without a name. Another file has other holders and runs.
            self._seats.leave_all()
            raise OSError("the database was removed or replaced while it was in use")
        return self._connection

    def _recover(self, error: Exception) -> None:
        """Start over with a fresh connection, unless all that happened is that somebody else was writing."""
        if self._connection is not None and not is_busy(error):
            connection, self._connection = self._connection, None
            connection.close()

    def close(self) -> None:
        with self._guard:
            self._seats.leave_all()
            self._snapshots.close()
            if self._connection is not None:
                connection, self._connection = self._connection, None
                connection.close()

    # --- seats and leases --------------------------------------------------------------------------------------------

    def pause(self) -> float | None:
        return self._seats.pause()

    def tick(self) -> None:
        """Say that the holders of this process live although none of them has anything to write."""
        with self._guard:
            try:
                self._transaction(self._connected(), lambda transaction: [])
            except (*MEDIUM_ERRORS, WorkflowCheckpointException) as error:
                self._recover(error)
                self._seats.postpone()
                logger.warning("the leases in %s could not be renewed, trying again: %s", self._path, error)

    def _let_go(self, jobs: Sequence[Job]) -> None:
        """Whether or not its row could be removed, one who leaves must not look alive."""
        for job in jobs:
            if type(job) is Leave:
                self._seats.leave(job.seat)


def _is_the_mediums(error: Exception) -> bool:
    """Is the database at fault, and not a job? Then everybody in the group fails."""
    # A plain DatabaseError is a malformed file; its other subclasses complain about one job's values.
    at_fault = (sqlite3.OperationalError, sqlite3.InternalError, OSError, UnicodeDecodeError)
    return isinstance(error, at_fault) or type(error) is sqlite3.DatabaseError
