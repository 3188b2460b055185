"""Tables of an earlier version: read as they are, upgraded by the first write, and then closed to who wrote them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import psycopg
import pytest

from stepwell.checkpointing.storage import postgres_reading as reading
from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage, is_there
from stepwell.checkpointing.storage.postgres_connection import Target, connect, target_of
from stepwell.checkpointing.storage.postgres_readers import Readers
from stepwell.checkpointing.storage.postgres_schema import SCHEMA_VERSION, STEPS, prepare
from stepwell.checkpointing.storage.postgres_text import lock_number, name_key
from stepwell.errors import RunBusy
from stepwell.testing.storage import checkpoint
from tests.histories.office import HERE, office
from tests.histories.postgres_dump import load
from tests.postgres_server import TestServer, server

EARLIER = range(1, SCHEMA_VERSION)


@pytest.fixture(scope="module")
def postgres() -> TestServer:
    return server()


@pytest.fixture
def schema(postgres: TestServer) -> Iterator[str]:
    """A store of the first version, with a run that was cut off, one that waits and one that is finished."""
    schema = postgres.fresh_schema()
    make(postgres, schema, 1)
    yield schema
    postgres.drop(schema)


@pytest.fixture
async def storage(postgres: TestServer, schema: str) -> AsyncIterator[PostgresCheckpointStorage]:
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema) as storage:
        yield storage


@pytest.fixture
def old(postgres: TestServer, schema: str) -> Iterator[psycopg.Connection[Any]]:
    """The session of a program that was started before the upgrade."""
    with postgres.connection() as connection:
        connection.execute(f"SET search_path TO {schema}, pg_temp")
        yield connection


def make(postgres: TestServer, schema: str, version: int) -> None:
    with postgres.connection() as connection:
        load(connection, (HERE / "1" / f"postgres-{version}.sql").read_text(), schema)


def version_of(postgres: TestServer, schema: str) -> int:
    with postgres.connection() as connection:
        row = connection.execute(f"SELECT version FROM {schema}.stepwell_version").fetchone()
    assert row is not None
    return int(row[0])


def schemas(postgres: TestServer) -> set[str]:
    with postgres.connection() as connection:
        return {name for (name,) in connection.execute("SELECT nspname FROM pg_namespace").fetchall()}


# --- programs of the earlier version ----------------------------------------------------------------------------------

ME = "0123456789abcdef0123456789abcdef:1:elsewhere"
MARK = """
    INSERT INTO holders (holder, lock, expires, commits)
    VALUES (%s, %s, clock_timestamp() + %s::double precision * interval '1 second', %s)
    ON CONFLICT (holder) DO UPDATE SET lock = excluded.lock, expires = excluded.expires, commits = excluded.commits"""
MARKED = (ME, 7, 30.0, 1)
KEY = "(SELECT key FROM runs WHERE run_id = %s)"
ANSWER = f"""UPDATE requests SET answer = %s, answered_at = '2026-01-01T00:00:00+00:00', typed = false
    WHERE run_key = {KEY} AND request_key = %s AND answer IS NULL"""
ANSWERED = ("true", "waiting", name_key("approve"))
WRITES: dict[str, tuple[str, Sequence[Any]]] = {
    "an answer": (ANSWER, ANSWERED),
    "a cancellation": (
        "UPDATE runs SET state = 'CANCELLED', stopped_by = 'cancel_run', epoch = epoch + 1, holder = NULL"
        " WHERE run_id = %s",
        ("waiting",),
    ),
    "a release": ("UPDATE runs SET holder = NULL, state = 'FAILED', stopped_by = 'x' WHERE run_id = %s", ("cut",)),
    "a save": ("UPDATE runs SET sequence = sequence + 1, state = 'IDLE' WHERE run_id = %s", ("cut",)),
    "a deletion": ("DELETE FROM runs WHERE run_id = %s", ("finished",)),
}
"""What the first version sends after its mark."""


def write_as_before(connection: psycopg.Connection[Any], statement: str, values: Sequence[Any]) -> None:
    with connection.transaction():
        connection.execute(MARK, MARKED, prepare=True)
        connection.execute(statement, values)


async def told(storage: PostgresCheckpointStorage) -> Any:
    """All that a program gets to see without taking a run."""
    runs = await storage.list_runs()
    calls = [await storage.list_calls(run.run_id) for run in runs]
    decisions = [await storage.decision(run.run_id, "approve") for run in runs]
    latest = await storage.get_latest(run_id="waiting")
    assert latest is not None
    everything = [(each.checkpoint_id, each.digest) for each in await storage.list_checkpoints()]
    return runs, calls, decisions, latest.state, everything, await storage.verify()


@pytest.mark.parametrize("version", EARLIER)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
async def test_a_program_of_an_earlier_version_can_write_nothing_after_the_upgrade(
    postgres: TestServer, version: int, write: tuple[str, Sequence[Any]]
) -> None:
    schema = postgres.fresh_schema()
    make(postgres, schema, version)
    with postgres.connection() as old:
        old.execute(f"SET search_path TO {schema}, pg_temp")
        write_as_before(old, "SELECT 1", ())  # it works, and what it uses is prepared
        async with PostgresCheckpointStorage(postgres.dsn, schema=schema) as storage:
            await storage.save(checkpoint())
            before = await told(storage)
            with pytest.raises(psycopg.errors.UndefinedColumn, match="expires"):
                write_as_before(old, *write)
            assert await told(storage) == before
            assert before[-1].ok
    postgres.drop(schema)


async def test_an_answer_that_a_program_of_the_earlier_version_is_just_recording_is_kept_by_the_upgrade(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str, old: psycopg.Connection[Any]
) -> None:
    with old.transaction():
        old.execute(MARK, MARKED)
        saving = asyncio.create_task(storage.save(checkpoint()))
        while not postgres.waiting():
            await asyncio.sleep(0.01)
        old.execute(ANSWER, ANSWERED)
        assert not saving.done()
    await saving

    assert version_of(postgres, schema) == SCHEMA_VERSION
    assert (await storage.verify()).ok
    result = await office([]).run(run_id="waiting", checkpoint_storage=storage)
    assert result.get_outputs() == ["WAIT 1 WAIT 2 WAIT 3" + " naïve ☃" * 40]


async def test_a_run_that_a_program_of_the_earlier_version_holds_is_left_to_it(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str, old: psycopg.Connection[Any]
) -> None:
    old.execute("SELECT pg_advisory_lock(7)")
    write_as_before(old, "UPDATE runs SET holder = %s WHERE run_id = 'waiting'", (ME,))
    with pytest.raises(RunBusy, match="elsewhere"):
        await office([]).run(run_id="waiting", responses={"approve": True}, checkpoint_storage=storage)
    old.execute("SELECT pg_advisory_unlock(7)")
    result = await office([]).run(run_id="waiting", responses={"approve": False}, checkpoint_storage=storage)
    assert result.get_outputs() == ["no"]


# --- several who upgrade ----------------------------------------------------------------------------------------------


def in_thread(work: Callable[[], object], errors: list[BaseException]) -> threading.Thread:
    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    return thread


def upgrade(target: Target, *settings: str) -> None:
    with closing(connect(target, "stepwell upgrade", writing=True)) as connection:
        for setting in settings:
            connection.execute(f"SET {setting}")
        prepare(connection, target)


def wait_until(condition: Callable[[], bool], threads: Sequence[threading.Thread]) -> None:
    """Or until somebody has given up."""
    pause = threading.Event()
    while not condition() and all(thread.is_alive() for thread in threads):
        pause.wait(0.01)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_all_who_find_something_to_do_wait_for_the_first_and_go_on(
    postgres: TestServer, schema: str, isolation: str
) -> None:
    options = f"options=-cdefault_transaction_isolation%3D{isolation.replace(' ', '%5C%20')}"
    target = target_of(f"{postgres.dsn}&{options}", schema)
    errors: list[BaseException] = []
    with postgres.connection() as first, first.transaction():
        first.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number("schema", schema),))
        threads = [in_thread(lambda: upgrade(target, "lock_timeout = '1ms'"), errors) for _ in range(4)]
        wait_until(lambda: postgres.waiting() == len(threads), threads)
    for thread in threads:
        thread.join()
    assert errors == []
    assert version_of(postgres, schema) == SCHEMA_VERSION


def test_an_upgrade_takes_the_time_it_takes(postgres: TestServer, schema: str) -> None:
    with postgres.connection() as connection:
        connection.execute(f"SET search_path TO {schema}")
        connection.execute("CREATE TABLE seen (lock_timeout text, statement_timeout text, transaction_timeout text)")
        connection.execute("""CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
            INSERT INTO seen VALUES (current_setting('lock_timeout'), current_setting('statement_timeout'),
                coalesce(current_setting('transaction_timeout', true), '0'));  -- it is new in PostgreSQL 17
            RETURN NEW; END$$""")
        connection.execute("CREATE TRIGGER looks BEFORE UPDATE ON runs FOR EACH ROW EXECUTE FUNCTION look()")
        upgrade(target_of(postgres.dsn, schema), "statement_timeout = '1h'", "lock_timeout = '1h'")
        assert set(connection.execute("SELECT * FROM seen").fetchall()) == {("0", "0", "0")}


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", EARLIER)
async def test_reading_upgrades_nothing_and_finds_what_is_found_after_an_upgrade(
    postgres: TestServer, version: int
) -> None:
    schema = postgres.fresh_schema()
    make(postgres, schema, version)
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema) as storage:
        before = await told(storage)
        [waiting] = await storage.list_runs(workflow_name="office", state="IDLE_WITH_PENDING_REQUESTS")
        assert (waiting.run_id, await storage.run_waiting_for("approve")) == ("waiting", "waiting")
        assert version_of(postgres, schema) == version
        assert not await storage.delete_run("nobody")
        assert version_of(postgres, schema) == SCHEMA_VERSION
        assert await told(storage) == before
    postgres.drop(schema)


async def test_who_may_only_read_can_read_tables_of_an_earlier_version(postgres: TestServer, schema: str) -> None:
    role = f"role_{schema}"
    with postgres.connection() as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
        try:
            async with PostgresCheckpointStorage(f"{postgres.dsn}&user={role}", schema=schema) as storage:
                assert len(await storage.list_runs()) == 3
        finally:
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")


async def test_who_reads_during_an_upgrade_waits_and_finds_it_done(
    storage: PostgresCheckpointStorage, postgres: TestServer, old: psycopg.Connection[Any]
) -> None:
    before = await told(storage)
    with old.transaction():
        old.execute("LOCK TABLE holders IN ACCESS EXCLUSIVE MODE")
        looking = asyncio.create_task(told(storage))
        while not postgres.waiting():
            await asyncio.sleep(0.01)
        for statement in (statement for step in STEPS[1:] for statement in step):
            old.execute(statement)
        old.execute("UPDATE stepwell_version SET version = %s", (SCHEMA_VERSION,))
    assert await looking == before


def test_an_upgrade_waits_for_who_reads(postgres: TestServer, schema: str) -> None:
    target = target_of(postgres.dsn, schema)
    readers = Readers(target, retry_seconds=0)
    errors: list[BaseException] = []
    threads: list[threading.Thread] = []

    def read() -> list[str]:
        threads.append(in_thread(lambda: upgrade(target), errors))
        wait_until(lambda: postgres.waiting() == 1, threads)
        return [row.run_id for row, _, _ in reading.list_runs(readers.rows, None, None)]

    before = readers.within_snapshot(read)
    threads[0].join()
    after = readers.within_snapshot(lambda: reading.list_runs(readers.rows, None, None))
    readers.close()
    assert errors == []
    assert len(before) == 3
    assert before == [row.run_id for row, _, _ in after]
    assert version_of(postgres, schema) == SCHEMA_VERSION


def test_looking_whether_a_store_is_there_creates_nothing(postgres: TestServer, schema: str) -> None:
    nowhere = postgres.fresh_schema()
    assert not is_there(postgres.dsn, schema=nowhere)
    assert nowhere not in schemas(postgres)
    assert is_there(postgres.dsn, schema=schema)
    assert version_of(postgres, schema) == 1


def test_the_tables_of_another_program_are_no_store(postgres: TestServer) -> None:
    schema = postgres.fresh_schema()
    with postgres.connection() as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(f"CREATE TABLE {schema}.holders (holder text)")
    assert not is_there(postgres.dsn, schema=schema)
    postgres.drop(schema)
