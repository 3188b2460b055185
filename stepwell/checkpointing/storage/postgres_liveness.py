"""The sign that a storage instance lives, which the server takes down with it.

Each instance keeps a session advisory lock on a connection that does nothing else. The server drops it with the
session, however that ends and on whichever host its process was, so the next runner knows at once.

A session can also be lost by a process that lives: the server restarts, an administrator ends it, a network breaks. The
instance then takes a new session and a new lock, and goes on: if somebody took a run of it meanwhile, the run's epoch
is another one and the fence refuses its writes; if nobody did, nothing happened.
"""

from __future__ import annotations

import logging
import secrets
import select
from contextlib import suppress

from stepwell.checkpointing.storage.postgres_connection import MEDIUM_ERRORS, Connection, Target, connect

logger = logging.getLogger(__name__)

HELD_LOCKS = """
    SELECT (classid::bigint << 32) | objid::bigint FROM pg_catalog.pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND mode = 'ExclusiveLock'
        AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"""
"""The numbers of all advisory locks. Looking at them, unlike trying to take them, disturbs nobody."""

ALIVE = f"""
    SELECT holder FROM holders
    WHERE holder = ANY(%b::text[]) AND alive_until > clock_timestamp() AND lock IN ({HELD_LOCKS})"""
"""Those of these holders that have their lock, and have been heard of within their lease."""

BURY_THE_DEAD = f"""
    DELETE FROM holders
    WHERE alive_until < clock_timestamp() - interval '1 hour' AND lock NOT IN ({HELD_LOCKS})
        AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.holder = holders.holder)"""
"""Forget holders that are dead and hold nothing; those that do are needed to tell that they are dead."""


class Liveness:
    """One session, one lock. Used by the writer thread only."""

    def __init__(self, target: Target, instance: str) -> None:
        self._target = target
        self._name = f"stepwell alive {instance}"
        self._connection: Connection | None = None
        self._lock = 0

    def lock(self) -> int:
        """The number of the lock that is held now; a new one if the session was lost."""
        if self._connection is not None and self._is_lost(self._connection):
            logger.warning("%s: the session that tells that this process lives was lost", self._target.where)
            self.close()
        if self._connection is None:
            # Never the number of before: the server may still believe in the session that was lost.
            number = secrets.randbits(62)
            connection = connect(self._target, self._name)
            self._connection = connection
            connection.execute("SELECT pg_advisory_lock(%s)", (number,))
            self._lock = number
        return self._lock

    def check(self) -> None:
        """Ask the server, which also keeps whatever is in between from forgetting a silent connection."""
        if self._connection is not None:
            with suppress(*MEDIUM_ERRORS):  # the next look at it tells
                self._connection.execute("SELECT 1")

    def _is_lost(self, connection: Connection) -> bool:
        if not connection.closed and select.select([connection.fileno()], [], [], 0)[0]:
            # An idle session hears from the server only when it ends, or for a notice.
            self.check()
        return connection.closed

    def close(self) -> None:
        """Look dead from now on."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with suppress(*MEDIUM_ERRORS):  # if it can't be told, the server notices by itself
                if not connection.closed:
                    # Said and heard, and not left to the end of the session, which takes the server a moment to see.
                    connection.execute("SELECT pg_advisory_unlock_all()")
            connection.close()
