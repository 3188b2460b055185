"""One run of a store is damaged: the others are listed all the same, and it can be removed, whatever is left of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepwell.checkpointing.registry import known_types
from stepwell.checkpointing.storage.file import FileCheckpointStorage
from stepwell.checkpointing.storage.protocol import BranchPoint
from stepwell.checkpointing.storage.recording import DAMAGED
from stepwell.errors import CheckpointDamaged
from stepwell.testing.storage import call, draft, opened


def record_of(path: Path, run_id: str) -> Path:
    return path / ".stepwell" / "runs" / run_id / "run.jsonl"


def nothing(file: Path) -> None:
    file.write_bytes(b"")


def no_first_line(file: Path) -> None:
    file.write_bytes(file.read_bytes().partition(b"\n")[2])


def altered_first_line(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"delivery", b"delivers", 1))


def of_another_run(file: Path) -> None:
    file.write_bytes(record_of(file.parents[3], "one").read_bytes())


def a_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def missing(file: Path) -> None:
    file.unlink()


Damage = Callable[[Path], None]
UNREADABLE: list[Damage] = [nothing, no_first_line, altered_first_line, of_another_run, a_link, missing]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def newest(path: Path) -> dict[str, str]:
    """Three runs in a store that nobody has open, and their newest checkpoints."""
    ids: dict[str, str] = {}
    async with FileCheckpointStorage(path) as storage:
        for run_id in ("one", "two", "three"):
            log = await opened(storage, run_id)
            await log.save(draft(1, {"of": run_id}))
            await log.record_call(call("ask"), supersedes=())
            ids[run_id] = (await log.save(draft(2, {"of": run_id}, final=True))).checkpoint_id
    return ids


# --- listing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", UNREADABLE, ids=lambda damage: damage.__name__)
async def test_a_run_that_can_not_be_read_hides_no_other_runs_checkpoints(
    path: Path, newest: dict[str, str], damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    damage(record_of(path, "two"))
    async with FileCheckpointStorage(path) as storage:
        with caplog.at_level(logging.WARNING):
            listed = await storage.list_checkpoints()
        assert [each.run_id for each in listed] == ["one", "one", "three", "three"]
        assert [each.state for each in listed[1:3]] == [{"of": "one"}, {"of": "three"}]
        assert [each.checkpoint_id for each in listed] == await storage.list_checkpoint_ids()
        assert "'two'" in caplog.text
        with pytest.raises(CheckpointDamaged):
            await storage.list_checkpoints(run_id="two")
        with pytest.raises(CheckpointDamaged):
            await opened(storage, "two")
        assert [run.run_id for run in await storage.list_runs(state=DAMAGED)] == ["two"]
        assert "run two" in [each.record for each in (await storage.verify()).damaged]


async def test_of_a_run_that_has_lost_lines_what_is_left_is_listed_among_the_others(
    path: Path, newest: dict[str, str]
) -> None:
    file = record_of(path, "two")
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    async with FileCheckpointStorage(path) as storage:
        listed = await storage.list_checkpoints()
        assert [each.run_id for each in listed] == ["one", "one", "two", "three", "three"]
        with pytest.raises(CheckpointDamaged, match="last lines are missing"):
            await storage.list_checkpoints(run_id="two")


# --- removing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", UNREADABLE, ids=lambda damage: damage.__name__)
async def test_a_run_that_can_not_be_read_can_be_deleted(path: Path, newest: dict[str, str], damage: Damage) -> None:
    damage(record_of(path, "two"))
    async with FileCheckpointStorage(path) as storage:
        assert await storage.delete_run("two")
        assert not await storage.delete_run("two")
        assert {run.run_id for run in await storage.list_runs()} == {"one", "three"}
        assert not (path / f"{newest['two']}.json").exists()
        assert len(await storage.list_checkpoints()) == 4
        latest = await storage.get_latest()
        assert latest is not None
        assert latest.checkpoint_id == newest["three"]
        assert (await storage.verify()).ok
        await start_anew(storage)
    assert list((path / ".stepwell" / "new").iterdir()) == []


async def start_anew(storage: Any) -> None:
    """There may be another run of the same name."""
    log = await opened(storage, "two")
    assert log.info is None
    await log.save(draft(1, {"of": "another"}, final=True))
    (checkpoint,) = await storage.list_checkpoints(run_id="two")
    assert checkpoint.state == {"of": "another"}


async def test_a_run_that_became_unreadable_while_it_was_known_can_be_deleted(path: Path) -> None:
    async with FileCheckpointStorage(path) as storage:
        log = await opened(storage, "two")
        await log.save(draft(1))
        nothing(record_of(path, "two"))
        assert await storage.delete_run("two")
        assert await storage.list_runs() == []
        assert (await storage.verify()).ok


async def test_a_branch_of_a_run_that_can_not_be_read_can_be_deleted(path: Path, newest: dict[str, str]) -> None:
    async with FileCheckpointStorage(path) as storage:
        branch = await opened(storage, "branch", branch_of=BranchPoint(newest["two"], "two"))
        await branch.load(newest["two"], known_types)
        await branch.save(draft(1, {"of": "branch"}, final=True))
    nothing(record_of(path, "two"))
    async with FileCheckpointStorage(path) as storage:
        assert await storage.delete_run("branch")
        assert await storage.delete_run("two")
        assert {run.run_id for run in await storage.list_runs()} == {"one", "three"}


async def test_a_run_with_a_readable_record_and_a_damaged_family_is_not_taken_for_an_unreadable_one(
    path: Path, newest: dict[str, str]
) -> None:
    async with FileCheckpointStorage(path) as storage:
        branch = await opened(storage, "branch", branch_of=BranchPoint(newest["two"], "two"))
        await branch.load(newest["two"], known_types)
        await branch.save(draft(1, final=True))
    (family,) = [each for each in (path / ".stepwell" / "families").iterdir() if each.stat().st_size]
    family.write_bytes(b"x" + family.read_bytes()[1:])
    async with FileCheckpointStorage(path) as storage:
        with pytest.raises(CheckpointDamaged, match="members can't be read"):
            await storage.delete_run("two")
        assert (await storage.load((await storage.list_checkpoint_ids(run_id="branch"))[0])).run_id == "branch"
