"""The team works before your eyes, asks you about its plan, and survives whatever you do to it."""

from __future__ import annotations

import os

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from stepwell.checkpointing.storage.protocol import RunInfo
from stepwell.cli import exits, plurals
from stepwell.cli.asking import Person, approving, nobody
from stepwell.cli.command_lines import command_line, shown_store
from stepwell.cli.consoles import out, somebody_is_there
from stepwell.cli.demo.models import described, uses_a_real_model
from stepwell.cli.demo.names import NAME, REAL, SCRIPTED, TARGET, number_of
from stepwell.cli.demo.team import TASK, build
from stepwell.cli.failures import reported
from stepwell.cli.following import Answering, Outcome, watch
from stepwell.cli.live_look import wrapped
from stepwell.cli.live_recall import recall
from stepwell.cli.questions import Answer, Given, Question
from stepwell.cli.remedies import Advice
from stepwell.cli.results import replayed
from stepwell.cli.safe_text import one_line, safe
from stepwell.cli.sessions import Session, session
from stepwell.cli.viewing import view_for


def perform(*, yes: bool, new: bool, named_store: str | None, show_traceback: bool) -> int:
    """Show the team at work, and return the exit code."""
    advice = Advice(command_line("demo", store=named_store), target=TARGET, store=named_store)
    with reported(show_traceback=show_traceback, advice=advice), session(named_store, create=True) as here:
        return _show(out(), here, yes=yes, new=new, named_store=named_store)


def _show(console: Console, here: Session, *, yes: bool, new: bool, named_store: str | None) -> int:
    workflow = build(here.storage)
    runs = here.run(here.storage.list_runs(workflow_name=NAME))
    run_id, goes_on = choose_run(runs, REAL if uses_a_real_model() else SCRIPTED, new=new)
    _print(console, f"model: {described()}; store: {shown_store(here.store)}", "dim")
    started = f"{'going on with' if goes_on else 'starting'} run {run_id}: {TASK}"
    console.print(Text(started, "bold"), soft_wrap=not console.is_terminal)
    answering = _answering(console, yes=yes)
    hint = f"try it: kill -9 {os.getpid()}, then run it again"
    view = view_for(console, workflow, hint=hint, first_plan_is_asked_about=isinstance(answering, Person))
    if goes_on:
        here.run(recall(view.state, here.storage, run_id))
    outcome = watch(
        here.loop,
        workflow,
        lambda: workflow.run(TASK, run_id=run_id, stream=True),
        view=view,
        answering=answering if uses_a_real_model() else _with_a_word_on_edits(answering, console),
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
    numbers = {run.run_id: number for run in runs if (number := number_of(run.run_id, prefix)) is not None}
    if not new:
        for run in runs:
            if run.run_id in numbers and run.state != "IDLE":
                return run.run_id, True
    return f"{prefix}-{max(numbers.values(), default=0) + 1}", False


def _answering(console: Console, *, yes: bool) -> Answering:
    if yes:
        return approving
    return Person(console) if somebody_is_there() else nobody


def _with_a_word_on_edits(answering: Answering, console: Console) -> Answering:
    """Scripted models can't write anything else because a plan says so, and whoever edits one should know."""

    def answer(question: Question) -> Answer:
        given = answering(question)
        if isinstance(given, Given) and isinstance(given.value, dict) and "edited_plan" in given.value:
            limits = "The models are scripted: they take your steps in turn, but can only write the brief they know."
            _print(console, f"{limits} A real one (OPENAI_API_KEY, OPENAI_BASE_URL) does what the plan says.", "dim")
        return given

    return answer


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
        _print(
            console, f"{one_line(name)}: {plurals.number_of(calls, 'model call')}, {plurals.number_of(tokens, 'token')}"
        )
    if goes_on:
        nothing = "No call had to be replayed: all of them were in the last checkpoint."
        _print(console, f"{replayed(outcome.replayed)}." if outcome.replayed else nothing, "bold cyan")


def _print_next(console: Console, run_id: str, store: str | None) -> None:
    commands = {
        command_line("show", run_id, store=store): "what happened, checkpoint by checkpoint",
        command_line("branch", TARGET, "CHECKPOINT_ID", store=store): "another run from one of these checkpoints",
        command_line("runs", store=store): "all runs in this store",
        command_line("review", store=store): "what waits for your answer",
        command_line("graph", TARGET, store=None): "the team, drawn",
        command_line("verify", store=store): "is everything on record whole?",
        command_line("demo", "--new", store=store): "once more; kill it in the middle",
    }
    widest = max(map(len, commands))
    _print(console, "\nNext:")
    for command, what in commands.items():
        _print(console, f"  {command:<{widest}}  {what}")


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style), soft_wrap=True)
