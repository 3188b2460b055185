"""How things look in the live view: signs, colours, and text made to fit. Widths are in cells, not in characters."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from rich.cells import cell_len, chop_cells
from rich.text import Text

Part = str | tuple[str, str]
"""A piece of a line: plain, or with its style. It has been cleaned."""

COLOURS = ("cyan", "yellow", "green", "bright_blue", "bright_red", "bright_cyan", "bright_yellow", "bright_green")
MANAGER_COLOUR = "magenta"


@dataclass(frozen=True, slots=True)
class Signs:
    """The signs of the view; a terminal that can't write them gets letters."""

    done: str = "✔"
    current: str = "▶"
    open: str = "○"
    to: str = "→"
    result: str = "↳"
    tool: str = "⚙"
    bar: str = "│"
    saved: str = "▪"
    replayed: str = "↺"
    warning: str = "!"
    more: str = "…"
    dot: str = "·"
    rule: str = "─"
    working: str = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


ASCII = Signs("x", ">", "o", "->", "->", "*", "|", "-", "<", "!", "...", "-", "-", "|/-\\")


@dataclass(slots=True)
class Look:
    """Signs, and a colour for each name that stays the same wherever the name appears."""

    signs: Signs = field(default_factory=Signs)
    manager: str = "manager"

    def colour(self, name: str) -> str:
        if name == self.manager:
            return MANAGER_COLOUR
        return COLOURS[zlib.crc32(name.encode("utf-8", "surrogatepass")) % len(COLOURS)]


def line(*parts: Part, width: int, sign: str = "…") -> Text:
    """One line of these parts that is never wider than `width`; what does not fit is cut, and says so."""
    text = Text(no_wrap=True)
    for part in parts:
        text.append(part) if isinstance(part, str) else text.append(*part)
    return fitted(text, width, sign)


def fitted(text: Text, width: int, sign: str = "…") -> Text:
    if text.cell_len > width:
        text.truncate(max(0, width - cell_len(sign)), overflow="crop")
        text.append(sign[:width], text.spans[-1].style if text.spans else "")
    return text


def clipped(text: str, width: int, sign: str = "…") -> str:
    """The beginning of a text, in `width` cells at most."""
    if cell_len(text) <= width:
        return text
    kept = chop_cells(text, max(1, width - cell_len(sign)))
    return (kept[0] if kept and width > cell_len(sign) else "") + sign[:width]


def wrapped(text: str, width: int) -> Iterator[str]:
    """The lines of a text, broken between words where there are any, so that none is wider than `width`."""
    for written in text.split("\n"):
        yield from _broken(written.rstrip(), max(2, width))


def _broken(written: str, width: int) -> Iterator[str]:
    if cell_len(written) <= width:
        yield written
        return
    indent = _margin(written)[: width // 2]
    current, used = "", 0
    for word in _words(written, width):
        size = cell_len(word)
        if current.strip() and used + cell_len(word.rstrip()) > width:
            yield current.rstrip()
            current, used = indent, len(indent)
        current, used = current + word, used + size
    if current.strip():
        yield current.rstrip()


def _margin(written: str) -> str:
    """What the further lines of a broken one begin with: they stand below the words, not below a bullet."""
    words = written.lstrip(" ")
    marked = len(written) - len(words) + (2 if words.startswith(("- ", "* ", "• ")) else 0)
    return " " * marked


def _words(written: str, width: int) -> Iterator[str]:
    """Words with the space behind them; those that are too long for any line come in pieces."""
    start = 0
    while start < len(written):
        end = written.find(" ", start + 1)
        word = written[start : end + 1] if end >= 0 else written[start:]
        start = end + 1 if end >= 0 else len(written)
        if cell_len(word) <= width:
            yield word
        else:
            yield from chop_cells(word, max(2, width // 2))


def excerpt(text: str, *, width: int, rows: int, end: Literal["head", "tail"]) -> list[str]:
    """At most `rows` lines from the beginning or the end of a text of any length."""
    # Whatever does not fit is not even looked at: a stream may have become very long.
    most = rows * width + rows
    part = text[:most] if end == "head" else text[-most:]
    found = list(wrapped(part, width))
    return found[:rows] if end == "head" else found[-rows:]


def columns(names: Iterable[str], most: int) -> int:
    """How wide a column of names is, at most `most` cells."""
    return min(most, max((cell_len(name) for name in names), default=0))


def padded(text: str, width: int, sign: str = "…") -> str:
    """A text in exactly `width` cells."""
    text = clipped(text, width, sign)
    return text + " " * (width - cell_len(text))
