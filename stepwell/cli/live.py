"""The live view of a run on a terminal: what happened scrolls by, and below it a frame shows where things stand.

Showing an event only puts it on a list. A thread takes them from there and draws, a few times a second, so a run that
announces thousands of events is not slowed down by a terminal that can't follow. The cursor is left visible: whoever
kills this program without warning gets a usable terminal back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from stepwell.cli.live_entries import Entry
from stepwell.cli.live_frame import Scene, frame
from stepwell.cli.live_look import ASCII, Look, Signs
from stepwell.cli.live_state import LiveState
from stepwell.cli.live_transcript import lines_of
from stepwell.workflows.events import WorkflowEvent

if TYPE_CHECKING:
    from stepwell.workflows.workflow import Workflow

REDRAWN_EVERY = 0.1
MOST_ENTRIES = 100
"""Entries that are written in one go; of a run that is faster than eyes the latest are shown."""


class LiveView:
    """Shows a run on a terminal. See `View` for what it promises."""

    def __init__(
        self,
        console: Console,
        *,
        workflow: Workflow | None = None,
        hint: str = "",
        first_plan_is_asked_about: bool = False,
    ) -> None:
        self.state = LiveState(first_plan_is_asked_about=first_plan_is_asked_about)
        """Belongs to the thread that draws, while there is one."""
        self._console = console
        self._title = workflow.name if workflow is not None else ""
        self._hint = hint
        self._look = Look(ASCII if console.options.ascii_only else Signs())
        self._events: deque[WorkflowEvent] = deque()
        self._live: Live | None = None
        self._drawing: threading.Thread | None = None
        self._stop = threading.Event()
        self._began = time.monotonic()
        self._paused = 0.0

    # --- what a view does --------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def show(self, event: WorkflowEvent) -> None:
        self._events.append(event)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """The frame is gone while somebody asks, and its clock stands still."""
        self._end()
        began = time.monotonic()
        try:
            yield
        finally:
            self._paused += time.monotonic() - began
            self.state.answered()
            self._start()

    # --- drawing -----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            vertical_overflow="crop",
            get_renderable=self._frame,
        )
        self._live.start()
        self._console.show_cursor(True)
        self._stop.clear()
        self._drawing = threading.Thread(target=self._draw_until_stopped, name="stepwell-live-view", daemon=True)
        self._drawing.start()

    def _end(self) -> None:
        """Stop drawing, take the frame away, and write down what has not been written yet."""
        self._stop.set()
        if self._drawing is not None:
            self._drawing.join()
            self._drawing = None
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
        self._write()

    def _draw_until_stopped(self) -> None:
        while not self._stop.wait(REDRAWN_EVERY):
            self._draw()

    def _draw(self) -> None:
        live = self._live
        if live is not None:
            with self._console:  # In one go: nobody sees half of it.
                self._write()
                live.refresh()

    def _write(self) -> None:
        """Write down the entries that have come; a frame that is being shown moves on below them."""
        entries: list[Entry] = []
        for _ in range(len(self._events)):
            entries += self.state.fold(self._events.popleft())
        lines = self._written(entries)
        if lines:
            self._console.print(Group(*lines))

    def _written(self, entries: list[Entry]) -> list[Text]:
        width = self._console.size.width
        lines = [told for entry in entries[-MOST_ENTRIES:] for told in lines_of(entry, self._look, width)]
        left = len(entries) - MOST_ENTRIES
        return (
            [Text(f"{self._look.signs.more} {left} more, too fast to be shown", "dim"), *lines] if left > 0 else lines
        )

    def _frame(self) -> RenderableType:
        width, height = self._console.size
        scene = Scene(self._title, time.monotonic() - self._began - self._paused, self._hint)
        return frame(self.state, scene, self._look, width=width, height=height)
