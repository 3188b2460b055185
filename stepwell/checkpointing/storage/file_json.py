"""`<checkpoint_id>.json`: one checkpoint, for people and programs.

    {
      "stepwell": "checkpoint 1",
      "header": {            who, when, how far: one line each
        "format":"1.0",
        …
      },
      "content": {           messages in flight, state, requests, outputs; {"$":3} is the fourth of the values
        "messages":{…},
        …
      },
      "values": "1,2,5f0c6a9de102/7",
      "run": "run-7/9b1f33c0a7d4",
      "digest": "…",         of header and content, and of the values they refer to
      "checksum": "…"        of every byte above
    }

Values are numbered within their run; those of another run (a branch refers to its parent's) bear that run's key. Header
and content are kept to the letter, only broken into lines, because the digest covers their text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

from stepwell.checkpointing.checkpoint import checked_id
from stepwell.checkpointing.storage.records import NODES_PER_RUN, StoredCheckpoint
from stepwell.checkpointing.values import Root
from stepwell.errors import CheckpointDamaged, FormatTooNew

FORMAT = "checkpoint 1"

_decoder = json.JSONDecoder()
_FRAME = re.compile(
    r"\{\n"
    r'  "stepwell": "(?P<format>[^"\n]{1,40})",\n'
    r'  "header": \{\n(?P<header>(?:    .*\n)*?)  \},\n'
    r'  "content": \{\n(?P<content>(?:    .*\n)*?)  \},\n'
    r'  "values": "(?P<refs>[0-9a-f,/]*)",\n'
    r'  "run": "(?P<run>[A-Za-z0-9_.-]{1,128})/(?P<key>[0-9a-f]{12})",\n'
    r'  "digest": "(?P<digest>[0-9a-f]{32})"'
)
_REF = re.compile(r"(?:([0-9a-f]{12})/)?([0-9]{1,10})")


def refs_text(refs: tuple[int, ...], key: int) -> str:
    """References for people: short for the run's own values, with the key for another's."""
    return ",".join(_ref_text(ref, key) for ref in refs)


def _ref_text(ref: int, key: int) -> str:
    owner, number = divmod(ref, NODES_PER_RUN)
    return str(number) if owner == key else f"{owner:012x}/{number}"


def parse_refs(text: str, key: int) -> tuple[int, ...]:
    """`ValueError` if these are not references."""
    return tuple(_parse_ref(part, key) for part in text.split(",")) if text else ()


def _parse_ref(text: str, key: int) -> int:
    match = _REF.fullmatch(text)
    if match is None or int(match[2]) >= NODES_PER_RUN:
        raise ValueError(f"{text[:40]!r} is not a reference")
    return (int(match[1], 16) if match[1] else key) * NODES_PER_RUN + int(match[2])


def checkpoint_bytes(stored: StoredCheckpoint, run_id: str) -> bytes:
    """The file's content."""
    root = stored.root
    parts = [
        f'{{\n  "stepwell": "{FORMAT}",\n  "header": {{\n',
        _broken(stored.header),
        '  },\n  "content": {\n',
        _broken(root.text),
        f'  }},\n  "values": "{refs_text(root.refs, stored.run_key)}",\n',
        f'  "run": "{run_id}/{stored.run_key:012x}",\n  "digest": "{root.digest.hex()}",\n',
    ]
    body = "".join(parts).encode()
    return b'%s  "checksum": "%s"\n}\n' % (body, _checksum(body))


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode()


def _broken(text: str) -> str:
    """An object's members, one per line."""
    return "".join(f"    {member}\n" for member in _members(text))


def _members(text: str) -> Iterator[str]:
    """Cut between members; each but the last keeps its comma."""
    position = 1
    while position < len(text) - 1:
        _, end = _decoder.raw_decode(text, position)  # the key
        _, end = _decoder.raw_decode(text, end + 1)  # and its value
        if text[end] == ",":
            end += 1
        yield text[position:end]
        position = end


def parse_checkpoint(checkpoint_id: str, data: bytes) -> tuple[StoredCheckpoint, str]:
    """The checkpoint in a file of this name and the run that keeps it, exactly as they were written."""
    body, mark, tail = data.rpartition(b'  "checksum": "')
    if not mark or tail != b'%s"\n}\n' % _checksum(body):
        problem = "it is empty" if not data else "its content does not match its checksum"
        raise CheckpointDamaged(checkpoint_id, problem)
    try:
        return _parsed(checkpoint_id, body.decode().removesuffix(",\n"))
    except FormatTooNew:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointDamaged(checkpoint_id, f"it can't be read: {error}") from error


def _parsed(checkpoint_id: str, text: str) -> tuple[StoredCheckpoint, str]:
    found = _FRAME.fullmatch(text)
    if found is None:
        raise ValueError("it does not have the shape of a checkpoint")
    if found["format"] != FORMAT:
        raise FormatTooNew(checkpoint_id, found["format"], FORMAT)
    key = int(found["key"], 16)
    root = Root(_joined(found["content"]), parse_refs(found["refs"], key), bytes.fromhex(found["digest"]))
    return StoredCheckpoint(checkpoint_id, key, _joined(found["header"]), root), checked_id("run_id", found["run"])


def _joined(members: str) -> str:
    return "{" + "".join(line[4:] for line in members.split("\n")) + "}"
