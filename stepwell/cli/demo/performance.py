"""The team works before your eyes, asks you about its plan, and survives whatever you do to it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from stepwell.checkpointing.storage.protocol import RunInfo
from stepwell.cli import exits
from stepwell.cli.asking import Person, approving, nobody
from stepwell.cli.command_lines import command_line
from stepwell.cli.consoles import out, somebody_is_there
from stepwell.cli.demo.models import described, uses_a_real_model
from stepwell.cli.demo.team import NAME, TASK, build
from stepwell.cli.failures import Advice, reported
from stepwell.cli.following import Answering, Outcome, watch
from stepwell.cli.live import LiveView
from stepwell.cli.live_lines import PlainLines
from stepwell.cli.live_look import wrapped
from stepwell.cli.live_recall import recall
from stepwell.cli.safe_text import one_line, safe
from stepwell.cli.sessions import Session, session
from stepwell.cli.stores import shown_store

if TYPE_CHECKING:
    from stepwell.workflows.workflow import Workflow


def perform(*, yes: bool, new: bool, named_store: str | None, show_traceback: bool) -> int:
    """Show the team at work, and return the exit code."""
    advice = Advice(command_line("demo", store=named_store))
    with reported(show_traceback=show_traceback, advice=advice), session(named_store, create=True) as here:
        return _show(out(), here, yes=yes, new=new, named_store=named_store)


def _show(console: Console, here: Session, *, yes: bool, new: bool, named_store: str | None) -> int:
    workflow = build(here.storage)
    runs = here.run(here.storage.list_runs(workflow_name=NAME))
    run_id, goes_on = choose_run(runs, "model" if uses_a_real_model() else "demo", new=new)
    _print(console, f"model: {described()}; store: {shown_store(here.store)}", "dim")
    started = f"{'going on with' if goes_on else 'starting'} run {run_id}: {TASK}"
    console.print(Text(started, "bold"), soft_wrap=not console.is_terminal)
    answering = _answering(console, yes=yes)
    view = _view(console, workflow, is_asked=isinstance(answering, Person))
    if goes_on:
        here.run(recall(view.state, here.storage, run_id))
    outcome = watch(
        here.loop,
        workflow,
        lambda: workflow.run(TASK, run_id=run_id, stream=True),
        view=view,
        answering=answering,
        storage=here.storage,
    )
    if outcome.waiting:
        _tell_how_to_answer(console, outcome, named_store)
        return exits.WAITING
    _print_brief(console, outcome)
    _print_totals(console, outcome, goes_on=goes_on)
    _print_next(console, run_id, named_store)
    return exits.DONE


def choose_run(runs: list[RunInfo], prefix: str, *, new: bool) -> tuple[str, bool]:
    """The run that was cut off or waits, or a new one. Scripted runs and real ones are not mixed, nor are branches."""
    numbered = {run.run_id: run for run in runs if re.fullmatch(rf"{prefix}-\d+", run.run_id)}
    if not new:
        for run in numbered.values():
            if run.state != "IDLE":
                return run.run_id, True
    latest = max((int(run_id.rpartition("-")[2]) for run_id in numbered), default=0)
    return f"{prefix}-{latest + 1}", False


def _view(console: Console, workflow: Workflow, *, is_asked: bool) -> LiveView | PlainLines:
    if console.is_terminal and not console.is_dumb_terminal:
        hint = f"try it: kill -9 {os.getpid()}, then run it again"
        return LiveView(console, workflow=workflow, hint=hint, first_plan_is_asked_about=is_asked)
    return PlainLines(console, workflow=workflow)


def _answering(console: Console, *, yes: bool) -> Answering:
    if yes:
        return approving
    return Person(console) if somebody_is_there() else nobody


# --- the end ----------------------------------------------------------------------------------------------------------


def _tell_how_to_answer(console: Console, outcome: Outcome, store: str | None) -> None:
    _print(console, "\nThe plan waits for your approval, for as long as you like. To answer:")
    if "MAKELEVEL" in os.environ:
        _print(console, "  make demo YES=1")
    _print(console, f"  {command_line('demo', '--yes', store=store)}")
    _print(console, f"  {command_line('review', outcome.run_id, store=store)}")


def _print_brief(console: Console, outcome: Outcome) -> None:
    brief = safe(outcome.outputs[-1].text) if outcome.outputs else "(there is no brief)"
    if not console.is_terminal:
        _print(console, f"\n{'-' * 80}\n{brief}\n{'-' * 80}")
        return
    width = min(console.width, 100)
    console.print(Rule(Text("The brief", "bold"), style="green"), width=width)
    for told in wrapped(brief, width):
        _print(console, told, "bold" if told.startswith("#") else "")
    console.print(Rule(style="green"), width=width)


def _print_totals(console: Console, outcome: Outcome, *, goes_on: bool) -> None:
    for name, used in outcome.usage.items():
        calls, tokens = round(used.get("calls", 0)), round(used.get("total_tokens", 0))
        _print(console, f"{one_line(name)}: {calls} model call{'' if calls == 1 else 's'}, {tokens:,} tokens")
    if goes_on:
        replayed = f"{outcome.replayed} call(s) were replayed from the record; none of them was made again."
        nothing = "No call had to be replayed: all of them were in the last checkpoint."
        _print(console, replayed if outcome.replayed else nothing, "bold cyan")


def _print_next(console: Console, run_id: str, store: str | None) -> None:
    commands = {
        command_line("show", run_id, store=store): "what happened, superstep by superstep",
        command_line("runs", store=store): "all runs in this store",
        command_line("demo", "--new", store=store): "once more; kill it in the middle",
    }
    widest = max(map(len, commands))
    _print(console, "\nNext:")
    for command, what in commands.items():
        _print(console, f"  {command:<{widest}}  {what}")


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style), soft_wrap=True)
