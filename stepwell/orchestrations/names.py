"""Who is meant: names as models write them, to names as they are. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

_AROUND = " \t\r\n\"'`*_@#.,:;!?()[]{}<>“”‘’«»"


def matched_name(written: str, names: Collection[str]) -> str | None:
    """The one name that is meant, or None if it is none of them or could be several.

    Case, quotes, padding and a role written before or after are forgiven, and so is a beginning that only one name has.
    """
    if written in names:
        return written
    plain = _plain(written)
    by_plain: dict[str, list[str]] = {}
    for name in names:
        by_plain.setdefault(_plain(name), []).append(name)
    if plain in by_plain:
        return _only(by_plain[plain])
    if not plain:
        return None
    mentioned = [name for name in names if re.search(rf"(?<!\w){re.escape(_plain(name))}(?!\w)", plain)]
    if mentioned:
        # `data analyst` mentions `analyst` too; the longest is meant if it contains the others.
        longest = max(mentioned, key=len)
        return longest if all(_plain(name) in _plain(longest) for name in mentioned) else None
    return _only([name for name in names if len(plain) >= 3 and _plain(name).startswith(plain)])


def _plain(text: str) -> str:
    return re.sub(r"[\s_-]+", " ", text.strip(_AROUND)).strip(_AROUND).casefold()


def _only(names: list[str]) -> str | None:
    return names[0] if len(names) == 1 else None
