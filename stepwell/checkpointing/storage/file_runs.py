"""The runs as the writer thread knows them, brought up to date whenever their lock is taken.

Here is what makes good a crash: see `file_plan.py` for the order of writing that it relies on.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from stepwell.checkpointing.storage.file_disk import (
    Layout,
    closing,
    open_in_root,
    open_regular,
    read_from,
    sync_folder,
)
from stepwell.checkpointing.storage.file_index import Entry, Index
from stepwell.checkpointing.storage.file_json import parse_checkpoint
from stepwell.checkpointing.storage.file_operations import rename, sync, truncate
from stepwell.checkpointing.storage.file_reading import checkpoint_file
from stepwell.checkpointing.storage.file_record import Changed, RunRecord, Saved, read_record
from stepwell.errors import CheckpointDamaged

logger = logging.getLogger(__name__)


class Moved(Exception):
    """Between looking for a run's lock and having it, the run was made, or deleted and made again."""


class Runs:
    """Records of the runs that are held here, and of those just being looked at."""

    def __init__(self, layout: Layout, index: Index) -> None:
        self._layout = layout
        self._index = index
        self._known: dict[str, RunRecord] = {}
        self._held: set[str] = set()
        self._n = 0
        self.journal_end: dict[str, int] = {}
        self.to_sweep: set[str] = set()
        self.locked: set[str] | None = None
        """The families whose locks are held; None if the whole store is."""
        self.untold: list[Entry] = []
        """Saves that a crash kept from the index."""

    # --- looking -----------------------------------------------------------------------------------------------------

    def peek(self, run_id: str) -> RunRecord | None:
        """The run as it looks without its lock: it may change at any time, and its last line may not count."""
        try:
            return read_record(self._layout.run(run_id), run_id)
        except FileNotFoundError:
            return None

    def origin(self, run_id: str) -> str | None:
        """The family of a run, which never changes; None if there is no such run."""
        record = self._known.get(run_id) or self.peek(run_id)
        return None if record is None else record.birth.origin

    def held(self, run_id: str) -> RunRecord | None:
        """The run as it was last seen, if it is held here."""
        return self._known.get(run_id) if run_id in self._held else None

    def get(self, run_id: str) -> RunRecord | None:
        """The run as it stands; the caller has its lock."""
        record = self.what_is_left(run_id)
        if record is not None and self._index.last_of(record.key) > record.n:
            good = record.newest.checkpoint_id if record.newest else None
            raise CheckpointDamaged(f"run {run_id}", "its last lines are missing", good)
        return record

    def what_is_left(self, run_id: str) -> RunRecord | None:
        """The same, for those who want to be rid of it: its last lines may be missing."""
        record = self._read(run_id)
        if record is None:
            return None
        if self.locked is not None and record.birth.origin not in self.locked:
            del self._known[run_id]
            raise Moved(run_id)
        if record.last_saved is not None and not record.is_damaged:
            record = self._settled(record, record.last_saved)
        return record

    def _read(self, run_id: str) -> RunRecord | None:
        record = self._known.get(run_id)
        try:
            if record is None:
                record = read_record(self._layout.run(run_id), run_id)
            elif not record.is_as_it_was:
                record.refresh()
        except FileNotFoundError:
            self._known.pop(run_id, None)
            return None
        except Changed:
            del self._known[run_id]
            return self._read(run_id)
        self._known[run_id] = record
        return record

    def keeping(self, checkpoint_id: str) -> RunRecord | None:
        """The run that the file of this checkpoint names, if it does keep it."""
        found = checkpoint_file(self._layout, checkpoint_id)
        record = self.peek(found[1]) if found is not None else None
        return record if record is not None and checkpoint_id in record.saved else None

    def next_n(self, record: RunRecord) -> int:
        """Later than every save that was acknowledged before this one began."""
        self._n = max(self._n, self._index.n, record.n) + 1
        return self._n

    # --- after a crash -----------------------------------------------------------------------------------------------

    def _settled(self, record: RunRecord, saved: Saved) -> RunRecord:
        """The last line of a record is a checkpoint; if its writer died, finish what it began, or undo it."""
        if self._index.last_of(record.key) < saved.n:
            target, temporary = self._versions(record, saved)
            if temporary is saved:
                self._publish(saved.checkpoint_id)
            elif target is None:
                # The file never got its name, and the index has not heard of it: nobody was told that it is saved.
                logger.warning("run %r: checkpoint %r was not finished", record.run_id, saved.checkpoint_id)
                return self._cut(record)
            sync_folder(self._layout.root)  # it may have got its name and no more
            workflow = record.birth.workflow_name
            self.untold.append(Entry(saved.n, record.key, record.run_id, workflow, saved.checkpoint_id))
        record.last_saved = None
        return record

    def _publish(self, checkpoint_id: str) -> None:
        """What its writer would have done; that it is whole does not mean that it was made durable."""
        temporary = self._layout.temporary(checkpoint_id)
        with closing(open_in_root(temporary, os.O_RDONLY)) as descriptor:
            sync(descriptor)
        rename(temporary, self._layout.checkpoint(checkpoint_id))

    def _versions(self, record: RunRecord, saved: Saved) -> tuple[Saved | str | None, Saved | None]:
        """What is in the checkpoint's file and what in its temporary one.

        None stands for nothing, or for another version than the one the last note names; a file that has its name and
        can't be read was whole once, and is damaged.
        """
        target: Saved | str | None = self._version(self._layout.checkpoint(saved.checkpoint_id), record, saved)
        temporary = self._version(self._layout.temporary(saved.checkpoint_id), record, saved)
        return target, temporary if isinstance(temporary, Saved) else None

    def _version(self, path: Path, record: RunRecord, saved: Saved) -> Saved | str | None:
        try:
            with closing(open_in_root(path, os.O_RDONLY)) as descriptor:
                stored, _ = parse_checkpoint(saved.checkpoint_id, read_from(descriptor))
        except FileNotFoundError:
            return None
        except CheckpointDamaged:
            return "damaged"
        return saved if (stored.run_key, stored.root.digest) == (record.key, saved.digest) else None

    def _cut(self, record: RunRecord) -> RunRecord:
        with closing(open_regular(record.path, os.O_RDWR)) as descriptor:
            truncate(descriptor, record.last_note)
            sync(descriptor)
        del self._known[record.run_id]
        again = read_record(record.path.parent, record.run_id)
        again.last_saved = None
        self._known[record.run_id] = again
        return again

    # --- remembering -------------------------------------------------------------------------------------------------

    def hold(self, record: RunRecord, journal_end: int) -> None:
        self._known[record.run_id] = record
        self._held.add(record.run_id)
        self.journal_end[record.run_id] = journal_end

    def forget(self, run_id: str) -> None:
        """Nobody here holds it any more."""
        self._held.discard(run_id)
        self._known.pop(run_id, None)
        self.journal_end.pop(run_id, None)

    def tidy(self) -> None:
        """Let go of what was only looked at."""
        for run_id in self._known.keys() - self._held:
            del self._known[run_id]

    def doubt(self, run_id: str) -> None:
        """A write failed half-way: what is in the file has to be looked at again."""
        self._known.pop(run_id, None)

    def cut_journal(self, run_id: str, end: int) -> None:
        """Lines from here on were not written."""
        self.journal_end[run_id] = min(self.journal_end.get(run_id, end), end)

    def sweep_later(self, run_id: str) -> None:
        self.to_sweep.add(run_id)
