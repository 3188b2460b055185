"""Reading a file storage: from any thread, without locks on files.

A record only grows, and is exchanged as a whole when it is swept; so what was read of it stays true, and a checkpoint
that is listed and not found again was deleted meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stepwell.checkpointing.checkpoint import checked_id
from stepwell.checkpointing.storage.file_disk import Layout, closing, open_in_root, read_from
from stepwell.checkpointing.storage.file_index import Index
from stepwell.checkpointing.storage.file_json import parse_checkpoint
from stepwell.checkpointing.storage.file_record import Changed, RunRecord, Saved, read_record
from stepwell.checkpointing.storage.records import NODES_PER_RUN, RequestRow, StoredCheckpoint
from stepwell.checkpointing.values import Node
from stepwell.errors import CheckpointDamaged, InvalidId

_REMEMBERED = 64
_READERS = 2


def checkpoint_file(layout: Layout, checkpoint_id: str) -> tuple[StoredCheckpoint, str] | None:
    """The checkpoint of this name and the run that keeps it; the whole temporary one if it is about to get its name."""
    for path in (layout.checkpoint(checkpoint_id), layout.temporary(checkpoint_id), layout.checkpoint(checkpoint_id)):
        try:
            with closing(open_in_root(path, os.O_RDONLY)) as descriptor:
                data = read_from(descriptor)
        except FileNotFoundError:
            continue
        return parse_checkpoint(checkpoint_id, data)
    return None


def content_of(layout: Layout, saved: Saved, key: int) -> StoredCheckpoint:
    """The checkpoint that a run's record names; `CheckpointDamaged` if its file is missing or not that one."""
    problem = "its file is missing"
    for path in (layout.checkpoint(saved.checkpoint_id), layout.temporary(saved.checkpoint_id)):
        try:
            with closing(open_in_root(path, os.O_RDONLY)) as descriptor:
                stored, _ = parse_checkpoint(saved.checkpoint_id, read_from(descriptor))
        except FileNotFoundError:
            continue
        except CheckpointDamaged as damage:
            problem = damage.problem
            continue
        found = (stored.run_key, stored.root.digest, stored.root.refs, stored.header)
        if found == (key, saved.digest, saved.refs, saved.header):
            return stored
        problem = "its file is that of another checkpoint, or of another version of it"
    raise CheckpointDamaged(saved.checkpoint_id, problem)


class Reader:
    """What the storages for one path in one process know of the store."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.threads = ThreadPoolExecutor(_READERS, thread_name_prefix="stepwell-read")
        self.closed = False
        self.index = Index(layout.index)
        self.lock = threading.RLock()
        self._records: OrderedDict[str, RunRecord] = OrderedDict()
        self._places: dict[int, str] = {}

    def forget(self) -> None:
        """Look at everything afresh: what was read of a write under way may have been taken back."""
        self._records.clear()

    def close(self) -> None:
        self.closed = True
        self.threads.shutdown(wait=False)

    # --- runs --------------------------------------------------------------------------------------------------------

    def place(self, key: int, run_id: str) -> None:
        """The values of this key are that run's."""
        self._places[key] = run_id

    def run(self, run_id: str) -> RunRecord | None:
        """The run as it stands now; None if there is none."""
        checked_id("run_id", run_id)
        return self._refreshed(run_id, self.layout.run(run_id), run_id)

    def _refreshed(self, name: str, folder: Path, run_id: str | None) -> RunRecord | None:
        known = self._records.get(name)
        try:
            try:
                if known is None:
                    raise Changed
                known.refresh()
                if known.is_damaged or known.lost_values:
                    raise Changed  # or a line that was read was taken back: a fresh look tells
            except Changed:
                known = read_record(folder, run_id)
        except (FileNotFoundError, NotADirectoryError):
            self._records.pop(name, None)
            return None
        self._records[name] = known
        self._records.move_to_end(name)
        self._places[known.key] = known.run_id
        self._places.update(known.birth.ancestors)
        if len(self._records) > _REMEMBERED:
            self._records.popitem(last=False)
        return known

    def _holding(self, key: int) -> RunRecord | None:
        """The record that has this run's values, be it alive or departed."""
        run_id = self._places.get(key)
        for _ in range(3):  # it may depart while we look
            record = self.run(run_id) if run_id is not None else None
            if record is not None and record.key == key:
                return record
            folder = self.layout.departed_run(key)
            record = self._refreshed(f"/{folder.name}", folder, None)
            if record is not None and record.key == key:
                return record
        return None

    def all_runs(self) -> Iterator[RunRecord]:
        """Every run there is; `CheckpointDamaged` at the first that can't be read."""
        for name in self.run_ids():
            record = self.run(name)
            if record is not None:
                yield record

    def run_ids(self) -> Iterator[str]:
        """The names of all runs; names that can't be ours are passed over."""
        try:
            names = sorted(entry.name for entry in self.layout.runs.iterdir())
        except FileNotFoundError:
            return
        for name in names:
            try:
                checked_id("run_id", name)
            except InvalidId:
                continue
            yield name

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def newest(self, workflow_name: str | None) -> tuple[RunRecord, Saved] | None:
        """What was saved last, by a look at the index."""
        self.index.refresh()
        for entry in self.index.newest_first(workflow_name):
            record = self.run(entry.run_id)
            if record is None or record.key != entry.key:
                if self.layout.departed_run(entry.key).exists():
                    continue  # it is being deleted
                raise CheckpointDamaged(f"run {entry.run_id}", "its folder is missing")
            self.complete(record)
            newest = record.newest
            # The run's last save may be one that a crash kept from the index.
            if newest is not None and (entry.checkpoint_id in record.saved or newest.n > self.index.last_of(entry.key)):
                return record, newest
        return None

    def complete(self, record: RunRecord) -> RunRecord:
        """The record, if nothing of it is lost; a record that knows less than the index has lost something."""
        record.check()
        if self.index.last_of(record.key) > record.n:
            # Looked at again: the index may have been read after the record.
            again = self.run(record.run_id)
            if again is None or again.n < self.index.last_of(record.key):
                good = record.newest.checkpoint_id if record.newest else None
                raise CheckpointDamaged(f"run {record.run_id}", "its last lines are missing", good)
            return again
        return record

    def keeping(self, checkpoint_id: str) -> tuple[RunRecord, Saved] | None:
        """The run that lists this checkpoint: the one its file names, or else any."""
        try:
            found = checkpoint_file(self.layout, checkpoint_id)
        except CheckpointDamaged:
            found = None
        if found is not None:
            record = self.run(found[1])
            if record is not None and record.key == found[0].run_key and checkpoint_id in record.saved:
                return record, record.saved[checkpoint_id]
        return next(
            ((record, record.saved[checkpoint_id]) for record in self.all_runs() if checkpoint_id in record.saved), None
        )

    # --- values ------------------------------------------------------------------------------------------------------

    def reachable(self, refs: Iterable[int]) -> dict[int, Node]:
        """These nodes and all they lead to; what is missing is left out."""
        found: dict[int, Node] = {}
        asked: set[int] = set()
        waiting = set(refs)
        while waiting:
            asked |= waiting
            by_key: dict[int, list[int]] = {}
            for ref in waiting:
                by_key.setdefault(ref // NODES_PER_RUN, []).append(ref)
            for key, ids in by_key.items():
                found.update(self._nodes(key, ids))
            waiting = {ref for node in found.values() for ref in node.refs} - asked - found.keys()
        return found

    def _nodes(self, key: int, ids: list[int]) -> dict[int, Node]:
        for _ in range(8):
            record = self._holding(key)
            try:
                return record.nodes(ids) if record is not None else {}
            except (Changed, FileNotFoundError):
                continue  # swept or gone while we looked
        return {}

    def node_state(self, key: int) -> tuple[int, set[int]]:
        """How often nodes of this run's family were swept, and which of those it may refer to are left."""
        own = self._holding(key)
        if own is None:
            return 0, set()
        left: set[int] = set()
        for each in (key, *(ancestor for ancestor, _ in own.birth.ancestors)):
            record = self._holding(each)
            left |= record.values.keys() if record is not None else set()
        return own.row.sweeps, left

    # --- requests ----------------------------------------------------------------------------------------------------

    def requests_named(self, request_id: str) -> list[RequestRow]:
        """Whoever asked this; a run that can't be read is only in the way if nobody else did."""
        found: list[RequestRow] = []
        damaged: CheckpointDamaged | None = None
        for run_id in self.run_ids():
            try:
                record = self.run(run_id)
            except CheckpointDamaged as damage:
                damaged = damaged or damage
                continue
            if record is not None and request_id in record.requests:
                found.append(record.requests[request_id])
        if damaged is not None and not found:
            raise damaged
        return found
