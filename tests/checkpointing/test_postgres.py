"""The Postgres storage passes the contracts that every storage passes, and keeps its own promises."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import textwrap
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepwell.checkpointing import LATEST_ONLY, keep_last
from stepwell.checkpointing.registry import known_types
from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage
from stepwell.checkpointing.storage.postgres_connection import connect, target_of
from stepwell.checkpointing.storage.postgres_schema import SCHEMA_VERSION
from stepwell.checkpointing.storage.protocol import BranchPoint, RunLog
from stepwell.errors import (
    AlreadyAnswered,
    CheckpointDamaged,
    CheckpointNotFound,
    FormatTooNew,
    RunBusy,
    RunTakenOver,
    StorageClosed,
    StorageError,
)
from stepwell.testing import CheckpointStorageContract, RunStorageContract
from stepwell.testing.storage import (
    Label,
    Reopen,
    asked,
    branched,
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


async def test_a_later_schema_is_refused_by_name(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    await storage.save(checkpoint())
    change(postgres, schema, "UPDATE stepwell_version SET version = 99")
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema) as other:
        with pytest.raises(FormatTooNew, match="schema 99"):
            await other.load("c1")
        with pytest.raises(FormatTooNew, match="schema 99"):
            await other.save(checkpoint(2))


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


async def test_closing_twice_does_nothing(storage: PostgresCheckpointStorage) -> None:
    await storage.save(checkpoint())
    await storage.close()
    await storage.close()


async def test_a_closed_storage_says_so(storage: PostgresCheckpointStorage) -> None:
    await storage.save(checkpoint())
    (listed,) = await storage.list_checkpoints()
    await storage.close()
    with pytest.raises(StorageClosed):
        await storage.load("c1")
    with pytest.raises(StorageClosed):
        await storage.save(checkpoint(2))
    with pytest.raises(StorageClosed):
        _ = listed.state


async def test_closing_waits_for_what_is_being_written(storage: PostgresCheckpointStorage, reopen: Reopen) -> None:
    log = await opened(storage)
    saving = asyncio.create_task(log.save(draft(1, {"kept": True})))
    await asyncio.sleep(0)
    again = await reopen(storage)
    saved = await saving
    assert (await again.load(saved.checkpoint_id)).state == {"kept": True}


async def test_a_closed_storage_leaves_no_session_and_no_holder(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    await finished_run(storage, "run-1")
    await storage.get_latest()
    await storage.close()
    while postgres.sessions():  # the server takes a moment to see that they are over
        await asyncio.sleep(0.01)
    assert count(postgres, schema, "holders") == 0


async def test_runs_are_free_once_their_storage_is_closed(storage: PostgresCheckpointStorage, reopen: Reopen) -> None:
    await opened(storage)
    await opened(await reopen(storage))


async def test_a_storage_dropped_open_warns_and_lets_go(postgres: TestServer, schema: str) -> None:
    async def forget() -> None:
        await opened(PostgresCheckpointStorage(postgres.dsn, schema=schema))
        gc.collect()

    with pytest.warns(ResourceWarning, match="was dropped open"):
        await forget()
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema) as storage:
        while True:
            with suppress(RunBusy):
                await opened(storage)
                break
            await asyncio.sleep(0.01)


async def test_cancelling_who_opens_a_run_leaves_it_free(storage: PostgresCheckpointStorage) -> None:
    for delay in range(8):
        task = asyncio.create_task(opened(storage))
        for _ in range(delay):
            await asyncio.sleep(0.0005)
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        else:
            await (await task).release()
        await (await opened(storage)).release()


# --- several holders --------------------------------------------------------------------------------------------------

HOLDER = """
    import asyncio, sys
    from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage
    from stepwell.testing.storage import call, draft, opened

    async def main():
        dsn, schema, lease = sys.argv[1:]
        async with PostgresCheckpointStorage(dsn, schema=schema, lease_seconds=float(lease)) as storage:
            log = await opened(storage)
            await log.record_call(call("asked"), supersedes=())
            print("holding", flush=True)
            await asyncio.to_thread(sys.stdin.readline)

    asyncio.run(main())
"""


@asynccontextmanager
async def holding(
    postgres: TestServer, schema: str, lease: float = 3600.0
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another process that holds `run-1`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(HOLDER),
        *(postgres.dsn, schema, str(lease)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"holding\n"
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def taken(storage: PostgresCheckpointStorage) -> RunLog:
    """Ask for the run until it is given."""
    while True:
        try:
            return await opened(storage)
        except RunBusy:
            await asyncio.sleep(0.01)


async def test_a_run_held_by_another_process_is_refused_naming_it(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    async with holding(postgres, schema) as holder:
        with pytest.raises(RunBusy, match=f"process {holder.pid} on ") as caught:
            await opened(storage)
        assert "this process" not in str(caught.value)
        with pytest.raises(RunBusy):
            await storage.cancel_run("run-1")
        with pytest.raises(RunBusy):
            await storage.delete_run("run-1")


async def test_a_killed_holder_is_known_to_be_dead_without_its_lease(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    async with holding(postgres, schema) as holder:
        holder.kill()
        await holder.wait()
    log = await taken(storage)
    assert [row.name for row in log.calls] == ["asked"]
    await log.release()
    await storage.cancel_run("run-1")
    assert await storage.delete_run("run-1")


async def test_a_holder_with_nothing_to_write_renews_its_lease(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    def lease() -> Any:
        with postgres.connection() as connection:
            return connection.execute(f"SELECT max(alive_until) FROM {schema}.holders").fetchone()

    async with holding(postgres, schema, lease=0.3):
        for _ in range(3):
            before = lease()
            while lease() == before:
                await asyncio.sleep(0.01)


async def test_two_storages_of_one_process_are_two_holders(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema) as other:
        await opened(storage)
        change(postgres, schema, "UPDATE holders SET alive_until = now() - interval '1 day'")
        with pytest.raises(RunBusy, match="this process"):
            await opened(other)
        await storage.close()
        await (await opened(other)).save(draft(1, final=True))


async def test_the_dead_are_forgotten_when_they_hold_nothing(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    await storage.list_runs()
    long_ago = "now() - interval '1 day'"
    for number in range(3):
        change(postgres, schema, f"INSERT INTO holders VALUES ('{number}:1:host', {number}, 0, {long_ago})")
    await opened(storage)
    assert count(postgres, schema, "holders") == 1


async def test_of_answers_given_through_many_storages_at_once_one_counts(postgres: TestServer, schema: str) -> None:
    storages = [PostgresCheckpointStorage(postgres.dsn, schema=schema) for _ in range(4)]
    await finished_run(storages[0], "run-1", pending=[asked("r1")])
    results = await asyncio.gather(*(one.answer("r1", n) for n, one in enumerate(storages)), return_exceptions=True)
    assert results.count(None) == 1
    assert sum(isinstance(result, AlreadyAnswered) for result in results) == 3
    for one in storages:
        await one.close()


async def test_of_many_storages_that_open_or_create_a_run_at_once_one_gets_it(
    postgres: TestServer, schema: str
) -> None:
    storages = [PostgresCheckpointStorage(postgres.dsn, schema=schema) for _ in range(6)]
    for run_id in ("new", "new"):  # the second time it is there
        attempts = await asyncio.gather(*(opened(one, run_id) for one in storages), return_exceptions=True)
        logs = [attempt for attempt in attempts if not isinstance(attempt, BaseException)]
        assert len(logs) == 1
        assert sum(isinstance(attempt, RunBusy) for attempt in attempts) == 5
        await logs[0].save(draft(1, final=True))
    for one in storages:
        await one.close()


WORKER = """
    import asyncio, sys
    from stepwell.checkpointing import LATEST_ONLY, PostgresCheckpointStorage
    from stepwell.testing.storage import call, draft, opened

    async def work(storage, name):
        log = await opened(storage, name)
        for n in range(10):
            await log.record_call(call(f"{name} {n}"), supersedes=())
            await log.save(draft(n, {"name": name, "n": n}, final=n == 9))

    async def main():
        async with PostgresCheckpointStorage(sys.argv[1], schema=sys.argv[2]) as storage:
            await asyncio.gather(*[work(storage, f"run-{sys.argv[3]}-{n}") for n in range(5)])

    asyncio.run(main())
"""


async def test_processes_that_create_and_fill_one_schema_at_once(postgres: TestServer, schema: str) -> None:
    await asyncio.gather(*(script(WORKER, postgres.dsn, schema, str(n)) for n in range(6)))

    async with PostgresCheckpointStorage(postgres.dsn, schema=schema) as storage:
        runs = await storage.list_runs()
        assert len(runs) == 30
        for run in runs:
            kept = await storage.list_checkpoints(run_id=run.run_id)
            assert [item.iteration_count for item in kept] == list(range(10))
            latest = await storage.get_latest(run_id=run.run_id)
            assert latest is not None
            assert latest.state == {"name": run.run_id, "n": 9}
    assert count(postgres, schema, "calls") == 0


async def test_a_save_that_begins_after_another_has_returned_is_later_in_every_storage(
    postgres: TestServer, schema: str
) -> None:
    storages = [PostgresCheckpointStorage(postgres.dsn, schema=schema) for _ in range(3)]
    logs = [await opened(one, f"run-{number}") for number, one in enumerate(storages)]
    for n in range(12):
        saved = await logs[n % 3].save(draft(n))
        latest = await storages[(n + 1) % 3].get_latest(workflow_name="delivery")
        assert latest is not None
        assert latest.checkpoint_id == saved.checkpoint_id
    for one in storages:
        await one.close()


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


# --- forks ------------------------------------------------------------------------------------------------------------

FORKING = """
    import asyncio, os, sys
    from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage
    from stepwell.errors import LeaseError
    from stepwell.testing.storage import draft, opened

    storage = PostgresCheckpointStorage(sys.argv[1], schema=sys.argv[2])

    async def begin():
        log = await opened(storage)
        await log.save(draft(1))
        await storage.get_latest()
        return log

    async def in_child():
        try:
            await log.save(draft(99))
        except LeaseError as error:
            print(type(error).__name__, flush=True)
        await (await opened(storage, "child-run")).save(draft(1, final=True))
        print(len(await storage.list_runs()), flush=True)
        await storage.close()

    async def in_parent():
        await log.save(draft(2, final=True))
        print(sorted(run.run_id for run in await storage.list_runs()), flush=True)
        await storage.close()

    log = asyncio.run(begin())
    pid = os.fork()
    if pid == 0:
        asyncio.run(in_child())
        os._exit(0)
    print(os.waitpid(pid, 0)[1], flush=True)
    asyncio.run(in_parent())
"""


async def test_a_forked_child_is_another_holder_and_leaves_its_parent_alone(postgres: TestServer, schema: str) -> None:
    told = await script(FORKING, postgres.dsn, schema)
    assert told.splitlines() == ["RunTakenOver", "2", "0", "['child-run', 'run-1']"]


ORPHAN = """
    import asyncio, os, sys, time
    from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage
    from stepwell.testing.storage import opened

    storage = PostgresCheckpointStorage(sys.argv[1], schema=sys.argv[2])
    asyncio.run(opened(storage))
    pid = os.fork()
    if pid == 0:
        os.close(1)
        time.sleep(100)
        os._exit(0)
    print(pid, flush=True)
    os._exit(0)
"""


async def test_a_forked_child_does_not_keep_its_parents_runs(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    orphan = int(await script(ORPHAN, postgres.dsn, schema))
    try:
        await (await taken(storage)).release()
    finally:
        os.kill(orphan, signal.SIGKILL)


# --- retention and deletion -------------------------------------------------------------------------------------------


def _history(n: int) -> dict[str, Any]:
    return {"history": [Label(f"message {k} " * 10) for k in range(max(0, n - 20), n)], "scratch": f"{n}" * 5000}


async def test_old_checkpoints_and_what_only_they_refer_to_are_dropped(postgres: TestServer, schema: str) -> None:
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema, retention=keep_last(3)) as storage:
        log = await opened(storage)
        for n in range(400):
            await log.save(draft(n, _history(n)))
        kept = await storage.list_checkpoints()
        assert [item.iteration_count for item in kept] == [397, 398, 399]
        for item in kept:
            assert (await storage.load(item.checkpoint_id)).state == _history(item.iteration_count)
        assert count(postgres, schema, "nodes") < 700


async def test_a_sweep_in_one_run_leaves_its_branches_whole(postgres: TestServer, schema: str) -> None:
    history = [Label(f"message {n} " * 10) for n in range(100)]
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema) as storage:
        log = await opened(storage)
        point = await log.save(draft(1, {"history": history}))
        branch = await opened(storage, "branch", branch_of=BranchPoint(point.checkpoint_id, "run-1"))
        await branch.load(point.checkpoint_id, known_types)
        await branch.save(draft(2, {"history": history, "mine": True}, final=True))
        await log.release()
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema, retention=LATEST_ONLY) as storage:
        log = await opened(storage)
        for n in range(300):
            await log.save(draft(n, _history(n)))
        latest = await storage.get_latest(run_id="branch")
        assert latest is not None
        assert latest.state == {"history": history, "mine": True}
        with pytest.raises(CheckpointNotFound):
            await storage.load(point.checkpoint_id)


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


async def test_a_deleted_run_leaves_nothing(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    log = await opened(storage)
    await log.save(draft(1, {"large": Label("secret " * 100)}, pending=[asked("r1")]))
    await log.record_call(call("a"), supersedes=())
    await log.release()
    assert await storage.delete_run("run-1")
    tables = ("runs", "checkpoints", "nodes", "calls", "requests", "departed")
    assert [count(postgres, schema, table) for table in tables] == [0] * 6


async def test_nodes_of_a_deleted_run_stay_while_a_branch_needs_them(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    _, leaf = await branched(storage)
    assert await storage.delete_run("trunk")
    assert (await storage.load(leaf.checkpoint_id)).content is not None
    assert count(postgres, schema, "departed") == 1
    assert await storage.delete_run("branch")
    assert [count(postgres, schema, table) for table in ("nodes", "departed", "checkpoints")] == [0, 0, 0]


async def test_a_checkpoint_saved_by_hand_leaves_nothing_when_it_is_deleted(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    await storage.save(checkpoint(1, run=None, state={"label": Label("x" * 300)}))
    assert await storage.delete("c1")
    assert [count(postgres, schema, table) for table in ("runs", "checkpoints", "nodes", "departed")] == [0] * 4


async def test_audited_calls_stay(postgres: TestServer, schema: str) -> None:
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema, audit=True) as storage:
        log = await opened(storage)
        for n in range(3):
            await log.record_call(call(f"call-{n}"), supersedes=())
            await log.save(draft(n))
        await log.release()
        assert [row.name for row in (await opened(storage)).calls] == ["call-0", "call-1", "call-2"]


# --- damage -----------------------------------------------------------------------------------------------------------

_CHECKPOINT = "UPDATE checkpoints SET {} WHERE id = 2"
_NODE = "UPDATE nodes SET {} WHERE id = (SELECT max(id) FROM nodes)"
DAMAGE = {
    "a changed body": _CHECKPOINT.format("body = replace(body, 'forty', 'fifty')"),
    "an empty body": _CHECKPOINT.format("body = ''"),
    "a changed header": _CHECKPOINT.format("header = replace(header, '\"iteration\":2', '\"iteration\":9')"),
    "a header that is no JSON": _CHECKPOINT.format("header = 'header'"),
    "a changed digest": _CHECKPOINT.format("digest = '\\x00112233445566778899aabbccddeeff'"),
    "no references": _CHECKPOINT.format("refs = '{}'"),
    "references to nothing": _CHECKPOINT.format("refs = '{NULL}'"),
    "references of references": _CHECKPOINT.format("refs = '{{1,2},{3,4}}'"),
    "references to something else": _CHECKPOINT.format("refs = (SELECT refs FROM checkpoints WHERE id = 1)"),
    "a changed node": _NODE.format("body = replace(body, 'zz', 'yy')"),
    "a missing node": "DELETE FROM nodes WHERE id = (SELECT max(id) FROM nodes)",
    "a node's changed digest": _NODE.format("digest = '\\x00'"),
    "a node that refers to itself": _NODE.format("refs = ARRAY[id]"),
}


@pytest.mark.parametrize("statement", DAMAGE.values(), ids=DAMAGE.keys())
async def test_damage_is_noticed_and_the_newest_good_ancestor_named(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str, statement: str
) -> None:
    log = await opened(storage)
    good = await log.save(draft(1, {"label": Label("a" * 300)}))
    bad = await log.save(draft(2, {"number": "forty", "label": Label("z" * 300)}, final=True))
    assert change(postgres, schema, statement) == 1
    with pytest.raises(CheckpointDamaged) as caught:
        await storage.load(bad.checkpoint_id)
    assert caught.value.good_ancestor == good.checkpoint_id
    with pytest.raises(CheckpointDamaged):
        await storage.get_latest(run_id="run-1")
    fallen_back = await storage.get_latest(run_id="run-1", fallback=True)
    assert fallen_back is not None
    assert fallen_back.checkpoint_id == good.checkpoint_id


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


async def test_a_damaged_call_is_noticed_and_the_run_not_taken(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    log = await opened(storage)
    await log.record_call(call("one", result='"paid"'), supersedes=())
    await log.release()
    change(postgres, schema, "UPDATE calls SET body = replace(body, 'paid', 'owed')")
    with pytest.raises(CheckpointDamaged, match="one"):
        await opened(storage)
    (run,) = await storage.list_runs()
    assert run.holder is None


async def test_a_table_that_is_gone_is_an_error_that_names_it(
    storage: PostgresCheckpointStorage, postgres: TestServer, schema: str
) -> None:
    log = await opened(storage)
    change(postgres, schema, "DROP TABLE nodes")
    with pytest.raises(StorageError, match="nodes"):
        await log.save(draft(1, {"label": Label("x" * 600)}))
    await log.save(draft(2, final=True))


async def test_one_who_may_not_write_does_not_harm_the_others_of_its_group(
    storage: PostgresCheckpointStorage,
) -> None:
    former = await opened(storage, "lost")
    await former.release()
    await opened(storage, "lost")
    logs = [await opened(storage, f"run-{n}") for n in range(5)]

    results = await asyncio.gather(
        *(log.save(draft(1, {"large": "x" * 9000})) for log in [logs[0], former, *logs[1:]]), return_exceptions=True
    )

    assert [type(result) for result in results].count(RunTakenOver) == 1
    assert len(await storage.list_checkpoint_ids()) == 5


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
