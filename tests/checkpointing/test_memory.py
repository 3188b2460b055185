"""The storage in memory passes the contracts that every storage passes, and stays fast however much it holds."""

from __future__ import annotations

import time
from typing import Any

import pytest

from stepwell.checkpointing import InMemoryCheckpointStorage
from stepwell.checkpointing.registry import known_types
from stepwell.checkpointing.values import Node
from stepwell.errors import CheckpointDamaged
from stepwell.testing import CheckpointStorageContract, RunStorageContract
from stepwell.testing.storage import Label, branched, call, checkpoint, draft, finished_run, opened


class TestTheSixMethods(CheckpointStorageContract):
    @pytest.fixture
    def storage(self) -> InMemoryCheckpointStorage:
        return InMemoryCheckpointStorage()


class TestRuns(RunStorageContract):
    @pytest.fixture
    def storage(self) -> InMemoryCheckpointStorage:
        return InMemoryCheckpointStorage()


# --- isolation --------------------------------------------------------------------------------------------------------


async def test_state_changed_after_the_save_is_not_in_the_checkpoint() -> None:
    storage = InMemoryCheckpointStorage()
    log = await opened(storage)
    state: dict[str, Any] = {"todo": ["a"], "bag": bytearray(b"a")}
    saved = await log.save(draft(1, state=state, final=True))

    state["todo"].append("b")
    state["bag"].extend(b"b")

    assert (await storage.load(saved.checkpoint_id)).state == {"todo": ["a"], "bag": bytearray(b"a")}


async def test_two_readers_of_a_checkpoint_share_nothing_that_can_change() -> None:
    storage = InMemoryCheckpointStorage()
    await storage.save(checkpoint(1, state={"todo": [["a"]], "long": [{"n": n} for n in range(100)]}))
    one, other = await storage.load("c1"), await storage.load("c1")

    one.state["todo"][0].append("b")
    one.state["long"][50]["n"] = "changed"

    assert other.state == {"todo": [["a"]], "long": [{"n": n} for n in range(100)]}


async def test_one_value_in_two_places_comes_back_as_two() -> None:
    storage = InMemoryCheckpointStorage()
    shared = [{"n": n, "text": "x" * 100} for n in range(10)]
    await storage.save(checkpoint(1, state={"left": shared, "right": shared}))

    loaded = (await storage.load("c1")).state
    loaded["left"][0]["n"] = "changed"

    assert loaded["right"] == shared


async def test_storages_do_not_share() -> None:
    one, other = InMemoryCheckpointStorage(), InMemoryCheckpointStorage()
    await one.save(checkpoint(1))
    assert await other.list_checkpoint_ids() == []


# --- audit ------------------------------------------------------------------------------------------------------------


async def test_an_audited_storage_keeps_calls_beyond_their_checkpoint() -> None:
    storage = InMemoryCheckpointStorage(audit=True)
    log = await opened(storage)
    await log.record_call(call("a"), supersedes=())
    await log.save(draft(1, final=True))
    assert list((await opened(storage)).calls) == [call("a")]


# --- damage -----------------------------------------------------------------------------------------------------------


async def damaged_run(storage: InMemoryCheckpointStorage) -> tuple[str, str]:
    """A run of two checkpoints whose second one refers to a value that has been overwritten."""
    log = await opened(storage)
    good = await log.save(draft(1, state={"text": "good"}))
    bad = await log.save(draft(2, state={"text": "x" * 10_000}, final=True))
    node = next(node for node in storage._nodes.values() if node.text.startswith('"xxx'))
    storage._nodes[node.id] = Node(node.id, node.text.replace("x", "y", 1), node.refs, node.digest)
    return good.checkpoint_id, bad.checkpoint_id


async def test_damage_names_the_record_and_the_newest_good_ancestor() -> None:
    storage = InMemoryCheckpointStorage()
    good, bad = await damaged_run(storage)
    with pytest.raises(CheckpointDamaged) as caught:
        await storage.load(bad)
    assert (caught.value.record, caught.value.good_ancestor) == (bad, good)


async def test_the_latest_never_falls_back_silently() -> None:
    storage = InMemoryCheckpointStorage()
    await damaged_run(storage)
    with pytest.raises(CheckpointDamaged):
        await storage.get_latest()


async def test_falling_back_is_the_callers_choice() -> None:
    storage = InMemoryCheckpointStorage()
    good, _ = await damaged_run(storage)
    latest = await storage.get_latest(fallback=True)
    assert latest is not None
    assert latest.checkpoint_id == good


async def test_a_damaged_run_is_not_resumed() -> None:
    storage = InMemoryCheckpointStorage()
    await damaged_run(storage)
    log = await opened(storage)
    with pytest.raises(CheckpointDamaged):
        await log.latest(known_types)


# --- sharing and sweeping ---------------------------------------------------------------------------------------------


async def test_a_branch_adds_nothing_that_its_parent_has_stored() -> None:
    storage = InMemoryCheckpointStorage()
    await branched(storage)
    nodes = len(storage._nodes)
    await storage.delete_run("trunk")
    assert len(storage._nodes) == nodes


async def test_what_nothing_refers_to_is_swept() -> None:
    storage = InMemoryCheckpointStorage()
    for run_id in ("a", "b"):
        await finished_run(storage, run_id, state={"history": [Label(f"{run_id} {n} " + "x" * 200) for n in range(40)]})
    await storage.delete_run("a")
    await storage.delete((await storage.list_checkpoint_ids())[0])
    assert storage._nodes == {}


# --- speed ------------------------------------------------------------------------------------------------------------


async def seconds_for_one_run(storage: InMemoryCheckpointStorage, run_id: str) -> float:
    began = time.perf_counter()
    log = await opened(storage, run_id)
    for iteration in range(5):
        await log.save(draft(iteration, state={"text": f"{run_id} {iteration} " + "x" * 5000}))
    await log.release()
    await storage.get_latest(run_id=run_id)
    return time.perf_counter() - began


async def test_a_thousand_runs_do_not_slow_the_next_one_down() -> None:
    storage = InMemoryCheckpointStorage()
    first = min([await seconds_for_one_run(storage, f"first-{n}") for n in range(20)])
    for number in range(1000):
        await finished_run(storage, f"run-{number}", state={"text": f"{number} " + "x" * 5000})
    last = min([await seconds_for_one_run(storage, f"last-{n}") for n in range(20)])
    assert last < 5 * first
