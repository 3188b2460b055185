"""The part of the live view that moves: where the run stands, drawn into the room there is. Pure.

It never takes more rows than it was given and no line is wider than the terminal, whatever names, plans and texts
there are. Its height depends on the plan and the room, not on what is being said, so that it does not jump.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stepwell.cli.live_look import Look, Part, clipped, columns, excerpt, fitted, line, padded, wrapped
from stepwell.cli.live_plan import PlanProgress, Standing
from stepwell.cli.live_state import LiveState, Phase, Totals, Turn
from stepwell.cli.safe_text import one_line, safe

WIDE = 100
"""From so many columns on, the plan stands beside the work instead of above it."""
TALLEST = 18
"""Rows the frame takes at most; the rest of the screen is for what has been said."""
NAME_WIDTH = 16
_TEXT_ROWS = 8
_STEP_ROWS = 3
"""Rows that one step takes at most, where there is room for all steps."""

_PHASE_STYLE: dict[Phase, tuple[str, str]] = {
    "starting": ("starting", "yellow"),
    "working": ("working", "yellow"),
    "waiting": ("waiting for you", "bold magenta"),
    "done": ("done", "green"),
    "failed": ("failed", "bold red"),
    "interrupted": ("interrupted", "red"),
}
_STEP_STYLE: dict[Standing, tuple[str, str]] = {
    "done": ("green", "dim"),
    "current": ("bold yellow", "bold"),
    "open": ("dim", ""),
}


@dataclass(frozen=True, slots=True)
class Scene:
    """What a frame shows besides the run itself."""

    title: str
    seconds: float = 0.0
    hint: str = ""
    """Something to try, for the frame's lower edge."""


def frame(state: LiveState, scene: Scene, look: Look, *, width: int, height: int) -> RenderableType:
    """The frame for a terminal of this size."""
    rows = min(TALLEST, height - 1)
    if rows < 6 or width < 30:
        return fitted(_status(state, scene, look, width), max(1, width))
    inner = width - 4
    if state.plan is not None and width >= WIDE:
        body = _side_by_side(state, scene, look, inner, rows - 2)
    else:
        body = Group(*_stacked(state, scene, look, inner, rows - 2))
    return Panel(
        body,
        title=_title(state, scene, look, inner - 4),
        title_align="left",
        subtitle=fitted(Text(f" {one_line(scene.hint)} ", "dim"), inner - 4) if scene.hint else None,
        subtitle_align="right",
        box=box.ROUNDED,
        border_style="dim",
        width=width,
    )


# --- the edges --------------------------------------------------------------------------------------------------------


def _title(state: LiveState, scene: Scene, look: Look, width: int) -> Text:
    words, style = _PHASE_STYLE[state.phase]
    run = f" {look.signs.dot} {one_line(state.run_id)}" if state.run_id else ""
    tail = f" {look.signs.dot} {words} {clock(scene.seconds)} "
    name = clipped(one_line(scene.title) + run, max(4, width - len(tail) - 1), look.signs.more)
    return line(" ", (name, "bold"), (tail, style), width=width)


def _status(state: LiveState, scene: Scene, look: Look, width: int) -> Text:
    """The whole view on one line, for terminals with no room."""
    words, style = _PHASE_STYLE[state.phase]
    plan = f" {len(state.plan.done)}/{len(state.plan.plan.steps)}" if state.plan is not None else ""
    who = ", ".join(one_line(state.name_of(name)) for name in state.turns)
    return line((words, style), plan, f" {clock(scene.seconds)} ", who, width=width, sign=look.signs.more)


def clock(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    return f"{minutes}:{left:02d}"


def totals_line(state: LiveState, look: Look, width: int) -> Text:
    """What it has cost so far, and what is safe."""
    totals = state.totals
    parts: list[Part] = []
    if state.saved is not None:
        parts.append((f"{look.signs.saved} superstep {state.saved.superstep} saved", "green"))
    parts += _counted(totals)
    if totals.replayed:
        parts.append((f"{look.signs.replayed} {totals.replayed} replayed", "bold cyan"))
    joined: list[Part] = []
    for part in parts:
        joined += [(f" {look.signs.dot} ", "dim"), part] if joined else [part]
    return line(*joined, width=width, sign=look.signs.more)


def _counted(totals: Totals) -> list[Part]:
    counted = [
        (totals.model_calls, "model call"),
        (totals.all_tool_calls, "tool call"),
        (totals.all_tokens, "token"),
    ]
    return [f"{number:,} {word}{'' if number == 1 else 's'}" for number, word in counted if number]


# --- the body ---------------------------------------------------------------------------------------------------------


def _stacked(state: LiveState, scene: Scene, look: Look, width: int, rows: int) -> list[Text]:
    plan = state.plan
    below = min(_TEXT_ROWS, rows - 2) if plan is not None and plan.plan else min(_TEXT_ROWS, rows - 1)
    shown = _plan_lines(plan, look, width, max(1, rows - below - 2)) if plan is not None and plan.plan else []
    lines = [*shown, Text(look.signs.rule * width, "dim")] if shown else []
    room = rows - len(lines) - 1
    work = _work_lines(state, scene, look, width, min(room, _TEXT_ROWS))
    return [*lines, *_filled(work, min(room, _TEXT_ROWS)), totals_line(state, look, width)]


def _side_by_side(state: LiveState, scene: Scene, look: Look, width: int, rows: int) -> RenderableType:
    assert state.plan is not None
    left = width * 9 // 20
    right = width - left - 3
    height = min(rows - 1, max(_TEXT_ROWS, 2 * len(state.plan.plan.steps) + 1))
    grid = Table.grid(padding=0)
    grid.add_column(width=left, no_wrap=True)
    grid.add_column(width=3, no_wrap=True, justify="center")
    grid.add_column(width=right, no_wrap=True)
    head = line(("Plan", "bold"), (f"  {_progress(state.plan)}", "dim"), width=left)
    plan = _filled([head, *_plan_lines(state.plan, look, left, height - 1)], height)
    work = _filled(_work_lines(state, scene, look, right, height), height)
    for one, other in zip(plan, work, strict=True):
        grid.add_row(one, Text(look.signs.bar, "dim"), other)
    return Group(grid, totals_line(state, look, width))


def _filled(lines: Sequence[Text], rows: int) -> list[Text]:
    return [*lines[:rows], *(Text(" ") for _ in range(rows - len(lines)))]


def _progress(plan: PlanProgress) -> str:
    return f"{len(plan.done)} of {len(plan.plan.steps)} steps"


# --- the plan ---------------------------------------------------------------------------------------------------------


def _plan_lines(progress: PlanProgress, look: Look, width: int, rows: int) -> list[Text]:
    """The steps around the one that is being worked on, as many as there is room for."""
    steps = progress.steps
    owners = [one_line(step.owner or "") for step, _ in steps]
    owner_width = columns(owners, min(NAME_WIDTH, width // 4))
    number_width = len(str(len(steps)))
    margin = 3 + number_width + owner_width + (2 if owner_width else 0)
    rows_each = max(1, min(_STEP_ROWS, rows // max(1, len(steps))))
    first, last = window(len(steps), progress.focus, rows)
    lines = [_more(first, "above", look, width)] if first else []
    for index in range(first, last):
        step, standing = steps[index]
        mark, style = _STEP_STYLE[standing]
        head: list[Part] = [(f"{_sign(standing, look)} ", mark), (f"{index + 1:>{number_width}} ", "dim")]
        name = padded(owners[index], owner_width, look.signs.more)
        head += [(name, f"{style} {look.colour(owners[index])}".strip()), "  " if owner_width else ""]
        for told in _step_rows(one_line(step.text), max(4, width - margin), rows_each, look):
            lines.append(line(*head, (told, style), width=width, sign=look.signs.more))
            head = [" " * margin]
    return [*lines, _more(len(steps) - last, "below", look, width)] if last < len(steps) else lines


def _step_rows(text: str, width: int, rows: int, look: Look) -> list[str]:
    found = list(wrapped(text, width)) if rows > 1 else [text]
    return (
        found
        if len(found) <= rows
        else [*found[: rows - 1], clipped(" ".join(found[rows - 1 :]), width, look.signs.more)]
    )


def _sign(standing: Standing, look: Look) -> str:
    return {"done": look.signs.done, "current": look.signs.current, "open": look.signs.open}[standing]


def _more(count: int, where: str, look: Look, width: int) -> Text:
    return line((f"  {look.signs.more} {count} more {where}", "dim"), width=width)


def window(count: int, focus: int, rows: int) -> tuple[int, int]:
    """Which of `count` lines are shown in `rows` rows, one of which tells of those above and one of those below."""
    if count <= rows:
        return 0, count
    if rows <= 2:
        return focus, focus + 1  # No room to tell of others, or only for those on one side.
    first = min(max(0, focus - rows // 2), count - rows)
    last = first + rows
    if first > 0:
        first += 1
    if last < count:
        last -= 1
    return (focus, focus + last - first) if not first <= focus < last else (first, last)


# --- the work ---------------------------------------------------------------------------------------------------------


def _work_lines(state: LiveState, scene: Scene, look: Look, width: int, rows: int) -> list[Text]:
    """Who does what: what they were asked for and why, the tools they use, the end of what they say."""
    lines = _asked_lines(state, look, width) if rows >= 4 else []
    turns = list(state.turns.items())
    if not turns:
        return lines[:rows]
    shown = turns[: max(1, rows - len(lines))] if len(turns) > 1 else turns
    for who, turn in shown[:-1]:
        lines.append(_turn_line(state.name_of(who), turn, scene, look, width))
    name, turn = shown[-1]
    lines.append(_turn_line(state.name_of(name), turn, scene, look, width))
    return [*lines[:rows], *_words(turn, look, width, rows - len(lines))]


def _asked_lines(state: LiveState, look: Look, width: int) -> list[Text]:
    asked = state.last_asked
    if asked is None or asked.speaker not in state.turns:
        return []
    by, speaker = (clipped(one_line(name), width // 4, look.signs.more) for name in (asked.by, asked.speaker))
    parts: list[Part] = [(by, look.colour(asked.by)), f" {look.signs.to} ", (speaker, look.colour(asked.speaker))]
    lines = [line(*parts, f"  {one_line(asked.instruction)}", width=width, sign=look.signs.more)]
    if asked.reason:
        lines.append(line((f"because {one_line(asked.reason)}", "dim italic"), width=width, sign=look.signs.more))
    return lines


def _turn_line(name: str, turn: Turn, scene: Scene, look: Look, width: int) -> Text:
    """One executor at work, on one line."""
    spinning = look.signs.working[int(scene.seconds * 10) % len(look.signs.working)]
    parts: list[Part] = [(f"{spinning} ", "yellow"), (clipped(one_line(name), width // 2), f"bold {look.colour(name)}")]
    if turn.tools:
        using = ", ".join(one_line(f"{use.name}({use.arguments})") for use in turn.tools.values())
        parts.append((f"  {look.signs.tool} {using}", "cyan"))
    elif not turn.text:
        parts.append(("  is thinking" if turn.is_thought or name == look.manager else "  is at work", "dim"))
    return line(*parts, width=width, sign=look.signs.more)


def _words(turn: Turn, look: Look, width: int, rows: int) -> list[Text]:
    if rows <= 0 or not turn.text:
        return []
    told = excerpt(safe(turn.tail(rows * width + rows)), width=width - 2, rows=rows, end="tail")
    return [line((f"{look.signs.bar} ", "dim"), one, width=width, sign=look.signs.more) for one in told]
