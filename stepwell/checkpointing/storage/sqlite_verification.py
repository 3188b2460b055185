"""Reading what of a SQLite storage does not belong to checkpoints, to see whether it is whole."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from stepwell.checkpointing.storage.records import parse_call
from stepwell.checkpointing.storage.sqlite_reading import unpacked
from stepwell.checkpointing.storage.sqlite_schema import MEDIUM_ERRORS, failure
from stepwell.checkpointing.storage.verifying import DamagedRecord
from stepwell.checkpointing.values import digest_of
from stepwell.errors import WorkflowCheckpointException


def verify_runs(connection: sqlite3.Connection, path: str) -> tuple[int, int, list[DamagedRecord]]:
    """How many runs and calls there are, and what is wrong with the database, its calls and its values."""
    problems: list[DamagedRecord] = []
    try:
        checked = connection.execute("PRAGMA integrity_check(20)").fetchall()
        problems += [DamagedRecord(path, text) for (text,) in checked if text != "ok"]
        (runs,) = connection.execute("SELECT count(*) FROM runs").fetchone()
        calls = _calls(connection, problems)
        _values(connection, problems)
    except MEDIUM_ERRORS as error:
        problems.append(DamagedRecord.of(failure(error, Path(path), reading=True), path))
        return 0, 0, problems
    return runs, calls, problems


def _calls(connection: sqlite3.Connection, problems: list[DamagedRecord]) -> int:
    count = 0
    for call_id, body, digest in connection.execute("SELECT call_id, body, digest FROM calls"):
        count += 1
        try:
            parse_call(str(call_id), str(body), digest)
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
