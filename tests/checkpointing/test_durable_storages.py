"""What every storage promises that outlives its process, beyond the contracts, shown on each of them alike."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stepwell.checkpointing import FULL_HISTORY, LATEST_ONLY, keep_last
from stepwell.checkpointing.registry import known_types
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
from stepwell.testing.storage import (
    Label,
    asked,
    branched,
    call,
    checkpoint,
    decided,
    draft,
    finished_run,
    opened,
)
from tests.checkpointing.processes import WORKER, child
from tests.checkpointing.stores import OF_ROWS, ON_DISK, Store, StoreOfRows, StoreOnDisk, until
from tests.faults.backends import open_store

on_disk = pytest.mark.parametrize("store", ON_DISK, indirect=True)


@pytest.fixture
async def storage(store: Store) -> AsyncIterator[Any]:
    async with store.open() as storage:
        yield storage


def history(n: int) -> dict[str, Any]:
    """A state of some size that has little in common with the one before: a few of its messages."""
    messages = [Label(f"message {k} " * 10) for k in range(max(0, n - 20), n)]
    return {"n": n, "messages": messages, "items": [{"n": n, "i": i, "text": "x" * 600} for i in range(20)]}


# --- before the first use ---------------------------------------------------------------------------------------------


@on_disk
async def test_nothing_is_created_before_the_first_use(store: Store, tmp_path: Path) -> None:
    async with store.open():
        pass
    assert list(tmp_path.iterdir()) == []


async def test_a_later_version_is_refused_by_name(store: Store) -> None:
    async with store.open() as storage:
        await storage.save(checkpoint())
    store.become_later_version()
    async with store.open() as storage:
        with pytest.raises(FormatTooNew, match=store.later_version):
            await storage.load("c1")
        with pytest.raises(FormatTooNew, match=store.later_version):
            await storage.save(checkpoint(2))


@on_disk
async def test_a_folder_that_can_not_be_made_is_named(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    async with open_store(f"{store.kind}:{tmp_path / 'a file' / store.name}") as storage:
        with pytest.raises(StorageError, match=re.escape(f"a file/{store.name}")):
            await storage.get_latest()


# --- opening and closing ----------------------------------------------------------------------------------------------


@on_disk
async def test_storages_for_one_path_share_one_thread_until_the_last_is_closed(store: Store) -> None:
    one, other = store.open(), store.open()
    await one.save(checkpoint(1))
    await other.save(checkpoint(2))
    assert store.writers() == 1
    await one.close()
    assert await other.list_checkpoint_ids() == ["c1", "c2"]
    await other.close()
    await until(lambda: store.writers() == 0)  # it has nothing left to do but to end


async def test_a_closed_storage_says_so(storage: Any) -> None:
    await storage.save(checkpoint())
    (listed,) = await storage.list_checkpoints()
    await storage.close()
    with pytest.raises(StorageClosed):
        await storage.load("c1")
    with pytest.raises(StorageClosed):
        await storage.save(checkpoint(2))
    with pytest.raises(StorageClosed):
        _ = listed.state


async def test_closing_twice_does_nothing(storage: Any, store: Store) -> None:
    await storage.save(checkpoint())
    await storage.close()
    await storage.close()
    assert (store.alive(), store.named()) == (0, 0)
    async with store.open() as again:
        assert await again.list_checkpoint_ids() == ["c1"]


async def test_closing_waits_for_what_is_being_written(storage: Any, store: Store) -> None:
    log = await opened(storage)
    saving = asyncio.create_task(log.save(draft(1, {"kept": True})))
    await asyncio.sleep(0)
    await storage.close()
    saved = await saving

    async with store.open() as again:
        assert (await again.load(saved.checkpoint_id)).state == {"kept": True}


async def test_runs_are_free_once_their_storage_is_closed(storage: Any, store: Store) -> None:
    former = await opened(storage)
    await former.save(draft(1))
    await storage.close()
    async with store.open() as other:
        log = await opened(other)
        assert (await log.save(draft(2))).sequence == 2
        [run] = await other.list_runs()
        assert run.holder is not None


async def test_a_storage_dropped_open_warns_and_lets_go(store: Store) -> None:
    async def forget() -> None:
        await opened(store.open())
        gc.collect()

    with pytest.warns(ResourceWarning, match=f"{re.escape(store.name)}.*dropped open"):
        await forget()
    await until(lambda: store.writers() == 0)
    await until(lambda: store.alive() == 0)
    if isinstance(store, StoreOnDisk):  # in a database the run goes on naming who had it, until somebody takes it
        assert store.named() == 0
    async with store.open() as storage:
        assert (await opened(storage)).info is not None


async def test_two_storages_of_one_process_are_two_holders(store: Store) -> None:
    async with store.open() as other:
        one = store.open()
        await opened(one)
        with pytest.raises(RunBusy, match="this process"):
            await opened(other)
        await one.close()
        saved = await (await opened(other)).save(draft(1, final=True))
        assert await other.newest_checkpoint_id("run-1") == saved.checkpoint_id


async def test_one_storage_serves_event_loops_in_several_threads(storage: Any) -> None:
    async def work(name: str) -> None:
        log = await opened(storage, name)
        for n in range(5):
            await log.save(draft(n, {"name": name, "n": n}))
        await log.release()

    await asyncio.gather(work("here"), *[asyncio.to_thread(asyncio.run, work(f"run-{n}")) for n in range(3)])

    for name in ("here", "run-0", "run-1", "run-2"):
        latest = await storage.get_latest(run_id=name)
        assert latest is not None
        assert latest.state == {"name": name, "n": 4}


# --- cancellation -----------------------------------------------------------------------------------------------------


async def test_a_cancelled_opening_gives_the_run_back(storage: Any) -> None:
    await finished_run(storage, "run-1")
    opening = asyncio.create_task(opened(storage))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert (await opened(storage)).info is not None


async def test_a_run_is_free_at_whatever_instant_its_opening_was_cancelled(storage: Any) -> None:
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
        log = await opened(storage)
        assert (await log.save(draft(delay))).sequence == delay + 1
        await log.release()


async def test_nothing_is_written_after_a_cancelled_save_has_returned(storage: Any) -> None:
    log = await opened(storage)
    for n in range(20):
        saving = asyncio.create_task(log.save(draft(n)))
        for _ in range(n % 3):
            await asyncio.sleep(0)
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        before = await storage.list_checkpoint_ids()
        await asyncio.sleep(0.002)
        assert await storage.list_checkpoint_ids() == before


# --- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("store", "runs"), [("sqlite", 1500), ("file", 150), ("postgres", 150)], indirect=["store"])
async def test_hundreds_of_runs_at_once_are_all_kept(storage: Any, store: Store, runs: int) -> None:
    async def work(name: str) -> None:
        log = await opened(storage, name)
        await asyncio.gather(*[log.record_call(call(f"call-{n}"), supersedes=()) for n in range(3)])
        await log.save(draft(1, {"name": name, "label": Label(name * 60)}))
        await log.save(draft(2, {"name": name}, final=True))

    await asyncio.gather(*[work(f"run-{n}") for n in range(runs)])

    kept = store.kept()
    assert (kept["runs"], kept["checkpoints"], kept["calls"]) == (runs, 2 * runs, 0)
    assert len(await storage.list_runs()) == runs
    assert len(await storage.list_checkpoint_ids()) == 2 * runs
    for name in ("run-0", f"run-{runs // 2}", f"run-{runs - 1}"):
        first, second = await storage.list_checkpoints(run_id=name)
        assert (await storage.load(first.checkpoint_id)).state == {"name": name, "label": Label(name * 60)}
        assert (await storage.load(second.checkpoint_id)).state == {"name": name}


async def test_the_writes_of_one_run_keep_their_order(storage: Any) -> None:
    log = await opened(storage)
    tasks = [
        asyncio.create_task(log.record_call(call("inner"), supersedes=())),
        asyncio.create_task(log.record_call(call("outer"), supersedes=[call("inner").call_id])),
        asyncio.create_task(log.save(draft(1))),
        asyncio.create_task(log.record_call(call("next"), supersedes=())),
        asyncio.create_task(log.release()),
    ]
    await asyncio.gather(*tasks)
    assert [row.name for row in (await opened(storage)).calls] == ["next"]


async def many(storage: Any, count: int) -> list[RunLog]:
    return list(await asyncio.gather(*[opened(storage, f"run-{n}") for n in range(count)]))


async def test_one_who_may_not_write_does_not_disturb_the_others_of_its_group(storage: Any) -> None:
    logs = await many(storage, 30)
    await logs[7].release()
    await opened(storage, "run-7")
    saves = [log.save(draft(1, {"large": "x" * 9000}, final=True)) for log in logs]
    outcomes = await asyncio.gather(*saves, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes if isinstance(outcome, Exception)] == [RunTakenOver]
    assert isinstance(outcomes[7], RunTakenOver)
    assert len(await storage.list_checkpoint_ids()) == 29


async def test_a_second_answer_in_a_group_is_refused_alone(storage: Any) -> None:
    logs = await many(storage, 10)
    await asyncio.gather(*[log.save(draft(1, pending=[asked("q")])) for log in logs])
    await storage.answer("q", True, run_id="run-5")
    saves = [log.save(draft(2, decisions=[decided("q")], final=True)) for log in logs]
    outcomes = await asyncio.gather(*saves, return_exceptions=True)

    assert [index for index, outcome in enumerate(outcomes) if isinstance(outcome, AlreadyAnswered)] == [5]
    assert sum(isinstance(outcome, Exception) for outcome in outcomes) == 1


# --- several storages, several processes ------------------------------------------------------------------------------


async def test_of_answers_given_through_many_storages_at_once_one_counts(store: Store) -> None:
    storages = [store.open() for _ in range(4)]
    await finished_run(storages[0], "run-1", pending=[asked("r1")])
    results = await asyncio.gather(*(one.answer("r1", n) for n, one in enumerate(storages)), return_exceptions=True)
    assert results.count(None) == 1
    assert sum(isinstance(result, AlreadyAnswered) for result in results) == 3
    for one in storages:
        await one.close()


async def test_of_many_storages_that_open_or_create_a_run_at_once_one_gets_it(store: Store) -> None:
    storages = [store.open() for _ in range(6)]
    for run_id in ("new", "new"):  # the second time it is there
        attempts = await asyncio.gather(*(opened(one, run_id) for one in storages), return_exceptions=True)
        logs = [attempt for attempt in attempts if not isinstance(attempt, BaseException)]
        assert len(logs) == 1
        assert sum(isinstance(attempt, RunBusy) for attempt in attempts) == 5
        await logs[0].save(draft(1, final=True))
    for one in storages:
        await one.close()


async def test_a_save_that_begins_after_another_has_returned_is_later_in_every_storage(store: Store) -> None:
    storages = [store.open() for _ in range(3)]
    logs = [await opened(one, f"run-{number}") for number, one in enumerate(storages)]
    for n in range(12):
        saved = await logs[n % 3].save(draft(n))
        latest = await storages[(n + 1) % 3].get_latest(workflow_name="delivery")
        assert latest is not None
        assert latest.checkpoint_id == saved.checkpoint_id
    for one in storages:
        await one.close()


async def test_processes_that_create_and_fill_one_store_at_once(store: Store) -> None:
    await asyncio.gather(*[asyncio.to_thread(child, WORKER, store.address, n) for n in range(6)])

    async with store.open() as storage:
        runs = await storage.list_runs()
        assert len(runs) == 30
        assert len(await storage.list_checkpoint_ids()) == 300
        for run in runs:
            kept = await storage.list_checkpoints(run_id=run.run_id)
            assert [item.iteration_count for item in kept] == list(range(10))
            latest = await storage.get_latest(run_id=run.run_id)
            assert latest is not None
            assert latest.state == {"name": run.run_id, "n": 9}
        assert (await storage.verify()).ok
    assert store.kept()["calls"] == 0


# --- reading ----------------------------------------------------------------------------------------------------------


async def test_a_read_sees_one_instant_while_the_run_goes_on(store: Store) -> None:
    """With LATEST_ONLY the checkpoint being read is deleted under the reader's hands, again and again."""
    async with store.open(retention=LATEST_ONLY) as storage:
        log = await opened(storage)
        await log.save(draft(0, history(0)))
        going = True

        async def run() -> None:
            nonlocal going
            for n in range(1, 120):
                await log.save(draft(n, history(n)))
            going = False

        async def look() -> None:
            while going:
                latest = await storage.get_latest(run_id="run-1")
                assert latest is not None
                assert latest.state == history(latest.iteration_count)

        await asyncio.gather(run(), look(), look())


# --- retention and deletion -------------------------------------------------------------------------------------------


async def test_old_checkpoints_go_and_what_they_held_goes_with_them(store: Store) -> None:
    async with store.open(retention=keep_last(3)) as storage:
        log = await opened(storage)
        for n in range(3):
            await log.save(draft(n, history(n)))
        of_three = store.values()
        for n in range(3, 200):
            await log.save(draft(n, history(n)))
            if n % 50 == 49:
                latest = await storage.get_latest()
                assert (len(await storage.list_checkpoint_ids()), latest.state) == (3, history(n))
        assert store.values() < 20 * of_three, "without sweeping there would be 66 times as much"
        kept = await storage.list_checkpoints()
        assert store.kept()["checkpoints"] == 3
        assert [item.iteration_count for item in kept] == [197, 198, 199]
        for item in kept:
            assert (await storage.load(item.checkpoint_id)).state == history(item.iteration_count)


async def test_a_history_that_only_grows_survives_every_sweep(store: Store) -> None:
    labels: list[Label] = []
    sweeps: set[object] = set()
    async with store.open(retention=LATEST_ONLY) as storage:
        log = await opened(storage)
        for n in range(240):
            labels.append(Label(f"message {n} " * 10))
            await log.save(draft(n, {"history": labels, "scratch": [{"n": n, "text": "y" * 2000}]}))
            if n % 20 == 0:
                sweeps.add(store.sweeps())
        assert len(sweeps) >= 3, "it was not swept twice"
        await log.release()
    async with store.open() as storage:
        latest = await storage.get_latest()
        assert latest is not None
        assert latest.state["history"] == labels


async def test_a_sweep_in_one_run_leaves_its_branches_whole(store: Store) -> None:
    labels = [Label(f"message {n} " * 10) for n in range(100)]
    async with store.open() as storage:
        log = await opened(storage)
        point = await log.save(draft(1, {"history": labels}))
        branch = await opened(storage, "branch", branch_of=BranchPoint(point.checkpoint_id, "run-1"))
        await branch.load(point.checkpoint_id, known_types)
        await branch.save(draft(2, {"history": labels, "mine": True}, final=True))
        await log.release()
    async with store.open(retention=LATEST_ONLY) as storage:
        log = await opened(storage)
        before = store.sweeps()
        for n in range(100):
            await log.save(draft(n, history(n)))
        assert store.sweeps() != before
        latest = await storage.get_latest(run_id="branch")
        assert latest is not None
        assert latest.state == {"history": labels, "mine": True}
        with pytest.raises(CheckpointNotFound):
            await storage.load(point.checkpoint_id)


async def test_a_sweep_is_noticed_by_a_branch_under_way(storage: Any) -> None:
    labels = [Label(f"message {n} " * 10) for n in range(60)]
    log = await opened(storage)
    point = await log.save(draft(1, {"history": labels}))
    branch = await opened(storage, "branch", branch_of=BranchPoint(point.checkpoint_id, "run-1"))
    await branch.load(point.checkpoint_id, known_types)
    await log.save(draft(2, {}))
    await storage.delete(point.checkpoint_id)  # nothing refers to the history now, but the branch remembers it
    saved = await branch.save(draft(2, {"history": labels}, final=True))
    await log.release()
    assert (await storage.load(saved.checkpoint_id)).state == {"history": labels}
    assert (await storage.verify()).ok


async def test_values_of_a_deleted_run_stay_while_a_branch_needs_them(storage: Any, store: Store) -> None:
    _, leaf = await branched(storage)
    await finished_run(storage, "stranger")
    assert await storage.delete_run("trunk")
    assert store.kept()["departed"] == 1
    await finished_run(storage, "trunk")  # the same name again, another run
    (stranger,) = await storage.list_checkpoint_ids(run_id="stranger")
    await storage.delete(stranger)  # a sweep of another family
    assert len((await storage.load(leaf.checkpoint_id)).state["history"]) == 40
    for run_id in ("branch", "trunk", "stranger"):
        assert await storage.delete_run(run_id)
    assert set(store.kept().values()) == {0}


async def test_a_branch_of_a_branch_outlives_both(storage: Any) -> None:
    _, leaf = await branched(storage)
    log = await opened(storage, "twig", branch_of=BranchPoint(leaf.checkpoint_id, "branch"))
    parent = await log.load(leaf.checkpoint_id, known_types)
    twig = await log.save(draft(2, state=parent.state, final=True))
    assert await storage.delete_run("trunk")
    assert await storage.delete_run("branch")
    assert len((await storage.load(twig.checkpoint_id)).state["history"]) == 40


async def test_a_deleted_run_leaves_nothing(storage: Any, store: Store) -> None:
    log = await opened(storage)
    await log.save(draft(1, {"large": Label("secret " * 100)}, pending=[asked("r1")]))
    await log.record_call(call("a"), supersedes=())
    await log.release()
    assert await storage.delete_run("run-1")
    assert set(store.kept().values()) == {0}


async def test_a_checkpoint_saved_by_hand_leaves_nothing_when_it_is_deleted(storage: Any, store: Store) -> None:
    await storage.save(checkpoint(1, run=None, state={"label": Label("x" * 300)}))
    assert await storage.delete("c1")
    assert set(store.kept().values()) == {0}


@on_disk
async def test_what_was_deleted_is_not_in_any_file(store: StoreOnDisk) -> None:
    secret = "the combination is 12-34-56"
    async with store.open() as storage:
        log = await opened(storage)
        await log.record_call(call(secret), supersedes=())
        await log.save(draft(1, {"small": secret, "large": Label(secret * 30)}, pending=[asked(secret)]))
        await log.record_call(call(secret), supersedes=())
        await log.release()
        await finished_run(storage, "other")
        assert await storage.delete_run("run-1")
    assert [file for file in store.files() if secret.encode() in file.read_bytes()] == []
    assert store.files() != []


async def test_audited_calls_stay(store: Store) -> None:
    async with store.open(audit=True) as storage:
        log = await opened(storage)
        for n in range(3):
            await log.record_call(call(f"call-{n}"), supersedes=())
            await log.save(draft(n))
        await log.release()
        assert [row.name for row in (await opened(storage)).calls] == ["call-0", "call-1", "call-2"]
        assert storage.retention is FULL_HISTORY


# --- damage -----------------------------------------------------------------------------------------------------------

_CHECKPOINT = "UPDATE checkpoints SET {} WHERE id = 2"
_NODE = "UPDATE nodes SET {} WHERE id = (SELECT max(id) FROM nodes)"
DAMAGE = {
    "a changed body": _CHECKPOINT.format("body = replace(body, 'forty', 'fifty')"),
    "an empty body": _CHECKPOINT.format("body = ''"),
    "a changed header": _CHECKPOINT.format("header = replace(header, '\"iteration\":2', '\"iteration\":9')"),
    "a header that is no JSON": _CHECKPOINT.format("header = 'header'"),
    "references to something else": _CHECKPOINT.format("refs = (SELECT refs FROM checkpoints WHERE id = 1)"),
    "a changed node": _NODE.format("body = replace(body, 'zz', 'yy')"),
    "a missing node": "DELETE FROM nodes WHERE id = (SELECT max(id) FROM nodes)",
}
SQLITE_DAMAGE = {
    "a header that is no text": _CHECKPOINT.format("header = x'ff00fe'"),
    "a body that is no text": _CHECKPOINT.format("body = x'7b7d'"),
    "a body that is not UTF-8": _CHECKPOINT.format("body = CAST(x'ff' AS TEXT) || body"),
    "a changed digest": _CHECKPOINT.format("digest = x'00112233445566778899aabbccddeeff'"),
    "references cut short": _CHECKPOINT.format("refs = substr(refs, 1, 3)"),
    "a line break in a node": _NODE.format("body = replace(body, 'zz', char(10))"),
    "a node's changed digest": _NODE.format("digest = x'00'"),
    "a node's references cut short": _NODE.format("refs = x'010203'"),
}
POSTGRES_DAMAGE = {
    "a changed digest": _CHECKPOINT.format("digest = '\\x00112233445566778899aabbccddeeff'"),
    "no references": _CHECKPOINT.format("refs = '{}'"),
    "references to nothing": _CHECKPOINT.format("refs = '{NULL}'"),
    "references of references": _CHECKPOINT.format("refs = '{{1,2},{3,4}}'"),
    "a node's changed digest": _NODE.format("digest = '\\x00'"),
    "a node that refers to itself": _NODE.format("refs = ARRAY[id]"),
}
_DAMAGES = {"sqlite": DAMAGE | SQLITE_DAMAGE, "postgres": DAMAGE | POSTGRES_DAMAGE}


@pytest.mark.parametrize(
    ("store", "statement"),
    [
        pytest.param(kind, statement, id=f"{kind}-{what}")
        for kind in OF_ROWS
        for what, statement in _DAMAGES[kind].items()
    ],
    indirect=["store"],
)
async def test_damage_is_noticed_and_the_newest_good_ancestor_named(
    storage: Any, store: StoreOfRows, statement: str
) -> None:
    log = await opened(storage)
    good = await log.save(draft(1, {"label": Label("a" * 300)}))
    bad = await log.save(draft(2, {"number": "forty", "label": Label("z" * 300)}, final=True))
    assert store.change(statement) == 1
    with pytest.raises(CheckpointDamaged) as caught:
        await storage.load(bad.checkpoint_id)
    assert caught.value.good_ancestor == good.checkpoint_id
    with pytest.raises(CheckpointDamaged):
        await storage.get_latest(run_id="run-1")
    fallen_back = await storage.get_latest(run_id="run-1", fallback=True)
    assert fallen_back is not None
    assert fallen_back.checkpoint_id == good.checkpoint_id


@pytest.mark.parametrize("store", OF_ROWS, indirect=True)
async def test_a_damaged_call_is_noticed_and_the_run_not_taken(storage: Any, store: StoreOfRows) -> None:
    log = await opened(storage)
    await log.record_call(call("one", result='"paid"'), supersedes=())
    await log.release()
    store.change("UPDATE calls SET body = replace(body, 'paid', 'owed')")
    with pytest.raises(CheckpointDamaged, match="one"):
        await opened(storage)
    (run,) = await storage.list_runs()
    assert run.holder is None


# --- a medium that fails ----------------------------------------------------------------------------------------------


@on_disk
async def test_a_store_that_was_removed_is_an_error(storage: Any, store: StoreOnDisk) -> None:
    log = await opened(storage)
    await log.save(draft(1))
    store.remove()
    with pytest.raises(StorageError, match="removed or replaced"):
        await log.save(draft(2))
    with pytest.raises(RunTakenOver):
        await log.save(draft(3))


FULL_DISK = """
    import asyncio, resource, sys
    from stepwell.errors import StorageError
    from stepwell.testing.storage import call, draft, opened
    from tests.faults.backends import open_store

    store, space, least = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

    def room(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    async def main():
        async with open_store(store) as storage:
            log = await opened(storage)
            saved = []
            room(space)
            try:
                for n in range(1000):
                    await log.record_call(call(f"call-{n}"), supersedes=())
                    saved.append(await log.save(draft(n, {"n": n, "text": f"{n}" * 4000})))
            except StorageError as error:
                assert store.partition(":")[2] in str(error), error
            else:
                raise AssertionError("the disk never filled up")
            assert len(saved) >= least, saved
            for again in range(3):
                try:
                    await log.save(draft(9999, {"text": "z" * 50_000}))
                except StorageError:
                    continue
            room(resource.RLIM_INFINITY)
            latest = await storage.get_latest(run_id="run-1")
            assert latest is None or latest.iteration_count in (saved[-1].iteration_count, 9999), latest
            for checkpoint in saved:
                await storage.load(checkpoint.checkpoint_id)
            await log.save(draft(10_000))
            await log.release()
            log = await opened(storage)
            assert [row.name for row in log.calls] == []
            await log.save(draft(10_001, final=True))
            assert (await storage.verify()).ok, await storage.verify()
            print("good")

    asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("store", "room", "least"),
    [("file", 3_000, 0), ("file", 20_000, 1), ("file", 60_000, 5), ("sqlite", 1_000_000, 11)],
    indirect=["store"],
)
def test_a_full_disk_stops_the_run_and_repairing_it_lets_it_go_on(store: Store, room: int, least: int) -> None:
    assert child(FULL_DISK, store.address, room, least) == "good"
