"""What may befall a store while a run is under way: no more space, an I/O error, no permission to write."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from stepwell.checkpointing.storage.file_operations import Buffer, Disk, served_by
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


def _used(path: Path) -> int:
    """How far a file is written; a database's log has been given more room than it needs so far."""
    if not path.name.endswith("-wal"):
        return path.stat().st_size
    content = path.read_bytes()
    salt, frame, end = content[16:24], 24 + 4096, 32
    while content[end + 8 : end + 16] == salt:
        end += frame
    return end


class NoMoreSpace:
    """No file of this process may grow beyond what the largest of the store has now: each write past it fails."""

    def __init__(self, store: str, oracle: Oracle) -> None:
        self._store = store
        self._oracle = oracle

    def begin(self) -> None:
        largest = max(map(_used, files_of(self._store)))
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


# --- a disk that fails ------------------------------------------------------------------------------------------------


class FailingDisk(Disk):
    """A disk on which nothing can be changed: each operation fails as the kernel would let it fail.

    With no space left a write takes what still fits, half of it, before the next one fails.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._room = number == errno.ENOSPC

    def _fail(self) -> None:
        raise OSError(self._number, os.strerror(self._number))

    def open(self, path: Path, flags: int, mode: int = 0o600, *, folder: int | None = None) -> int:
        if flags & os.O_CREAT and not path.exists():
            self._fail()
        return super().open(path, flags, mode, folder=folder)

    def write(self, descriptor: int, data: Buffer) -> int:
        if self._room and len(data) > 1:
            self._room = False
            return super().write(descriptor, data[: len(data) // 2])
        self._fail()
        return 0

    def sync(self, descriptor: int) -> None:
        self._fail()

    def rename(self, path: Path, target: Path) -> None:
        self._fail()

    def mkdir(self, path: Path) -> None:
        self._fail()


class FailingFiles:
    """Whatever a file storage of this process asks of the disk fails with this error."""

    def __init__(self, number: int, oracle: Oracle) -> None:
        self._disk = FailingDisk(number)
        self._oracle = oracle
        self._while = ExitStack()

    def begin(self) -> None:
        self._while.enter_context(served_by(self._disk))
        self._oracle.note("trouble")

    def end(self) -> None:
        self._while.close()
        self._oracle.note("repair")


# --- a disk that is full ----------------------------------------------------------------------------------------------


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """A file system of a few megabytes at this place; `PermissionError` where such a thing may not be mounted."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "none", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        raise PermissionError(errno.EPERM, "a file system can't be mounted here", str(place))
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


class FullDisk:
    """Something else has taken all the space there is on the store's (small) file system."""

    def __init__(self, store: str, oracle: Oracle) -> None:
        self._ballast = Path(store.partition(":")[2]).parent / "ballast"
        self._oracle = oracle

    def begin(self) -> None:
        with self._ballast.open("wb", buffering=0) as file:
            for size in (1 << 16, 1):
                try:
                    while file.write(bytes(size)):
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        self._oracle.note("trouble")

    def end(self) -> None:
        self._ballast.unlink()
        self._oracle.note("repair")


def no_more_space(store: str, oracle: Oracle) -> Trouble:
    return FailingFiles(errno.ENOSPC, oracle) if store.startswith("file:") else NoMoreSpace(store, oracle)


def input_output_errors(store: str, oracle: Oracle) -> Trouble:
    return FailingFiles(errno.EIO, oracle) if store.startswith("file:") else BrokenDescriptors(store, oracle)


TROUBLES: dict[str, Callable[[str, Oracle], Trouble]] = {
    "space": no_more_space,
    "io": input_output_errors,
    "full": FullDisk,
}


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
