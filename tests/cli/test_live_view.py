"""The live view on a terminal that is a string: what it leaves there, and what it never does."""

from __future__ import annotations

import asyncio
import io
import re
import threading

import pytest
from rich.console import Console

from stepwell import AgentResponseUpdate, Content, InMemoryCheckpointStorage, WorkflowEvent
from stepwell.cli.demo.team import TASK, build
from stepwell.cli.live import LiveView
from stepwell.cli.live_lines import PlainLines
from stepwell.cli.viewing import view_for

HIDES, SHOWS = "\x1b[?25l", "\x1b[?25h"


class Terminal(io.StringIO):
    """Keeps everything that was ever written to it."""

    def console(self, width: int = 80, **more: object) -> Console:
        given = {"force_terminal": True, "markup": False, "highlight": False, "emoji": False, **more}
        return Console(file=self, width=width, height=30, _environ={"TERM": "xterm-256color"}, **given)  # type: ignore[arg-type]

    @property
    def plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())


def drawing_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "stepwell-live-view"]


def says(text: str) -> WorkflowEvent:
    update = AgentResponseUpdate((Content.from_text(text),))
    return WorkflowEvent("intermediate", update, executor_id="writer", provisional=True)


@pytest.mark.parametrize("width", [80, 120])
def test_a_run_leaves_its_story_behind(width: int) -> None:
    terminal, workflow = Terminal(), build(InMemoryCheckpointStorage())

    async def shown(view: LiveView) -> None:
        async for event in workflow.run(TASK, run_id="one", stream=True):
            view.show(event)

    with LiveView(terminal.console(width), workflow=workflow) as view:
        asyncio.run(shown(view))

    assert "manager plans 3 steps" in terminal.plain
    assert "superstep 1 saved, checkpoint 2" in terminal.plain


def test_the_cursor_is_never_left_hidden() -> None:
    """Not even for the time of the run: somebody may kill the program, and is told to."""
    terminal = Terminal()
    with LiveView(terminal.console()) as view:
        assert terminal.getvalue().rfind(SHOWS) > terminal.getvalue().rfind(HIDES)
        view.show(says("words"))

    assert terminal.getvalue().rfind(SHOWS) > terminal.getvalue().rfind(HIDES)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_leaves_a_usable_terminal(error: type[BaseException]) -> None:
    terminal = Terminal()
    with pytest.raises(error), LiveView(terminal.console()) as view:
        view.show(WorkflowEvent("warning", "something is odd"))
        raise error

    assert "something is odd" in terminal.plain
    assert terminal.getvalue().rfind(SHOWS) > terminal.getvalue().rfind(HIDES)
    assert not drawing_threads()


def test_nothing_is_drawn_while_somebody_is_asked() -> None:
    terminal = Terminal()
    with LiveView(terminal.console()) as view:
        view.show(WorkflowEvent("warning", "before the question"))
        with view.suspended():
            assert "before the question" in terminal.plain
            assert not drawing_threads()
            before = terminal.getvalue()
            view.show(WorkflowEvent("warning", "meanwhile"))
            assert terminal.getvalue() == before

    assert "meanwhile" in terminal.plain


def test_a_run_that_is_too_fast_for_eyes_is_not_slowed_down_by_them() -> None:
    """Events only wait in a list; of those that come between two drawings, the latest are written."""
    terminal = Terminal()
    view = LiveView(terminal.console())
    for number in range(5000):
        view.show(WorkflowEvent("warning", f"number {number}"))
    assert terminal.getvalue() == ""

    with view:
        pass

    assert "4900 more, too fast to be shown" in terminal.plain
    assert "number 4999" in terminal.plain
    assert "number 100\n" not in terminal.plain


def test_events_from_one_thread_and_drawing_in_another_do_not_meet() -> None:
    terminal = Terminal()
    with LiveView(terminal.console()) as view:
        for number in range(20_000):
            view.show(says("word "))
            view.show(WorkflowEvent("executor_invoked", number, executor_id=f"worker-{number % 50}"))
            view.show(WorkflowEvent("executor_completed", [], executor_id=f"worker-{number % 50}"))

    assert "worker-" in terminal.plain


def test_a_pipe_gets_plain_lines_and_so_does_a_dumb_terminal() -> None:
    workflow = build()
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})

    assert isinstance(view_for(Console(file=io.StringIO()), workflow), PlainLines)
    assert isinstance(view_for(dumb, workflow), PlainLines)
    assert isinstance(view_for(Terminal().console(), workflow), LiveView)


def test_without_colour_there_is_none() -> None:
    terminal = Terminal()
    with LiveView(terminal.console(no_color=True)) as view:
        view.show(WorkflowEvent("warning", "grey"))

    assert not re.search(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", terminal.getvalue())


async def test_plain_lines_are_lines() -> None:
    terminal, workflow = Terminal(), build(InMemoryCheckpointStorage())
    console = Console(file=terminal, width=400)
    requests = []
    with PlainLines(console, workflow=workflow) as view:
        async for event in workflow.run(TASK, run_id="one", stream=True):
            view.show(event)
            requests += [event] if event.type == "request_info" else []
        with view.suspended():
            [request] = requests
        async for event in workflow.run(
            run_id="one", responses={request.request_id: request.data.approve()}, stream=True
        ):
            view.show(event)

    lines = terminal.getvalue().splitlines()
    assert "\x1b" not in terminal.getvalue()
    assert '  researcher uses search_notes(query="stepwell")' in lines
    assert "  (saved: checkpoint 2, superstep 1)" in lines
    assert "# Stepwells: a brief for the council" in lines
