"""`run`, `resume` and `branch`: the commands that make a workflow work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepwell.cli import options
from stepwell.cli.failures import reported
from stepwell.cli.remedies import Advice
from stepwell.cli.sessions import Session, session

if TYPE_CHECKING:
    from stepwell.workflows.stream import ResponseStream
    from stepwell.workflows.workflow import Workflow

Message = Annotated[str | None, typer.Argument(help="What the run is asked to do; - reads it.")]
RunId = Annotated[str, typer.Argument(help="Which run; `stepwell runs` lists them.")]
Limit = Annotated[int | None, typer.Option("--max-iterations", min=1, help="How many supersteps it may take.")]


def run(
    target: options.Target,
    message: Message = None,
    run_id: Annotated[str | None, typer.Option("--run-id", help="The run's name; made up if you give none.")] = None,
    json_message: Annotated[bool, typer.Option("--json-message", help="MESSAGE is JSON, not a text.")] = False,
    new_turn: Annotated[bool, typer.Option("--new-turn", help="Send it even if the run has finished with it.")] = False,
    yes: options.Yes = False,
    max_iterations: Limit = None,
    audit: options.Audit = False,
    store: options.Store = None,
    as_json: options.Json = False,
    traceback: options.Traceback = False,
) -> None:
    """Start a run and watch it; with the id of a run that was cut off, go on with it.

    \b
    Examples:
      stepwell run team.py:team "Write a brief on stepwells."
      stepwell run team.py:team "Write a brief." --run-id brief-1 --yes
      stepwell run shop.orders:workflow '{"order": 17}' --json-message
    """
    if message is None and run_id is None:
        raise typer.BadParameter("a message is needed to start a run; or --run-id names one to go on with")
    from stepwell.cli.jobs import message_for, new_run_id

    name = run_id or new_run_id()

    def start(workflow: Workflow, here: Session) -> ResponseStream:
        given: dict[str, Any] = {"run_id": name, "max_iterations": max_iterations}
        if message is not None:
            text = sys.stdin.read() if message == "-" else message
            given |= {"message": message_for(workflow, text, is_json=json_message), "new_turn": new_turn}
        return workflow.run(**given, stream=True, checkpoint_storage=here.storage)

    _work(target, name, start, store=store, yes=yes, audit=audit, as_json=as_json, traceback=traceback, create=True)


def resume(
    target: options.Target,
    run_id: RunId,
    yes: options.Yes = False,
    max_iterations: Limit = None,
    recall: Annotated[
        bool, typer.Option("--recall", help="Calls that no longer match their record are made anew.")
    ] = False,
    audit: options.Audit = False,
    store: options.Store = None,
    as_json: options.Json = False,
    traceback: options.Traceback = False,
) -> None:
    """Go on with a run that was cut off, failed, or waits for an answer.

    \b
    Example:
      stepwell resume team.py:team brief-1
    """

    from stepwell.cli.runs_by_id import run_named

    def start(workflow: Workflow, here: Session) -> ResponseStream:
        here.run(run_named(here.storage, run_id))  # says which runs there are, where the workflow itself can't know
        return workflow.run(
            run_id=run_id,
            stream=True,
            checkpoint_storage=here.storage,
            max_iterations=max_iterations,
            on_divergence="recall" if recall else "error",
        )

    _work(target, run_id, start, store=store, yes=yes, audit=audit, as_json=as_json, traceback=traceback)


def branch(
    target: options.Target,
    checkpoint_id: Annotated[str, typer.Argument(help="Where to leave from; `stepwell show RUN_ID` lists them.")],
    run_id: Annotated[str | None, typer.Option("--run-id", help="The new run's name.")] = None,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="FILE", help="A JSON file: shared state to change.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=JSON", help="Change one value of shared state; more than once if need be."),
    ] = None,
    yes: options.Yes = False,
    audit: options.Audit = False,
    store: options.Store = None,
    as_json: options.Json = False,
    traceback: options.Traceback = False,
) -> None:
    """Start a new run from any checkpoint of an old one, with its state changed if you like; the old one stays.

    \b
    Examples:
      stepwell branch team.py:team 9a08…0004
      stepwell branch shop.py:orders 9a08…0004 --set discount=0.2 --set customer.name='"Ada"'
    """
    from stepwell.cli.jobs import new_run_id
    from stepwell.cli.state_edits import edited_state

    name = run_id or new_run_id()

    def start(workflow: Workflow, here: Session) -> ResponseStream:

        checkpoint = here.run(here.storage.load(checkpoint_id))
        edits = edited_state(checkpoint.state, file=state, settings=settings or [])
        stream: ResponseStream = workflow.branch(
            checkpoint_id, state=edits, run_id=name, stream=True, checkpoint_storage=here.storage
        )
        return stream

    _work(target, name, start, store=store, yes=yes, audit=audit, as_json=as_json, traceback=traceback)


# --- what they share --------------------------------------------------------------------------------------------------


def _work(
    target: str,
    run_id: str,
    start: Callable[[Workflow, Session], ResponseStream],
    *,
    store: str | None,
    yes: bool,
    audit: bool,
    as_json: bool,
    traceback: bool,
    create: bool = False,
) -> None:
    from stepwell.cli.consoles import kept_for_json
    from stepwell.cli.jobs import Job, answering_at_hand
    from stepwell.cli.targets import load_workflow

    advice = Advice(target=target, store=store)
    with (
        reported(show_traceback=traceback, advice=advice),
        session(store, create=create, audit=audit) as here,
    ):
        # Loaded first: a store that is not there yet is made when it is first used.
        with kept_for_json(as_json):
            workflow = load_workflow(target, here)
        job = Job(here, workflow, run_id, named_store=store, target=target)
        with job.advising(advice), kept_for_json(as_json):
            outcome = job.watch(lambda: start(workflow, here), answering=answering_at_hand(yes=yes), as_json=as_json)
        code = job.report(outcome, as_json=as_json)
    raise typer.Exit(code)
