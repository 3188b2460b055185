"""Who may hold runs of a file storage, and who still lives.

Each storage instance keeps an OS lock that dies with its process (see `liveness.py`). Its lease is written into the
locked file itself, without an fsync: it only means something while its owner lives. A storage of this kind is on a
local file system, so whoever sees the lock shares the kernel that keeps it, whatever its host is called.
"""

from __future__ import annotations

import os
import time

from stepwell.checkpointing.lease import Holder
from stepwell.checkpointing.storage.file_disk import Layout, closing, open_regular, read_from
from stepwell.checkpointing.storage.liveness import HolderLocks, Lease
from stepwell.checkpointing.storage.records import RunRow
from stepwell.checkpointing.storage.sqlite_jobs import Seat
from stepwell.errors import RunBusy

_LEASE_BYTES = 64


class Seats:
    """The storage instances of this process that may hold runs."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._locks = HolderLocks(layout.holders)
        self._taken: list[Seat] = []
        self._heard_of = 0.0

    def take(self, seat: Seat) -> None:
        """Become a holder. The lock comes before anything that names it."""
        seat.holder = Holder.here()
        seat.lock = self._locks.take(seat.holder.instance)
        self._taken.append(seat)
        self._renew(seat)

    def leave(self, seat: Seat) -> None:
        """From now on this instance counts as dead."""
        if seat.lock is not None:
            seat.lock.release()
        seat.lock = seat.holder = None
        seat.held.clear()
        if seat in self._taken:
            self._taken.remove(seat)

    def leave_all(self) -> None:
        for seat in list(self._taken):
            self.leave(seat)

    def bury_the_dead(self) -> None:
        """Remove the lock files of the dead; the caller has the whole store to itself."""
        self._locks.sweep(())

    def busy(self, row: RunRow) -> RunBusy | None:
        """Why this run can't be had, or None if nobody alive holds it."""
        if row.holder is None:
            return None
        holder = Holder.parse(row.holder)
        # Whoever is in this process is as awake as we are, even if its lease ran out while both were asleep.
        if not self._is_here(holder) and self._may_be_replaced(holder):
            return None
        return RunBusy(row.run_id, self.described(holder))

    def described(self, holder: Holder) -> str:
        return f"{holder.described} (this process)" if self._is_here(holder) else holder.described

    def _is_here(self, holder: Holder) -> bool:
        return any(seat.holder == holder for seat in self._taken)

    def _may_be_replaced(self, holder: Holder) -> bool:
        return not self._locks.is_held(holder.instance) or time.monotonic() >= self._lease(holder).expires_here

    # --- leases ------------------------------------------------------------------------------------------------------

    def _lease(self, holder: Holder) -> Lease:
        try:
            with closing(open_regular(self._layout.holders / f"{holder.instance}.lock", os.O_RDONLY)) as descriptor:
                expires, expires_here = read_from(descriptor).split()
            return Lease(float(expires), float(expires_here))
        except FileNotFoundError:
            return Lease(0.0, 0.0)
        except ValueError:  # caught in the middle of being written, so its owner is awake
            return Lease.lasting(1.0)

    def pause(self) -> float | None:
        """After how many seconds the leases are due again; None while nobody here holds a run."""
        leases = [seat.lease_seconds for seat in self._taken if seat.held]
        return max(0.0, self._heard_of + min(leases) / 3 - time.monotonic()) if leases else None

    def renew(self) -> None:
        """Say that the holders of this process live, if it is time to."""
        if self.pause() == 0.0:
            for seat in self._taken:
                self._renew(seat)

    def announce(self, seat: Seat) -> None:
        """One who held nothing is about to: it was silent since it last did."""
        if not seat.held:
            self._renew(seat)

    def _renew(self, seat: Seat) -> None:
        self._heard_of = time.monotonic()
        if seat.lock is not None:
            lease = Lease.lasting(seat.lease_seconds)
            text = f"{lease.expires:.6f} {lease.expires_here:.6f}".ljust(_LEASE_BYTES - 1) + "\n"
            os.pwrite(seat.lock.descriptor, text.encode(), 0)
