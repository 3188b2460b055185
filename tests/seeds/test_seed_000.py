"""Seed 000, "How to implement durable agents": its snippets that need no agent, completed with what they presuppose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepwell import (
    Executor,
    InMemoryCheckpointStorage,
    SQLiteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    handler,
    response_handler,
)


class CounterExecutor(Executor):
    def __init__(self, id: str):
        super().__init__(id=id)
        self._counter = 0

    @handler
    async def count(self, _: None, ctx: WorkflowContext[None]) -> None:
        self._counter += 1
        print(f"counter = {self._counter}")
        if self._counter < 5:
            await ctx.send_message(None)
        else:
            await ctx.yield_output(self._counter)

    async def on_checkpoint_save(self) -> dict:  # type: ignore[type-arg]
        return {"counter": self._counter}

    async def on_checkpoint_restore(self, state: dict) -> None:  # type: ignore[type-arg]
        self._counter = state.get("counter", 0)


async def test_the_counter_without_a_self_edge_is_told_which_edge_is_missing() -> None:
    storage = InMemoryCheckpointStorage()

    builder = WorkflowBuilder(start_executor=CounterExecutor("counter"), checkpoint_storage=storage)
    workflow = builder.build()

    result = await workflow.run(None)
    [warning] = [event.data for event in result if event.type == "warning"]
    assert "add_edge(counter, counter)" in warning


async def test_the_counter_with_its_self_edge_counts_to_five(capsys: pytest.CaptureFixture[str]) -> None:
    storage = InMemoryCheckpointStorage()
    counter = CounterExecutor("counter")

    builder = WorkflowBuilder(start_executor=counter, checkpoint_storage=storage).add_edge(counter, counter)
    workflow = builder.build()

    assert (await workflow.run(None)).get_outputs() == [5]
    assert capsys.readouterr().out.splitlines() == [f"counter = {number}" for number in range(1, 6)]


async def test_the_counter_resumes_where_it_was() -> None:
    storage = InMemoryCheckpointStorage()

    def build() -> Workflow:
        counter = CounterExecutor("counter")
        return WorkflowBuilder(start_executor=counter, checkpoint_storage=storage).add_edge(counter, counter).build()

    workflow = build()
    async for event in workflow.run(None, stream=True):
        if event.type == "superstep_completed" and event.iteration == 3:
            break

    cp = await storage.get_latest(workflow_name=workflow.name)
    assert cp is not None
    assert cp.state["_executor_state"] == {"counter": {"counter": 3}}
    result = await build().run(checkpoint_id=cp.checkpoint_id, stream=True)
    assert result.get_outputs() == [5]


@dataclass
class ComputeTask:
    remaining_numbers: list[int]


class WorkerExecutor(Executor):
    def __init__(self, id: str):
        super().__init__(id=id)
        self._pairs: dict[int, list[tuple[int, int]]] = {}

    @handler
    async def compute(self, task: ComputeTask, ctx: WorkflowContext[ComputeTask]):  # type: ignore[no-untyped-def]
        n = task.remaining_numbers.pop(0)
        self._pairs[n] = [(i, n // i) for i in range(1, n) if n % i == 0]

        if task.remaining_numbers:
            await ctx.send_message(task)
        else:
            await ctx.yield_output(self._pairs)

    async def on_checkpoint_save(self) -> dict:  # type: ignore[type-arg]
        return {"pairs": self._pairs}

    async def on_checkpoint_restore(self, state: dict) -> None:  # type: ignore[type-arg]
        self._pairs = state.get("pairs", {})


FACTORS = {4: [(1, 4), (2, 2)], 5: [(1, 5)], 6: [(1, 6), (2, 3), (3, 2)]}


def computing(storage: Any) -> Workflow:
    worker = WorkerExecutor("worker")
    return WorkflowBuilder(start_executor=worker, checkpoint_storage=storage).add_edge(worker, worker).build()


@pytest.mark.parametrize("superstep", [0, 1, 2, 3])
async def test_a_dict_with_int_keys_and_tuples_survives_a_resume(superstep: int, tmp_path: Path) -> None:
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        await computing(storage).run(ComputeTask([4, 5, 6]), run_id="r")
        ids = await storage.list_checkpoint_ids(run_id="r")
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        result = await computing(storage).run(checkpoint_id=ids[superstep])
        assert result.get_outputs() == [FACTORS]


# --- the production pattern, with an executor in the place of the orchestration ---------------------------------------


@dataclass
class PlanReviewRequest:
    request_id: str
    plan: str

    def approve(self) -> str:
        return "approved"


class Orchestrator(Executor):
    @handler
    async def draft(self, task: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.request_info(PlanReviewRequest("review-1", f"plan for {task}"), str, request_id="review-1")

    @response_handler
    async def reviewed(self, request: PlanReviewRequest, verdict: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{request.plan}: {verdict}")


def build_workflow(storage: Any) -> Workflow:
    return WorkflowBuilder(start_executor=Orchestrator("orchestrator"), checkpoint_storage=storage).build()


STORAGES: list[Callable[[Path], Any]] = [
    lambda _: InMemoryCheckpointStorage(),
    lambda path: SQLiteCheckpointStorage(path / "runs.db"),
]


@pytest.mark.parametrize("make", STORAGES, ids=["memory", "sqlite"])
async def test_pause_for_a_review_leave_at_the_last_status_and_resume_with_the_answer(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    async with make(tmp_path) as storage:
        workflow = build_workflow(storage)
        plan_request = None
        async for ev in workflow.run("Draft a brief...", stream=True):
            if ev.type == "request_info" and isinstance(ev.data, PlanReviewRequest):
                plan_request = ev.data
            if ev.state == WorkflowRunState.IDLE_WITH_PENDING_REQUESTS:
                break

        checkpoint = await storage.get_latest(workflow_name=workflow.name)
        assert plan_request is not None

        workflow = build_workflow(storage)
        approval = plan_request.approve()
        results, states = [], []
        async for ev in workflow.run(
            checkpoint_id=checkpoint.checkpoint_id, stream=True, responses={plan_request.request_id: approval}
        ):
            states.append(ev.state)
            if ev.type == "output":
                results.append(ev.data)

        assert (results, states[-1]) == (["plan for Draft a brief...: approved"], WorkflowRunState.IDLE)
