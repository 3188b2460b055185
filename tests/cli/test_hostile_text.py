"""What models, programs and stores say never reaches the terminal as anything but text."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from stepwell.cli.safe_text import one_line, safe
from tests.cli.conftest import Stepwell

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07\x1bP1$r\x9b31m\r\b\x00\x7f"
    "\u202egnp.exe\u2066\u200f\u2028 [red]bold[/red] [link=http://x]y[/link] :smile: \ud800 é 漢"
)
FORBIDDEN = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *"\u202e\u2066\u200f\u2028\u200e\ud800"} - {"\n"}


def harmless(text: str) -> bool:
    return not FORBIDDEN.intersection(text)


def test_safe_text_shows_what_it_disarms() -> None:
    assert harmless(safe(HOSTILE))
    assert r"\x1b[2J" in safe(HOSTILE)
    assert r"\u202e" in safe(HOSTILE)
    assert "[red]bold[/red]" in safe(HOSTILE)
    assert "é 漢" in safe(HOSTILE)


def test_no_control_character_passes() -> None:
    controls = [*range(0x0A), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x061C, 0x200B, 0x200E, 0x200F]
    marks = [*range(0x2028, 0x202F), *range(0x2060, 0x2065), *range(0x2066, 0x2070), 0xFEFF, *range(0xE0020, 0xE0080)]
    passed = [hex(code) for code in (*controls, *marks) if chr(code) in safe(f"a{chr(code)}b")]
    assert passed == []


def test_what_words_and_emoji_are_made_of_passes() -> None:
    for text in ("naïve – “quoted” …", "می‌خواهم", "👩‍🚀", "日本語", "עברית"):
        assert safe(text) == text


def test_lines_stay_lines_and_one_line_is_one() -> None:
    assert safe("a\r\nb\tc\n") == "a\nb    c\n"
    assert one_line("a\n  b\x1bc", 6) == "a b\\x…"


MESSAGE = HOSTILE.replace("\x00", "").replace("\ud800", "")


@pytest.mark.parametrize("words", [("runs",), ("show", "h1"), ("show", "h1", "--full"), ("review",), ("verify",)])
def test_reading_commands_print_nothing_but_text(stepwell: Stepwell, words: tuple[str, ...]) -> None:
    asked = stepwell("run", "hostile.py:workflow", MESSAGE, "--run-id", "h1")
    assert asked.code == 3
    assert harmless(asked.out + asked.err)
    told = stepwell(*words)
    assert harmless(told.out + told.err)
    if words[0] in ("show", "review"):
        assert "[red]bold[/red]" in told.out
        assert ":smile:" in told.out


@pytest.mark.parametrize("words", [("runs", "--json"), ("show", "h1", "--json"), ("review", "--json")])
def test_json_is_ascii_and_exact(stepwell: Stepwell, words: tuple[str, ...]) -> None:
    stepwell("run", "hostile.py:workflow", MESSAGE, "--run-id", "h1")
    told = stepwell(*words)
    assert told.out.isascii()
    assert harmless(told.out)
    assert json.dumps(MESSAGE)[1:-1] in told.out or words[0] == "runs"


def test_errors_graphs_and_answers_print_nothing_but_text(stepwell: Stepwell) -> None:
    stepwell("run", "hostile.py:workflow", MESSAGE, "--run-id", "h1")
    newest = stepwell("show", "h1", "--json").json["timeline"][-1]["checkpoint_id"]
    for words in (
        ("run", "hostile.py:workflow", f"fail {MESSAGE}"),
        ("branch", "hostile.py:workflow", newest, "--run-id", "h2", "--set", f"x={json.dumps(MESSAGE)}"),
        ("show", MESSAGE),
        ("review", MESSAGE),
        ("resume", "hostile.py:workflow", MESSAGE),
        ("graph", "hostile.py:workflow"),
        ("graph", f"hostile.py:{MESSAGE}"),
        ("review", "h1", "--answer", json.dumps(MESSAGE), "--target", "hostile.py:workflow"),
        ("show", "h1", "--full"),
        ("prune", "--finished", "--older-than", MESSAGE),
        ("prune", "--keep", "1"),
        ("runs", "--store", f"{MESSAGE}.db"),
    ):
        told = stepwell(*words)
        assert harmless(told.out + told.err), words


def test_nothing_is_read_as_markup_on_a_terminal() -> None:
    from stepwell.cli.asking import Person
    from stepwell.cli.questions import Question

    console = Console(force_terminal=True, no_color=True, markup=False, emoji=False, highlight=False, width=200)
    with console.capture() as capture:
        Person(console, read=lambda prompt: "")(Question("q", "r", HOSTILE, "other", HOSTILE, HOSTILE))
    assert harmless(capture.get())
    assert "[red]bold[/red]" in capture.get()
