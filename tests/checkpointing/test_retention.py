"""Retention drops old checkpoints and what only they refer to, and nothing that anybody still needs."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.checkpointing import FULL_HISTORY, LATEST_ONLY, InMemoryCheckpointStorage, Retention, keep_last
from stepwell.checkpointing.registry import known_types
from stepwell.testing.storage import Label, asked, branched, checkpoint, decided, draft, opened


async def run_of(length: int, retention: Retention, run_id: str = "run-1") -> InMemoryCheckpointStorage:
    storage = InMemoryCheckpointStorage(retention=retention)
    log = await opened(storage, run_id)
    history: list[Label] = []
    for iteration in range(length):
        history.append(Label(f"{iteration} " + "x" * 200))
        await log.save(draft(iteration, state={"history": list(history), "scratch": f"{iteration} " + "y" * 5000}))
    await log.release()
    return storage


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        pytest.param(FULL_HISTORY, list(range(40)), id="everything"),
        pytest.param(LATEST_ONLY, [39], id="the latest"),
        pytest.param(keep_last(1), [39], id="the last one"),
        pytest.param(keep_last(3), [37, 38, 39], id="the last three"),
        pytest.param(keep_last(100), list(range(40)), id="more than there are"),
    ],
)
async def test_the_newest_checkpoints_stay(retention: Retention, kept: list[int]) -> None:
    storage = await run_of(40, retention)
    listed = await storage.list_checkpoints(run_id="run-1")
    assert [item.iteration_count for item in listed] == kept


async def test_what_stays_is_whole() -> None:
    storage = await run_of(40, keep_last(3))
    for item in await storage.list_checkpoints():
        state = (await storage.load(item.checkpoint_id)).state
        assert len(state["history"]) == item.iteration_count + 1
        assert state["scratch"].startswith(f"{item.iteration_count} ")


async def test_what_only_dropped_checkpoints_refer_to_is_dropped() -> None:
    storage = await run_of(40, LATEST_ONLY)
    scratches = [node for node in storage._nodes.values() if "yyy" in node.text]
    assert len(scratches) <= 2


async def test_retention_looks_at_each_run_alone() -> None:
    storage = InMemoryCheckpointStorage(retention=LATEST_ONLY)
    for number in (1, 2, 3):
        await storage.save(checkpoint(number, run=f"run-{number}"))
    assert await storage.list_checkpoint_ids() == ["c1", "c2", "c3"]


async def test_a_run_goes_on_from_what_is_left() -> None:
    storage = await run_of(5, LATEST_ONLY)
    log = await opened(storage)
    latest = await log.latest(known_types)
    assert latest is not None
    saved = await log.save(draft(5, state=latest.state, final=True))
    assert saved.sequence == 6
    assert (await storage.load(saved.checkpoint_id)).state == latest.state


async def test_requests_and_decisions_outlive_the_checkpoints_they_came_with() -> None:
    storage = InMemoryCheckpointStorage(retention=LATEST_ONLY)
    log = await opened(storage)
    await log.save(draft(1, pending=[asked("r1"), asked("r2")]))
    await log.save(draft(2, decisions=[decided("r1")]))
    await log.save(draft(3, final=True))
    log = await opened(storage)
    assert dict(log.decisions) == {"r1": decided("r1")}
    assert log.info is not None
    assert [pending.request_id for pending in log.info.pending_requests] == ["r2"]


async def test_a_branch_keeps_what_its_parent_drops() -> None:
    storage = InMemoryCheckpointStorage(retention=LATEST_ONLY)
    _, branch = await branched(storage)
    log = await opened(storage, "trunk")
    await log.save(draft(2, state={}, final=True))
    assert len((await storage.load(branch.checkpoint_id)).state["history"]) == 40


@pytest.mark.parametrize("count", [0, -1])
def test_the_newest_checkpoint_has_to_stay(count: int) -> None:
    with pytest.raises(ValueError, match="at least the newest"):
        keep_last(count)


def test_retentions_are_values() -> None:
    same: Any = keep_last(1)
    assert same == LATEST_ONLY
    assert keep_last(2) != LATEST_ONLY
