"""Removing what no checkpoint leads to any more, and runs that were deleted.

Branches refer to their parents' values, so a run and all its branches are one family, under one lock; their names are
in the family's lock file (none are while a run has no branches). A deleted run departs in one rename; what it leaves
behind is what branches still need.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stepwell.checkpointing.checkpoint import checked_id
from stepwell.checkpointing.storage.file_disk import (
    Layout,
    closing,
    open_regular,
    read_from,
    remove_folder,
    replace_file,
    sync_folder,
)
from stepwell.checkpointing.storage.file_lines import lines, sealed
from stepwell.checkpointing.storage.file_operations import rename, sync, unlink, write_all
from stepwell.checkpointing.storage.file_plan import Append
from stepwell.checkpointing.storage.file_reading import checkpoint_file
from stepwell.checkpointing.storage.file_record import JOURNAL, Note, RunRecord, parse_value, read_record
from stepwell.errors import CheckpointDamaged, InvalidId

logger = logging.getLogger(__name__)

Member = tuple[int, str]


# --- families ---------------------------------------------------------------------------------------------------------


def members(layout: Layout, origin: str) -> list[Member]:
    """The keys and run ids of a family with branches; empty for a run without."""
    try:
        with closing(open_regular(layout.families / origin, os.O_RDONLY)) as descriptor:
            found = list(lines(read_from(descriptor), b""))
    except FileNotFoundError:
        return []
    try:
        return [_member(line.payload) for line in found if line.kind == "member" or _refuse(line.kind)]
    except (ValueError, InvalidId) as error:
        raise CheckpointDamaged(f"family {origin}", f"its members can't be read: {error}") from error


def _refuse(kind: str) -> bool:
    raise ValueError(f"{kind or 'a damaged line'} is no member")


def _member(payload: bytes) -> Member:
    key, _, run_id = payload.decode().partition(" ")
    return int(key, 16), checked_id("run_id", run_id)


def add_members(layout: Layout, origin: str, new: Iterable[Member]) -> None:
    """Make members known before they exist: one that is known and missing does no harm."""
    known = set(members(layout, origin))
    added = b"".join(sealed("member", f"{key:012x} {run_id}") for key, run_id in new if (key, run_id) not in known)
    with closing(open_regular(layout.families / origin, os.O_RDWR | os.O_CREAT)) as descriptor:
        content = read_from(descriptor)
        os.lseek(descriptor, 0, os.SEEK_END)
        write_all(descriptor, (b"\n" if content and not content.endswith(b"\n") else b"") + added)
        sync(descriptor)
    sync_folder(layout.families)


def family(layout: Layout, record: RunRecord) -> tuple[list[RunRecord], list[RunRecord]]:
    """The runs that may refer to each other's values: those alive, and those departed."""
    alive, departed = {record.key: record}, {}
    if record.path.parent.parent == layout.departed:
        alive, departed = {}, {record.key: record}
    for key, run_id in members(layout, record.birth.origin):
        if key in alive or key in departed:
            continue
        with suppress(FileNotFoundError):
            other = _relative(layout.run(run_id), run_id)
            if other.key == key:
                alive[key] = other
                continue
        with suppress(FileNotFoundError):
            departed[key] = _relative(layout.departed_run(key))
    return list(alive.values()), list(departed.values())


class _Unreadable(Exception):
    """A run of the family can't be read, so what it refers to is not known."""


def _relative(folder: Path, run_id: str | None = None) -> RunRecord:
    try:
        return read_record(folder, run_id)
    except CheckpointDamaged as damage:
        raise _Unreadable from damage


# --- sweeping ---------------------------------------------------------------------------------------------------------


def sweep(layout: Layout, record: RunRecord) -> None:
    """Remove what nothing refers to among the values of a family. The caller has its lock."""
    try:
        alive, departed = family(layout, record)
    except _Unreadable as unreadable:
        logger.warning("values of %r are not swept: %s", record.run_id, unreadable.__cause__)
        return
    if any(each.is_damaged or each.lost_values for each in (*alive, *departed)):
        # Whoever can't be followed might lead anywhere: better to keep too much.
        logger.warning("values of %r are not swept, some lines of its record are damaged", record.run_id)
        return
    references = {node_id: refs for each in (*alive, *departed) for node_id, refs in _references(each).items()}
    needed = _marked(references, (ref for each in alive for saved in each.saved.values() for ref in saved.refs))
    if references.keys() - needed:
        # First every log learns that what it remembers may be gone, then it goes: a crash between costs nothing.
        for each in alive:
            if each is not record:
                append_note(each, Note(row={"sweeps": each.row.sweeps + 1}))
    for each in alive:
        if each is record or each.values.keys() - needed:
            rewrite(each, needed)
    for each in departed:
        _leave_behind(layout, each, needed)
    if not alive:
        unlink(layout.families / record.birth.origin)


def _references(record: RunRecord) -> dict[int, tuple[int, ...]]:
    with closing(record.opened()) as descriptor:
        data = read_from(descriptor)
    return {
        node_id: parse_value(line.payload, record.key).refs
        for node_id, (offset, length) in record.values.items()
        for line in lines(data[offset : offset + length], record.birth.salt)
    }


def _marked(references: dict[int, tuple[int, ...]], roots: Iterable[int]) -> set[int]:
    marked: set[int] = set()
    waiting = list(roots)
    while waiting:
        node_id = waiting.pop()
        if node_id not in marked:
            marked.add(node_id)
            waiting.extend(references.get(node_id, ()))
    return marked


def append_note(record: RunRecord, note: Note) -> None:
    append = Append(record.path, record.end, note.line(record.serial + 1, record.birth))
    append.begin()
    try:
        sync(append.descriptor)
    finally:
        os.close(append.descriptor)
    record.fold(append.data, append.end)


def rewrite(record: RunRecord, needed: set[int]) -> None:
    """Exchange the record for one that says the same in fewer lines."""
    requests = record.requests.values()
    row = record.row
    if record.values.keys() - needed:
        row = replace(row, sweeps=row.sweeps + 1)
    note = Note(
        row={
            name: getattr(row, name)
            for name in ("state", "epoch", "holder", "sweeps", "sequence", "supersteps", "usage", "updated_at")
        }
        | {"stopped_by": row.stopped_by},
        saved=list(record.saved.values()),
        asked=[each.summary for each in requests],
        decided=[each.decision for each in requests if each.decision is not None],
        calls=record.calls,
        next_node=record.next_node,
        n=record.n,
        journal=record.journal,
    )
    values = _kept_values(record, needed)
    data = record.birth.line(record.serial) + values + note.line(record.serial + 1, record.birth)
    replace_file(record.path, data)


def _kept_values(record: RunRecord, needed: set[int]) -> bytes:
    with closing(record.opened()) as descriptor:
        data = read_from(descriptor)
    kept = (place for node_id, place in record.values.items() if node_id in needed)
    return b"".join(data[offset : offset + length].removesuffix(b"\n") + b"\n" for offset, length in kept)


# --- deleting ---------------------------------------------------------------------------------------------------------


def depart(layout: Layout, record: RunRecord) -> Path:
    """A run ceases to be, in one instant; the rest is tidying up, which anybody can finish."""
    folder = layout.departed_run(record.key)
    rename(record.path.parent, folder)
    sync_folder(layout.runs)
    sync_folder(layout.departed)
    return folder


def bury(layout: Layout, folder: Path) -> None:
    """Remove a departed run's checkpoints and journal, and the values that no branch needs."""
    record = read_record(folder)
    unlink(folder / JOURNAL)
    remove_checkpoints(layout, record.key, record.saved)
    sweep(layout, record)


def _leave_behind(layout: Layout, record: RunRecord, needed: set[int]) -> None:
    values = _kept_values(record, needed)
    if not values:
        remove_folder(record.path.parent)
    elif record.saved or record.values.keys() - needed:
        replace_file(record.path, record.birth.line(record.serial) + values)


def remove_checkpoints(layout: Layout, key: int, checkpoint_ids: Iterable[str]) -> None:
    """Remove the files of checkpoints that this run no longer keeps, unless another run keeps one of that name."""
    for checkpoint_id in checkpoint_ids:
        try:
            found = checkpoint_file(layout, checkpoint_id)
        except CheckpointDamaged:
            found = None
        if found is None or found[0].run_key == key:
            unlink(layout.checkpoint(checkpoint_id))
            unlink(layout.temporary(checkpoint_id))
    sync_folder(layout.root)
