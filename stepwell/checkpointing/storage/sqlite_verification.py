"""Reading what of a SQLite storage does not belong to checkpoints, to see whether it is whole."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from stepwell.checkpointing.storage import sqlite_reading as reading
from stepwell.checkpointing.storage.sqlite_reading import unpacked
from stepwell.checkpointing.storage.sqlite_schema import MEDIUM_ERRORS, failure
from stepwell.checkpointing.storage.verifying import DamagedRecord
from stepwell.checkpointing.values import digest_of
from stepwell.errors import CheckpointDamaged, WorkflowCheckpointException


def verify_runs(connection: sqlite3.Connection, path: str) -> tuple[int, int, list[DamagedRecord]]:
    """How many runs and calls there are, and what is wrong with the database, its rows and its values."""
    problems: list[DamagedRecord] = []
    try:
        checked = connection.execute("PRAGMA integrity_check(20)").fetchall()
        problems += [DamagedRecord(path, text) for (text,) in checked if text != "ok"]
        (runs,) = connection.execute("SELECT count(*) FROM runs").fetchone()
        _runs(connection, problems)
        _requests(connection, problems)
        _orphans(connection, problems)
        _order(connection, problems)
        calls = _calls(connection, problems)
        _values(connection, problems)
    except MEDIUM_ERRORS as error:
        problems.append(DamagedRecord.of(failure(error, Path(path), reading=True), path))
        return 0, 0, problems
    return runs, calls, problems


def _runs(connection: sqlite3.Connection, problems: list[DamagedRecord]) -> None:
    for values, latest in reading.every_run(connection):
        try:
            run = reading.stored_run(values)
        except CheckpointDamaged as error:
            problems.append(DamagedRecord.of(error, "run"))
            continue
        found = (None if run.whole else run.damage(), run.lost(latest))
        problems += [DamagedRecord.of(damage, "run") for damage in found if damage is not None]


def _requests(connection: sqlite3.Connection, problems: list[DamagedRecord]) -> None:
    for values in reading.every_request(connection):
        try:
            reading.request_row(values)
        except CheckpointDamaged as error:
            problems.append(DamagedRecord.of(error, "request"))


_ORPHANS = """
    SELECT kind, name FROM (
        SELECT 'checkpoint' AS kind, checkpoint_id AS name, run_key FROM checkpoints
        UNION ALL SELECT 'call', call_id, run_key FROM calls
        UNION ALL SELECT 'request', request_id, run_key FROM requests)
    WHERE run_key NOT IN (SELECT key FROM runs)"""


def _orphans(connection: sqlite3.Connection, problems: list[DamagedRecord]) -> None:
    for kind, name in connection.execute(_ORPHANS):
        problems.append(DamagedRecord(f"{kind} {name}", "the run it belongs to is missing"))


def _order(connection: sqlite3.Connection, problems: list[DamagedRecord]) -> None:
    """A checkpoint names the digest of the one that was its run's newest when it was saved, so that one comes first."""
    later: dict[int, dict[str, str]] = {}
    newest_first = "SELECT run_key, checkpoint_id, lower(hex(digest)), header FROM checkpoints ORDER BY id DESC"
    for run_key, checkpoint_id, digest, header in connection.execute(newest_first):
        seen = later.setdefault(run_key, {})
        seen[digest] = checkpoint_id
        try:
            named = json.loads(header)
            misplaced = seen.get(named["previous_digest"])
            if named["id"] != checkpoint_id:
                # It can't be found by a name that is no text any more.
                problems.append(DamagedRecord(named["id"], f"it is now called {checkpoint_id}"))
        except (ValueError, TypeError, KeyError, RecursionError):
            continue  # told by whoever loads it
        if misplaced is not None:
            problems.append(DamagedRecord(misplaced, f"it comes after {checkpoint_id}, which was saved later"))


def _calls(connection: sqlite3.Connection, problems: list[DamagedRecord]) -> int:
    count = 0
    rows = connection.execute(
        "SELECT r.run_id, c.call_id, c.body, c.digest FROM calls AS c LEFT JOIN runs AS r ON r.key = c.run_key"
    )
    for run_id, call_id, body, digest in rows:
        count += 1
        try:
            reading.owned_call(str(run_id), str(call_id), str(body), digest)
        except WorkflowCheckpointException as error:
            problems.append(DamagedRecord.of(error, f"call {call_id}"))
        except (ValueError, TypeError) as error:
            problems.append(DamagedRecord(f"call {call_id}", str(error)))
    return count


def _values(connection: sqlite3.Connection, problems: list[DamagedRecord]) -> None:
    """Every value, whether or not a checkpoint leads to it."""
    digests = dict(connection.execute("SELECT id, digest FROM nodes"))
    for node_id, refs, body in connection.execute("SELECT id, refs, body FROM nodes"):
        try:
            children = [digests[ref] for ref in unpacked(refs)]
            if digest_of(body, children) == digests[node_id]:
                continue
        except (ValueError, TypeError, KeyError, AttributeError):
            pass
        problems.append(DamagedRecord(f"value {node_id}", "its content does not match its digest"))
