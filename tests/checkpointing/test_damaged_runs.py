"""A damaged run is listed as such and hides none of the others."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepwell import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler
from stepwell.checkpointing.registry import known_types
from stepwell.checkpointing.storage.file import FileCheckpointStorage
from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage
from stepwell.checkpointing.storage.protocol import BranchPoint
from stepwell.checkpointing.storage.recording import DAMAGED
from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
from stepwell.errors import CheckpointDamaged
from stepwell.testing import CrashingStorage, PowerLoss
from stepwell.testing.storage import asked, draft, opened
from tests.postgres_server import server


@dataclass(frozen=True)
class Damageable:
    """A storage, and a way to change what it keeps of a run behind its back."""

    storage: Any
    damage: Callable[[str], object]


def alter_record(folder: Path, run_id: str) -> None:
    """Change what the record says of the run's first checkpoint."""
    file = folder / ".stepwell" / "runs" / run_id / "run.jsonl"
    other = file.with_name("other")
    other.write_bytes(file.read_bytes().replace(b'"sequence":1', b'"sequence":4'))
    other.rename(file)


def alter_row(path: Path, run_id: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("UPDATE runs SET supersteps = supersteps + 1, usage = '[' WHERE run_id = ?", (run_id,))


@pytest.fixture(params=["files", "sqlite", "postgres"])
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Damageable]:
    if request.param == "files":
        async with FileCheckpointStorage(tmp_path) as in_files:
            yield Damageable(in_files, lambda run_id: alter_record(tmp_path, run_id))
        return
    if request.param == "sqlite":
        async with SQLiteCheckpointStorage(tmp_path / "runs.db") as in_file:
            yield Damageable(in_file, lambda run_id: alter_row(tmp_path / "runs.db", run_id))
        return
    schema = server().fresh_schema()
    alter = f"UPDATE {schema}.runs SET supersteps = supersteps + 1, usage = '[' WHERE run_id = %s"
    with server().connection() as raw:
        async with PostgresCheckpointStorage(server().dsn, schema=schema) as storage:
            yield Damageable(storage, lambda run_id: raw.execute(alter, (run_id,)))
    server().drop(schema)


async def three_runs(storage: Any) -> dict[str, str]:
    """Runs that wait for an answer, and their newest checkpoints."""
    newest: dict[str, str] = {}
    for run_id in ("one", "two", "three"):
        log = await opened(storage, run_id)
        await log.save(draft(1, {"of": run_id}))
        newest[run_id] = (await log.save(draft(2, {"of": run_id}, pending=[asked("r1")], final=True))).checkpoint_id
    return newest


async def test_it_is_listed_among_the_others_with_what_is_wrong(kept: Damageable) -> None:
    await three_runs(kept.storage)
    before = {run.run_id: run for run in await kept.storage.list_runs()}
    kept.damage("two")

    listed = {run.run_id: run for run in await kept.storage.list_runs()}

    assert {run_id: run.state for run_id, run in listed.items()} == {**_states(before), "two": DAMAGED}
    assert [listed["one"], listed["three"]] == [before["one"], before["three"]]
    assert listed["two"].stopped_by
    assert (listed["two"].pending_requests, listed["two"].undelivered_answers) == ((), 0)
    assert listed["two"].workflow_name == before["two"].workflow_name
    assert any("two" in each.record for each in (await kept.storage.verify()).damaged)


def _states(runs: dict[str, Any]) -> dict[str, str]:
    return {run_id: run.state for run_id, run in runs.items()}


async def test_it_is_found_by_the_state_in_which_it_is_listed_and_by_no_other(kept: Damageable) -> None:
    await three_runs(kept.storage)
    [state] = {run.state for run in await kept.storage.list_runs()}
    kept.damage("two")
    assert {run.run_id for run in await kept.storage.list_runs(state=state)} == {"one", "three"}
    assert [run.run_id for run in await kept.storage.list_runs(state=DAMAGED)] == ["two"]


async def test_it_can_not_be_opened_answered_or_cancelled(kept: Damageable) -> None:
    await three_runs(kept.storage)
    kept.damage("two")
    for attempt in (
        lambda: opened(kept.storage, "two"),
        lambda: kept.storage.answer("r1", True, run_id="two"),
        lambda: kept.storage.cancel_run("two"),
    ):
        with pytest.raises(CheckpointDamaged, match="two"):
            await attempt()
    await kept.storage.answer("r1", True, run_id="one")
    await kept.storage.cancel_run("three")


async def test_it_can_be_branched_off_and_deleted(kept: Damageable) -> None:
    newest = await three_runs(kept.storage)
    point = newest["two"]
    kept.damage("two")
    branch = await opened(kept.storage, "branch", branch_of=BranchPoint(point, "two"))
    assert (await branch.load(point, known_types)).state == {"of": "two"}
    await branch.save(draft(1, final=True))
    assert await kept.storage.delete_run("two")
    assert {run.run_id for run in await kept.storage.list_runs()} == {"one", "three", "branch"}
    assert (await kept.storage.load(newest["one"])).state == {"of": "one"}
    assert (await kept.storage.verify()).ok


async def test_a_record_that_can_not_be_read_at_all_is_listed_too(tmp_path: Path) -> None:
    async with FileCheckpointStorage(tmp_path) as storage:
        await three_runs(storage)
        [workflow] = {run.workflow_name for run in await storage.list_runs()}
    (tmp_path / ".stepwell" / "runs" / "two" / "run.jsonl").write_bytes(b"")
    async with FileCheckpointStorage(tmp_path) as storage:
        for listed in (await storage.list_runs(), await storage.list_runs(workflow_name=workflow)):
            assert [run.run_id for run in listed] == ["three", "one", "two"]
            assert listed[2].state == DAMAGED
        assert [run.run_id for run in await storage.list_runs(state=DAMAGED)] == ["two"]


async def test_a_record_without_its_last_lines_can_be_deleted(tmp_path: Path) -> None:
    async with FileCheckpointStorage(tmp_path) as storage:
        newest = await three_runs(storage)
    file = tmp_path / ".stepwell" / "runs" / "two" / "run.jsonl"
    data = file.read_bytes()
    file.write_bytes(data[: data.rindex(b'"sequence":2')])
    async with FileCheckpointStorage(tmp_path) as storage:
        with pytest.raises(CheckpointDamaged):
            await opened(storage, "two")
        assert await storage.delete_run("two")
        assert [run.run_id for run in await storage.list_runs()] == ["three", "one"]
        assert await storage.newest_checkpoint_id("three") == newest["three"]
        assert (await storage.verify()).ok


async def test_one_altered_question_makes_its_run_a_damaged_one() -> None:
    schema = server().fresh_schema()
    async with PostgresCheckpointStorage(server().dsn, schema=schema) as storage:
        await three_runs(storage)
        with server().connection() as raw:
            key = f"(SELECT key FROM {schema}.runs WHERE run_id = 'two')"
            raw.execute(f"UPDATE {schema}.requests SET shown = '1' WHERE run_key = {key}")
        [damaged] = await storage.list_runs(state=DAMAGED)
        assert damaged.run_id == "two"
        assert "request r1" in (damaged.stopped_by or "")
        assert len(await storage.list_runs()) == 3
    server().drop(schema)


async def test_a_run_without_its_newest_checkpoint_is_a_damaged_one() -> None:
    schema = server().fresh_schema()
    async with PostgresCheckpointStorage(server().dsn, schema=schema) as storage:
        newest = (await three_runs(storage))["two"]
        with server().connection() as raw:
            raw.execute(f"DELETE FROM {schema}.checkpoints WHERE checkpoint_id = %s", (newest,))
        [damaged] = await storage.list_runs(state=DAMAGED)
        assert damaged.run_id == "two"
        assert newest in (damaged.stopped_by or "")
        for refused in (opened(storage, "two"), storage.answer("r1", 1, run_id="two"), storage.cancel_run("two")):
            with pytest.raises(CheckpointDamaged, match=newest):
                await refused
    server().drop(schema)


class Twice(Executor):
    """Sends itself a message, so that a run of it can be cut off half-way."""

    @handler
    async def take(self, word: str, ctx: WorkflowContext[str, str]) -> None:
        if word == "go":
            await ctx.send_message("again")
        else:
            await ctx.yield_output(word)


def twice() -> Workflow:
    def both() -> Twice:
        return Twice("twice")

    return WorkflowBuilder(name="twice", start_executor=both).add_edge(both, both).build()


async def test_recover_warns_of_it_and_goes_on_with_the_others(
    kept: Damageable, caplog: pytest.LogCaptureFixture
) -> None:
    for run_id in ("one", "two", "three"):
        with pytest.raises(PowerLoss):
            cut_off = CrashingStorage(kept.storage, at="after checkpoint#1")
            await twice().run("go", run_id=run_id, checkpoint_storage=cut_off)
    kept.damage("two")
    with caplog.at_level(logging.WARNING):
        results = await twice().recover(kept.storage)
    assert {result.run_id: result.get_outputs() for result in results} == {"one": ["again"], "three": ["again"]}
    assert [record.args[0] for record in caplog.records if "damaged" in record.msg] == ["two"]  # type: ignore[index]
