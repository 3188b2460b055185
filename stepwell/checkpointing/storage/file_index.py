"""`.stepwell/index`: which run was saved last, so that nobody has to look through all of them.

One line per save, in the order of saving, and one per run that was deleted. It is only ever a short cut: the runs' own
records are the truth, each save is numbered there too, and the index is made anew from them when it is missing, damaged
or of another boot of this machine. That last is what spares it an fsync of its own: lines that were written survive the
death of any process, but only a running kernel.

A line is written after its checkpoint is complete and before the save is acknowledged. So a record that knows less than
the index has lost something, and a checkpoint that the index has not heard of was never acknowledged.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stepwell.checkpointing.checkpoint import checked_id
from stepwell.checkpointing.storage.file_disk import (
    Identity,
    Look,
    closing,
    identity,
    look_of,
    open_regular,
    read_from,
    replace_file,
)
from stepwell.checkpointing.storage.file_lines import dumped, lines, loaded, sealed
from stepwell.checkpointing.storage.file_operations import boot, sync, write_all
from stepwell.errors import CheckpointDamaged, InvalidId

_LONG = 10_000


class IndexWrong(Exception):
    """The index is missing, damaged, or older than the last start of this machine."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One save. A run that was deleted has an entry without a checkpoint."""

    n: int
    key: int
    run_id: str
    workflow_name: str
    checkpoint_id: str | None

    def line(self) -> bytes:
        return sealed(
            "saved", dumped([self.n, f"{self.key:012x}", self.run_id, self.workflow_name, self.checkpoint_id])
        )


@dataclass(slots=True)
class Index:
    """What the index says. Used by one thread at a time."""

    path: Path
    entries: list[Entry] = field(default_factory=list)
    n: int = 0
    runs: dict[int, Entry] = field(default_factory=dict)
    """The newest entry of each run that was not deleted."""
    _file: Identity | None = None
    _end: int = 0
    _look: Look | None = None
    """How the file looked when all of it was known."""
    _base: int = 0
    """How many entries there were when the file was first read."""

    @property
    def is_long(self) -> bool:
        """Has it grown so much that most of it may be about checkpoints that are gone?"""
        return len(self.entries) > max(_LONG, 4 * self._base)

    def refresh(self) -> None:
        """Take in what others have written; `IndexWrong` if it can't be relied on."""
        try:
            if self._look is not None and look_of(self.path) == self._look:
                return
            with closing(open_regular(self.path, os.O_RDONLY)) as descriptor:
                look = look_of(descriptor)
                file, size = identity(descriptor), look[2]
                if self._file != file or size < self._end:
                    self._forget(file)
                if size == 0:
                    raise IndexWrong
                if size > self._end:
                    is_new = self._end == 0
                    self._fold(read_from(descriptor, self._end))
                    self._base = len(self.entries) if is_new else self._base
                self._look = look if self._end == size else None
        except (FileNotFoundError, CheckpointDamaged):
            raise IndexWrong from None
        except OSError as error:
            if error.errno == errno.ELOOP:  # a link, which the new index takes the place of
                raise IndexWrong from None
            raise

    def _forget(self, file: Identity) -> None:
        self.entries, self.runs = [], {}
        self.n, self._end, self._file, self._look = 0, 0, file, None

    def _fold(self, data: bytes) -> None:
        for line in lines(data, b"", self._end):
            try:
                if self._end == 0:
                    if (line.kind, line.payload.partition(b" ")[0]) != ("index", boot()):
                        raise ValueError("it is of another boot")
                else:
                    self._add(_parse(line.kind, line.payload))
            except (ValueError, TypeError, InvalidId, RecursionError):
                self._file = None
                raise IndexWrong from None
            self._end = line.end

    def _add(self, entry: Entry) -> None:
        self.n = max(self.n, entry.n)
        if entry.checkpoint_id is None:
            self.runs.pop(entry.key, None)
        else:
            self.entries.append(entry)
            self.runs[entry.key] = entry

    def newest_first(self, workflow_name: str | None) -> Iterator[Entry]:
        for entry in reversed(self.entries):
            if workflow_name in (None, entry.workflow_name) and entry.key in self.runs:
                yield entry

    def last_of(self, key: int) -> int:
        """The number of this run's last save, 0 if it has none."""
        entry = self.runs.get(key)
        return entry.n if entry else 0

    # --- writing, by whoever has the store's lock --------------------------------------------------------------------

    def append(self, entries: list[Entry]) -> None:
        """Add these to what is written and to what is known; without a boot id to go by, make them durable as well."""
        data = b"".join(entry.line() for entry in entries)
        with closing(open_regular(self.path, os.O_RDWR | os.O_APPEND)) as descriptor:
            size = os.fstat(descriptor).st_size
            if size == 0 or os.pread(descriptor, 1, size - 1) != b"\n":
                raise IndexWrong
            write_all(descriptor, data)
            if not boot():
                sync(descriptor)
            look = look_of(descriptor)
            is_ours_alone = size == self._end and look[2] == size + len(data)
            if not is_ours_alone or identity(descriptor) != self._file:
                self.refresh()
                return
            for entry in entries:
                self._add(entry)
            self._end, self._look = look[2], look

    def rewrite(self, entries: list[Entry]) -> None:
        """Make the index anew."""
        ordered = sorted(entries, key=lambda entry: (entry.n, entry.key))
        # A name of its own, so that nobody takes it for the one they have read.
        header = sealed("index", f"{boot().decode()} {secrets.token_hex(8)}")
        replace_file(self.path, header + b"".join(entry.line() for entry in ordered))


def _parse(kind: str, payload: bytes) -> Entry:
    if kind != "saved":
        raise ValueError("it is no line of an index")
    n, key, run_id, workflow, checkpoint_id = loaded(b'{"e":%s}' % payload)["e"]
    if type(n) is not int or not isinstance(workflow, str):
        raise ValueError("an entry can't be read")
    checked_id("run_id", run_id)
    if checkpoint_id is not None:
        checked_id("checkpoint_id", checkpoint_id)
    return Entry(n, int(key, 16), run_id, workflow, checkpoint_id)
