"""Statements over many rows at once: each takes its columns as arrays, so its text is the same for any number of rows.

Postgres keeps them prepared, and a group of a thousand writes is a handful of statements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepwell.checkpointing.storage.postgres_connection import Connection
from stepwell.checkpointing.storage.postgres_seals import CALL, CHECKPOINT, REQUEST, RUN
from stepwell.checkpointing.storage.postgres_transaction import Cursor, Transaction


class Bulk:
    """A statement with one `{rows}` in it, for rows of these columns; `:first` and so on are its other values."""

    def __init__(self, statement: str, **columns: str) -> None:
        arrays = ", ".join(f"%b::{kind}[]" for kind in columns.values())
        rows = f"unnest({arrays}) WITH ORDINALITY AS v ({', '.join(columns)}, nth)"
        self.statement = statement.replace("{rows}", rows)

    def run(self, transaction: Transaction, rows: Sequence[Sequence[Any]], *more: Any) -> Cursor:
        """Rows must not be empty; `more` are values for placeholders behind the rows."""
        return transaction.execute(self.statement, (*columns_of(rows), *more))

    def run_alone(self, connection: Connection, before: Sequence[Any], rows: Sequence[Sequence[Any]]) -> None:
        """As a transaction of its own; `before` are values for placeholders before the rows."""
        connection.execute(self.statement, (*before, *columns_of(rows)), binary=True, prepare=True)

    def require(
        self,
        transaction: Transaction,
        rows: Sequence[Sequence[Any]],
        *more: Any,
        refusal: Callable[[], Exception],
    ) -> None:
        """The same, and it has to find or change a row for each of these."""
        transaction.require(len(rows), self.statement, (*columns_of(rows), *more), refusal)


def columns_of(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


_FENCED = "CROSS JOIN checked WHERE checked.passed = 1"
_CHECKED = "checked AS (SELECT 1 / (CASE WHEN count(*) = %s THEN 1 ELSE 0 END) AS passed FROM {rows})"
"""Divides by zero if there are not as many rows as there have to be; what is fenced waits for the answer."""


def _set(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{column} = {value}" for column, value in columns.items())


FENCE = Bulk(
    """SELECT r.key FROM {rows} JOIN runs AS r ON r.key = v.key AND r.epoch = v.epoch
        WHERE r.holder = %s ORDER BY r.key FOR NO KEY UPDATE OF r""",
    key="bigint",
    epoch="bigint",
)
"""Finds fewer rows than it was given if a fence fails. Those it finds can't be taken over before the commit."""

_ADVANCED = {
    "state": "v.state",
    "sequence": "v.sequence",
    "supersteps": "v.supersteps",
    "usage": "v.usage",
    "updated_at": "v.updated_at",
    "next_node": "greatest(r.next_node, v.next_node)",
    "stopped_by": "NULL::text",
    "newest": "v.newest",
}

ADVANCE_RUNS = Bulk(
    f"""UPDATE runs AS r SET {_set(_ADVANCED)}, seal = {RUN.of("r", **_ADVANCED)},
            holder = CASE WHEN v.final THEN NULL ELSE r.holder END
        FROM {{rows}} WHERE r.key = v.key AND r.epoch = v.epoch AND r.sweeps = v.sweeps AND r.holder = %s
            AND {RUN.holds("r")}
        RETURNING 1""",
    key="bigint",
    epoch="bigint",
    sweeps="bigint",
    state="text",
    sequence="bigint",
    supersteps="bigint",
    usage="text",
    updated_at="text",
    next_node="bigint",
    newest="text",
    final="boolean",
)
"""Changes fewer rows than it was given if a fence fails, or a row is damaged."""

_RELEASED = {
    "state": "coalesce(nullif(v.state, ''), r.state)",
    "stopped_by": "coalesce(nullif(v.stopped_by, ''), r.stopped_by)",
}

RELEASE_RUNS = Bulk(
    f"""UPDATE runs AS r SET holder = NULL, {_set(_RELEASED)}, seal = {RUN.renewed("r", **_RELEASED)}
        FROM {{rows}} WHERE r.key = v.key AND r.epoch = v.epoch AND r.holder = %s""",
    key="bigint",
    epoch="bigint",
    state="text",
    stopped_by="text",
)

_PARENT = {"parent_checkpoint_id": "nullif(v.parent_checkpoint_id, '')", "parent_run_id": "nullif(v.parent_run_id, '')"}
_UNBEGUN = dict.fromkeys(("next_node", "sequence", "supersteps"), "0")
_UNBEGUN |= {"usage": "'{}'::text", "stopped_by": "NULL::text", "newest": "NULL::text"}

CREATE_RUNS = Bulk(
    f"""INSERT INTO runs (run_id, workflow_key, workflow, origin, epoch, holder, state, updated_at,
            {", ".join(_PARENT)}, {", ".join(_UNBEGUN)}, seal)
        SELECT run_id, workflow_key, workflow, origin, 1, holder, state, updated_at,
            {", ".join(_PARENT.values())}, {", ".join(_UNBEGUN.values())}, {RUN.of("v", **_PARENT, **_UNBEGUN)}
        FROM {{rows}} ORDER BY v.run_id
        ON CONFLICT (run_id) DO NOTHING RETURNING run_id, key""",
    run_id="text",
    workflow_key="bytea",
    workflow="text",
    origin="text",
    holder="text",
    state="text",
    updated_at="text",
    parent_checkpoint_id="text",
    parent_run_id="text",
)
"""Gives back those that were not there. In the order of their names, so that two who create the same do not wait in a
circle for each other."""

_INSERT_CHECKPOINTS = f"""
        INSERT INTO checkpoints AS c (id, checkpoint_id, run_key, workflow_key, digest, header, refs, body, seal)
        SELECT id, checkpoint_id, run_key, workflow_key, digest, header, refs::bigint[], body, {CHECKPOINT.of("v")}
        FROM (SELECT nextval('checkpoints_id_seq') AS id, v.* FROM {{rows}} {{fenced}} ORDER BY v.nth) AS v
        ON CONFLICT (checkpoint_id) DO UPDATE SET id = excluded.id, run_key = excluded.run_key,
            workflow_key = excluded.workflow_key, digest = excluded.digest, header = excluded.header,
            refs = excluded.refs, body = excluded.body, seal = excluded.seal"""
_CHECKPOINT_COLUMNS = {
    "checkpoint_id": "text",
    "run_key": "bigint",
    "workflow_key": "bytea",
    "digest": "bytea",
    "header": "text",
    "refs": "text",
    "body": "text",
}

INSERT_CHECKPOINTS = Bulk(_INSERT_CHECKPOINTS.replace("{fenced}", ""), **_CHECKPOINT_COLUMNS)

_NEXT_NEWEST = """(SELECT d.checkpoint_id FROM checkpoints AS d
    WHERE d.run_key = r.key AND d.checkpoint_id <> r.newest ORDER BY d.id DESC LIMIT 1)"""

LOSE_NEWEST = Bulk(
    f"""UPDATE runs AS r SET newest = {_NEXT_NEWEST}, seal = {RUN.renewed("r", newest=_NEXT_NEWEST)}
        FROM {{rows}} JOIN checkpoints AS c ON c.checkpoint_id = v.checkpoint_id
        WHERE r.key = c.run_key AND r.newest = c.checkpoint_id AND r.key <> v.new_run_key""",
    checkpoint_id="text",
    new_run_key="bigint",
)
"""These checkpoints are about to go, to another run or altogether: their runs end with the ones before them."""

INSERT_NODES = Bulk(
    "INSERT INTO nodes (id, digest, refs, body) SELECT id, digest, refs::bigint[], body FROM {rows}",
    id="bigint",
    digest="bytea",
    refs="text",
    body="text",
)

ANNOUNCE_HOLDER = """
    INSERT INTO holders (holder, lock, alive_until, commits)
    VALUES (%s, %s, clock_timestamp() + %s::double precision * interval '1 second', %s)
    ON CONFLICT (holder) DO UPDATE SET lock = excluded.lock, alive_until = excluded.alive_until"""
MARK_HOLDER = ANNOUNCE_HOLDER + ", commits = excluded.commits"
"""Heartbeat and mark in one: who writes, lives."""

_REPLACING_CALL = """ON CONFLICT (run_key, call_key) DO UPDATE
            SET digest = excluded.digest, body = excluded.body, seal = excluded.seal"""
_RECORD = f"""INSERT INTO calls (run_key, call_key, call_id, digest, body, seal)
        SELECT run_key, call_key, call_id, digest, body, {CALL.of("v")} FROM {{rows}} {{fenced}} ORDER BY v.nth
        {_REPLACING_CALL}"""
_CALL_COLUMNS = {"run_key": "bigint", "call_key": "bytea", "call_id": "text", "digest": "bytea", "body": "text"}

RECORD_CALLS = Bulk(_RECORD.replace("{fenced}", ""), **_CALL_COLUMNS)

RECORD_AT_ONCE = Bulk(
    f"""WITH marked AS ({MARK_HOLDER}), mine AS (
            SELECT r.key FROM unnest(%b::bigint[], %b::bigint[]) AS f (key, epoch)
            JOIN runs AS r ON r.key = f.key AND r.epoch = f.epoch
            WHERE r.holder = %s ORDER BY r.key FOR NO KEY UPDATE OF r),
        {_CHECKED.format(rows="mine")}
        {_RECORD.replace("{fenced}", _FENCED)}""",
    **_CALL_COLUMNS,
)
"""Mark, fence and record in one statement, which is a transaction by itself; divides by zero if a fence fails.

Recording a call is what programs wait for most often, and a crash before it is durable costs a finished call."""

RECORD_ALONE = f"""
    WITH mine AS MATERIALIZED (
        SELECT r.key FROM runs AS r JOIN holders AS h ON h.holder = r.holder AND h.alive_until IS NOT NULL
        WHERE r.key = $1::bigint AND r.epoch = $2::bigint AND r.holder = $3::text FOR NO KEY UPDATE OF r),
    superseded AS (
        DELETE FROM calls AS c USING mine WHERE c.run_key = mine.key AND c.call_key = ANY($8::bytea[])),
    v AS (
        SELECT mine.key AS run_key, $4::bytea AS call_key, $5::text AS call_id, $6::bytea AS digest, $7::text AS body
        FROM mine)
    INSERT INTO calls (run_key, call_key, call_id, digest, body, seal)
    SELECT run_key, call_key, call_id, digest, body, {CALL.of("v")} FROM v {_REPLACING_CALL}"""
"""One call, by itself; no row is written if the fence fails. The holder's row is looked at so that programs of a
version that may not write any more fail here as well (see `postgres_schema.py`)."""

REMOVE_CALLS = Bulk(
    "DELETE FROM calls AS c USING {rows} WHERE c.run_key = v.run_key AND c.call_key = v.call_key",
    run_key="bigint",
    call_key="bytea",
)

_UNANSWERED = {
    "deadline": "nullif(v.deadline, '')",
    "answered_at": "NULL::text",
    "typed": "NULL::boolean",
    "answer": "NULL::text",
}

INSERT_REQUESTS = Bulk(
    f"""INSERT INTO requests (run_key, request_key, request_id, source, request_type, response_type, asked_at, shown,
            {", ".join(_UNANSWERED)}, seal)
        SELECT run_key, request_key, request_id, source, request_type, response_type, asked_at, shown,
            {", ".join(_UNANSWERED.values())}, {REQUEST.of("v", **_UNANSWERED)}
        FROM {{rows}} ORDER BY v.nth
        ON CONFLICT (run_key, request_key) DO NOTHING""",
    run_key="bigint",
    request_key="bytea",
    request_id="text",
    source="text",
    request_type="text",
    response_type="text",
    asked_at="text",
    deadline="text",
    shown="text",
)

_ANSWERED = {"answer": "v.answer", "answered_at": "v.answered_at", "typed": "v.typed"}

ANSWER_REQUEST = f"""
    UPDATE requests AS q SET {_set(_ANSWERED)}, seal = {REQUEST.of("q", **_ANSWERED)}
    FROM (SELECT %s::text, %s::text, %s::boolean) AS v (answer, answered_at, typed)
    WHERE q.run_key = %s AND q.request_key = %s AND (q.answer IS NULL OR (%s AND NOT q.typed)) AND {REQUEST.holds("q")}
    RETURNING 1"""
"""Changes nothing if it was answered before, or the row is damaged."""

DELIVER_ANSWER = f"""
    UPDATE requests AS q SET typed = true, seal = {REQUEST.renewed("q", typed="true")}
    WHERE q.run_key = %s AND q.request_key = %s AND q.answer IS NOT NULL"""

_CANCELLED = {"state": "'CANCELLED'::text", "stopped_by": "'cancel_run'::text"}

CANCEL_RUN = f"""
    UPDATE runs AS r SET {_set(_CANCELLED)}, seal = {RUN.renewed("r", **_CANCELLED)}, epoch = epoch + 1, holder = NULL
    WHERE r.key = %s"""

FORGET_CALLS = "DELETE FROM calls WHERE run_key = ANY(%b::bigint[])"


def _save_at_once(*more: str) -> Bulk:
    parts = [f"marked AS ({MARK_HOLDER})", f"advanced AS ({ADVANCE_RUNS.statement})", _CHECKED.format(rows="advanced")]
    return Bulk(
        f"WITH {', '.join([*parts, *more])} {_INSERT_CHECKPOINTS.replace('{fenced}', _FENCED)}", **_CHECKPOINT_COLUMNS
    )


SAVE_AT_ONCE = _save_at_once(f"forgotten AS ({FORGET_CALLS})")
SAVE_AT_ONCE_WITH_NODES = _save_at_once(f"forgotten AS ({FORGET_CALLS})", f"kept AS ({INSERT_NODES.statement})")
"""Mark, fence and checkpoints in one statement, like calls (see above). An id is taken when all runs are locked, and
not before: that the fence was checked is part of what the rows are selected from."""

PRUNE_CHECKPOINTS = """
    DELETE FROM checkpoints AS c USING unnest(%b::bigint[]) AS k WHERE c.run_key = k AND c.id <= (
        SELECT d.id FROM checkpoints AS d WHERE d.run_key = k ORDER BY d.id DESC LIMIT 1 OFFSET %s)"""
"""run keys, how many of the newest of each stay"""


def array_text(refs: Sequence[int]) -> str:
    """References as Postgres writes an array: arrays of arrays can't be of different lengths."""
    return f"{{{','.join(map(str, refs))}}}"
