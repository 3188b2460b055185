"""`review`: what waits for a person, and the person's word on it. The program that asked is not needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli import exits, options
from stepwell.cli.failures import Advice, reported, tell
from stepwell.cli.sessions import Session, session

if TYPE_CHECKING:
    from stepwell.cli.answers import Wish
    from stepwell.cli.questions import Question


def review(
    wanted: Annotated[
        str | None,
        typer.Argument(metavar="REQUEST_ID|RUN_ID", help="What to answer; without it, whatever waits."),
    ] = None,
    approve: Annotated[bool, typer.Option("--approve", help="Yes to the plan or the tool call.")] = False,
    revise: Annotated[
        str | None, typer.Option("--revise", metavar="TEXT", help="Have another plan made that heeds this.")
    ] = None,
    edit: Annotated[
        Path | None, typer.Option("--edit", metavar="FILE", help="Approve the plan in this file, one step per line.")
    ] = None,
    reject: Annotated[str | None, typer.Option("--reject", metavar="TEXT", help="No, and why.")] = None,
    answer: Annotated[
        str | None, typer.Option("--answer", metavar="JSON", help="Any answer, as the program expects it.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="The workflow, as for `run`: go on with the run at once.")
    ] = None,
    store: options.Store = None,
    as_json: options.Json = False,
    traceback: options.Traceback = False,
) -> None:
    """Answer what waits for a person: plans, tool calls, calls in doubt, and whatever else a program asks.

    Without an answer on the command line it asks you; where there is no terminal it lists what waits and ends with 3.

    \b
    Examples:
      stepwell review
      stepwell review brief-1 --approve
      stepwell review brief-1 --revise "Ask the writer for an outline first."
      stepwell review plan-67dc4d00489bd7491806 --edit plan.txt --target team.py:team
      stepwell review order-17 --answer '{"discount": 0.1}'
    """
    from stepwell.cli.answers import Wish

    advice = Advice()
    with reported(show_traceback=traceback, advice=advice):
        wish = Wish(approve=approve, revise=revise, edit=edit, reject=reject, answer=answer)
        with session(store) as here:
            code = _reviewed(here, wanted, wish, target=target, store=store, as_json=as_json, advice=advice)
    raise typer.Exit(code)


def _reviewed(
    here: Session,
    wanted: str | None,
    wish: Wish,
    *,
    target: str | None,
    store: str | None,
    as_json: bool,
    advice: Advice,
) -> int:
    from stepwell.cli import consoles, waiting
    from stepwell.cli.results import print_json, question_json

    questions = here.run(waiting.questions_for(here.storage, wanted))
    if not wish.given and (as_json or not consoles.somebody_is_there()):
        if as_json:
            print_json({"waiting": [question_json(question) for question in questions]})
        else:
            waiting.print_questions(questions, store=store)
        return exits.WAITING if questions else exits.DONE
    if not questions:
        tell("nothing waits for an answer" if wanted is None else f"run {wanted} waits for no answer")
        return exits.FAILED if wish.given else exits.DONE
    if wish.given:
        questions = [waiting.the_only_one(questions)]
    if target is not None:
        return _answered_at_once(here, questions, wish, target=target, store=store, as_json=as_json, advice=advice)
    return _recorded(here, questions, wish, store=store, as_json=as_json)


def _recorded(here: Session, questions: list[Question], wish: Wish, *, store: str | None, as_json: bool) -> int:
    """Leave the answers in the store for the next resume."""
    from stepwell.cli.answers import answering
    from stepwell.cli.command_lines import command_line
    from stepwell.cli.questions import LATER, Given
    from stepwell.cli.results import print_json
    from stepwell.cli.safe_text import safe

    ask, recorded = answering(wish), []
    for question in questions:
        given = ask(question)
        if given is LATER:
            break
        assert isinstance(given, Given)
        here.run(here.storage.answer(question.request_id, given.value, run_id=question.run_id))
        recorded.append({"request_id": question.request_id, "run_id": question.run_id, "answer": given.value})
        if not as_json:
            about = f"{question.request_id} of run {question.run_id}"
            print(safe(f"{about}: {given.words}; its next resume delivers this:"))
            print(safe(f"  {command_line('resume', 'TARGET', question.run_id, store=store)}"))
    if as_json:
        print_json({"recorded": recorded})
    return exits.DONE if len(recorded) == len(questions) else exits.WAITING


def _answered_at_once(
    here: Session,
    questions: list[Question],
    wish: Wish,
    *,
    target: str,
    store: str | None,
    as_json: bool,
    advice: Advice,
) -> int:
    """Resume the runs that ask, and answer them on the way: the program checks the answer before anything changes."""
    from stepwell.cli.answers import answering, once
    from stepwell.cli.consoles import kept_for_json
    from stepwell.cli.jobs import Job
    from stepwell.cli.targets import load_workflow

    with kept_for_json(as_json):
        workflow = load_workflow(target, here)
    code = exits.DONE
    for run_id in dict.fromkeys(question.run_id for question in questions):
        job = Job(here, workflow, run_id, target, store)
        ids = {question.request_id for question in questions if question.run_id == run_id}
        with job.advising(advice), kept_for_json(as_json):
            outcome = job.watch(
                lambda run_id=run_id: workflow.run(  # type: ignore[misc]
                    run_id=run_id, stream=True, checkpoint_storage=here.storage
                ),
                answering=once(answering(wish), ids) if wish.given else answering(wish),
                as_json=as_json,
            )
        code = max(code, job.report(outcome, as_json=as_json))
    return code
