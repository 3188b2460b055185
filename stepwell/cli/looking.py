"""`runs`, `show`, `graph` and `verify`: the commands that only look. None of them makes a store that is not there."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepwell.cli import exits, options
from stepwell.cli.failures import reported, tell
from stepwell.cli.plurals import number_of
from stepwell.cli.remedies import Advice
from stepwell.cli.sessions import session

if TYPE_CHECKING:
    from stepwell.checkpointing.storage.verifying import VerificationReport


def runs(
    workflow: Annotated[
        str | None, typer.Option("--workflow", help="Only runs of the workflow with this name.")
    ] = None,
    state: Annotated[
        str | None, typer.Option("--state", help="Only runs that stand like this, for example failed.")
    ] = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only runs that wait for a person.")] = False,
    store: options.Store = None,
    as_json: options.Json = False,
    traceback: options.Traceback = False,
) -> None:
    """List the runs in a store, the most recently saved first. The program that made them is not needed.

    \b
    Examples:
      stepwell runs
      stepwell runs --waiting --json
    """
    from stepwell.cli import runs_table
    from stepwell.cli.results import print_json

    with reported(show_traceback=traceback, advice=Advice(store=store)):
        is_wanted = runs_table.standing_like(state) if state is not None else None
        with session(store) as here:
            found = here.run(here.storage.list_runs(workflow_name=workflow))
        shown = [run for run in found if run.pending_requests or not waiting]
        if is_wanted is not None:
            shown = list(filter(is_wanted, shown))
        if as_json:
            print_json({"runs": [runs_table.run_json(run) for run in shown]})
        else:
            runs_table.print_runs(shown)


def show(
    run_id: Annotated[str, typer.Argument(help="Which run; `stepwell runs` lists them.")],
    last: Annotated[int, typer.Option("--last", min=1, help="How many checkpoints to show.")] = 50,
    everything: Annotated[bool, typer.Option("--all", help="Show all checkpoints.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Show whole texts, not their beginnings.")] = False,
    store: options.Store = None,
    as_json: options.Json = False,
    traceback: options.Traceback = False,
) -> None:
    """Tell what happened in a run: supersteps, messages, calls, the ledger, decisions, usage, sizes.

    \b
    Examples:
      stepwell show brief-1
      stepwell show brief-1 --full --last 5
      stepwell show brief-1 --json
    """
    from stepwell.cli.results import print_json
    from stepwell.cli.story import print_story, read_story, story_json

    with reported(show_traceback=traceback, advice=Advice(store=store)), session(store) as here:
        story = here.run(read_story(here.storage, run_id, last=None if everything else last))
        if as_json:
            print_json(story_json(story))
        else:
            print_story(story, full=full)


class Format(StrEnum):
    """How a workflow can be drawn."""

    MERMAID = "mermaid"
    DOT = "dot"
    SVG = "svg"


def graph(
    target: options.Target,
    form: Annotated[Format, typer.Option("--format", "-f", help="What to draw it as.")] = Format.MERMAID,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file to write instead of stdout.")] = None,
    run_id: Annotated[str | None, typer.Option("--run", metavar="RUN_ID", help="Mark where this run is.")] = None,
    store: options.Store = None,
    as_json: options.Json = False,
    traceback: options.Traceback = False,
) -> None:
    """Draw a workflow.

    \b
    Examples:
      stepwell graph team.py:team
      stepwell graph team.py:team --format svg --output team.svg
      stepwell graph team.py:team --run brief-1 --format svg -o now.svg
      stepwell graph team.py:team --json
    """
    from stepwell.cli.pictures import described, draw
    from stepwell.cli.results import print_json

    with reported(show_traceback=traceback, advice=Advice(target=target, store=store)):
        if as_json:
            print_json(described(target))
            return
        text = draw(target, form.value, run_id=run_id, store=store)
        if output is None:
            print(text, end="")
        else:
            output.write_text(text, encoding="utf-8")
            tell(f"written to {output}")


def verify(store: options.Store = None, as_json: options.Json = False, traceback: options.Traceback = False) -> None:
    """Read everything in a store and say what is damaged. Ends with 0 if nothing is, with 1 otherwise.

    \b
    Example:
      stepwell verify --store .stepwell/runs.db
    """
    from stepwell.cli.results import print_json
    from stepwell.cli.safe_text import safe

    with reported(show_traceback=traceback, advice=Advice(store=store)), session(store) as here:
        report = here.run(here.storage.verify())
    damaged: list[dict[str, Any]] = [
        {"record": d.record, "problem": d.problem, "newest_good_before_it": d.good_ancestor} for d in report.damaged
    ]
    if as_json:
        counts = {"runs": report.runs, "checkpoints": report.checkpoints, "calls": report.calls}
        print_json({"ok": report.ok, **counts, "damaged": damaged})
    else:
        for each in damaged:
            good = each["newest_good_before_it"]
            print(safe(f"damaged: {each['record']}: {each['problem']}" + (f" (newest good: {good})" if good else "")))
        print(f"{_read(report)}; {'all of it is good' if report.ok else f'{len(damaged)} damaged'}")
    raise typer.Exit(exits.DONE if report.ok else exits.FAILED)


def _read(report: VerificationReport) -> str:
    """What was looked at. Calls are on record while their superstep lasts, or with --audit: mostly there are none."""
    read = f"{number_of(report.runs, 'run')} and {number_of(report.checkpoints, 'checkpoint')} read"
    return f"{read}, {number_of(report.calls, 'call')} on record too" if report.calls else read
