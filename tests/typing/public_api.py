"""Checked by mypy, never run: what the public names mean to a type checker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

from stepwell import (
    AgentResponse,
    AgentResponseUpdate,
    AgentSession,
    Case,
    CheckpointStorage,
    Default,
    Executor,
    FunctionExecutor,
    InMemoryCheckpointStorage,
    ResponseStream,
    RunInfo,
    SupportsAgentRun,
    Workflow,
    WorkflowAgent,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowContext,
    WorkflowEvent,
    WorkflowRunResult,
    WorkflowRunState,
    executor,
    handler,
    response_handler,
)


class Worker(Executor):
    """Handlers keep their types, whichever way they are decorated."""

    @handler
    async def work(self, task: str, ctx: WorkflowContext[int, str]) -> None:
        await ctx.send_message(len(task))
        await ctx.yield_output(task)
        await ctx.send_message(task)  # type: ignore[arg-type]
        await ctx.yield_output(5)  # type: ignore[arg-type]

    @handler(input=int | str, output=int)
    async def explicit(self, task: int | str, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(1)
        await ctx.yield_output("anything, since nothing was declared")

    @handler
    async def bare(self, task: None, ctx: WorkflowContext) -> None:
        await ctx.send_message("anything")
        await ctx.request_info("sure?", bool)
        assert_type(ctx.get_source_executor_id(), str)
        assert_type(ctx.run_id, str)
        assert_type(ctx.superstep, int)
        assert_type(ctx.is_streaming(), bool)
        assert_type(ctx.idempotency_key, str)

    @response_handler
    async def answered(self, original_request: str, response: bool, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(1)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None: ...


@executor(id="upper")
async def upper(text: str, ctx: WorkflowContext[str]) -> None:
    await ctx.send_message(text.upper())


@executor
def double(number: int) -> int:
    return 2 * number


assert_type(upper, FunctionExecutor)
assert_type(double, FunctionExecutor)


def building(storage: InMemoryCheckpointStorage) -> Workflow:
    worker = Worker("worker")
    builder = WorkflowBuilder(start_executor=worker, checkpoint_storage=storage, output_from=[worker])
    assert_type(builder.add_edge(worker, upper, condition=lambda message: bool(message)), WorkflowBuilder)
    assert_type(builder.add_chain([worker, lambda: Worker("other")]), WorkflowBuilder)
    builder.add_switch_case_edge_group(worker, [Case(lambda message: message > 1, target=upper), Default(double)])
    assert_type(builder.with_checkpointing(storage).set_start_executor(worker), WorkflowBuilder)
    return builder.build()


async def running(workflow: Workflow, storage: CheckpointStorage) -> None:
    result = await workflow.run("task")
    assert_type(result, WorkflowRunResult)
    assert_type(result.get_outputs(), list[Any])
    assert_type(result.get_request_info_events(), list[WorkflowEvent])
    assert_type(result.get_final_state(), WorkflowRunState)
    assert_type(result.status_timeline(), list[WorkflowEvent])
    assert_type(result.run_id, str)
    assert_type(result[0], WorkflowEvent)

    stream = workflow.run("task", stream=True, run_id="r", checkpoint_storage=storage)
    _ = assert_type(stream, ResponseStream)
    async for event in stream:
        assert_type(event, WorkflowEvent)
        assert_type(event.state, WorkflowRunState | None)
        assert_type(event.request_id, Any)
    assert_type(await stream, WorkflowRunResult)
    assert_type(await stream.get_final_response(), WorkflowRunResult)
    async with workflow.run(checkpoint_id="c", responses={"q": "a"}, stream=True) as opened:
        _ = assert_type(opened, ResponseStream)
    _ = assert_type(workflow.run_streaming("task"), ResponseStream)
    _ = assert_type(workflow.run_stream_from_checkpoint("c", storage), ResponseStream)
    assert_type(await workflow.recover(storage), list[WorkflowRunResult])

    workflow.run("task", max_iterations="many")  # type: ignore[call-overload]
    workflow.run("task", on_divergence="ignore")  # type: ignore[call-overload]


async def storing(storage: InMemoryCheckpointStorage) -> None:
    accepted: CheckpointStorage = storage
    latest = await accepted.get_latest(workflow_name="w", run_id="r")
    assert_type(latest, WorkflowCheckpoint | None)
    assert_type(await accepted.list_checkpoints(), list[WorkflowCheckpoint])
    assert_type(await accepted.list_checkpoint_ids(run_id="r"), list[str])
    assert_type(await accepted.delete("c"), bool)
    assert_type(await storage.list_runs(state="IDLE"), list[RunInfo])
    if latest is not None:
        assert_type(latest.state, Mapping[str, Any])
        assert_type(latest.to_dict(), dict[str, Any])
        assert_type(WorkflowCheckpoint.from_dict(latest.to_dict()), WorkflowCheckpoint)


class OwnStorage:
    """The six methods are enough for a type checker, too."""

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        raise NotImplementedError

    async def list_checkpoints(
        self, *, workflow_name: str | None = None, run_id: str | None = None
    ) -> list[WorkflowCheckpoint]:
        return []

    async def list_checkpoint_ids(self, *, workflow_name: str | None = None, run_id: str | None = None) -> list[str]:
        return []

    async def get_latest(
        self, *, workflow_name: str | None = None, run_id: str | None = None
    ) -> WorkflowCheckpoint | None:
        return None

    async def delete(self, checkpoint_id: str) -> bool:
        return False


WorkflowBuilder(checkpoint_storage=OwnStorage())


async def asked(workflow: Workflow, session: AgentSession) -> SupportsAgentRun:
    """A workflow as an agent: what is awaited and what is streamed."""
    agent = workflow.as_agent("desk", description="Writes")
    assert_type(agent, WorkflowAgent)
    assert_type(await agent.run("hello", session=session), AgentResponse)
    async for update in agent.run(responses={"request": True}, session=session, stream=True):
        assert_type(update, AgentResponseUpdate)
    return agent
