"""Records of calls are on their way to Postgres before anybody waits for them, and nothing is promised before it holds.

What the server has received and not yet carried out is made visible by a lock on the run's row: the record waits there.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage
from stepwell.checkpointing.storage.postgres_lane import MOST_UNDER_WAY
from stepwell.errors import RunBusy, RunTakenOver, StorageError
from stepwell.testing.storage import call, draft, opened
from tests.postgres_server import TestServer, server


@pytest.fixture
def postgres() -> TestServer:
    return server()


@pytest.fixture
def schema(postgres: TestServer) -> Iterator[str]:
    schema = postgres.fresh_schema()
    yield schema
    postgres.drop(schema)


@pytest.fixture
async def storage(postgres: TestServer, schema: str) -> AsyncIterator[PostgresCheckpointStorage]:
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema) as storage:
        yield storage


@contextmanager
def holding_up(postgres: TestServer, schema: str, run_id: str = "run-1") -> Iterator[psycopg.Connection[Any]]:
    """Whatever is written to this run waits until this is over."""
    with postgres.connection() as another, another.transaction():
        another.execute(f"SELECT 1 FROM {schema}.runs WHERE run_id = %s FOR UPDATE", (run_id,))
        yield another


async def until_something_waits(postgres: TestServer) -> None:
    while not postgres.waiting():
        await asyncio.sleep(0.01)


async def recorded(storage: PostgresCheckpointStorage, run_id: str = "run-1") -> set[str]:
    return {row.name for row in await storage.list_calls(run_id)}


MORTAL = """
    import asyncio, sys
    from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage
    from stepwell.testing.storage import call, opened

    async def main():
        async with PostgresCheckpointStorage(sys.argv[1], schema=sys.argv[2]) as storage:
            log = await opened(storage)
            print("opened", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            await log.record_call(call("finished"), supersedes=())

    asyncio.run(main())
"""


async def test_what_the_server_has_begun_is_recorded_although_its_process_is_killed_before_the_answer(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    arguments = [sys.executable, "-c", textwrap.dedent(MORTAL), postgres.dsn, schema]
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    child = await asyncio.create_subprocess_exec(*arguments, **pipes)
    assert child.stdin is not None
    assert child.stdout is not None
    assert await child.stdout.readline() == b"opened\n"
    with holding_up(postgres, schema):
        child.stdin.write(b"go on\n")
        await until_something_waits(postgres)
        child.send_signal(signal.SIGKILL)
        await child.wait()
        assert await recorded(storage) == set()

    while True:  # the run is not free before the server is done with it
        try:
            log = await opened(storage)
            break
        except RunBusy:
            await asyncio.sleep(0.01)

    assert [row.name for row in log.calls] == ["finished"]


async def test_nothing_that_was_acknowledged_is_lost_with_the_server(
    storage: PostgresCheckpointStorage, postgres: TestServer
) -> None:
    log = await opened(storage)
    for batch in range(3):
        await asyncio.gather(*(log.record_call(call(f"call-{batch}-{n}"), supersedes=()) for n in range(10)))
    with postgres.stopped():
        pass
    assert len(await recorded(storage)) == 30


async def test_a_server_that_crashes_before_a_record_is_on_disk_is_told_it_again(
    postgres: TestServer, schema: str
) -> None:
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema, retry_seconds=60) as storage:
        log = await opened(storage)
        with postgres.connection() as another:
            another.execute("BEGIN")
            another.execute(f"SELECT 1 FROM {schema}.holders FOR UPDATE")  # what waits for the disk writes there
            recording = asyncio.create_task(log.record_call(call("finished"), supersedes=()))
            await until_something_waits(postgres)
            with postgres.stopped():
                pass
        await recording
        assert await recorded(storage) == {"finished"}


async def test_a_call_does_not_overtake_a_checkpoint_of_its_run(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    log, other = await opened(storage), await opened(storage, "run-2")
    await log.record_call(call("before"), supersedes=())
    with holding_up(postgres, schema, "run-2"):
        busy = asyncio.create_task(other.save(draft(1)))
        await until_something_waits(postgres)
        saving = asyncio.create_task(log.save(draft(1)))  # has to wait for its turn
        await asyncio.sleep(0)
        recording = asyncio.create_task(log.record_call(call("after"), supersedes=()))
        await asyncio.sleep(0.1)  # time enough to overtake
    await asyncio.gather(busy, saving, recording)
    assert await recorded(storage) == {"after"}


async def test_a_run_that_is_held_up_does_not_keep_a_call_of_another_one_from_the_server(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    slow, quick = await opened(storage), await opened(storage, "run-2")
    with holding_up(postgres, schema):
        saving = asyncio.create_task(slow.save(draft(1)))
        await until_something_waits(postgres)
        recording = asyncio.create_task(quick.record_call(call("quick"), supersedes=()))
        while await recorded(storage, "run-2") != {"quick"}:
            await asyncio.sleep(0.01)
    await saving
    await recording


async def test_one_that_was_taken_over_is_refused_and_the_others_are_not(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    logs = [await opened(storage, f"run-{n}") for n in range(5)]
    with postgres.connection() as another:
        another.execute(f"UPDATE {schema}.runs SET epoch = epoch + 1 WHERE run_id = 'run-2'")
    outcomes = await asyncio.gather(
        *(log.record_call(call("mine"), supersedes=()) for log in logs), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes].count(RunTakenOver) == 1
    assert isinstance(outcomes[2], RunTakenOver)
    assert [await recorded(storage, f"run-{n}") for n in range(5)] == [{"mine"}] * 2 + [set()] + [{"mine"}] * 2


async def test_more_calls_at_once_than_are_sent_ahead_and_longer_ones_are_recorded_all_the_same(
    storage: PostgresCheckpointStorage,
) -> None:
    log = await opened(storage)
    long = call("long", result='"' + "x" * 200_000 + '"')
    many = [call(f"call-{n}") for n in range(5 * MOST_UNDER_WAY)]
    await asyncio.gather(*(log.record_call(row, supersedes=()) for row in [*many, long]))
    assert await recorded(storage) == {row.name for row in [*many, long]}
    assert next(row for row in await storage.list_calls("run-1") if row.name == "long") == long


async def test_a_call_answers_for_those_made_inside_it(storage: PostgresCheckpointStorage) -> None:
    log = await opened(storage)
    inner = [call("outer/1"), call("outer/2")]
    for row in (*inner, call("other")):
        await log.record_call(row, supersedes=())
    await log.record_call(call("outer"), supersedes=[row.call_id for row in inner])
    assert await recorded(storage) == {"outer", "other"}


async def test_a_session_that_is_ended_while_records_are_under_way_loses_none(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    log = await opened(storage)
    with holding_up(postgres, schema):
        recording = [asyncio.create_task(log.record_call(call(f"call-{n}"), supersedes=())) for n in range(5)]
        await until_something_waits(postgres)
        assert postgres.cut("alive") == 1
    await asyncio.gather(*recording)
    assert await recorded(storage) == {f"call-{n}" for n in range(5)}


async def test_a_program_of_a_version_that_may_not_write_any_more_records_no_call(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    log = await opened(storage)
    await log.record_call(call("before"), supersedes=())
    with postgres.connection() as another:
        another.execute(f"ALTER TABLE {schema}.holders RENAME COLUMN alive_until TO of_a_later_version")
    with pytest.raises(StorageError, match="alive_until"):
        await log.record_call(call("after"), supersedes=())
    with postgres.connection() as another:
        another.execute(f"ALTER TABLE {schema}.holders RENAME COLUMN of_a_later_version TO alive_until")
    assert await recorded(storage) == {"before"}
