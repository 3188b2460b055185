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
from stepwell.checkpointing.storage.sqlite_seals import RunSeal, owned_call_digest, request_seal, run_seal
from stepwell.checkpointing.storage.sqlite_seats import Seats
from stepwell.checkpointing.storage.sqlite_sweep import SPARED_NODES, sweep
from stepwell.errors import AlreadyAnswered, CheckpointDamaged, RunTakenOver, UnknownRequest, UnknownRun


class Contested(Exception):
    """Somebody in this group may not write; who, is found out job by job."""


@dataclass(slots=True)
class Transaction:
    """A transaction under way, what is to be remembered once it is committed, and what to do if it is undone."""

    connection: sqlite3.Connection
    effects: list[Callable[[], object]] = field(default_factory=list)
    regrets: list[Callable[[], object]] = field(default_factory=list)

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        return self.connection.execute(statement, values)

    def then(self, effect: Callable[[], object]) -> None:
        self.effects.append(effect)

    def otherwise(self, regret: Callable[[], object]) -> None:
        self.regrets.append(regret)

    @property
    def mark(self) -> tuple[int, int]:
        return len(self.effects), len(self.regrets)

    def undo(self, mark: tuple[int, int] = (0, 0)) -> None:
        """What was done since the mark does not count; the database is the caller's business."""
        effects, regrets = mark
        del self.effects[effects:]
        while len(self.regrets) > regrets:
            self.regrets.pop()()


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
            self._sit(transaction, seat)
        known = reading.runs_with_ids(transaction.connection, [job.run_id for job in jobs])
        new = [job for job in jobs if job.run_id not in known and job.request.create]
        opened: dict[str, OpenedRun | Exception] = dict(self._create(transaction, new)) if new else {}
        for job in jobs:
            if job.run_id in known:
                opened[job.run_id] = self._take(transaction, job, known[job.run_id])
        return [opened.get(job.run_id) or KeyError(job.run_id) for job in jobs]

    def _sit(self, transaction: Transaction, seat: Seat) -> None:
        if seat.holder_id is not None:
            self._seats.announce(transaction.connection, seat)
            return
        # The row that names it would be gone; another process might get the same id.
        transaction.otherwise(partial(self._seats.leave, seat))
        self._seats.take(transaction.connection, seat)

    def _create(self, transaction: Transaction, jobs: Sequence[OpenRun]) -> Iterator[tuple[str, OpenedRun]]:
        created_at = now()
        rows = [self._new_row(transaction, job, created_at) for job in jobs]
        bulk.CREATE_RUNS.run(transaction.connection, [row for row, _ in rows])
        (last_key,) = transaction.execute("SELECT last_insert_rowid()").fetchone()
        # One statement numbers its rows one after the other.
        for key, job, (values, run) in zip(range(last_key - len(jobs) + 1, last_key + 1), jobs, rows, strict=True):
            workflow = values[1]
            held = HeldRun(workflow, _first_sweep(key), has_calls=False, seal=RunSeal(run, workflow, next_node=0))
            self._hold(transaction, job.seat, key, held)
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
        rest = (row.parent_checkpoint_id, row.parent_run_id, run_seal(row, next_node=0, newest=None))
        return (row.run_id, workflow, row.origin, row.epoch, job.seat.holder_id, row.state, at, *rest), row

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

    def _take(self, transaction: Transaction, job: OpenRun, run: StoredRun) -> OpenedRun | Exception:
        seat, key = job.seat, run.row.key
        left_over = job.request.reclaim and run.holder_id is not None and run.holder_id == seat.holder_id
        if not left_over and (busy := self._seats.busy(run)) is not None:
            return busy  # nothing was written for it, so nothing has to be undone
        latest = reading.latest_of_run(transaction.connection, key)
        damage = run.lost(latest and latest.checkpoint_id) if run.whole else run.damage()
        if damage is not None:
            return damage
        transaction.execute("UPDATE runs SET epoch = epoch + 1, holder = ? WHERE key = ?", (seat.holder_id, key))
        opened = OpenedRun(
            row=replace(run.row, epoch=run.row.epoch + 1, holder=str(seat.holder)),
            created=False,
            next_node=max(run.next_node, key * NODES_PER_RUN + 1),
            latest=latest,
            calls=reading.calls_of_run(transaction.connection, key),
            requests=reading.requests_of_run(transaction.connection, key),
        )
        sweep_at = run.sweep_at or _first_sweep(key)
        seal = RunSeal(run.row, run.workflow, run.next_node)
        self._hold(transaction, seat, key, HeldRun(run.workflow, sweep_at, has_calls=bool(opened.calls), seal=seal))
        return opened

    def _hold(self, transaction: Transaction, seat: Seat, key: int, held: HeldRun) -> None:
        transaction.then(partial(seat.held.__setitem__, key, held))

    def _release(self, transaction: Transaction, jobs: Sequence[ReleaseRun]) -> list[None]:
        changed = [job.fence.run_key for job in jobs if job.state or job.stopped_by]
        runs = reading.runs_with_keys(transaction.connection, changed) if changed else {}
        rows = [
            (
                job.fence.run_key,
                job.fence.epoch,
                job.seat.holder_id,
                job.state or None,
                torn(job.stopped_by) if job.stopped_by else None,
                _seal_of_released(job, runs.get(job.fence.run_key)),
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
        if not run.whole:
            return run.damage()
        if run.row.epoch == job.fence.epoch and run.holder_id is not None and run.holder_id == job.seat.holder_id:
            return StaleMemory()
        if run.row.holder is None:
            return RunTakenOver(job.run_id, "nobody: it was given back")
        return RunTakenOver(job.run_id, self._seats.described(Holder.parse(run.row.holder)))

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _save(self, transaction: Transaction, jobs: Sequence[SaveCheckpoint]) -> list[None]:
        held = self._held(transaction, jobs)
        self._advance(transaction, jobs, held)
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
        self._take_from_others(transaction, writes)
        bulk.INSERT_CHECKPOINTS.run(transaction.connection, list(map(_checkpoint_row, writes, held)))
        bulk.INSERT_REQUESTS.run(transaction.connection, _request_rows(writes))
        self._forget_calls(transaction, writes, held)
        self._prune(transaction, writes, held)
        return [None] * len(jobs)

    def _take_from_others(self, transaction: Transaction, writes: Sequence[CheckpointWrite]) -> None:
        """A checkpoint that is saved again may have been another run's newest so far."""
        # Only an id that somebody has chosen can be one that another run has already.
        chosen = {write.stored.checkpoint_id: write.fence.run_key for write in writes if not write.forget_calls}
        if not chosen:
            return
        if len(chosen) < sum(not write.forget_calls for write in writes):
            raise Contested  # two runs save the same one: one after the other
        (text,) = transaction.execute(bulk.RUNS_OF_CHECKPOINTS, (json.dumps(list(chosen)),)).fetchone()
        for checkpoint_id, run_key in json.loads(text):
            if run_key != chosen[checkpoint_id]:
                self._lose_newest(transaction, run_key, checkpoint_id)

    def _lose_newest(self, transaction: Transaction, run_key: int, checkpoint_id: str) -> None:
        """A checkpoint is about to go, to another run or altogether: its run ends with the one before it."""
        run = reading.run_with_key(transaction.connection, run_key)
        if run is None or run.newest != checkpoint_id:
            return
        found = transaction.execute(
            "SELECT checkpoint_id FROM checkpoints WHERE run_key = ? AND checkpoint_id <> ? ORDER BY id DESC LIMIT 1",
            (run_key, checkpoint_id),
        ).fetchone()
        newest = found[0] if found else None
        # A seal that was broken stays so.
        seal = run_seal(run.row, run.next_node, newest) if run.whole else run.seal
        transaction.execute("UPDATE runs SET newest = ?, seal = ? WHERE key = ?", (newest, seal, run_key))

    def _advance(self, transaction: Transaction, jobs: Sequence[SaveCheckpoint], held: Sequence[HeldRun]) -> None:
        going_on = [_run_row(job, run) for job, run in zip(jobs, held, strict=True) if not job.write.final]
        finished = [_run_row(job, run) for job, run in zip(jobs, held, strict=True) if job.write.final]
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
            run_keys = [write.fence.run_key for write, _ in done]
            if len(run_keys) == 1:
                transaction.execute(bulk.FORGET_CALLS_OF_ONE, run_keys)
            else:
                transaction.execute(bulk.FORGET_CALLS, (json.dumps(run_keys),))
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
        self._lose_newest(transaction, found[0], job.checkpoint_id)
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
        run = reading.runs_with_ids(transaction.connection, [job.run_id]).get(job.run_id)
        if run is None:
            raise UnknownRun(job.run_id, "list_runs() shows the runs there are")
        if not run.whole:
            raise run.damage()
        self._decide(transaction, run.row.key, job.run_id, job.decision)

    def _decide(self, transaction: Transaction, run_key: int, run_id: str, decision: Decision) -> None:
        asked = reading.request_of_run(transaction.connection, run_key, decision.request_id)
        changed = transaction.execute(
            """UPDATE requests SET answer = ?, answered_at = ?, typed = ?, seal = ?
                WHERE run_key = ? AND request_id = CAST(? AS TEXT) AND (answer IS NULL OR (? AND NOT typed))""",
            (
                decision.value,
                decision.answered_at,
                decision.typed,
                None if asked is None else request_seal(run_id, asked.summary, decision),
                run_key,
                torn(decision.request_id),
                decision.replaces_unusable,
            ),
        ).rowcount
        if changed == 0:
            raise self._second_answer(transaction, run_key, run_id, decision.request_id)

    def _deliver(self, transaction: Transaction, run_key: int, request_id: str) -> None:
        """An answer recorded without the program has reached it, and passed its check."""
        asked = reading.request_of_run(transaction.connection, run_key, request_id)
        if asked is None or asked.decision is None:
            return
        seal = request_seal(asked.run_id, asked.summary, replace(asked.decision, typed=True))
        transaction.execute(
            "UPDATE requests SET typed = 1, seal = ? WHERE run_key = ? AND request_id = CAST(? AS TEXT)",
            (seal, run_key, torn(request_id)),
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
        if not run.whole:
            raise run.damage()
        cancelled = replace(run.row, state="CANCELLED", stopped_by="cancel_run")
        transaction.execute(
            "UPDATE runs SET state = ?, stopped_by = ?, seal = ?, epoch = epoch + 1, holder = NULL WHERE key = ?",
            (cancelled.state, cancelled.stopped_by, run_seal(cancelled, run.next_node, run.newest), run.row.key),
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
        if run.whole:
            sweep(transaction.connection, origin)
        # Otherwise its origin may be another family's, whose sweep would take from its branches what they need.


def _first_sweep(run_key: int) -> int:
    return run_key * NODES_PER_RUN + SPARED_NODES


def _seal_of_released(job: ReleaseRun, run: StoredRun | None) -> bytes | None:
    """None if nothing that is sealed changes, or the seal was broken: giving a run back must not hide that."""
    if run is None or not run.whole:
        return None
    row = replace(run.row, state=job.state or run.row.state, stopped_by=job.stopped_by or run.row.stopped_by)
    return run_seal(row, run.next_node, run.newest)


def _run_row(job: SaveCheckpoint, held: HeldRun) -> tuple[Any, ...]:
    write, seal = job.write, held.seal
    assert seal is not None
    if write.nodes:
        seal.next_node = max(seal.next_node, write.nodes[-1].id + 1)
    newest = write.stored.checkpoint_id
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
        seal.next_node,
        newest,
        seal.of(write.sequence, write.supersteps, write.state, write.updated_at, write.usage, newest),
        *seal.constant,
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
            request_seal(write.fence.run_id, asked, None),
        )
        for write in writes
        for asked in write.requests
    ]


def _call_row(job: RecordCall) -> tuple[Any, ...]:
    text = call_text(job.row)
    digest = owned_call_digest(job.run_id, text)
    return job.fence.run_key, job.fence.epoch, job.seat.holder_id, torn(job.row.call_id), digest, text
