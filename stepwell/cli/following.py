"""A run followed to where it stops: its events shown, its questions asked, its answers sent back in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepwell.checkpointing.journal import Usage
from stepwell.cli.questions import LATER, Answer, Given, Question, question_of_event
from stepwell.cli.viewing import View
from stepwell.workflows.events import WorkflowRunState
from stepwell.workflows.stream import ResponseStream

if TYPE_CHECKING:
    from stepwell.checkpointing.storage.protocol import CheckpointStorage
    from stepwell.workflows.workflow import Workflow

Answering = Callable[[Question], Answer]
"""Who answers: a person at the terminal, somebody who said yes beforehand, or nobody (`LATER`)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run stands when it stops."""

    run_id: str
    state: WorkflowRunState
    outputs: tuple[Any, ...]
    usage: Usage
    waiting: tuple[Question, ...] = ()
    """What nobody has answered yet."""
    replayed: int = 0
    """Calls that were answered from the record instead of being made again."""


async def follow(stream: ResponseStream, view: View) -> Outcome:
    """Show one stream to its end. Whoever cancels this interrupts the run, which can be resumed."""
    replayed = 0
    waiting: dict[str, Question] = {}
    async with stream:
        async for event in stream:
            view.show(event)
            if event.type == "call_replayed":
                replayed += 1
            elif event.type == "request_info":
                waiting[str(event.request_id)] = question_of_event(event)
        result = await stream.get_final_response()
    state = result.get_final_state()
    open_questions = tuple(waiting.values()) if state is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS else ()
    return Outcome(result.run_id, state, tuple(result.get_outputs()), result.usage, open_questions, replayed)


def watch(
    loop: asyncio.Runner,
    workflow: Workflow,
    start: Callable[[], ResponseStream],
    *,
    view: View,
    answering: Answering,
    storage: CheckpointStorage | None = None,
) -> Outcome:
    """Follow a run, ask what it asks, answer and follow on, until it is done or somebody says *later*.

    Questions are asked between two streams and outside the event loop: the run is safe in its store and held by
    nobody, so a person may take a day, another process may answer instead, and Ctrl-C is just Ctrl-C.
    """
    with view:
        outcome = loop.run(follow(start(), view))
        replayed = outcome.replayed
        while outcome.waiting:
            with view.suspended():
                responses = _ask(outcome.waiting, answering)
            if not responses:
                break
            outcome = loop.run(_answered(workflow, outcome.run_id, responses, view, storage))
            replayed += outcome.replayed
    return Outcome(outcome.run_id, outcome.state, outcome.outputs, outcome.usage, outcome.waiting, replayed)


def _ask(questions: tuple[Question, ...], answering: Answering) -> dict[str, Any]:
    """Answers by request id; *later* ends the asking, and what was answered before it counts."""
    responses: dict[str, Any] = {}
    for question in questions:
        answer = answering(question)
        if answer is LATER:
            break
        assert isinstance(answer, Given)
        responses[question.request_id] = answer.value
    return responses


async def _answered(
    workflow: Workflow, run_id: str, responses: Mapping[str, Any], view: View, storage: CheckpointStorage | None
) -> Outcome:
    stream = workflow.run(run_id=run_id, responses=responses, checkpoint_storage=storage, stream=True)
    return await follow(stream, view)
