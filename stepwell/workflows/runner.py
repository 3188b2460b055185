"""The loop: route, deliver, fold, save, announce. Nearly all the awaits of the engine are here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from stepwell.checkpointing.checkpoint import PendingRequest, RecordedOutput, WorkflowCheckpoint, WorkflowMessage
from stepwell.checkpointing.codec import Codec
from stepwell.checkpointing.journal import (
    CallInDoubt,
    DeliveryScope,
    Journal,
    PassingScope,
    Usage,
    active_scope,
    add_usage,
    entered,
)
from stepwell.checkpointing.storage.protocol import CheckpointDraft, Decision, PendingSummary, RunLog
from stepwell.errors import AwaitedCancelled, WorkflowConvergenceException
from stepwell.workflows.answers import response_type_of
from stepwell.workflows.attempts import attempted
from stepwell.workflows.context import DeliveryScene, Effects, WorkflowContext, at_work, delivery_scope
from stepwell.workflows.defaults import defaulted, overdue
from stepwell.workflows.events import WorkflowErrorDetails, WorkflowEvent, WorkflowRunState
from stepwell.workflows.executor import Executor
from stepwell.workflows.graph import Graph
from stepwell.workflows.message import isolated
from stepwell.workflows.superstep import (
    Advance,
    Delivery,
    Outcome,
    Plan,
    Route,
    RunState,
    advance,
    content_of,
    metadata_of,
    plan,
)

logger = logging.getLogger(__name__)

Emit = Callable[[WorkflowEvent], None]

_FAIR = 8
"""After so many supersteps a run lets others have the event loop, whether or not it has waited for anything itself."""


@dataclass(slots=True)
class Runner:
    """One run, from one state to the next until nothing is queued."""

    graph: Graph
    run_id: str
    executors: Mapping[str, Executor]
    emit: Emit
    log: RunLog | None = None
    journal: Journal | None = None
    demand: Callable[[], Awaitable[None]] | None = None
    """Returns when whoever consumes the events wants the next superstep; None if it takes everything as it comes."""
    streaming: bool = False
    max_iterations: int | None = None
    path: str = ""
    """For a workflow inside a workflow: the scope of the delivery it runs in, and a slash."""
    decided: tuple[Decision, ...] = field(default=(), init=False)
    """Decisions made on the way, because a deadline had passed."""
    _planned: Plan | Exception | None = field(default=None, init=False)
    _used: Usage = field(default_factory=dict, init=False)
    """What calls have used in a run without a journal, until the superstep ends."""
    _status: WorkflowRunState | None = field(default=None, init=False)
    _reached: int = field(default=0, init=False)
    """The latest superstep; tells one turn's `started` and `status` from another's."""
    _repeats: dict[tuple[str, str | None, int | None], int] = field(default_factory=dict, init=False)

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def run(self, state: RunState) -> RunState:
        """Run supersteps until nothing is queued, or only a person can help."""
        while state.inbox and not is_blocked(state):
            if self.max_iterations is not None and state.iteration - state.turn_began >= self.max_iterations:
                raise WorkflowConvergenceException(self.run_id, self.max_iterations)
            if self.demand is not None:
                await self.demand()
            if state.iteration % _FAIR == _FAIR - 1:
                # Handlers may never wait for anything; the rest of the program must have its turn all the same.
                await asyncio.sleep(0)
            state = await self._superstep(state)
        if not state.inbox and not state.pending:
            self._warn_of_waiting_fan_ins(state)
        return state

    def _warn_of_waiting_fan_ins(self, state: RunState) -> None:
        for name, by_source in state.collected.items():
            group = self.graph.fan_ins.get(name)
            absent = [source for source in group.sources if not by_source.get(source)] if group else []
            if group and absent:
                self.warn(
                    f"the fan-in to {group.target!r} is still waiting for {', '.join(map(repr, absent))}: the run has "
                    "ended and what it collected stays in the state for a further turn"
                )

    async def enter(self, state: RunState) -> RunState:
        """Write the checkpoint a turn starts from."""
        if self.log is None:
            return state
        kept = {
            name: await executor.on_checkpoint_save()
            for name, executor in self.executors.items()
            if executor.keeps_state
        }
        state = state._replace(executor_states={**state.executor_states, **kept})
        asked = tuple(request for name, request in state.pending.items() if name not in state.inherited)
        self.tell_checkpoint(await self.save(state, asked=asked), state.iteration)
        return state

    async def _superstep(self, state: RunState) -> RunState:
        self._reached = number = state.iteration + 1
        self._tell("superstep_started", number)
        self._tell_status(state)
        todo = self._take_plan() or await self._plan(state)
        if len(todo.deliveries) == 1:
            [(name, deliveries)] = todo.deliveries.items()
            outcomes = [await self._run_executor(name, deliveries, state, number)]
        else:
            outcomes = await self._side_by_side(todo, state, number)
        step = advance(state, todo, outcomes, self.graph)
        after, unrouted = await self._look_ahead(step.state)
        if self.log is not None and self.journal is not None and self.journal.rows:
            after = after._replace(usage=add_usage(after.usage, self.journal.usage()))
        if self._used:
            after, self._used = after._replace(usage=add_usage(after.usage, [self._used])), {}
        due = self._overdue(after) if after.pending else []
        checkpoint = await self.save(after, asked=step.requests, final=not after.inbox and not due)
        self._announce(step, outcomes, checkpoint, number, (*todo.warnings, *step.warnings, *unrouted))
        return await self._deliver_defaults(after, due) if due else after

    def _overdue(self, state: RunState) -> list[PendingRequest]:
        return overdue(state, self.graph)

    async def _deliver_defaults(self, state: RunState, due: Sequence[PendingRequest]) -> RunState:
        """Time is up for some requests: their defaults are recorded as decisions, and queued."""
        done = defaulted(state, due, self.graph)
        self._planned = None
        saved = await self.save(done.state, decisions=done.decisions, keep_calls=True)
        self.decided += done.decisions
        self.tell_checkpoint(saved, state.iteration)
        for text in done.notices:
            self.warn(text, state.iteration)
        return done.state

    def _take_plan(self) -> Plan | None:
        """What the look-ahead found. Its warnings belong to the superstep that delivers something."""
        planned, self._planned = self._planned, None
        if isinstance(planned, Exception):
            raise planned
        return planned

    async def _plan(self, state: RunState) -> Plan:
        unconditional = self.graph.unconditional
        routes: list[Sequence[Route]] = []
        for message in state.inbox:
            known = unconditional.get(message.source_id)
            routes.append(await self._route(message) if known is None else known)
        return plan(state, routes, self.graph)

    async def _look_ahead(self, state: RunState) -> tuple[RunState, tuple[str, ...]]:
        """Route what was sent; if it reaches nobody the run is over, and this checkpoint is the last."""
        if not state.inbox:
            return state, ()
        try:
            planned = await self._plan(state)
        except Exception as error:
            # A condition's failure is the next superstep's: what this one did is saved first.
            self._planned = error
            return state, ()
        if planned.deliveries:
            self._planned = planned
            return state, ()
        return state._replace(inbox=(), collected=planned.collected), planned.warnings

    async def _route(self, message: WorkflowMessage) -> list[Route]:
        """Ask the edges, some of which choose by the message."""
        routes: list[Route] = []
        for group in self.graph.leaving.get(message.source_id, ()):
            try:
                routes.append((group, await group.select(message.data)))
            except Exception as error:
                error.add_note(f"while choosing where a message of {message.source_id!r} goes ({group.kind})")
                raise
        return routes

    # --- executors ---------------------------------------------------------------------------------------------------

    async def _side_by_side(self, todo: Plan, state: RunState, number: int) -> list[Outcome]:
        """Run the receiving executors at once; the first that fails ends the others."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._run_executor(name, deliveries, state, number))
                    for name, deliveries in todo.deliveries.items()
                ]
        except BaseExceptionGroup as failures:
            first, *others = failures.exceptions
            for other in others:
                first.add_note(f"another executor failed in the same superstep: {other!r}")
            raise first from None
        return [task.result() for task in tasks]

    async def _run_executor(self, name: str, deliveries: Sequence[Delivery], state: RunState, number: int) -> Outcome:
        executor, scene = self.executors[name], self._scene(name, state, number)
        effects: list[Effects] = []
        for delivery in deliveries:
            index = len(effects)
            shown = self._shown(delivery.data)
            self.emit(WorkflowEvent("executor_invoked", shown, name, number, self.run_id, index))
            try:
                done = await self._attempts(executor, scene, delivery, index)
            except Exception as error:
                self._tell_failure(error, name, number, index)
                raise
            results = [data for data, _ in done.sent]
            results += done.yielded
            shown = self._shown(results)
            self.emit(WorkflowEvent("executor_completed", shown, name, number, self.run_id, index))
            effects.append(done)
            if done.state:
                # One executor's messages are handled one after the other, so it sees what it wrote itself.
                scene = scene._replace(shared={**scene.shared, **done.state})
        kept = await executor.on_checkpoint_save() if self.log is not None and executor.keeps_state else None
        return Outcome(name, effects, kept)

    def _shown(self, data: Any) -> Any:
        """Whoever reads events while the superstep goes on must not be able to change what is on its way."""
        return isolated(data) if self.streaming else data

    def _scene(self, name: str, state: RunState, number: int) -> DeliveryScene:
        return DeliveryScene(
            self.run_id,
            name,
            number,
            self.streaming,
            state.shared,
            state.used_request_ids,
            name in self.graph.leaving,
            self.graph.is_silent(name),
            self.path,
            partial(Runner._tell_live, self, name, number),
            self.emit,
        )

    def _attempts(
        self, executor: Executor, scene: DeliveryScene, delivery: Delivery, index: int
    ) -> Coroutine[Any, Any, Effects]:
        if executor.retry is None and executor.timeout is None:
            return self._attempt(executor, scene, delivery, index)
        return attempted(executor, partial(self._attempt, executor, scene, delivery, index), scene.live)

    async def _attempt(self, executor: Executor, scene: DeliveryScene, delivery: Delivery, index: int) -> Effects:
        """Call the handler. What a failed attempt did is dropped with its effects; recorded calls stay recorded."""
        effects = Effects()
        ctx: WorkflowContext[Any, Any] = WorkflowContext(scene, effects, delivery.sources, index)
        scope = self._scope(scene, index)
        before = _cancellations()
        token = at_work.set(ctx)
        try:
            with entered(scope):
                await executor.execute(isolated(delivery.data), ctx)
                if self.journal is not None and self.journal.rows and isinstance(scope, DeliveryScope):
                    await scope.finish()
                return effects
        except asyncio.CancelledError as error:
            if _cancellations() > before:
                raise
            # Nobody cancels this run: what was cancelled is something that the handler waited for.
            raise AwaitedCancelled(executor.id) from error
        finally:
            at_work.reset(token)

    def _scope(self, scene: DeliveryScene, index: int) -> DeliveryScope | PassingScope:
        live = scene.live
        assert live is not None
        if self.journal is not None:
            return self.journal.scope(delivery_scope(scene, index), live)
        # Without a journal of its own a run must not write into the one of a run around it; what it uses is counted.
        around = active_scope.get()
        return PassingScope(self.run_id, live, around.count if type(around) is PassingScope else self._count)

    def _count(self, used: Usage) -> None:
        self._used = add_usage(self._used, [used])

    # --- saving ------------------------------------------------------------------------------------------------------

    async def save(
        self,
        state: RunState,
        *,
        asked: Sequence[PendingRequest] = (),
        decisions: Sequence[Decision] = (),
        delivers: Sequence[str] = (),
        final: bool = False,
        keep_calls: bool = False,
    ) -> WorkflowCheckpoint | None:
        """Make `state` durable. If this fails the run stops: no success without a record."""
        if self.log is None:
            return None
        draft = CheckpointDraft(
            graph_signature_hash=self.graph.signature,
            iteration_count=state.iteration,
            content=content_of(state, self.graph),
            metadata=metadata_of(state),
            run_state=standing(state).value,
            pending=[self._summary(request) for request in asked],
            usage=state.usage,
            decisions=decisions,
            delivers=delivers,
            final=final,
            keep_calls=keep_calls,
        )
        checkpoint = await self.log.save(draft)
        if self.journal is not None and not keep_calls:
            self.journal.clear()
        return checkpoint

    def _summary(self, request: PendingRequest) -> PendingSummary:
        return PendingSummary(
            request_id=request.request_id,
            source_executor_id=request.source_executor_id,
            request_type=request.request_type,
            response_type=request.response_type,
            asked_at=request.asked_at,
            shown=Codec(self.graph.registry).encode_text(request.data, path=f"request {request.request_id}"),
            deadline=request.deadline,
        )

    # --- announcing --------------------------------------------------------------------------------------------------

    def _announce(
        self,
        step: Advance,
        outcomes: Sequence[Outcome],
        checkpoint: WorkflowCheckpoint | None,
        number: int,
        warnings: Sequence[str],
    ) -> None:
        for text in warnings:
            self.warn(text, number)
        self.tell_checkpoint(checkpoint, number)
        for outcome in outcomes:
            for effects in outcome.effects:
                for event in effects.events or ():
                    self._adopt(event, outcome.executor_id, number)
        for output in step.outputs:
            if not output.shown:
                self.tell_output(output)
        for request in step.requests:
            self.tell_request(request, number)
        self._tell("superstep_completed", number, checkpoint)

    def tell_checkpoint(self, checkpoint: WorkflowCheckpoint | None, number: int) -> None:
        if checkpoint is not None:
            self.emit(WorkflowEvent("checkpoint", checkpoint, None, number, self.run_id, checkpoint.sequence))

    def tell_output(self, output: RecordedOutput) -> None:
        self.emit(
            WorkflowEvent(
                output.kind,
                isolated(output.data),
                executor_id=output.executor_id,
                iteration=output.iteration,
                run_id=self.run_id,
                event_id=f"{self.run_id}:{output.event_id}",
            )
        )

    def tell_request(self, request: PendingRequest, number: int) -> None:
        source = self.graph.slots.get(request.source_executor_id)
        self.emit(
            WorkflowEvent(
                "request_info",
                isolated(request.data),
                executor_id=request.source_executor_id,
                iteration=number,
                run_id=self.run_id,
                request_id=request.request_id,
                source_executor_id=request.source_executor_id,
                request_type=type(request.data),
                response_type=response_hint(request, source.prototype if source else None),
                event_id=f"{self.run_id}:{request.request_id}",
            )
        )

    def begin(self, state: RunState) -> None:
        self._reached = state.iteration
        self.emit(WorkflowEvent("started", run_id=self.run_id, event_id=f"{self.run_id}:{self._reached}:started"))

    def warn(self, text: str, number: int | None = None) -> None:
        logger.warning("run %s: %s", self.run_id, text)
        ordinal = self._ordinal("warning", None, number)
        self.emit(WorkflowEvent("warning", text, iteration=number, run_id=self.run_id, ordinal=ordinal))

    def tell_state(self, state: WorkflowRunState, details: Any = None) -> None:
        self._status = state
        event_id = f"{self.run_id}:{self._reached}:status:{state.value}"
        self.emit(WorkflowEvent("status", state=state, run_id=self.run_id, details=details, event_id=event_id))

    def _tell_status(self, state: RunState) -> None:
        now = WorkflowRunState.IN_PROGRESS_PENDING_REQUESTS if state.pending else WorkflowRunState.IN_PROGRESS
        if now is not self._status:
            self.tell_state(now)

    def _tell(self, kind: str, number: int | None, data: Any = None) -> None:
        self.emit(WorkflowEvent(kind, data, None, number, self.run_id))

    def _tell_failure(self, error: Exception, name: str, number: int, index: int) -> None:
        self.emit(
            WorkflowEvent(
                "executor_failed",
                executor_id=name,
                iteration=number,
                run_id=self.run_id,
                ordinal=index,
                details=WorkflowErrorDetails.of(error, name),
            )
        )
        error.add_note(f"in executor {name!r}, superstep {number} of run {self.run_id!r}")

    def _tell_live(self, name: str, number: int, kind: str, data: Any, details: Mapping[str, Any] | None) -> None:
        provisional = kind == "update"
        if provisional:
            if self.graph.is_silent(name):
                return
            kind = self.graph.kind_of(name)
        text = details.get("message") if kind == "warning" and details else None
        self.emit(
            WorkflowEvent(
                kind,
                data if text is None else text,
                executor_id=name,
                iteration=number,
                run_id=self.run_id,
                ordinal=self._ordinal(kind, name, number),
                details=details,
                provisional=provisional,
            )
        )

    def _adopt(self, event: WorkflowEvent, name: str, number: int) -> None:
        event.run_id = self.run_id
        event.iteration = number
        event.executor_id = event.executor_id or name
        event.ordinal = self._ordinal(event.type, event.executor_id, number)
        self.emit(event)

    def _ordinal(self, kind: str, name: str | None, number: int | None) -> int:
        """Which one of its kind in this superstep, so that no two events have one id and a replay gives the same."""
        before = self._repeats.get((kind, name, number), 0)
        self._repeats[kind, name, number] = before + 1
        return before


def is_blocked(state: RunState) -> bool:
    """Does a call in doubt have to be decided by a person before anything may run?"""
    return bool(state.pending) and any(isinstance(request.data, CallInDoubt) for request in state.pending.values())


def standing(state: RunState) -> WorkflowRunState:
    """How the run stands, from what is really queued and pending."""
    if state.inbox and not is_blocked(state):
        return WorkflowRunState.IN_PROGRESS_PENDING_REQUESTS if state.pending else WorkflowRunState.IN_PROGRESS
    return WorkflowRunState.IDLE_WITH_PENDING_REQUESTS if state.pending else WorkflowRunState.IDLE


def response_hint(request: PendingRequest, source: Executor | None) -> Any:
    """The annotation of the answer that was asked for, found again by its name; the name itself if it is unknown."""
    found = response_type_of(request, source)
    return request.response_type if found is None else found


def _cancellations() -> int:
    """How often somebody has asked the task at work to stop."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0
