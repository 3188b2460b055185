"""What may befall a store while a run is under way: no more space, an I/O error, no permission to write."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from stepwell.testing.crash import Watcher
from tests.faults.oracle import Oracle


class Trouble(Protocol):
    """It begins, and it is repaired; both are noted by the oracle."""

    def begin(self) -> None: ...

    def end(self) -> None: ...


class Ahead:
    """A `Watcher` that brings trouble after so many recorded calls."""

    def __init__(self, trouble: Trouble, calls: int, watch: Watcher) -> None:
        self._trouble = trouble
        self._calls = calls
        self._watch = watch

    def __call__(self, point: str, subject: str) -> None:
        self._watch(point, subject)
        if point == "after call":
            self._calls -= 1
            if self._calls == 0:
                self._trouble.begin()


def files_of(store: str) -> list[Path]:
    """Everything a store that lives in files is made of."""
    location = Path(store.partition(":")[2])
    if location.is_dir():
        return [path for path in location.rglob("*") if path.is_file()]
    return [path for path in location.parent.rglob(f"{location.name}*") if path.is_file()]


class NoMoreSpace:
    """No file of this process may grow beyond what the largest of the store has now: each write past it fails."""

    def __init__(self, store: str, oracle: Oracle) -> None:
        self._store = store
        self._oracle = oracle

    def begin(self) -> None:
        largest = max(path.stat().st_size for path in files_of(self._store))
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
        self._oracle.note("trouble")

    def end(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self._oracle.note("repair")


class BrokenDescriptors:
    """Every file of the store that this process has open for writing can't be written to any more.

    Whoever opens the files anew finds them whole: the medium is back.
    """

    def __init__(self, store: str, oracle: Oracle) -> None:
        self._store = store
        self._oracle = oracle

    def begin(self) -> None:
        nowhere = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        for descriptor in self._descriptors():
            os.dup2(nowhere, descriptor, inheritable=False)
        os.close(nowhere)
        self._oracle.note("trouble")

    def end(self) -> None:
        self._oracle.note("repair")

    def _descriptors(self) -> list[int]:
        # The log alone: a database's other files carry its locks, which such a change would drop.
        logs = {path for path in files_of(self._store) if path.name.endswith("-wal")}
        return [number for number, target in _open_files() if target in logs]


def _open_files() -> list[tuple[int, Path]]:
    found: list[tuple[int, Path]] = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - these are no files
        try:
            found.append((int(name), Path(os.readlink(f"/proc/self/fd/{name}"))))  # noqa: PTH115
        except FileNotFoundError:  # the one that listed them
            continue
    return found


TROUBLES: dict[str, Callable[[str, Oracle], Trouble]] = {"space": NoMoreSpace, "io": BrokenDescriptors}


# --- permissions ------------------------------------------------------------------------------------------------------

_CAPABILITY_VERSION = 0x20080522
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2


def obey_permissions() -> None:
    """Give up root's right to ignore file permissions, for this thread and those it starts; others have none."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    data = (ctypes.c_uint32 * 6)()
    if libc.capget(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    for index in range(3):  # effective, permitted, inheritable
        data[index] &= ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH)
    if libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")
