"""Files and folders of a file storage: opened without following links, made durable, locked.

Every name that reaches a path here was checked before (`checked_id`, or hexadecimal digits). Links are never followed
below the store's own folder, and nothing but regular files is read: a pipe would keep its reader waiting for ever.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stepwell.checkpointing.storage.file_operations import mkdir, open_file, rename, rmdir, sync, unlink, write_all
from stepwell.errors import CheckpointDamaged, StorageError, WorkflowCheckpointException

BUSY_SECONDS = 20.0
"""How long another process may keep something locked before a write gives up."""

_CAREFULLY = os.O_CLOEXEC | os.O_NOFOLLOW
_CHUNK = 1 << 20
LARGEST_FILE = 1 << 32


class Layout:
    """Where everything is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inner = root / ".stepwell"
        self.format = self.inner / "format"
        self.lock = self.inner / "lock"
        self.index = self.inner / "index"
        self.holders = self.inner / "holders"
        self.families = self.inner / "families"
        self.runs = self.inner / "runs"
        self.departed = self.inner / "departed"
        self.new = self.inner / "new"

    @property
    def folders(self) -> tuple[Path, ...]:
        return self.holders, self.families, self.runs, self.departed, self.new

    def checkpoint(self, checkpoint_id: str) -> Path:
        return self.root / f"{checkpoint_id}.json"

    def temporary(self, checkpoint_id: str) -> Path:
        return self.root / f"{checkpoint_id}.json.tmp"

    def run(self, run_id: str) -> Path:
        return self.runs / run_id

    def departed_run(self, key: int) -> Path:
        return self.departed / f"{key:012x}"


def failure(error: OSError, where: Path) -> WorkflowCheckpointException:
    """What went wrong with the store, in terms of stepwell."""
    if error.errno == errno.ELOOP:
        return StorageError(str(error.filename or where), "this is a symbolic link, and links are not followed")
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    return StorageError(str(where), f"{error.strerror or error} ({name})")


# --- opening ----------------------------------------------------------------------------------------------------------


def open_regular(path: Path, flags: int, *, mode: int = 0o600) -> int:
    """A descriptor of a regular file; neither its name nor its folder's may be a link."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | _CAREFULLY)  # noqa: PTH120 - often called
    try:
        # Not waiting for the other end of a pipe that pretends to be a checkpoint.
        descriptor = open_file(path, flags | _CAREFULLY | os.O_NONBLOCK, mode, folder=folder)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointDamaged(path.name, "it is not a regular file")
    return descriptor


def open_in_root(path: Path, flags: int) -> int:
    """The same for a file at the top of the store, whose folder may well be reached through a link."""
    descriptor = open_file(path, flags | _CAREFULLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointDamaged(path.name, "it is not a regular file")
    return descriptor


@contextmanager
def closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_from(descriptor: int, offset: int = 0) -> bytes:
    """Everything from `offset` to the end, unless that is more than anything of ours can be."""
    if os.fstat(descriptor).st_size - offset > LARGEST_FILE:
        raise CheckpointDamaged("a file of the store", "it is larger than any of ours can be")
    parts: list[bytes] = []
    while part := os.pread(descriptor, _CHUNK, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


Identity = tuple[int, int, bytes]


Look = tuple[int, int, int, int]


def look_of(file: int | Path) -> Look:
    """What can be told of a file without opening it: if that has not changed, neither has the file.

    The time of its last change tells a file from one that has since been given its number.
    """
    found = os.fstat(file) if isinstance(file, int) else file.lstat()
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns


def identity(descriptor: int) -> Identity:
    """Which file this is. A number is soon given to another file, so the checksum of its first line counts too."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino, os.pread(descriptor, 16, 0)


# --- making durable ---------------------------------------------------------------------------------------------------


def sync_folder(path: Path) -> None:
    """Make durable what the folder's names lead to."""
    with closing(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        sync(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Exchange a file's content in one instant: whoever opens it finds the old or the new, whole."""
    temporary = path.with_name(f"{path.name}.tmp")
    with closing(open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)) as descriptor:
        write_all(descriptor, data)
        sync(descriptor)
    rename(temporary, path)
    sync_folder(path.parent)


def create_folder(path: Path) -> None:
    """A folder that only its owner can enter, with all that lead to it."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        with suppress(FileExistsError):  # somebody else was faster
            mkdir(folder)
        sync_folder(folder.parent)


def remove_folder(path: Path) -> None:
    """A folder of ours: it has files in it and no folders. Links in it are removed, not followed."""
    if path.is_symlink() or not path.is_dir():
        unlink(path)
        return
    for entry in list(path.iterdir()):
        unlink(entry)
    rmdir(path)


# --- locking ----------------------------------------------------------------------------------------------------------


def lock_file(path: Path, how: int, *, wait: float = BUSY_SECONDS) -> int | None:
    """The descriptor of a locked file, which is created if it is not there; None if somebody keeps it locked."""
    deadline = time.monotonic() + wait
    while True:
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            if _locked(descriptor, how, deadline) is False:
                os.close(descriptor)
                return None
            if _is_still(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # removed while we waited: the name means another file now


def _locked(descriptor: int, how: int, deadline: float) -> bool:
    pause = 0.0005
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            # No blocking flock: its owner may be frozen, and this thread writes for everybody in the process.
            time.sleep(pause)
            pause = min(pause * 2, 0.02)
        else:
            return True


def _is_still(descriptor: int, path: Path) -> bool:
    try:
        now = path.lstat()
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino)


def unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
