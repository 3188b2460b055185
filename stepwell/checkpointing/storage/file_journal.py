"""`journal.jsonl`: one line per call, recorded before its result reaches the program.

Each line bears the generation of its superstep. A checkpoint begins a new one in the same note that saves it, so the
calls before it are forgotten in that instant, and emptying the file afterwards is mere tidiness.

A damaged line is noticed, and so is one that is missing before another. Whole lines that are missing at the end are
noticed if a note in the record tells that they were there: the notes with which a run is opened, given back and, if its
calls are kept, saved tell how long the journal was. What was added after the last of these, by a process that died, is
told of by nothing else. The other way round, each line names a note that was durable when it was written, so a record
that has lost its last notes does not go unnoticed either.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from stepwell.checkpointing.checkpoint import FORMAT
from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.storage.file_disk import closing, open_regular, read_from
from stepwell.checkpointing.storage.file_lines import dumped, lines, loaded, sealed
from stepwell.checkpointing.storage.file_operations import truncate
from stepwell.checkpointing.storage.file_record import JOURNAL, RunRecord
from stepwell.errors import CheckpointDamaged, FormatTooNew

_FIELDS = tuple(CallRecord.__dataclass_fields__)


def call_line(record: RunRecord, at: int, row: CallRecord | None, dropped: Sequence[str]) -> bytes:
    """A line that is to be written at this place: it says where, so that one before it can't be missing unnoticed."""
    data: dict[str, object] = {"g": record.calls, "at": at, "s": record.sure}
    if dropped:
        data["drop"] = list(dropped)
    if row is not None:
        data["call"] = {name: value for name in _FIELDS if (value := getattr(row, name)) is not None}
    return sealed("call", dumped(data), record.birth.salt)


def read_journal(record: RunRecord) -> tuple[tuple[CallRecord, ...], int]:
    """The calls that count, in the order in which they were first recorded, and where the last whole line ends."""
    calls: dict[str, CallRecord] = {}
    end = 0
    for number, line in enumerate(lines(_content(record.path.with_name(JOURNAL)), record.birth.salt), 1):
        end = line.end
        try:
            if line.kind != "call":
                raise ValueError("it does not match its checksum")
            data = loaded(line.payload)
            # One further on if the line before it had lost its break, which was then made good.
            if data.get("at", line.start) not in (line.start, line.start - 1):
                raise ValueError("lines before it are missing, or not the ones that were written")
            if _number(data, "s", 0) > record.serial:
                raise ValueError("the record of the run lacks notes that were there when it was written")
            if _number(data, "g") == record.calls:
                _fold(calls, data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            good = record.newest.checkpoint_id if record.newest else None
            raise CheckpointDamaged(f"journal of run {record.run_id}, line {number}", str(error), good) from error
    if end < record.journal - 1:  # a line whose break was lost counts
        good = record.newest.checkpoint_id if record.newest else None
        raise CheckpointDamaged(f"journal of run {record.run_id}", "lines at its end are missing", good)
    return tuple(calls.values()), end


def _content(path: Path) -> bytes:
    try:
        with closing(open_regular(path, os.O_RDONLY)) as descriptor:
            return read_from(descriptor)
    except FileNotFoundError:
        return b""


def _number(data: dict[str, object], name: str, default: int | None = None) -> int:
    number = data[name] if default is None else data.get(name, default)
    if type(number) is not int:
        raise ValueError("it can't be told to which superstep it belongs")
    return number


def _fold(calls: dict[str, CallRecord], data: dict[str, object]) -> None:
    dropped, call = data.get("drop", []), data.get("call")
    if not isinstance(dropped, list):
        raise ValueError("it drops something unreadable")
    for call_id in dropped:
        calls.pop(call_id, None)
    if call is not None:
        row = _parsed(call)
        calls[row.call_id] = row


def _parsed(call: object) -> CallRecord:
    if not isinstance(call, dict):
        raise ValueError("it is not a call")
    if unknown := call.keys() - set(_FIELDS):
        raise FormatTooNew(f"call {str(call.get('call_id'))[:200]}", f"with {', '.join(sorted(unknown))}", FORMAT)
    texts = [call.get(name) for name in ("call_id", "scope", "name", "request_hash", "request_preview", "started_at")]
    optional = [call.get(name) for name in ("result", "error")]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("it lacks something")
    if not all(text is None or isinstance(text, str) for text in optional):
        raise ValueError("its result can't be read")
    if not isinstance(call.get("usage"), dict | None) or call.get("verdict") not in (None, "retry", "fail"):
        raise ValueError("its usage or verdict can't be read")
    return CallRecord(**call)


def empty(record: RunRecord) -> None:
    """Forget what is forgotten already; not durable, and not needed to be."""
    with closing(open_regular(record.path.with_name(JOURNAL), os.O_RDWR | os.O_CREAT)) as descriptor:
        truncate(descriptor, 0)
