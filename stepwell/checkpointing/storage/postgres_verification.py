"""Reading what of a Postgres storage does not belong to checkpoints, to see whether it is whole."""

from __future__ import annotations

from stepwell.checkpointing.storage.postgres_reading import Rows
from stepwell.checkpointing.storage.postgres_text import original
from stepwell.checkpointing.storage.records import parse_call
from stepwell.checkpointing.storage.verifying import DamagedRecord
from stepwell.checkpointing.values import digest_of
from stepwell.errors import WorkflowCheckpointException

_AT_ONCE = 1000


def verify_runs(rows: Rows) -> tuple[int, int, list[DamagedRecord]]:
    """How many runs and calls there are, and what is wrong with calls and values."""
    problems: list[DamagedRecord] = []
    ((runs,),) = rows("SELECT count(*) FROM runs", ())
    calls = _calls(rows, problems)
    _values(rows, problems)
    return runs, calls, problems


def _calls(rows: Rows, problems: list[DamagedRecord]) -> int:
    found = rows("SELECT call_id, body, digest FROM calls ORDER BY id", ())
    for escaped, body, digest in found:
        call_id = original(escaped)
        try:
            parse_call(call_id, body, digest)
        except WorkflowCheckpointException as error:
            problems.append(DamagedRecord.of(error, f"call {call_id}"))
        except (ValueError, TypeError, AttributeError) as error:
            problems.append(DamagedRecord(f"call {call_id}", str(error)))
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
