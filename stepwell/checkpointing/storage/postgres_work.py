"""The jobs themselves: what each of them does within the transaction of its group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from stepwell.checkpointing.lease import Fence, Holder
from stepwell.checkpointing.storage import postgres_bulk as bulk
from stepwell.checkpointing.storage import postgres_reading as reading
from stepwell.checkpointing.storage.postgres_bulk import array_text
from stepwell.checkpointing.storage.postgres_connection import Connection, Target
from stepwell.checkpointing.storage.postgres_jobs import (
    AnswerRequest,
    CancelRun,
    Connect,
    DeleteCheckpoint,
    DeleteRun,
    Disown,
    DropCalls,
    Fenced,
    Job,
    Leave,
    OpenRun,
    RecordCall,
    ReleaseRun,
    SaveCheckpoint,
)
from stepwell.checkpointing.storage.postgres_opening import Opening
from stepwell.checkpointing.storage.postgres_reading import StoredRun
from stepwell.checkpointing.storage.postgres_sweep import SPARED_NODES, nodes_left, sweep
from stepwell.checkpointing.storage.postgres_text import name_key, storable
from stepwell.checkpointing.storage.postgres_transaction import Transaction
from stepwell.checkpointing.storage.protocol import Decision
from stepwell.checkpointing.storage.recording import SAVED_BY_HAND, decision_text
from stepwell.checkpointing.storage.records import (
    NODES_PER_RUN,
    CheckpointWrite,
    StaleMemory,
    call_digest,
    call_text,
)
from stepwell.errors import AlreadyAnswered, CheckpointDamaged, RunTakenOver, UnknownRequest, UnknownRun

_NO_RUN = 0
"""Keys begin with 1."""


class Work:
    """Does jobs of one kind at a time. A job that raises has to be undone by the caller."""

    def __init__(self, target: Target, holder: Holder) -> None:
        self._schema = target.schema
        self._me = str(holder)
        self.held: dict[int, int] = {}
        """The runs that somebody in this process holds through this storage, with their epochs."""
        self._opening = Opening(target, holder, self.held)
        self._together: dict[type, Callable[[Transaction, Any], list[Any]]] = {
            SaveCheckpoint: self._save,
            RecordCall: self._record_calls,
            OpenRun: self._opening.open,
            ReleaseRun: self._release,
        }
        self._one: dict[type, Callable[[Transaction, Any], Any]] = {
            DropCalls: self._drop_calls,
            AnswerRequest: self._answer,
            CancelRun: self._cancel,
            DeleteRun: self._delete_run,
            DeleteCheckpoint: self._delete_checkpoint,
            Connect: lambda transaction, job: None,
            Leave: self._leave,
            Disown: self._opening.disown,
        }

    def do(self, transaction: Transaction, kind: type, jobs: Sequence[Job]) -> list[Any]:
        """Jobs of this kind, of different runs unless they are calls to be recorded; one outcome each."""
        together = self._together.get(kind)
        if together is not None:
            return together(transaction, jobs)
        return [self._one[kind](transaction, job) for job in jobs]

    def mark_alone(self, connection: Connection, mark: Sequence[Any], jobs: Sequence[Job]) -> None:
        """Nothing but the holder's mark."""
        connection.execute(bulk.MARK_HOLDER, mark, prepare=True)

    # --- giving back -------------------------------------------------------------------------------------------------

    def _release(self, transaction: Transaction, jobs: Sequence[ReleaseRun]) -> list[None]:
        rows = [(job.fence.run_key, job.fence.epoch, job.state or "", storable(job.stopped_by or "")) for job in jobs]
        bulk.RELEASE_RUNS.run(transaction, rows, self._me)
        self._give_back(transaction, (job.fence for job in jobs))
        return [None] * len(jobs)

    def _give_back(self, transaction: Transaction, fences: Iterable[Fence]) -> None:
        for fence in fences:
            transaction.then(partial(self._no_longer_held, fence))

    def _no_longer_held(self, fence: Fence) -> None:
        if self.held.get(fence.run_key) == fence.epoch:
            del self.held[fence.run_key]

    def _leave(self, transaction: Transaction, job: Leave) -> None:
        """Remove the row of one who leaves; if it still holds runs, the row says whose they were."""
        transaction.execute(
            """DELETE FROM holders WHERE holder = %s AND NOT EXISTS (
                SELECT 1 FROM runs WHERE runs.holder = holders.holder)""",
            (self._me,),
        )

    # --- the fence ---------------------------------------------------------------------------------------------------

    def _fence(self, transaction: Transaction, jobs: Sequence[Fenced]) -> None:
        refusal = partial(self._refused, transaction, jobs[0])
        bulk.FENCE.require(transaction, sorted(_fences(jobs)), self._me, refusal=refusal)

    def _refused(self, transaction: Transaction, job: Fenced) -> Exception:
        run = reading.run_with_key(transaction.rows, job.fence.run_key)
        if run is None:
            return RunTakenOver(job.run_id, "nobody: it was deleted")
        if not run.whole:
            return run.damage()
        if run.row.epoch == job.fence.epoch and run.row.holder == self._me:
            return StaleMemory()
        if run.row.holder is None:
            return RunTakenOver(job.run_id, "nobody: it was given back")
        return RunTakenOver(job.run_id, self._opening.described(run.row.holder))

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _save(self, transaction: Transaction, jobs: Sequence[SaveCheckpoint]) -> list[None]:
        writes = [job.write for job in jobs]
        refusal = partial(self._refused, transaction, jobs[0])
        bulk.ADVANCE_RUNS.require(transaction, list(map(_run_row, writes)), self._me, refusal=refusal)
        self._give_back(transaction, (write.fence for write in writes if write.final))
        for write in writes:
            for decision in write.decisions:
                self._decide(transaction, write.fence.run_key, write.fence.run_id, decision)
            for request_id in write.delivers:
                self._deliver(transaction, write.fence.run_key, request_id)
        if nodes := _node_rows(writes):
            bulk.INSERT_NODES.run(transaction, nodes)
        if by_hand := [write for write in writes if not write.forget_calls]:
            # Only an id that somebody has chosen can be one that another run has already.
            rows = [(write.stored.checkpoint_id, write.fence.run_key) for write in by_hand]
            bulk.LOSE_NEWEST.run(transaction, rows)
        bulk.INSERT_CHECKPOINTS.run(transaction, list(map(_checkpoint_row, writes)))
        if requests := _request_rows(writes):
            bulk.INSERT_REQUESTS.run(transaction, requests)
        if forgetful := [write.fence.run_key for write in writes if write.forget_calls]:
            transaction.execute(bulk.FORGET_CALLS, (forgetful,))
        if limited := [write for write in writes if write.keep is not None]:
            self._prune(transaction, limited)
        return [None] * len(jobs)

    def save_alone(self, connection: Connection, mark: Sequence[Any], jobs: Sequence[SaveCheckpoint]) -> None:
        """Checkpoints and nothing else, of different runs, in one statement; `Contested` if a fence fails."""
        writes = [job.write for job in jobs]
        forgetful = [write.fence.run_key for write in writes]
        before = (*mark, *bulk.columns_of(list(map(_run_row, writes))), self._me, len(writes), forgetful)
        nodes = _node_rows(writes)
        statement = bulk.SAVE_AT_ONCE_WITH_NODES if nodes else bulk.SAVE_AT_ONCE
        statement.run_alone(connection, (*before, *bulk.columns_of(nodes)), list(map(_checkpoint_row, writes)))

    def after_saving(self, jobs: Sequence[SaveCheckpoint]) -> list[Callable[[], object]]:
        """What to do once these are committed."""
        return [partial(self._no_longer_held, job.fence) for job in jobs if job.write.final]

    def _prune(self, transaction: Transaction, writes: Sequence[CheckpointWrite]) -> None:
        for keep in {write.keep for write in writes}:
            run_keys = [write.fence.run_key for write in writes if write.keep == keep]
            transaction.execute(bulk.PRUNE_CHECKPOINTS, (run_keys, keep))
        run_keys = [write.fence.run_key for write in writes]
        due = transaction.rows("SELECT key, sweep_at FROM runs WHERE key = ANY(%b::bigint[])", (run_keys,))
        sweep_at: dict[int, int] = dict(due)
        for write in writes:
            key = write.fence.run_key
            limit = sweep_at.get(key) or key * NODES_PER_RUN + SPARED_NODES
            if write.nodes and write.nodes[-1].id >= limit:
                self._sweep_run(transaction, key)

    def _sweep_run(self, transaction: Transaction, run_key: int) -> None:
        """Look for unused nodes, and not again before as many are written as are now in use: it costs what it saves."""
        ((origin, next_node),) = transaction.rows("SELECT origin, next_node FROM runs WHERE key = %s", (run_key,))
        sweep(transaction.rows, self._schema, origin)
        sweep_at = next_node + SPARED_NODES + nodes_left(transaction.rows, origin)
        transaction.execute("UPDATE runs SET sweep_at = %s WHERE key = %s", (sweep_at, run_key))

    def _delete_checkpoint(self, transaction: Transaction, job: DeleteCheckpoint) -> bool:
        bulk.LOSE_NEWEST.run(transaction, [(job.checkpoint_id, _NO_RUN)])
        deleted = transaction.rows(
            "DELETE FROM checkpoints WHERE checkpoint_id = %s RETURNING run_key", (job.checkpoint_id,)
        )
        if not deleted:
            return False
        ((run_key,),) = deleted
        run = reading.run_with_key(transaction.rows, run_key)
        if run is None:
            raise CheckpointDamaged(job.checkpoint_id, "the run it belongs to is missing")
        if run.row.state == SAVED_BY_HAND and self._is_empty(transaction, run):
            self._forget_run(transaction, run)
        else:
            sweep(transaction.rows, self._schema, run.row.origin)
        return True

    def _is_empty(self, transaction: Transaction, run: StoredRun) -> bool:
        """Has it no checkpoint left, and nobody who is about to save one?"""
        locked = reading.locked_runs(transaction.rows, [run.row.run_id]).get(run.row.run_id)
        if locked is None or locked.row.holder is not None:
            return False
        return not transaction.rows("SELECT 1 FROM checkpoints WHERE run_key = %s LIMIT 1", (run.row.key,))

    # --- the journal -------------------------------------------------------------------------------------------------

    def _record_calls(self, transaction: Transaction, jobs: Sequence[RecordCall]) -> list[None]:
        self._fence(transaction, jobs)
        self._remove_calls(transaction, [(job.fence, call_id) for job in jobs for call_id in job.supersedes])
        bulk.RECORD_CALLS.run(transaction, list(map(_call_row, jobs)))
        return [None] * len(jobs)

    def record_alone(self, connection: Connection, mark: Sequence[Any], jobs: Sequence[RecordCall]) -> None:
        """Calls that replace no others, with the holder's mark, in one statement; `Contested` if a fence fails."""
        keys, epochs = zip(*sorted(_fences(jobs)), strict=True)
        before = (*mark, list(keys), list(epochs), self._me, len(keys))
        bulk.RECORD_AT_ONCE.run_alone(connection, before, list(map(_call_row, jobs)))

    def _drop_calls(self, transaction: Transaction, job: DropCalls) -> None:
        self._fence(transaction, [job])
        self._remove_calls(transaction, [(job.fence, call_id) for call_id in job.call_ids])

    def _remove_calls(self, transaction: Transaction, calls: Sequence[tuple[Fence, str]]) -> None:
        if calls:
            bulk.REMOVE_CALLS.run(transaction, [(fence.run_key, name_key(call_id)) for fence, call_id in calls])

    # --- people ------------------------------------------------------------------------------------------------------

    def _answer(self, transaction: Transaction, job: AnswerRequest) -> None:
        run = reading.run_with_id(transaction.rows, job.run_id)
        if run is None:
            raise UnknownRun(job.run_id, "list_runs() shows the runs there are")
        run.check(reading.newest_of_run(transaction.rows, run.row.key))
        self._decide(transaction, run.row.key, job.run_id, job.decision)

    def _decide(self, transaction: Transaction, run_key: int, run_id: str, decision: Decision) -> None:
        transaction.require(
            1,
            bulk.ANSWER_REQUEST,
            (
                storable(decision.value),
                decision.answered_at,
                decision.typed,
                run_key,
                name_key(decision.request_id),
                decision.replaces_unusable,
            ),
            partial(self._second_answer, transaction, run_key, run_id, decision.request_id),
        )

    def _deliver(self, transaction: Transaction, run_key: int, request_id: str) -> None:
        """An answer recorded without the program has reached it, and passed its check."""
        transaction.execute(bulk.DELIVER_ANSWER, (run_key, name_key(request_id)))

    def _second_answer(self, transaction: Transaction, run_key: int, run_id: str, request_id: str) -> Exception:
        requests = reading.requests_of_runs(transaction.rows, [run_key]).get(run_key, [])
        decisions = {row.summary.request_id: row.decision for row in requests}
        given = decisions.get(request_id)
        if given is None:
            return UnknownRequest(request_id, tuple(name for name, decision in decisions.items() if decision is None))
        return AlreadyAnswered(request_id, run_id, given.answered_at, decision_text(given))

    # --- runs that nobody holds --------------------------------------------------------------------------------------

    def _held_by_nobody(self, transaction: Transaction, run_id: str) -> StoredRun | None:
        run = reading.locked_runs(transaction.rows, [run_id]).get(run_id)
        if run is not None and (busy := self._opening.busy(transaction, run)) is not None:
            raise busy
        return run

    def _cancel(self, transaction: Transaction, job: CancelRun) -> None:
        run = self._held_by_nobody(transaction, job.run_id)
        if run is None:
            raise UnknownRun(job.run_id, "list_runs() shows the runs there are")
        run.check(reading.newest_of_run(transaction.rows, run.row.key))
        transaction.execute(bulk.CANCEL_RUN, (run.row.key,))

    def _delete_run(self, transaction: Transaction, job: DeleteRun) -> bool:
        run = self._held_by_nobody(transaction, job.run_id)
        if run is None:
            return False
        self._forget_run(transaction, run)
        return True

    def _forget_run(self, transaction: Transaction, run: StoredRun) -> None:
        key, origin = run.row.key, run.row.origin
        for statement in (
            "DELETE FROM checkpoints WHERE run_key = %s",
            "DELETE FROM calls WHERE run_key = %s",
            "DELETE FROM requests WHERE run_key = %s",
            "DELETE FROM runs WHERE key = %s",
        ):
            transaction.execute(statement, (key,))
        # Branches may still refer to its nodes; the sweep forgets it if they do not.
        transaction.execute("INSERT INTO departed (run_key, origin) VALUES (%s, %s)", (key, origin))
        sweep(transaction.rows, self._schema, origin)


def _fences(jobs: Sequence[Fenced]) -> set[tuple[int, int]]:
    return {(job.fence.run_key, job.fence.epoch) for job in jobs}


def _run_row(write: CheckpointWrite) -> tuple[Any, ...]:
    return (
        write.fence.run_key,
        write.fence.epoch,
        write.expected_sweeps,
        write.state,
        write.sequence,
        write.supersteps,
        write.usage,
        write.updated_at,
        write.nodes[-1].id + 1 if write.nodes else 0,
        write.stored.checkpoint_id,
        write.final,
    )


def is_plain(job: Job) -> bool:
    """Is it a checkpoint and nothing else: no people, no retention, not saved by hand?"""
    if type(job) is not SaveCheckpoint:
        return False
    write = job.write
    return not (write.requests or write.decisions or write.delivers) and write.keep is None and write.forget_calls


def _node_rows(writes: Sequence[CheckpointWrite]) -> list[tuple[Any, ...]]:
    return [(node.id, node.digest, array_text(node.refs), node.text) for write in writes for node in write.nodes]


def _checkpoint_row(write: CheckpointWrite) -> tuple[Any, ...]:
    stored, root = write.stored, write.stored.root
    workflow = name_key(write.workflow_name)
    return (
        stored.checkpoint_id,
        stored.run_key,
        workflow,
        root.digest,
        stored.header,
        array_text(root.refs),
        root.text,
    )


def _request_rows(writes: Sequence[CheckpointWrite]) -> list[tuple[Any, ...]]:
    return [
        (
            write.fence.run_key,
            name_key(asked.request_id),
            storable(asked.request_id),
            storable(asked.source_executor_id),
            storable(asked.request_type),
            storable(asked.response_type),
            asked.asked_at,
            asked.deadline or "",
            storable(asked.shown),
        )
        for write in writes
        for asked in write.requests
    ]


def _call_row(job: RecordCall) -> tuple[Any, ...]:
    text = call_text(job.row)
    call_id = job.row.call_id
    return job.fence.run_key, name_key(call_id), storable(call_id), call_digest(text), text
