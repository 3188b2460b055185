"""The jobs themselves: what each of them does within the transaction of its group."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from stepwell.checkpointing.lease import Fence, Holder
from stepwell.checkpointing.storage import sqlite_bulk as bulk
from stepwell.checkpointing.storage import sqlite_reading as reading
from stepwell.checkpointing.storage.protocol import Decision
from stepwell.checkpointing.storage.recording import SAVED_BY_HAND, decision_text, now
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
from stepwell.checkpointing.storage.sqlite_jobs import (
    AnswerRequest,
    CancelRun,
    Connect,
    DeleteCheckpoint,
    DeleteRun,
    DropCalls,
    Fenced,
    HeldRun,
    Job,
    Leave,
    OpenRun,
    RecordCall,
    ReleaseRun,
    SaveCheckpoint,
    Seat,
)
from stepwell.checkpointing.storage.sqlite_reading import StoredRun, packed
from stepwell.checkpointing.storage.sqlite_schema import torn
from stepwell.checkpointing.storage.sqlite_seats import Seats
from stepwell.checkpointing.storage.sqlite_sweep import SPARED_NODES, sweep
from stepwell.errors import AlreadyAnswered, CheckpointDamaged, RunBusy, RunTakenOver, UnknownRequest, UnknownRun


class Contested(Exception):
    """Somebody in this group may not write; who, is found out job by job."""


@dataclass(slots=True)
class Transaction:
    """A transaction under way, and what is to be remembered once it is committed."""

    connection: sqlite3.Connection
    effects: list[Callable[[], object]] = field(default_factory=list)

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        return self.connection.execute(statement, values)

    def then(self, effect: Callable[[], object]) -> None:
        self.effects.append(effect)


class Work:
    """Does jobs of one kind at a time. A job that raises has to be undone by the caller."""

    def __init__(self, seats: Seats) -> None:
        self._seats = seats
        self._workflows: dict[str, int] = {}
        self._together: dict[type, Callable[[Transaction, Any], list[Any]]] = {
            SaveCheckpoint: self._save,
            RecordCall: self._record_calls,
            OpenRun: self._open,
            ReleaseRun: self._release,
        }
        self._one: dict[type, Callable[[Transaction, Any], Any]] = {
            DropCalls: self._drop_calls,
            AnswerRequest: self._answer,
            CancelRun: self._cancel,
            DeleteRun: self._delete_run,
            DeleteCheckpoint: self._delete_checkpoint,
            Connect: lambda transaction, job: None,
            Leave: lambda transaction, job: self._seats.tidy(transaction.connection, job.seat),
        }

    def do(self, transaction: Transaction, kind: type, jobs: Sequence[Job]) -> list[Any]:
        """Jobs of this kind, of different runs unless they are calls to be recorded; one outcome each."""
        together = self._together.get(kind)
        if together is not None:
            return together(transaction, jobs)
        return [self._one[kind](transaction, job) for job in jobs]

    def forget(self) -> None:
        """What was just done is undone."""
        self._workflows.clear()

    # --- opening and giving back -------------------------------------------------------------------------------------

    def _open(self, transaction: Transaction, jobs: Sequence[OpenRun]) -> list[OpenedRun | Exception]:
        for seat in {job.seat for job in jobs if not job.seat.held}:
            self._seats.announce(transaction.connection, seat)
        known = reading.runs_with_ids(transaction.connection, [job.run_id for job in jobs])
        new = [job for job in jobs if job.run_id not in known and job.request.create]
        opened: dict[str, OpenedRun | Exception] = dict(self._create(transaction, new)) if new else {}
        for job in jobs:
            if job.run_id in known:
                opened[job.run_id] = self._take(transaction, job, known[job.run_id])
        return [opened.get(job.run_id) or KeyError(job.run_id) for job in jobs]

    def _create(self, transaction: Transaction, jobs: Sequence[OpenRun]) -> Iterator[tuple[str, OpenedRun]]:
        created_at = now()
        rows = [self._new_row(transaction, job, created_at) for job in jobs]
        bulk.CREATE_RUNS.run(transaction.connection, [row for row, _ in rows])
        (last_key,) = transaction.execute("SELECT last_insert_rowid()").fetchone()
        # One statement numbers its rows one after the other.
        for key, job, (values, run) in zip(range(last_key - len(jobs) + 1, last_key + 1), jobs, rows, strict=True):
            self._hold(
                transaction, job.seat, key, HeldRun(workflow=values[1], sweep_at=_first_sweep(key), has_calls=False)
            )
            row = replace(run, key=key)
            yield job.run_id, OpenedRun(row=row, created=True, next_node=key * NODES_PER_RUN + 1, latest=None)

    def _new_row(self, transaction: Transaction, job: OpenRun, at: str) -> tuple[tuple[Any, ...], RunRow]:
        request, parent = job.request, job.request.branch_of
        row = RunRow(
            key=0,
            run_id=request.run_id,
            workflow_name=request.workflow_name,
            state="STARTED",
            epoch=1,
            holder=str(job.seat.holder),
            origin=self._origin(transaction, request),
            updated_at=at,
            parent_checkpoint_id=parent.checkpoint_id if parent else None,
            parent_run_id=parent.run_id if parent else None,
        )
        workflow = self._workflow(transaction, row.workflow_name)
        parents = (row.parent_checkpoint_id, row.parent_run_id)
        return (row.run_id, workflow, row.origin, row.epoch, job.seat.holder_id, row.state, at, *parents), row

    def _origin(self, transaction: Transaction, request: OpenRequest) -> str:
        if request.branch_of is None:
            return request.run_id
        found = transaction.execute(
            "SELECT r.origin FROM checkpoints AS c JOIN runs AS r ON r.key = c.run_key WHERE c.checkpoint_id = ?",
            (request.branch_of.checkpoint_id,),
        ).fetchone()
        return found[0] if found else request.run_id

    def _workflow(self, transaction: Transaction, name: str) -> int:
        known = self._workflows.get(name)
        if known is None:
            transaction.execute("INSERT OR IGNORE INTO workflows (name) VALUES (CAST(? AS TEXT))", (torn(name),))
            (known,) = transaction.execute(
                "SELECT id FROM workflows WHERE name = CAST(? AS TEXT)", (torn(name),)
            ).fetchone()
            self._workflows[name] = known
        return known

    def _take(self, transaction: Transaction, job: OpenRun, run: StoredRun) -> OpenedRun | RunBusy:
        seat, key = job.seat, run.row.key
        left_over = job.request.reclaim and run.holder_id is not None and run.holder_id == seat.holder_id
        if not left_over and (busy := self._seats.busy(run)) is not None:
            return busy  # nothing was written for it, so nothing has to be undone
        transaction.execute("UPDATE runs SET epoch = epoch + 1, holder = ? WHERE key = ?", (seat.holder_id, key))
        opened = OpenedRun(
            row=replace(run.row, epoch=run.row.epoch + 1, holder=str(seat.holder)),
            created=False,
            next_node=max(run.next_node, key * NODES_PER_RUN + 1),
            latest=reading.latest_of_run(transaction.connection, key),
            calls=reading.calls_of_run(transaction.connection, key),
            requests=reading.requests_of_run(transaction.connection, key),
        )
        sweep_at = run.sweep_at or _first_sweep(key)
        self._hold(transaction, seat, key, HeldRun(run.workflow, sweep_at, has_calls=bool(opened.calls)))
        return opened

    def _hold(self, transaction: Transaction, seat: Seat, key: int, held: HeldRun) -> None:
        transaction.then(partial(seat.held.__setitem__, key, held))

    def _release(self, transaction: Transaction, jobs: Sequence[ReleaseRun]) -> list[None]:
        rows = [
            (
                job.fence.run_key,
                job.fence.epoch,
                job.seat.holder_id,
                job.state or None,
                torn(job.stopped_by) if job.stopped_by else None,
            )
            for job in jobs
        ]
        bulk.RELEASE_RUNS.run(transaction.connection, rows)
        self._give_back(transaction, ((job.seat, job.fence) for job in jobs))
        return [None] * len(jobs)

    def _give_back(self, transaction: Transaction, runs: Iterable[tuple[Seat, Fence]]) -> None:
        for seat, fence in runs:
            transaction.then(partial(seat.held.pop, fence.run_key, None))

    # --- the fence ---------------------------------------------------------------------------------------------------

    def _held(self, transaction: Transaction, jobs: Sequence[Fenced]) -> list[HeldRun]:
        """What is remembered of these jobs' runs; one who holds nothing need not ask the database."""
        held = [job.seat.held.get(job.fence.run_key) for job in jobs]
        if any(run is None for run in held):
            raise self._refused(transaction, jobs)
        return [run for run in held if run is not None]

    def _refused(self, transaction: Transaction, jobs: Sequence[Fenced]) -> Exception:
        if len(jobs) > 1:
            return Contested()
        job = jobs[0]
        run = reading.run_with_key(transaction.connection, job.fence.run_key)
        if run is None:
            return RunTakenOver(job.run_id, "nobody: it was deleted")
        if run.row.epoch == job.fence.epoch and run.holder_id is not None and run.holder_id == job.seat.holder_id:
            return StaleMemory()
        if run.row.holder is None:
            return RunTakenOver(job.run_id, "nobody: it was given back")
        return RunTakenOver(job.run_id, self._seats.described(Holder.parse(run.row.holder)))

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _save(self, transaction: Transaction, jobs: Sequence[SaveCheckpoint]) -> list[None]:
        held = self._held(transaction, jobs)
        self._advance(transaction, jobs)
        writes = [job.write for job in jobs]
        for write in writes:
            for decision in write.decisions:
                self._decide(transaction, write.fence.run_key, write.fence.run_id, decision)
            for request_id in write.delivers:
                self._deliver(transaction, write.fence.run_key, request_id)
        nodes = [
            (node.id, node.digest, packed(node.refs) if node.refs else b"", node.text)
            for write in writes
            for node in write.nodes
        ]
        bulk.INSERT_NODES.run(transaction.connection, nodes)
        bulk.INSERT_CHECKPOINTS.run(transaction.connection, list(map(_checkpoint_row, writes, held)))
        bulk.INSERT_REQUESTS.run(transaction.connection, _request_rows(writes))
        self._forget_calls(transaction, writes, held)
        self._prune(transaction, writes, held)
        return [None] * len(jobs)

    def _advance(self, transaction: Transaction, jobs: Sequence[SaveCheckpoint]) -> None:
        going_on = [_run_row(job) for job in jobs if not job.write.final]
        finished = [_run_row(job) for job in jobs if job.write.final]
        changed = bulk.ADVANCE_RUNS.run(transaction.connection, going_on) + bulk.FINISH_RUNS.run(
            transaction.connection, finished
        )
        if changed != len(jobs):
            raise self._refused(transaction, jobs)
        if finished:
            self._give_back(transaction, ((job.seat, job.fence) for job in jobs if job.write.final))

    def _forget_calls(
        self, transaction: Transaction, writes: Sequence[CheckpointWrite], held: Sequence[HeldRun]
    ) -> None:
        done = [(write, run) for write, run in zip(writes, held, strict=True) if run.has_calls and write.forget_calls]
        if done:
            run_keys = json.dumps([write.fence.run_key for write, _ in done])
            transaction.execute(bulk.FORGET_CALLS, (run_keys,))
            for _, run in done:
                transaction.then(partial(setattr, run, "has_calls", False))

    def _prune(self, transaction: Transaction, writes: Sequence[CheckpointWrite], held: Sequence[HeldRun]) -> None:
        limited = [(write, run) for write, run in zip(writes, held, strict=True) if write.keep is not None]
        for keep in {write.keep for write, _ in limited}:
            run_keys = json.dumps([write.fence.run_key for write, _ in limited if write.keep == keep])
            transaction.execute(bulk.PRUNE_CHECKPOINTS, (run_keys, keep))
        for write, run in limited:
            if write.nodes and write.nodes[-1].id >= run.sweep_at:
                self._sweep_run(transaction, write.fence.run_key, run)

    def _sweep_run(self, transaction: Transaction, run_key: int, run: HeldRun) -> None:
        """Look for unused nodes, and not again before as many are written as are now in use: it costs what it saves."""
        origin, next_node = transaction.execute(
            "SELECT origin, next_node FROM runs WHERE key = ?", (run_key,)
        ).fetchone()
        sweep_at = next_node + SPARED_NODES + sweep(transaction.connection, origin)
        transaction.execute("UPDATE runs SET sweep_at = ? WHERE key = ?", (sweep_at, run_key))
        transaction.then(partial(setattr, run, "sweep_at", sweep_at))

    def _delete_checkpoint(self, transaction: Transaction, job: DeleteCheckpoint) -> bool:
        found = transaction.execute(
            "SELECT run_key FROM checkpoints WHERE checkpoint_id = ?", (job.checkpoint_id,)
        ).fetchone()
        if found is None:
            return False
        run = reading.run_with_key(transaction.connection, found[0])
        if run is None:
            raise CheckpointDamaged(job.checkpoint_id, "the run it belongs to is missing")
        transaction.execute("DELETE FROM checkpoints WHERE checkpoint_id = ?", (job.checkpoint_id,))
        left = transaction.execute("SELECT 1 FROM checkpoints WHERE run_key = ? LIMIT 1", found).fetchone()
        if left is None and run.row.state == SAVED_BY_HAND and run.row.holder is None:
            self._forget_run(transaction, run)
        else:
            sweep(transaction.connection, run.row.origin)
        return True

    # --- the journal -------------------------------------------------------------------------------------------------

    def _record_calls(self, transaction: Transaction, jobs: Sequence[RecordCall]) -> list[None]:
        held = self._held(transaction, jobs)
        for run in held:
            run.has_calls = True  # at once: to look for rows that are not there does no harm
            transaction.then(partial(setattr, run, "has_calls", True))
        for job in jobs:
            self._remove_calls(transaction, job.fence, job.supersedes)
        if bulk.RECORD_CALLS.run(transaction.connection, list(map(_call_row, jobs))) != len(jobs):
            raise self._refused(transaction, jobs)
        return [None] * len(jobs)

    def _drop_calls(self, transaction: Transaction, job: DropCalls) -> None:
        self._held(transaction, [job])
        run = reading.run_with_key(transaction.connection, job.fence.run_key)
        if run is None or run.row.epoch != job.fence.epoch or run.holder_id != job.seat.holder_id:
            raise self._refused(transaction, [job])
        self._remove_calls(transaction, job.fence, job.call_ids)

    def _remove_calls(self, transaction: Transaction, fence: Fence, call_ids: Sequence[str]) -> None:
        for call_id in call_ids:
            transaction.execute(
                "DELETE FROM calls WHERE run_key = ? AND call_id = CAST(? AS TEXT)", (fence.run_key, torn(call_id))
            )

    # --- people ------------------------------------------------------------------------------------------------------

    def _answer(self, transaction: Transaction, job: AnswerRequest) -> None:
        found = transaction.execute("SELECT key FROM runs WHERE run_id = ?", (job.run_id,)).fetchone()
        if found is None:
            raise UnknownRun(job.run_id, "list_runs() shows the runs there are")
        self._decide(transaction, found[0], job.run_id, job.decision)

    def _decide(self, transaction: Transaction, run_key: int, run_id: str, decision: Decision) -> None:
        changed = transaction.execute(
            """UPDATE requests SET answer = ?, answered_at = ?, typed = ?
                WHERE run_key = ? AND request_id = CAST(? AS TEXT) AND (answer IS NULL OR (? AND NOT typed))""",
            (
                decision.value,
                decision.answered_at,
                decision.typed,
                run_key,
                torn(decision.request_id),
                decision.replaces_unusable,
            ),
        ).rowcount
        if changed == 0:
            raise self._second_answer(transaction, run_key, run_id, decision.request_id)

    def _deliver(self, transaction: Transaction, run_key: int, request_id: str) -> None:
        """An answer recorded without the program has reached it, and passed its check."""
        transaction.execute(
            "UPDATE requests SET typed = 1 WHERE run_key = ? AND request_id = CAST(? AS TEXT) AND answer IS NOT NULL",
            (run_key, torn(request_id)),
        )

    def _second_answer(self, transaction: Transaction, run_key: int, run_id: str, request_id: str) -> Exception:
        requests = {
            row.summary.request_id: row.decision for row in reading.requests_of_run(transaction.connection, run_key)
        }
        given = requests.get(request_id)
        if given is None:
            return UnknownRequest(request_id, tuple(name for name, decision in requests.items() if decision is None))
        return AlreadyAnswered(request_id, run_id, given.answered_at, decision_text(given))

    # --- runs that nobody holds --------------------------------------------------------------------------------------

    def _held_by_nobody(self, transaction: Transaction, run_id: str) -> StoredRun | None:
        run = reading.runs_with_ids(transaction.connection, [run_id]).get(run_id)
        if run is not None and (busy := self._seats.busy(run)) is not None:
            raise busy
        return run

    def _cancel(self, transaction: Transaction, job: CancelRun) -> None:
        run = self._held_by_nobody(transaction, job.run_id)
        if run is None:
            raise UnknownRun(job.run_id, "list_runs() shows the runs there are")
        transaction.execute(
            """UPDATE runs SET state = 'CANCELLED', stopped_by = 'cancel_run', epoch = epoch + 1, holder = NULL
                WHERE key = ?""",
            (run.row.key,),
        )

    def _delete_run(self, transaction: Transaction, job: DeleteRun) -> bool:
        run = self._held_by_nobody(transaction, job.run_id)
        if run is None:
            return False
        self._forget_run(transaction, run)
        return True

    def _forget_run(self, transaction: Transaction, run: StoredRun) -> None:
        key, origin = run.row.key, run.row.origin
        for statement in (
            "DELETE FROM checkpoints WHERE run_key = ?",
            "DELETE FROM calls WHERE run_key = ?",
            "DELETE FROM requests WHERE run_key = ?",
            "DELETE FROM runs WHERE key = ?",
        ):
            transaction.execute(statement, (key,))
        # Branches may still refer to its nodes; the sweep forgets it if they do not.
        transaction.execute("INSERT INTO departed (run_key, origin) VALUES (?, ?)", (key, origin))
        sweep(transaction.connection, origin)


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
            torn(asked.request_id),
            torn(asked.source_executor_id),
            torn(asked.request_type),
            torn(asked.response_type),
            asked.asked_at,
            asked.deadline,
            torn(asked.shown),
        )
        for write in writes
        for asked in write.requests
    ]


def _call_row(job: RecordCall) -> tuple[Any, ...]:
    text = call_text(job.row)
    return job.fence.run_key, job.fence.epoch, job.seat.holder_id, torn(job.row.call_id), call_digest(text), text
