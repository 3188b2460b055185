"""One turn of a workflow that is asked like an agent by somebody inside another run.

It runs inside the delivery that asks: its calls are in that run's journal under a scope of their own, its state is in
the agent's session, which whoever asks saves, and what it has to ask a person goes out with its response.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepwell.agents.calls import conversation_digest
from stepwell.agents.chat import AgentResponse, AgentResponseUpdate, Message
from stepwell.agents.content import FrozenDict
from stepwell.agents.session import AgentSession
from stepwell.agents.workflow_contents import (
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
from stepwell.agents.workflow_memory import InnerMemory
from stepwell.checkpointing.checkpoint import PendingRequest, RecordedOutput
from stepwell.checkpointing.journal import (
    DeliveryScope,
    PassingScope,
    Usage,
    active_scope,
    add_usage,
    entered,
    escaped,
)
from stepwell.errors import AgentException, RunUnfinished, WorkflowBusy
from stepwell.workflows.context import derived_id
from stepwell.workflows.events import WorkflowEvent, WorkflowRunState
from stepwell.workflows.inner import (
    OWN_BUSINESS,
    Context,
    InnerRun,
    InnerRunner,
    answered,
    fresh_executors,
    record_of,
    remember_pristine,
    set_aside,
    take_up,
    told,
)
from stepwell.workflows.message import isolated
from stepwell.workflows.superstep import RunState

if TYPE_CHECKING:
    from stepwell.workflows.graph import Graph
    from stepwell.workflows.workflow import Workflow

_AT_WORK = "_stepwell_inner"


@dataclass(slots=True)
class InnerTurn:
    """A turn inside the delivery of `ctx`. The session changes when it has succeeded."""

    workflow: Workflow
    author: str
    ctx: Context
    session: AgentSession | None
    messages: Sequence[Message]
    responses: Mapping[str, Any]
    pristine: dict[str, Any]
    """What executor instances of the workflow kept before any inner run; shared by all turns of the agent."""
    emit: Callable[[AgentResponseUpdate], None] | None = None
    outputs: list[Any] = field(default_factory=list)
    used: list[Usage] = field(default_factory=list)
    place: str = ""
    """What the journal and request ids know this turn by."""

    @property
    def graph(self) -> Graph:
        return self.workflow.graph

    @property
    def response_id(self) -> str:
        return derived_id("resp", self.ctx.run_id, self.place)

    async def take(self) -> AgentResponse:
        memory = InnerMemory.of(self.session)
        state = await self._entered(memory)
        scope = active_scope.get()
        self.place = self._placed(scope)
        if state.inbox:
            state = await self._run(state, scope)
            memory = InnerMemory(record_of(state, self.graph))
        assert memory is not None
        return self._response(memory, self._usage(scope))

    # --- what comes in -----------------------------------------------------------------------------------------------

    async def _entered(self, memory: InnerMemory | None) -> RunState:
        asked = dict(memory.asked) if memory is not None else {}
        found, said = take_answers(self.messages, asked)
        pending = memory.pending if memory is not None else {}
        responses = {**self.responses, **{k: typed_answer(content, pending.get(k)) for k, content in found.items()}}
        state = memory.state if memory is not None else RunState(executor_states=await self._untouched())
        if responses and said:
            raise AgentException(
                f"{self.author!r} got answers and further messages at once; answer first, then go on with another run"
            )
        if responses:
            return answered(state, responses, self.graph)
        if not said:
            if memory is None:
                raise AgentException(f"{self.author!r} was asked nothing; pass messages or responses")
            return state
        if state.pending:
            raise RunUnfinished(self.ctx.run_id, WorkflowRunState.IDLE_WITH_PENDING_REQUESTS.value)
        self._warn_of_storage(is_first=memory is None)
        return told(state, isolated(workflow_input(said, self.workflow)), self.graph)

    async def _untouched(self) -> Mapping[str, Any]:
        await remember_pristine(self.graph, fresh_executors(self.graph), self.pristine)
        return self.pristine

    def _warn_of_storage(self, *, is_first: bool) -> None:
        if is_first and self.graph.storage is not None:
            text = (
                f"the storage of workflow {self.graph.name!r} is not used inside {self.ctx.executor_id!r}: its state "
            )
            self.ctx.announce("warning", None, {"message": text + "is in the checkpoints of the workflow around it"})

    def _placed(self, scope: Any) -> str:
        """A name that a replay finds again, whatever ran beside it: by what was asked, not by when."""
        text = "\0".join([conversation_digest(self.messages), *sorted(self.responses)])
        digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
        name = f"{escaped(self.author)}/{digest}"
        if isinstance(scope, DeliveryScope):
            return scope.nested_scope(name)
        # Without a journal nothing is replayed, and the session tells equal turns apart.
        return f"{self.ctx.scope_id}/{name}/{self.session.session_id if self.session is not None else ''}"

    # --- the run -----------------------------------------------------------------------------------------------------

    async def _run(self, state: RunState, scope: Any) -> RunState:
        run = InnerRun(state, fresh_executors(self.graph), is_restored=False)
        runner = InnerRunner(
            self.graph,
            self.ctx.run_id,
            run.executors,
            self._relay,
            journal=scope.journal if isinstance(scope, DeliveryScope) else None,
            streaming=self.emit is not None,
            max_iterations=self.graph.max_iterations,
            path=f"{self.place}/",
            host=self,
            ctx=self.ctx,
        )
        with _alone(self.graph), self._counted(scope):
            await take_up(run, self.graph)
            try:
                after = await runner.run(state)
            except Exception as error:
                error.add_note(f"in workflow {self.graph.name!r}, asked as agent {self.author!r}")
                raise
            return await set_aside(after, run.executors.items())

    def announce(self, event: WorkflowEvent, ctx: Context) -> None:
        """An inner executor's own event waits, like all of them, until the superstep around it is durable."""
        event.executor_id = self._named(event.executor_id)
        _ = ctx.add_event(event)

    def hand_on(self, output: RecordedOutput, ctx: Context) -> None:
        if output.kind != "intermediate":
            self.outputs.append(output.data)
            if not output.shown:
                self._show(said_in(output.data, self.author))
        elif not output.shown and not ctx.scene.is_silent:
            name = self._named(output.executor_id)
            _ = ctx.add_event(WorkflowEvent("intermediate", output.data, executor_id=name))

    def pass_on(self, request: PendingRequest, ctx: Context) -> None:
        """It stays pending, and goes out with the response."""

    def _relay(self, event: WorkflowEvent) -> None:
        """Live events go out at once: what is said to whoever asked, the rest under the inner executor's path."""
        scene = self.ctx.scene
        if event.type in OWN_BUSINESS:
            return
        if event.provisional and event.type == "output":
            update = signed(event.data, event.executor_id or self.author, self.response_id)
            if update is not None and self.emit is not None:
                self.emit(update)
        elif scene.emit is not None and not (event.provisional and scene.is_silent):
            event.keep_id(
                f"{event.run_id}:{self.place}/{event.iteration}:{event.executor_id}:{event.type}:{event.ordinal}"
            )
            event.executor_id = self._named(event.executor_id)
            event.iteration = scene.superstep
            scene.emit(event)

    def _named(self, executor_id: str | None) -> str:
        around = self.ctx.executor_id
        home = around if self.author == around else f"{around}/{self.author}"
        return f"{home}/{executor_id}" if executor_id else home

    # --- what comes out ----------------------------------------------------------------------------------------------

    def _show(self, messages: Sequence[Message]) -> None:
        if self.emit is not None:
            for update in updates_of(messages, self.response_id):
                self.emit(update)

    def _response(self, memory: InnerMemory, usage: FrozenDict[int] | None) -> AgentResponse:
        messages = [message for output in self.outputs for message in said_in(output, self.author)]
        requests = memory.pending.values()
        asking, asked = requests_shown((r.request_id, r.source_executor_id, r.data) for r in requests)
        self._show(asking)
        InnerMemory(memory.record, asked).keep_in(self.session)
        return AgentResponse(
            [*messages, *asking],
            value=value_of(self.outputs) if not asked else None,
            usage_details=usage,
            agent_id=self.author,
            response_id=self.response_id,
        )

    def _counted(self, scope: Any) -> AbstractContextManager[None]:
        """Where calls are not recorded, what they use is noted on its way to the run around."""
        if not isinstance(scope, PassingScope):
            return nullcontext()

        def count(used: Usage) -> None:
            self.used.append(used)
            scope.count(used)

        return entered(scope.counted_by(count))

    def _usage(self, scope: Any) -> FrozenDict[int] | None:
        used = scope.usage_within(self.place) if isinstance(scope, DeliveryScope) else add_usage({}, self.used)
        return token_counts(add_usage({}, ({"all": one} for one in used.values())).get("all", {}), {})


@contextmanager
def _alone(graph: Graph) -> Iterator[None]:
    """Executor instances hold one run's state at a time, also when a team is asked twice at once by its tool."""
    mine = [slot for slot in graph.slots.values() if slot.exclusive]
    if any(vars(slot.prototype).get(_AT_WORK) for slot in mine):
        raise WorkflowBusy(graph.name, tuple(slot.id for slot in mine))
    for slot in mine:
        vars(slot.prototype)[_AT_WORK] = True
    try:
        yield
    finally:
        for slot in mine:
            vars(slot.prototype).pop(_AT_WORK, None)
