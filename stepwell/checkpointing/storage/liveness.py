"""Is that holder alive?

Each storage instance keeps an exclusive OS lock on a small file of its own for as long as it may hold runs. The kernel
drops the lock with the process, however that ends, so the next runner knows at once and does not wait for a lease.

The lease is for what a lock can't tell: a holder on another host, and one that is frozen. Whoever is frozen for longer
than its lease may be taken over, and its next write is refused by the fence. On the same host the lease is measured by
the monotonic clock, which stands still while a laptop sleeps: its holders wake up with their leases as they were.

All functions here are called by one process at a time: the caller holds the database's write lock.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stepwell.checkpointing.lease import Holder
from stepwell.checkpointing.storage.forking import after_fork_in_child

_SUFFIX = ".lock"
_descriptors: set[int] = set()


@dataclass(frozen=True, slots=True)
class Lease:
    """Until when a holder counts as alive without being heard of, by both clocks."""

    expires: float
    expires_here: float

    @classmethod
    def lasting(cls, seconds: float) -> Lease:
        return cls(time.time() + seconds, time.monotonic() + seconds)


@dataclass(slots=True)
class HolderLock:
    """An OS lock that says: this storage instance lives."""

    path: Path
    descriptor: int

    def release(self) -> None:
        self.path.unlink(missing_ok=True)
        _descriptors.discard(self.descriptor)
        os.close(self.descriptor)


class HolderLocks:
    """The lock files beside a database, one per storage instance that may hold runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, instance: str) -> HolderLock:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._path(instance)
        # O_CLOEXEC: a program started by this one must not keep the lock alive after this one's death.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        _descriptors.add(descriptor)
        return HolderLock(path, descriptor)

    def is_held(self, instance: str) -> bool:
        try:
            descriptor = os.open(self._path(instance), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            # Shared, so that two who look at the same time do not take each other for the holder.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def may_be_replaced(self, holder: Holder, lease: Lease) -> bool:
        """Is it certain that this holder is dead, or has it been silent for longer than its lease?"""
        if holder.host != socket.gethostname():
            return time.time() >= lease.expires
        return not self.is_held(holder.instance) or time.monotonic() >= lease.expires_here

    def sweep(self, known: Container[str]) -> None:
        """Remove the files of holders that are dead and that no record names any more."""
        with suppress(FileNotFoundError):
            for name in os.listdir(self._folder):  # noqa: PTH208 - a tenth of the time of `Path.glob`
                instance = name.removesuffix(_SUFFIX)
                if name.endswith(_SUFFIX) and instance not in known and not self.is_held(instance):
                    (self._folder / name).unlink(missing_ok=True)

    def _path(self, instance: str) -> Path:
        if not instance.isalnum():
            raise ValueError(f"{instance!r} is not the name of a storage instance")
        return self._folder / f"{instance}{_SUFFIX}"


def _close_inherited() -> None:
    # The lock belongs to the parent's open file. Closing the copy leaves it locked; keeping the copy would keep it
    # locked after the parent's death.
    while _descriptors:
        os.close(_descriptors.pop())


after_fork_in_child(_close_inherited)
