"""The journals of runs that are held here, kept open: adding a line to one takes few questions.

What a killed process loses of a call is the time from its end until its line is written: the kernel keeps what it was
given. So a line is written as soon as it arrives, by a pen that has the journal and the family's lock file open
already, and made durable afterwards (`file_scribe.py`). A pen asks what everybody asks, just not for more: is the lock
free, is it still the lock, and is the journal the one it knows, and as long as it was left. The store's own lock is not
needed: those who take that for themselves leave journals alone.
"""

from __future__ import annotations

import fcntl
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stepwell.checkpointing.storage.file_disk import Layout, open_regular
from stepwell.checkpointing.storage.file_operations import sync, truncate, write_all
from stepwell.checkpointing.storage.file_record import JOURNAL, RunRecord
from stepwell.checkpointing.storage.forking import after_fork_in_child

_MOST_PENS = 64
"""So many runs' files are kept open; two each."""

_descriptors: set[int] = set()


class NotAtOnce(Exception):
    """Something is not as it was left, or somebody else has the lock: this has to go the long way."""


class Pen:
    """One run's journal and its family's lock file, both open. Used by the writer thread, and its journal is synced
    by another: `handed` counts what that one was given, `done` what came back."""

    def __init__(self, layout: Layout, record: RunRecord) -> None:
        self.run_id = record.run_id
        self.origin = record.birth.origin
        self._journal_path = record.path.with_name(JOURNAL)
        self._family_path = layout.families / self.origin
        self._family = _kept(self._family_path, os.O_RDWR | os.O_CREAT)
        try:
            self.journal = _kept(self._journal_path, os.O_RDWR)
        except BaseException:
            _close(self._family)
            raise
        self._family_file = _file(os.fstat(self._family))
        self._journal_file = _file(os.fstat(self.journal))
        self.handed = 0
        self.done = 0
        self.is_broken = False
        """An fsync failed: what was handed over since then is not durable, whatever the next fsync says."""
        self.is_closed = False

    @property
    def is_waited_for(self) -> bool:
        return self.handed != self.done

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            _close(self._family)
            _close(self.journal)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Have the family to ourselves, if that can be had at once."""
        try:
            fcntl.flock(self._family, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotAtOnce from None
        try:
            self._check(self._family_path, self._family_file)
            yield
        finally:
            fcntl.flock(self._family, fcntl.LOCK_UN)

    def write(self, end: int, data: bytes) -> None:
        """Add whole lines to the journal, whose last whole line ends at `end`."""
        found = self._check(self._journal_path, self._journal_file)
        if found.st_size != end or (end and os.pread(self.journal, 1, end - 1) != b"\n"):
            raise NotAtOnce  # what a crash or a full disk left of a line has to be removed first
        os.lseek(self.journal, end, os.SEEK_SET)
        write_all(self.journal, data)

    def cut(self, end: int) -> None:
        """Take back what was added from here on, and see that it stays so."""
        if os.fstat(self.journal).st_size > end:
            truncate(self.journal, end)
            sync(self.journal)

    def _check(self, path: Path, file: tuple[int, int]) -> os.stat_result:
        try:
            found = os.lstat(path)
        except OSError:
            raise NotAtOnce from None
        if _file(found) != file:
            raise NotAtOnce
        return found


class Pens:
    """Those most recently used."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._by_run: OrderedDict[str, Pen] = OrderedDict()

    def known(self, run_id: str) -> Pen | None:
        return self._by_run.get(run_id)

    def of(self, record: RunRecord) -> Pen:
        """A pen for this run; `NotAtOnce` if its files can't simply be opened."""
        self._let_go_of_one()
        try:
            pen = Pen(self._layout, record)
        except OSError:
            raise NotAtOnce from None
        self._by_run[record.run_id] = pen
        return pen

    def use(self, pen: Pen) -> None:
        self._by_run.move_to_end(pen.run_id)

    def put_down(self, pen: Pen) -> None:
        if self._by_run.get(pen.run_id) is pen:
            del self._by_run[pen.run_id]
        pen.close()

    def close(self) -> None:
        for pen in list(self._by_run.values()):
            self.put_down(pen)

    def _let_go_of_one(self) -> None:
        if len(self._by_run) < _MOST_PENS:
            return
        idle = next((pen for pen in self._by_run.values() if not pen.is_waited_for), None)
        if idle is None:
            raise NotAtOnce
        self.put_down(idle)


def _file(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _kept(path: Path, flags: int) -> int:
    descriptor = open_regular(path, flags)
    _descriptors.add(descriptor)
    return descriptor


def _close(descriptor: int) -> None:
    _descriptors.discard(descriptor)
    with suppress(OSError):  # what matters was said by fsync
        os.close(descriptor)


def _close_inherited() -> None:
    # A lock belongs to the open file, which a forked child shares: if its parent died with the lock, the child would
    # keep it.
    while _descriptors:
        os.close(_descriptors.pop())


after_fork_in_child(_close_inherited)
