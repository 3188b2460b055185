"""What a store is called where others may read it: without the passwords that its name holds."""

from __future__ import annotations

import re
from urllib.parse import unquote

MASK = "***"
_SECRET = frozenset({"password", "sslpassword"})
_IN_A_QUERY = re.compile(r"([?&])([^=&?]*)=([^&]*)")
_IN_WORDS = re.compile(r"(\b(?:ssl)?password\s*=\s*)('(?:\\.|[^'\\])*(?:'|\Z)|(?:\\.|[^\s\\])*)", re.DOTALL)


def masked(store: str) -> str:
    """A URL or `key=value` words with `***` in place of each password; anything else as it is."""
    scheme, separator, rest = store.partition("://")
    if not separator:
        return _IN_WORDS.sub(rf"\1{MASK}", store)
    # First those of the query: a password there may hold an @, which would look like the end of the other one.
    rest = _IN_A_QUERY.sub(_masked_parameter, rest)
    credentials, at, place = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    return f"{scheme}{separator}{user}:{MASK}{at}{place}" if colon else f"{scheme}{separator}{rest}"


def _masked_parameter(found: re.Match[str]) -> str:
    mark, name, value = found.groups()
    return f"{mark}{name}={MASK if unquote(name).strip() in _SECRET else value}"
