"""A disk that remembers every change, and the states that a power cut could have left of it.

What was changed is only certain once it was made durable: a file's content by an fsync of the file, a folder's names by
an fsync of the folder. Until then each file and each folder may have kept all of it, none of it or a beginning,
independently of the others; of a write that is not certain a file may also have half, or its size without its content.
A rename is one change even between two folders, as on every file system that keeps a journal.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepwell.checkpointing.storage.file_operations import Buffer, Disk

Thing = int
"""A file or a folder, numbered when it is made: the file system gives the numbers of removed ones to others."""
Place = tuple[Thing, str]
Tree = Mapping[str, bytes | None]
"""Every path there is, with a file's content; None stands for a folder."""

ROOT: Thing = 0


@dataclass(frozen=True, slots=True)
class Change:
    """One change, to a file's content or to names."""

    owner: Thing
    """The file, or the first of the folders."""
    offset: int = 0
    data: bytes | None = None
    size: int | None = None
    names: tuple[tuple[Place, Thing | None], ...] = ()
    is_folder: bool = False
    """What the last of the names leads to."""

    @property
    def owners(self) -> set[Thing]:
        return {self.owner, *(folder for (folder, _), _ in self.names)}


@dataclass(frozen=True, slots=True)
class Synced:
    """From here on it is certain what was done to this before the fsync began."""

    owner: Thing
    began: int
    """How long the log was then: what was done while it lasted may be in or not."""


# --- recording --------------------------------------------------------------------------------------------------------


class RecordingDisk(Disk):
    """Does what it is asked, and keeps a record of it. Everything below `root` is made through it."""

    def __init__(self, root: Path, log: Sequence[Change | Synced] = ()) -> None:
        """With a log, `root` is laid out as the process left it that wrote so far and was killed."""
        self._lock = threading.Lock()
        self._things = {root.stat().st_ino: ROOT}
        self.log: list[Change | Synced] = list(log)
        places = things_of(changes(self.log))
        self._numbers = itertools.count(
            max([ROOT, *(each for change in changes(self.log) for each in _made(change))]) + 1
        )
        if log:
            _lay_out_below(root, tree_of(changes(self.log)))
            self._things |= {(root / path).stat().st_ino: thing for path, thing in places.items()}

    def boot(self) -> bytes:
        return b"the-first-start"

    def _new(self, descriptor: int | Path) -> Thing:
        thing = self._things[os.stat(descriptor).st_ino] = next(self._numbers)  # noqa: PTH116 - or a descriptor
        return thing

    def _thing(self, descriptor: int | Path) -> Thing:
        return self._things[os.stat(descriptor).st_ino]  # noqa: PTH116

    def _place(self, path: Path) -> Place:
        return self._thing(path.parent), path.name

    def _names(self, *names: tuple[Place, Thing | None], is_folder: bool = False) -> None:
        self.log.append(Change(names[0][0][0], names=names, is_folder=is_folder))

    def open(self, path: Path, flags: int, mode: int = 0o600, *, folder: int | None = None) -> int:
        with self._lock:
            is_new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
            descriptor = super().open(path, flags, mode, folder=folder)
            if is_new:
                self._names((self._place(path), self._new(descriptor)))
            elif flags & os.O_TRUNC:
                self.log.append(Change(self._thing(descriptor), size=0))
            return descriptor

    def write(self, descriptor: int, data: Buffer) -> int:
        with self._lock:
            is_appending = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
            offset = os.lseek(descriptor, 0, os.SEEK_END if is_appending else os.SEEK_CUR)
            written = super().write(descriptor, data)
            self.log.append(Change(self._thing(descriptor), offset, bytes(data[:written])))
            return written

    def truncate(self, descriptor: int, size: int) -> None:
        with self._lock:
            super().truncate(descriptor, size)
            self.log.append(Change(self._thing(descriptor), size=size))

    def sync(self, descriptor: int) -> None:
        with self._lock:
            thing, began = self._thing(descriptor), len(self.log)
        self.linger(thing)
        with self._lock:
            self.log.append(Synced(thing, began))

    def linger(self, thing: Thing) -> None:
        """What happens while something is made durable; nothing, unless somebody has a reason to wait."""

    def rename(self, path: Path, target: Path) -> None:
        with self._lock:
            thing, is_folder = self._thing(path), path.is_dir()
            super().rename(path, target)
            self._names((self._place(path), None), (self._place(target), thing), is_folder=is_folder)

    def unlink(self, path: Path) -> None:
        with self._lock:
            super().unlink(path)
            self._names((self._place(path), None))

    def mkdir(self, path: Path) -> None:
        with self._lock:
            super().mkdir(path)
            self._names((self._place(path), self._new(path)), is_folder=True)

    def rmdir(self, path: Path) -> None:
        with self._lock:
            super().rmdir(path)
            self._names((self._place(path), None))


class AfterwardsDisk(Disk):
    """The disk of whoever looks at what was left. It need not be made durable: nobody cuts the power again."""

    def __init__(self, boot: bytes) -> None:
        self._boot = boot

    def boot(self) -> bytes:
        return self._boot

    def sync(self, descriptor: int) -> None:
        return


# --- cutting ----------------------------------------------------------------------------------------------------------


def states_after(log: Sequence[Change | Synced]) -> Iterator[Tree]:
    """What a power cut right after these may leave, the same state only once."""
    seen: set[frozenset[tuple[str, bytes | None]]] = set()
    for changes in _survivals(log):
        tree = tree_of(changes)
        key = frozenset(tree.items())
        if key not in seen:
            seen.add(key)
            yield tree


def _survivals(log: Sequence[Change | Synced]) -> Iterator[list[Change]]:
    changes = [(index, entry) for index, entry in enumerate(log) if isinstance(entry, Change)]
    synced: dict[Thing, int] = {}
    for entry in log:
        if isinstance(entry, Synced):
            synced[entry.owner] = max(entry.began, synced.get(entry.owner, 0))
    unsure: dict[Thing, list[int]] = {}
    for index, change in changes:
        if all(synced.get(owner, 0) <= index for owner in change.owners):
            unsure.setdefault(change.owner, []).append(index)
    everything = {index for group in unsure.values() for index in group}

    def without(lost: set[int], other: Mapping[int, Change] | None = None) -> list[Change]:
        return [(other or {}).get(index, change) for index, change in changes if index not in lost]

    yield without(set())
    yield without(everything)
    by_index = dict(changes)
    for group in unsure.values():
        for kept in range(len(group) + 1):
            yield without(set(group[kept:]))
            yield without(everything - set(group[:kept]))
        for index in group:
            for damaged in _unfinished(by_index[index]):
                later = {each for each in group if each > index}
                yield without(later, {index: damaged})
                yield without(everything - {each for each in group if each <= index}, {index: damaged})


def _unfinished(change: Change) -> Iterator[Change]:
    """What else a write may leave than all or nothing."""
    if change.data:
        yield replace(change, data=change.data[:-1])
        yield replace(change, data=bytes(len(change.data)))
        yield replace(change, data=change.data[: len(change.data) // 2].ljust(len(change.data), b"\0"))


def changes(log: Sequence[Change | Synced]) -> list[Change]:
    return [entry for entry in log if isinstance(entry, Change)]


def _made(change: Change) -> Iterator[Thing]:
    """The things that the names of a change lead to."""
    return (thing for _, thing in change.names if thing is not None)


def tree_of(changes: Sequence[Change]) -> dict[str, bytes | None]:
    """Every path there is after these, with what it leads to."""
    names, folders, contents = _state_after(changes)
    return {
        path: None if thing in folders else bytes(contents.get(thing, b""))
        for path, thing in _paths(ROOT, "", names, folders)
    }


def things_of(changes: Sequence[Change]) -> dict[str, Thing]:
    names, folders, _ = _state_after(changes)
    return dict(_paths(ROOT, "", names, folders))


def _state_after(changes: Sequence[Change]) -> tuple[dict[Place, Thing], set[Thing], dict[Thing, bytearray]]:
    names: dict[Place, Thing] = {}
    contents: dict[Thing, bytearray] = {}
    folders: set[Thing] = {ROOT}
    for change in changes:
        for place, thing in change.names:
            if thing is None:
                names.pop(place, None)
            else:
                names[place] = thing
                if change.is_folder:
                    folders.add(thing)
        if not change.names:
            _apply(contents.setdefault(change.owner, bytearray()), change)
    return names, folders, contents


def _apply(content: bytearray, change: Change) -> None:
    if change.size is not None:
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
    if change.data is not None:
        content.extend(bytes(max(0, change.offset - len(content))))
        content[change.offset : change.offset + len(change.data)] = change.data


def _paths(
    folder: Thing, prefix: str, names: Mapping[Place, Thing], folders: set[Thing]
) -> Iterator[tuple[str, Thing]]:
    for (parent, name), thing in names.items():
        if parent != folder:
            continue
        yield f"{prefix}{name}", thing
        if thing in folders:
            yield from _paths(thing, f"{prefix}{name}/", names, folders)


def lay_out(tree: Tree, place: Path) -> None:
    """Make such files and folders here."""
    place.mkdir()
    _lay_out_below(place, tree)


def _lay_out_below(place: Path, tree: Tree) -> None:
    for name, content in tree.items():
        if content is None:
            (place / name).mkdir(mode=0o700)
        else:
            (place / name).write_bytes(content)
            (place / name).chmod(0o600)
