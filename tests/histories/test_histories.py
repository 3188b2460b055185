"""What earlier formats have written is still read, and runs that were left then go on now."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stepwell import PostgresCheckpointStorage
from stepwell.checkpointing.storage.postgres_schema import SCHEMA_VERSION
from stepwell.checkpointing.storage.sqlite_schema import SCHEMA_VERSION as SQLITE_VERSION
from tests.histories.office import HERE, Letter, Question, office, storage_at
from tests.histories.postgres_dump import load
from tests.postgres_server import server

FORMATS = sorted(entry.name for entry in HERE.iterdir() if entry.is_dir() and entry.name[0].isdigit())
KEPT = sorted(
    entry.relative_to(HERE).as_posix()
    for format in FORMATS
    for entry in (HERE / format).iterdir()
    if not entry.name.startswith(".")
)


@pytest.fixture(params=KEPT)
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """A copy of what was written then."""
    kept = HERE / request.param
    async with in_postgres(kept.read_text()) if kept.suffix == ".sql" else in_files(kept, tmp_path) as storage:
        yield storage


@asynccontextmanager
async def in_files(kept: Path, folder: Path) -> AsyncIterator[Any]:
    place = folder / kept.name.removesuffix(".gz")
    if kept.is_dir():
        shutil.copytree(kept, place)
    else:
        place.write_bytes(gzip.decompress(kept.read_bytes()))
    async with storage_at(place) as storage:
        yield storage


@asynccontextmanager
async def in_postgres(text: str) -> AsyncIterator[Any]:
    schema = server().fresh_schema()
    with server().connection() as connection:
        load(connection, text, schema)
    try:
        async with PostgresCheckpointStorage(server().dsn, schema=schema) as storage:
            yield storage
    finally:
        server().drop(schema)


def test_there_is_a_history_of_each_kind() -> None:
    names = {Path(kept).name.removesuffix(".gz") for kept in KEPT}
    assert "file" in names
    assert names >= {f"sqlite-{version}.db" for version in range(1, SQLITE_VERSION + 1)}
    assert names >= {f"postgres-{version}.sql" for version in range(1, SCHEMA_VERSION + 1)}


async def test_a_run_that_was_cut_off_goes_on_and_repeats_nothing(storage: Any) -> None:
    asked: list[str] = []
    result = await office(asked).run("cut", run_id="cut", checkpoint_storage=storage)
    assert asked == ["cut 3"]
    [request] = result.get_request_info_events()
    assert isinstance(request.data, Question)
    result = await office(asked).run(run_id="cut", responses={"approve": True}, checkpoint_storage=storage)
    assert result.get_outputs() == ["CUT 1 CUT 2 CUT 3" + " naïve ☃" * 40]
    assert asked == ["cut 3"]


async def test_a_run_that_waited_for_a_person_takes_the_answer(storage: Any) -> None:
    asked: list[str] = []
    latest = await storage.get_latest(run_id="waiting")
    assert latest.state["_executor_state"]["clerk"] == {"seen": {3: {"WAIT 1", "WAIT 2", "WAIT 3"}}}
    result = await office(asked).run(
        checkpoint_id=latest.checkpoint_id, responses={"approve": False}, checkpoint_storage=storage
    )
    assert result.get_outputs() == ["no"]
    assert asked == []


async def test_a_run_that_was_finished_has_its_output_and_its_history(storage: Any) -> None:
    asked: list[str] = []
    result = await office(asked).run("end", run_id="finished", checkpoint_storage=storage)
    assert result.get_outputs() == ["END 1 END 2 END 3" + " naïve ☃" * 40]
    assert asked == []
    checkpoints = await storage.list_checkpoints(run_id="finished")
    assert [checkpoint.sequence for checkpoint in checkpoints] == list(range(1, len(checkpoints) + 1))
    loaded = [await storage.load(checkpoint.checkpoint_id) for checkpoint in checkpoints]
    sent = [message.data for each in loaded for group in each.messages.values() for message in group]
    assert any(isinstance(data, Letter) for data in sent)


async def test_everything_in_it_is_whole(storage: Any) -> None:
    report = await storage.verify()
    assert report.ok, report
    assert report.runs == 3
