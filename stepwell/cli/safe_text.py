"""What came from a store, a model or a person, made harmless for a terminal.

Everything that this program did not write itself goes through `safe` before it is printed. Escape sequences could move
the cursor, retitle the window or forge a question; direction overrides can make a text read as another one. They are
shown as what they are (`\\x1b`, `\\u202e`) instead of being obeyed.
"""

from __future__ import annotations

import unicodedata

_LEFT_ALONE = frozenset("\n\u00ad\u200c\u200d")
"""Line ends, and what scripts and emoji need inside words."""
_DANGEROUS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_TAB = "    "


def safe(text: object) -> str:
    """The text without anything a terminal would act upon; lines stay lines."""
    plain = str(text).replace("\r\n", "\n").replace("\t", _TAB)
    if plain.isascii() and plain.replace("\n", "").isprintable():
        return plain
    return "".join(_shown(character) for character in plain)


def one_line(text: object, width: int | None = None) -> str:
    """The text safe, on one line, cut to `width` characters."""
    line = " ".join(safe(text).split())
    if width is None or len(line) <= width:
        return line
    return line[: max(width - 1, 0)] + "…"


def _shown(character: str) -> str:
    if character in _LEFT_ALONE or unicodedata.category(character) not in _DANGEROUS:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
