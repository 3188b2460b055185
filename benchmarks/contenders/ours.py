"""stepwell, through its public API, with SQLite where something is to be kept."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from stepwell import CheckpointStorage, Executor, Workflow, WorkflowBuilder, WorkflowContext, handler

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measure import Figures, Stopwatch, bytes_under, contend, paragraphs, peak_megabytes, tenths

NAME = "benchmark"


class Counter(Executor):
    """Sends itself the next number until it has reached the limit."""

    def __init__(self, limit: int, seconds: float = 0.0) -> None:
        super().__init__("counter")
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

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class Chat(Executor):
    """Adds one message of a kilobyte to its history per superstep; `wrap` makes the message of a text."""

    def __init__(self, texts: list[str], wrap: Callable[[str], Any], fail_at: int | None = None) -> None:
        super().__init__("chat")
        self.texts = texts
        self.wrap = wrap
        self.fail_at = fail_at
        self.messages: list[Any] = []
        self.stamps: list[float] = []

    @handler
    async def speak(self, value: int, ctx: WorkflowContext[int, int]) -> None:
        self.stamps.append(time.perf_counter())
        if value == self.fail_at:
            raise RuntimeError("the process ended here")
        self.messages.append(self.wrap(self.texts[value]))
        if value + 1 < len(self.texts):
            await ctx.send_message(value + 1)
        else:
            await ctx.yield_output(len(self.messages))

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"messages": self.messages}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.messages = state.get("messages", [])


class Relay(Executor):
    """Keeps nothing: the conversation itself goes round, one message longer each time."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__("relay")
        self.texts = texts
        self.stamps: list[float] = []

    @handler
    async def speak(self, conversation: list, ctx: WorkflowContext[list, int]) -> None:  # type: ignore[type-arg]
        self.stamps.append(time.perf_counter())
        conversation.append(message(self.texts[len(conversation)]))
        if len(conversation) < len(self.texts):
            await ctx.send_message(conversation)
        else:
            await ctx.yield_output(len(conversation))


class Root(Executor):
    @handler
    async def begin(self, message: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(message)


class Leaf(Executor):
    def __init__(self, number: int, seconds: float) -> None:
        super().__init__(f"leaf-{number}")
        self.seconds = seconds

    @handler
    async def wait(self, message: int, ctx: WorkflowContext[int]) -> None:
        await asyncio.sleep(self.seconds)
        await ctx.send_message(message)


class Join(Executor):
    @handler
    async def gather(self, messages: list[int], ctx: WorkflowContext[int, int]) -> None:
        await ctx.yield_output(len(messages))


def message(text: str) -> Any:
    from stepwell import Message

    return Message("user", [text])


def plain(text: str) -> dict[str, str]:
    return {"role": "user", "text": text}


@asynccontextmanager
async def sqlite(directory: str | None) -> AsyncIterator[CheckpointStorage | None]:
    if directory is None:
        yield None
        return
    from stepwell import SQLiteCheckpointStorage

    async with SQLiteCheckpointStorage(Path(directory, "stepwell.db")) as storage:
        yield storage


def loop(executor: Executor | Callable[[], Executor], storage: CheckpointStorage | None = None) -> Workflow:
    builder = WorkflowBuilder(start_executor=executor, name=NAME, max_iterations=10**6, checkpoint_storage=storage)
    return builder.add_edge(executor, executor).build()


async def counter(*, supersteps: int, seconds: float = 0.0) -> Figures:
    await loop(Counter(100)).run(0)
    workflow = loop(Counter(supersteps, seconds))
    with Stopwatch() as watch:
        result = await workflow.run(0)
    assert result.get_outputs() == [supersteps]
    return {"seconds": watch.seconds}


async def fan_out(*, leaves: int, seconds: float, directory: str | None = None) -> Figures:
    times = []
    async with sqlite(directory) as storage:
        for _ in range(3):
            root, join = Root("root"), Join("join")
            spread = [Leaf(number, seconds) for number in range(leaves)]
            builder = WorkflowBuilder(start_executor=root, name=NAME, checkpoint_storage=storage)
            workflow = builder.add_fan_out_edges(root, spread).add_fan_in_edges(spread, join).build()
            with Stopwatch() as watch:
                result = await workflow.run(1)
            assert result.get_outputs() == [leaves]
            times.append(watch.seconds)
    return {"seconds": min(times)}


async def many_runs(*, runs: int, supersteps: int, seconds: float, directory: str | None = None) -> Figures:
    async with sqlite(directory) as storage:
        workflow = loop(lambda: KeptCounter(supersteps, seconds), storage)
        with Stopwatch() as watch:
            results = await asyncio.gather(*(workflow.run(0) for _ in range(runs)))
    assert all(result.get_outputs() == [supersteps] for result in results)
    return {"seconds": watch.seconds}


async def durable_counter(*, directory: str, supersteps: int) -> Figures:
    executor = KeptCounter(supersteps)
    async with sqlite(directory) as storage:
        await loop(executor, storage).run(0)
    return tenths(executor.stamps)


async def _talk(executor: Chat | Relay, directory: str, first: Any) -> Figures:
    message("importing its class is not part of it")
    async with sqlite(directory) as storage:
        await loop(executor, storage).run(first)
    return {**tenths(executor.stamps), "bytes": bytes_under(directory)}


async def chat(*, directory: str, supersteps: int) -> Figures:
    return await _talk(Chat(paragraphs(supersteps), message), directory, 0)


async def relay(*, directory: str, supersteps: int) -> Figures:
    return await _talk(Relay(paragraphs(supersteps)), directory, [])


async def plain_state(*, directory: str, supersteps: int) -> Figures:
    return await _talk(Chat(paragraphs(supersteps), plain), directory, 0)


async def newest(*, directory: str, checkpoints: int) -> Figures:
    times = []
    async with sqlite(directory) as storage:
        assert storage is not None
        await loop(KeptCounter(checkpoints), storage).run(0)
        for _ in range(50):
            with Stopwatch() as watch:
                latest = await storage.get_latest(workflow_name=NAME)
            assert latest is not None
            times.append(watch.seconds)
    return {"ms": min(times) * 1e3}


async def prepare_resume(*, directory: str, supersteps: int) -> Figures:
    texts = [*paragraphs(supersteps), "one more"]
    async with sqlite(directory) as storage:
        try:
            await loop(Chat(texts, message, fail_at=supersteps), storage).run(0, run_id="run")
        except Exception as error:
            if "the process ended here" not in str(error):
                raise
            return {}
    raise AssertionError("the run was meant to fail")


async def resume(*, directory: str, supersteps: int) -> Figures:
    executor = Chat([*paragraphs(supersteps), "one more"], message)
    message("importing its class is not part of it")
    before = peak_megabytes()
    with Stopwatch() as watch:
        async with sqlite(directory) as storage:
            result = await loop(executor, storage).run(run_id="run")
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
            "relay": relay,
            "plain_state": plain_state,
            "newest": newest,
            "prepare_resume": prepare_resume,
            "resume": resume,
            "many_durable_runs": many_runs,
            "durable_fan_out": fan_out,
        }
    )
