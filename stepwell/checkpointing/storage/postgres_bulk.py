"""Statements over many rows at once: each takes its columns as arrays, so its text is the same for any number of rows.

Postgres keeps them prepared, and a group of a thousand writes is a handful of statements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stepwell.checkpointing.storage.postgres_transaction import Cursor, Transaction


class Bulk:
    """A statement with one `{rows}` in it, for rows of these columns; `:first` and so on are its other values."""

    def __init__(self, statement: str, **columns: str) -> None:
        arrays = ", ".join(f"%b::{kind}[]" for kind in columns.values())
        self._statement = statement.format(rows=f"unnest({arrays}) WITH ORDINALITY AS v ({', '.join(columns)}, nth)")

    def run(self, transaction: Transaction, rows: Sequence[Sequence[Any]], *more: Any) -> Cursor:
        """Rows must not be empty; `more` are values for placeholders behind the rows."""
        return transaction.execute(self._statement, (*_columns(rows), *more))

    def require(
        self,
        transaction: Transaction,
        rows: Sequence[Sequence[Any]],
        *more: Any,
        refusal: Callable[[], Exception],
    ) -> None:
        """The same, and it has to find or change a row for each of these."""
        transaction.require(len(rows), self._statement, (*_columns(rows), *more), refusal)


def _columns(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


FENCE = Bulk(
    """SELECT r.key FROM {rows} JOIN runs AS r ON r.key = v.key AND r.epoch = v.epoch
        WHERE r.holder = %s ORDER BY r.key FOR NO KEY UPDATE OF r""",
    key="bigint",
    epoch="bigint",
)
"""Finds fewer rows than it was given if a fence fails. Those it finds can't be taken over before the commit."""

ADVANCE_RUNS = Bulk(
    """UPDATE runs AS r SET state = v.state, sequence = v.sequence, supersteps = v.supersteps, usage = v.usage,
            updated_at = v.updated_at, next_node = greatest(r.next_node, v.next_node), stopped_by = NULL,
            holder = CASE WHEN v.final THEN NULL ELSE r.holder END
        FROM {rows} WHERE r.key = v.key AND r.epoch = v.epoch AND r.sweeps = v.sweeps AND r.holder = %s
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
    final="boolean",
)
"""Changes fewer rows than it was given if a fence fails."""

RELEASE_RUNS = Bulk(
    """UPDATE runs AS r SET holder = NULL, state = coalesce(nullif(v.state, ''), r.state),
            stopped_by = coalesce(nullif(v.stopped_by, ''), r.stopped_by)
        FROM {rows} WHERE r.key = v.key AND r.epoch = v.epoch AND r.holder = %s""",
    key="bigint",
    epoch="bigint",
    state="text",
    stopped_by="text",
)

CREATE_RUNS = Bulk(
    """INSERT INTO runs (run_id, workflow_key, workflow, origin, epoch, holder, state, updated_at,
            parent_checkpoint_id, parent_run_id)
        SELECT run_id, workflow_key, workflow, origin, 1, holder, state, updated_at,
            nullif(parent_checkpoint_id, ''), nullif(parent_run_id, '') FROM {rows} ORDER BY v.run_id
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

INSERT_CHECKPOINTS = Bulk(
    """INSERT INTO checkpoints AS c (checkpoint_id, run_key, workflow_key, digest, header, refs, body)
        SELECT checkpoint_id, run_key, workflow_key, digest, header, refs::bigint[], body FROM {rows} ORDER BY v.nth
        ON CONFLICT (checkpoint_id) DO UPDATE SET id = excluded.id, run_key = excluded.run_key,
            workflow_key = excluded.workflow_key, digest = excluded.digest, header = excluded.header,
            refs = excluded.refs, body = excluded.body""",
    checkpoint_id="text",
    run_key="bigint",
    workflow_key="bytea",
    digest="bytea",
    header="text",
    refs="text",
    body="text",
)

INSERT_NODES = Bulk(
    "INSERT INTO nodes (id, digest, refs, body) SELECT id, digest, refs::bigint[], body FROM {rows}",
    id="bigint",
    digest="bytea",
    refs="text",
    body="text",
)

RECORD_CALLS = Bulk(
    """INSERT INTO calls (run_key, call_key, call_id, digest, body)
        SELECT run_key, call_key, call_id, digest, body FROM {rows} ORDER BY v.nth
        ON CONFLICT (run_key, call_key) DO UPDATE SET digest = excluded.digest, body = excluded.body""",
    run_key="bigint",
    call_key="bytea",
    call_id="text",
    digest="bytea",
    body="text",
)

REMOVE_CALLS = Bulk(
    "DELETE FROM calls AS c USING {rows} WHERE c.run_key = v.run_key AND c.call_key = v.call_key",
    run_key="bigint",
    call_key="bytea",
)

INSERT_REQUESTS = Bulk(
    """INSERT INTO requests (run_key, request_key, request_id, source, request_type, response_type, asked_at,
            deadline, shown)
        SELECT run_key, request_key, request_id, source, request_type, response_type, asked_at,
            nullif(deadline, ''), shown FROM {rows} ORDER BY v.nth
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

FORGET_CALLS = "DELETE FROM calls WHERE run_key = ANY(%b::bigint[])"

PRUNE_CHECKPOINTS = """
    DELETE FROM checkpoints AS c USING unnest(%b::bigint[]) AS k WHERE c.run_key = k AND c.id <= (
        SELECT d.id FROM checkpoints AS d WHERE d.run_key = k ORDER BY d.id DESC LIMIT 1 OFFSET %s)"""
"""run keys, how many of the newest of each stay"""


def array_text(refs: Sequence[int]) -> str:
    """References as Postgres writes an array: arrays of arrays can't be of different lengths."""
    return f"{{{','.join(map(str, refs))}}}"
