"""Executors and storages that several tests of the engine use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from stepwell import (
    Executor,
    InMemoryCheckpointStorage,
    ResponseStream,
    Workflow,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowContext,
    WorkflowEvent,
    WorkflowRunResult,
    handler,
    response_handler,
)
from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.lease import Fence
from stepwell.checkpointing.storage.records import CheckpointWrite


class PowerLoss(Exception):
    """The lights go out."""


class Relay(Executor):
    """Sends on what it gets, with its own name added."""

    @handler
    async def relay(self, text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(f"{text}>{self.id}")


class Printer(Executor):
    """Yields what it gets, with its own name added."""

    @handler
    async def print(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{text}>{self.id}")


class Counter(Executor):
    """Counts to `end` by sending to itself, a superstep for each number, and yields the last."""

    def __init__(self, id: str = "counter", *, end: int = 5) -> None:
        super().__init__(id)
        self.end = end
        self.seen: list[int] = []

    @handler
    async def count(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        self.seen.append(number)
        if number < self.end:
            await ctx.send_message(number + 1)
        else:
            await ctx.yield_output(number)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"seen": self.seen}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Asker(Executor):
    """Asks the outside about each text it gets, and yields the answer."""

    @handler
    async def ask(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.request_info(f"{text}?", str)

    @response_handler
    async def answered(self, question: str, answer: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{question} {answer}")


class Fragile(Executor):
    """Yields what it gets, unless it is broken."""

    def __init__(self, id: str = "fragile") -> None:
        super().__init__(id)
        self.is_broken = True
        self.handled: list[str] = []

    @handler
    async def handle(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        self.handled.append(text)
        if self.is_broken:
            raise PowerLoss(text)
        await ctx.yield_output(text)


class FailingStorage(InMemoryCheckpointStorage):
    """Fails once at the n-th checkpoint (1 is the entry), before or after it was written."""

    def __init__(self, *, at: int, after: bool = False) -> None:
        super().__init__()
        self.at = at
        self.after = after
        self.writes = 0

    async def _write_checkpoint(self, write: CheckpointWrite) -> None:
        self.writes += 1
        if self.writes == self.at and not self.after:
            raise PowerLoss
        await super()._write_checkpoint(write)
        if self.writes == self.at:
            raise PowerLoss


class ObservedStorage(InMemoryCheckpointStorage):
    """Notes in `diary` when a checkpoint has become durable, a call was recorded, and the lease was given back."""

    def __init__(self) -> None:
        super().__init__()
        self.diary: list[str] = []

    async def _write_checkpoint(self, write: CheckpointWrite) -> None:
        await asyncio.sleep(0)
        await super()._write_checkpoint(write)
        self.diary.append(f"durable {write.supersteps}")
        if write.final:
            self.diary.append("released")

    async def _record_call(self, fence: Fence, row: CallRecord, supersedes: Sequence[str]) -> None:
        await super()._record_call(fence, row, supersedes)
        self.diary.append(f"call {row.name}")

    async def _release(self, fence: Fence, state: str | None, stopped_by: str | None) -> None:
        await super()._release(fence, state, stopped_by)
        self.diary.append("released")


def counting(storage: InMemoryCheckpointStorage | None = None, *, end: int = 5, **options: Any) -> Workflow:
    """A workflow that counts, made of a factory, so that it is as good as one in a new process."""
    slot = lambda: Counter(end=end)  # noqa: E731
    return WorkflowBuilder(start_executor=slot, checkpoint_storage=storage, **options).add_edge(slot, slot).build()


def asking(storage: InMemoryCheckpointStorage | None = None, **options: Any) -> Workflow:
    return WorkflowBuilder(start_executor=lambda: Asker("asker"), checkpoint_storage=storage, **options).build()


def alone(executor: Any, storage: Any = None, **options: Any) -> Workflow:
    return WorkflowBuilder(start_executor=executor, checkpoint_storage=storage, **options).build()


def chained(executors: Sequence[Any], storage: Any = None, **options: Any) -> Workflow:
    builder = WorkflowBuilder(start_executor=executors[0], checkpoint_storage=storage, **options)
    return builder.add_chain(executors).build()


def warnings_in(events: Iterable[WorkflowEvent]) -> list[str]:
    return [event.data for event in events if event.type == "warning"]


def types_in(events: Iterable[WorkflowEvent]) -> list[str]:
    return [event.type for event in events]


def request_ids(result: WorkflowRunResult) -> list[str]:
    return [str(event.request_id) for event in result.get_request_info_events()]


async def only_request(result: WorkflowRunResult) -> str:
    [request_id] = request_ids(result)
    return request_id


async def take_until(stream: ResponseStream, event_type: str) -> WorkflowEvent:
    """Read the stream up to the first event of this type."""
    async for event in stream:
        if event.type == event_type:
            return event
    raise AssertionError(f"no {event_type} event came")


async def checkpoints_of(storage: InMemoryCheckpointStorage, run_id: str) -> list[WorkflowCheckpoint]:
    return await storage.list_checkpoints(run_id=run_id)


async def state_of(storage: InMemoryCheckpointStorage, run_id: str) -> str:
    [state] = [run.state for run in await storage.list_runs() if run.run_id == run_id]
    return state


async def holder_of(storage: InMemoryCheckpointStorage, run_id: str) -> str | None:
    [holder] = [run.holder for run in await storage.list_runs() if run.run_id == run_id]
    return holder
