"""How a group of writes becomes one transaction.

Jobs of one kind and of different runs are done together; jobs of one run keep their order. Each fence is checked by the
statement that does the work: if it changes fewer rows than it should, everything is undone and the group is done again
job by job, so that the one that may not write gets its error and the others go through.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.lease import Fence, Holder
from stepwell.checkpointing.storage import sqlite_bulk as bulk
from stepwell.checkpointing.storage import sqlite_reading as reading
from stepwell.checkpointing.storage.forking import fork_guard
from stepwell.checkpointing.storage.liveness import HolderLock, HolderLocks, Lease
from stepwell.checkpointing.storage.protocol import Decision
from stepwell.checkpointing.storage.recording import decision_text, now
from stepwell.checkpointing.storage.records import (
    NODES_PER_RUN,
    CheckpointWrite,
    OpenedRun,
    OpenRequest,
    RunRow,
    StaleMemory,
    call_digest,
    call_text,
)
from stepwell.checkpointing.storage.sqlite_reading import SnapshotPool, StoredRun, packed
from stepwell.checkpointing.storage.sqlite_schema import connect_writer, failure, is_busy
from stepwell.checkpointing.storage.sqlite_sweep import SPARED_NODES, sweep
from stepwell.errors import AlreadyAnswered, RunBusy, RunTakenOver, UnknownRequest, UnknownRun

logger = logging.getLogger(__name__)


# --- who writes -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class HeldRun:
    """What the writer remembers of a run while a seat holds it."""

    workflow: int
    sweep_at: int
    has_calls: bool


@dataclass(slots=True, eq=False)
class Seat:
    """One storage instance's place at the database; all but its lease belongs to the writer thread."""

    lease_seconds: float
    holder: Holder | None = None
    holder_id: int | None = None
    lock: HolderLock | None = None
    held: dict[int, HeldRun] = field(default_factory=dict)


# --- what is written --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connect:
    """Nothing but a database that is there."""

    run_id: None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """A storage instance is closed."""

    seat: Seat
    run_id: None = None


@dataclass(frozen=True, slots=True)
class OpenRun:
    seat: Seat
    request: OpenRequest

    @property
    def run_id(self) -> str:
        return self.request.run_id


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    seat: Seat
    write: CheckpointWrite

    @property
    def fence(self) -> Fence:
        return self.write.fence

    @property
    def run_id(self) -> str:
        return self.write.fence.run_id


@dataclass(frozen=True, slots=True)
class RecordCall:
    seat: Seat
    fence: Fence
    row: CallRecord
    supersedes: Sequence[str]

    @property
    def run_id(self) -> str:
        return self.fence.run_id


@dataclass(frozen=True, slots=True)
class DropCalls:
    seat: Seat
    fence: Fence
    call_ids: Sequence[str]

    @property
    def run_id(self) -> str:
        return self.fence.run_id


@dataclass(frozen=True, slots=True)
class ReleaseRun:
    seat: Seat
    fence: Fence
    state: str | None
    stopped_by: str | None

    @property
    def run_id(self) -> str:
        return self.fence.run_id


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    run_id: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class CancelRun:
    run_id: str


@dataclass(frozen=True, slots=True)
class DeleteRun:
    run_id: str


@dataclass(frozen=True, slots=True)
class DeleteCheckpoint:
    checkpoint_id: str
    run_id: None = None


Job = (
    Connect
    | Leave
    | OpenRun
    | SaveCheckpoint
    | RecordCall
    | DropCalls
    | ReleaseRun
    | AnswerRequest
    | CancelRun
    | DeleteRun
    | DeleteCheckpoint
)
Fenced = SaveCheckpoint | RecordCall | DropCalls


class _Contested(Exception):
    """Somebody in this group may not write; who, is found out job by job."""


_MEDIUM_ERRORS = (sqlite3.OperationalError, sqlite3.InternalError, OSError)
"""The database is at fault, not a job: everybody in the group fails."""


def _is_the_medium(error: BaseException) -> bool:
    # A plain DatabaseError is a malformed file; its other subclasses complain about one job's values.
    return isinstance(error, _MEDIUM_ERRORS) or type(error) is sqlite3.DatabaseError


class GroupCommit:
    """The `Medium` of SQLite storages: one connection, used by the writer thread only."""

    def __init__(self, path: Path, snapshots: SnapshotPool) -> None:
        self._path = path
        self._snapshots = snapshots
        self._locks = HolderLocks(path.with_name(path.name + ".holders"))
        self._guard = fork_guard()
        self._connection: sqlite3.Connection | None = None
        self._seats: list[Seat] = []
        self._heard_of = 0.0
        self._workflows: dict[str, int] = {}
        self._after_commit: list[Callable[[], object]] = []
        self._together: dict[type, Callable[[Any, Any], list[Any]]] = {
            SaveCheckpoint: self._save,
            RecordCall: self._record_calls,
            OpenRun: self._open,
            ReleaseRun: self._release,
        }
        self._one: dict[type, Callable[[Any, Any], Any]] = {
            DropCalls: self._drop_calls,
            AnswerRequest: self._answer,
            CancelRun: self._cancel,
            DeleteRun: self._delete_run,
            DeleteCheckpoint: self._delete_checkpoint,
            Connect: lambda connection, job: None,
            Leave: self._leave,
        }

    # --- the transaction ---------------------------------------------------------------------------------------------

    def commit(self, jobs: Sequence[Job]) -> Sequence[Any]:
        with self._guard:
            try:
                connection = self._connected()
                self._seat_newcomers(connection, jobs)
                try:
                    return self._committed(connection, lambda: self._waves(connection, jobs))
                except Exception as error:
                    if _is_the_medium(error):
                        raise
                    if len(jobs) == 1:
                        return [self._refusal(error)]
                    return self._committed(connection, lambda: self._one_by_one(connection, jobs))
            except (sqlite3.Error, OSError) as error:
                self._recover(error)
                return [failure(error, self._path) for _ in jobs]
            finally:
                self._let_go(jobs)

    def _committed(self, connection: sqlite3.Connection, work: Callable[[], list[Any]]) -> list[Any]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            outcomes = work()
            self._renew_leases(connection)
            connection.execute("COMMIT")
        except BaseException:
            self._after_commit.clear()
            self._workflows.clear()
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        effects, self._after_commit = self._after_commit, []
        for effect in effects:
            effect()
        return outcomes

    def _waves(self, connection: sqlite3.Connection, jobs: Sequence[Job]) -> list[Any]:
        if len(jobs) == 1:
            return self._wave(connection, jobs)
        outcomes: list[Any] = []
        for wave in _in_waves(jobs):
            outcomes.extend(self._wave(connection, wave))
        return outcomes

    def _wave(self, connection: sqlite3.Connection, jobs: Sequence[Job]) -> list[Any]:
        kinds = {type(job) for job in jobs}
        if len(kinds) == 1:
            return self._kind(connection, kinds.pop(), jobs)
        outcomes: dict[int, Any] = {}
        for kind in kinds:
            mine = [job for job in jobs if type(job) is kind]
            outcomes.update(zip(map(id, mine), self._kind(connection, kind, mine), strict=True))
        return [outcomes[id(job)] for job in jobs]

    def _kind(self, connection: sqlite3.Connection, kind: type, jobs: Sequence[Job]) -> list[Any]:
        together = self._together.get(kind)
        if together is not None:
            return together(connection, jobs)
        return [self._one[kind](connection, job) for job in jobs]

    def _one_by_one(self, connection: sqlite3.Connection, jobs: Sequence[Job]) -> list[Any]:
        return [self._on_its_own(connection, job) for job in jobs]

    def _on_its_own(self, connection: sqlite3.Connection, job: Job) -> Any:
        effects = len(self._after_commit)
        connection.execute("SAVEPOINT job")
        try:
            (outcome,) = self._kind(connection, type(job), [job])
        except Exception as error:
            if _is_the_medium(error):
                raise
            del self._after_commit[effects:]
            self._workflows.clear()
            connection.execute("ROLLBACK TO job")
            outcome = self._refusal(error)
        connection.execute("RELEASE job")
        return outcome

    def _refusal(self, error: Exception) -> Exception:
        return failure(error, self._path) if isinstance(error, sqlite3.Error) else error

    # --- the connection ----------------------------------------------------------------------------------------------

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect_writer(self._path)
            real = self._path.resolve()
            self._locks = HolderLocks(real.with_name(real.name + ".holders"))
        return self._connection

    def _recover(self, error: sqlite3.Error | OSError) -> None:
        """Start over with a fresh connection, unless all that happened is that somebody else was writing."""
        if self._connection is not None and not (isinstance(error, sqlite3.Error) and is_busy(error)):
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        with self._guard:
            for seat in list(self._seats):
                self._unlock(seat)
            self._snapshots.close()
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # --- seats and leases --------------------------------------------------------------------------------------------

    def pause(self) -> float | None:
        leases = [seat.lease_seconds for seat in self._seats if seat.held]
        if not leases:
            return None
        return max(0.0, self._heard_of + min(leases) / 3 - time.monotonic())

    def tick(self) -> None:
        """Say that the holders of this process are alive although none of them has anything to write."""
        with self._guard:
            try:
                self._committed(self._connected(), list)
            except (sqlite3.Error, OSError) as error:
                self._recover(error)
                self._heard_of = time.monotonic()
                logger.warning("the leases in %s could not be renewed, trying again: %s", self._path, error)

    def _renew_leases(self, connection: sqlite3.Connection) -> None:
        due = [seat for seat in self._seats if seat.held]
        if not due or time.monotonic() < self._heard_of + min(seat.lease_seconds for seat in due) / 3:
            return
        for seat in due:
            lease = Lease.lasting(seat.lease_seconds)
            connection.execute(
                "UPDATE holders SET expires = ?, expires_here = ? WHERE id = ?",
                (lease.expires, lease.expires_here, seat.holder_id),
            )
        self._heard_of = time.monotonic()

    def _seat_newcomers(self, connection: sqlite3.Connection, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if type(job) is OpenRun and job.seat.holder_id is None:
                self._take_seat(connection, job.seat)

    def _take_seat(self, connection: sqlite3.Connection, seat: Seat) -> None:
        """Become a holder: an OS lock first, then a row that names it. Both while nobody else can look for the dead."""

        def arrive() -> list[Any]:
            self._bury_the_dead(connection)
            seat.holder = Holder.here()
            seat.lock = self._locks.take(seat.holder.instance)
            lease = Lease.lasting(seat.lease_seconds)
            seat.holder_id = connection.execute(
                "INSERT INTO holders (holder, expires, expires_here) VALUES (?, ?, ?)",
                (str(seat.holder), lease.expires, lease.expires_here),
            ).lastrowid
            return []

        try:
            self._committed(connection, arrive)
        except BaseException:
            self._unlock(seat)
            raise
        self._seats.append(seat)

    def _bury_the_dead(self, connection: sqlite3.Connection) -> None:
        """Forget holders that are dead and hold nothing; those that do are needed to tell that they are dead."""
        rows = connection.execute(
            "SELECT id, holder, expires, expires_here, EXISTS (SELECT 1 FROM runs WHERE runs.holder = holders.id) FROM holders"
        ).fetchall()
        known: set[str] = set()
        for holder_id, text, expires, expires_here, holds_runs in rows:
            holder = Holder.parse(text)
            if holds_runs or not self._locks.may_be_replaced(holder, Lease(expires, expires_here)):
                known.add(holder.instance)
            else:
                connection.execute("DELETE FROM holders WHERE id = ?", (holder_id,))
        self._locks.sweep(known)

    def _leave(self, connection: sqlite3.Connection, job: Leave) -> None:
        connection.execute(
            "DELETE FROM holders WHERE id = ? AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.holder = holders.id)",
            (job.seat.holder_id,),
        )

    def _let_go(self, jobs: Sequence[Job]) -> None:
        """Whether or not its row could be removed, one who leaves must not look alive."""
        for job in jobs:
            if type(job) is Leave:
                self._unlock(job.seat)

    def _unlock(self, seat: Seat) -> None:
        if seat.lock is not None:
            seat.lock.release()
        seat.lock = seat.holder = seat.holder_id = None
        seat.held.clear()
        if seat in self._seats:
            self._seats.remove(seat)

    # --- opening and giving back -------------------------------------------------------------------------------------

    def _open(self, connection: sqlite3.Connection, jobs: Sequence[OpenRun]) -> list[OpenedRun]:
        known = reading.runs_with_ids(connection, [job.run_id for job in jobs])
        new = [job for job in jobs if job.run_id not in known]
        opened = dict(self._create(connection, new)) if new else {}
        for job in jobs:
            if job.run_id in known:
                opened[job.run_id] = self._take(connection, job.seat, known[job.run_id])
        return [opened[job.run_id] for job in jobs]

    def _create(self, connection: sqlite3.Connection, jobs: Sequence[OpenRun]) -> Iterator[tuple[str, OpenedRun]]:
        for job in jobs:
            if not job.request.create:
                raise KeyError(job.run_id)
        created_at = now()
        rows = [self._new_row(connection, job, created_at) for job in jobs]
        bulk.CREATE_RUNS.run(connection, [row for row, _ in rows])
        (last_key,) = connection.execute("SELECT last_insert_rowid()").fetchone()
        # One statement numbers its rows one after the other.
        for key, job, (values, run) in zip(range(last_key - len(jobs) + 1, last_key + 1), jobs, rows, strict=True):
            self._hold(job.seat, key, HeldRun(workflow=values[1], sweep_at=_first_sweep(key), has_calls=False))
            row = replace(run, key=key)
            yield job.run_id, OpenedRun(row=row, created=True, next_node=key * NODES_PER_RUN + 1, latest=None)

    def _new_row(self, connection: sqlite3.Connection, job: OpenRun, at: str) -> tuple[tuple[Any, ...], RunRow]:
        request, parent = job.request, job.request.branch_of
        row = RunRow(
            key=0,
            run_id=request.run_id,
            workflow_name=request.workflow_name,
            state="STARTED",
            epoch=1,
            holder=str(job.seat.holder),
            origin=self._origin(connection, request),
            updated_at=at,
            parent_checkpoint_id=parent.checkpoint_id if parent else None,
            parent_run_id=parent.run_id if parent else None,
        )
        workflow = self._workflow(connection, row.workflow_name)
        parents = (row.parent_checkpoint_id, row.parent_run_id)
        return (row.run_id, workflow, row.origin, row.epoch, job.seat.holder_id, row.state, at, *parents), row

    def _origin(self, connection: sqlite3.Connection, request: OpenRequest) -> str:
        if request.branch_of is None:
            return request.run_id
        found = connection.execute("SELECT origin FROM runs WHERE run_id = ?", (request.branch_of.run_id,)).fetchone()
        return found[0] if found else request.run_id

    def _workflow(self, connection: sqlite3.Connection, name: str) -> int:
        known = self._workflows.get(name)
        if known is None:
            connection.execute("INSERT OR IGNORE INTO workflows (name) VALUES (?)", (name,))
            (known,) = connection.execute("SELECT id FROM workflows WHERE name = ?", (name,)).fetchone()
            self._workflows[name] = known
        return known

    def _take(self, connection: sqlite3.Connection, seat: Seat, run: StoredRun) -> OpenedRun:
        self._refuse_if_held(run)
        key = run.row.key
        connection.execute("UPDATE runs SET epoch = epoch + 1, holder = ? WHERE key = ?", (seat.holder_id, key))
        opened = OpenedRun(
            row=replace(run.row, epoch=run.row.epoch + 1, holder=str(seat.holder)),
            created=False,
            next_node=max(run.next_node, key * NODES_PER_RUN + 1),
            latest=reading.latest_of_run(connection, key),
            calls=reading.calls_of_run(connection, key),
            requests=reading.requests_of_run(connection, key),
        )
        sweep_at = run.sweep_at or _first_sweep(key)
        self._hold(seat, key, HeldRun(run.workflow, sweep_at, has_calls=bool(opened.calls)))
        return opened

    def _hold(self, seat: Seat, key: int, held: HeldRun) -> None:
        self._after_commit.append(lambda: seat.held.__setitem__(key, held))

    def _refuse_if_held(self, run: StoredRun) -> None:
        if run.row.holder is None:
            return
        holder = Holder.parse(run.row.holder)
        if not self._locks.may_be_replaced(holder, run.lease):
            raise RunBusy(run.row.run_id, self._described(holder))

    def _described(self, holder: Holder) -> str:
        here = any(seat.holder == holder for seat in self._seats)
        return f"{holder.described} (this process)" if here else holder.described

    def _release(self, connection: sqlite3.Connection, jobs: Sequence[ReleaseRun]) -> list[None]:
        rows = [
            (job.fence.run_key, job.fence.epoch, job.seat.holder_id, job.state or None, job.stopped_by or None)
            for job in jobs
        ]
        bulk.RELEASE_RUNS.run(connection, rows)
        self._give_back((job.seat, job.fence) for job in jobs)
        return [None] * len(jobs)

    def _give_back(self, runs: Iterable[tuple[Seat, Fence]]) -> None:
        for seat, fence in runs:
            self._after_commit.append(lambda seat=seat, key=fence.run_key: seat.held.pop(key, None))

    # --- the fence ---------------------------------------------------------------------------------------------------

    def _held(self, connection: sqlite3.Connection, jobs: Sequence[Fenced]) -> list[HeldRun]:
        """What is remembered of these jobs' runs; one who holds nothing need not ask the database."""
        held = [job.seat.held.get(job.fence.run_key) for job in jobs]
        if None in held:
            raise self._refused(connection, jobs)
        return [run for run in held if run is not None]

    def _refused(self, connection: sqlite3.Connection, jobs: Sequence[Fenced]) -> Exception:
        if len(jobs) > 1:
            return _Contested()
        job = jobs[0]
        run = reading.run_with_key(connection, job.fence.run_key)
        if run is None:
            return RunTakenOver(job.run_id, "nobody: it was deleted")
        if run.row.epoch == job.fence.epoch and run.holder_id is not None and run.holder_id == job.seat.holder_id:
            return StaleMemory()
        if run.row.holder is None:
            return RunTakenOver(job.run_id, "nobody: it was given back")
        return RunTakenOver(job.run_id, self._described(Holder.parse(run.row.holder)))

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _save(self, connection: sqlite3.Connection, jobs: Sequence[SaveCheckpoint]) -> list[None]:
        held = self._held(connection, jobs)
        self._advance(connection, jobs)
        writes = [job.write for job in jobs]
        for write in writes:
            for decision in write.decisions:
                self._decide(connection, write.fence.run_key, write.fence.run_id, decision)
        nodes = [
            (node.id, node.digest, packed(node.refs) if node.refs else b"", node.text)
            for write in writes
            for node in write.nodes
        ]
        bulk.INSERT_NODES.run(connection, nodes)
        bulk.INSERT_CHECKPOINTS.run(connection, list(map(_checkpoint_row, writes, held)))
        bulk.INSERT_REQUESTS.run(connection, _request_rows(writes))
        self._forget_calls(connection, writes, held)
        self._prune(connection, writes, held)
        return [None] * len(jobs)

    def _advance(self, connection: sqlite3.Connection, jobs: Sequence[SaveCheckpoint]) -> None:
        going_on = [_run_row(job) for job in jobs if not job.write.final]
        finished = [_run_row(job) for job in jobs if job.write.final]
        changed = bulk.ADVANCE_RUNS.run(connection, going_on) + bulk.FINISH_RUNS.run(connection, finished)
        if changed != len(jobs):
            raise self._refused(connection, jobs)
        if finished:
            self._give_back((job.seat, job.fence) for job in jobs if job.write.final)

    def _forget_calls(
        self, connection: sqlite3.Connection, writes: Sequence[CheckpointWrite], held: Sequence[HeldRun]
    ) -> None:
        done = [(write, run) for write, run in zip(writes, held, strict=True) if run.has_calls and write.forget_calls]
        if done:
            bulk.FORGET_CALLS.run(connection, [(write.fence.run_key,) for write, _ in done])
            for _, run in done:
                self._after_commit.append(lambda run=run: setattr(run, "has_calls", False))

    def _prune(
        self, connection: sqlite3.Connection, writes: Sequence[CheckpointWrite], held: Sequence[HeldRun]
    ) -> None:
        limited = [(write, run) for write, run in zip(writes, held, strict=True) if write.keep is not None]
        rows = [(write.fence.run_key, write.keep) for write, _ in limited]
        if not bulk.PRUNE_CHECKPOINTS.run(connection, rows):
            return
        for write, run in limited:
            if write.nodes and write.nodes[-1].id >= run.sweep_at:
                self._sweep_run(connection, write.fence.run_key, run)

    def _sweep_run(self, connection: sqlite3.Connection, run_key: int, run: HeldRun) -> None:
        """Look for unused nodes, and not again before as many are written as are now in use: it costs what it saves."""
        origin, next_node = connection.execute(
            "SELECT origin, next_node FROM runs WHERE key = ?", (run_key,)
        ).fetchone()
        sweep_at = next_node + SPARED_NODES + sweep(connection, origin)
        connection.execute("UPDATE runs SET sweep_at = ? WHERE key = ?", (sweep_at, run_key))
        self._after_commit.append(lambda: setattr(run, "sweep_at", sweep_at))

    def _delete_checkpoint(self, connection: sqlite3.Connection, job: DeleteCheckpoint) -> bool:
        found = connection.execute(
            """SELECT c.id, r.origin FROM checkpoints AS c JOIN runs AS r ON r.key = c.run_key
                WHERE c.checkpoint_id = ?""",
            (job.checkpoint_id,),
        ).fetchone()
        if found is None:
            return False
        row_id, origin = found
        connection.execute("DELETE FROM checkpoints WHERE id = ?", (row_id,))
        sweep(connection, origin)
        return True

    # --- the journal -------------------------------------------------------------------------------------------------

    def _record_calls(self, connection: sqlite3.Connection, jobs: Sequence[RecordCall]) -> list[None]:
        held = self._held(connection, jobs)
        for run in held:
            run.has_calls = True  # at once: to look for rows that are not there does no harm
        for job in jobs:
            self._remove_calls(connection, job.fence, job.supersedes)
        if bulk.RECORD_CALLS.run(connection, list(map(_call_row, jobs))) != len(jobs):
            raise self._refused(connection, jobs)
        return [None] * len(jobs)

    def _drop_calls(self, connection: sqlite3.Connection, job: DropCalls) -> None:
        self._held(connection, [job])
        run = reading.run_with_key(connection, job.fence.run_key)
        if run is None or run.row.epoch != job.fence.epoch or run.holder_id != job.seat.holder_id:
            raise self._refused(connection, [job])
        self._remove_calls(connection, job.fence, job.call_ids)

    def _remove_calls(self, connection: sqlite3.Connection, fence: Fence, call_ids: Sequence[str]) -> None:
        for call_id in call_ids:
            connection.execute("DELETE FROM calls WHERE run_key = ? AND call_id = ?", (fence.run_key, call_id))

    # --- people ------------------------------------------------------------------------------------------------------

    def _answer(self, connection: sqlite3.Connection, job: AnswerRequest) -> None:
        found = connection.execute("SELECT key FROM runs WHERE run_id = ?", (job.run_id,)).fetchone()
        if found is None:
            raise UnknownRun(job.run_id, "list_runs() shows the runs there are")
        self._decide(connection, found[0], job.run_id, job.decision)

    def _decide(self, connection: sqlite3.Connection, run_key: int, run_id: str, decision: Decision) -> None:
        changed = connection.execute(
            """UPDATE requests SET answer = ?, answered_at = ?, typed = ?
                WHERE run_key = ? AND request_id = ? AND answer IS NULL""",
            (decision.value, decision.answered_at, decision.typed, run_key, decision.request_id),
        ).rowcount
        if changed == 0:
            raise self._second_answer(connection, run_key, run_id, decision.request_id)

    def _second_answer(self, connection: sqlite3.Connection, run_key: int, run_id: str, request_id: str) -> Exception:
        requests = {row.summary.request_id: row.decision for row in reading.requests_of_run(connection, run_key)}
        given = requests.get(request_id)
        if given is None:
            return UnknownRequest(request_id, tuple(name for name, decision in requests.items() if decision is None))
        return AlreadyAnswered(request_id, run_id, given.answered_at, decision_text(given))

    # --- runs that nobody holds --------------------------------------------------------------------------------------

    def _held_by_nobody(self, connection: sqlite3.Connection, run_id: str) -> StoredRun | None:
        run = reading.runs_with_ids(connection, [run_id]).get(run_id)
        if run is not None:
            self._refuse_if_held(run)
        return run

    def _cancel(self, connection: sqlite3.Connection, job: CancelRun) -> None:
        run = self._held_by_nobody(connection, job.run_id)
        if run is None:
            raise UnknownRun(job.run_id, "list_runs() shows the runs there are")
        connection.execute(
            "UPDATE runs SET state = 'CANCELLED', epoch = epoch + 1, holder = NULL WHERE key = ?", (run.row.key,)
        )

    def _delete_run(self, connection: sqlite3.Connection, job: DeleteRun) -> bool:
        run = self._held_by_nobody(connection, job.run_id)
        if run is None:
            return False
        key, origin = run.row.key, run.row.origin
        for statement in (
            "DELETE FROM checkpoints WHERE run_key = ?",
            "DELETE FROM calls WHERE run_key = ?",
            "DELETE FROM requests WHERE run_key = ?",
            "DELETE FROM runs WHERE key = ?",
        ):
            connection.execute(statement, (key,))
        # Branches may still refer to its nodes; the sweep forgets it if they do not.
        connection.execute("INSERT INTO departed (run_key, origin) VALUES (?, ?)", (key, origin))
        sweep(connection, origin)
        return True


def _first_sweep(run_key: int) -> int:
    return run_key * NODES_PER_RUN + SPARED_NODES


def _run_row(job: SaveCheckpoint) -> tuple[Any, ...]:
    write = job.write
    return (
        write.fence.run_key,
        write.fence.epoch,
        job.seat.holder_id,
        write.expected_sweeps,
        write.state,
        write.sequence,
        write.supersteps,
        write.usage,
        write.updated_at,
        write.nodes[-1].id + 1 if write.nodes else 0,
    )


def _checkpoint_row(write: CheckpointWrite, held: HeldRun) -> tuple[Any, ...]:
    stored, root = write.stored, write.stored.root
    return (
        stored.checkpoint_id,
        stored.run_key,
        held.workflow,
        root.digest,
        stored.header,
        packed(root.refs) if root.refs else b"",
        root.text,
    )


def _request_rows(writes: Sequence[CheckpointWrite]) -> list[tuple[Any, ...]]:
    return [
        (
            write.fence.run_key,
            asked.request_id,
            asked.source_executor_id,
            asked.request_type,
            asked.response_type,
            asked.asked_at,
            asked.deadline,
            asked.shown,
        )
        for write in writes
        for asked in write.requests
    ]


def _call_row(job: RecordCall) -> tuple[Any, ...]:
    text = call_text(job.row)
    return job.fence.run_key, job.fence.epoch, job.seat.holder_id, job.row.call_id, call_digest(text), text


def _in_waves(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Cut a group so that the jobs of one run come one after the other; those of different runs may change places."""
    wave: list[Job] = []
    kinds: dict[str, type] = {}
    for job in jobs:
        kind, run_id = type(job), job.run_id
        alone = run_id is None or kind is DeleteRun
        other = kinds.get(run_id) if run_id is not None else None
        if wave and (alone or (other is not None and not (other is kind is RecordCall))):
            yield wave
            wave, kinds = [], {}
        wave.append(job)
        if run_id is not None:
            kinds[run_id] = kind
        if alone:
            yield wave
            wave, kinds = [], {}
    if wave:
        yield wave
