"""langgraph, with its asynchronous SQLite saver where something is to be kept (WAL, `synchronous=FULL`, `sync`)."""

from __future__ import annotations

import asyncio
import operator
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measure import Figures, Stopwatch, bytes_under, contend, paragraphs, peak_megabytes, tenths


class Count(TypedDict):
    value: int


class Talk(TypedDict):
    value: int
    messages: Annotated[list[dict[str, str]], operator.add]


class Spread(TypedDict):
    leaves: int
    done: Annotated[list[int], operator.add]


@asynccontextmanager
async def saver(directory: str | None) -> AsyncIterator[AsyncSqliteSaver | None]:
    if directory is None:
        yield None
        return
    async with AsyncSqliteSaver.from_conn_string(str(Path(directory, "langgraph.db"))) as storage:
        await storage.setup()
        await storage.conn.execute("pragma synchronous = full")
        yield storage


def counting(limit: int, seconds: float, stamps: list[float], storage: AsyncSqliteSaver | None = None) -> Any:
    async def count(state: Count) -> Command[str]:
        stamps.append(time.perf_counter())
        if seconds:
            await asyncio.sleep(seconds)
        value = state["value"] + 1
        return Command(update={"value": value}, goto="count" if value < limit else END)

    graph = StateGraph(Count)
    graph.add_node("count", count, destinations=("count", END))
    graph.add_edge(START, "count")
    return graph.compile(checkpointer=storage)


def talking(texts: list[str], stamps: list[float], storage: AsyncSqliteSaver, fail_at: int | None = None) -> Any:
    async def speak(state: Talk) -> Command[str]:
        stamps.append(time.perf_counter())
        value = state["value"]
        if value == fail_at:
            raise RuntimeError("the process ended here")
        update = {"value": value + 1, "messages": [{"role": "user", "text": texts[value]}]}
        return Command(update=update, goto="speak" if value + 1 < len(texts) else END)

    graph = StateGraph(Talk)
    graph.add_node("speak", speak, destinations=("speak", END))
    graph.add_edge(START, "speak")
    return graph.compile(checkpointer=storage)


def config(thread: str, limit: int = 10**6) -> Any:
    return {"configurable": {"thread_id": thread}, "recursion_limit": limit}


def durability(directory: str | None) -> dict[str, Any]:
    return {"durability": "sync"} if directory else {}


async def counter(*, supersteps: int, seconds: float = 0.0) -> Figures:
    await counting(100, 0, []).ainvoke({"value": 0}, config("warm"))
    graph = counting(supersteps, seconds, [])
    with Stopwatch() as watch:
        result = await graph.ainvoke({"value": 0}, config("run"))
    assert result["value"] == supersteps
    return {"seconds": watch.seconds}


async def fan_out(*, leaves: int, seconds: float, directory: str | None = None) -> Figures:
    async def leaf(state: Spread) -> dict[str, Any]:
        await asyncio.sleep(seconds)
        return {"done": [1]}

    def spread(state: Spread) -> list[Send]:
        return [Send("leaf", state) for _ in range(state["leaves"])]

    async def root(state: Spread) -> dict[str, Any]:
        return {}

    async def join(state: Spread) -> dict[str, Any]:
        return {}

    graph = StateGraph(Spread)
    for name, node in (("root", root), ("leaf", leaf), ("join", join)):
        graph.add_node(name, node)
    graph.add_edge(START, "root")
    graph.add_conditional_edges("root", spread, ["leaf"])
    graph.add_edge("leaf", "join")
    times = []
    async with saver(directory) as storage:
        compiled = graph.compile(checkpointer=storage)
        for number in range(3):
            with Stopwatch() as watch:
                result = await compiled.ainvoke(
                    {"leaves": leaves, "done": []}, config(f"run-{number}"), **durability(directory)
                )
            assert len(result["done"]) == leaves
            times.append(watch.seconds)
    return {"seconds": min(times)}


async def many_runs(*, runs: int, supersteps: int, seconds: float, directory: str | None = None) -> Figures:
    async with saver(directory) as storage:
        graph = counting(supersteps, seconds, [], storage)
        with Stopwatch() as watch:
            await asyncio.gather(
                *(graph.ainvoke({"value": 0}, config(f"run-{n}"), **durability(directory)) for n in range(runs))
            )
    return {"seconds": watch.seconds}


async def durable_counter(*, directory: str, supersteps: int) -> Figures:
    stamps: list[float] = []
    async with saver(directory) as storage:
        await counting(supersteps, 0, stamps, storage).ainvoke({"value": 0}, config("run"), durability="sync")
    return tenths(stamps)


async def chat(*, directory: str, supersteps: int) -> Figures:
    stamps: list[float] = []
    async with saver(directory) as storage:
        assert storage is not None
        graph = talking(paragraphs(supersteps), stamps, storage)
        await graph.ainvoke({"value": 0, "messages": []}, config("run"), durability="sync")
    return {**tenths(stamps), "bytes": bytes_under(directory)}


async def newest(*, directory: str, checkpoints: int) -> Figures:
    await durable_counter(directory=directory, supersteps=checkpoints)
    times = []
    async with saver(directory) as storage:
        assert storage is not None
        for _ in range(20):
            with Stopwatch() as watch:
                latest = await storage.aget_tuple(config("run"))
            assert latest is not None
            times.append(watch.seconds)
    return {"ms": min(times) * 1e3}


async def prepare_resume(*, directory: str, supersteps: int) -> Figures:
    async with saver(directory) as storage:
        assert storage is not None
        graph = talking([*paragraphs(supersteps), "one more"], [], storage, fail_at=supersteps)
        try:
            await graph.ainvoke({"value": 0, "messages": []}, config("run"), durability="sync")
        except RuntimeError:
            return {}
    raise AssertionError("the run was meant to fail")


async def resume(*, directory: str, supersteps: int) -> Figures:
    texts = [*paragraphs(supersteps), "one more"]
    before = peak_megabytes()
    with Stopwatch() as watch:
        async with saver(directory) as storage:
            assert storage is not None
            result = await talking(texts, [], storage).ainvoke(None, config("run"), durability="sync")
    assert len(result["messages"]) == supersteps + 1
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
