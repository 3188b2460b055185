"""Damage is noticed: each changed bit is a typed error or changes nothing, and none of it is silently passed over."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stepwell.checkpointing.checkpoint import WorkflowCheckpoint
from stepwell.checkpointing.registry import known_types
from stepwell.checkpointing.storage.file import FileCheckpointStorage
from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage
from stepwell.checkpointing.storage.protocol import BranchPoint, RunInfo
from stepwell.checkpointing.storage.recording import DAMAGED
from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
from stepwell.errors import CheckpointDamaged, WorkflowCheckpointException
from stepwell.testing.storage import Label, asked, call, checkpoint, draft, opened
from tests.postgres_server import server

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
        for column in ("digest", "header", "refs", "body", "run_key", "workflow")
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


# --- Postgres ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def schema() -> Iterator[str]:
    schema = server().fresh_schema()
    yield schema
    server().drop(schema)


@pytest.fixture
async def postgres(schema: str) -> AsyncIterator[PostgresCheckpointStorage]:
    async with PostgresCheckpointStorage(server().dsn, schema=schema) as storage:
        yield storage


@pytest.fixture
def raw(schema: str) -> Iterator[psycopg.Connection[Any]]:
    """The tables, for somebody who changes them behind the storage's back."""
    with server().connection() as connection:
        connection.execute(f"SET search_path TO {schema}")
        yield connection


async def lived(storage: Any) -> Written:
    """A run with something in every column, a branch of it, and a run beside it."""
    kept = await written(storage)
    await storage.answer("r1", {"approved": [True, 3]}, run_id="run-1")
    log = await opened(storage)
    await log.release(state="FAILED", stopped_by="RuntimeError: no paper")
    await written(storage, "run-2")
    await (await opened(storage, "branch-1", branch_of=BranchPoint(kept.ids[1], "run-1"))).release()
    return kept


async def everything(storage: Any) -> Any:
    """All that a program gets to see of the runs; taking them is part of it."""
    latest = await storage.get_latest(run_id="run-1")
    runs = [_in_any_order(run) for run in await storage.list_runs()]
    for run in runs:
        if run.state == DAMAGED:
            raise CheckpointDamaged(run.run_id, f"listed as damaged: {run.stopped_by}")
    asked_for = [await storage.decision("run-1", f"r{n}") for n in range(1, 4)]
    resumed: list[Any] = []
    for run_id in ("run-1", "run-2", "branch-1"):
        log = await opened(storage, run_id)
        assert log.info is not None
        resumed += [sorted(log.calls, key=repr), dict(log.decisions), _in_any_order(log.info)]
        await log.release()
    assert latest is not None
    return latest.checkpoint_id, latest.state, latest.pending_request_info_events, runs, asked_for, resumed


def _in_any_order(run: RunInfo) -> RunInfo:
    return replace(run, holder=None, pending_requests=tuple(sorted(run.pending_requests, key=repr)))


HARMLESS = {
    ("runs", "epoch"): "only ever grows; a holder whose epoch does not fit is refused",
    ("runs", "sweeps"): "a log that finds another number looks again which values are left",
    ("runs", "sweep_at"): "when it is next worth looking for unused values",
    ("calls", "id"): "in which order calls were recorded, which replaying them does not go by",
    ("requests", "id"): "in which order questions are shown",
    ("holders", "lock"): "its owner seems dead: whoever takes its runs over is safe from it behind the fence",
    ("holders", "commits"): "looked at only in the instant after a connection was lost",
    ("holders", "holder"): "its owner seems dead, likewise",
    ("departed", "origin"): "values of a deleted run are removed too late, or missed and told",
    ("departed", "run_key"): "likewise",
    ("runs", "holder"): "its owner is refused, likewise",
    ("runs", "key"): "an index entry of its own; those who look for the run's rows find none, and tell",
}
"""Columns that no digest covers, and why a change of theirs alters nothing or is told all the same."""

_BYTES = {
    "bytea": ("{}", "%s::bytea"),
    "text": ("convert_to({}, 'UTF8')", "convert_from(%s::bytea, 'UTF8')"),
    "bigint": ("int8send({})", "('x' || encode(%s::bytea, 'hex'))::bit(64)::bigint"),
    "boolean": ("boolsend({})", "get_byte(%s::bytea, 0)::boolean"),
    "ARRAY": ("convert_to({}::text, 'UTF8')", "convert_from(%s::bytea, 'UTF8')::bigint[]"),
}
"""How a column of each kind becomes bytes, and bytes the column again."""


@dataclass(frozen=True)
class Cell:
    """One column of one row."""

    table: str
    column: str
    kind: str
    row: str

    def read(self, raw: psycopg.Connection[Any]) -> bytes | None:
        to_bytes = _BYTES[self.kind][0].format(self.column)
        row = raw.execute(f"SELECT {to_bytes} FROM {self.table} WHERE ctid = '{self.row}'").fetchone()
        assert row is not None
        return row[0]  # type: ignore[no-any-return]

    def with_bit_flipped(self, raw: psycopg.Connection[Any], dice: random.Random) -> bool:
        """Change it; False if Postgres would not have such a value."""
        good = self.read(raw)
        if not good:
            return False
        bit = 0 if self.kind == "boolean" else dice.randrange(len(good) * 8)
        from_bytes = _BYTES[self.kind][1]
        changed = f"UPDATE {self.table} SET {self.column} = {from_bytes} WHERE ctid = '{self.row}'"
        try:
            raw.execute(changed, (flipped(good, bit),))
        except (psycopg.DataError, psycopg.IntegrityError):
            return False
        return True


def cells(raw: psycopg.Connection[Any], schema: str) -> list[Cell]:
    """Every column of every row there is."""
    columns = raw.execute(
        "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = %s"
        " AND data_type <> 'timestamp with time zone' AND table_name <> 'stepwell_version' ORDER BY 1, 2",
        (schema,),
    ).fetchall()
    return [
        Cell(table, column, kind, row)
        for table, column, kind in columns
        for (row,) in raw.execute(f"SELECT ctid::text FROM {table} ORDER BY ctid").fetchall()
    ]


TABLES = ("runs", "checkpoints", "nodes", "calls", "requests", "departed")


def remember(raw: Any, tables: Sequence[str] = TABLES) -> None:
    for table in tables:
        raw.execute(f"CREATE TEMP TABLE kept_{table} AS SELECT * FROM {table}")


@contextmanager
def put_back(raw: psycopg.Connection[Any]) -> Iterator[None]:
    """Whatever happens to the tables meanwhile, they are as they were remembered afterwards, row by row."""
    try:
        yield
    finally:
        with raw.transaction():
            for table in TABLES:
                raw.execute(f"DELETE FROM {table}")
                raw.execute(f"INSERT INTO {table} SELECT * FROM kept_{table}")


@pytest.mark.parametrize("flips", [150, pytest.param(FLIPS, marks=pytest.mark.faults)])
async def test_bits_anywhere_in_the_tables_are_each_noticed_or_change_nothing(
    postgres: PostgresCheckpointStorage, raw: psycopg.Connection[Any], schema: str, flips: int
) -> None:
    dice = random.Random(5)
    await lived(postgres)
    before = await everything(postgres)
    remember(raw)
    done, untold = 0, Counter[tuple[str, str]]()
    while done < flips:
        cell = dice.choice(cells(raw, schema))
        with put_back(raw):
            if not cell.with_bit_flipped(raw, dice):
                continue
            done += 1
            report = await postgres.verify()
            try:
                after = await everything(postgres)
            except WorkflowCheckpointException:
                # It was told to whoever came across it, and so it is to whoever looks for it.
                assert not report.ok or (cell.table, cell.column) in HARMLESS, cell
                continue
            assert after == before or not report.ok, f"{cell} was silently altered"
            if report.ok:
                untold[cell.table, cell.column] += 1
    assert untold.keys() <= HARMLESS.keys(), untold
    assert await everything(postgres) == before


async def test_600_bits_of_the_newest_rows_in_postgres_are_each_noticed(
    postgres: PostgresCheckpointStorage, raw: psycopg.Connection[Any]
) -> None:
    dice = random.Random(6)
    kept = await written(postgres)
    newest = "id = (SELECT max(id) FROM {table})"
    kinds = {
        "digest": "bytea",
        "workflow_key": "bytea",
        "header": "text",
        "refs": "ARRAY",
        "body": "text",
        "run_key": "bigint",
        "seal": "bytea",
    }
    places = [("checkpoints", c) for c in kinds] + [("nodes", c) for c in ("digest", "refs", "body")]
    done = 0
    while done < FLIPS:
        table, column = dice.choice(places)
        where = newest.format(table=table)
        ((row, key),) = raw.execute(f"SELECT ctid::text, id FROM {table} WHERE {where}").fetchall()
        good = raw.execute(f"SELECT {column} FROM {table} WHERE {where}").fetchone()
        assert good is not None
        if not Cell(table, column, kinds[column], row).with_bit_flipped(raw, dice):
            continue
        done += 1
        found = await looked_at(postgres)
        assert_noticed(found, kept)
        raw.execute(f"UPDATE {table} SET {column} = %s WHERE id = %s", (good[0], key))
    assert (await looked_at(postgres)).state == kept.state  # type: ignore[union-attr]
    assert (await postgres.verify()).ok


# --- the rows of databases --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """A storage in a database, and a way to change its rows behind its back."""

    storage: Any
    change: Callable[[str], object]


def change_in(path: Path, statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.executescript(statements)


@pytest.fixture(params=["sqlite", "postgres"])
async def rows(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rows]:
    if request.param == "sqlite":
        path = tmp_path / "runs.db"
        async with SQLiteCheckpointStorage(path) as storage:
            yield Rows(storage, partial(change_in, path))
        return
    schema = server().fresh_schema()
    with server().connection() as raw:
        raw.execute(f"SET search_path TO {schema}")
        async with PostgresCheckpointStorage(server().dsn, schema=schema) as in_postgres:
            yield Rows(in_postgres, lambda statements: raw.execute(statements.encode()))
    server().drop(schema)


ROW_DAMAGE = {
    "two rows changed places": """UPDATE checkpoints SET checkpoint_id = 'between' WHERE checkpoint_id = '{one}';
        UPDATE checkpoints SET checkpoint_id = '{one}' WHERE checkpoint_id = '{two}';
        UPDATE checkpoints SET checkpoint_id = '{two}' WHERE checkpoint_id = 'between'""",
    "a body of nothing": "UPDATE checkpoints SET body = '' WHERE checkpoint_id = '{two}'",
    "a body of blanks": "UPDATE checkpoints SET body = '    ' WHERE checkpoint_id = '{two}'",
    "a body cut short": "UPDATE checkpoints SET body = substr(body, 1, length(body) / 2) WHERE checkpoint_id = '{two}'",
    "no row": "DELETE FROM checkpoints WHERE checkpoint_id = '{two}'",
    "the row of another run": "UPDATE checkpoints SET run_key = run_key + 1 WHERE checkpoint_id = '{two}'",
    "an older row behind it": "UPDATE checkpoints SET id = id + 100 WHERE checkpoint_id = '{one}'",
    "no rows": "DELETE FROM checkpoints",
}


@pytest.mark.parametrize("statements", ROW_DAMAGE.values(), ids=ROW_DAMAGE.keys())
async def test_rows_that_are_no_longer_what_was_written_are_noticed(rows: Rows, statements: str) -> None:
    kept = await written(rows.storage)
    rows.change(statements.format(one=kept.ids[1], two=kept.ids[2]))
    found = await looked_at(rows.storage)
    assert isinstance(found, CheckpointDamaged), found
    assert kept.ids[2] in found.record
    assert kept.ids[2] in {each.record for each in (await rows.storage.verify()).damaged}
    with pytest.raises(CheckpointDamaged):
        log = await opened(rows.storage)
        await log.latest(known_types)


RUN_DAMAGE = {
    "state": "UPDATE runs SET state = 'COMPLETED'",
    "usage": """UPDATE runs SET usage = '{"model": {"calls": 7}}'""",
    "supersteps": "UPDATE runs SET supersteps = 1",
    "sequence": "UPDATE runs SET sequence = 1",
    "next node": "UPDATE runs SET next_node = 1",
    "updated_at": "UPDATE runs SET updated_at = '1999-12-31'",
    "stopped_by": "UPDATE runs SET stopped_by = 'somebody'",
    "parent checkpoint": "UPDATE runs SET parent_checkpoint_id = 'c1'",
    "parent run": "UPDATE runs SET parent_run_id = 'run-9'",
    "origin": "UPDATE runs SET origin = 'run-9'",
    "no seal": "UPDATE runs SET seal = seal || seal",
}


@pytest.mark.parametrize("statements", RUN_DAMAGE.values(), ids=RUN_DAMAGE.keys())
async def test_a_run_whose_row_was_altered_is_neither_resumed_nor_cancelled(rows: Rows, statements: str) -> None:
    await written(rows.storage)
    rows.change(statements)
    assert "run run-1" in {each.record for each in (await rows.storage.verify()).damaged}
    for refused in (opened(rows.storage), rows.storage.cancel_run("run-1")):
        with pytest.raises(CheckpointDamaged, match="run run-1"):
            await refused
    assert await rows.storage.delete_run("run-1")


REQUEST_DAMAGE = {
    "another answer": "UPDATE requests SET answer = '7' WHERE request_id = 'r1'",
    "no answer": "UPDATE requests SET answer = NULL, answered_at = NULL, typed = NULL WHERE request_id = 'r1'",
    "an answer that was checked": "UPDATE requests SET typed = NOT typed WHERE request_id = 'r1'",
    "another question": "UPDATE requests SET shown = '{}' WHERE request_id = 'r1'",
    "another time": "UPDATE requests SET answered_at = '1999-12-31' WHERE request_id = 'r1'",
}


@pytest.mark.parametrize("statements", REQUEST_DAMAGE.values(), ids=REQUEST_DAMAGE.keys())
async def test_an_answer_that_was_altered_is_neither_delivered_nor_given_again(rows: Rows, statements: str) -> None:
    storage = rows.storage
    await written(storage)
    await storage.answer("r1", 3, run_id="run-1")
    rows.change(statements)
    assert any("request r1" in each.record for each in (await storage.verify()).damaged)
    for refused in (opened(storage), storage.decision("run-1", "r1"), storage.answer("r1", 3, run_id="run-1")):
        with pytest.raises(CheckpointDamaged, match="request r1"):
            await refused


@pytest.mark.parametrize("table", ["requests", "calls"])
async def test_what_was_moved_to_another_run_is_not_taken_for_its_own(rows: Rows, table: str) -> None:
    await written(rows.storage)
    await (await opened(rows.storage, "run-2")).release()
    rows.change(f"UPDATE {table} SET run_key = (SELECT key FROM runs WHERE run_id = 'run-2')")
    assert not (await rows.storage.verify()).ok
    with pytest.raises(CheckpointDamaged, match=table.removesuffix("s")):
        await opened(rows.storage, "run-2")


async def test_a_damaged_run_can_be_branched_off_and_deleted(rows: Rows) -> None:
    storage = rows.storage
    kept = await written(storage)
    rows.change("UPDATE runs SET state = 'IDLE'")
    for refused in (opened(storage), storage.cancel_run("run-1")):
        with pytest.raises(CheckpointDamaged, match="run run-1"):
            await refused
    fallen_back = await storage.get_latest(run_id="run-1", fallback=True)
    assert fallen_back is not None
    branch = await opened(storage, "branch-1", branch_of=BranchPoint(kept.ids[2], "run-1"))
    assert (await branch.load(kept.ids[2], known_types)).state == kept.state
    await branch.save(draft(1, final=True))
    assert await storage.delete_run("run-1")
    assert (await storage.verify()).ok


async def test_a_run_that_is_damaged_while_it_is_held_does_not_go_on(rows: Rows) -> None:
    log = await opened(rows.storage)
    await log.save(draft(1))
    rows.change("UPDATE runs SET origin = 'elsewhere'")
    with pytest.raises(CheckpointDamaged, match="run run-1"):
        await log.save(draft(2))
    await log.release(state="FAILED")
    assert not (await rows.storage.verify()).ok, "giving it back has hidden the damage"


async def test_a_checkpoint_saved_again_for_another_run_is_not_missed_in_the_first(rows: Rows) -> None:
    storage = rows.storage
    await storage.save(checkpoint(1, run="run-1"))
    await storage.save(checkpoint(2, run="run-1"))
    await storage.save(replace_run(checkpoint(2, run="run-1"), "run-2"))
    first, second = [await storage.get_latest(run_id=run_id) for run_id in ("run-1", "run-2")]
    assert first is not None
    assert second is not None
    assert (first.checkpoint_id, second.checkpoint_id) == ("c1", "c2")
    for left in ("c1", None):
        latest = await storage.get_latest()
        await storage.delete(latest.checkpoint_id if latest else "")
        newest = await storage.get_latest()
        assert (newest.checkpoint_id if newest else None) == left
    assert (await storage.verify()).ok


async def test_one_checkpoint_saved_for_several_runs_at_once_ends_up_in_one_of_them(rows: Rows) -> None:
    runs = [f"run-{number}" for number in range(8)]
    await asyncio.gather(*(rows.storage.save(replace_run(checkpoint(1, run="run-0"), run)) for run in runs))
    assert len(await rows.storage.list_checkpoint_ids()) == 1
    assert (await rows.storage.verify()).ok


def replace_run(checkpoint: WorkflowCheckpoint, run_id: str) -> WorkflowCheckpoint:
    return WorkflowCheckpoint.from_dict({**checkpoint.to_dict(), "run_id": run_id})


# --- any bit of a SQLite database's rows ------------------------------------------------------------------------------

IN_SQLITE = ("workflows", "holders", *TABLES)

HARMLESS_IN_SQLITE = {place: HARMLESS[place] for place in HARMLESS if place[1] not in ("lock", "commits")} | {
    ("holders", "id"): "its owner seems dead: whoever takes its runs over is safe from it behind the fence",
    ("holders", "expires"): "its owner is taken over too early or too late, likewise",
    ("holders", "expires_here"): "likewise",
    ("checkpoints", "id"): "no other order among those of its run; which run was saved last is told by nothing else",
}


@dataclass(frozen=True)
class Field:
    """One column of one row of a SQLite database, which keeps any kind of value in any column."""

    table: str
    column: str
    rowid: int

    def with_bit_flipped(self, raw: sqlite3.Connection, dice: random.Random) -> bool:
        """Change it; False if SQLite would not have such a value."""
        where = f"FROM {self.table} WHERE rowid = {self.rowid}"
        kind, good = raw.execute(f"SELECT typeof({self.column}), {self.column} {where}").fetchone()
        packing = {"integer": ">q", "real": ">d"}.get(kind)
        data = struct.pack(packing, good) if packing else good.encode() if kind == "text" else good
        if not data:
            return False
        changed = flipped(data, dice.randrange(len(data) * 8))
        value = struct.unpack(packing, changed)[0] if packing else changed
        update = f"UPDATE {self.table} SET {self.column} = {'CAST(? AS TEXT)' if kind == 'text' else '?'}"
        try:
            raw.execute(f"{update} WHERE rowid = {self.rowid}", (value,))
        except sqlite3.IntegrityError:
            return False
        return True


def fields_in(raw: sqlite3.Connection) -> list[Field]:
    return [
        Field(table, column, rowid)
        for table in IN_SQLITE
        for _, column, *_ in raw.execute(f"PRAGMA table_info({table})").fetchall()
        for (rowid,) in raw.execute(f"SELECT rowid FROM {table}").fetchall()
    ]


@contextmanager
def put_back_in_sqlite(raw: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    finally:
        raw.execute("BEGIN IMMEDIATE")
        for table in IN_SQLITE:
            raw.execute(f"DELETE FROM {table}")
            raw.execute(f"INSERT INTO {table} SELECT * FROM kept_{table}")
        raw.execute("COMMIT")


def order_aside(seen: Any) -> Any:
    """The same, whichever run was saved last."""
    *others, runs, asked_for, resumed = seen
    return others, sorted(runs, key=lambda run: run.run_id), asked_for, resumed


@pytest.mark.parametrize("flips", [150, pytest.param(FLIPS, marks=pytest.mark.faults)])
async def test_bits_anywhere_in_sqlites_tables_are_each_noticed_or_change_nothing(tmp_path: Path, flips: int) -> None:
    dice = random.Random(7)
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        await lived(storage)
        before = await everything(storage)
        with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as raw:
            remember(raw, IN_SQLITE)
            done, untold = 0, Counter[tuple[str, str]]()
            while done < flips:
                field = dice.choice(fields_in(raw))
                with put_back_in_sqlite(raw):
                    if not field.with_bit_flipped(raw, dice):
                        continue
                    done += 1
                    await assert_told_or_harmless(storage, before, field, untold)
        assert untold.keys() <= HARMLESS_IN_SQLITE.keys(), untold
        assert await everything(storage) == before


async def assert_told_or_harmless(
    storage: SQLiteCheckpointStorage, before: Any, field: Field, untold: Counter[tuple[str, str]]
) -> None:
    place = (field.table, field.column)
    report = await storage.verify()
    try:
        after = await everything(storage)
    except WorkflowCheckpointException:
        # It was told to whoever came across it, and so it is to whoever looks for it.
        assert not report.ok or place in HARMLESS_IN_SQLITE, field
        return
    same = order_aside(after) == order_aside(before) if place == ("checkpoints", "id") else after == before
    assert same or not report.ok, f"{field} was silently altered"
    if report.ok:
        untold[place] += 1


# --- any of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "sqlite", "postgres"])
async def test_a_store_in_order_says_so_and_counts(tmp_path: Path, schema: str, kind: str) -> None:
    kinds: dict[str, Callable[[], Any]] = {
        "file": lambda: FileCheckpointStorage(tmp_path / "store"),
        "sqlite": lambda: SQLiteCheckpointStorage(tmp_path / "store"),
        "postgres": lambda: PostgresCheckpointStorage(server().dsn, schema=schema),
    }
    async with kinds[kind]() as storage:
        assert (await storage.verify()).ok
        await written(storage)
        await written(storage, "run-2")
        report = await storage.verify()
        assert (report.runs, report.checkpoints, report.calls, report.damaged) == (2, 6, 2, ())
