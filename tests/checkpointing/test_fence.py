"""One runner per run, with real processes: killed, frozen, forked, asleep."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stepwell.checkpointing.lease import Holder
from stepwell.checkpointing.storage.liveness import HolderLocks
from stepwell.checkpointing.storage.protocol import RunLog
from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
from stepwell.errors import RunBusy, RunTakenOver
from stepwell.testing.storage import draft, opened
from tests.checkpointing.processes import Process, Processes
from tests.checkpointing.stores import SQLiteStore, Store, until

in_sqlite = pytest.mark.parametrize("store", ["sqlite"], indirect=True)
"""For what is about its lock files and rows, or is shown on every backend by the fault suites."""


@pytest.fixture
def processes(store: Store) -> Iterator[Processes]:
    processes = Processes(store.address)
    yield processes
    processes.end()


@pytest.fixture
def path(store: SQLiteStore) -> Path:
    return store.path


async def taken(storage: Any) -> RunLog:
    """Ask for the run until it is given."""
    while True:
        try:
            return await opened(storage)
        except RunBusy:
            await asyncio.sleep(0.02)


async def kill(process: Process, store: Store) -> None:
    """Kill it and wait until that shows: at once on a disk; a server takes a moment to see that a session is over."""
    before = store.alive()
    process.kill()
    await until(lambda: store.alive() < before)


async def holder_of(storage: Any) -> int | None:
    """The process that has the only run there is."""
    [run] = await storage.list_runs()
    return Holder.parse(run.holder).pid if run.holder else None


# --- alive or dead ----------------------------------------------------------------------------------------------------


async def test_a_run_held_by_another_process_is_refused_naming_it(store: Store, processes: Processes) -> None:
    holder = await processes.holding()
    async with store.open() as storage:
        with pytest.raises(RunBusy, match=f"process {holder.pid} on ") as caught:
            await opened(storage)
        assert "this process" not in str(caught.value)
        assert await holder.say("go on") == "saved"


async def test_a_killed_holder_is_known_to_be_dead_whatever_its_lease(store: Store, processes: Processes) -> None:
    holder = await processes.holding(lease=3600)
    await kill(holder, store)
    async with store.open() as storage:
        log = await opened(storage)
        assert [row.name for row in log.calls] == ["asked"]


async def test_a_killed_holders_run_can_be_cancelled_and_deleted(store: Store, processes: Processes) -> None:
    holder = await processes.holding(lease=3600)
    async with store.open() as storage:
        with pytest.raises(RunBusy):
            await storage.cancel_run("run-1")
        with pytest.raises(RunBusy):
            await storage.delete_run("run-1")
        await kill(holder, store)
        await storage.cancel_run("run-1")
        (run,) = await storage.list_runs()
        assert (run.state, run.holder) == ("CANCELLED", None)
        assert await storage.delete_run("run-1")


@in_sqlite
async def test_of_eight_who_resume_a_killed_run_at_once_one_gets_it(processes: Processes) -> None:
    (await processes.holding()).kill()
    contender = """
        async def main():
            async with open_store(store) as storage:
                say("ready")
                hear()
                try:
                    log = await opened(storage)
                    await log.save(draft(1))
                    say("got it")
                except LeaseError as error:
                    say(f"refused by {str(error).split('process ')[1].split()[0]}")
                hear()
        asyncio.run(main())
    """
    contenders = [processes.start(contender) for _ in range(8)]
    assert [await each.hear() for each in contenders] == ["ready"] * 8
    answers = await asyncio.gather(*[each.say("now") for each in contenders])

    winners = [each for each, answer in zip(contenders, answers, strict=True) if answer == "got it"]
    assert len(winners) == 1
    assert sorted(answers) == ["got it"] + [f"refused by {winners[0].pid}"] * 7


@in_sqlite
async def test_a_link_to_the_database_leads_to_the_same_holders(path: Path, processes: Processes) -> None:
    holder = await processes.holding()
    link = path.with_name("link.db")
    link.symlink_to(path)
    async with SQLiteCheckpointStorage(link) as storage:
        with pytest.raises(RunBusy, match=f"process {holder.pid} on "):
            await opened(storage)


# --- frozen -----------------------------------------------------------------------------------------------------------


@in_sqlite
async def test_a_frozen_holder_is_taken_over_and_can_not_write_when_it_wakes(path: Path, processes: Processes) -> None:
    holder = await processes.holding(lease=0.5)
    assert await holder.say("go on") == "saved"
    holder.signal(signal.SIGSTOP)
    async with SQLiteCheckpointStorage(path) as storage:
        await (await taken(storage)).save(draft(100))
        holder.signal(signal.SIGCONT)
        answer = await holder.say("go on")
        assert answer.startswith("RunTakenOver: ")
        assert f"process {os.getpid()} on " in answer
        assert await holder.say("") == "released"
        latest = await storage.get_latest(run_id="run-1")
        assert latest is not None
        assert latest.iteration_count == 100
        async with SQLiteCheckpointStorage(path) as third:
            with pytest.raises(RunBusy):
                await opened(third)


@in_sqlite
async def test_a_frozen_holder_that_nobody_replaced_goes_on(path: Path, processes: Processes) -> None:
    holder = await processes.holding(lease=0.2)
    holder.signal(signal.SIGSTOP)
    while time.monotonic() < lease_of(path):
        await asyncio.sleep(0.05)
    holder.signal(signal.SIGCONT)
    assert await holder.say("go on") == "saved"


@in_sqlite
async def test_a_frozen_holder_is_believed_to_be_alive_during_its_lease(path: Path, processes: Processes) -> None:
    holder = await processes.holding(lease=3600)
    holder.signal(signal.SIGSTOP)
    async with SQLiteCheckpointStorage(path) as storage:
        with pytest.raises(RunBusy, match=f"process {holder.pid} on "):
            await opened(storage)
        assert await holder_of(storage) == holder.pid


def lease_of(path: Path) -> float:
    with closing(sqlite3.connect(path)) as connection:
        (expires,) = connection.execute("SELECT max(expires_here) FROM holders").fetchone()
    return float(expires)


async def test_a_holder_with_nothing_to_write_renews_its_lease(store: Store, processes: Processes) -> None:
    holder = await processes.holding(lease=0.3)
    for _ in range(3):
        [before] = store.leases()
        await until(lambda: store.leases() != [before])  # noqa: B023 - it is over before the next one
    async with store.open() as storage:
        with pytest.raises(RunBusy, match=f"process {holder.pid} on "):
            await opened(storage)


async def test_a_storage_that_holds_nothing_writes_nothing(store: Store) -> None:
    async with store.open(lease_seconds=0.03) as storage:
        log = await opened(storage)
        await log.save(draft(1, final=True))
        before = store.leases()
        await asyncio.sleep(0.1)
        assert store.leases() == before


async def test_a_storage_that_was_silent_for_long_can_hold_runs_again(store: Store, processes: Processes) -> None:
    """It renews no lease while it holds nothing, and others may have forgotten it meanwhile."""
    quiet = """
        async def main():
            async with open_store(store, lease_seconds=3600) as storage:
                await (await opened(storage)).save(draft(1, final=True))
                say("quiet")
                hear()
                await opened(storage)
                say("holding again")
                hear()
        asyncio.run(main())
    """
    process = processes.start(quiet)
    assert await process.hear() == "quiet"
    store.expire_leases()
    async with store.open() as storage:
        await opened(storage, "another")
        assert await process.say("go on") == "holding again"
        with pytest.raises(RunBusy, match=f"process {process.pid} "):
            await opened(storage)


async def test_a_lease_that_ran_out_is_no_reason_to_take_a_run_within_one_process(store: Store) -> None:
    async with store.open() as one, store.open() as other:
        log = await opened(one)
        store.expire_leases()
        for storage in (one, other):
            with pytest.raises(RunBusy, match="this process"):
                await opened(storage)
        saved = await log.save(draft(1, final=True))
        assert await other.newest_checkpoint_id("run-1") == saved.checkpoint_id


# --- other hosts ------------------------------------------------------------------------------------------------------


def held_elsewhere(path: Path, *, seconds_left: float) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        holder = connection.execute(
            "INSERT INTO holders (holder, expires, expires_here) VALUES (?, ?, 0)",
            (f"{'0' * 32}:4711:another-host", time.time() + seconds_left),
        )
        connection.execute("UPDATE runs SET holder = ?, epoch = epoch + 1", (holder.lastrowid,))


@in_sqlite
async def test_a_holder_on_another_host_is_believed_during_its_lease_and_not_after(path: Path) -> None:
    async with SQLiteCheckpointStorage(path) as storage:
        log = await opened(storage)
        held_elsewhere(path, seconds_left=3600)
        with pytest.raises(RunTakenOver, match="process 4711 on another-host"):
            await log.save(draft(1))
        with pytest.raises(RunBusy, match="process 4711 on another-host"):
            await opened(storage)
        held_elsewhere(path, seconds_left=-1)
        saved = await (await opened(storage)).save(draft(1, final=True))
        assert await storage.newest_checkpoint_id("run-1") == saved.checkpoint_id
        assert await holder_of(storage) is None


# --- lock files -------------------------------------------------------------------------------------------------------


@in_sqlite
async def test_lock_files_of_the_dead_are_swept(store: SQLiteStore, processes: Processes) -> None:
    for _ in range(3):
        (await processes.holding()).kill()
    async with store.open() as storage:
        await opened(storage)
        async with store.open() as other:
            await opened(other, "another")
            assert store.named() == 2
    assert store.ask("SELECT count(*) FROM holders") == 2


def test_those_who_look_do_not_take_each_other_for_the_holder(tmp_path: Path) -> None:
    look = HolderLocks(tmp_path)
    lock = look.take("a")
    assert look.is_held("a")
    os.close(os.open(lock.path, os.O_RDONLY))
    assert look.is_held("a")
    lock.release()
    assert not look.is_held("a")
    assert not look.is_held("never")


@pytest.mark.parametrize("name", ["../a", "a/b", "", "a.b"])
def test_the_name_of_a_lock_can_not_leave_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="storage instance"):
        HolderLocks(tmp_path).is_held(name)


async def test_a_program_started_by_the_holder_does_not_keep_its_runs(store: Store, processes: Processes) -> None:
    starter = """
        async def main():
            async with open_store(store) as storage:
                await opened(storage)
                sleeper = subprocess.Popen(["sleep", "100"], close_fds=False, stdout=subprocess.DEVNULL)
                say(sleeper.pid)
                hear()
        asyncio.run(main())
    """
    starter_process = processes.start(starter)
    sleeper = int(await starter_process.hear())
    try:
        await kill(starter_process, store)
        async with store.open() as storage:
            await opened(storage)
            assert await holder_of(storage) == os.getpid()
    finally:
        os.kill(sleeper, signal.SIGKILL)


# --- forks ------------------------------------------------------------------------------------------------------------

FORKING = """
    storage = open_store(store)
    log = None

    async def begin():
        global log
        log = await opened(storage)
        await log.save(draft(1))
        await storage.get_latest()

    async def in_child():
        try:
            await log.save(draft(99))
            say("the child wrote with its parent's lease")
        except LeaseError as error:
            say(type(error).__name__)
        try:
            await opened(storage)
            say("the child took its parent's run")
        except LeaseError as error:
            say(type(error).__name__)
        other = await opened(storage, "child-run")
        await other.save(draft(1, final=True))
        say(len(await storage.list_runs()))
        await storage.close()

    async def in_parent():
        await log.save(draft(2, final=True))
        say(sorted(run.run_id for run in await storage.list_runs()))
        await storage.close()

    asyncio.run(begin())
    pid = os.fork()
    if pid == 0:
        asyncio.run(in_child())
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    say(status)
    asyncio.run(in_parent())
"""


async def test_a_forked_child_is_another_holder_and_leaves_its_parent_alone(processes: Processes) -> None:
    process = processes.start(FORKING)
    assert [await process.hear() for _ in range(5)] == ["RunTakenOver", "RunBusy", "2", "0", "['child-run', 'run-1']"]


async def test_a_forked_child_does_not_keep_its_parents_runs(store: Store, processes: Processes) -> None:
    forking = """
        async def begin():
            global storage
            storage = open_store(store)
            await opened(storage)

        asyncio.run(begin())
        child_is_there, told_by_child = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(told_by_child, b"!")
            time.sleep(100)
            os._exit(0)
        os.read(child_is_there, 1)
        say(pid)
        hear()
    """
    parent = processes.start(forking)
    orphan = int(await parent.hear())
    try:
        await kill(parent, store)
        async with store.open() as storage:
            await opened(storage)
            assert await holder_of(storage) == os.getpid()
    finally:
        os.kill(orphan, signal.SIGKILL)


@in_sqlite
async def test_forking_in_the_middle_of_many_writes_leaves_a_child_that_works(path: Path, processes: Processes) -> None:
    forking = """
        import threading

        path = store.partition(":")[2]
        storage = open_store(store)
        going = True

        async def busy():
            log = await opened(storage, "busy")
            n = 0
            while going:
                n += 1
                await log.save(draft(n))
                await storage.get_latest(run_id="busy")
            await log.release()
            await storage.close()

        async def in_child(number):
            log = await opened(storage, f"child-{number}")
            await log.save(draft(1, final=True))
            await storage.close()

        thread = threading.Thread(target=lambda: asyncio.run(busy()))
        thread.start()
        while not os.path.exists(path):
            time.sleep(0.001)
        for number in range(20):
            pid = os.fork()
            if pid == 0:
                asyncio.run(in_child(number))
                os._exit(0)
            say(os.waitpid(pid, 0)[1])
        going = False
        thread.join()
    """
    process = processes.start(forking)
    assert [await process.hear() for _ in range(20)] == ["0"] * 20
    assert await process.hear() == ""
    async with SQLiteCheckpointStorage(path) as storage:
        assert len(await storage.list_runs()) == 21
