"""agent-framework-core, with its file storage where something is to be kept (it does not fsync)."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from agent_framework import Executor, FileCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext, handler

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measure import Figures, Stopwatch, bytes_under, contend, paragraphs, peak_megabytes, tenths

NAME = "benchmark"


class Counter(Executor):
    """Sends itself the next number until it has reached the limit."""

    def __init__(self, limit: int, seconds: float = 0.0) -> None:
        super().__init__(id="counter")
        self.limit = limit
        self.seconds = seconds
        self.stamps: list[float] = []

    @handler
    async def count(self, value: int, ctx: WorkflowContext[int, int]) -> None:
        self.stamps.append(time.perf_counter())
        if self.seconds:
            await asyncio.sleep(self.seconds)
        if value + 1 < self.limit:
            await ctx.send_message(value + 1)
        else:
            await ctx.yield_output(value + 1)


class KeptCounter(Counter):
    """A counter whose value is its state."""

    value = 0

    @handler
    async def count(self, value: int, ctx: WorkflowContext[int, int]) -> None:
        self.value = value
        await super().count(value, ctx)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"value": self.value}


class Chat(Executor):
    """Adds one message of a kilobyte to its history per superstep."""

    def __init__(self, texts: list[str], fail_at: int | None = None) -> None:
        super().__init__(id="chat")
        self.texts = texts
        self.fail_at = fail_at
        self.messages: list[dict[str, str]] = []
        self.stamps: list[float] = []

    @handler
    async def speak(self, value: int, ctx: WorkflowContext[int, int]) -> None:
        self.stamps.append(time.perf_counter())
        if value == self.fail_at:
            raise RuntimeError("the process ended here")
        self.messages.append({"role": "user", "text": self.texts[value]})
        if value + 1 < len(self.texts):
            await ctx.send_message(value + 1)
        else:
            await ctx.yield_output(len(self.messages))

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"messages": self.messages}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.messages = state["messages"]


class Root(Executor):
    @handler
    async def begin(self, message: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(message)


class Leaf(Executor):
    def __init__(self, number: int, seconds: float) -> None:
        super().__init__(id=f"leaf-{number}")
        self.seconds = seconds

    @handler
    async def wait(self, message: int, ctx: WorkflowContext[int]) -> None:
        await asyncio.sleep(self.seconds)
        await ctx.send_message(message)


class Join(Executor):
    @handler
    async def gather(self, messages: list[int], ctx: WorkflowContext[int, int]) -> None:
        await ctx.yield_output(len(messages))


def loop(executor: Executor, *, directory: str | None = None, limit: int = 10**6) -> Workflow:
    storage = FileCheckpointStorage(directory) if directory else None
    builder = WorkflowBuilder(start_executor=executor, name=NAME, max_iterations=limit, checkpoint_storage=storage)
    return builder.add_edge(executor, executor).build()


async def counter(*, supersteps: int, seconds: float = 0.0) -> Figures:
    await loop(Counter(100)).run(0)
    workflow = loop(Counter(supersteps, seconds))
    with Stopwatch() as watch:
        result = await workflow.run(0)
    assert result.get_outputs() == [supersteps]
    return {"seconds": watch.seconds}


async def fan_out(*, leaves: int, seconds: float, directory: str | None = None) -> Figures:
    storage = FileCheckpointStorage(directory) if directory else None
    times = []
    for _ in range(3):
        root, join = Root(id="root"), Join(id="join")
        spread = [Leaf(number, seconds) for number in range(leaves)]
        builder = WorkflowBuilder(start_executor=root, name=NAME, checkpoint_storage=storage)
        workflow = builder.add_fan_out_edges(root, spread).add_fan_in_edges(spread, join).build()
        with Stopwatch() as watch:
            result = await workflow.run(1)
        assert result.get_outputs() == [leaves]
        times.append(watch.seconds)
    return {"seconds": min(times)}


async def many_runs(*, runs: int, supersteps: int, seconds: float, directory: str | None = None) -> Figures:
    """An executor instance serves one run here, so each run has a workflow of its own; building them is not timed."""
    workflows = [loop(KeptCounter(supersteps, seconds), directory=directory) for _ in range(runs)]
    with Stopwatch() as watch:
        await asyncio.gather(*(workflow.run(0) for workflow in workflows))
    return {"seconds": watch.seconds}


async def durable_counter(*, directory: str, supersteps: int) -> Figures:
    executor = KeptCounter(supersteps)
    await loop(executor, directory=directory).run(0)
    return tenths(executor.stamps)


async def chat(*, directory: str, supersteps: int) -> Figures:
    executor = Chat(paragraphs(supersteps))
    await loop(executor, directory=directory).run(0)
    return {**tenths(executor.stamps), "bytes": bytes_under(directory)}


async def newest(*, directory: str, checkpoints: int) -> Figures:
    await loop(KeptCounter(checkpoints), directory=directory).run(0)
    storage, times = FileCheckpointStorage(directory), []
    for _ in range(10):
        with Stopwatch() as watch:
            latest = await storage.get_latest(workflow_name=NAME)
        assert latest is not None
        times.append(watch.seconds)
    return {"ms": min(times) * 1e3}


async def prepare_resume(*, directory: str, supersteps: int) -> Figures:
    texts = [*paragraphs(supersteps), "one more"]
    try:
        await loop(Chat(texts, fail_at=supersteps), directory=directory).run(0)
    except RuntimeError:
        return {}
    raise AssertionError("the run was meant to fail")


async def resume(*, directory: str, supersteps: int) -> Figures:
    executor = Chat([*paragraphs(supersteps), "one more"])
    before = peak_megabytes()
    with Stopwatch() as watch:
        workflow = loop(executor, directory=directory)
        latest = await FileCheckpointStorage(directory).get_latest(workflow_name=NAME)
        assert latest is not None
        result = await workflow.run(checkpoint_id=latest.checkpoint_id)
    assert result.get_outputs() == [supersteps + 1]
    return {"ms": watch.seconds * 1e3, "peak_mb": peak_megabytes() - before}


if __name__ == "__main__":
    contend(
        {
            "counter": counter,
            "fan_out": fan_out,
            "many_runs": many_runs,
            "durable_counter": durable_counter,
            "chat": chat,
            "newest": newest,
            "prepare_resume": prepare_resume,
            "resume": resume,
            "many_durable_runs": many_runs,
            "durable_fan_out": fan_out,
        }
    )
