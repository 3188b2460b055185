"""Statements over many rows at once.

Python's `sqlite3` gives up the interpreter lock for every statement, and while the event loop is busy it gets it back
only after some milliseconds. So a group of a thousand writes is a handful of statements, not thousands.

The number of rows is rounded up to a power of two and the rest filled with NULLs that the statement passes over: there
are few different texts, and SQLite's prepared statements are found again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain

_MOST_ROWS = 1024


class Bulk:
    """A statement with one `{rows}` in it, for rows of a fixed number of columns whose first is never NULL.

    `single` is a simpler statement for one row, where there is one that SQLite is faster with.
    """

    def __init__(self, statement: str, *, columns: int, single: str | None = None) -> None:
        self._statement = statement
        self._columns = columns
        self._single = single or statement.format(rows=self._rows(1))
        self._texts: dict[tuple[int, bool], str] = {}

    def run(self, connection: sqlite3.Connection, rows: Sequence[Sequence[object]]) -> int:
        """How many rows it changed in all."""
        if not rows:
            return 0
        if len(rows) == 1:
            return connection.execute(self._single, rows[0]).rowcount
        parts = (rows[start : start + _MOST_ROWS] for start in range(0, len(rows), _MOST_ROWS))
        return sum(self._run(connection, part) for part in parts)

    def _run(self, connection: sqlite3.Connection, rows: Sequence[Sequence[object]]) -> int:
        count = len(rows)
        size = 1 << (count - 1).bit_length()
        values = list(chain.from_iterable(rows))
        values.extend([None] * ((size - count) * self._columns))
        return connection.execute(self._text(size, padded=size != count), values).rowcount

    def _text(self, size: int, *, padded: bool) -> str:
        text = self._texts.get((size, padded))
        if text is None:
            rows = self._rows(size)
            rows = f"SELECT * FROM ({rows}) WHERE column1 IS NOT NULL" if padded else rows
            text = self._texts[size, padded] = self._statement.format(rows=rows)
        return text

    def _rows(self, size: int) -> str:
        row = f"({', '.join('?' * self._columns)})"
        return f"VALUES {', '.join([row] * size)}"


_FENCED = "runs.key = v.column1 AND runs.epoch = v.column2 AND runs.holder = v.column3"
_SAVED = """state = v.column5, sequence = v.column6, supersteps = v.column7, usage = v.column8, updated_at = v.column9,
    next_node = v.column10, newest = v.column11, seal = v.column12, stopped_by = NULL"""
_AS_IT_WAS = """runs.sweeps = v.column4 AND runs.run_id = v.column13 AND runs.workflow = v.column14
    AND runs.origin = v.column15 AND runs.parent_checkpoint_id IS v.column16 AND runs.parent_run_id IS v.column17"""
_SAVED_ONE = """state = ?5, sequence = ?6, supersteps = ?7, usage = ?8, updated_at = ?9,
    next_node = ?10, newest = ?11, seal = ?12, stopped_by = NULL
    WHERE key = ?1 AND epoch = ?2 AND holder = ?3 AND sweeps = ?4 AND run_id = ?13 AND workflow = ?14 AND origin = ?15
    AND parent_checkpoint_id IS ?16 AND parent_run_id IS ?17"""

ADVANCE_RUNS = Bulk(
    f"UPDATE runs SET {_SAVED} FROM ({{rows}}) AS v WHERE {_FENCED} AND {_AS_IT_WAS}",
    columns=17,
    single=f"UPDATE runs SET {_SAVED_ONE}",
)
"""key, epoch, holder, sweeps · state, sequence, supersteps, usage, updated_at, next node, newest, seal ·
run_id, workflow, origin, parent_checkpoint_id, parent_run_id

It changes fewer rows than it was given if a fence failed, or a row is no longer that of the run. All other columns that
are sealed get new values, so it does not matter what was in them.
"""

FINISH_RUNS = Bulk(
    f"UPDATE runs SET holder = NULL, {_SAVED} FROM ({{rows}}) AS v WHERE {_FENCED} AND {_AS_IT_WAS}",
    columns=17,
    single=f"UPDATE runs SET holder = NULL, {_SAVED_ONE}",
)
"""The same, and the lease is given back."""

RELEASE_RUNS = Bulk(
    f"""UPDATE runs SET holder = NULL, state = coalesce(v.column4, state),
            stopped_by = coalesce(CAST(v.column5 AS TEXT), stopped_by), seal = coalesce(v.column6, seal)
        FROM ({{rows}}) AS v WHERE {_FENCED}""",
    columns=6,
)
"""key, epoch, holder · state, stopped_by, seal"""

CREATE_RUNS = Bulk(
    """INSERT INTO runs
        (run_id, workflow, origin, epoch, holder, state, updated_at, parent_checkpoint_id, parent_run_id, seal)
        {rows}""",
    columns=10,
)

INSERT_CHECKPOINTS = Bulk(
    "INSERT OR REPLACE INTO checkpoints (checkpoint_id, run_key, workflow, digest, header, refs, body) {rows}",
    columns=7,
)

RUNS_OF_CHECKPOINTS = """SELECT json_group_array(json_array(checkpoint_id, run_key)) FROM checkpoints
    WHERE checkpoint_id IN (SELECT value FROM json_each(?))"""

INSERT_NODES = Bulk("INSERT INTO nodes (id, digest, refs, body) {rows}", columns=4)

PRUNE_CHECKPOINTS = """DELETE FROM checkpoints WHERE id IN (
    SELECT c.id FROM json_each(?1) AS v CROSS JOIN checkpoints AS c WHERE c.run_key = v.value AND c.id <= (
        SELECT d.id FROM checkpoints AS d WHERE d.run_key = v.value ORDER BY d.id DESC LIMIT 1 OFFSET ?2))"""
"""a list of run keys, how many of the newest of each stay"""

FORGET_CALLS = "DELETE FROM calls WHERE run_key IN (SELECT value FROM json_each(?))"
FORGET_CALLS_OF_ONE = "DELETE FROM calls WHERE run_key = ?"

RECORD_CALLS = Bulk(
    f"""INSERT INTO calls (run_key, call_id, digest, body)
        SELECT v.column1, CAST(v.column4 AS TEXT), v.column5, v.column6
        FROM ({{rows}}) AS v CROSS JOIN runs WHERE {_FENCED}
        ON CONFLICT (run_key, call_id) DO UPDATE SET digest = excluded.digest, body = excluded.body""",
    columns=6,
)
"""key, epoch, holder · call id, digest, body

It changes fewer rows than it was given if a fence failed.
"""

INSERT_REQUESTS = Bulk(
    """INSERT OR IGNORE INTO requests
        (run_key, request_id, source, request_type, response_type, asked_at, deadline, shown, seal)
        SELECT column1, CAST(column2 AS TEXT), CAST(column3 AS TEXT), CAST(column4 AS TEXT), CAST(column5 AS TEXT),
            column6, column7, CAST(column8 AS TEXT), column9 FROM ({rows})""",
    columns=9,
)
