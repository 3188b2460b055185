"""Checksummed lines, and how to tell a line that was never finished from one that was damaged later.

    <16 hex digits> <kind> <payload>\\n

The digits are a checksum over kind and payload, salted with the key of the run they belong to: a line of another run's
file does not pass for one of this one. A crash leaves the beginning of a line at the very end, without its line break:
that was never acknowledged and counts as not written. Whatever else does not match its checksum was whole once, and is
damage. A last line that is whole but for its break was written whole, so it counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_SUM = 16


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file. `kind` is empty if the line is damaged."""

    start: int
    end: int
    kind: str
    payload: bytes


def checksum(body: bytes, salt: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_SUM // 2, key=salt).hexdigest().encode()


def sealed(kind: str, payload: str, salt: bytes = b"") -> bytes:
    """A line as it is written."""
    body = f"{kind} {payload}".encode()
    return b"%s %s\n" % (checksum(body, salt), body)


def lines(data: bytes, salt: bytes, offset: int = 0) -> Iterator[Line]:
    """The lines of `data`, which begins at `offset` of its file; the unfinished one at the end is left out."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        if end < 0:
            yield from _last(data[start:], salt, offset + start)
            return
        line = _read(data[start:end], salt)
        yield Line(offset + start, offset + end + 1, *(line or ("", b"")))
        start = end + 1


def _last(rest: bytes, salt: bytes, start: int) -> Iterator[Line]:
    whole = _read(rest, salt)
    if whole is not None:
        yield Line(start, start + len(rest), *whole)
    elif _read(rest[:-1], salt) is not None:
        yield Line(start, start + len(rest), "", b"")  # it had its line break, which has become something else


def _read(line: bytes, salt: bytes) -> tuple[str, bytes] | None:
    body = line[_SUM + 1 :]
    if line[_SUM : _SUM + 1] != b" " or checksum(body, salt) != line[:_SUM]:
        return None
    kind, _, payload = body.partition(b" ")
    return kind.decode("ascii", "replace"), payload


def dumped(data: Any) -> str:
    """Compact JSON that is always valid UTF-8; halves of surrogate pairs are written in escapes."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text


def loaded(payload: bytes) -> dict[str, Any]:
    """A payload that has to be a JSON object; `ValueError` if it is not."""
    try:
        data = json.loads(payload)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("it is not an object")
    return data
