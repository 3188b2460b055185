"""A write on its way to the disk, in steps that many writes take together.

    begin     write the temporary files, add the lines; nothing counts yet
    sync      make all of that durable, for the whole group at once
    publish   rename, make the folders' entries durable
    effects   remember that it happened

Order, and why every crash between is safe. The note that names a checkpoint and the checkpoint's temporary file become
durable in the same step, in either order, and the file gets its name afterwards. A crash before both are durable: the
next one to lock the run finds a note whose file is not whole and that the index has not heard of, and cuts the note
off; nobody was told of it. A crash before the rename: the temporary file is whole, so it gets its name. A crash before
the index heard of it: the next one to lock the run tells it. A file that has its name is therefore always named by a
note, and replacing a checkpoint never leaves a moment in which neither the old nor the new one can be read.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepwell.checkpointing.storage.file_disk import open_in_root, open_regular, sync_folder
from stepwell.checkpointing.storage.file_index import Entry
from stepwell.checkpointing.storage.file_operations import mkdir, rename, sync, truncate, unlink, write_all

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Append:
    """Lines to be added to a file whose last whole line ends at `end`."""

    path: Path
    end: int
    data: bytes
    descriptor: int = -1

    def begin(self) -> None:
        self.descriptor = self._opened()
        size = os.fstat(self.descriptor).st_size
        if size < self.end:
            raise OSError(errno.EIO, "the file is shorter than what was written to it", str(self.path))
        if size > self.end:
            # What a crash or a full disk left of an unfinished line must not become the beginning of this one.
            truncate(self.descriptor, self.end)
        if self.end and os.pread(self.descriptor, 1, self.end - 1) != b"\n":
            self.data = b"\n" + self.data
        os.lseek(self.descriptor, self.end, os.SEEK_SET)
        write_all(self.descriptor, self.data)

    def _opened(self) -> int:
        try:
            return open_regular(self.path, os.O_RDWR)
        except FileNotFoundError:  # a journal that was removed by hand, or lost when the store was copied
            descriptor = open_regular(self.path, os.O_RDWR | os.O_CREAT)
            # Its content is worth nothing to those who can't find it.
            sync_folder(self.path.parent)
            return descriptor

    def undo(self) -> None:
        """Cut off what was added, and see that it stays cut off."""
        if self.descriptor >= 0 and os.fstat(self.descriptor).st_size > self.end:
            truncate(self.descriptor, self.end)
            sync(self.descriptor)


@dataclass(slots=True)
class Temporary:
    """A file that is written beside its place and put there once it is durable."""

    path: Path
    target: Path
    data: bytes
    descriptor: int = -1

    def begin(self) -> None:
        unlink(self.path)
        self.descriptor = open_in_root(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        write_all(self.descriptor, self.data)

    def undo(self) -> None:
        unlink(self.path)


@dataclass(slots=True, eq=False)
class Plan:
    """One job's write, and what came of it."""

    outcome: Any = None
    appends: list[Append] = field(default_factory=list)
    temporaries: list[Temporary] = field(default_factory=list)
    folder: tuple[Path, Path] | None = None
    """A folder that was prepared elsewhere, and its place."""
    prepared: list[int] = field(default_factory=list)
    """Descriptors of that folder and of what is in it."""
    entry: Entry | None = None
    effects: list[Callable[[], object]] = field(default_factory=list)
    on_failure: list[Callable[[], object]] = field(default_factory=list)
    failed: bool = False

    @property
    def files(self) -> list[Append | Temporary]:
        return [*self.temporaries, *self.appends]

    @property
    def descriptors(self) -> list[int]:
        files = self.files
        return [*self.prepared, *(file.descriptor for file in files if file.descriptor >= 0)]

    @property
    def folders(self) -> set[Path]:
        renamed = {file.target.parent for file in self.temporaries}
        return renamed | ({self.folder[1].parent} if self.folder else set())

    def then(self, effect: Callable[[], object]) -> None:
        self.effects.append(effect)

    def begin(self) -> None:
        for file in self.files:
            file.begin()

    def publish(self) -> None:
        for file in self.temporaries:
            rename(file.path, file.target)
        if self.folder is not None:
            rename(*self.folder)

    def fail(self, error: Exception) -> None:
        """It did not happen: leave everything as it was, as far as the disk still lets us."""
        self.failed, self.outcome = True, error
        for undo in (*(file.undo for file in reversed(self.files)), *self.on_failure):
            try:
                undo()
            except OSError as problem:
                # The next one to write looks at the files again, and finds out what is there.
                logger.warning("a failed write could not be undone altogether: %s", problem)

    def close(self) -> None:
        for descriptor in self.descriptors:
            with suppress(OSError):  # what matters was said by fsync
                os.close(descriptor)


_FEW = 3
_QUICK_SECONDS = 0.0003
"""So few fsyncs of a disk as quick as this are done one after the other: to wake a thread costs as much as it spares.

A slower disk is asked for all of them at once, and makes one wait of two.
"""


class Syncing:
    """Several fsyncs at once: the file system makes one commit of them where it can.

    A superstep of one run takes three, in two waits: the checkpoint's file and the run's record before the rename,
    because a name must never lead to half a file and a checkpoint never to values that are not there; then the folder,
    without which the name may be gone. The index and the emptied journal take none: the one is made anew after a power
    cut, and what is in the other is known to be of the past. A call takes one, of the journal. However many runs write
    in one group, there is one fsync of the folder.
    """

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._is_quick = True

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True)
            self._threads = None

    def plans(self, plans: Sequence[Plan]) -> None:
        """Make the files of these durable; those that can't be, fail."""
        work = [(plan, descriptor) for plan in plans for descriptor in plan.descriptors]
        outcomes = self._all(sync, [descriptor for _, descriptor in work])
        failed = {id(plan): error for (plan, _), error in zip(work, outcomes, strict=True) if error is not None}
        spoilt = {file.path: failed[id(plan)] for plan in plans if id(plan) in failed for file in plan.appends}
        for plan in reversed(plans):
            # Lines that follow a line which is cut off are cut off with it.
            shared = next((spoilt[file.path] for file in plan.appends if file.path in spoilt), None)
            error = failed.get(id(plan)) or shared
            if error is not None and not plan.failed:
                plan.fail(error)

    def journals(self, descriptors: Sequence[int]) -> list[OSError | None]:
        """Make these durable; the error of each that could not be."""
        return self._all(sync, descriptors)

    def folders(self, folders: Iterable[Path]) -> dict[Path, OSError]:
        """Make their entries durable; the error of each that could not be."""
        paths = list(folders)
        outcomes = self._all(sync_folder, paths)
        return {path: error for path, error in zip(paths, outcomes, strict=True) if error is not None}

    def _all(self, sync: Callable[[Any], None], items: Sequence[Any]) -> list[OSError | None]:
        if len(items) < 2 or (len(items) <= _FEW and self._is_quick):
            return [self._timed(sync, item) for item in items]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(8, thread_name_prefix="stepwell-sync")
        others = [self._threads.submit(_attempt, sync, item) for item in items[1:]]
        return [self._timed(sync, items[0]), *(other.result() for other in others)]

    def _timed(self, sync: Callable[[Any], None], item: Any) -> OSError | None:
        started = time.perf_counter()
        outcome = _attempt(sync, item)
        self._is_quick = time.perf_counter() - started < _QUICK_SECONDS
        return outcome


def _attempt(sync: Callable[[Any], None], item: Any) -> OSError | None:
    try:
        sync(item)
    except OSError as error:
        return error
    return None


def prepare_folder(folder: Path, name: str, data: bytes, *, empty: str) -> list[int]:
    """A new folder with a file and an `empty` one in it; the descriptors of folder and file, to be made durable.

    The empty file is there for its name, which becomes durable with the folder: adding to it then takes one fsync.
    """
    mkdir(folder)
    os.close(open_regular(folder / empty, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    file = open_regular(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        write_all(file, data)
        return [file, os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    except BaseException:
        os.close(file)
        raise
