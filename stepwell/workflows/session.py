"""One `run` under way: its executors, its lease, and a clean end however it is left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stepwell.checkpointing.checkpoint import new_id
from stepwell.checkpointing.codec import Codec
from stepwell.checkpointing.journal import Journal
from stepwell.checkpointing.storage.protocol import Decision, RunInfo, RunLog, RunStorage
from stepwell.errors import (
    InvalidRunArguments,
    RunBusy,
    RunTakenOver,
    StorageClosed,
    UnknownRequest,
    UnknownRun,
    WorkflowBusy,
    WorkflowCheckpointException,
    WorkflowConvergenceException,
    listed,
)
from stepwell.workflows.answers import get_ready
from stepwell.workflows.context import RunKwargs, run_kwargs
from stepwell.workflows.events import WorkflowErrorDetails, WorkflowEvent, WorkflowRunResult, WorkflowRunState
from stepwell.workflows.executor import Executor
from stepwell.workflows.graph import Graph
from stepwell.workflows.message import isolated
from stepwell.workflows.opening import LIMIT, Opener, Opening, RunRequest, target_run
from stepwell.workflows.runner import Runner, standing
from stepwell.workflows.stream import Channel, StreamedRun
from stepwell.workflows.superstep import RunState

logger = logging.getLogger(__name__)

_under_way: dict[tuple[object, str], RunSession] = {}
"""The runs of this process, by storage and run id."""


@dataclass(slots=True)
class WaitingRun:
    """A run without storage that waits for an answer; reads like the log of a run that was found in one."""

    run_id: str
    state: RunState
    executors: Mapping[str, Executor]
    kept: Mapping[str, Any]
    decisions: dict[str, Decision] = field(default_factory=dict)
    calls: tuple[Any, ...] = ()

    @property
    def info(self) -> RunInfo:
        return RunInfo(self.run_id, "", standing(self.state).value)

    @property
    def asked(self) -> set[str]:
        """The requests it has asked, answered or not."""
        return {*self.state.pending, *self.decisions}


class RunSession:
    """What one call of `Workflow.run` does, from opening to the last event."""

    def __init__(
        self,
        graph: Graph,
        request: RunRequest,
        *,
        storage: RunStorage | None,
        waiting: dict[str, WaitingRun],
        streaming: bool,
        kwargs: RunKwargs,
    ) -> None:
        self.graph = graph
        self.request = request
        self.storage = storage
        self.waiting = waiting
        self.streaming = streaming
        self.kwargs = kwargs
        self.streamed: StreamedRun | None = None
        self._events: list[WorkflowEvent] = []
        self._channel: Channel | None = None
        self._held: tuple[Executor, ...] = ()
        self._key: tuple[object, str] | None = None

    async def main(self, channel: Channel | None = None) -> WorkflowRunResult:
        """Open, run, and leave everything in order."""
        self._channel = channel
        token = run_kwargs.set(self.kwargs) if run_kwargs.get() is not self.kwargs else None
        try:
            return await self._run(*await self._open())
        finally:
            self._let_go()
            if token is not None:
                run_kwargs.reset(token)

    # --- opening -----------------------------------------------------------------------------------------------------

    async def _open(self) -> tuple[Opening, Mapping[str, Executor]]:
        self.request.check()
        opener = Opener(self.graph, self.request)
        opener.check_message()
        await get_ready((self.request.responses or {}).values())
        if self.storage is None:
            return await self._open_in_memory(opener)
        run_id, branch = await target_run(self.request, self.storage)
        if branch is None and run_id is None:
            run_id = new_id()
        if run_id is not None:
            await self._take_place(self.storage.identity, run_id)
        await self._take_executors()
        executors = self._fresh_executors()  # A factory that fails must not do so with the run's lease in hand.
        opening = await opener.open(self.storage, run_id, branch)
        self._register(self.storage.identity, opening.run_id)
        return opening, executors

    async def _open_in_memory(self, opener: Opener) -> tuple[Opening, Mapping[str, Executor]]:
        if self.request.checkpoint_id is not None:
            raise InvalidRunArguments(
                f"checkpoint {self.request.checkpoint_id!r} can't be resumed without its storage; "
                "pass checkpoint_storage=… or build the workflow with it"
            )
        run_id = self._named_in_memory()
        if run_id is not None:
            await self._take_place(id(self.waiting), run_id)
        await self._take_executors()
        waiting = self.waiting.get(run_id) if run_id is not None else None
        if waiting is None and not self.request.has_message:
            assert run_id is not None
            raise UnknownRun(
                run_id, "nothing waits under that id in this process; runs that end need a storage to last"
            )
        if waiting is None:
            opening = opener.start(run_id or new_id())
            executors = self._fresh_executors()
        else:
            opening = self._go_on(opener, waiting)
            executors = waiting.executors
            await _put_back(waiting)
        self._register(id(self.waiting), opening.run_id)
        return opening, executors

    def _go_on(self, opener: Opener, waiting: WaitingRun) -> Opening:
        log: Any = waiting
        opening = opener.go_on(log, waiting.state)
        waiting.decisions.update({decision.request_id: decision for decision in opening.decisions})
        return replace(opening, log=None)

    def _named_in_memory(self) -> str | None:
        if self.request.run_id is not None or not self.request.responses:
            return self.request.run_id
        owners = {run.run_id for run in self.waiting.values() if run.asked.issuperset(self.request.responses)}
        if not owners:
            known = tuple(key for run in self.waiting.values() for key in run.state.pending)
            for request_id in self.request.responses:
                if not any(request_id in run.asked for run in self.waiting.values()):
                    raise UnknownRequest(request_id, known)
            raise InvalidRunArguments("the responses belong to different runs; answer one run at a time")
        if len(owners) > 1:
            raise InvalidRunArguments(f"runs {listed(sorted(owners))} asked under the same ids; say which by run_id=…")
        return owners.pop()

    async def _take_place(self, identity: object, run_id: str) -> None:
        """A half-read stream of this run that nobody reads any more makes way; one that is at work does not."""
        while (other := _under_way.get((identity, run_id))) is not None:
            streamed = other.streamed
            if streamed is None or not (streamed.is_leaving or streamed.is_parked):
                raise RunBusy(run_id, "this process")
            if not streamed.is_leaving:
                streamed.loss = RunTakenOver(run_id, "a later run() in this process, while nobody read its stream")
            await streamed.stop()

    async def _take_executors(self) -> None:
        while (busy := self._busy()) is not None:
            streamed = busy.streamed
            if streamed is None or not streamed.is_leaving:
                raise WorkflowBusy(self.graph.name, tuple(slot.id for slot in self.graph.exclusive))
            await streamed.stop()
        self._held = tuple(slot.prototype for slot in self.graph.exclusive)
        for executor in self._held:
            vars(executor)["_stepwell_session"] = self

    def _busy(self) -> RunSession | None:
        holders = (vars(slot.prototype).get("_stepwell_session") for slot in self.graph.exclusive)
        return next((holder for holder in holders if holder is not None and holder is not self), None)

    def _fresh_executors(self) -> Mapping[str, Executor]:
        return {name: slot.make() for name, slot in self.graph.slots.items()}

    def _register(self, identity: object, run_id: str) -> None:
        self._key = (identity, run_id)
        _under_way[self._key] = self

    def _let_go(self) -> None:
        if self._key is not None and _under_way.get(self._key) is self:
            del _under_way[self._key]
        for executor in self._held:
            vars(executor).pop("_stepwell_session", None)
        self._held = ()

    # --- running -----------------------------------------------------------------------------------------------------

    async def _run(self, opening: Opening, executors: Mapping[str, Executor]) -> WorkflowRunResult:
        runner = self._runner(opening, executors)
        beginning = self._begin(runner, opening)
        del opening  # What a run began with need not be kept for as long as it lasts.
        try:
            state = await runner.run(await beginning)
            await self._finish(runner, state)
        except asyncio.CancelledError:
            await _leave(runner.log, WorkflowRunState.CANCELLED, "interrupted")
            runner.tell_state(WorkflowRunState.CANCELLED)
            raise
        except Exception as error:
            await self._fail(runner, error)
            raise
        except (SystemExit, KeyboardInterrupt):
            # The process is told to end, which is no failure of the run; should it live on, the run can be resumed.
            await _leave(runner.log, None, None)
            raise
        # The run has been saved and given back: whoever leaves at this event misses nothing.
        self._let_go()
        final = standing(state)
        runner.tell_state(final)
        outputs = [output.data for output in state.turn_outputs if output.kind == "output"]
        return WorkflowRunResult(
            self._events, run_id=runner.run_id, state=final, outputs=outputs, usage=dict(state.usage)
        )

    def _emit(self, event: WorkflowEvent) -> None:
        if not event.provisional:
            self._events.append(event)
        if self._channel is not None:
            self._channel.put(event)

    def _runner(self, opening: Opening, executors: Mapping[str, Executor]) -> Runner:
        runner = Runner(
            self.graph,
            opening.run_id,
            executors,
            self._emit,
            log=opening.log,
            streaming=self.streaming,
            max_iterations=self.request.max_iterations or self.graph.max_iterations,
        )
        if self._channel is not None:
            runner.demand = self._channel.demand
        if opening.log is not None:
            rows = {row.call_id: row for row in opening.calls}
            runner.journal = Journal(opening.log, Codec(self.graph.registry), self.request.on_divergence, rows)
        return runner

    async def _begin(self, runner: Runner, opening: Opening) -> RunState:
        """Everything between opening and the first superstep."""
        runner.begin(opening.state)
        runner.tell_state(WorkflowRunState.STARTED)
        for warning in opening.warnings:
            runner.warn(warning)
        state = opening.state
        if opening.restore and opening.action != "report":
            await _restore(runner.executors, state)
        if opening.action == "enter":
            state = await runner.enter(state)
        elif opening.action == "deliver":
            await self._deliver(runner, opening)
        elif opening.newly_doubted:
            saved = await runner.save(state, asked=opening.newly_doubted, keep_calls=True)
            runner.tell_checkpoint(saved, state.iteration)
        if opening.action != "enter":
            self._tell_again(runner, opening)
        elif opening.is_new and opening.action == "enter":
            for request in state.pending.values():
                runner.tell_request(request, state.iteration)
        return state

    async def _deliver(self, runner: Runner, opening: Opening) -> None:
        """Record the answers, with the checkpoint that holds them; the superstep that was cut off keeps its calls."""
        if opening.entered_from is not None:
            await runner.enter(opening.entered_from)
        if runner.journal is not None:
            for call_id, verdict in opening.verdicts.items():
                await runner.journal.decide(call_id, verdict)
        state = opening.state
        saved = await runner.save(state, decisions=opening.decisions, delivers=opening.delivers, keep_calls=True)
        runner.tell_checkpoint(saved, state.iteration)

    def _tell_again(self, runner: Runner, opening: Opening) -> None:
        """Whoever resumes may not have heard what was announced before."""
        state = opening.state
        if opening.action == "report":
            for output in state.turn_outputs:
                runner.tell_output(output)
        for request in state.pending.values():
            runner.tell_request(request, state.iteration)

    async def _finish(self, runner: Runner, state: RunState) -> None:
        run_id = runner.run_id
        if runner.log is not None:
            await runner.log.release(state=standing(state).value)
        elif state.pending:
            kept = {
                name: isolated(await executor.on_checkpoint_save())
                for name, executor in runner.executors.items()
                if executor.keeps_state
            }
            before = self.waiting.get(run_id)
            decisions = before.decisions if before else {}
            decisions.update({decision.request_id: decision for decision in runner.decided})
            self.waiting[run_id] = WaitingRun(run_id, state, runner.executors, kept, decisions)
        else:
            self.waiting.pop(run_id, None)

    async def _fail(self, runner: Runner, error: Exception) -> None:
        limit = isinstance(error, WorkflowConvergenceException)
        stopped_by = LIMIT if limit else f"{type(error).__name__}: {error}"[:2000]
        problem = await _leave(runner.log, WorkflowRunState.FAILED, stopped_by)
        if problem is not None:
            error.add_note(f"the run could not be marked as failed: {problem}")
        details = WorkflowErrorDetails.of(error)
        runner.emit(WorkflowEvent("failed", run_id=runner.run_id, details=details))
        runner.tell_state(WorkflowRunState.FAILED, details)


async def _leave(log: RunLog | None, state: WorkflowRunState | None, stopped_by: str | None) -> Exception | None:
    """Give the run back, even while being cancelled; without a state it stays as its last checkpoint says.

    If the medium is gone the lease dies with this process.
    """
    if log is None:
        return None
    release = asyncio.ensure_future(log.release(state=state and state.value, stopped_by=stopped_by))
    while not release.done():
        try:
            await asyncio.shield(release)
        except asyncio.CancelledError:
            continue
        except WorkflowCheckpointException:
            break
    error = release.exception()
    if error is None:
        return None
    if isinstance(error, StorageClosed):
        logger.debug("run %s was left after its storage was closed, which gave it back", log.run_id)
        return None
    if not isinstance(error, WorkflowCheckpointException):
        raise error
    logger.error("run %s could not be released: %s", log.run_id, error)
    return error


async def _restore(executors: Mapping[str, Executor], state: RunState) -> None:
    for name, kept in state.executor_states.items():
        executor = executors.get(name)
        if executor is not None and kept is not None:
            await executor.on_checkpoint_restore(kept)


async def _put_back(waiting: WaitingRun) -> None:
    """Executor instances may have served another run meanwhile."""
    for name, kept in waiting.kept.items():
        await waiting.executors[name].on_checkpoint_restore(isolated(kept))
