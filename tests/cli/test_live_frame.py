"""The live view drawn at many sizes: never too wide, never too tall, never obeying what a model wrote."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType

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
)
from stepwell.cli.live_frame import Scene, frame, window
from stepwell.cli.live_lines import plain_lines
from stepwell.cli.live_look import ASCII, Look, clipped, excerpt, padded, wrapped
from stepwell.cli.live_plan import PlanProgress
from stepwell.cli.live_state import LiveState, ToolUse, Turn
from stepwell.cli.live_transcript import lines_of, shown_arguments
from stepwell.orchestrations import Plan, PlanStep

LONG_NAME = "a-name-that-goes-on-and-on-" * 8
WIDE_NAME = "研究者" * 20
EVIL = "\x1b[2J\x1b]0;owned\x07[bold red]not markup[/] \u202egnp.exe\r\x9b31m"


def drawn(renderable: RenderableType, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=200, color_system=None, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def plan_of(count: int, owner: str = "writer") -> Plan:
    return Plan(
        tuple(PlanStep(f"Step number {n}, which is described at some length here.", owner) for n in range(count))
    )


def busy(plan: Plan | None = None, who: str = "writer", text: str = "") -> LiveState:
    state = LiveState(run_id="demo-1", phase="working", saved=Saved(3, 2))
    state.totals.model_calls, state.totals.tokens, state.totals.replayed = 9, 3120, 3
    if plan is not None:
        progress = PlanProgress(plan)
        progress.asked(who)
        state.adopt_plan("magentic_orchestrator", progress)
    state.turns[who] = Turn(pieces=[text] if text else [], is_an_agents=True)
    state.last_asked = Asked("manager", who, "Do the next thing. " * 20, "it comes next " * 30)
    return state


SIZES = [(80, 24), (120, 40), (100, 30), (40, 12), (30, 8), (20, 5), (8, 3), (200, 60), (80, 7)]
STATES = {
    "nothing yet": LiveState(),
    "a team": busy(plan_of(3)),
    "forty steps": busy(plan_of(40), text="word " * 5000),
    "long names": busy(plan_of(4, LONG_NAME), LONG_NAME, "x" * 5000),
    "wide characters": busy(plan_of(4, WIDE_NAME), WIDE_NAME, "写作" * 2000),
    "no plan": busy(None, text="line\n" * 500),
    "escapes": busy(Plan((PlanStep(EVIL, EVIL),)), EVIL, EVIL * 30),
}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", STATES)
def test_a_frame_fits_whatever_it_shows(name: str, size: tuple[int, int]) -> None:
    width, height = size

    lines = drawn(frame(STATES[name], Scene(LONG_NAME, 75, "a hint " * 30), Look(), width=width, height=height), width)

    assert len(lines) < max(2, height)
    assert max(map(cell_len, lines)) <= width


def test_many_executors_at_once_fit_too() -> None:
    state = LiveState(turns={f"worker-{n}": Turn(tools={"1": ToolUse("look_up", '{"a": 1}')}) for n in range(200)})

    lines = drawn(frame(state, Scene("fan-out"), Look(), width=80, height=24), 80)

    assert len(lines) < 24
    assert any("worker-0" in line for line in lines)


def test_the_frame_shows_the_plan_the_speaker_the_reason_and_the_totals() -> None:
    shown = "\n".join(
        drawn(frame(busy(plan_of(3), text="Stepwells are"), Scene("team", 75), Look(), width=80, height=30), 80)
    )

    for expected in (
        "team · demo-1",
        "working 1:15",
        "▶ 1 writer",
        "○ 2 writer",
        "manager → writer",
        "because it comes",
    ):
        assert expected in shown
    for expected in ("│ Stepwells are", "superstep 2 saved", "9 model calls", "3,120 tokens", "↺ 3 replayed"):
        assert expected in shown


def test_a_long_plan_shows_the_step_that_is_worked_on() -> None:
    state = busy(plan_of(40))
    assert state.plan is not None
    state.plan.done = set(range(25))
    state.plan.asked("writer")

    shown = "\n".join(drawn(frame(state, Scene("team"), Look(), width=80, height=24), 80))

    assert "▶ 26 writer" in shown
    assert "more above" in shown
    assert "more below" in shown


def test_a_long_stream_shows_its_end() -> None:
    text = "\n".join(f"line {n}" for n in range(10_000))

    shown = "\n".join(drawn(frame(busy(text=text), Scene("team"), Look(), width=80, height=24), 80))

    assert "line 9999" in shown
    assert "line 9000" not in shown


def test_the_height_does_not_depend_on_what_is_said() -> None:
    heights = {
        len(drawn(frame(busy(plan_of(3), text=text), Scene("team"), Look(), width=width, height=30), width))
        for text in ("", "word", "word " * 400)
        for width in (80,)
    }
    assert len(heights) == 1


@given(count=st.integers(0, 60), focus=st.integers(0, 59), rows=st.integers(1, 20))
@settings(max_examples=200)
def test_a_window_shows_the_focus_and_leaves_room_for_what_it_tells_of_the_rest(
    count: int, focus: int, rows: int
) -> None:
    focus = min(focus, max(0, count - 1))
    first, last = window(count, focus, rows)

    assert count == 0 or first <= focus < last
    told = (first > 0) + (last < count) if rows > 2 else 0
    assert (last - first) + told <= max(rows, 1)


# --- what stays -------------------------------------------------------------------------------------------------------

ENTRIES: list[Entry] = [
    Planned(Plan((PlanStep(EVIL, EVIL), *plan_of(40, LONG_NAME).steps)), EVIL),
    Planned(Plan((PlanStep(EVIL, EVIL), *plan_of(40, LONG_NAME).steps)), EVIL, plan_of(39, LONG_NAME)),
    Asked(EVIL, LONG_NAME, EVIL * 10, EVIL),
    Judged("manager", "no progress", EVIL),
    ToolUsed(WIDE_NAME, EVIL, EVIL, EVIL),
    ToolUsed("researcher", "look_up", '{"word": "\\u001b[2J"}', None),
    Said(EVIL, EVIL + "\n" + "写作" * 500),
    Worked(LONG_NAME, EVIL, (EVIL, object())),
    Yielded("end", {"a": EVIL}, True),
    Yielded("end", EVIL, False),
    Saved(3, 2),
    Replayed(7),
    *(Noted(kind, EVIL, EVIL) for kind in ("warning", "retry", "error", "team", "event", "request")),
]
CONTROL = {chr(code) for code in (*range(32), *range(127, 160)) if chr(code) != "\n"} | {"\u202e", "\u2028"}


@pytest.mark.parametrize("width", [20, 80, 120])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_fits_and_obeys_nothing(entry: Entry, width: int) -> None:
    lines = drawn(Group(*lines_of(entry, Look(), width)), width)

    assert max(map(cell_len, lines)) <= width
    assert not CONTROL & set("".join(lines))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_a_plain_line_obeys_nothing(entry: Entry) -> None:
    assert not CONTROL & set("".join(plain_lines(entry)))


@pytest.mark.parametrize("name", STATES)
def test_a_frame_obeys_nothing(name: str) -> None:
    lines = drawn(frame(STATES[name], Scene(EVIL, hint=EVIL), Look(), width=100, height=30), 100)

    assert not CONTROL & set("".join(lines))


def test_markup_in_a_models_words_is_shown_as_it_is() -> None:
    [_, words] = drawn(Group(*lines_of(Said("writer", "[bold]not[/bold] :smile:"), Look(), 80)), 80)

    assert words == "│ [bold]not[/bold] :smile:"


def test_long_words_are_cut_and_what_is_left_is_counted() -> None:
    lines = drawn(Group(*lines_of(Said("writer", "\n".join(map(str, range(50)))), Look(), 80)), 80)

    assert lines[-1].endswith("36 more lines")


def test_letters_are_enough_for_a_terminal_that_knows_no_more() -> None:
    state = busy(plan_of(3), text="words")
    shown = "\n".join(
        str(text) for text in lines_of(Asked("manager", "writer", "Write.", "it is time"), Look(ASCII), 80)
    )

    assert shown.isascii()
    assert "▶" not in "\n".join(drawn(frame(state, Scene("team"), Look(ASCII), width=80, height=24), 80))


# --- fitting ----------------------------------------------------------------------------------------------------------


@given(text=st.text(alphabet=st.characters(blacklist_categories=("C", "M", "Z")) | st.just(" "), max_size=200))
@settings(max_examples=200)
@pytest.mark.parametrize("width", [4, 17])
def test_wrapped_lines_fit_and_lose_no_letter(text: str, width: int) -> None:
    lines = list(wrapped(text, width))

    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_the_lines_of_a_bullet_stand_below_its_words() -> None:
    assert list(wrapped("- one two three", 9)) == ["- one two", "  three"]


@pytest.mark.parametrize("text", ["", "short", "写作写作写作写作", "a much longer text"])
def test_padding_is_exact(text: str) -> None:
    assert cell_len(padded(text, 9)) == 9
    assert cell_len(clipped(text, 9)) <= 9


def test_an_excerpt_has_the_lines_that_were_asked_for() -> None:
    text = "\n".join(map(str, range(100)))

    assert excerpt(text, width=10, rows=2, end="head") == ["0", "1"]
    assert excerpt(text, width=10, rows=2, end="tail") == ["98", "99"]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [('{"a": 1, "b": "x"}', 'a=1, b="x"'), ("not json", "not json"), ("[1]", "[1]"), ("", "")],
)
def test_arguments_read_like_a_call(arguments: str, shown: str) -> None:
    assert shown_arguments(arguments) == shown
