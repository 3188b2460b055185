"""Opening runs: who has it, and does that one still live?"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from stepwell.checkpointing.lease import Holder
from stepwell.checkpointing.storage import postgres_bulk as bulk
from stepwell.checkpointing.storage import postgres_reading as reading
from stepwell.checkpointing.storage.postgres_connection import Target
from stepwell.checkpointing.storage.postgres_jobs import Disown, OpenRun
from stepwell.checkpointing.storage.postgres_liveness import ALIVE, BURY_THE_DEAD
from stepwell.checkpointing.storage.postgres_reading import StoredRun
from stepwell.checkpointing.storage.postgres_sweep import family_lock
from stepwell.checkpointing.storage.postgres_text import name_key, storable
from stepwell.checkpointing.storage.postgres_transaction import Transaction
from stepwell.checkpointing.storage.recording import now
from stepwell.checkpointing.storage.records import NODES_PER_RUN, OpenedRun, OpenRequest, RunRow
from stepwell.errors import RunBusy, StorageError

holders_here: set[str] = set()
"""The storages that are open in this process. Whoever asks about one of them is as awake as it is."""


class Opening:
    """Creates runs and takes those that nobody alive holds."""

    def __init__(self, target: Target, holder: Holder, held: dict[int, int]) -> None:
        self._target = target
        self._me = str(holder)
        self._held = held
        self._has_buried = False

    def open(self, transaction: Transaction, jobs: Sequence[OpenRun]) -> list[OpenedRun | Exception]:
        self._bury_the_dead(transaction)
        known = reading.locked_runs(transaction.rows, [job.run_id for job in jobs])
        new = [job for job in jobs if job.run_id not in known and job.request.create]
        opened: dict[str, OpenedRun | Exception] = dict(self._created(transaction, new)) if new else {}
        if late := [job.run_id for job in new if job.run_id not in opened]:
            # Somebody else created it since we looked, and has committed: now it is there to be locked.
            known |= reading.locked_runs(transaction.rows, late)
            opened |= {name: self._vanished(name) for name in late}
        opened |= self._taken(transaction, list(known.values()))
        return [opened.get(job.run_id) or KeyError(job.run_id) for job in jobs]

    def _vanished(self, run_id: str) -> Exception:
        return StorageError(self._target.where, f"run {run_id!r} was created and deleted by others at this instant")

    def _bury_the_dead(self, transaction: Transaction) -> None:
        if not self._has_buried:
            transaction.execute(BURY_THE_DEAD)
            transaction.then(partial(setattr, self, "_has_buried", True))

    # --- new runs ----------------------------------------------------------------------------------------------------

    def _created(self, transaction: Transaction, jobs: Sequence[OpenRun]) -> Iterator[tuple[str, OpenedRun]]:
        rows = [self._new_row(transaction, job.request) for job in jobs]
        cursor = bulk.CREATE_RUNS.run(transaction, list(map(_columns, rows)))
        keys = dict(transaction.fetched(cursor))
        for row in rows:
            if (key := keys.get(row.run_id)) is not None:
                self._hold(transaction, key, row.epoch)
                first = key * NODES_PER_RUN + 1
                yield row.run_id, OpenedRun(replace(row, key=key), created=True, next_node=first, latest=None)

    def _new_row(self, transaction: Transaction, request: OpenRequest) -> RunRow:
        parent = request.branch_of
        return RunRow(
            key=0,
            run_id=request.run_id,
            workflow_name=request.workflow_name,
            state="STARTED",
            epoch=1,
            holder=self._me,
            origin=self._origin(transaction, request),
            updated_at=now(),
            parent_checkpoint_id=parent.checkpoint_id if parent else None,
            parent_run_id=parent.run_id if parent else None,
        )

    def _origin(self, transaction: Transaction, request: OpenRequest) -> str:
        if request.branch_of is None:
            return request.run_id
        found = transaction.rows(
            "SELECT r.origin FROM checkpoints AS c JOIN runs AS r ON r.key = c.run_key WHERE c.checkpoint_id = %s",
            (request.branch_of.checkpoint_id,),
        )
        if not found:
            return request.run_id
        ((origin,),) = found
        # A sweep of the family must either see the new branch, or be over before it reads anything.
        lock = family_lock(self._target.schema, origin)
        transaction.execute("SELECT pg_advisory_xact_lock_shared(%s)", (lock,))
        return str(origin)

    # --- runs that are there -----------------------------------------------------------------------------------------

    def _taken(self, transaction: Transaction, runs: Sequence[StoredRun]) -> dict[str, OpenedRun | Exception]:
        busy = self._busy(transaction, runs)
        free = [run for run in runs if run.row.run_id not in busy]
        return {**busy, **(self._take(transaction, free) if free else {})}

    def _take(self, transaction: Transaction, runs: Sequence[StoredRun]) -> dict[str, OpenedRun]:
        keys = [run.row.key for run in runs]
        transaction.execute(
            "UPDATE runs SET epoch = epoch + 1, holder = %s WHERE key = ANY(%b::bigint[])", (self._me, keys)
        )
        latest = reading.latest_of_runs(transaction.rows, keys)
        for run in runs:
            found = latest.get(run.row.key)
            run.check(None if found is None else found.checkpoint_id)
        calls = reading.calls_of_runs(transaction.rows, keys)
        requests = reading.requests_of_runs(transaction.rows, keys)
        for run in runs:
            self._hold(transaction, run.row.key, run.row.epoch + 1)
        return {
            run.row.run_id: OpenedRun(
                row=replace(run.row, epoch=run.row.epoch + 1, holder=self._me),
                created=False,
                next_node=max(run.next_node, run.row.key * NODES_PER_RUN + 1),
                latest=latest.get(run.row.key),
                calls=tuple(calls.get(run.row.key, ())),
                requests=tuple(requests.get(run.row.key, ())),
            )
            for run in runs
        }

    def _hold(self, transaction: Transaction, key: int, epoch: int) -> None:
        transaction.taken[key] = epoch
        transaction.then(partial(self._held.__setitem__, key, epoch))

    def disown(self, transaction: Transaction, job: Disown) -> None:
        """Give it back if this storage is on record as its holder and nobody here knows."""
        run = reading.locked_runs(transaction.rows, [job.run_id]).get(job.run_id)
        if run is not None and run.row.holder == self._me and not self._is_held_here(transaction, run):
            transaction.execute("UPDATE runs SET holder = NULL WHERE key = %s", (run.row.key,))

    # --- alive or dead -----------------------------------------------------------------------------------------------

    def busy(self, transaction: Transaction, run: StoredRun) -> RunBusy | None:
        """Why this run can't be had, or None if nobody alive holds it."""
        return self._busy(transaction, [run]).get(run.row.run_id)

    def described(self, holder: str) -> str:
        parsed = Holder.parse(holder)
        here = parsed.pid == os.getpid() and parsed.host == socket.gethostname()
        return f"{parsed.described} (this process)" if here else parsed.described

    def _busy(self, transaction: Transaction, runs: Sequence[StoredRun]) -> dict[str, RunBusy]:
        held = {run.row.run_id: (run, run.row.holder) for run in runs if run.row.holder is not None}
        others = sorted({holder for _, holder in held.values()} - holders_here)
        alive = {holder for (holder,) in transaction.rows(ALIVE, (others,))} if others else set()
        return {
            run_id: RunBusy(run_id, self.described(holder))
            for run_id, (run, holder) in held.items()
            if holder in alive or (holder in holders_here and self._is_held_here(transaction, run))
        }

    def _is_held_here(self, transaction: Transaction, run: StoredRun) -> bool:
        """Does somebody in this process know that this run is held? What is another storage's, that one knows."""
        if run.row.holder != self._me:
            return True
        return run.row.epoch in (self._held.get(run.row.key), transaction.taken.get(run.row.key))


def _columns(row: RunRow) -> tuple[Any, ...]:
    return (
        row.run_id,
        name_key(row.workflow_name),
        storable(row.workflow_name),
        row.origin,
        row.holder,
        row.state,
        row.updated_at,
        row.parent_checkpoint_id or "",
        row.parent_run_id or "",
    )
