"""Postgres goes away, comes back, and loses connections: the run stops at once or does not notice, nothing in between.

Every outage is real: the server is stopped without a goodbye, an administrator ends sessions, a proxy loses a commit or
the answer to it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage
from stepwell.errors import RunTakenOver, StorageError
from stepwell.testing import CrashingStorage
from stepwell.testing.storage import asked, call, draft, finished_run, opened
from tests.faults.children import Case
from tests.faults.oracle import Account, Oracle
from tests.faults.troubles import Ahead
from tests.faults.workloads import Desk, Shape, expected_of, team
from tests.postgres_proxy import Proxy
from tests.postgres_server import TestServer, server

SHAPE = Shape(workers=3, calls=3, rounds=5)
IMPATIENT, PATIENT = 0.2, 60.0


@pytest.fixture
def postgres() -> TestServer:
    return server()


@pytest.fixture
def schema(postgres: TestServer) -> Iterator[str]:
    schema = postgres.fresh_schema()
    yield schema
    postgres.drop(schema)


@pytest.fixture
def proxy(postgres: TestServer) -> Iterator[Proxy]:
    with Proxy(postgres.dsn) as proxy:
        yield proxy


@pytest.fixture
def case(postgres: TestServer, schema: str, tmp_path: Path) -> Case:
    return Case(f"postgres:{schema}@{postgres.dsn}", tmp_path, options={"rounds": SHAPE.rounds, "call_ms": 1})


class Outage:
    """The server is stopped as if the power had failed, and later started."""

    def __init__(self, postgres: TestServer, oracle: Oracle) -> None:
        self._server = postgres
        self._oracle = oracle

    def begin(self) -> None:
        self._server.stop()
        self._oracle.note("trouble")

    def end(self) -> None:
        self._server.start()
        self._oracle.note("repair")


class Cuts:
    """An administrator who ends all sessions of stepwell each time a call was recorded."""

    def __init__(self, postgres: TestServer, kind: str = "") -> None:
        self._server = postgres
        self._kind = kind
        self.made = 0

    def __call__(self, point: str, subject: str) -> None:
        if point == "after call":
            self.made += self._server.cut(self._kind)


async def run(case: Case, storage: Any, watcher: Any) -> Any:
    desk = Desk(Oracle(case.oracle), call_ms=1)
    watched = CrashingStorage(storage, watcher=watcher)
    return await team(desk, SHAPE).run(SHAPE.rounds, run_id=case.run_id, checkpoint_storage=watched)


def plain(value: Any) -> Any:
    """As it looks when it has gone through a pipe."""
    return json.loads(json.dumps(value))


def during(account: Account) -> Account:
    marks = [index for index, entry in enumerate(account.entries) if entry.what in ("trouble", "repair")]
    return Account(account.entries[marks[0] : marks[1]])


def assert_it_stopped_in_that_superstep(account: Account) -> None:
    trouble = during(account)
    assert trouble.acknowledged & {entry.key for entry in trouble.only("finish")} == set(), "recorded without a server"
    by_worker = [name.partition(".")[0] for name in trouble.starts.elements()]
    assert len(by_worker) == len(set(by_worker)), "a worker went on to another call without a record of the last"


def assert_nothing_recorded_is_repeated(account: Account) -> None:
    repeats = account.repeats()
    assert (repeats.acknowledged, repeats.found) == (0, 0)
    # What had finished when its record was refused is all that may be made again: one call per worker.
    assert repeats.finished <= SHAPE.workers


@asynccontextmanager
async def cut_off(case: Case, postgres: TestServer, *, calls: int) -> AsyncIterator[PostgresCheckpointStorage]:
    """A storage whose run was stopped by an outage after so many calls; the server is back."""
    oracle = Oracle(case.oracle)
    outage = Outage(postgres, oracle)
    schema, _, dsn = case.store.partition(":")[2].partition("@")
    async with PostgresCheckpointStorage(dsn, schema=schema, retry_seconds=IMPATIENT) as storage:
        try:
            with pytest.raises(StorageError):
                await run(case, storage, Ahead(outage, calls, oracle.watching(case.run_id)))
        finally:
            await asyncio.to_thread(outage.end)
        assert_it_stopped_in_that_superstep(case.account())
        yield storage


# --- the server is stopped --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [1, 13, 30])
async def test_after_an_outage_the_same_storage_goes_on_in_the_same_process(
    case: Case, postgres: TestServer, calls: int
) -> None:
    async with cut_off(case, postgres, calls=calls) as storage:
        for checkpoint_id in await storage.list_checkpoint_ids(run_id=case.run_id):
            assert (await storage.load(checkpoint_id)).state
        result = await run(case, storage, Oracle(case.oracle).watching(case.run_id))

    assert plain(result.get_outputs()) == [expected_of(SHAPE)]
    assert_nothing_recorded_is_repeated(case.account())


async def test_after_an_outage_another_process_goes_on_although_the_first_one_still_lives(
    case: Case, postgres: TestServer
) -> None:
    async with cut_off(case, postgres, calls=13) as storage:
        # Whatever it could not give back during the outage it gives back now, with the first thing it does.
        [stopped] = await runs_when_free(storage)
        ending = await asyncio.to_thread(case.live)

    assert (stopped.state, "StorageError" in str(stopped.stopped_by)) == ("FAILED", True)
    assert ending.output == expected_of(SHAPE)
    assert_nothing_recorded_is_repeated(case.account())


async def runs_when_free(storage: PostgresCheckpointStorage) -> Any:
    runs = await storage.list_runs()
    while any(run.holder is not None for run in runs):
        await asyncio.sleep(0.05)
        runs = await storage.list_runs()
    return runs


async def test_an_outage_shorter_than_patience_is_not_noticed_by_the_run(case: Case, postgres: TestServer) -> None:
    schema, _, dsn = case.store.partition(":")[2].partition("@")
    oracle = Oracle(case.oracle)
    restarted: list[asyncio.Task[None]] = []

    def watcher(point: str, subject: str) -> None:
        oracle.watching(case.run_id)(point, subject)
        if point == "after call" and not restarted:
            postgres.stop()
            restarted.append(asyncio.create_task(asyncio.to_thread(postgres.start)))

    async with PostgresCheckpointStorage(dsn, schema=schema, retry_seconds=PATIENT) as storage:
        result = await run(case, storage, watcher)
    await restarted[0]

    assert plain(result.get_outputs()) == [expected_of(SHAPE)]
    assert case.account().starts == dict.fromkeys(SHAPE.names(), 1)


async def test_a_run_does_not_start_without_a_server_and_does_when_it_is_back(case: Case, postgres: TestServer) -> None:
    schema, _, dsn = case.store.partition(":")[2].partition("@")
    watch = Oracle(case.oracle).watching(case.run_id)
    async with PostgresCheckpointStorage(dsn, schema=schema, retry_seconds=IMPATIENT) as storage:
        with postgres.stopped():
            with pytest.raises(StorageError):
                await run(case, storage, watch)
            with pytest.raises(StorageError):
                await storage.list_runs()
        assert case.account().starts.total() == 0
        result = await run(case, storage, watch)

    assert plain(result.get_outputs()) == [expected_of(SHAPE)]


async def test_closing_without_a_server_takes_no_patience(postgres: TestServer, schema: str) -> None:
    storage = PostgresCheckpointStorage(postgres.dsn, schema=schema, retry_seconds=PATIENT)
    await opened(storage)
    with postgres.stopped():
        await asyncio.wait_for(storage.close(), PATIENT / 2)

    async with PostgresCheckpointStorage(postgres.dsn, schema=schema) as other:
        log = await opened(other)
        assert log.info is not None
        assert (await log.save(draft(1))).sequence == 1


# --- sessions are ended -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["write", "alive", ""])
async def test_sessions_that_are_ended_again_and_again_are_replaced(
    case: Case, postgres: TestServer, kind: str
) -> None:
    schema, _, dsn = case.store.partition(":")[2].partition("@")
    cuts = Cuts(postgres, kind)
    async with PostgresCheckpointStorage(dsn, schema=schema, retry_seconds=PATIENT) as storage:
        result = await run(case, storage, cuts)

    assert plain(result.get_outputs()) == [expected_of(SHAPE)]
    assert case.account().starts == dict.fromkeys(SHAPE.names(), 1)
    assert cuts.made >= SHAPE.rounds


async def test_reads_are_repeated_on_another_connection(postgres: TestServer, schema: str) -> None:
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema) as storage:
        await finished_run(storage, "run-1")
        await asyncio.gather(*(storage.get_latest() for _ in range(8)))
        assert postgres.cut("read") >= 1
        assert await storage.get_latest(run_id="run-1") is not None


async def test_one_whose_sign_of_life_was_lost_goes_on_if_nobody_took_its_run(
    postgres: TestServer, schema: str
) -> None:
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema) as storage:
        log = await opened(storage)
        await log.save(draft(1))
        assert postgres.cut("alive") == 1
        await log.save(draft(2))
        # It has a new one by now, so others believe that it lives.
        assert f"process {os.getpid()} " in await script(TAKER, postgres.dsn, schema)
        await log.save(draft(3, final=True))


TAKER = """
    import asyncio, sys
    from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage
    from stepwell.errors import RunBusy
    from stepwell.testing.storage import draft, opened

    async def main():
        async with PostgresCheckpointStorage(sys.argv[1], schema=sys.argv[2]) as storage:
            try:
                await (await opened(storage)).save(draft(100, final=True))
                print("taken")
            except RunBusy as busy:
                print(busy.holder)

    asyncio.run(main())
"""


async def test_one_whose_sign_of_life_was_lost_is_refused_if_somebody_took_its_run(
    postgres: TestServer, schema: str
) -> None:
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema) as storage:
        log = await opened(storage)
        other = await opened(storage, "run-2")
        await log.save(draft(1))
        assert f"process {os.getpid()} " in await script(TAKER, postgres.dsn, schema)
        postgres.cut("alive")

        assert await script(TAKER, postgres.dsn, schema) == "taken"
        with pytest.raises(RunTakenOver):
            await log.save(draft(2))
        with pytest.raises(RunTakenOver):
            await log.record_call(call("late"), supersedes=())

        latest = await storage.get_latest(run_id="run-1")
        assert latest is not None
        assert latest.iteration_count == 100
        await other.save(draft(1, final=True))


async def script(text: str, *arguments: str) -> str:
    """What a process of its own prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(text), *arguments, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode().strip()


# --- commits whose fate is unknown ------------------------------------------------------------------------------------


@pytest.fixture
async def behind(proxy: Proxy, schema: str) -> AsyncIterator[PostgresCheckpointStorage]:
    """A storage that reaches its database through the proxy."""
    async with PostgresCheckpointStorage(proxy.dsn, schema=schema, retry_seconds=PATIENT) as storage:
        await storage.list_runs()
        yield storage


LOSSES = pytest.mark.parametrize("lost", ["commit", "answer"])


@LOSSES
async def test_a_checkpoint_is_saved_once_whatever_becomes_of_its_commit(
    behind: PostgresCheckpointStorage, proxy: Proxy, lost: str
) -> None:
    log = await opened(behind)
    await log.save(draft(1, state={"history": ["x" * 5000]}))
    proxy.lose_next(lost)
    saved = await log.save(draft(2, state={"history": ["x" * 5000, "y" * 5000]}))
    await log.save(draft(3, final=True))

    assert proxy.lost == 1
    assert [kept.iteration_count for kept in await behind.list_checkpoints()] == [1, 2, 3]
    assert (await behind.load(saved.checkpoint_id)).state == {"history": ["x" * 5000, "y" * 5000]}


@LOSSES
async def test_a_run_is_opened_once_whatever_becomes_of_the_commit(
    behind: PostgresCheckpointStorage, proxy: Proxy, lost: str
) -> None:
    await finished_run(behind, "old")
    proxy.lose_next(lost)
    log = await opened(behind, "new")
    await log.save(draft(1, final=True))
    proxy.lose_next(lost)
    log = await opened(behind, "old")
    await log.save(draft(2, final=True))

    assert proxy.lost == 2
    assert sorted(run.run_id for run in await behind.list_runs()) == ["new", "old"]


@LOSSES
async def test_a_call_is_recorded_and_a_run_given_back_whatever_becomes_of_the_commit(
    behind: PostgresCheckpointStorage, proxy: Proxy, lost: str
) -> None:
    log = await opened(behind)
    proxy.lose_next(lost)
    await log.record_call(call("paid"), supersedes=())
    proxy.lose_next(lost)
    await log.release(state="CANCELLED")

    log = await opened(behind)
    assert proxy.lost == 2
    assert list(log.calls) == [call("paid")]


@LOSSES
async def test_an_answer_whose_commit_was_lost_does_not_meet_itself(
    behind: PostgresCheckpointStorage, proxy: Proxy, lost: str
) -> None:
    await finished_run(behind, "run-1", pending=[asked("r1")])
    proxy.lose_next(lost)
    await behind.answer("r1", True)

    decision = await behind.decision("run-1", "r1")
    assert proxy.lost == 1
    assert decision is not None
    assert decision.value == "true"


@LOSSES
async def test_a_whole_group_is_written_once_whatever_becomes_of_its_commit(
    behind: PostgresCheckpointStorage, proxy: Proxy, lost: str
) -> None:
    logs = await asyncio.gather(*(opened(behind, f"run-{number}") for number in range(20)))
    proxy.lose_next(lost)
    await asyncio.gather(*(log.save(draft(1, final=True, run_state="IDLE")) for log in logs))

    assert proxy.lost == 1
    assert len(await behind.list_checkpoint_ids()) == 20
    assert [run.holder for run in await behind.list_runs(state="IDLE")] == [None] * 20


async def test_a_run_opened_in_vain_does_not_stay_taken(proxy: Proxy, schema: str) -> None:
    async with PostgresCheckpointStorage(proxy.dsn, schema=schema, retry_seconds=0) as storage:
        await finished_run(storage, "run-1")
        proxy.lose_next("answer")
        with pytest.raises(StorageError):
            await opened(storage)

        async with PostgresCheckpointStorage(proxy.dsn, schema=schema) as other:
            await runs_when_free(other)
            await (await opened(other)).save(draft(2, final=True))


async def test_a_run_whose_opening_is_in_doubt_can_be_opened_again_at_once(proxy: Proxy, schema: str) -> None:
    async with PostgresCheckpointStorage(proxy.dsn, schema=schema, retry_seconds=0) as storage:
        proxy.lose_next("answer")
        with pytest.raises(StorageError):
            await opened(storage)
        await (await opened(storage)).save(draft(1, final=True))


async def test_a_database_that_can_not_be_reached_is_an_error_within_bounded_time(proxy: Proxy, schema: str) -> None:
    async with PostgresCheckpointStorage(proxy.dsn, schema=schema, retry_seconds=IMPATIENT) as storage:
        log = await opened(storage)
        saved = await log.save(draft(1))
        proxy.refuse()
        with pytest.raises(StorageError, match="schema"):
            await asyncio.wait_for(log.save(draft(2)), PATIENT)
        with pytest.raises(StorageError):
            await asyncio.wait_for(storage.load(saved.checkpoint_id), PATIENT)
        proxy.refuse(refuses=False)
        assert (await storage.load(saved.checkpoint_id)).iteration_count == 1
        await log.save(draft(3, final=True))
        assert [kept.iteration_count for kept in await storage.list_checkpoints()] == [1, 3]
