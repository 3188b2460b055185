"""One turn of a workflow that is asked like an agent, as a run of its own in a storage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from stepwell.agents.chat import AgentResponse, AgentResponseUpdate, Message
from stepwell.agents.content import Content
from stepwell.agents.session import AgentSession
from stepwell.agents.workflow_contents import (
    Asked,
    all_tokens,
    requests_shown,
    said_in,
    signed,
    take_answers,
    token_counts,
    typed_answer,
    updates_of,
    value_of,
    workflow_input,
)
from stepwell.agents.workflow_memory import OwnRun
from stepwell.checkpointing.checkpoint import PendingRequest, RecordedOutput, WorkflowCheckpoint, new_id
from stepwell.checkpointing.storage.plain import run_storage
from stepwell.checkpointing.storage.protocol import CheckpointStorage
from stepwell.errors import AgentException, CheckpointNotFound, RunUnfinished
from stepwell.workflows.context import derived_id
from stepwell.workflows.events import WorkflowEvent, WorkflowRunResult, WorkflowRunState
from stepwell.workflows.opening import MISSING

if TYPE_CHECKING:
    from stepwell.workflows.workflow import Workflow

Emit = Callable[[AgentResponseUpdate], None]


@dataclass(slots=True)
class OwnTurn:
    """A turn whose run is in `storage`, and found again by what the session remembers."""

    workflow: Workflow
    author: str
    storage: CheckpointStorage
    session: AgentSession | None
    messages: Sequence[Message]
    responses: Mapping[str, Any]
    checkpoint_id: str | None
    run_id: str | None
    options: Mapping[str, Any]
    emit: Emit | None = None
    response_id: str = field(default_factory=lambda: f"resp-{new_id()}")
    restored: list[Any] = field(default_factory=list)
    """Outputs made while the run was put back to a checkpoint, before it was told anything."""
    shown: set[str] = field(default_factory=set)
    """Outputs recorded by an earlier life of this turn, by event id, that the stream has shown already."""

    async def take(self) -> AgentResponse:
        memory = self._memory()
        answers, said = take_answers(self.messages, dict(memory.asked))
        responses = {**self.responses, **await self._typed(answers, memory.run_id)}
        if responses and said:
            raise AgentException(
                f"{self.author!r} got answers and further messages at once; answer first, then go on with another run"
            )
        if responses:
            result = await self._run(self._answering(responses, memory))
            # From a checkpoint it is a branch, of which nothing has been told.
            return self._response(result, memory, told=memory.told if self.checkpoint_id is None else 0)
        if said:
            result = await self._go_on(said, memory)
            return self._response(result, OwnRun.of(self.session) or memory)
        result = await self._run(await self._resuming(memory))
        return self._response(result, memory)

    def _memory(self) -> OwnRun:
        """What the session remembers, unless another run is meant.

        A session that remembers nothing yet has a run all the same, named after it: should its first turn be cut off,
        the next process finds it with the session as it was made.
        """
        known = OwnRun.of(self.session)
        if known is not None and self.run_id in (None, known.run_id):
            return known
        if self.run_id is None and self.session is not None:
            return OwnRun(derived_id("session", self.workflow.name, self.session.session_id))
        return OwnRun(self.run_id or new_id())

    # --- what is run -------------------------------------------------------------------------------------------------

    def _answering(self, responses: Mapping[str, Any], memory: OwnRun) -> dict[str, Any]:
        if self.checkpoint_id is not None:
            return {"responses": responses, "checkpoint_id": self.checkpoint_id}
        known = self.run_id or (memory.run_id if OwnRun.of(self.session) is not None else None)
        # Otherwise the requests tell which run it is.
        return {"responses": responses, "run_id": known} if known else {"responses": responses}

    async def _resuming(self, memory: OwnRun) -> dict[str, Any]:
        if self.checkpoint_id is not None:
            return {"checkpoint_id": self.checkpoint_id}
        if self.run_id is None and self.session is None:
            raise AgentException(f"{self.author!r} was asked nothing; pass messages, responses or a checkpoint_id")
        await self._show_recorded(memory.run_id)
        return {"run_id": memory.run_id}

    async def _go_on(self, said: Sequence[Message], memory: OwnRun) -> WorkflowRunResult:
        """A message: a further turn, or the one that was cut off if it is the same message."""
        message = workflow_input(said, self.workflow)
        new_turn = await self._has_heard_all(memory)
        if self.checkpoint_id is not None:
            memory, new_turn = OwnRun((await self._restored(self.checkpoint_id)).run_id), True
        # Written down before anything runs, so that a turn that is cut off is found again.
        replace(memory, told=0).keep_in(self.session)
        await self._show_recorded(memory.run_id, only_unfinished=True)
        try:
            return await self._run({"message": message, "run_id": memory.run_id, "new_turn": new_turn})
        except RunUnfinished as error:
            if self.session is None or error.state == WorkflowRunState.IDLE_WITH_PENDING_REQUESTS.value:
                memory.keep_in(self.session)
                raise  # A question that waits is not talked over.
            return await self._from_settled(message, memory, error)

    async def _has_heard_all(self, memory: OwnRun) -> bool:
        """Does the session know of the run's end? Then a message begins a turn, even one that says the same again.

        If not, a process has died between the end of a turn and telling of it: the same message hears it now.
        """
        if memory.settled is None:
            return False
        runs = run_storage(self.storage, self.workflow.name)
        return await runs.newest_checkpoint_id(memory.run_id) == memory.settled

    async def _restored(self, checkpoint_id: str) -> WorkflowRunResult:
        """Put the run back to a checkpoint; what it still had to do there is done, and returned with the rest."""
        checkpoint = await self.storage.load(checkpoint_id)
        before = len(_turn_outputs(checkpoint))
        result: WorkflowRunResult = await self.workflow.run(
            checkpoint_id=checkpoint_id, checkpoint_storage=self.storage, **self.options
        )
        self.restored = result.get_outputs()[before:]
        self._show(message for output in self.restored for message in said_in(output, self.author))
        return result

    async def _from_settled(self, message: Any, memory: OwnRun, error: RunUnfinished) -> WorkflowRunResult:
        """The turn before this one failed: go on from where the conversation was whole, as a branch of its run."""
        fresh = OwnRun(new_id(), memory.settled, spent=memory.spent)
        if memory.settled is not None:
            try:
                await self.workflow.run(
                    checkpoint_id=memory.settled, branch=True, run_id=fresh.run_id, checkpoint_storage=self.storage
                )
            except CheckpointNotFound as gone:
                raise AgentException(
                    f"the turn before failed in run {memory.run_id!r}, and checkpoint {memory.settled!r}, from which "
                    "to go on without it, is not kept (see the storage's retention); resume the failed turn first, by "
                    "running the agent with this session and no message"
                ) from gone
        await self._give_up(memory.run_id, error.state)
        fresh.keep_in(self.session)
        return await self._run({"message": message, "run_id": fresh.run_id, "new_turn": True})

    async def _give_up(self, run_id: str, state: str) -> None:
        """Nobody comes back to a run that the conversation goes on without: `recover` must not take it up again."""
        if state != WorkflowRunState.FAILED.value and hasattr(self.storage, "cancel_run"):
            await self.storage.cancel_run(run_id)

    async def _run(self, arguments: dict[str, Any]) -> WorkflowRunResult:
        message = arguments.pop("message", MISSING)
        arguments = {**arguments, **self.options, "checkpoint_storage": self.storage}
        if self.emit is None:
            result: WorkflowRunResult = await self.workflow.run(message, **arguments)
            return result
        async with self.workflow.run(message, stream=True, **arguments) as stream:
            async for event in stream:
                self._watch(event, self.emit)
            final: WorkflowRunResult = await stream.get_final_response()
            return final

    # --- what is looked up -------------------------------------------------------------------------------------------

    async def _typed(self, answers: Mapping[str, Content], run_id: str) -> dict[str, Any]:
        if not answers:
            return {}
        latest = await self._latest(run_id)
        pending: Mapping[str, PendingRequest] = latest.pending_request_info_events if latest is not None else {}
        return {name: typed_answer(content, pending.get(name)) for name, content in answers.items()}

    async def _latest(self, run_id: str) -> WorkflowCheckpoint | None:
        runs = run_storage(self.storage, self.workflow.name)
        newest = await runs.newest_checkpoint_id(run_id)
        return None if newest is None else await self.storage.load(newest)

    async def _show_recorded(self, run_id: str, *, only_unfinished: bool = False) -> None:
        """A stream that resumes a turn begins with what that turn had come to before it was cut off."""
        latest = await self._latest(run_id) if self.emit is not None else None
        if latest is None or (only_unfinished and not latest.messages):
            return
        for output in _turn_outputs(latest):
            self._show(said_in(output.data, self.author))
            self.shown.add(f"{run_id}:{output.event_id}")

    # --- what comes out ----------------------------------------------------------------------------------------------

    def _watch(self, event: WorkflowEvent, emit: Emit) -> None:
        if event.type != "output" or event.event_id in self.shown:
            return
        if isinstance(event.data, AgentResponseUpdate):
            update = signed(event.data, event.executor_id or self.author, self.response_id)
            if update is not None:
                emit(update)
        else:
            self._show(said_in(event.data, self.author))

    def _show(self, messages: Any) -> None:
        if self.emit is not None:
            for update in updates_of(messages, self.response_id):
                self.emit(update)

    def _response(self, result: WorkflowRunResult, memory: OwnRun, *, told: int = 0) -> AgentResponse:
        outputs = [*self.restored, *result.get_outputs()[told:]]
        messages = [message for output in outputs for message in said_in(output, self.author)]
        events = result.get_request_info_events()
        asking, asked = requests_shown((str(e.request_id), str(e.source_executor_id), e.data) for e in events)
        # Requests come last, in the stream too: what was said before is complete by then.
        self._show(asking)
        total = result.total_usage()
        self._kept(result, memory, asked).keep_in(self.session)
        return AgentResponse(
            [*messages, *asking],
            value=value_of(outputs) if not asked else None,
            usage_details=token_counts(total, memory.spent),
            agent_id=self.author,
            response_id=self.response_id,
            additional_properties={"run_id": result.run_id},
        )

    def _kept(self, result: WorkflowRunResult, memory: OwnRun, asked: Asked) -> OwnRun:
        checkpoints = [event.data.checkpoint_id for event in result if event.type == "checkpoint"]
        settled = checkpoints[-1] if checkpoints and not asked else memory.settled
        told = len(result.get_outputs()) if asked else 0
        return OwnRun(result.run_id, settled, asked, told, all_tokens(result.total_usage()))


def _turn_outputs(checkpoint: WorkflowCheckpoint) -> list[RecordedOutput]:
    """The outputs of the turn that the checkpoint is in."""
    turn = checkpoint.metadata.get("turn", 0)
    return [output for output in checkpoint.outputs if output.kind == "output" and output.turn == turn]
