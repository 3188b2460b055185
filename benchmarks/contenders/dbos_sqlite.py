"""dbos on SQLite: a durable step is its nearest thing to a superstep; it keeps results, not states."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dbos import DBOS

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measure import Figures, Stopwatch, bytes_under, contend, paragraphs, tenths

stamps: list[float] = []
texts: list[str] = []


@DBOS.step()
async def add_one(value: int) -> int:
    stamps.append(time.perf_counter())
    return value + 1


@DBOS.workflow()
async def counting(limit: int) -> int:
    value = 0
    while value < limit:
        value = await add_one(value)
    return value


@DBOS.step()
async def speak(number: int) -> str:
    stamps.append(time.perf_counter())
    return texts[number]


@DBOS.workflow()
async def talking(limit: int) -> int:
    messages = [await speak(number) for number in range(limit)]
    return len(messages)


@DBOS.step()
async def wait(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@DBOS.workflow()
async def waiting(supersteps: int, seconds: float) -> int:
    for _ in range(supersteps):
        await wait(seconds)
    return supersteps


@contextmanager
def launched(directory: str) -> Iterator[None]:
    url = f"sqlite:///{Path(directory, 'dbos.sqlite')}"
    DBOS(config={"name": "benchmark", "system_database_url": url, "run_admin_server": False, "log_level": "ERROR"})
    logging.getLogger("dbos").setLevel(logging.CRITICAL)
    DBOS.launch()
    try:
        yield
    finally:
        DBOS.destroy()


async def durable_counter(*, directory: str, supersteps: int) -> Figures:
    with launched(directory):
        assert await counting(supersteps) == supersteps
    return tenths(stamps)


async def chat(*, directory: str, supersteps: int) -> Figures:
    texts.extend(paragraphs(supersteps))
    with launched(directory):
        assert await talking(supersteps) == supersteps
    return {**tenths(stamps), "bytes": bytes_under(directory)}


async def many_durable_runs(*, directory: str, runs: int, supersteps: int, seconds: float) -> Figures:
    with launched(directory), Stopwatch() as watch:
        await asyncio.gather(*(waiting(supersteps, seconds) for _ in range(runs)))
    return {"seconds": watch.seconds}


if __name__ == "__main__":
    contend({"durable_counter": durable_counter, "chat": chat, "many_durable_runs": many_durable_runs})
