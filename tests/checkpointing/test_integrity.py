"""Damage is noticed: each changed bit is a typed error or changes nothing, and none of it is silently passed over."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepwell.checkpointing.checkpoint import WorkflowCheckpoint
from stepwell.checkpointing.storage.file import FileCheckpointStorage
from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
from stepwell.errors import CheckpointDamaged, WorkflowCheckpointException
from stepwell.testing.storage import Label, asked, call, draft, opened

FLIPS = 600


@dataclass(frozen=True)
class Written:
    """A run with three checkpoints, the newest with everything in it."""

    ids: tuple[str, ...]
    state: dict[str, Any]


async def written(storage: Any, run_id: str = "run-1") -> Written:
    labels = [Label(f"{n} " + "x" * 200) for n in range(20)]
    log = await opened(storage, run_id)
    state: dict[str, Any] = {}
    ids: list[str] = []
    for n in range(1, 4):
        state = {"n": n, "history": labels[: n * 6], "mine": Label(f"{run_id} {n} " * 30), "word": "forty" * n}
        ids.append((await log.save(draft(n, state, pending=[asked(f"r{n}")]))).checkpoint_id)
    await log.record_call(call("pay"), supersedes=())
    await log.release()
    return Written(tuple(ids), state)


async def looked_at(storage: Any) -> WorkflowCheckpoint | WorkflowCheckpointException:
    """The newest checkpoint, or the error there is instead."""
    try:
        latest = await storage.get_latest(run_id="run-1")
    except WorkflowCheckpointException as error:
        return error
    assert latest is not None, "the newest checkpoint was silently passed over"
    return latest  # type: ignore[no-any-return]


def assert_noticed(found: WorkflowCheckpoint | WorkflowCheckpointException, kept: Written) -> None:
    assert isinstance(found, CheckpointDamaged), found
    assert kept.ids[2] in found.record
    assert found.good_ancestor == kept.ids[1]


# --- files ------------------------------------------------------------------------------------------------------------


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


async def test_600_bits_of_the_newest_file_are_each_noticed(tmp_path: Path) -> None:
    async with FileCheckpointStorage(tmp_path) as storage:
        kept = await written(storage)
        file = tmp_path / f"{kept.ids[2]}.json"
        good = file.read_bytes()
        for bit in random.Random(1).sample(range(len(good) * 8), FLIPS):
            file.write_bytes(flipped(good, bit))
            assert_noticed(await looked_at(storage), kept)
        report = await storage.verify()
        assert [each.record for each in report.damaged] == [kept.ids[2]]
        file.write_bytes(good)
        assert (await storage.verify()).ok


async def test_600_bits_of_the_runs_record_are_each_noticed_and_never_change_a_value(tmp_path: Path) -> None:
    kept: Written | None = None
    async with FileCheckpointStorage(tmp_path) as storage:
        kept = await written(storage)
    file = tmp_path / ".stepwell" / "runs" / "run-1" / "run.jsonl"
    good = file.read_bytes()
    for bit in random.Random(2).sample(range(len(good) * 8), FLIPS):
        replaced(file, flipped(good, bit))
        async with FileCheckpointStorage(tmp_path) as storage:
            found = await looked_at(storage)
            if isinstance(found, WorkflowCheckpoint):
                # A value that only older checkpoints lead to.
                assert (found.checkpoint_id, found.state) == (kept.ids[2], kept.state)
            else:
                assert isinstance(found, CheckpointDamaged)
            assert not (await storage.verify()).ok


async def test_bits_of_the_journal_are_each_noticed(tmp_path: Path) -> None:
    async with FileCheckpointStorage(tmp_path) as storage:
        await written(storage)
        file = tmp_path / ".stepwell" / "runs" / "run-1" / "journal.jsonl"
        good = file.read_bytes()
        for bit in random.Random(3).sample(range(len(good) * 8), 200):
            file.write_bytes(flipped(good, bit))
            assert not (await storage.verify()).ok
            with pytest.raises(CheckpointDamaged):
                await opened(storage)


def replaced(file: Path, data: bytes) -> None:
    """A new file, as a restored backup would be: nobody may go by what was read of the old one."""
    other = file.with_name("other")
    other.write_bytes(data)
    other.rename(file)


FILE_DAMAGE: dict[str, Callable[[Path, bytes], None]] = {
    "cut in the middle": lambda file, data: file.write_bytes(data[: len(data) // 2]) and None,
    "cut by one byte": lambda file, data: file.write_bytes(data[:-1]) and None,
    "NULs at the end": lambda file, data: file.write_bytes(data[:-100] + bytes(100)) and None,
    "NULs all over": lambda file, data: file.write_bytes(bytes(len(data))) and None,
    "empty": lambda file, data: file.write_bytes(b"") and None,
    "longer": lambda file, data: file.write_bytes(data + b"\n") and None,
    "missing": lambda file, data: file.unlink(),
    "a folder": lambda file, data: file.rename(file.with_name("away")) and file.mkdir(),
}


@pytest.mark.parametrize("damage", FILE_DAMAGE.values(), ids=FILE_DAMAGE.keys())
async def test_a_newest_file_that_is_not_what_was_written_is_noticed(
    tmp_path: Path, damage: Callable[[Path, bytes], None]
) -> None:
    async with FileCheckpointStorage(tmp_path) as storage:
        kept = await written(storage)
        file = tmp_path / f"{kept.ids[2]}.json"
        damage(file, file.read_bytes())
        assert_noticed(await looked_at(storage), kept)
        with pytest.raises(CheckpointDamaged):
            await storage.load(kept.ids[2])
        assert not (await storage.verify()).ok
        fallen_back = await storage.get_latest(run_id="run-1", fallback=True)
        assert fallen_back is not None
        assert fallen_back.checkpoint_id == kept.ids[1]


RECORD_DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "its last checkpoint cut off": lambda data: data[: data.rindex(b'"sequence":3')],
    "a line left out": lambda data: b"".join(
        line for line in data.splitlines(keepends=True) if b'"sequence":2' not in line
    ),
    "two lines exchanged": lambda data: exchanged(data, b'"sequence":1', b'"sequence":2'),
    "NULs at the end": lambda data: data[: data.rindex(b'"sequence":3')] + bytes(300),
    "NULs all over": lambda data: bytes(len(data)),
    "empty": lambda data: b"",
}


def exchanged(data: bytes, one: bytes, other: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    first, second = (next(n for n, line in enumerate(lines) if mark in line) for mark in (one, other))
    lines[first], lines[second] = lines[second], lines[first]
    return b"".join(lines)


@pytest.mark.parametrize("damage", RECORD_DAMAGE.values(), ids=RECORD_DAMAGE.keys())
async def test_a_record_that_has_lost_something_is_noticed(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    async with FileCheckpointStorage(tmp_path) as storage:
        await written(storage)
    file = tmp_path / ".stepwell" / "runs" / "run-1" / "run.jsonl"
    replaced(file, damage(file.read_bytes()))
    async with FileCheckpointStorage(tmp_path) as storage:
        assert isinstance(await looked_at(storage), CheckpointDamaged)
        with pytest.raises(CheckpointDamaged):
            await storage.list_checkpoint_ids(run_id="run-1")
        with pytest.raises(CheckpointDamaged):
            await opened(storage)
        assert not (await storage.verify()).ok


async def test_a_run_whose_folder_is_gone_is_noticed(tmp_path: Path) -> None:
    async with FileCheckpointStorage(tmp_path) as storage:
        await written(storage)
        folder = tmp_path / ".stepwell" / "runs" / "run-1"
        folder.rename(tmp_path / "elsewhere")
        with pytest.raises(CheckpointDamaged, match="folder is missing"):
            await storage.get_latest()


async def test_two_files_that_changed_places_are_noticed(tmp_path: Path) -> None:
    async with FileCheckpointStorage(tmp_path) as storage:
        kept = await written(storage)
        one, other = (tmp_path / f"{name}.json" for name in kept.ids[1:])
        swap(one, other)
        for name in kept.ids[1:]:
            with pytest.raises(CheckpointDamaged, match="another checkpoint") as caught:
                await storage.load(name)
            assert (caught.value.record, caught.value.good_ancestor) == (name, kept.ids[0])


@pytest.mark.parametrize("name", ["run.jsonl", "journal.jsonl"])
async def test_files_of_two_runs_that_changed_places_are_noticed(tmp_path: Path, name: str) -> None:
    async with FileCheckpointStorage(tmp_path) as storage:
        for run_id in ("run-1", "run-2"):
            await written(storage, run_id)
    runs = tmp_path / ".stepwell" / "runs"
    swap(runs / "run-1" / name, runs / "run-2" / name)
    async with FileCheckpointStorage(tmp_path) as storage:
        for run_id in ("run-1", "run-2"):
            with pytest.raises(CheckpointDamaged):
                await opened(storage, run_id)


def swap(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


# --- SQLite -----------------------------------------------------------------------------------------------------------

COLUMNS = [
    *(
        ("checkpoints", column, "id = (SELECT max(id) FROM checkpoints)")
        for column in ("digest", "header", "refs", "body")
    ),
    *(("nodes", column, "id = (SELECT max(id) FROM nodes)") for column in ("digest", "refs", "body")),
]


async def test_600_bits_of_the_newest_rows_are_each_noticed(tmp_path: Path) -> None:
    dice = random.Random(4)
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        kept = await written(storage)
        with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as raw:
            for _ in range(FLIPS):
                table, column, where = dice.choice(COLUMNS)
                row = f"FROM {table} WHERE {where}"
                kind, good = raw.execute(f"SELECT typeof({column}), CAST({column} AS BLOB) {row}").fetchone()
                if not good:
                    continue
                update = f"UPDATE {table} SET {column} = CAST(? AS {kind}) WHERE {where}"
                raw.execute(update, (flipped(good, dice.randrange(len(good) * 8)),))
                assert_noticed(await looked_at(storage), kept)
                raw.execute(update, (good,))
        assert (await looked_at(storage)).state == kept.state  # type: ignore[union-attr]
        assert (await storage.verify()).ok


SQL_DAMAGE = {
    "two rows changed places": """UPDATE checkpoints SET checkpoint_id = CASE checkpoint_id WHEN :one THEN 'between'
        ELSE checkpoint_id END; UPDATE checkpoints SET checkpoint_id = :one WHERE checkpoint_id = :two;
        UPDATE checkpoints SET checkpoint_id = :two WHERE checkpoint_id = 'between'""",
    "a body of nothing": "UPDATE checkpoints SET body = '' WHERE checkpoint_id = :two",
    "a body of NULs": "UPDATE checkpoints SET body = CAST(zeroblob(length(body)) AS TEXT) WHERE checkpoint_id = :two",
    "a body cut short": "UPDATE checkpoints SET body = substr(body, 1, length(body) / 2) WHERE checkpoint_id = :two",
}


@pytest.mark.parametrize("statements", SQL_DAMAGE.values(), ids=SQL_DAMAGE.keys())
async def test_rows_that_are_not_what_was_written_are_noticed(tmp_path: Path, statements: str) -> None:
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        kept = await written(storage)
        with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as raw:
            for statement in statements.split(";"):
                raw.execute(statement, {"one": kept.ids[1], "two": kept.ids[2]})
        with pytest.raises(CheckpointDamaged) as caught:
            await storage.load(kept.ids[2])
        assert caught.value.record == kept.ids[2]
        assert kept.ids[2] in {each.record for each in (await storage.verify()).damaged}


async def test_verifying_a_database_tells_of_calls_values_and_pages(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SQLiteCheckpointStorage(path) as storage:
        await written(storage)
        report = await storage.verify()
        assert (report.ok, report.runs, report.checkpoints, report.calls) == (True, 1, 3, 1)
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            raw.execute("UPDATE calls SET body = replace(body, 'done', 'gone')")
            raw.execute("UPDATE nodes SET body = body || ' ' WHERE id = (SELECT min(id) FROM nodes)")
        records = [each.record.split()[0] for each in (await storage.verify()).damaged]
        assert {"call", "value"} <= set(records)
    content = bytearray(path.read_bytes())
    for page in range(1, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xa5" * 64
    path.write_bytes(content)
    async with SQLiteCheckpointStorage(path) as storage:
        assert not (await storage.verify()).ok


# --- any of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FileCheckpointStorage, SQLiteCheckpointStorage], ids=["file", "sqlite"])
async def test_a_store_in_order_says_so_and_counts(tmp_path: Path, kind: Any) -> None:
    async with kind(tmp_path / "store") as storage:
        assert (await storage.verify()).ok
        await written(storage)
        await written(storage, "run-2")
        report = await storage.verify()
        assert (report.runs, report.checkpoints, report.calls, report.damaged) == (2, 6, 2, ())
