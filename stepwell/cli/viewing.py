"""What shows a run to whoever is watching: one protocol, and the choice between its two implementations."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from stepwell.workflows.events import WorkflowEvent

if TYPE_CHECKING:
    from rich.console import Console

    from stepwell.cli.live_state import LiveState
    from stepwell.workflows.workflow import Workflow


class View(Protocol):
    """Shows the events of one run, over any number of streams.

    It is entered once, before the first event, and left when the run is done, waits, failed or was interrupted; on
    leaving it stops drawing and leaves behind what should stay on the screen. It never prints the run's final outputs
    or its usage: whoever opened it does that when it is left. It asks nothing: a question is asked by somebody else
    inside `suspended()`.
    """

    state: LiveState
    """What it goes by; before it is entered, `recall` may fill in what is known of a run that began earlier."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, event: WorkflowEvent) -> None:
        """Take one event. Called on the event loop, so it must not block; it must not raise on any event."""
        ...

    def suspended(self) -> AbstractContextManager[None]:
        """While inside, the terminal belongs to somebody who asks a question there: nothing is drawn."""
        ...


def view_for(console: Console, workflow: Workflow, *, hint: str = "", first_plan_is_asked_about: bool = False) -> View:
    """A live view on a terminal, plain lines elsewhere."""
    if console.is_terminal and not console.is_dumb_terminal:
        from stepwell.cli.live import LiveView

        return LiveView(console, workflow=workflow, hint=hint, first_plan_is_asked_about=first_plan_is_asked_about)
    from stepwell.cli.live_lines import PlainLines

    return PlainLines(console, workflow=workflow, first_plan_is_asked_about=first_plan_is_asked_about)
