"""Workflows inside workflows: a whole run as one executor's business.

A message to a `WorkflowExecutor` starts a run of the workflow in it. That run has no checkpoints of its own: what it is
between two of the parent's supersteps is part of the parent's checkpoint, and the calls it makes in between are in the
parent's journal, under the scope of the delivery it runs in. After a crash it replays from the parent's checkpoint, the
recorded calls answering.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stepwell.checkpointing.checkpoint import GRAPH_SHAPE, PendingRequest, RecordedOutput
from stepwell.checkpointing.journal import DeliveryScope, active_scope
from stepwell.checkpointing.registry import register_type
from stepwell.workflows.answers import checked_answer
from stepwell.workflows.context import derived_id
from stepwell.workflows.events import WorkflowEvent
from stepwell.workflows.executor import Executor, HandlerSpec
from stepwell.workflows.graph import Graph
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
    state_of,
    take_up,
    told,
)
from stepwell.workflows.message import ResponseMessage
from stepwell.workflows.opening import missing_from
from stepwell.workflows.superstep import RunState

if TYPE_CHECKING:
    from stepwell.retry import RetryPolicy
    from stepwell.workflows.workflow import Workflow


@dataclass(frozen=True, slots=True)
class SubWorkflowResponseMessage:
    """The answer to a request of an inner workflow, on its way back; made by `SubWorkflowRequestMessage`."""

    data: Any
    source_event: PendingRequest
    executor_id: str = ""
    """The `WorkflowExecutor` that asked; others do not take it."""


@dataclass(frozen=True, slots=True)
class SubWorkflowRequestMessage:
    """A request of an inner workflow, for the executors around it to answer or to pass on.

    `source_event` is the request: its `data`, `request_id`, `source_executor_id` and the names of its types. Send
    `create_response(data)` back to `executor_id`, over an edge that leads there.
    """

    source_event: PendingRequest
    executor_id: str

    def create_response(self, data: Any) -> SubWorkflowResponseMessage:
        """The answer. A plain type that was not asked for is refused here, any other where the answer arrives."""
        return SubWorkflowResponseMessage(
            checked_answer(self.source_event, data, None), self.source_event, self.executor_id
        )


register_type(SubWorkflowRequestMessage, name="stepwell:SubWorkflowRequestMessage", immutable=False)
register_type(SubWorkflowResponseMessage, name="stepwell:SubWorkflowResponseMessage", immutable=False)


class WorkflowExecutor(Executor):
    """A workflow as an executor of another one, to any depth.

    Each message that the inner workflow's start executor takes begins a run of its own; runs that wait for an answer
    are kept apart. What an inner run yields as output is sent on to the next executors or, with `allow_direct_output`,
    yielded to the caller. What it asks arrives at the next executors as a `SubWorkflowRequestMessage` or, with
    `propagate_request`, is the parent's own request; a deadline counts where a person is asked, so only then.

    The inner workflow's storage is not used here: all of its state is in the parent's checkpoints. Every run of the
    parent works with a copy of this object, so it can be passed to builders as it is; executor *instances* of the inner
    workflow still serve one parent run at a time, and begin every inner run as they were before the first.
    """

    shareable = True

    def __init__(
        self,
        workflow: Workflow,
        id: str,
        *,
        allow_direct_output: bool = False,
        propagate_request: bool = False,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
    ) -> None:
        super().__init__(id, retry=retry, timeout=timeout)
        self.workflow = workflow
        self.allow_direct_output = allow_direct_output
        self.propagate_request = propagate_request
        self._graph = workflow.graph
        self._specs = tuple(_specs_for(workflow, direct=allow_direct_output, propagate=propagate_request))
        self._runs: dict[str, InnerRun] = {}
        self._pristine: dict[str, Any] = {}  # Shared by the copies: what instances kept before any inner run.
        self._has_warned = False

    @property
    def specs(self) -> tuple[HandlerSpec, ...]:
        return self._specs

    @property
    def inner_graph(self) -> Graph:
        return self._graph

    @property
    def runs_in_thread(self) -> bool:
        return any(executor.runs_in_thread for executor in self.workflow.get_executors_list())

    @property
    def state_writes(self) -> tuple[str, ...]:
        return ()  # The inner workflow's shared state is its own.

    def for_run(self) -> WorkflowExecutor:
        twin = copy.copy(self)
        twin._runs = {}
        return twin

    def can_handle(self, data: Any) -> bool:
        if isinstance(data, SubWorkflowResponseMessage):
            return data.executor_id in ("", self.id)
        return self._graph.slots[self._graph.start].prototype.can_handle(data)

    # --- messages ----------------------------------------------------------------------------------------------------

    async def execute(self, data: Any, ctx: Context) -> None:
        if isinstance(data, ResponseMessage):
            await self._answered(data.request, data.response, ctx)
        elif isinstance(data, SubWorkflowResponseMessage):
            await self._answered(data.source_event, data.data, ctx)
        else:
            await self._begun(data, ctx)

    async def _begun(self, data: Any, ctx: Context) -> None:
        if self._graph.storage is not None and not self._has_warned:
            self._has_warned = True
            text = f"the storage of workflow {self._graph.name!r} is not used inside {self.id!r}: its state is in the "
            ctx.announce("warning", None, {"message": text + "checkpoints of the workflow around it"})
        executors = fresh_executors(self._graph)
        await remember_pristine(self._graph, executors, self._pristine)
        state = told(RunState(executor_states=self._pristine), data, self._graph)
        await self._run(ctx.scope_id, InnerRun(state, executors), ctx)

    async def _answered(self, request: PendingRequest, answer: Any, ctx: Context) -> None:
        found = self._find(request)
        if found is None:
            text = f"{self.id!r} got an answer to request {request.request_id!r}, which waits for none (any more)"
            ctx.announce("warning", None, {"message": text})
            return
        key, asked = found
        run = self._runs[key]
        state = answered(run.state, {asked.request_id: answer}, self._graph)
        await self._run(key, replace(run, state=state), ctx)

    def _find(self, request: PendingRequest) -> tuple[str, PendingRequest] | None:
        """The inner run that asked. Ids chosen by a program may be equal in two runs, deliveries never are."""
        names = (request.request_id, request.request_id.rpartition("-")[0])
        for key, run in self._runs.items():
            for name in names:
                asked = run.state.pending.get(name)
                if asked is not None and asked.delivery == request.delivery:
                    return key, asked
        return None

    # --- inner runs --------------------------------------------------------------------------------------------------

    async def _run(self, key: str, run: InnerRun, ctx: Context) -> None:
        await remember_pristine(self._graph, run.executors, self._pristine)
        await take_up(run, self._graph)
        scope = active_scope.get()
        runner = InnerRunner(
            self._graph,
            ctx.run_id,
            run.executors,
            lambda event: self._relay(event, ctx),
            journal=scope.journal if isinstance(scope, DeliveryScope) else None,
            streaming=ctx.is_streaming(),
            max_iterations=self._graph.max_iterations,
            path=f"{ctx.scope_id}/",
            host=self,
            ctx=ctx,
        )
        try:
            state = await runner.run(run.state)
        except Exception as error:
            error.add_note(f"in workflow {self._graph.name!r}, which runs inside executor {self.id!r}")
            raise
        if not state.pending:
            self._runs.pop(key, None)
            return
        self._runs[key] = InnerRun(await set_aside(state, run.executors.items()), run.executors)

    # --- what leaves an inner run ------------------------------------------------------------------------------------

    def hand_on(self, output: RecordedOutput, ctx: Context) -> None:
        """What the inner workflow yields: a message for the next executors, or an output of the parent."""
        if output.kind == "intermediate":
            if not output.shown and not ctx.scene.is_silent:
                name = self._named(output.executor_id)
                _ = ctx.add_event(WorkflowEvent("intermediate", output.data, executor_id=name))
        elif not self.allow_direct_output:
            _ = ctx.send_message(output.data)
        elif output.shown:
            ctx.yield_shown(output.data)
        else:
            _ = ctx.yield_output(output.data)

    def pass_on(self, request: PendingRequest, ctx: Context) -> None:
        """What the inner workflow asks: a message for the next executors, or the parent's own request."""
        if not self.propagate_request:
            _ = ctx.send_message(SubWorkflowRequestMessage(request, self.id))
            return
        name = request.request_id
        # The context does not know yet what other inner runs have asked in this superstep.
        is_taken = ctx.is_request_id_taken(name) or any(name in run.state.pending for run in self._runs.values())
        ctx.relay_request(replace(request, request_id=_outer_id(request, ctx.run_id)) if is_taken else request)

    def announce(self, event: WorkflowEvent, ctx: Context) -> None:
        """An inner executor's own event waits, like all of them, until the parent's superstep is durable."""
        event.executor_id = self._named(event.executor_id)
        _ = ctx.add_event(event)

    def _relay(self, event: WorkflowEvent, ctx: Context) -> None:
        """Live events go out at once, under the inner executor's path and with an id that a replay gives again."""
        scene = ctx.scene
        if event.type in OWN_BUSINESS or scene.emit is None:
            return
        if event.provisional and event.type == "output":
            if self.allow_direct_output:
                ctx.announce("update", event.data, event.details)
            return
        if event.provisional and scene.is_silent:
            return
        event.keep_id(
            f"{event.run_id}:{ctx.scope_id}/{event.iteration}:{event.executor_id}:{event.type}:{event.ordinal}"
        )
        event.executor_id = self._named(event.executor_id)
        event.iteration = scene.superstep
        scene.emit(event)

    def _named(self, executor_id: str | None) -> str:
        return f"{self.id}/{executor_id}" if executor_id else self.id

    # --- checkpoints -------------------------------------------------------------------------------------------------

    async def on_checkpoint_save(self) -> dict[str, Any]:
        runs = {key: record_of(run.state, self._graph) for key, run in self._runs.items()}
        return {"runs": runs} if runs else {}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        before, self._runs = self._runs, {}
        for key, record in state.get("runs", {}).items():
            # Executors that live on keep what no hook of theirs saves, as they do in a run without storage.
            known = before.get(key)
            executors = known.executors if known else fresh_executors(self._graph)
            self._runs[key] = InnerRun(state_of(record), executors, is_restored=False)

    def missing_for(self, kept: Any) -> Iterator[str]:
        for record in (kept or {}).get("runs", {}).values():
            state = state_of(record)
            before = record["state"].get(GRAPH_SHAPE, self._graph.shape)
            for problem in missing_from(state, self._graph, before):
                yield f"inside {self.id!r}, {problem}"


def _specs_for(workflow: Workflow, *, direct: bool, propagate: bool) -> Iterator[HandlerSpec]:
    """What the executor takes, sends and yields, as its inner workflow declares it."""
    answers = [spec for executor in workflow.get_executors_list() for spec in executor.specs if spec.responds_to]
    outputs = tuple(workflow.output_types)
    asks = (SubWorkflowRequestMessage,) if answers and not propagate else ()
    sends, yields = (asks, outputs) if direct else ((*outputs, *asks), ())
    yield HandlerSpec("execute", tuple(workflow.input_types), sends, yields)
    if asks:
        yield HandlerSpec("execute", (SubWorkflowResponseMessage,), sends, yields)
    for spec in answers:
        yield HandlerSpec("execute", spec.accepts, sends, yields, responds_to=spec.responds_to)


def _outer_id(request: PendingRequest, run_id: str) -> str:
    """The id under which a request is passed on if another run of the same inner workflow has taken its own."""
    return derived_id(request.request_id, run_id, request.delivery)
