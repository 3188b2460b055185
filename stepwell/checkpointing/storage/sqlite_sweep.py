"""Removing nodes that no checkpoint leads to any more."""

from __future__ import annotations

import json
import logging
import sqlite3

from stepwell.checkpointing.storage.sqlite_reading import family_keys, node_range, unpacked

logger = logging.getLogger(__name__)

SPARED_NODES = 256
"""A run may leave this many nodes, and as many as are in use, before it is worth looking for the ones that are not."""


def sweep(connection: sqlite3.Connection, origin: str) -> int:
    """Remove what nothing refers to among the nodes of a run and all its branches; how many are left.

    Only references are read, never a body. Branches share nodes, so the roots of the whole family count, and every log
    of the family learns through `sweeps` that what it remembers may be gone.
    """
    keys = family_keys(connection, origin)
    try:
        references = _references(connection, keys)
        needed = _marked(references, _roots(connection, keys))
    except ValueError as damage:
        # Whoever can't be followed might lead anywhere: better to keep too much.
        logger.warning("nodes of %r are not swept, some references are damaged: %s", origin, damage)
        return len(keys)
    doomed = references.keys() - needed
    if doomed:
        _remove(connection, doomed)
        connection.execute("UPDATE runs SET sweeps = sweeps + 1 WHERE origin = ?", (origin,))
    connection.execute(
        """DELETE FROM departed WHERE origin = ? AND NOT EXISTS
            (SELECT 1 FROM nodes WHERE nodes.id BETWEEN run_key << 32 AND ((run_key + 1) << 32) - 1)""",
        (origin,),
    )
    return len(references) - len(doomed)


def _references(connection: sqlite3.Connection, keys: list[int]) -> dict[int, tuple[int, ...]]:
    references: dict[int, tuple[int, ...]] = {}
    for key in keys:
        (text,) = connection.execute(
            "SELECT group_concat(id || ':' || hex(refs)) FROM nodes WHERE id BETWEEN ? AND ?", node_range(key)
        ).fetchone()
        for entry in text.split(",") if text else ():
            node_id, _, refs = entry.partition(":")
            references[int(node_id)] = unpacked(bytes.fromhex(refs))
    return references


def _roots(connection: sqlite3.Connection, keys: list[int]) -> set[int]:
    (text,) = connection.execute(
        "SELECT group_concat(hex(refs)) FROM checkpoints WHERE run_key IN (SELECT value FROM json_each(?))",
        (json.dumps(keys),),
    ).fetchone()
    return {ref for refs in (text or "").split(",") for ref in unpacked(bytes.fromhex(refs))}


def _marked(references: dict[int, tuple[int, ...]], roots: set[int]) -> set[int]:
    marked: set[int] = set()
    waiting = list(roots)
    while waiting:
        node_id = waiting.pop()
        if node_id not in marked:
            marked.add(node_id)
            waiting.extend(references.get(node_id, ()))
    return marked


def _remove(connection: sqlite3.Connection, doomed: set[int]) -> None:
    connection.execute("DELETE FROM nodes WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(sorted(doomed)),))
