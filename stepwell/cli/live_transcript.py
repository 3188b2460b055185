"""The part of the live view that stays: each entry as lines of a terminal, to be scrolled back to. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from stepwell.cli.live_changes import Change, changes
from stepwell.cli.live_entries import (
    Asked,
    Entry,
    Judged,
    Noted,
    Planned,
    Replayed,
    Said,
    Saved,
    ToolUsed,
    Worked,
    Yielded,
    words_of,
)
from stepwell.cli.live_frame import NAME_WIDTH
from stepwell.cli.live_look import Look, columns, excerpt, line, padded, wrapped
from stepwell.cli.plurals import number_of
from stepwell.cli.safe_text import one_line, safe
from stepwell.orchestrations.plan import Plan

WORDS_ROWS = 14
"""Rows that one turn's words take at most; the whole of it is in the record."""
_VALUE_ROWS = 4

_CHANGED = {"new": "+", "gone": "-"}
_ALL_NEW = {"new": " "}
_NOTE_STYLE = {
    "warning": "yellow",
    "retry": "yellow",
    "error": "bold red",
    "team": "magenta",
    "event": "dim",
    "request": "magenta",
}


def lines_of(entry: Entry, look: Look, width: int) -> Iterator[Text]:
    """An entry as lines no wider than `width`."""
    match entry:
        case Planned():
            yield from _planned(entry, look, width)
        case Asked():
            yield from _asked(entry, look, width)
        case Judged(by, verdict, reason):
            yield _named(
                by, look, width, (verdict, "bold"), (f"because {one_line(reason)}" if reason else "", "dim italic")
            )
        case ToolUsed():
            yield from _tool(entry, look, width)
        case Said(who, text):
            yield _named(who, look, width)
            yield from _barred(text, look, width, WORDS_ROWS)
        case Worked(who, took, gave):
            yield from _worked(who, took, gave, look, width)
        case Yielded(who, value, is_final):
            # What a run comes to is printed when it is over; here it is only said that it is there.
            yield _named(who, look, width, (f"output: {one_line(words_of(value))}" if is_final else "says", "dim"))
            yield from () if is_final else _barred(words_of(value), look, width, _VALUE_ROWS)
        case Saved(sequence, superstep, is_step):
            told = f"superstep {superstep} saved" if is_step else "saved"
            yield line((f"{look.signs.saved} {told}, checkpoint {sequence}", "dim green"), width=width)
        case Replayed(count):
            told = f"{look.signs.replayed} {number_of(count, 'call')} answered from the record, none made again"
            yield line((told, "bold cyan"), width=width, sign=look.signs.more)
        case Noted(kind, text, who):
            head = f"{one_line(who)}: " if who else ""
            for number, told in enumerate(wrapped(safe(head + text), width - 2)):
                yield line((f"{look.signs.warning if not number else ' '} {told}", _NOTE_STYLE[kind]), width=width)


def _named(who: str, look: Look, width: int, *more: tuple[str, str]) -> Text:
    parts = [(one_line(who), f"bold {look.colour(who)}"), *((f" {text}".replace("  ", " "), s) for text, s in more)]
    return line(*parts, width=width, sign=look.signs.more)


def _planned(entry: Planned, look: Look, width: int) -> Iterator[Text]:
    """A plan; of one that takes another's place only what is different, for the whole of it is in the frame."""
    found = changes(entry.before or Plan(), entry.plan)
    kept = sum(change.kind == "kept" for change in found)
    steps = number_of(len(entry.plan.steps), "step")
    if kept:
        yield _named(entry.by, look, width, (f"has another plan of {steps}, {kept} as before", ""))
        yield from _steps([change for change in found if change.kind != "kept"], look, width)
    else:
        told = f"plans {steps}" if entry.before is None else f"has another plan of {steps}"
        yield _named(entry.by, look, width, (told, ""))
        yield from _steps([change for change in found if change.kind == "new"], look, width, _ALL_NEW)


def _steps(found: list[Change], look: Look, width: int, signs: Mapping[str, str] = _CHANGED) -> Iterator[Text]:
    owners = [one_line(change.step.owner or "") for change in found]
    owner_width = columns(owners, min(NAME_WIDTH, width // 4))
    digits = max((len(str(change.number)) for change in found), default=1)
    margin = digits + owner_width + 5
    for change, owner in zip(found, owners, strict=True):
        style = "dim" if change.kind == "gone" else ""
        for row, words in enumerate(wrapped(one_line(change.step.text), max(10, width - margin))):
            head = f"{signs[change.kind]} {change.number:>{digits}} " if not row else " " * (margin - owner_width - 2)
            name = padded(owner if not row else "", owner_width, look.signs.more)
            parts = (head, "dim"), (name, style or look.colour(owner)), (f"  {words}", style)
            yield line(*parts, width=width, sign=look.signs.more)


def _asked(entry: Asked, look: Look, width: int) -> Iterator[Text]:
    yield Text()
    yield line(
        (one_line(entry.by), f"bold {look.colour(entry.by)}"),
        f" {look.signs.to} ",
        (one_line(entry.speaker), f"bold {look.colour(entry.speaker)}"),
        width=width,
        sign=look.signs.more,
    )
    for told in wrapped(safe(entry.instruction), width - 2):
        yield line(f"  {told}", width=width)
    for told in wrapped(safe(f"because {entry.reason}"), width - 2) if entry.reason else ():
        yield line((f"  {told}", "dim italic"), width=width)


def _tool(entry: ToolUsed, look: Look, width: int) -> Iterator[Text]:
    who, name = one_line(entry.who), one_line(entry.name)
    call = f" {look.signs.tool} {name}({shown_arguments(entry.arguments)})"
    yield line((who, f"bold {look.colour(entry.who)}"), (call, "cyan"), width=width, sign=look.signs.more)
    if entry.result is not None:
        yield line((f"  {look.signs.result} {one_line(entry.result)}", "dim"), width=width, sign=look.signs.more)


def _worked(who: str, took: Any, gave: tuple[Any, ...], look: Look, width: int) -> Iterator[Text]:
    sent = f" {look.signs.to} " + ", ".join(one_line(words_of(value)) for value in gave) if gave else ""
    took_text = one_line(words_of(took))
    yield line((one_line(who), f"bold {look.colour(who)}"), f"  {took_text}{sent}", width=width, sign=look.signs.more)


def _barred(text: str, look: Look, width: int, rows: int) -> Iterator[Text]:
    found = excerpt(safe(text[: (rows + 1) * width + rows]), width=width - 2, rows=rows + 1, end="head")
    for told in found[:rows]:
        yield line((f"{look.signs.bar} ", "dim"), told, width=width, sign=look.signs.more)
    if len(found) > rows:
        left = sum(1 for _ in wrapped(safe(text), width - 2)) - rows
        yield line((f"{look.signs.bar} {look.signs.more} {number_of(left, 'more line')}", "dim"), width=width)


def shown_arguments(arguments: str) -> str:
    """The arguments of a call as Python writes them; as they came if they are no JSON object."""
    try:
        given = json.loads(arguments)
    except ValueError:
        return one_line(arguments)
    if not isinstance(given, dict):
        return one_line(arguments)
    return one_line(", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items()))
