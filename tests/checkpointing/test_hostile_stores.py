"""Loading never runs code: stores made by somebody who knows the format and means harm are refused, and touch nothing.

Every checksum and digest in them is right. A child process looks at each of them in every way there is, while an audit
hook notes whatever it imports, executes, starts or writes outside the store.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepwell.checkpointing.registry import known_types
from stepwell.checkpointing.storage import postgres_seals as seals
from stepwell.checkpointing.storage.file import FileCheckpointStorage
from stepwell.checkpointing.storage.file_json import checkpoint_bytes, parse_checkpoint
from stepwell.checkpointing.storage.file_lines import sealed
from stepwell.checkpointing.storage.file_record import read_record
from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage
from stepwell.checkpointing.storage.records import StoredCheckpoint, call_digest
from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
from stepwell.checkpointing.values import Root, digest_of
from stepwell.errors import CheckpointNotFound
from stepwell.testing.storage import Label, asked, call, checkpoint, draft, opened
from tests.faults.backends import BACKENDS, Backend, open_store
from tests.histories.postgres_dump import dumped, load
from tests.postgres_server import server

VISITOR = """
    import asyncio, json, os, sys
    from stepwell.checkpointing.registry import known_types
    from stepwell.checkpointing.storage.file import FileCheckpointStorage
    from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage
    from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
    from stepwell.errors import StepwellError

    dsn, stores = sys.argv[1], sys.argv[2:]
    seen, armed, inside = [], False, ""
    ALWAYS = ("import", "exec", "compile", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork",
              "ctypes.dlopen", "pickle.find_class", "code.__new__", "socket.connect", "shutil.rmtree")
    PATHS = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.symlink", "os.link", "os.chmod")

    def is_outside(path):
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        text = os.fsdecode(path)
        if not os.path.isabs(text):  # a name within a folder that was opened before
            return "/" in text or text == ".."
        return not os.path.abspath(text).startswith(inside)

    def hook(event, args):
        if not armed:
            return
        if event in ALWAYS:
            seen.append([event, str(args[0])[:200]])
        elif event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) and is_outside(args[0]):
            seen.append([event, str(args[0])])
        elif event in PATHS and any(map(is_outside, args[:2])):
            seen.append([event, str(args[:2])])

    sys.addaudithook(hook)

    async def attempt(told, name, work):
        try:
            result = await asyncio.wait_for(work, 20)
        except StepwellError as error:
            told[name] = type(error).__name__
        except BaseException as error:
            told[name] = f"!{type(error).__name__}: {error}"[:300]
        else:
            told[name] = "ok"
            return result

    def storage_at(path):
        if path.startswith("test_"):
            return PostgresCheckpointStorage(dsn, schema=path)
        return SQLiteCheckpointStorage(path) if path.endswith(".db") else FileCheckpointStorage(path)

    def place_of(path):
        if path.startswith("test_"):
            return "/nowhere"  # whatever it keeps, it keeps in the database
        return os.path.dirname(path) if path.endswith(".db") else path

    async def visit(path):
        told = {}
        async with storage_at(path) as storage:
            await attempt(told, "latest", storage.get_latest(workflow_name="delivery"))
            await attempt(told, "latest of run", storage.get_latest(run_id="run-1"))
            await attempt(told, "fallback", storage.get_latest(run_id="run-1", fallback=True))
            await attempt(told, "load", storage.load("c1"))
            await attempt(told, "ids", storage.list_checkpoint_ids())
            listed = await attempt(told, "list", storage.list_checkpoints())
            for each in listed or ():
                await attempt(told, "content", asyncio.to_thread(lambda: each.state))
            await attempt(told, "runs", storage.list_runs())
            await attempt(told, "waiting", storage.run_waiting_for("r1"))
            await attempt(told, "verify", storage.verify())
            log = await attempt(told, "open", storage.open_run(
                "run-1", workflow_name="delivery", registry=known_types, create=False))
            if log is not None:
                await attempt(told, "resume", log.latest(known_types))
                await attempt(told, "release", log.release())
            await attempt(told, "answer", storage.answer("r1", True, run_id="run-1"))
            await attempt(told, "delete", storage.delete("c1"))
            await attempt(told, "delete run", storage.delete_run("run-1"))
        return told

    async def main():
        global armed, inside
        for path in stores[:3]:  # the good ones: whatever is imported when it is first used
            await visit(path)
        for path in stores[3:]:
            inside = place_of(path)
            seen.clear()
            armed = True
            told = await visit(path)
            armed = False
            print(json.dumps([path, told, list(seen)]), flush=True)

    asyncio.run(main())
"""


class Payload:
    """What a pickle would do."""

    def __reduce__(self) -> Any:
        return os.system, ("touch owned",)


PICKLED = base64.b64encode(pickle.dumps(Payload())).decode()


def record(tag: str, name: str, value: Any) -> dict[str, Any]:
    return {"$": tag, "t": name, "v": value}


VALUES: dict[str, Any] = {
    "a pickle": {"$": "pickle", "v": PICKLED},
    "a pickle as AF writes it": {"__pickled__": PICKLED, "__type__": "builtins:dict"},
    "a real class": record("obj", "subprocess:Popen", {"args": ["touch", "owned"]}),
    "a real function": record("obj", "os:system", "touch owned"),
    "a module": record("obj", "antigravity:anything", {}),
    "a tag that is an attribute": record("__class__", "object", {}),
    "a tag that is a list": {"$": ["obj"], "t": "x", "v": 1},
    "a negative reference": {"$": -1},
    "a reference to nothing": {"$": 99},
    "a large number": {"$": 10**100},
    "a path": {"$": "path", "v": "../../../etc/passwd"},
    "bytes that are not": {"$": "bytes", "v": "\0\0\0"},
    "an int that is not": {"$": "int", "v": "9" * 100_000},
    "a date that is not": {"$": "datetime", "v": "99999-99-99"},
    "a zone that is a path": {"$": "datetime", "v": "2026-01-01T00:00:00", "z": "../../../../etc/passwd"},
    "a default factory": {"$": "defaultdict", "f": "os.system", "v": []},
    "an unhashable key": {"$": "dict", "v": [[[], 1]]},
    "a deque that is not": {"$": "deque", "v": 5, "m": -1},
}
TEXTS: dict[str, str] = {
    **{name: json.dumps({"state": {"value": value}}) for name, value in VALUES.items()},
    "deep nesting": '{"state":{"v":' + "[" * 100_000 + "]" * 100_000 + "}}",
    "a number of a million digits": '{"state":{"v":' + "9" * 1_000_000 + "}}",
    "a float beyond all": '{"state":{"v":1e999999}}',
    "no object": "[]",
    "not JSON": "os.system('touch owned')",
    "NUL": '{"state":{"v":"\\u0000\\u0000"}}',
}


HARMLESS = {
    # plain data to us, whatever they are to others
    "a pickle as AF writes it",
    "a path",
    "a zone that is a path",
    "a float beyond all",
    "NUL",
    "an origin that is SQL",
    "a name with broken escapes",
    # to a storage it is text; who shows it decodes it, with limits
    "a question that is deep",
    # nobody has the lock that it would have to have
    "a holder without a session that is a path",
    "a holder without a session that is nobody",
    # the owner of a schema may arrange it as they like, and a view that can be written to is as good as a table
    "a view for a table of calls",
    # made anew from the runs' own records
    "a linked index",
    "an index that climbs",
    "an index of nothing",
}
"""These are read as if nothing were wrong, because nothing is."""


# --- the corpus -------------------------------------------------------------------------------------------------------


async def filled(storage: Any) -> None:
    await storage.save(checkpoint(1, run="run-1", state={"label": Label("x" * 300)}))
    log = await opened(storage)
    await log.save(draft(2, {"n": 2}, pending=[asked("r1")]))
    await log.record_call(call("pay"), supersedes=())
    await log.release()


def with_content(store: Path, text: str) -> None:
    """The newest checkpoint says this, and everything around it agrees."""
    folder = store / ".stepwell" / "runs" / "run-1"
    kept = read_record(folder, "run-1")
    assert kept.newest is not None
    assert kept.newest.refs == ()
    file = store / f"{kept.newest.checkpoint_id}.json"
    stored, _ = parse_checkpoint(kept.newest.checkpoint_id, file.read_bytes())
    digest = digest_of(stored.header + text, [])
    lines = [
        sealed(
            "note",
            line.partition(b" note ")[2].decode().rstrip("\n").replace(kept.newest.digest.hex(), digest.hex()),
            kept.birth.salt,
        )
        if kept.newest.digest.hex().encode() in line
        else line
        for line in (folder / "run.jsonl").read_bytes().splitlines(keepends=True)
    ]
    (folder / "run.jsonl").write_bytes(b"".join(lines))
    body = text if text.startswith("{") else '{"state":{}}'
    data = checkpoint_bytes(
        StoredCheckpoint(stored.checkpoint_id, kept.key, stored.header, Root("{}", stored.root.refs, digest)), "run-1"
    )
    data = data.replace(b'"content": {\n  }', b'"content": {\n    %s\n  }' % body[1:-1].encode())
    body_part, _, _ = data.rpartition(b'  "checksum": "')
    checksum = hashlib.blake2b(body_part, digest_size=16).hexdigest().encode()
    file.write_bytes(b'%s  "checksum": "%s"\n}\n' % (body_part, checksum))


def with_note(**parts: Any) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        folder = store / ".stepwell" / "runs" / "run-1"
        kept = read_record(folder, "run-1")
        note = sealed("note", json.dumps({"s": kept.serial + 1, **parts}), kept.birth.salt)
        with (folder / "run.jsonl").open("ab") as file:
            file.write(note)

    return change


def with_line(name: str, kind: str, payload: str) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        folder = store / ".stepwell" / "runs" / "run-1"
        salt = read_record(folder, "run-1").birth.salt
        with (folder / name).open("ab") as file:
            file.write(sealed(kind, payload, salt))

    return change


def with_birth(**parts: Any) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        file = store / ".stepwell" / "runs" / "run-1" / "run.jsonl"
        first, rest = file.read_bytes().split(b"\n", 1)
        data = json.loads(first.partition(b" run ")[2]) | parts
        file.write_bytes(sealed("run", json.dumps(data)) + rest)

    return change


def linked(name: str) -> Callable[[Path], None]:
    """Something of the store is a link to a place outside it."""

    def change(store: Path) -> None:
        inside, outside = store / name, store.with_name(f"{store.name}.outside")
        inside.rename(outside)
        inside.symlink_to(outside)

    return change


def piped(name: str) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        (store / name).unlink()
        os.mkfifo(store / name)

    return change


def in_index(*parts: Any) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        with (store / ".stepwell" / "index").open("ab") as file:
            file.write(sealed("saved", json.dumps(parts)))

    return change


RUN = ".stepwell/runs/run-1"
CHANGES: dict[str, Callable[[Path], None]] = {
    "a linked checkpoint": linked("c1.json"),
    "a linked run": linked(RUN),
    "a linked record": linked(f"{RUN}/run.jsonl"),
    "a linked journal": linked(f"{RUN}/journal.jsonl"),
    "linked runs": linked(".stepwell/runs"),
    "a linked index": linked(".stepwell/index"),
    "a linked format": linked(".stepwell/format"),
    "a pipe for a checkpoint": piped("c1.json"),
    "a pipe for a record": piped(f"{RUN}/run.jsonl"),
    "a pipe for a journal": piped(f"{RUN}/journal.jsonl"),
    "a holder that is a path": with_note(row={"holder": "../../../../tmp/x:1:host"}),
    "a holder that is nobody": with_note(row={"holder": "x"}),
    "an epoch that is text": with_note(row={"epoch": "9; DROP TABLE runs"}),
    "a column that is not": with_note(row={"__class__": "x"}),
    "usage that is nested": with_note(row={"usage": "[" * 100_000}),
    "a row that is a list": with_note(row=[1, 2]),
    "a checkpoint id that climbs": with_note(saved=[["../../escaped", 99, "00" * 16, "", "{}"]]),
    "a checkpoint gone that climbs": with_note(gone=["../../escaped"]),
    "references that are not": with_note(saved=[["c9", 99, "00" * 16, "../../x", "{}"]]),
    "a count beyond all": with_note(n=10**400),
    "a negative count": with_note(next=-5),
    "requests that are numbers": with_note(asked=[[1, 2, 3, 4, 5, 6, 7]]),
    "decisions about nothing": with_note(decided=[["nobody", "true", "now", True]]),
    "deep notes": with_line("run.jsonl", "note", "[" * 100_000),
    "a value without a number": with_line("run.jsonl", "value", "x - - {}"),
    "a value beyond all": with_line("run.jsonl", "value", "9" * 5000 + " 00 - {}"),
    "a line of another kind": with_line("run.jsonl", "exec", "import os"),
    "deep calls": with_line("journal.jsonl", "call", '{"g":' + "[" * 100_000),
    "a call that is not": with_line("journal.jsonl", "call", '{"g":1,"call":{"call_id":["x"]}}'),
    "a call with more": with_line("journal.jsonl", "call", '{"g":1,"call":{"__reduce__":"os.system"}}'),
    "drops that are not": with_line("journal.jsonl", "call", '{"g":1,"drop":{"a":1}}'),
    "an ancestor that climbs": with_birth(ancestors=[["00" * 6, "../../../etc"]]),
    "an origin that climbs": with_birth(origin="../../../etc"),
    "a run that is another": with_birth(run_id="../../etc"),
    "a key that is a path": with_birth(key="../../x"),
    "a workflow that is a number": with_birth(workflow_name=5),
    "a run of the future": with_birth(format=99),
    "more than there is": with_birth(__init__="x"),
    "an index that climbs": in_index(99, "00" * 6, "../../etc", "delivery", "c1"),
    "an index of nothing": in_index({"a": 1}),
    "an index of a run that is not": in_index(99, "00" * 6, "nobody", "delivery", "c1"),
}


def with_body(path: Path, text: str) -> None:
    """The newest row says this, and its digest agrees."""
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        row, header = raw.execute("SELECT id, header FROM checkpoints ORDER BY id DESC LIMIT 1").fetchone()
        digest = digest_of(header + text, [])
        raw.execute("UPDATE checkpoints SET body = ?, refs = x'', digest = ? WHERE id = ?", (text, digest, row))


STATEMENTS = {
    "a holder that is a path": "INSERT INTO holders VALUES (7, '../../x:1:h', 9e99, 9e99); UPDATE runs SET holder = 7",
    "a holder that is nobody": "INSERT INTO holders VALUES (7, 'x', 9e99, 9e99); UPDATE runs SET holder = 7",
    "an epoch that is text": "UPDATE runs SET epoch = '1; DROP TABLE runs'",
    "usage that is nested": "UPDATE runs SET usage = replace(hex(zeroblob(50000)), '0', '[')",
    "an origin that is SQL": "UPDATE runs SET origin = 'x'' OR 1=1 --'",
    "a checkpoint id that climbs": "UPDATE checkpoints SET checkpoint_id = '../../escaped' WHERE checkpoint_id <> 'c1'",
    "a view for a table": "ALTER TABLE calls RENAME TO moved; CREATE VIEW calls AS SELECT * FROM moved",
    "a trigger": "CREATE TRIGGER t AFTER UPDATE ON runs BEGIN SELECT load_extension('/tmp/x'); END",
    "a call that is not": "UPDATE calls SET body = '{\"call_id\": []}'",
    "references all over": "UPDATE nodes SET refs = randomblob(8)",
}


_DEEP = "repeat('[', 100000)"
POSTGRES_STATEMENTS = {
    "a holder without a session that is a path": """
        INSERT INTO holders VALUES ('../../x:1:h', 1, 0, now() + interval '1 day');
        UPDATE runs SET holder = '../../x:1:h'""",
    "a holder without a session that is nobody": "UPDATE runs SET holder = 'x'",
    "an epoch beyond all": "UPDATE runs SET epoch = 9223372036854775807",
    "usage that is nested": f"UPDATE runs SET usage = {_DEEP}",
    "usage that is a list": "UPDATE runs SET usage = '[]'",
    "an origin that is SQL": "UPDATE runs SET origin = 'x'' OR 1=1 --'",
    "a name with broken escapes": r"UPDATE runs SET workflow = E'\\ffff \\d800 \\zz \\'",
    "a newest that is another's": "UPDATE runs SET newest = '../../escaped'",
    "a checkpoint id that climbs": "UPDATE checkpoints SET checkpoint_id = '../../escaped' WHERE checkpoint_id <> 'c1'",
    "a checkpoint of no run": "UPDATE checkpoints SET run_key = -1",
    "a header that is deep": f"UPDATE checkpoints SET header = {_DEEP}",
    "a view for a table of calls": "ALTER TABLE calls RENAME TO moved; CREATE VIEW calls AS SELECT * FROM moved",
    "a trigger that refuses": """CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN RAISE 'DROP TABLE runs; --'; END$$;
        CREATE TRIGGER t BEFORE UPDATE ON runs EXECUTE FUNCTION no()""",
    "a function in place of another": """CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
        $$SELECT NULL::timestamptz$$; ALTER TABLE holders DROP COLUMN alive_until""",
    "references all over": "UPDATE nodes SET refs = ARRAY[7, -1, 9223372036854775807]",
    "references to itself": "UPDATE nodes SET refs = ARRAY[id, id]",
    "a question that is deep": f"UPDATE requests SET shown = {_DEEP}, request_type = 'os:system'",
    "an answer that is deep": f"UPDATE requests SET answer = {_DEEP}, answered_at = 'now', typed = false",
    "a version that is SQL": "ALTER TABLE stepwell_version ALTER version TYPE text USING '1; DROP TABLE runs'",
    "a version of the future": "UPDATE stepwell_version SET version = 2147483647",
}
POSTGRES_CALLS = {
    "a call that is not": '{"call_id": []}',
    "a call with more": '{"__reduce__": "os.system"}',
    "a call that is a list": "[1, 2]",
    "deep calls": "[" * 100_000,
}


SEALED = {"runs": seals.RUN, "checkpoints": seals.CHECKPOINT, "calls": seals.CALL, "requests": seals.REQUEST}


@dataclass
class Schemas:
    """Copies of a good schema, each changed by somebody who seals what they change."""

    good: str
    text: str
    made: list[str]

    def copied(self) -> str:
        self.made.append(server().fresh_schema())
        with server().connection() as connection:
            load(connection, self.text, self.made[-1])
        return self.made[-1]

    def changed(self, statements: str, *values: Any) -> str:
        schema = self.copied()
        with server().connection() as raw:
            raw.execute(f"SET search_path TO {schema}; SET session_replication_role TO replica")  # no triggers
            raw.execute(statements, values or None)
            for table, seal in SEALED.items():
                raw.execute(f"UPDATE {table} AS t SET seal = {seal.of('t')}")
        return schema

    def with_body(self, text: str) -> str:
        """The newest row says this, and its digest agrees."""
        with server().connection() as raw:
            row = raw.execute(f"SELECT id, header FROM {self.good}.checkpoints ORDER BY id DESC LIMIT 1").fetchone()
        assert row is not None
        update = "UPDATE checkpoints SET body = %s, refs = '{}', digest = %s WHERE id = %s"
        return self.changed(update, text, digest_of(row[1] + text, []), row[0])

    def with_call(self, text: str) -> str:
        return self.changed("UPDATE calls SET body = %s, digest = %s", text, call_digest(text))


@pytest.fixture
async def schemas() -> AsyncIterator[Schemas]:
    good = server().fresh_schema()
    async with PostgresCheckpointStorage(server().dsn, schema=good) as storage:
        await filled(storage)
    schemas = Schemas(good, await asyncio.to_thread(dumped, server(), good), [good])
    yield schemas
    for schema in schemas.made:
        server().drop(schema)


async def corpus(folder: Path, schemas: Schemas) -> dict[str, str]:
    """Stores by their path or schema, and what is wrong with each."""
    async with FileCheckpointStorage(folder / "good") as files, SQLiteCheckpointStorage(folder / "good.db") as database:
        await filled(files)
        await filled(database)
    found: dict[str, str] = {}

    def copied(name: str, suffix: str = "") -> Path:
        path = folder / f"hostile-{len(found)}{suffix}"
        (shutil.copy if suffix else shutil.copytree)(folder / f"good{suffix}", path)
        found[str(path)] = name
        return path

    for name, text in TEXTS.items():
        with_content(copied(f"file: {name}"), text)
        with_body(copied(f"sqlite: {name}", ".db"), text)
        found[schemas.with_body(text)] = f"postgres: {name}"
    for name, change in CHANGES.items():
        change(copied(f"file: {name}"))
    for name, statements in STATEMENTS.items():
        with closing(sqlite3.connect(copied(f"sqlite: {name}", ".db"), isolation_level=None)) as raw:
            raw.executescript(statements)
    found |= {schemas.changed(statements): f"postgres: {name}" for name, statements in POSTGRES_STATEMENTS.items()}
    found |= {schemas.with_call(text): f"postgres: {name}" for name, text in POSTGRES_CALLS.items()}
    return found


async def test_hostile_stores_are_refused_and_touch_nothing_outside(tmp_path: Path, schemas: Schemas) -> None:
    folder = tmp_path / "stores"
    folder.mkdir()
    stores = await corpus(folder, schemas)
    good = [str(folder / "good"), str(folder / "good.db"), schemas.copied()]
    outside = {path: path.read_bytes() for path in folder.rglob("*.outside/*") if path.is_file()}

    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", textwrap.dedent(VISITOR), server().dsn, *good, *stores],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    visits = [json.loads(line) for line in done.stdout.splitlines()]
    assert [path for path, _, _ in visits] == list(stores)

    untyped = {stores[path]: bad for path, told, _ in visits if (bad := {k: v for k, v in told.items() if v[0] == "!"})}
    assert untyped == {}
    assert {stores[path]: seen for path, _, seen in visits if seen} == {}
    accepted = [
        stores[path] for path, told, _ in visits if all(v in ("ok", "CheckpointNotFound") for v in told.values())
    ]
    assert {name.partition(": ")[2] for name in accepted} == HARMLESS
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["stores"], "something was made outside"
    assert {path: path.read_bytes() for path in outside} == outside


# --- SQL and paths in every string ------------------------------------------------------------------------------------

HOSTILE_TEXTS = [
    "'; DROP TABLE runs; --",
    '" OR 1=1 --',
    "../../../etc/passwd",
    "/etc/passwd",
    "a\0b",
    "line\nbreak\r\n",
    "%s %(x)s ? :x $1 {x}",
    "\ud83d torn",
    "[" * 500,
    "",
]


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=range(len(HOSTILE_TEXTS)))
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS.keys())
async def test_any_text_is_only_text(tmp_path: Path, backend: Backend, text: str) -> None:
    store = backend.place(tmp_path)
    async with open_store(store) as storage:
        await (await opened(storage, "bystander")).save(draft(1, final=True))
        log = await opened(storage, workflow_name=text)
        await log.record_call(call(text, json.dumps(text)), supersedes=[text])
        await log.save(draft(1, {text: text}, pending=[asked(text)], usage={text: {"calls": 1}}, keep_calls=True))
        await log.drop_calls([text])
        await log.release(state="FAILED", stopped_by=text or None)
        await storage.answer(text, text, run_id="run-1")

        [run] = await storage.list_runs(workflow_name=text)
        latest = await storage.get_latest(workflow_name=text)
        assert (run.run_id, run.stopped_by or "", run.usage) == ("run-1", text, {text: {"calls": 1}})
        assert latest is not None
        assert latest.state == {text: text}
        assert await storage.run_waiting_for(text) == "run-1"
        assert len(await storage.list_runs()) == 2
        log = await opened(storage, workflow_name=text)
        assert [row.name for row in log.calls] == [text]
        assert (await log.latest(known_types)) is not None
        await log.release()
        assert (await storage.verify()).ok
        with pytest.raises(CheckpointNotFound):
            await storage.load("escaped")
    backend.tear_down(store)
    assert [entry.name for entry in tmp_path.iterdir() if not entry.name.startswith(("store", "runs.db"))] == []
