"""The one door to the disk: every change that a file storage makes goes through a `Disk`.

There is one per process, because a disk is. Tests put another in its place (`served_by`): one that fails as disks do,
or one that keeps a record of everything, from which the states that a power cut could leave are made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Buffer = bytes | memoryview

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Disk:
    """What the operating system offers, and nothing else."""

    def open(self, path: Path, flags: int, mode: int = 0o600, *, folder: int | None = None) -> int:
        """Open `path`, which is looked up by its last name in `folder` if that is given."""
        return os.open(path if folder is None else path.name, flags, mode, dir_fd=folder)

    def write(self, descriptor: int, data: Buffer) -> int:
        return os.write(descriptor, data)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """Make durable what this file holds, or what this folder's names lead to."""
        os.fsync(descriptor)

    def rename(self, path: Path, target: Path) -> None:
        os.rename(path, target)  # noqa: PTH104 - each call counts here

    def unlink(self, path: Path) -> None:
        os.unlink(path)  # noqa: PTH108

    def mkdir(self, path: Path) -> None:
        os.mkdir(path, 0o700)  # noqa: PTH102

    def rmdir(self, path: Path) -> None:
        os.rmdir(path)  # noqa: PTH106

    def boot(self) -> bytes:
        """What changes with every start of this machine; empty where there is no such thing."""
        try:
            return _BOOT.read_bytes().strip()
        except FileNotFoundError:
            return b""


_disk: Disk = Disk()
_boot: bytes | None = None


@contextmanager
def served_by(disk: Disk) -> Iterator[None]:
    """All storages of this process use this disk for a while."""
    global _disk, _boot
    before, _disk, _boot = _disk, disk, None
    try:
        yield
    finally:
        _disk, _boot = before, None


def open_file(path: Path, flags: int, mode: int = 0o600, *, folder: int | None = None) -> int:
    return _disk.open(path, flags, mode, folder=folder)


def write_all(descriptor: int, data: bytes) -> None:
    """All of it, or an error: a full disk may take the first half."""
    view = memoryview(data)
    while view:
        view = view[_disk.write(descriptor, view) :]


def truncate(descriptor: int, size: int) -> None:
    _disk.truncate(descriptor, size)


def sync(descriptor: int) -> None:
    _disk.sync(descriptor)


def rename(path: Path, target: Path) -> None:
    _disk.rename(path, target)


def unlink(path: Path) -> None:
    """Remove a file, if it is there."""
    with suppress(FileNotFoundError):
        _disk.unlink(path)


def mkdir(path: Path) -> None:
    """A folder that only its owner can enter."""
    _disk.mkdir(path)


def rmdir(path: Path) -> None:
    _disk.rmdir(path)


def boot() -> bytes:
    """Asked once: it can't change under a running process."""
    global _boot
    if _boot is None:
        _boot = _disk.boot()
    return _boot
