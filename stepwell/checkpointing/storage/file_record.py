"""`run.jsonl`: everything of one run but its journal, as lines that are only ever added.

    run     the first line: who it is, and whose branch
    value   a node: number, digest, references, text
    note    what became true in one instant: a change of the run's row, checkpoints saved or gone, requests, answers

A checkpoint's new values and the note that names it are one write and one fsync, so they exist together or not at all.
The run as it stands is the fold of its notes. Notes are numbered: one that is missing or unreadable leaves a gap, while
a damaged value is missed only by the checkpoints that lead to it.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stepwell.checkpointing.checkpoint import checked_id
from stepwell.checkpointing.storage.file_disk import (
    Identity,
    Look,
    closing,
    identity,
    look_of,
    open_regular,
    read_from,
)
from stepwell.checkpointing.storage.file_json import parse_refs, refs_text
from stepwell.checkpointing.storage.file_lines import Line, dumped, lines, loaded, sealed
from stepwell.checkpointing.storage.protocol import Decision, PendingSummary
from stepwell.checkpointing.storage.records import NODES_PER_RUN, RequestRow, RunRow, StoredCheckpoint, parse_usage
from stepwell.checkpointing.values import Node, Root
from stepwell.errors import CheckpointDamaged, FormatTooNew, InvalidId

RECORD = "run.jsonl"
JOURNAL = "journal.jsonl"
FORMAT = 1

_HOLDER = re.compile(r"[0-9a-f]{32}:[0-9]{1,10}:[^\x00-\x1f]{0,255}")
_KEY = re.compile(r"[0-9a-f]{12}")
_TEXT, _NUMBER, _OPTIONAL = (str,), (int,), (str, type(None))
_ROW: Mapping[str, tuple[type, ...]] = {
    "state": _TEXT,
    "epoch": _NUMBER,
    "holder": _OPTIONAL,
    "sweeps": _NUMBER,
    "sequence": _NUMBER,
    "supersteps": _NUMBER,
    "usage": _TEXT,
    "updated_at": _TEXT,
    "stopped_by": _OPTIONAL,
}


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint as its run knows it."""

    checkpoint_id: str
    digest: bytes
    refs: tuple[int, ...]
    header: str
    n: int
    """When it was saved, as a count of all saves in the store."""

    def stored(self, key: int) -> StoredCheckpoint:
        """Without its content."""
        return StoredCheckpoint(self.checkpoint_id, key, self.header, Root("", self.refs, self.digest))


@dataclass(frozen=True, slots=True)
class Birth:
    """What never changes about a run."""

    key: int
    run_id: str
    workflow_name: str
    origin: str
    """The key of the first ancestor, in hexadecimal: it names the family and its lock."""
    ancestors: tuple[tuple[int, str], ...] = ()
    """Keys and run ids of those whose values this run may refer to."""
    parent_checkpoint_id: str | None = None
    parent_run_id: str | None = None

    @property
    def salt(self) -> bytes:
        return self.key.to_bytes(6, "big")

    @property
    def row(self) -> RunRow:
        return RunRow(
            key=self.key,
            run_id=self.run_id,
            workflow_name=self.workflow_name,
            state="STARTED",
            epoch=0,
            holder=None,
            origin=self.origin,
            parent_checkpoint_id=self.parent_checkpoint_id,
            parent_run_id=self.parent_run_id,
        )

    def line(self, serial: int = 0) -> bytes:
        """The file's first line: the notes that follow are numbered from here, so no two versions of it begin alike."""
        data = asdict(self) | {
            "format": FORMAT,
            "s": serial,
            "key": f"{self.key:012x}",
            "ancestors": [[f"{key:012x}", run_id] for key, run_id in self.ancestors],
        }
        return sealed("run", dumped(data))

    @classmethod
    def parse(cls, payload: bytes) -> tuple[Birth, int]:
        data = loaded(payload)
        serial = _number(data.pop("s", None))
        version = data.pop("format", None)
        if type(version) is int and version > FORMAT:
            raise FormatTooNew(str(data.get("run_id"))[:128], f"run {version}", f"run {FORMAT}")
        data["key"] = _parse_key(data.get("key"))
        data["ancestors"] = tuple((_parse_key(key), checked_id("run_id", name)) for key, name in data["ancestors"])
        checked_id("run_id", data.get("run_id"))
        _parse_key(data.get("origin"))
        if not isinstance(data.get("workflow_name"), str):
            raise ValueError("it names no workflow")
        for name in ("parent_checkpoint_id", "parent_run_id"):
            if data.get(name) is not None:
                checked_id(name, data[name])
        return cls(**data), serial


def _parse_key(text: object) -> int:
    if not isinstance(text, str) or not _KEY.fullmatch(text):
        raise ValueError(f"{str(text)[:40]!r} is not the key of a run")
    return int(text, 16)


@dataclass(slots=True)
class Note:
    """What becomes true in one instant."""

    row: dict[str, Any] = field(default_factory=dict)
    saved: Sequence[Saved] = ()
    gone: Sequence[str] = ()
    asked: Sequence[PendingSummary] = ()
    decided: Sequence[Decision] = ()
    delivered: Sequence[str] = ()
    calls: int | None = None
    """From now on only calls of this generation count."""
    next_node: int | None = None
    n: int | None = None
    journal: int | None = None
    """The journal is durable up to here, and shorter only when calls of another generation count."""

    def line(self, serial: int, birth: Birth) -> bytes:
        parts: dict[str, Any] = {"s": serial, "row": self.row, "gone": list(self.gone)}
        parts["saved"] = [_saved_json(item, birth.key) for item in self.saved]
        parts["asked"] = [list(asdict(item).values()) for item in self.asked]
        parts["decided"] = [[item.request_id, item.value, item.answered_at, item.typed] for item in self.decided]
        parts["delivered"] = list(self.delivered)
        parts |= {"calls": self.calls, "next": self.next_node, "n": self.n, "journal": self.journal}
        given = {name: part for name, part in parts.items() if part not in (None, [], {})}
        return sealed("note", dumped(given), birth.salt)


def _saved_json(item: Saved, key: int) -> list[Any]:
    return [item.checkpoint_id, item.n, item.digest.hex(), refs_text(item.refs, key), item.header]


def value_line(node: Node, birth: Birth) -> bytes:
    refs = refs_text(node.refs, birth.key) or "-"
    return sealed("value", f"{node.id % NODES_PER_RUN} {node.digest.hex()} {refs} {node.text}", birth.salt)


def parse_value(payload: bytes, key: int) -> Node:
    number, digest, refs, text = payload.decode().split(" ", 3)
    parsed = parse_refs("" if refs == "-" else refs, key)
    return Node(key * NODES_PER_RUN + int(number), text, parsed, bytes.fromhex(digest))


@dataclass(slots=True)
class RunRecord:
    """A run as the lines of its file tell it. Used by one thread at a time."""

    path: Path
    birth: Birth
    file: Identity
    end: int = 0
    """Where the last whole line ends: the next one is written there."""
    serial: int = 0
    row: RunRow = field(init=False)
    saved: dict[str, Saved] = field(default_factory=dict)
    requests: dict[str, RequestRow] = field(default_factory=dict)
    values: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Where the lines of nodes are: offset and length."""
    next_node: int = 0
    calls: int = 0
    journal: int = 0
    """How long the journal is at least."""
    sure: int = 0
    """The serial of the last note that is known to be durable; 0 if none is."""
    n: int = 0
    base: int = 0
    """How long the file was when it was last written anew."""
    last_note: int = 0
    last_saved: Saved | None = None
    """The checkpoint of the very last line, if that is one."""
    lost_notes: bool = False
    """Some note can't be read, so how the run stands is not known for certain."""
    lost_values: int = 0
    look: Look | None = None
    """How the file looked when all of it was known."""
    _bad: int = 0

    def __post_init__(self) -> None:
        self.row = self.birth.row
        self.next_node = self.birth.key * NODES_PER_RUN + 1

    @property
    def key(self) -> int:
        return self.birth.key

    @property
    def run_id(self) -> str:
        return self.birth.run_id

    @property
    def newest(self) -> Saved | None:
        return next(reversed(self.saved.values()), None)

    @property
    def waiting(self) -> tuple[str, ...]:
        return tuple(request_id for request_id, row in self.requests.items() if row.decision is None)

    @property
    def is_damaged(self) -> bool:
        # Unreadable lines after the last note may have been the newest note.
        return self.lost_notes or self._bad > 0

    def check(self) -> None:
        if self.is_damaged:
            raise CheckpointDamaged(f"run {self.run_id}", "lines of its record can't be read", self._good())
        try:
            parse_usage(self.row.usage)
        except CheckpointDamaged as damage:
            raise CheckpointDamaged(f"run {self.run_id}", damage.problem, self._good()) from damage

    def _good(self) -> str | None:
        return self.newest.checkpoint_id if self.newest else None

    # --- folding -----------------------------------------------------------------------------------------------------

    def fold(self, data: bytes, offset: int) -> None:
        """Take in the lines of `data`, which begins at `offset`."""
        for line in lines(data, self.birth.salt, offset):
            self.end = line.end
            try:
                self._fold(line)
            except (ValueError, TypeError, KeyError, InvalidId, RecursionError):
                self._bad += 1

    def add(self, data: bytes, descriptor: int) -> None:
        """Take in lines that were just added to the open file."""
        self.fold(data, self.end)
        look = look_of(descriptor)
        self.look = look if look[2] == self.end else None

    def _fold(self, line: Line) -> None:
        if line.kind == "value":
            number = int(line.payload[: line.payload.index(b" ")])
            if not 0 < number < NODES_PER_RUN:
                raise ValueError("a value has no such number")
            node_id = self.key * NODES_PER_RUN + number
            self.values[node_id] = (line.start, line.end - line.start)
            self.next_node = max(self.next_node, node_id + 1)
            self.last_saved = None
        elif line.kind == "note":
            self._apply(loaded(line.payload), line)
        else:
            raise ValueError("it is no line of a record")

    def _apply(self, data: dict[str, Any], line: Line) -> None:
        serial = _number(data["s"])
        row = replace(self.row, **_checked_row(data.get("row", {})))
        saved = [_parse_saved(item, self.key) for item in data.get("saved", ())]
        asked = [PendingSummary(*_texts(item, 7)) for item in data.get("asked", ())]
        decided = [_parse_decision(item) for item in data.get("decided", ())]
        went = [checked_id("checkpoint_id", gone) for gone in data.get("gone", ())]
        if serial != self.serial + 1:
            self.lost_notes = True
        self.lost_values += self._bad
        self._bad = 0
        self.serial, self.row, self.last_note = serial, row, line.start
        self.base = self.base or line.end
        for gone in went:
            self.saved.pop(gone, None)
        for item in saved:
            self.saved.pop(item.checkpoint_id, None)
            self.saved[item.checkpoint_id] = item
        self._apply_requests(asked, decided, data.get("delivered", ()))
        calls = _number(data.get("calls", self.calls))
        self.journal = _number(data.get("journal", self.journal if calls == self.calls else 0))
        self.calls = calls
        self.next_node = max(self.next_node, _number(data.get("next", 0)))
        self.n = max(self.n, _number(data.get("n", 0)), *(item.n for item in saved), 0)
        self.last_saved = saved[-1] if saved else None

    def _apply_requests(
        self, asked: Iterable[PendingSummary], decided: Iterable[Decision], delivered: Iterable[str]
    ) -> None:
        for summary in asked:
            self.requests.setdefault(summary.request_id, RequestRow(summary, None, self.run_id))
        for decision in decided:
            self.requests[decision.request_id] = replace(self.requests[decision.request_id], decision=decision)
        for request_id in delivered:
            answered = self.requests[request_id]
            if answered.decision is not None:
                self.requests[request_id] = replace(answered, decision=replace(answered.decision, typed=True))

    # --- reading -----------------------------------------------------------------------------------------------------

    def nodes(self, ids: Iterable[int]) -> dict[int, Node]:
        """These nodes and those of the same file that they lead to; what is missing or unreadable is left out."""
        found: dict[int, Node] = {}
        with closing(self.opened()) as descriptor:
            waiting = [node_id for node_id in ids if node_id in self.values]
            whole = read_from(descriptor) if len(waiting) > _MANY else None
            while waiting:
                node_id = waiting.pop()
                if node_id in found:
                    continue
                node = self._node(descriptor, node_id, whole)
                if node is not None:
                    found[node_id] = node
                    waiting.extend(ref for ref in node.refs if ref in self.values and ref not in found)
                    if whole is None and len(found) > _MANY:
                        whole = read_from(descriptor)
        return found

    def _node(self, descriptor: int, node_id: int, whole: bytes | None) -> Node | None:
        offset, length = self.values[node_id]
        data = os.pread(descriptor, length, offset) if whole is None else whole[offset : offset + length]
        try:
            (line,) = lines(data, self.birth.salt)
            node = parse_value(line.payload, self.key)
        except ValueError:  # damaged since it was indexed, and as good as missing
            return None
        return node if line.kind == "value" and node.id == node_id else None

    def opened(self) -> int:
        """The file that was folded; `Changed` if its name means another one now."""
        descriptor = open_regular(self.path, os.O_RDONLY)
        if identity(descriptor) != self.file:
            os.close(descriptor)
            raise Changed
        return descriptor

    @property
    def is_as_it_was(self) -> bool:
        """Is there nothing in the file that is not known?"""
        return self.look is not None and look_of(self.path) == self.look

    def refresh(self) -> None:
        """Take in what was added since; `Changed` if the file was written anew."""
        with closing(self.opened()) as descriptor:
            look = look_of(descriptor)
            if look[2] < self.end:
                raise Changed
            if look[2] > self.end:
                self.fold(read_from(descriptor, self.end), self.end)
            self.look = look if look[2] == self.end else None


_MANY = 32
"""From so many nodes on, one read of the whole file is quicker than a read for each."""


class Changed(Exception):
    """The file is not the one that was read: it was swept, deleted or exchanged."""


def read_record(folder: Path, run_id: str | None = None) -> RunRecord:
    """The run in this folder; `FileNotFoundError` if there is none, `CheckpointDamaged` if it can't be told whose.

    With `run_id`, it has to be that run's.
    """
    path = folder / RECORD
    named = run_id or folder.name
    with closing(_opened(path, run_id)) as descriptor:
        data = read_from(descriptor)
        first = next(lines(data, b""), None)
        try:
            if first is None or first.kind != "run":
                raise ValueError("its first line can't be read")
            birth, serial = Birth.parse(first.payload)
        except (ValueError, TypeError, KeyError, InvalidId) as error:
            raise CheckpointDamaged(f"run {named}", str(error)) from error
        if run_id is not None and birth.run_id != run_id:
            raise CheckpointDamaged(f"run {named}", f"its record is that of run {birth.run_id!r}")
        record = RunRecord(path, birth, identity(descriptor), serial=serial)
        record.fold(data[first.end :], first.end)
        record.end = max(record.end, first.end)
        # Only values that were left behind have no note. A run is born with one.
        record.lost_notes |= run_id is not None and record.base == 0
        return record


def _opened(path: Path, run_id: str | None) -> int:
    try:
        return open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        # A run comes and goes with its whole folder. Looked at again: it may just have been made anew.
        if run_id is None or not path.parent.is_dir():
            raise
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise CheckpointDamaged(f"run {run_id or path.parent.name}", "its record is a symbolic link") from error
    try:
        return open_regular(path, os.O_RDONLY)
    except FileNotFoundError as error:
        if not path.parent.is_dir():
            raise
        raise CheckpointDamaged(f"run {run_id}", "its record is missing") from error


# --- checking what was read -------------------------------------------------------------------------------------------


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 127:
        raise ValueError(f"{str(value)[:40]!r} is not a count")
    return value


def _texts(values: object, count: int) -> list[Any]:
    if not isinstance(values, list) or len(values) != count or not all(isinstance(each, _OPTIONAL) for each in values):
        raise ValueError("a request or an answer can't be read")
    return values


def _parse_decision(item: Sequence[Any]) -> Decision:
    request_id, value, answered_at = _texts(item[:3], 3)
    return Decision(request_id, value, answered_at, typed=bool(item[3]))


def _checked_row(row: object) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ValueError("a row is not an object")
    for name, value in row.items():
        if not isinstance(value, _ROW[name]) or isinstance(value, bool):
            raise ValueError(f"{name} can't be {str(value)[:40]!r}")
    holder = row.get("holder")
    if holder is not None and not _HOLDER.fullmatch(holder):
        raise ValueError("its holder can't be read")
    return row


def _parse_saved(item: object, key: int) -> Saved:
    if not isinstance(item, list) or len(item) != 5 or not all(isinstance(item[place], str) for place in (0, 2, 3, 4)):
        raise ValueError("a saved checkpoint can't be read")
    checkpoint_id, n, digest, refs, header = item
    checked_id("checkpoint_id", checkpoint_id)
    return Saved(checkpoint_id, bytes.fromhex(digest), parse_refs(refs, key), header, _number(n))
