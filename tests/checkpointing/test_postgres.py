"""The Postgres storage passes the contracts that every storage passes, and keeps its own promises."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import textwrap
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepwell.checkpointing.registry import known_types
from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage
from stepwell.checkpointing.storage.postgres_connection import connect, target_of
from stepwell.checkpointing.storage.postgres_schema import SCHEMA_VERSION
from stepwell.checkpointing.storage.protocol import BranchPoint, RunLog
from stepwell.errors import (
    RunTakenOver,
    StorageError,
)
from stepwell.testing import CheckpointStorageContract, RunStorageContract
from stepwell.testing.storage import (
    Label,
    Reopen,
    asked,
    call,
    checkpoint,
    draft,
    finished_run,
    opened,
)
from tests.postgres_server import TestServer, server


@pytest.fixture(scope="session")
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


@pytest.fixture
async def reopen(postgres: TestServer) -> AsyncIterator[Reopen]:
    reopened: list[PostgresCheckpointStorage] = []

    async def again(storage: PostgresCheckpointStorage) -> PostgresCheckpointStorage:
        await storage.close()
        options: dict[str, Any] = {"schema": storage.schema, "retention": storage.retention, "audit": storage.audit}
        reopened.append(PostgresCheckpointStorage(postgres.dsn, **options))
        return reopened[-1]

    yield again
    for storage in reopened:
        await storage.close()


class TestTheSixMethods(CheckpointStorageContract):
    pass


class TestRuns(RunStorageContract):
    pass


def count(postgres: TestServer, schema: str, table: str) -> int:
    with postgres.connection() as connection:
        row = connection.execute(f"SELECT count(*) FROM {schema}.{table}").fetchone()
    return int(row[0]) if row else 0


def change(postgres: TestServer, schema: str, statement: str) -> int:
    with postgres.connection() as connection:
        connection.execute(f"SET search_path TO {schema}")
        return connection.execute(statement).rowcount


async def script(text: str, *arguments: str) -> str:
    """What a process of its own prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(text),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode().strip()


# --- the dsn and the schema -------------------------------------------------------------------------------------------


async def test_nothing_is_connected_before_the_first_use() -> None:
    async with PostgresCheckpointStorage("postgresql://nobody:secret@192.0.2.1/nowhere") as storage:
        assert "192.0.2.1" in repr(storage)


@pytest.mark.parametrize(
    "dsn",
    ["hunter2", "host=h password=hunter2 hunter2", "postgresql://u:hunter2 x@h/d", "postgresql://u:hunter2@h:port/d?x"],
)
def test_a_dsn_that_can_not_be_understood_is_refused_without_quoting_it(dsn: str) -> None:
    with pytest.raises(ValueError, match="dsn") as caught:
        PostgresCheckpointStorage(dsn)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


async def test_the_password_is_told_to_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dsn = f"postgresql://ann:hunter2@/db?host={tmp_path}"
    with caplog.at_level("DEBUG"):
        async with PostgresCheckpointStorage(dsn, retry_seconds=0) as storage:
            for attempt in (lambda: storage.save(checkpoint()), storage.list_runs):
                with pytest.raises(StorageError) as caught:
                    await attempt()
                assert "hunter2" not in "".join(traceback.format_exception(caught.value))
            assert "hunter2" not in repr(storage) + str(vars(storage)) + caplog.text


async def test_without_psycopg_the_error_names_the_extra() -> None:
    text = """
        import sys
        sys.modules["psycopg"] = None
        from stepwell import *
        from stepwell import PostgresCheckpointStorage
        from stepwell.errors import StorageError
        try:
            PostgresCheckpointStorage("postgresql:///db")
        except StorageError as error:
            print("pip install 'stepwell[postgres]'" in str(error))
    """
    assert await script(text) == "True"


@pytest.mark.parametrize(
    "name", ["", "a b", "1a", 'a"b', "a;drop", "a.b", "pg_temp", "information_schema", "x" * 64, "é", "a\0", "a\n"]
)
def test_a_schema_that_is_no_plain_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="schema"):
        PostgresCheckpointStorage("postgresql:///db", schema=name)


@pytest.mark.parametrize("prefix", ["Select", "user$"])
async def test_a_schema_may_have_an_unusual_name(postgres: TestServer, prefix: str) -> None:
    schema = f"{prefix}_{postgres.fresh_schema()}"
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema) as storage:
        await storage.save(checkpoint())
        assert (await storage.load("c1")).state == {"number": 1}
    postgres.drop(schema)


async def test_schemas_are_stores_of_their_own(storage: PostgresCheckpointStorage, postgres: TestServer) -> None:
    await finished_run(storage, "run-1")
    elsewhere = postgres.fresh_schema()
    async with PostgresCheckpointStorage(postgres.dsn, schema=elsewhere) as other:
        assert await other.list_runs() == []
        await (await opened(other)).release()
        assert other.identity != storage.identity
    postgres.drop(elsewhere)


async def test_a_schema_of_another_program_is_left_alone(postgres: TestServer, schema: str) -> None:
    with postgres.connection() as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(f"CREATE TABLE {schema}.accounts (id integer)")
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema) as storage:
        with pytest.raises(StorageError, match=r"another program.*accounts"):
            await storage.save(checkpoint())
    with postgres.connection() as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
    assert tables == [("accounts",)]


async def test_a_schema_that_stands_at_an_earlier_version_is_brought_up_to_date(
    postgres: TestServer, schema: str
) -> None:
    with postgres.connection() as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(f"CREATE TABLE {schema}.stepwell_version (version integer NOT NULL)")
        connection.execute(f"INSERT INTO {schema}.stepwell_version VALUES (0)")
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema) as storage:
        await storage.save(checkpoint())
        assert await storage.list_checkpoint_ids() == ["c1"]
    with postgres.connection() as connection:
        assert connection.execute(f"SELECT version FROM {schema}.stepwell_version").fetchall() == [(SCHEMA_VERSION,)]


async def test_a_role_that_may_not_create_anything_can_use_what_is_there(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    await storage.save(checkpoint())
    role = f"role_{schema}"
    with postgres.connection() as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}")
        connection.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role}")
    try:
        async with PostgresCheckpointStorage(f"{postgres.dsn}&user={role}", schema=schema) as theirs:
            await finished_run(theirs, "run-2")
            assert await theirs.list_checkpoint_ids(run_id="run-1") == ["c1"]
    finally:
        with postgres.connection() as connection:
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")


def test_commits_wait_for_the_disk_whatever_the_role_is_used_to(postgres: TestServer) -> None:
    for asked_for, expected in {"off": "on", "local": "on", "remote_apply": "remote_apply"}.items():
        dsn = f"{postgres.dsn}&options=-csynchronous_commit%3D{asked_for}"
        with closing(connect(target_of(dsn, "stepwell"), "a test", writing=True)) as connection:
            assert connection.execute("SHOW synchronous_commit").fetchone() == (expected,)


# --- names and texts --------------------------------------------------------------------------------------------------

ODD = {
    "a nul": "a\0b",
    "half a pair": "half \ud83d",
    "a backslash": r"C:\0000\new",
    "quotes": "'; DROP TABLE runs; --",
    "a percent sign": "100%s %b",
    "braces": '{"x",NULL}',
    "very long": "long " * 5000,
    "snow": "☃😀",
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
async def test_names_and_texts_come_back_as_they_were(
    storage: PostgresCheckpointStorage, reopen: Reopen, text: str
) -> None:
    question = replace(asked(text), source_executor_id=text, request_type=text, response_type=text, shown=f'"{text}"')
    log = await opened(storage, workflow_name=text)
    await log.save(draft(1, {text: text}, pending=[question]))
    await log.record_call(call(text, result=text), supersedes=())
    await log.release(state="FAILED", stopped_by=text)
    storage = await reopen(storage)

    [run] = await storage.list_runs(workflow_name=text)
    latest = await storage.get_latest(workflow_name=text)
    log = await opened(storage, workflow_name=text)

    assert (run.workflow_name, run.stopped_by, run.pending_requests) == (text, text, (question,))
    assert latest is not None
    assert latest.state == {text: text}
    assert list(log.calls) == [call(text, result=text)]
    await log.drop_calls([call(text).call_id])
    await log.release()
    assert list((await opened(storage, workflow_name=text)).calls) == []
    await storage.answer(text, text)
    answer = await storage.decision("run-1", text)
    assert answer is not None
    assert json.loads(answer.value) == text


async def test_names_that_differ_only_in_what_is_escaped_are_different_names(
    storage: PostgresCheckpointStorage,
) -> None:
    names = ["a\0", "a\\0000", "a\\", "a\\005c", "a"]
    log = await opened(storage)
    for name in names:
        await log.record_call(call(name, result=name), supersedes=())
    await log.release()
    assert [row.result for row in (await opened(storage)).calls] == names


# --- opening and closing ----------------------------------------------------------------------------------------------


async def test_a_closed_storage_leaves_no_session_and_no_holder(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    await finished_run(storage, "run-1")
    await storage.get_latest()
    await storage.close()
    while postgres.sessions():  # the server takes a moment to see that they are over
        await asyncio.sleep(0.01)
    assert count(postgres, schema, "holders") == 0


# --- several holders --------------------------------------------------------------------------------------------------


async def test_the_dead_are_forgotten_when_they_hold_nothing(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    await storage.list_runs()
    long_ago = "now() - interval '1 day'"
    for number in range(3):
        change(postgres, schema, f"INSERT INTO holders VALUES ('{number}:1:host', {number}, 0, {long_ago})")
    await opened(storage)
    assert count(postgres, schema, "holders") == 1


async def test_writes_made_at_once_share_commits(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    async def work(number: int) -> None:
        log = await opened(storage, f"run-{number}")
        for step in range(4):
            await log.record_call(call(f"call-{step}"), supersedes=())
            await log.save(draft(step, final=step == 3))

    await asyncio.gather(*map(work, range(100)))

    with postgres.connection() as connection:
        row = connection.execute(f"SELECT commits FROM {schema}.holders").fetchone()
    assert row is not None
    assert row[0] < 100 * 9 / 5


# --- retention and deletion -------------------------------------------------------------------------------------------


def _history(n: int) -> dict[str, Any]:
    return {"history": [Label(f"message {k} " * 10) for k in range(max(0, n - 20), n)], "scratch": f"{n}" * 5000}


async def test_branches_saved_while_their_family_is_swept_by_others_stay_whole(
    postgres: TestServer, schema: str
) -> None:
    history = [Label(f"message {n} " * 20) for n in range(60)]
    sweeper = PostgresCheckpointStorage(postgres.dsn, schema=schema)
    savers = [PostgresCheckpointStorage(postgres.dsn, schema=schema) for _ in range(3)]

    async def grow(storage: PostgresCheckpointStorage, name: str, point: str) -> list[tuple[str, int]]:
        log = await opened(storage, name, branch_of=BranchPoint(point, "trunk"))
        await log.load(point, known_types)
        lengths = [(n * 7) % 50 + 5 for n in range(25)]
        saved = [await log.save(draft(n, {"history": history[:length]})) for n, length in enumerate(lengths)]
        return [(item.checkpoint_id, length) for item, length in zip(saved, lengths, strict=True)]

    async def sweep(trunk: RunLog) -> None:
        for n in range(40):
            doomed = await trunk.save(draft(n, {"history": history[n % 9 :]}))
            await sweeper.delete(doomed.checkpoint_id)

    trunk = await opened(sweeper, "trunk")
    point = await trunk.save(draft(0, {"history": history}))
    growing = [grow(one, f"branch-{n}", point.checkpoint_id) for n, one in enumerate(savers)]
    _, grown = await asyncio.gather(sweep(trunk), asyncio.gather(*growing))

    for checkpoint_id, length in (item for branch in grown for item in branch):
        assert (await sweeper.load(checkpoint_id)).state == {"history": history[:length]}
    for one in (sweeper, *savers):
        await one.close()


async def test_a_sweep_waits_for_a_checkpoint_that_another_process_is_just_saving(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    trunk = await opened(storage, "trunk")
    point = await trunk.save(draft(1, {"history": [Label(f"{n} " * 200) for n in range(20)]}))
    await opened(storage, "branch", branch_of=BranchPoint(point.checkpoint_id, "trunk"))
    before = count(postgres, schema, "nodes")
    with postgres.connection() as another, another.transaction():
        # What a save does: the run's row first, then the checkpoint, which refers to nodes of the parent.
        another.execute(f"SET LOCAL search_path TO {schema}")
        another.execute("UPDATE runs SET sequence = 1 WHERE run_id = 'branch'")
        another.execute(
            """INSERT INTO checkpoints (checkpoint_id, run_key, workflow_key, digest, header, refs, body, seal)
                SELECT 'c2', r.key, c.workflow_key, c.digest, c.header, c.refs, c.body, c.seal
                FROM checkpoints AS c, runs AS r WHERE r.run_id = 'branch'"""
        )
        deleting = asyncio.create_task(storage.delete(point.checkpoint_id))
        while not postgres.waiting():
            await asyncio.sleep(0.01)

    assert await deleting
    assert count(postgres, schema, "nodes") == before


# --- damage -----------------------------------------------------------------------------------------------------------


async def test_a_store_that_is_whole_is_said_to_be(storage: PostgresCheckpointStorage) -> None:
    log = await opened(storage)
    for n in range(3):
        await log.save(draft(n, _history(30 * n)))
    await log.record_call(call("a\0"), supersedes=())
    report = await storage.verify()
    assert (report.runs, report.checkpoints, report.calls, report.damaged) == (1, 3, 1, ())


async def test_everything_that_is_damaged_is_listed(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    log = await opened(storage)
    saved = [await log.save(draft(n, {"label": Label(f"{n}" * 300)})) for n in range(3)]
    await log.record_call(call("one"), supersedes=())
    change(postgres, schema, "UPDATE checkpoints SET body = body || ' ' WHERE id = 1")
    change(postgres, schema, "UPDATE nodes SET body = replace(body, '2', '3') WHERE body LIKE '%222%'")
    change(postgres, schema, "UPDATE calls SET body = replace(body, 'done', 'gone')")

    records = [record.record for record in (await storage.verify()).damaged]

    assert records[:2] == [saved[0].checkpoint_id, saved[2].checkpoint_id]
    assert sorted(record.partition(" ")[0] for record in records[2:]) == ["call", "value"]


async def test_a_table_that_is_gone_is_an_error_that_names_it(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    log = await opened(storage)
    change(postgres, schema, "DROP TABLE nodes")
    with pytest.raises(StorageError, match="nodes"):
        await log.save(draft(1, {"label": Label("x" * 600)}))
    await log.save(draft(2, final=True))


async def test_being_refused_again_and_again_does_not_harm_the_connection(storage: PostgresCheckpointStorage) -> None:
    """Statements that follow a refused one in a pipeline are passed over, also those that were to be prepared."""
    former = await opened(storage, "lost")
    await former.release()
    log = await opened(storage)
    for n in range(40):
        for write in (former.save(draft(n)), former.record_call(call("late"), supersedes=())):
            with pytest.raises(RunTakenOver):
                await write
        await log.record_call(call(f"call-{n}"), supersedes=())
        await log.save(draft(n))
    assert len(await storage.list_checkpoint_ids()) == 40
