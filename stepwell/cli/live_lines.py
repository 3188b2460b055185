"""A run told in plain lines, where there is no terminal to draw on: a log, a pipe, a dumb terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.text import Text

from stepwell.cli.live_changes import changes
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
from stepwell.cli.live_state import LiveState
from stepwell.cli.live_transcript import shown_arguments
from stepwell.cli.plurals import number_of
from stepwell.cli.safe_text import one_line, safe
from stepwell.orchestrations.plan import Plan
from stepwell.workflows.events import WorkflowEvent

if TYPE_CHECKING:
    from stepwell.workflows.workflow import Workflow

_SHORT = 200
"""Results of tools and messages between executors are cut to so many characters; what is said never is."""


class PlainLines:
    """Tells of a run line by line, as things happen. See `View` for what it promises."""

    def __init__(
        self, console: Console, *, workflow: Workflow | None = None, first_plan_is_asked_about: bool = False
    ) -> None:
        self.state = LiveState(first_plan_is_asked_about=first_plan_is_asked_about)
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Everything has been written."""

    def show(self, event: WorkflowEvent) -> None:
        for entry in self.state.fold(event):
            for told in plain_lines(entry):
                # Without rich's line breaking: whoever reads a log wants the lines as they are.
                self._console.print(Text(told), soft_wrap=True)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        yield
        self.state.answered()


def plain_lines(entry: Entry) -> Iterator[str]:
    """An entry as lines of text, safe to print."""
    match entry:
        case Planned(plan, by, None):
            yield f"{one_line(by)} has a plan:"
            yield from (f"  {one_line(told)}" for told in plan.text.splitlines())
        case Planned(plan, by, Plan() as before):
            yield f"{one_line(by)} has another plan:"
            signs = {"kept": " ", "new": "+", "gone": "-"}
            for change in changes(before, plan):
                yield f"{signs[change.kind]} {change.number}. {one_line(str(change.step))}"
        case Asked(by, speaker, instruction, reason):
            yield ""
            yield f"{one_line(by)} to {one_line(speaker)}: {one_line(instruction)}"
            if reason:
                yield f"  because {one_line(reason)}"
        case Judged(by, verdict, reason):
            yield f"{one_line(by)}: {verdict}" + (f", because {one_line(reason)}" if reason else "")
        case ToolUsed(who, name, arguments, result):
            yield f"  {one_line(who)} uses {one_line(name)}({shown_arguments(arguments)})"
            if result is not None:
                yield f"    result: {one_line(result, _SHORT)}"
        case Said(who, text):
            yield f"{one_line(who)}:"
            yield from safe(text).split("\n")
        case Worked(who, took, gave):
            sent = f" -> {', '.join(one_line(words_of(value), _SHORT) for value in gave)}" if gave else ""
            yield f"{one_line(who)}: {one_line(words_of(took), _SHORT)}{sent}"
        case Yielded(who, value, is_final):
            yield f"{one_line(who)} {'yields' if is_final else 'says'}: {one_line(words_of(value), _SHORT)}"
        case Saved(sequence, superstep, is_step):
            yield f"  (saved: checkpoint {sequence}{f', superstep {superstep}' if is_step else ''})"
        case Replayed(count):
            yield f"  ({number_of(count, 'call')} answered from the record, none made again)"
        case Noted(kind, text, who):
            yield f"{kind}: " + (f"{one_line(who)}: " if who else "") + one_line(text)
