"""Reading rows of a SQLite storage.

Python's `sqlite3` gives up the interpreter lock for every row it fetches, and while the event loop is busy it gets it
back only after some milliseconds. A thousand rows fetched one by one can take seconds. So whatever may be many rows is
put together by SQLite and fetched as one.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.storage.forking import fork_guard
from stepwell.checkpointing.storage.liveness import Lease
from stepwell.checkpointing.storage.protocol import Decision, PendingSummary
from stepwell.checkpointing.storage.recording import DAMAGED, damaged_row
from stepwell.checkpointing.storage.records import (
    NODES_PER_RUN,
    RequestRow,
    RunRow,
    StoredCheckpoint,
    call_digest,
    parse_call,
)
from stepwell.checkpointing.storage.sqlite_schema import MEDIUM_ERRORS, connect_reader, failure, file_at, torn
from stepwell.checkpointing.storage.sqlite_seals import owned_call_digest, request_seal, run_seal
from stepwell.checkpointing.values import Node, NodeLines, Root
from stepwell.errors import CheckpointDamaged, StorageClosed

T = TypeVar("T")

_NODES_AT_ONCE = 128
_READERS = 2


# --- references -------------------------------------------------------------------------------------------------------


def packed(refs: Iterable[int]) -> bytes:
    """References as they are stored: 64 bits each, the lowest byte first."""
    numbers = array("q", refs)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def unpacked(raw: bytes) -> tuple[int, ...]:
    numbers = array("q")
    numbers.frombytes(raw)
    if sys.byteorder == "big":
        numbers.byteswap()
    return tuple(numbers)


def _refs_or_none(raw: object) -> tuple[int, ...]:
    """What can't be references is read as none: the digest, which covers what they lead to, tells the damage."""
    return unpacked(raw) if isinstance(raw, bytes) and len(raw) % 8 == 0 else ()


def _text(value: object) -> str:
    return value if isinstance(value, str) else str(value)


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b""


# --- runs and requests ------------------------------------------------------------------------------------------------


class StoredRun(NamedTuple):
    """A run's row, with what only this storage keeps of it."""

    row: RunRow
    workflow: int
    next_node: int
    sweep_at: int
    holder_id: int | None
    lease: Lease
    newest: str | None
    """Its newest checkpoint, by which the loss of one is noticed."""
    seal: bytes
    whole: bool

    def damage(self) -> CheckpointDamaged:
        return CheckpointDamaged(f"run {self.row.run_id}", BROKEN)

    def check(self, latest: str | None) -> None:
        """Can this run be relied on, if this is the newest of its checkpoints that is found?"""
        problem = self.damage() if not self.whole else self.lost(latest)
        if problem is not None:
            raise problem

    def lost(self, latest: str | None) -> CheckpointDamaged | None:
        """What is wrong if this is the newest of its checkpoints that is found."""
        if latest == self.newest:
            return None
        return CheckpointDamaged(self.newest or f"{latest}", LOST, latest if self.newest else None)


BROKEN = "its row does not match its seal"
LOST = "it is the newest of its run and not in its place"


_RUN = """json_array(r.key, r.run_id, w.name, r.state, r.epoch, h.holder, r.origin, r.sweeps, r.sequence, r.supersteps,
    r.usage, r.updated_at, r.parent_checkpoint_id, r.parent_run_id, r.stopped_by,
    r.workflow, r.next_node, r.sweep_at, r.holder, h.expires, h.expires_here, r.newest, hex(r.seal))"""
_RUNS = "runs AS r LEFT JOIN workflows AS w ON w.id = r.workflow LEFT JOIN holders AS h ON h.id = r.holder"
_REQUEST = """json_array(r.run_id, q.request_id, q.source, q.request_type, q.response_type, q.asked_at, q.shown,
    q.deadline, q.answer, q.answered_at, q.typed, hex(q.seal))"""
_LATEST = "(SELECT c.checkpoint_id FROM checkpoints AS c WHERE c.run_key = r.key ORDER BY c.id DESC LIMIT 1)"
_LATEST_ID = "(SELECT max(c.id) FROM checkpoints AS c WHERE c.run_key = r.key)"


def runs_with_ids(connection: sqlite3.Connection, run_ids: Sequence[str]) -> dict[str, StoredRun]:
    (text,) = connection.execute(
        f"SELECT json_group_array({_RUN}) FROM {_RUNS} WHERE r.run_id IN (SELECT value FROM json_each(?))",
        (json.dumps(run_ids),),
    ).fetchone()
    runs = map(stored_run, _listed(text))
    return {run.row.run_id: run for run in runs}


def run_with_key(connection: sqlite3.Connection, run_key: int) -> StoredRun | None:
    (text,) = connection.execute(f"SELECT json_group_array({_RUN}) FROM {_RUNS} WHERE r.key = ?", (run_key,)).fetchone()
    return next(map(stored_run, _listed(text)), None)


def list_runs(
    connection: sqlite3.Connection, workflow_name: str | None, state: str | None
) -> list[tuple[RunRow, list[RequestRow], str | None]]:
    """Runs with their requests and the id of their newest checkpoint, the most recently saved first."""
    named = (
        "?1 IS NULL"
        if workflow_name is None
        else "r.workflow = (SELECT id FROM workflows WHERE name = CAST(?1 AS TEXT))"
    )
    chosen = f"{named} AND (?2 IS NULL OR r.state = ?2)"
    values = (None if workflow_name is None else torn(workflow_name), None if state == DAMAGED else state)
    (runs,) = connection.execute(
        f"SELECT json_group_array(json_array({_RUN}, {_LATEST}, {_LATEST_ID})) FROM {_RUNS} WHERE {chosen}",
        values,
    ).fetchone()
    (requests,) = connection.execute(
        f"""SELECT json_group_array(json_array(q.run_key, q.id, {_REQUEST}))
            FROM requests AS q JOIN runs AS r ON r.key = q.run_key WHERE {chosen}""",
        values,
    ).fetchone()
    asked: dict[int, list[Sequence[Any]]] = {}
    for run_key, _, request in sorted(_listed(requests), key=lambda item: item[1]):
        asked.setdefault(run_key, []).append(request)
    newest_first = sorted(_listed(runs), key=lambda item: item[2] or 0, reverse=True)
    told = [_told(stored_run(run), latest, asked) for run, latest, _ in newest_first]
    return [each for each in told if state in (None, each[0].state)]


def _told(
    run: StoredRun, latest: str | None, asked: Mapping[int, list[Sequence[Any]]]
) -> tuple[RunRow, list[RequestRow], str | None]:
    """What there is to tell of a run; that it is damaged, if it is, so that it does not hide the others."""
    try:
        run.check(latest)
        return run.row, list(map(request_row, asked.get(run.row.key, ()))), latest
    except CheckpointDamaged as damage:
        return damaged_row(run.row, damage), [], latest


def runs_with_keys(connection: sqlite3.Connection, run_keys: Sequence[int]) -> dict[int, StoredRun]:
    (text,) = connection.execute(
        f"SELECT json_group_array({_RUN}) FROM {_RUNS} WHERE r.key IN (SELECT value FROM json_each(?))",
        (json.dumps(run_keys),),
    ).fetchone()
    return {run.row.key: run for run in map(stored_run, _listed(text))}


def every_run(connection: sqlite3.Connection) -> list[tuple[Sequence[Any], str | None]]:
    """What `stored_run` takes, and the newest checkpoint that is found, for each run there is."""
    (text,) = connection.execute(f"SELECT json_group_array(json_array({_RUN}, {_LATEST})) FROM {_RUNS}").fetchone()
    return [(run, latest) for run, latest in _listed(text)]


def requests_of_run(connection: sqlite3.Connection, run_key: int) -> tuple[RequestRow, ...]:
    return _requests(connection, "q.run_key = ?", run_key)


def requests_named(connection: sqlite3.Connection, request_id: str) -> list[RequestRow]:
    return list(_requests(connection, "q.request_id = CAST(? AS TEXT)", torn(request_id)))


def calls_of_run(connection: sqlite3.Connection, run_key: int) -> tuple[CallRecord, ...]:
    """In the order in which they were first recorded."""
    (text,) = connection.execute(
        """SELECT json_group_array(json_array(c.id, r.run_id, c.call_id, c.body, hex(c.digest)))
            FROM calls AS c JOIN runs AS r ON r.key = c.run_key WHERE c.run_key = ?""",
        (run_key,),
    ).fetchone()
    rows = sorted(_listed(text), key=lambda row: row[0])
    return tuple(owned_call(run_id, name, body, bytes.fromhex(digest)) for _, run_id, name, body, digest in rows)


def owned_call(run_id: str, call_id: str, body: str, digest: bytes) -> CallRecord:
    """A call as it was recorded in this run."""
    if owned_call_digest(run_id, body) != digest:
        raise CheckpointDamaged(f"call {call_id}", "its content does not match its digest")
    return parse_call(call_id, body, call_digest(body))


def request_of_run(connection: sqlite3.Connection, run_key: int, request_id: str) -> RequestRow | None:
    condition = "q.run_key = ? AND q.request_id = CAST(? AS TEXT)"
    return next(iter(_requests(connection, condition, run_key, torn(request_id))), None)


def every_request(connection: sqlite3.Connection) -> list[Sequence[Any]]:
    """What `request_row` takes, for each request of a run there is."""
    (text,) = connection.execute(
        f"SELECT json_group_array({_REQUEST}) FROM requests AS q JOIN runs AS r ON r.key = q.run_key"
    ).fetchone()
    return _listed(text)


def _requests(connection: sqlite3.Connection, condition: str, *values: object) -> tuple[RequestRow, ...]:
    (text,) = connection.execute(
        f"""SELECT json_group_array(json_array(q.id, {_REQUEST}))
            FROM requests AS q JOIN runs AS r ON r.key = q.run_key WHERE {condition}""",
        values,
    ).fetchone()
    return tuple(request_row(request) for _, request in sorted(_listed(text), key=lambda item: item[0]))


def _listed(text: str) -> list[Any]:
    rows: list[Any] = json.loads(text)
    return rows


_COUNTS = (0, 4, 7, 8, 9, 15, 16, 17)
"""Where `_RUN` has numbers. SQLite keeps whatever it is given in any column."""


def stored_run(values: Sequence[Any]) -> StoredRun:
    if not all(type(values[place]) is int for place in _COUNTS):
        raise CheckpointDamaged(f"run {values[1]}", "its row can't be read")
    workflow, next_node, sweep_at, holder_id, expires, expires_here, newest, seal = values[15:]
    row, sealed = RunRow(*values[:15]), bytes.fromhex(seal)
    lease = Lease(expires or 0.0, expires_here or 0.0)
    whole = _holds(sealed, run_seal, row, next_node, newest)
    return StoredRun(row, workflow, next_node, sweep_at, holder_id, lease, newest, sealed, whole)


def _holds(seal: bytes, sealed: Callable[..., bytes], *values: Any) -> bool:
    try:
        return seal == sealed(*values)
    except (TypeError, AttributeError):  # SQLite keeps whatever it is given in any column
        return False


def request_row(values: Sequence[Any]) -> RequestRow:
    run_id, *summary = values[:8]
    answer, answered_at, typed, seal = values[8:]
    asked = PendingSummary(*summary)
    given = None if answer is None else Decision(asked.request_id, answer, answered_at, bool(typed))
    if not _holds(bytes.fromhex(seal), request_seal, run_id, asked, given) or typed not in (None, 0, 1):
        raise CheckpointDamaged(f"request {asked.request_id} of run {run_id}", BROKEN)
    return RequestRow(asked, given, run_id)


# --- checkpoints ------------------------------------------------------------------------------------------------------

_WORKFLOW = "(SELECT id FROM workflows WHERE name = CAST(? AS TEXT))"
_RUN_KEY = "(SELECT key FROM runs WHERE run_id = ?)"


def checkpoint_with_id(connection: sqlite3.Connection, checkpoint_id: str) -> StoredCheckpoint | None:
    return _one_checkpoint(connection, "WHERE c.checkpoint_id = ?", (checkpoint_id,))


def latest_checkpoint(
    connection: sqlite3.Connection, workflow_name: str | None, run_id: str | None
) -> StoredCheckpoint | None:
    """Of a run whose newest checkpoint is lost, the lost one: its content is nowhere, so it counts as damaged."""
    condition, values = _chosen(workflow_name, run_id)
    row = _row(connection, f"{condition} ORDER BY c.id DESC LIMIT 1", values)
    if row is None:
        return None if run_id is None or workflow_name is not None else _vanished(connection, run_id)
    stored, newest = _stored_checkpoint(row), row[-1]
    return stored if newest == stored.checkpoint_id else _placeholder(newest or stored.checkpoint_id, stored.run_key)


def _vanished(connection: sqlite3.Connection, run_id: str) -> StoredCheckpoint | None:
    """A run without checkpoints: should it have one?"""
    row = connection.execute(
        "SELECT newest, key FROM runs WHERE run_id = ? AND newest IS NOT NULL", (run_id,)
    ).fetchone()
    return None if row is None else _placeholder(*row)


def _placeholder(checkpoint_id: str, run_key: int) -> StoredCheckpoint:
    return StoredCheckpoint(checkpoint_id, run_key, "", Root("", (), b""))


def latest_of_run(connection: sqlite3.Connection, run_key: int) -> StoredCheckpoint | None:
    return _one_checkpoint(connection, "WHERE c.run_key = ? ORDER BY c.id DESC LIMIT 1", (run_key,))


def headers(connection: sqlite3.Connection, workflow_name: str | None, run_id: str | None) -> list[StoredCheckpoint]:
    """Oldest first, without their content."""
    condition, values = _chosen(workflow_name, run_id)
    (text,) = connection.execute(
        f"""SELECT json_group_array(json_array(id, checkpoint_id, run_key, hex(digest), CAST(header AS TEXT)))
            FROM checkpoints AS c {condition}""",
        values,
    ).fetchone()
    return [
        StoredCheckpoint(checkpoint_id, run_key, header, Root("", (), bytes.fromhex(digest)))
        for _, checkpoint_id, run_key, digest, header in sorted(_listed(text), key=lambda row: row[0])
    ]


def _chosen(workflow_name: str | None, run_id: str | None) -> tuple[str, tuple[str | bytes, ...]]:
    """Each of these is one range of an index that is in the order of saving."""
    if run_id is not None and workflow_name is not None:
        # The unary plus keeps SQLite to the run's index: a run has fewer checkpoints than its workflow.
        return f"WHERE c.run_key = {_RUN_KEY} AND +c.workflow = {_WORKFLOW}", (run_id, torn(workflow_name))
    if run_id is not None:
        return f"WHERE c.run_key = {_RUN_KEY}", (run_id,)
    if workflow_name is not None:
        return f"WHERE c.workflow = {_WORKFLOW}", (torn(workflow_name),)
    return "", ()


def _one_checkpoint(connection: sqlite3.Connection, rest: str, values: tuple[object, ...]) -> StoredCheckpoint | None:
    row = _row(connection, rest, values)
    return None if row is None else _stored_checkpoint(row)


def _row(connection: sqlite3.Connection, rest: str, values: tuple[object, ...]) -> tuple[Any, ...] | None:
    row: tuple[Any, ...] | None = connection.execute(
        f"""SELECT c.checkpoint_id, c.run_key, c.header, c.body, c.refs, c.digest, r.run_id, c.workflow = r.workflow,
                r.newest
            FROM checkpoints AS c LEFT JOIN runs AS r ON r.key = c.run_key {rest}""",
        values,
    ).fetchone()
    return row


def _stored_checkpoint(row: tuple[Any, ...]) -> StoredCheckpoint:
    checkpoint_id, run_key, header, body, refs, digest, run_id, same_workflow, _ = row
    header = _text(header)
    # A row that is not where it was written gets a digest that no content matches.
    digest = _bytes(digest) if same_workflow and is_of_run(header, checkpoint_id, run_id) else b""
    return StoredCheckpoint(checkpoint_id, run_key, header, Root(_text(body), _refs_or_none(refs), digest))


def is_of_run(header: str, checkpoint_id: str, run_id: str | None) -> bool:
    """Does the header name the run that the row is in? One saved by hand may name none."""
    try:
        named = json.loads(header)["run"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    return run_id == saved_by_hand_in(checkpoint_id) if named is None else run_id == named


def saved_by_hand_in(checkpoint_id: str) -> str:
    """The run of a checkpoint that belongs to none."""
    return f"saved.{checkpoint_id}"[:128]


# --- nodes ------------------------------------------------------------------------------------------------------------


def reachable(connection: sqlite3.Connection, refs: Iterable[int]) -> Iterator[NodeLines | list[Node]]:
    """These nodes and all they lead to, a good many at a time; what is missing is left out."""
    asked: set[int] = set()
    waiting = set(refs)
    while waiting:
        asked |= waiting
        level, waiting = sorted(waiting), set()
        for start in range(0, len(level), _NODES_AT_ONCE):
            nodes = _nodes(connection, level[start : start + _NODES_AT_ONCE])
            yield nodes
            waiting.update(_references(nodes))
        waiting -= asked


def _references(nodes: NodeLines | list[Node]) -> Iterator[int]:
    if isinstance(nodes, NodeLines):
        wanted = nodes.wanted
        return (
            ref
            for node_id, refs in zip(nodes.ids, nodes.refs, strict=True)
            if refs and node_id in wanted
            for ref in refs
        )
    return (ref for node in nodes for ref in node.refs)


def node_state(connection: sqlite3.Connection, run_key: int) -> tuple[int, set[int]]:
    """How often nodes of this run's family were swept, and which are left."""
    sweeps, origin = connection.execute("SELECT sweeps, origin FROM runs WHERE key = ?", (run_key,)).fetchone()
    left: set[int] = set()
    for key in family_keys(connection, origin):
        (ids,) = connection.execute(
            "SELECT group_concat(id) FROM nodes WHERE id BETWEEN ? AND ?", node_range(key)
        ).fetchone()
        left.update(map(int, ids.split(",")) if ids else ())
    return sweeps, left


def family_keys(connection: sqlite3.Connection, origin: str) -> list[int]:
    """The runs that may refer to each other's nodes, those that are deleted included."""
    (keys,) = connection.execute(
        """SELECT group_concat(key) FROM
            (SELECT key FROM runs WHERE origin = ?1 UNION SELECT run_key FROM departed WHERE origin = ?1)""",
        (origin,),
    ).fetchone()
    return [int(key) for key in keys.split(",")] if keys else []


def node_range(run_key: int) -> tuple[int, int]:
    return run_key * NODES_PER_RUN, (run_key + 1) * NODES_PER_RUN - 1


def _nodes(connection: sqlite3.Connection, ids: Sequence[int]) -> NodeLines | list[Node]:
    """Those of these nodes that are there; the ids are in ascending order."""
    try:
        return _lines(connection, ids)
    except (ValueError, sqlite3.DataError):
        # One of them is damaged, or together they are larger than SQLite's largest value.
        return [node for node_id in ids if (node := _one_node(connection, node_id)) is not None]


_LINES = """SELECT group_concat(id), group_concat(hex(digest)), group_concat(hex(refs)),
    CAST(group_concat(body, char(10)) AS BLOB) FROM nodes WHERE id """
_LINES_WITH_IDS = _LINES + "IN (SELECT value FROM json_each(?))"
_LINES_FROM_TO = _LINES + "BETWEEN ? AND ?"


def _lines(connection: sqlite3.Connection, ids: Sequence[int]) -> NodeLines | list[Node]:
    """`ValueError` if they can't be told apart."""
    if ids[-1] - ids[0] > len(ids) + len(ids) // 4:
        row = connection.execute(_LINES_WITH_IDS, (json.dumps(ids),)).fetchone()
    else:
        # Messages that follow each other, with a block here and there: to read those as well takes half the time.
        row = connection.execute(_LINES_FROM_TO, (ids[0], ids[-1])).fetchone()
    if row[0] is None:
        return []
    found, digests, refs, raw = row
    lines = NodeLines(
        ids=list(map(int, found.split(","))),
        refs=[unpacked(bytes.fromhex(text)) if text else () for text in refs.split(",")],
        digests=list(map(bytes.fromhex, digests.split(","))),
        raw=raw,
        text=raw.decode("utf-8", "surrogatepass"),
        wanted=frozenset(ids),
    )
    # A body is JSON, which has no line breaks of its own.
    if not len(lines.ids) == len(lines.refs) == len(lines.digests) == raw.count(b"\n") + 1:
        raise ValueError("one of these nodes is not as it was written")
    return lines


def _one_node(connection: sqlite3.Connection, node_id: int) -> Node | None:
    row = connection.execute("SELECT digest, refs, CAST(body AS TEXT) FROM nodes WHERE id = ?", (node_id,)).fetchone()
    if row is None:
        return None
    digest, refs, body = row
    if type(refs) is not bytes or len(refs) % 8 or body is None:
        return None  # damaged, and as good as missing
    return Node(node_id, body, unpacked(refs), _bytes(digest))


# --- where reads happen -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Reader:
    connection: sqlite3.Connection
    guard: threading.Lock
    file: tuple[int, int] | None


class SnapshotPool:
    """Connections that only read, each used by one thread at a time, and a few threads to use them in.

    A read sees the database as it was when the read began, however many statements it takes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[_Reader] = []
        self._closed = False
        self._current = threading.local()
        self._threads = ThreadPoolExecutor(_READERS, thread_name_prefix="stepwell-read")

    @property
    def threads(self) -> ThreadPoolExecutor:
        return self._threads

    def call(self, read: Callable[..., T], *args: Any) -> Callable[[], T]:
        """`read(*args)` within one snapshot, ready to be called in any thread."""
        return partial(self._within_snapshot, read, args)

    def _within_snapshot(self, read: Callable[..., T], args: tuple[Any, ...]) -> T:
        with self.snapshot():
            return read(*args)

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection to read with; the one already in use if this thread is within a snapshot."""
        current: sqlite3.Connection | None = getattr(self._current, "connection", None)
        if current is not None:
            yield current
            return
        try:
            with self._borrowed() as connection:
                self._current.connection = connection
                try:
                    yield connection
                finally:
                    self._current.connection = None
        except MEDIUM_ERRORS as error:
            raise failure(error, self._path, reading=True) from error

    @contextmanager
    def _borrowed(self) -> Iterator[sqlite3.Connection]:
        if self._closed:
            raise StorageClosed(str(self._path))
        reader = self._reader()
        with reader.guard:
            try:
                reader.connection.execute("BEGIN")
                yield reader.connection
                reader.connection.rollback()
            except MEDIUM_ERRORS:  # not worth finding out what state it is in
                reader.connection.close()
                raise
            except BaseException:
                reader.connection.rollback()
                self._give_back(reader)
                raise
            self._give_back(reader)

    def _reader(self) -> _Reader:
        file = file_at(str(self._path))
        while self._idle:
            try:
                reader = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if reader.file == file:
                return reader
            reader.connection.close()
        return _Reader(connect_reader(self._path), fork_guard(), file)

    def _give_back(self, reader: _Reader) -> None:
        self._idle.append(reader)
        if self._closed:
            self._drain()

    def _drain(self) -> None:
        with suppress(IndexError):  # another thread was faster
            while True:
                self._idle.pop().connection.close()

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=False)
        self._drain()
