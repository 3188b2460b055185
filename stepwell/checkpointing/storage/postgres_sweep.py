"""Removing nodes that no checkpoint leads to any more."""

from __future__ import annotations

from stepwell.checkpointing.storage.postgres_reading import Rows, family_keys
from stepwell.checkpointing.storage.postgres_text import lock_number

SPARED_NODES = 256
"""A run may leave this many nodes, and as many as are in use, before it is worth looking for the ones that are not."""

_IN_FAMILY = "n.id BETWEEN k << 32 AND ((k + 1) << 32) - 1"

_SWEEP = f"""
    WITH RECURSIVE reached (id) AS (
        SELECT unnest(c.refs) FROM checkpoints AS c WHERE c.run_key = ANY(%(keys)b::bigint[])
        UNION
        SELECT ref FROM reached
            CROSS JOIN LATERAL (SELECT nodes.refs FROM nodes WHERE nodes.id = reached.id OFFSET 0) AS n
            CROSS JOIN LATERAL unnest(n.refs) AS ref)
    DELETE FROM nodes AS n USING unnest(%(keys)b::bigint[]) AS k
        WHERE {_IN_FAMILY} AND NOT EXISTS (SELECT 1 FROM reached WHERE reached.id = n.id)
        RETURNING n.id"""
# OFFSET 0 keeps the planner to one look into the index per node: it can't know how many there are, and would read the
# whole table once per level if it guessed badly.

_DEPARTED = f"""
    DELETE FROM departed AS d WHERE d.origin = %s AND NOT EXISTS (
        SELECT 1 FROM nodes AS n, (SELECT d.run_key AS k) AS of_it WHERE {_IN_FAMILY})"""

_LEFT = f"SELECT count(*) FROM unnest(%b::bigint[]) AS k JOIN nodes AS n ON {_IN_FAMILY}"


def family_lock(schema: str, origin: str) -> int:
    """Held alone by whoever sweeps a family of runs, and shared by whoever adds a branch to it."""
    return lock_number("family", schema, origin)


def sweep(rows: Rows, schema: str, origin: str) -> None:
    """Remove what nothing refers to among the nodes of a run and all its branches.

    The rows of all these runs are locked first. Whoever saves holds the lock on its run's row, so every checkpoint is
    either visible to the sweep or finds afterwards that `sweeps` is no longer what it expected.
    """
    rows("SELECT 1 FROM pg_advisory_xact_lock(%s)", (family_lock(schema, origin),))
    keys = family_keys(rows, origin, locked=True)
    if keys and rows(_SWEEP, {"keys": keys}):
        rows("UPDATE runs SET sweeps = sweeps + 1 WHERE origin = %s RETURNING 1", (origin,))
    rows(_DEPARTED + " RETURNING 1", (origin,))


def nodes_left(rows: Rows, origin: str) -> int:
    keys = family_keys(rows, origin)
    return int(rows(_LEFT, (keys,))[0][0]) if keys else 0
