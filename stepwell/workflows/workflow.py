"""Workflow: a definition that can be run any number of times."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from stepwell.checkpointing.journal import OnDivergence
from stepwell.checkpointing.storage.plain import run_storage
from stepwell.checkpointing.storage.protocol import CheckpointStorage
from stepwell.checkpointing.storage.recording import DAMAGED
from stepwell.errors import InvalidRunArguments, RunBusy
from stepwell.workflows.context import NO_KWARGS, RunKwargs
from stepwell.workflows.deadlines import is_overdue
from stepwell.workflows.events import WorkflowRunResult, WorkflowRunState
from stepwell.workflows.executor import Executor
from stepwell.workflows.graph import Graph
from stepwell.workflows.opening import MISSING, RunRequest
from stepwell.workflows.session import RunSession, WaitingRun
from stepwell.workflows.stream import ResponseStream

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from stepwell.agents.workflow_agent import WorkflowAgent

logger = logging.getLogger(__name__)

_INTERRUPTED = frozenset(
    {
        WorkflowRunState.STARTED.value,
        WorkflowRunState.IN_PROGRESS.value,
        WorkflowRunState.IN_PROGRESS_PENDING_REQUESTS.value,
        WorkflowRunState.CANCELLED.value,
    }
)


class Workflow:
    """A graph of executors. Made by a builder; a run of it is started, resumed and answered with `run`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._waiting: dict[str, WaitingRun] = {}

    @property
    def name(self) -> str:
        return self.graph.name

    @property
    def description(self) -> str | None:
        return self.graph.description

    @property
    def graph_signature_hash(self) -> str:
        return self.graph.signature

    @property
    def max_iterations(self) -> int | None:
        return self.graph.max_iterations

    @property
    def checkpoint_storage(self) -> CheckpointStorage | None:
        return self.graph.storage

    @property
    def executors(self) -> dict[str, Executor]:
        """One executor of each kind, to look at; runs make their own where factories or agents were given."""
        return {name: slot.prototype for name, slot in self.graph.slots.items()}

    def get_executors_list(self) -> list[Executor]:
        return list(self.executors.values())

    def get_start_executor(self) -> Executor:
        return self.graph.slots[self.graph.start].prototype

    @property
    def input_types(self) -> tuple[Any, ...]:
        return self.get_start_executor().input_types

    @property
    def output_types(self) -> tuple[Any, ...]:
        kinds = (e.workflow_output_types for n, e in self.executors.items() if self.graph.kind_of(n) == "output")
        return tuple(dict.fromkeys(hint for hints in kinds for hint in hints))

    @overload
    def run(
        self,
        message: Any = ...,
        *,
        stream: Literal[False] = ...,
        run_id: str | None = ...,
        responses: Mapping[str, Any] | None = ...,
        checkpoint_id: str | None = ...,
        checkpoint_storage: CheckpointStorage | None = ...,
        branch: bool = ...,
        new_turn: bool = ...,
        max_iterations: int | None = ...,
        on_divergence: OnDivergence = ...,
        strict_graph: bool = ...,
        function_invocation_kwargs: Mapping[str, Any] | None = ...,
        client_kwargs: Mapping[str, Any] | None = ...,
    ) -> Awaitable[WorkflowRunResult]: ...

    @overload
    def run(
        self,
        message: Any = ...,
        *,
        stream: Literal[True],
        run_id: str | None = ...,
        responses: Mapping[str, Any] | None = ...,
        checkpoint_id: str | None = ...,
        checkpoint_storage: CheckpointStorage | None = ...,
        branch: bool = ...,
        new_turn: bool = ...,
        max_iterations: int | None = ...,
        on_divergence: OnDivergence = ...,
        strict_graph: bool = ...,
        function_invocation_kwargs: Mapping[str, Any] | None = ...,
        client_kwargs: Mapping[str, Any] | None = ...,
    ) -> ResponseStream: ...

    def run(
        self,
        message: Any = MISSING,
        *,
        stream: bool = False,
        run_id: str | None = None,
        responses: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        branch: bool = False,
        new_turn: bool = False,
        max_iterations: int | None = None,
        on_divergence: OnDivergence = "error",
        strict_graph: bool = False,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Start, resume, answer or continue a run.

        `run_id` is start-or-resume: a crashed program recovers by running the same line again. `checkpoint_id` resumes
        that checkpoint (an older one starts a branch), `responses` answers pending requests. With `stream` the events
        come as they happen; otherwise await the result.
        """
        request = RunRequest(
            message=message,
            run_id=run_id,
            responses=responses,
            checkpoint_id=checkpoint_id,
            branch=branch,
            new_turn=new_turn,
            max_iterations=max_iterations,
            on_divergence=on_divergence,
            strict_graph=strict_graph,
        )
        kwargs = NO_KWARGS
        if function_invocation_kwargs or client_kwargs:
            kwargs = RunKwargs(dict(function_invocation_kwargs or {}), dict(client_kwargs or {}))
        return self._start(request, checkpoint_storage, stream=stream, kwargs=kwargs)

    @overload
    def branch(
        self,
        checkpoint_id: str,
        *,
        state: Mapping[str, Any] | None = ...,
        run_id: str | None = ...,
        stream: Literal[False] = ...,
        checkpoint_storage: CheckpointStorage | None = ...,
        responses: Mapping[str, Any] | None = ...,
    ) -> Awaitable[WorkflowRunResult]: ...

    @overload
    def branch(
        self,
        checkpoint_id: str,
        *,
        state: Mapping[str, Any] | None = ...,
        run_id: str | None = ...,
        stream: Literal[True],
        checkpoint_storage: CheckpointStorage | None = ...,
        responses: Mapping[str, Any] | None = ...,
    ) -> ResponseStream: ...

    def branch(
        self,
        checkpoint_id: str,
        *,
        state: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        stream: bool = False,
        checkpoint_storage: CheckpointStorage | None = None,
        responses: Mapping[str, Any] | None = None,
    ) -> Any:
        """Start a new run from any checkpoint, with changed shared state and fresh calls; nothing is overwritten."""
        request = RunRequest(
            run_id=run_id, checkpoint_id=checkpoint_id, branch=True, responses=responses, state_edits=dict(state or {})
        )
        return self._start(request, checkpoint_storage, stream=stream, kwargs=NO_KWARGS)

    def run_streaming(self, message: Any, **options: Any) -> ResponseStream:
        """The same as `run(message, stream=True)`."""
        return self.run(message, stream=True, **options)

    def run_stream_from_checkpoint(
        self, checkpoint_id: str, checkpoint_storage: CheckpointStorage | None = None, **options: Any
    ) -> ResponseStream:
        """The same as `run(checkpoint_id=…, checkpoint_storage=…, stream=True)`."""
        return self.run(checkpoint_id=checkpoint_id, checkpoint_storage=checkpoint_storage, stream=True, **options)

    async def recover(self, storage: CheckpointStorage | None = None) -> list[WorkflowRunResult]:
        """Resume every interrupted run of this workflow, one after the other; for use at start-up.

        So are runs that wait for an answer that was recorded meanwhile, or past its deadline.
        Runs held by a live process are left to it; those that failed or were cancelled on purpose are left alone, and
        so are damaged ones, with a warning.
        """
        where = storage or self.graph.storage
        runs = run_storage(where, self.name) if where is not None else None
        if runs is None:
            raise InvalidRunArguments("recover() needs a storage; pass one or build the workflow with it")
        results: list[WorkflowRunResult] = []
        for info in await runs.list_runs(workflow_name=self.name):
            if info.state == DAMAGED:
                logger.warning("run %s is damaged and stays as it is: %s", info.run_id, info.stopped_by)
                continue
            interrupted = info.state in _INTERRUPTED and info.stopped_by != "cancel_run"
            is_late = any(is_overdue(request.deadline) for request in info.pending_requests)
            if not interrupted and not info.undelivered_answers and not is_late:
                continue
            if info.latest_checkpoint_id is None:
                continue  # cut off before its message was recorded: only whoever sent that can start it
            try:
                results.append(await self.run(run_id=info.run_id, checkpoint_storage=where))
            except RunBusy:
                continue
            except Exception:  # somebody's handler: the run is marked as failed, and the others must not wait for it
                logger.exception("run %s could not be recovered", info.run_id)
        return results

    def discard(self, run_id: str) -> bool:
        """Forget a run without storage that waits for an answer; was there one?"""
        return self._waiting.pop(run_id, None) is not None

    def as_agent(self, name: str | None = None, *, description: str | None = None) -> WorkflowAgent:
        """This workflow in the shape of an agent."""
        from stepwell.agents.workflow_agent import WorkflowAgent

        return WorkflowAgent(self, name=name, description=description)

    def _start(self, request: RunRequest, storage: CheckpointStorage | None, *, stream: bool, kwargs: RunKwargs) -> Any:
        where = storage or self.graph.storage
        session = RunSession(
            self.graph,
            request,
            storage=run_storage(where, self.name) if where is not None else None,
            waiting=self._waiting,
            streaming=stream,
            kwargs=kwargs,
        )
        if not stream:
            return session.main()
        response = ResponseStream(session.main)
        session.streamed = response.run
        return response

    def __repr__(self) -> str:
        return f"Workflow({self.name!r}, {len(self.graph.slots)} executors)"
