"""Who may hold runs, and who still lives."""

from __future__ import annotations

import sqlite3
import time
from functools import cached_property
from pathlib import Path

from stepwell.checkpointing.lease import Holder
from stepwell.checkpointing.storage.liveness import HolderLocks, Lease
from stepwell.checkpointing.storage.sqlite_jobs import Seat
from stepwell.checkpointing.storage.sqlite_reading import StoredRun
from stepwell.errors import CheckpointDamaged, RunBusy


class Seats:
    """The storage instances of this process that may hold runs, and what the database knows of those of others.

    Everything happens within the caller's transaction, so no two processes look at the locks at the same time.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._taken: list[Seat] = []
        self._due = 0.0
        """When those who hold runs have to be heard of again, on this process's clock. Means nothing if nobody does."""

    @cached_property
    def _locks(self) -> HolderLocks:
        # Whatever links lead to the database, everybody has to look at the same locks.
        real = self._database.resolve()
        return HolderLocks(real.with_name(real.name + ".holders"))

    def take(self, connection: sqlite3.Connection, seat: Seat) -> None:
        """Become a holder: an OS lock first, then a row that names it. If either fails, the seat has to be left."""
        self._bury_the_dead(connection)
        seat.holder = Holder.here()
        seat.lock = self._locks.take(seat.holder.instance)
        lease = Lease.lasting(seat.lease_seconds)
        seat.holder_id = connection.execute(
            "INSERT INTO holders (holder, expires, expires_here) VALUES (?, ?, ?)",
            (str(seat.holder), lease.expires, lease.expires_here),
        ).lastrowid
        self._taken.append(seat)
        self._heard_of(seat)

    def announce(self, connection: sqlite3.Connection, seat: Seat) -> None:
        """One who held nothing is about to: it was silent since it last did, and may have been taken for dead."""
        lease = Lease.lasting(seat.lease_seconds)
        connection.execute(
            "INSERT OR REPLACE INTO holders (id, holder, expires, expires_here) VALUES (?, ?, ?, ?)",
            (seat.holder_id, str(seat.holder), lease.expires, lease.expires_here),
        )
        self._heard_of(seat)

    def _heard_of(self, seat: Seat) -> None:
        """The row of one who holds nothing yet is fresh."""
        due = time.monotonic() + seat.lease_seconds / 3
        self._due = due if self.pause() is None else min(self._due, due)

    def tidy(self, connection: sqlite3.Connection, seat: Seat) -> None:
        """Remove the row of one who leaves; if it still holds runs, the row says whose they were."""
        connection.execute(
            "DELETE FROM holders WHERE id = ? AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.holder = holders.id)",
            (seat.holder_id,),
        )

    def leave(self, seat: Seat) -> None:
        """From now on this instance counts as dead."""
        if seat.lock is not None:
            seat.lock.release()
        seat.lock = seat.holder = seat.holder_id = None
        seat.held.clear()
        if seat in self._taken:
            self._taken.remove(seat)

    def leave_all(self) -> None:
        for seat in list(self._taken):
            self.leave(seat)

    def busy(self, run: StoredRun) -> RunBusy | None:
        """Why this run can't be had, or None if nobody alive holds it."""
        if run.row.holder is None:
            return None
        try:
            holder = Holder.parse(run.row.holder)
            # Whoever is in this process is as awake as we are, even if its lease ran out while both were asleep.
            if not self._is_here(holder) and self._locks.may_be_replaced(holder, run.lease):
                return None
        except ValueError as error:
            raise CheckpointDamaged(f"run {run.row.run_id}", f"its holder can't be read: {error}") from error
        return RunBusy(run.row.run_id, self.described(holder))

    def described(self, holder: Holder) -> str:
        return f"{holder.described} (this process)" if self._is_here(holder) else holder.described

    def _is_here(self, holder: Holder) -> bool:
        return any(seat.holder == holder for seat in self._taken)

    # --- leases ------------------------------------------------------------------------------------------------------

    def pause(self) -> float | None:
        """After how many seconds the leases are due again; None while nobody here holds a run."""
        for seat in self._taken:
            if seat.held:
                return max(0.0, self._due - time.monotonic())
        return None

    def renew(self, connection: sqlite3.Connection) -> None:
        """Say that the holders of this process live, if it is time to."""
        if time.monotonic() < self._due or self.pause() is None:
            return
        for seat in self._taken:
            lease = Lease.lasting(seat.lease_seconds)
            connection.execute(
                "UPDATE holders SET expires = ?, expires_here = ? WHERE id = ?",
                (lease.expires, lease.expires_here, seat.holder_id),
            )
        self.postpone()

    def postpone(self) -> None:
        """Not again before a third of the shortest lease has passed."""
        shortest = min((seat.lease_seconds for seat in self._taken), default=0.0)
        self._due = time.monotonic() + shortest / 3

    def _bury_the_dead(self, connection: sqlite3.Connection) -> None:
        """Forget holders that are dead and hold nothing; those that do are needed to tell that they are dead."""
        rows = connection.execute(
            """SELECT id, holder, expires, expires_here, EXISTS (SELECT 1 FROM runs WHERE runs.holder = holders.id)
                FROM holders"""
        ).fetchall()
        known: set[str] = set()
        for holder_id, text, expires, expires_here, holds_runs in rows:
            if holds_runs:
                known.add(text.partition(":")[0])
                continue
            holder = Holder.parse(text)
            if not self._locks.may_be_replaced(holder, Lease(expires, expires_here)):
                known.add(holder.instance)
            else:
                connection.execute("DELETE FROM holders WHERE id = ?", (holder_id,))
        self._locks.sweep(known)
