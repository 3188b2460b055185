"""Keeping the store itself: made when it is first used, tidied after crashes, indexed, and runs removed from it.

`tidy` and `reindex` need the whole store: they take its lock for themselves alone, while every other write shares it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress

from stepwell.checkpointing.checkpoint import checked_id
from stepwell.checkpointing.storage.file_disk import (
    Layout,
    closing,
    create_folder,
    lock_file,
    open_in_root,
    open_regular,
    read_from,
    remove_folder,
    replace_file,
    sync_folder,
    unlock,
)
from stepwell.checkpointing.storage.file_index import Entry, Index, IndexWrong
from stepwell.checkpointing.storage.file_json import parse_checkpoint
from stepwell.checkpointing.storage.file_operations import rename, unlink
from stepwell.checkpointing.storage.file_reading import checkpoint_file
from stepwell.checkpointing.storage.file_record import RECORD, Note, RunRecord, read_record
from stepwell.checkpointing.storage.file_runs import Runs
from stepwell.checkpointing.storage.file_seats import Seats
from stepwell.checkpointing.storage.file_sweep import append_note, bury, depart, remove_checkpoints, sweep
from stepwell.checkpointing.storage.recording import SAVED_BY_HAND
from stepwell.checkpointing.storage.records import parse_header
from stepwell.errors import CheckpointDamaged, FormatTooNew, InvalidId, StorageError, WorkflowCheckpointException

logger = logging.getLogger(__name__)

_OURS = "stepwell file store "
STORE_FORMAT = 1


class Keeping:
    """The store as a whole, in the hands of the writer thread."""

    def __init__(self, layout: Layout, runs: Runs, index: Index, seats: Seats) -> None:
        self._layout = layout
        self._runs = runs
        self._index = index
        self._seats = seats
        self._connected = False
        self._tidied = False

    # --- the store ---------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """See that there is a store, and that it is one of ours."""
        if self._connected and self._layout.format.exists():
            return
        if self._connected:
            self._seats.leave_all()
            self._connected = False
            raise OSError("the store was removed or replaced while it was in use")
        if not self._layout.format.exists():
            self._create()
        self._check_format()
        for folder in self._layout.folders:
            if not folder.exists():  # empty ones are lost when a store is copied by some tools
                create_folder(folder)
        for folder in (self._layout.inner, *self._layout.folders):
            if folder.is_symlink():
                raise StorageError(str(folder), "this is a symbolic link, and links are not followed")
        self._connected = True

    def _create(self) -> None:
        for folder in self._layout.folders:
            create_folder(folder)
        descriptor = lock_file(self._layout.lock, fcntl.LOCK_EX)
        if descriptor is None:
            raise StorageError(str(self._layout.lock), "another process keeps it locked")
        try:
            if not self._layout.format.exists():  # somebody else may have been faster
                replace_file(self._layout.format, f"{_OURS}{STORE_FORMAT}\n".encode())
        finally:
            unlock(descriptor)

    def _check_format(self) -> None:
        path = self._layout.format
        with closing(open_regular(path, os.O_RDONLY)) as descriptor:
            text = read_from(descriptor)[:80].decode("ascii", "replace").strip()
        version = text.removeprefix(_OURS)
        if text == version or not version.isdecimal():
            raise StorageError(str(path), "this is not a store of stepwell's, or its format file is damaged")
        if int(version) > STORE_FORMAT:
            raise FormatTooNew(str(self._layout.root), f"file store {version}", f"file store {STORE_FORMAT}")

    def tidy(self) -> None:
        """Once per process, and only if nobody is writing: finish or remove what crashes left behind."""
        if self._tidied:
            return
        self._tidied = True
        descriptor = lock_file(self._layout.lock, fcntl.LOCK_EX, wait=0.0)
        if descriptor is None:
            return
        try:
            with suppress(IndexWrong):
                self._index.refresh()
                self._tidy()
        finally:
            unlock(descriptor)
            self._runs.tidy()

    def _tidy(self) -> None:
        self._seats.bury_the_dead()
        for folder in self._layout.new.iterdir():
            remove_folder(folder)
        for folder in self._layout.departed.iterdir():
            if (folder / RECORD).exists() and read_record(folder).saved:
                bury(self._layout, folder)
        for entry in os.scandir(self._layout.root):
            if entry.name.endswith(".json.tmp"):
                self._remove_temporary(entry.name.removesuffix(".json.tmp"))

    def _remove_temporary(self, checkpoint_id: str) -> None:
        """A write that was cut off; if it was as good as done, the run that it belongs to finishes it first."""
        try:
            checked_id("checkpoint_id", checkpoint_id)
        except InvalidId:
            return  # not one of ours
        found = self._whole_temporary(checkpoint_id)
        if found is not None:
            with suppress(CheckpointDamaged):
                self._runs.get(found)
        unlink(self._layout.temporary(checkpoint_id))

    def _whole_temporary(self, checkpoint_id: str) -> str | None:
        try:
            with closing(open_in_root(self._layout.temporary(checkpoint_id), os.O_RDONLY)) as descriptor:
                return parse_checkpoint(checkpoint_id, read_from(descriptor))[1]
        except (CheckpointDamaged, FileNotFoundError):
            return None

    # --- the index ---------------------------------------------------------------------------------------------------

    def reindex(self) -> None:
        """From the records of all runs, which know everything the index does."""
        entries: list[Entry] = []
        records: dict[str, RunRecord] = {}
        for name in sorted(entry.name for entry in self._layout.runs.iterdir()):
            try:
                record = self._runs.get(checked_id("run_id", name))
            except InvalidId:
                continue
            except WorkflowCheckpointException as error:
                logger.warning("run %r is not in the index: %s", name, error)
                continue
            if record is not None:
                records[name] = record
                entries += [
                    Entry(saved.n, record.key, record.run_id, record.birth.workflow_name, saved.checkpoint_id)
                    for saved in record.saved.values()
                ]
        self._runs.untold.clear()
        self._index.rewrite([*entries, *self._lost_saves(records, {entry.checkpoint_id for entry in entries})])

    def _lost_saves(self, records: Mapping[str, RunRecord], known: Container[str | None]) -> Iterator[Entry]:
        """Saves whose files are there and whose notes are not: the index then says that a record lacks its last lines.

        A file gets its name when its note is durable, and one that a note has removed is older than that note.
        """
        for checkpoint_id in self._checkpoint_ids():
            if checkpoint_id in known:
                continue
            with suppress(WorkflowCheckpointException, FileNotFoundError):
                found = checkpoint_file(self._layout, checkpoint_id)
                record = records.get(found[1]) if found is not None else None
                if found is None or record is None or record.key != found[0].run_key:
                    continue
                if parse_header(found[0])["sequence"] > record.row.sequence:
                    workflow = record.birth.workflow_name
                    yield Entry(record.n + 1, record.key, record.run_id, workflow, checkpoint_id)

    def _checkpoint_ids(self) -> list[str]:
        with os.scandir(self._layout.root) as entries:
            names = sorted(entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json"))
        ids: list[str] = []
        for name in names:
            with suppress(InvalidId):  # not one of ours
                ids.append(checked_id("checkpoint_id", name))
        return ids

    # --- removing ----------------------------------------------------------------------------------------------------

    def owner(self, checkpoint_id: str) -> RunRecord | None:
        """The run that keeps this checkpoint."""
        try:
            found = checkpoint_file(self._layout, checkpoint_id)
        except CheckpointDamaged:
            found = None
        names = [found[1]] if found is not None else sorted(path.name for path in self._layout.runs.iterdir())
        for name in names:
            record = self._runs.peek(checked_id("run_id", name))
            if record is not None and checkpoint_id in record.saved:
                return record
        return None

    def delete_checkpoint(self, run_id: str, checkpoint_id: str) -> bool:
        """The note comes first: a file that no note names is no checkpoint."""
        record = self._runs.get(run_id)
        if record is None or checkpoint_id not in record.saved:
            return False
        append_note(record, Note(gone=[checkpoint_id]))
        remove_checkpoints(self._layout, record.key, [checkpoint_id])
        if not record.saved and record.row.state == SAVED_BY_HAND and record.row.holder is None:
            self._forget_run(record)
        else:
            sweep(self._layout, record)
        return True

    def delete_run(self, run_id: str) -> bool:
        record = self._runs.what_is_left(run_id)
        if record is None:
            return False
        if (busy := self._seats.busy(record.row)) is not None:
            raise busy
        self._forget_run(record)
        return True

    def delete_unreadable(self, run_id: str) -> bool:
        """Remove a run of whose record not even the first line can be read; False if it is not such a one.

        The caller has the whole store: whose family this is, and so which lock to take, nobody can tell. Nor can what
        branches of it still refer to, so that goes as well.
        """
        try:
            if self._runs.peek(run_id) is not None:
                return False
        except CheckpointDamaged:
            pass
        else:
            return False
        # Out of the way in one instant; whatever is found in there is removed by the next one to tidy up.
        folder = self._layout.new / secrets.token_hex(6)
        rename(self._layout.run(run_id), folder)
        sync_folder(self._layout.runs)
        self._runs.forget(run_id)
        for checkpoint_id in self._checkpoint_ids():
            with suppress(WorkflowCheckpointException, FileNotFoundError):
                found = checkpoint_file(self._layout, checkpoint_id)
                if found is not None and found[1] == run_id:
                    unlink(self._layout.checkpoint(checkpoint_id))
        sync_folder(self._layout.root)
        unlink(self._layout.index)
        remove_folder(folder)
        return True

    def _forget_run(self, record: RunRecord) -> None:
        folder = depart(self._layout, record)
        self._runs.forget(record.run_id)
        gone = Entry(record.n, record.key, record.run_id, record.birth.workflow_name, None)
        try:
            self._index.append([gone])
        except (OSError, IndexWrong):
            unlink(self._layout.index)
        bury(self._layout, folder)
        sync_folder(self._layout.departed)
