"""A run followed to where it stops: its events shown, its questions asked, its answers sent back in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepwell.checkpointing.journal import Usage
from stepwell.cli.asking import Person
from stepwell.cli.plan_owners import with_teams
from stepwell.cli.questions import LATER, Answer, Given, Question, question_of_event
from stepwell.cli.remedies import what_happened
from stepwell.cli.viewing import View
from stepwell.errors import AlreadyAnswered, ResponseTypeMismatch
from stepwell.workflows.events import WorkflowRunState
from stepwell.workflows.stream import ResponseStream

if TYPE_CHECKING:
    from stepwell.checkpointing.storage.protocol import CheckpointStorage
    from stepwell.cli.loops import Loop
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
    loop: Loop,
    workflow: Workflow,
    start: Callable[[], ResponseStream] | Outcome,
    *,
    view: View,
    answering: Answering,
    storage: CheckpointStorage | None = None,
) -> Outcome:
    """Follow a run, ask what it asks, answer and follow on, until it is done or somebody says *later*.

    It begins with a stream, or with how the run stands if that is known.

    Questions are asked between two streams and outside the event loop: the run is safe in its store and held by
    nobody, so a person may take a day, another process may answer instead, and Ctrl-C is just Ctrl-C.
    """
    desk = _Desk(loop, workflow, view, answering, storage)
    with view:
        outcome = start if isinstance(start, Outcome) else loop.run(follow(start(), view))
        replayed = outcome.replayed
        while outcome.waiting and (after := desk.answered(outcome)) is not None:
            outcome = after
            replayed += outcome.replayed
    return Outcome(outcome.run_id, outcome.state, outcome.outputs, outcome.usage, outcome.waiting, replayed)


class _Desk:
    """Where a run's questions are asked, and the answers sent in."""

    def __init__(
        self,
        loop: Loop,
        workflow: Workflow,
        view: View,
        answering: Answering,
        storage: CheckpointStorage | None,
    ) -> None:
        self._loop = loop
        self._workflow = workflow
        self._view = view
        self._answering = answering
        self._storage = storage
        self._kept: dict[str, Any] = {}
        """Good answers that were not sent in, because another one was not good."""

    def answered(self, outcome: Outcome) -> Outcome | None:
        """Ask until the run takes the answers, and follow it on; None if nothing is answered now."""
        while True:
            unanswered = [question for question in outcome.waiting if question.request_id not in self._kept]
            responses = {**self._kept, **self._ask(unanswered)}
            if not responses:
                return None
            try:
                after = self._followed(outcome.run_id, responses)
            except ResponseTypeMismatch as refusal:
                self._keep_all_but(refusal, responses)
            except AlreadyAnswered as refusal:
                self._keep_all_but(refusal, responses)
                after = self._followed(outcome.run_id, None)
                still = {question.request_id for question in after.waiting}
                self._kept = {key: value for key, value in self._kept.items() if key in still}
                return after
            else:
                self._kept = {}
                return after

    def _keep_all_but(self, refusal: ResponseTypeMismatch | AlreadyAnswered, responses: Mapping[str, Any]) -> None:
        """Nothing was changed, so a person can give another answer; one that was given beforehand stays what it is."""
        if not isinstance(self._answering, Person) or refusal.request_id not in responses:
            raise refusal
        with self._view.suspended():
            self._answering.hears(f"That does not count: {what_happened(refusal)}.")
        self._kept = {key: value for key, value in responses.items() if key != refusal.request_id}

    def _ask(self, questions: Sequence[Question]) -> dict[str, Any]:
        """Answers by request id; *later* ends the asking, and what was answered before it counts."""
        storage, responses = self._storage, dict[str, Any]()
        asked = self._loop.run(with_teams(questions, storage)) if storage is not None else questions
        with self._view.suspended():
            for question in asked:
                answer = self._answering(question)
                if answer is LATER:
                    break
                assert isinstance(answer, Given)
                responses[question.request_id] = answer.value
        return responses

    def _followed(self, run_id: str, responses: Mapping[str, Any] | None) -> Outcome:
        return self._loop.run(self._follow(run_id, responses))

    async def _follow(self, run_id: str, responses: Mapping[str, Any] | None) -> Outcome:
        stream = self._workflow.run(run_id=run_id, responses=responses, checkpoint_storage=self._storage, stream=True)
        return await follow(stream, self._view)
