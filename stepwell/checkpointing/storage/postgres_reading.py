"""Reading rows of a Postgres storage, within whatever transaction the caller has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.storage.postgres_seals import CALL, CHECKPOINT, REQUEST, RUN
from stepwell.checkpointing.storage.postgres_text import name_key, original
from stepwell.checkpointing.storage.protocol import Decision, PendingSummary
from stepwell.checkpointing.storage.recording import DAMAGED, damaged_row
from stepwell.checkpointing.storage.records import RequestRow, RunRow, StoredCheckpoint, parse_call
from stepwell.checkpointing.values import Node, Root
from stepwell.errors import CheckpointDamaged, StorageError

Rows: TypeAlias = Callable[[str, "Sequence[Any] | Mapping[str, Any]"], list[tuple[Any, ...]]]
"""Runs a query and gives all its rows."""


class TablesMissing(StorageError):
    """There is nothing of stepwell's in this schema."""


# --- runs and requests ------------------------------------------------------------------------------------------------


class StoredRun(NamedTuple):
    """A run's row, with what only this storage keeps of it."""

    row: RunRow
    next_node: int
    newest: str | None
    """Its newest checkpoint, by which the loss of one is noticed."""
    whole: bool

    def damage(self) -> CheckpointDamaged:
        return CheckpointDamaged(f"run {self.row.run_id}", "its row does not match its seal")

    def check(self, found: str | None) -> None:
        """Can this run be relied on, if this is the newest checkpoint that was found?"""
        if not self.whole:
            raise self.damage()
        if self.newest is not None and found != self.newest:
            raise CheckpointDamaged(self.newest, _LOST, found)


_LOST = "it is the newest of its run and not in its place"


_RUN = f"""r.key, r.run_id, r.workflow, r.state, r.epoch, r.holder, r.origin, r.sweeps, r.sequence, r.supersteps,
    r.usage, r.updated_at, r.parent_checkpoint_id, r.parent_run_id, r.stopped_by, r.next_node,
    r.newest, {RUN.holds("r")}"""
_REQUEST = f"""r.run_id, q.request_id, q.source, q.request_type, q.response_type, q.asked_at, q.shown,
    q.deadline, q.answer, q.answered_at, q.typed, {REQUEST.holds("q")}"""


def locked_runs(rows: Rows, run_ids: Sequence[str]) -> dict[str, StoredRun]:
    """These runs as they are, and as they stay until the transaction ends."""
    found = rows(
        f"SELECT {_RUN} FROM runs AS r WHERE r.run_id = ANY(%b::text[]) ORDER BY r.key FOR UPDATE", (list(run_ids),)
    )
    return {run.row.run_id: run for run in map(_stored_run, found)}


def run_with_key(rows: Rows, run_key: int) -> StoredRun | None:
    return next(map(_stored_run, rows(f"SELECT {_RUN} FROM runs AS r WHERE r.key = %s", (run_key,))), None)


def run_with_id(rows: Rows, run_id: str) -> StoredRun | None:
    return next(map(_stored_run, rows(f"SELECT {_RUN} FROM runs AS r WHERE r.run_id = %s", (run_id,))), None)


def list_runs(
    rows: Rows, workflow_name: str | None, state: str | None
) -> list[tuple[RunRow, list[RequestRow], str | None]]:
    """Runs with their requests and the id of their newest checkpoint, the most recently saved first."""
    wanted: dict[str, Any] = {"r.workflow_key": name_key(workflow_name)} if workflow_name is not None else {}
    if state not in (None, DAMAGED):
        wanted["r.state"] = state
    chosen = " AND ".join(f"{column} = %s" for column in wanted) or "true"
    values = list(wanted.values())
    runs = rows(
        f"""SELECT c.checkpoint_id, {_RUN} FROM runs AS r LEFT JOIN LATERAL (
                SELECT checkpoint_id, id FROM checkpoints WHERE run_key = r.key ORDER BY id DESC LIMIT 1) AS c ON true
            WHERE {chosen} ORDER BY c.id DESC NULLS LAST, r.key DESC""",
        values,
    )
    requests = rows(
        f"""SELECT q.run_key, {_REQUEST} FROM requests AS q JOIN runs AS r ON r.key = q.run_key
            WHERE {chosen} ORDER BY q.id""",
        values,
    )
    asked: dict[int, list[Sequence[Any]]] = {}
    for run_key, *request in requests:
        asked.setdefault(run_key, []).append(request)
    listed = [_listed(_stored_run(run), latest, asked) for latest, *run in runs]
    return [each for each in listed if state in (None, each[0].state)]


def _listed(
    run: StoredRun, latest: str | None, asked: Mapping[int, list[Sequence[Any]]]
) -> tuple[RunRow, list[RequestRow], str | None]:
    """What there is to tell of a run; that it is damaged, if it is, so that it does not hide the others."""
    try:
        run.check(latest)
        return run.row, list(map(_request_row, asked.get(run.row.key, ()))), latest
    except CheckpointDamaged as damage:
        return damaged_row(run.row, damage), [], latest


def requests_of_runs(rows: Rows, run_keys: Sequence[int]) -> dict[int, list[RequestRow]]:
    found = rows(
        f"""SELECT q.run_key, {_REQUEST} FROM requests AS q JOIN runs AS r ON r.key = q.run_key
            WHERE q.run_key = ANY(%b::bigint[]) ORDER BY q.id""",
        (list(run_keys),),
    )
    asked: dict[int, list[RequestRow]] = {}
    for run_key, *request in found:
        asked.setdefault(run_key, []).append(_request_row(request))
    return asked


def requests_named(rows: Rows, request_id: str) -> list[RequestRow]:
    found = rows(
        f"""SELECT {_REQUEST} FROM requests AS q JOIN runs AS r ON r.key = q.run_key
            WHERE q.request_key = %s ORDER BY q.id""",
        (name_key(request_id),),
    )
    return list(map(_request_row, found))


def calls_of_runs(rows: Rows, run_keys: Sequence[int]) -> dict[int, list[CallRecord]]:
    """In the order in which they were first recorded."""
    found = rows(f"SELECT {_CALL} FROM calls AS c WHERE c.run_key = ANY(%b::bigint[]) ORDER BY c.id", (list(run_keys),))
    calls: dict[int, list[CallRecord]] = {}
    for run_key, *call in found:
        calls.setdefault(run_key, []).append(parse_row_of_call(*call))
    return calls


def calls_of_run(rows: Rows, run_id: str) -> list[CallRecord]:
    found = rows("SELECT key FROM runs WHERE run_id = %s", (run_id,))
    return calls_of_runs(rows, [found[0][0]]).get(found[0][0], []) if found else []


def every_call(rows: Rows) -> list[tuple[Any, ...]]:
    """The columns that `parse_row_of_call` takes."""
    return [tuple(call) for _, *call in rows(f"SELECT {_CALL} FROM calls AS c ORDER BY c.id", ())]


def parse_row_of_call(call_id: str, body: str, digest: bytes, whole: bool) -> CallRecord:
    name = original(call_id)
    if not whole:
        raise CheckpointDamaged(f"call {name}", "its row does not match its seal")
    try:
        return parse_call(name, body, digest)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointDamaged(f"call {name}", f"it can't be read: {error}") from error


def _stored_run(values: Sequence[Any]) -> StoredRun:
    row = RunRow(*values[:15])
    stopped_by = None if row.stopped_by is None else original(row.stopped_by)
    return StoredRun(replace(row, workflow_name=original(row.workflow_name), stopped_by=stopped_by), *values[15:])


def _request_row(values: Sequence[Any]) -> RequestRow:
    run_id, request_id, source, request_type, response_type, asked_at, shown, deadline = values[:8]
    answer, answered_at, typed, whole = values[8:]
    if not whole:
        raise CheckpointDamaged(f"request {original(request_id)} of run {run_id}", "its row does not match its seal")
    asked = PendingSummary(
        request_id=original(request_id),
        source_executor_id=original(source),
        request_type=original(request_type),
        response_type=original(response_type),
        asked_at=asked_at,
        shown=original(shown),
        deadline=deadline,
    )
    decision = None if answer is None else Decision(asked.request_id, original(answer), answered_at, bool(typed))
    return RequestRow(asked, decision, run_id)


# --- checkpoints ------------------------------------------------------------------------------------------------------

_PLACE = f"c.checkpoint_id, c.run_key, c.header, CASE WHEN {CHECKPOINT.holds('c')} THEN c.digest ELSE ''::bytea END"
# A row that is not what was written gets a digest that no content matches.
_CHECKPOINT = f"{_PLACE}, c.body, c.refs"
_CALL = f"c.run_key, c.call_id, c.body, c.digest, {CALL.holds('c')}"
_RUN_KEY = "(SELECT key FROM runs WHERE run_id = %s)"


def checkpoint_with_id(rows: Rows, checkpoint_id: str) -> StoredCheckpoint | None:
    return _one(rows, "WHERE c.checkpoint_id = %s", (checkpoint_id,))


def latest_checkpoint(rows: Rows, workflow_name: str | None, run_id: str | None) -> StoredCheckpoint | None:
    """Of a run whose newest checkpoint is lost, the lost one: its content is nowhere, so it counts as damaged."""
    condition, values = _chosen(workflow_name, run_id)
    found = rows(
        f"""SELECT {_CHECKPOINT}, r.newest, n.id IS NULL OR n.id < c.id
            FROM (SELECT * FROM checkpoints AS c {condition} ORDER BY c.id DESC LIMIT 1) AS c
            LEFT JOIN runs AS r ON r.key = c.run_key
            LEFT JOIN checkpoints AS n ON n.checkpoint_id = r.newest AND n.run_key = r.key""",
        values,
    )
    if not found:
        return None if run_id is None or workflow_name is not None else _vanished(rows, run_id)
    *checkpoint, newest, is_lost = found[0]
    stored = _stored_checkpoint(checkpoint)
    return _placeholder(newest or stored.checkpoint_id, stored.run_key) if is_lost else stored


def _vanished(rows: Rows, run_id: str) -> StoredCheckpoint | None:
    """A run without checkpoints: should it have one?"""
    found = rows("SELECT newest, key FROM runs WHERE run_id = %s AND newest IS NOT NULL", (run_id,))
    return _placeholder(*found[0]) if found else None


def _placeholder(checkpoint_id: str, run_key: int) -> StoredCheckpoint:
    return StoredCheckpoint(checkpoint_id, run_key, "", Root("", (), b""))


def latest_of_runs(rows: Rows, run_keys: Sequence[int]) -> dict[int, StoredCheckpoint]:
    found = rows(
        f"""SELECT {_CHECKPOINT} FROM unnest(%b::bigint[]) AS k CROSS JOIN LATERAL (
                SELECT * FROM checkpoints WHERE run_key = k ORDER BY id DESC LIMIT 1) AS c""",
        (list(run_keys),),
    )
    return {stored.run_key: stored for stored in map(_stored_checkpoint, found)}


def headers(rows: Rows, workflow_name: str | None, run_id: str | None) -> list[StoredCheckpoint]:
    """Oldest first, without their content."""
    condition, values = _chosen(workflow_name, run_id)
    found = rows(
        f"""SELECT {_PLACE}, '', NULL FROM checkpoints AS c
            {condition} ORDER BY c.id""",
        values,
    )
    return list(map(_stored_checkpoint, found))


def checkpoint_ids_of_run(rows: Rows, run_key: int) -> list[str]:
    """Oldest first."""
    found = rows("SELECT checkpoint_id FROM checkpoints WHERE run_key = %s ORDER BY id", (run_key,))
    return [checkpoint_id for (checkpoint_id,) in found]


def newest_of_run(rows: Rows, run_key: int) -> str | None:
    """The id of the newest checkpoint that is found."""
    found = rows("SELECT checkpoint_id FROM checkpoints WHERE run_key = %s ORDER BY id DESC LIMIT 1", (run_key,))
    return found[0][0] if found else None


def _chosen(workflow_name: str | None, run_id: str | None) -> tuple[str, tuple[str | bytes, ...]]:
    """Each of these is one range of an index that is in the order of saving."""
    if run_id is not None and workflow_name is not None:
        return f"WHERE c.run_key = {_RUN_KEY} AND c.workflow_key = %s", (run_id, name_key(workflow_name))
    if run_id is not None:
        return f"WHERE c.run_key = {_RUN_KEY}", (run_id,)
    if workflow_name is not None:
        return "WHERE c.workflow_key = %s", (name_key(workflow_name),)
    return "", ()


def _one(rows: Rows, rest: str, values: Sequence[Any]) -> StoredCheckpoint | None:
    found = rows(f"SELECT {_CHECKPOINT} FROM checkpoints AS c {rest}", values)
    return _stored_checkpoint(found[0]) if found else None


def _stored_checkpoint(values: Sequence[Any]) -> StoredCheckpoint:
    checkpoint_id, run_key, header, digest, body, refs = values
    return StoredCheckpoint(checkpoint_id, run_key, header, Root(body, _references(refs), digest))


def _references(refs: list[Any] | None) -> tuple[int, ...]:
    """What can't be references is left out: the digest, which covers what they lead to, tells the damage."""
    return tuple(ref for ref in refs or () if isinstance(ref, int))


# --- nodes ------------------------------------------------------------------------------------------------------------


def reachable(rows: Rows, refs: Iterable[int]) -> dict[int, Node]:
    """These nodes and all they lead to; what is missing is left out.

    One query per level, and few levels: blocks of blocks are sixteen wide. A recursive query would be one, but the
    planner can't know how many nodes it finds, and reads the whole table if it guesses badly.
    """
    found: dict[int, Node] = {}
    asked: set[int] = set()
    waiting = set(refs)
    while waiting:
        asked |= waiting
        nodes = rows("SELECT id, body, refs, digest FROM nodes WHERE id = ANY(%b::bigint[])", (sorted(waiting),))
        level = [Node(node_id, body, _references(refs), digest) for node_id, body, refs, digest in nodes]
        found.update((node.id, node) for node in level)
        waiting = {ref for node in level for ref in node.refs} - asked
    return found


def node_state(rows: Rows, run_key: int) -> tuple[int, set[int]]:
    """How often nodes of this run's family were swept, and which are left."""
    run = run_with_key(rows, run_key)
    if run is None:
        return 0, set()
    keys = family_keys(rows, run.row.origin)
    left = rows(
        """SELECT n.id FROM unnest(%b::bigint[]) AS k JOIN nodes AS n
            ON n.id BETWEEN k << 32 AND ((k + 1) << 32) - 1""",
        (keys,),
    )
    return run.row.sweeps, {node_id for (node_id,) in left}


def family_keys(rows: Rows, origin: str, *, locked: bool = False) -> list[int]:
    """The runs that may refer to each other's nodes, those that are deleted included."""
    lock = "ORDER BY key FOR UPDATE" if locked else ""
    living = rows(f"SELECT key FROM runs WHERE origin = %s {lock}", (origin,))
    departed = rows("SELECT run_key FROM departed WHERE origin = %s", (origin,))
    return [key for (key,) in (*living, *departed)]
