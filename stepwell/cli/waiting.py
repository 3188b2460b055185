"""What waits for a person in a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepwell.cli.asking import summary_lines
from stepwell.cli.command_lines import command_line
from stepwell.cli.demo.names import NAME, TARGET, is_the_demos
from stepwell.cli.failures import tell
from stepwell.cli.questions import Question, questions_of_run
from stepwell.cli.remedies import ANY_TARGET, Unusable
from stepwell.cli.safe_text import safe
from stepwell.errors import AlreadyAnswered

if TYPE_CHECKING:
    from stepwell.checkpointing.storage.recording import RecordingStorage


async def questions_for(storage: RecordingStorage, wanted: str | None) -> list[Question]:
    """Everything that waits; or what a run waits for; or the one request."""
    runs = await storage.list_runs()
    everything = [question for run in runs for question in questions_of_run(run)]
    if wanted is None:
        return everything
    found = [question for question in everything if wanted in (question.run_id, question.request_id)]
    if not found and wanted not in {run.run_id for run in runs}:
        await _refuse(storage, wanted, everything)
    return found


async def _refuse(storage: RecordingStorage, wanted: str, everything: Sequence[Question]) -> None:
    run_id = await storage.run_waiting_for(wanted)
    decision = await storage.decision(run_id, wanted) if run_id is not None else None
    if run_id is not None and decision is not None:
        raise AlreadyAnswered(wanted, run_id, decision.answered_at, decision.value[:300])
    waiting = ", ".join(f"{question.request_id} (run {question.run_id})" for question in everything[:5])
    there = f"waiting are {waiting}" if waiting else "nothing waits for an answer in this store"
    raise Unusable(f"there is no run and no request {wanted!r}; {there}")


async def refuse_if_just_answered(storage: RecordingStorage, run_id: str) -> None:
    """A run whose answer is not delivered yet waits for none, and whoever comes second should hear of the first."""
    checkpoint = await storage.get_latest(run_id=run_id)
    for request_id in checkpoint.pending_request_info_events if checkpoint is not None else ():
        decision = await storage.decision(run_id, request_id)
        if decision is not None:
            raise AlreadyAnswered(request_id, run_id, decision.answered_at, decision.value[:300])


def going_on_with(question: Question, *, store: str | None) -> str:
    """The command that delivers an answer; only the demo's program is known here."""
    if is_the_demos(question.workflow, question.run_id):
        return command_line("demo", store=store)
    target = TARGET if question.workflow == NAME else ANY_TARGET
    return command_line("resume", target, question.run_id, store=store)


def the_only_one(questions: Sequence[Question]) -> Question:
    """One answer answers one question."""
    if len(questions) > 1:
        ids = ", ".join(question.request_id for question in questions)
        raise Unusable(f"{len(questions)} requests wait; say which one is meant: {ids}")
    return questions[0]


def print_questions(questions: Sequence[Question], *, store: str | None) -> None:
    if not questions:
        tell("nothing waits for an answer")
        return
    for question in questions:
        print(safe(f"{question.request_id} of run {question.run_id}, asked at {(question.asked_at or '')[:19]}"))
        for line in summary_lines(question):
            print(safe(f"  {line}"))
        if question.kind in ("other", "doubt"):
            print(safe(f"  takes --answer with {question.response_type}"))
        print()
    tell(f"answer with: {command_line('review', questions[0].request_id, '--approve', store=store)}")
