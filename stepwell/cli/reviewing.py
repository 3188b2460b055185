"""`review`: what waits for a person, and the person's word on it. The program that asked is not needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli import exits, options
from stepwell.cli.failures import reported, tell
from stepwell.cli.remedies import ANY_TARGET, Advice, what_happened
from stepwell.cli.sessions import Session, session
from stepwell.errors import AlreadyAnswered, UnknownRequest, UnknownRun

if TYPE_CHECKING:
    from stepwell.cli.answers import Wish
    from stepwell.cli.following import Outcome
    from stepwell.cli.jobs import Job
    from stepwell.cli.questions import Question
    from stepwell.workflows.stream import ResponseStream

    Starting = Callable[[Job, list[Question]], Callable[[], ResponseStream] | Outcome]


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

    advice = Advice(target=target or ANY_TARGET, store=store)
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
    from stepwell.cli.undelivered import undelivered_questions

    can_answer = wish.given or (consoles.somebody_is_there() and not as_json)
    is_for_the_program = can_answer and target is not None and wanted is not None
    undelivered = here.run(undelivered_questions(here.storage, str(wanted))) if is_for_the_program else []
    questions = undelivered or here.run(waiting.questions_for(here.storage, wanted))
    if not can_answer:
        if as_json:
            print_json({"waiting": [question_json(question) for question in questions]})
        else:
            waiting.print_questions(questions, store=store)
        return exits.WAITING if questions else exits.DONE
    if not questions:
        return _nothing_to_answer(here, wanted, wish, store=store)
    if wish.given:
        questions = [waiting.the_only_one(questions)]
    if target is not None:
        starting = _with_its_questions if undelivered else _with_a_resume
        return _answered_at_once(
            here, questions, wish, starting, target=target, store=store, as_json=as_json, advice=advice
        )
    return _recorded(here, questions, wish, store=store, as_json=as_json)


def _nothing_to_answer(here: Session, wanted: str | None, wish: Wish, *, store: str | None) -> int:
    """Perhaps somebody else was faster, and then that is what there is to know."""
    from stepwell.cli import waiting
    from stepwell.cli.command_lines import command_line

    if wanted is None:
        tell("nothing waits for an answer")
    else:
        if wish.given:
            here.run(waiting.refuse_if_just_answered(here.storage, wanted))
        tell(f"run {wanted} waits for no answer; what was decided: {command_line('show', wanted, store=store)}")
    return exits.FAILED if wish.given else exits.DONE


def _recorded(here: Session, questions: list[Question], wish: Wish, *, store: str | None, as_json: bool) -> int:
    """Leave the answers in the store for the next resume."""
    from stepwell.cli.answers import answering
    from stepwell.cli.plan_owners import with_teams
    from stepwell.cli.questions import LATER, Given
    from stepwell.cli.results import print_json
    from stepwell.cli.safe_text import safe
    from stepwell.cli.waiting import going_on_with

    ask, recorded, overtaken = answering(wish, echoes=False), [], 0
    for question in here.run(with_teams(questions, here.storage)):
        given = ask(question)
        if given is LATER:
            break
        assert isinstance(given, Given)
        try:
            here.run(here.storage.answer(question.request_id, given.value, run_id=question.run_id))
        except (AlreadyAnswered, UnknownRequest, UnknownRun) as gone:
            if wish.given:
                raise
            tell(f"your answer came too late and is not recorded: {what_happened(gone)}")
            overtaken += 1
            continue
        recorded.append({"request_id": question.request_id, "run_id": question.run_id, "answer": given.value})
        if not as_json:
            about = f"{question.request_id} of run {question.run_id}"
            print(safe(f"{about}: {given.words}; its next resume delivers this:"))
            print(safe(f"  {going_on_with(question, store=store)}"))
    if as_json:
        print_json({"recorded": recorded})
    return exits.DONE if len(recorded) + overtaken == len(questions) else exits.WAITING


def _answered_at_once(
    here: Session,
    questions: list[Question],
    wish: Wish,
    starting: Starting,
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
        meant = [question for question in questions if question.run_id == run_id]
        ids = {question.request_id for question in meant}
        with job.advising(advice), kept_for_json(as_json):
            outcome = job.watch(
                starting(job, meant),
                answering=once(answering(wish), ids) if wish.given else answering(wish),
                as_json=as_json,
            )
        code = max(code, job.report(outcome, as_json=as_json))
    return code


def _with_a_resume(job: Job, questions: list[Question]) -> Callable[[], ResponseStream]:
    """The run asks again, with the types of its program."""
    return lambda: job.workflow.run(run_id=job.run_id, stream=True, checkpoint_storage=job.session.storage)


def _with_its_questions(job: Job, questions: list[Question]) -> Outcome:
    """A resume would deliver the answer that is recorded, so it is asked before: the program takes the better one."""
    from stepwell.cli.following import Outcome
    from stepwell.workflows.events import WorkflowRunState

    return Outcome(job.run_id, WorkflowRunState.IDLE_WITH_PENDING_REQUESTS, (), {}, tuple(questions))
