"""The least code that does the same: asyncio alone, or one SQLite insert of the new bytes with `synchronous=FULL`."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measure import Figures, Stopwatch, bytes_under, contend, paragraphs, peak_megabytes, tenths

# --- engine -----------------------------------------------------------------------------------------------------------


async def counter(*, supersteps: int, seconds: float = 0.0) -> Figures:
    async def step(value: int) -> int:
        if seconds:
            await asyncio.sleep(seconds)
        return value + 1

    value = 0
    with Stopwatch() as watch:
        while value < supersteps:
            value = await asyncio.create_task(step(value))
    return {"seconds": watch.seconds}


async def fan_out(*, leaves: int, seconds: float, **_: Any) -> Figures:
    times = []
    for _ in range(3):
        with Stopwatch() as watch:
            await asyncio.gather(*(asyncio.sleep(seconds) for _ in range(leaves)))
        times.append(watch.seconds)
    return {"seconds": min(times)}


async def many_runs(*, runs: int, supersteps: int, seconds: float) -> Figures:
    async def run() -> None:
        for _ in range(supersteps):
            await asyncio.sleep(seconds)

    with Stopwatch() as watch:
        await asyncio.gather(*(run() for _ in range(runs)))
    return {"seconds": watch.seconds}


# --- storage ----------------------------------------------------------------------------------------------------------


def database(directory: str) -> sqlite3.Connection:
    connection = sqlite3.connect(Path(directory, "raw.db"), isolation_level=None, check_same_thread=False)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute(
        "create table if not exists row (run text, sequence integer, body text, primary key (run, sequence))"
    )
    return connection


INSERT = "insert into row values (?, ?, ?)"


def durable_counter(*, directory: str, supersteps: int) -> Figures:
    stamps = []
    with closing(database(directory)) as connection:
        for number in range(supersteps):
            stamps.append(time.perf_counter())
            connection.execute(INSERT, ("run", number, json.dumps({"value": number})))
    return tenths(stamps)


def chat(*, directory: str, supersteps: int) -> Figures:
    texts, stamps = paragraphs(supersteps), []
    with closing(database(directory)) as connection:
        for number, text in enumerate(texts):
            stamps.append(time.perf_counter())
            connection.execute(INSERT, ("run", number, json.dumps({"role": "user", "text": text})))
    return {**tenths(stamps), "bytes": bytes_under(directory)}


def plain_state(*, directory: str, supersteps: int) -> Figures:
    """One `json.dumps` of the whole state, at the sizes that the first and the last tenth of such a run have."""
    state = [{"role": "user", "text": text} for text in paragraphs(supersteps)]

    def dumps_us(length: int) -> float:
        times = []
        for _ in range(7):
            with Stopwatch() as watch:
                json.dumps({"messages": state[:length]})
            times.append(watch.seconds * 1e6)
        return min(times)

    return {"first_us": dumps_us(max(1, supersteps // 20)), "last_us": dumps_us(supersteps - supersteps // 20)}


def newest(*, directory: str, checkpoints: int) -> Figures:
    with closing(database(directory)) as connection:
        connection.execute("begin")
        connection.executemany(
            INSERT, (("run", number, json.dumps({"value": number})) for number in range(checkpoints))
        )
        connection.execute("commit")
        times = []
        for _ in range(50):
            with Stopwatch() as watch:
                [body] = connection.execute("select body from row where run = 'run' order by sequence desc limit 1")
                json.loads(body[0])
            times.append(watch.seconds)
    return {"ms": min(times) * 1e3}


def prepare_resume(*, directory: str, supersteps: int) -> Figures:
    chat(directory=directory, supersteps=supersteps)
    return {}


def resume(*, directory: str, supersteps: int) -> Figures:
    before = peak_megabytes()
    with Stopwatch() as watch, closing(database(directory)) as connection:
        rows = connection.execute("select body from row where run = 'run' order by sequence").fetchall()
        messages = [json.loads(body) for (body,) in rows]
        connection.execute(INSERT, ("run", len(messages), json.dumps({"role": "user", "text": "one more"})))
    assert len(messages) == supersteps
    return {"ms": watch.seconds * 1e3, "peak_mb": peak_megabytes() - before}


class GroupCommit:
    """One thread that commits whatever has been submitted since it last did."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._queue: SimpleQueue[tuple[tuple[Any, ...], asyncio.Future[None]] | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def submit(self, row: tuple[Any, ...]) -> asyncio.Future[None]:
        future = self._loop.create_future()
        self._queue.put((row, future))
        return future

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            batch = [item]
            while not self._queue.empty() and (item := self._queue.get()) is not None:
                batch.append(item)
            self._connection.execute("begin")
            self._connection.executemany(INSERT, (row for row, _ in batch))
            self._connection.execute("commit")
            self._loop.call_soon_threadsafe(_resolve, [future for _, future in batch])
            if item is None:
                return


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        future.set_result(None)


async def many_durable_runs(*, directory: str, runs: int, supersteps: int, seconds: float) -> Figures:
    with closing(database(directory)) as connection:
        writer = GroupCommit(connection)

        async def run(name: str) -> None:
            for number in range(supersteps):
                await asyncio.sleep(seconds)
                await writer.submit((name, number, json.dumps({"value": number})))

        with Stopwatch() as watch:
            await asyncio.gather(*(run(f"run-{number}") for number in range(runs)))
        writer.close()
    return {"seconds": watch.seconds}


if __name__ == "__main__":
    contend(
        {
            "counter": counter,
            "fan_out": fan_out,
            "many_runs": many_runs,
            "durable_counter": durable_counter,
            "chat": chat,
            "plain_state": plain_state,
            "newest": newest,
            "prepare_resume": prepare_resume,
            "resume": resume,
            "many_durable_runs": many_durable_runs,
            "durable_fan_out": fan_out,
        }
    )
