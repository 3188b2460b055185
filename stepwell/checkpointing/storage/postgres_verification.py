"""Reading what of a Postgres storage does not belong to checkpoints, to see whether it is whole."""

from __future__ import annotations

from stepwell.checkpointing.storage.postgres_reading import Rows, every_call, parse_row_of_call
from stepwell.checkpointing.storage.postgres_seals import REQUEST, RUN
from stepwell.checkpointing.storage.postgres_text import original
from stepwell.checkpointing.storage.verifying import DamagedRecord
from stepwell.checkpointing.values import digest_of
from stepwell.errors import WorkflowCheckpointException

_AT_ONCE = 1000


_BROKEN_RUNS = f"SELECT r.run_id FROM runs AS r WHERE NOT {RUN.holds('r')}"
_BROKEN_REQUESTS = f"SELECT q.request_id FROM requests AS q WHERE NOT {REQUEST.holds('q')}"
_LOST_CHECKPOINTS = """
    SELECT r.newest FROM runs AS r LEFT JOIN LATERAL (
        SELECT c.checkpoint_id FROM checkpoints AS c WHERE c.run_key = r.key ORDER BY c.id DESC LIMIT 1) AS l ON true
    WHERE r.newest IS NOT NULL AND l.checkpoint_id IS DISTINCT FROM r.newest"""
_ORPHANS = """
    SELECT kind, name FROM (
        SELECT 'checkpoint', checkpoint_id, run_key FROM checkpoints
        UNION ALL SELECT 'call', call_id, run_key FROM calls
        UNION ALL SELECT 'request', request_id, run_key FROM requests) AS t (kind, name, run_key)
    WHERE NOT EXISTS (SELECT 1 FROM runs WHERE runs.key = t.run_key)"""


def verify_runs(rows: Rows) -> tuple[int, int, list[DamagedRecord]]:
    """How many runs and calls there are, and what is wrong with runs, requests, calls and values."""
    problems: list[DamagedRecord] = []
    ((runs,),) = rows("SELECT count(*) FROM runs", ())
    _places(rows, problems)
    calls = _calls(rows, problems)
    _values(rows, problems)
    return runs, calls, problems


def _places(rows: Rows, problems: list[DamagedRecord]) -> None:
    """Rows that are not what was written, and such as are not where they belong."""
    for kind, query in (("run", _BROKEN_RUNS), ("request", _BROKEN_REQUESTS)):
        broken = (original(name) for (name,) in rows(query, ()))
        problems += [DamagedRecord(f"{kind} {name}", "its row does not match its seal") for name in broken]
    lost = rows(_LOST_CHECKPOINTS, ())
    problems += [DamagedRecord(name, "it is the newest of its run and not in its place") for (name,) in lost]
    orphans = rows(_ORPHANS, ())
    problems += [
        DamagedRecord(f"{kind} {original(name)}", "the run it belongs to is missing") for kind, name in orphans
    ]


def _calls(rows: Rows, problems: list[DamagedRecord]) -> int:
    found = every_call(rows)
    for call in found:
        try:
            parse_row_of_call(*call)
        except WorkflowCheckpointException as error:
            problems.append(DamagedRecord.of(error, f"call {original(call[0])}"))
    return len(found)


def _values(rows: Rows, problems: list[DamagedRecord]) -> None:
    """Every value, whether or not a checkpoint leads to it."""
    digests: dict[int, bytes] = dict(rows("SELECT id, digest FROM nodes", ()))
    last = -1
    while page := rows("SELECT id, body, refs FROM nodes WHERE id > %s ORDER BY id LIMIT %s", (last, _AT_ONCE)):
        for node_id, body, refs in page:
            children = [digests.get(ref, b"") if isinstance(ref, int) else b"" for ref in refs]
            if digest_of(body, children) != digests[node_id]:
                problems.append(DamagedRecord(f"value {node_id}", "its content does not match its digest"))
        last = page[-1][0]
