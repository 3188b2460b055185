"""Texts and names in a form that Postgres can keep and look up."""

from __future__ import annotations

import hashlib
import re

_UNSTORABLE = re.compile("[\\\\\0\ud800-\udfff]")
_ESCAPE = re.compile(r"\\([0-9a-f]{4})")


def storable(text: str) -> str:
    """A text that Postgres can keep: it has no NUL and no half of a surrogate pair. `original` is the way back."""
    return _UNSTORABLE.sub(lambda found: f"\\{ord(found[0]):04x}", text)


def original(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text) if "\\" in text else text


def name_key(text: str) -> bytes:
    """What a name of any length is looked up by: an index entry has to fit on a third of a page."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def lock_number(*names: str) -> int:
    """An advisory lock for these names. Two that share a number by chance wait for each other and nothing worse."""
    digest = hashlib.blake2b("/".join(names).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
