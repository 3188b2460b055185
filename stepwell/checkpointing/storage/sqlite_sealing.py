"""Sealing the rows of a database that was written before there were seals."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from stepwell.checkpointing.storage.protocol import Decision, PendingSummary
from stepwell.checkpointing.storage.records import RunRow, call_digest
from stepwell.checkpointing.storage.sqlite_seals import owned_call_digest, request_seal, run_seal

_AT_ONCE = 500

_RUNS = """SELECT r.key, r.run_id, w.name, r.state, r.epoch, NULL, r.origin, r.sweeps, r.sequence, r.supersteps,
    r.usage, r.updated_at, r.parent_checkpoint_id, r.parent_run_id, r.stopped_by, r.next_node, r.newest
    FROM runs AS r JOIN workflows AS w ON w.id = r.workflow"""
_REQUESTS = """SELECT q.id, r.run_id, q.request_id, q.source, q.request_type, q.response_type, q.asked_at, q.shown,
    q.deadline, q.answer, q.answered_at, q.typed FROM requests AS q JOIN runs AS r ON r.key = q.run_key"""
_CALLS = "SELECT c.id, r.run_id, c.body, c.digest FROM calls AS c JOIN runs AS r ON r.key = c.run_key"


def seal_everything(connection: sqlite3.Connection) -> None:
    """All rows as they are, within the caller's transaction; what is damaged already stays so."""
    connection.execute(
        """UPDATE runs SET newest = (
            SELECT c.checkpoint_id FROM checkpoints AS c WHERE c.run_key = runs.key ORDER BY c.id DESC LIMIT 1)"""
    )
    for values in connection.execute(_RUNS).fetchall():
        row = RunRow(*values[:15])
        seal = _made(run_seal, row, *values[15:])
        connection.execute("UPDATE runs SET seal = ? WHERE key = ?", (seal, row.key))
    for key, run_id, *asked, answer, answered_at, typed in connection.execute(_REQUESTS).fetchall():
        summary = PendingSummary(*asked)
        given = None if answer is None else Decision(summary.request_id, answer, answered_at, bool(typed))
        seal = _made(request_seal, run_id, summary, given)
        connection.execute("UPDATE requests SET seal = ? WHERE id = ?", (seal, key))
    _seal_calls(connection)


def _seal_calls(connection: sqlite3.Connection) -> None:
    calls = connection.cursor().execute(_CALLS)
    while some := calls.fetchmany(_AT_ONCE):
        for key, run_id, body, digest in some:
            if _made(call_digest, body) == digest:
                owned = owned_call_digest(run_id, body)
                connection.execute("UPDATE calls SET digest = ? WHERE id = ?", (owned, key))


def _made(seal: Callable[..., bytes], *values: Any) -> bytes | None:
    """No seal for what nobody has written: SQLite keeps whatever it is given in any column."""
    try:
        return seal(*values)
    except (TypeError, AttributeError):
        return None
