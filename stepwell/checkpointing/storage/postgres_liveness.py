"""The sign that a storage instance lives, which the server takes down with it.

Each instance keeps a session advisory lock. The server drops it with the session, however that ends and on whichever
host its process was, so the next runner knows at once. Calls are recorded on the same session, which therefore does not
look dead before the server has done what it was sent (see `postgres_ahead.py`).

A session can also be lost by a process that lives: the server restarts, an administrator ends it, a network breaks. The
instance then takes a new session and a new lock, and goes on: if somebody took a run of it meanwhile, the run's epoch
is another one and the fence refuses its writes; if nobody did, nothing happened.
"""

from __future__ import annotations

import logging
import secrets

from stepwell.checkpointing.lease import Holder
from stepwell.checkpointing.storage.postgres_ahead import CHECK, STATEMENTS, SendingAhead
from stepwell.checkpointing.storage.postgres_connection import END_PREDECESSOR, Target, connect
from stepwell.checkpointing.storage.postgres_lane import Lane

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
    """One session, one lock. Used by the writer thread only, but for the calls that are sent ahead on this session."""

    def __init__(self, target: Target, holder: Holder) -> None:
        self._target = target
        self._name = f"stepwell alive {holder.instance}"
        self._lane: Lane | None = None
        self._had_a_lane = False
        self._lock = 0
        self.ahead = SendingAhead(str(holder))

    def lock(self) -> int:
        """The number of the lock that is held now; a new one if the session was lost."""
        if self._lane is not None and self._is_lost(self._lane):
            logger.warning("%s: the session that tells that this process lives was lost", self._target.where)
            self.close()
        if self._lane is None:
            self._open()
        return self._lock

    def _open(self) -> None:
        # Never the number of before: the server may still believe in the session that was lost.
        number = secrets.randbits(62)
        connection = connect(self._target, self._name, writing=True)
        try:
            if self._had_a_lane:
                # What the lost one has received and not begun must not be done later, after it was done again.
                connection.execute(END_PREDECESSOR, (self._name,))
            connection.execute("SELECT pg_advisory_lock(%s)", (number,))
            self._lane = self.ahead.lane = Lane(connection, STATEMENTS)
        except BaseException:
            connection.close()
            raise
        self._had_a_lane = True
        self._lock = number

    def check(self) -> None:
        """Ask the server, which also keeps whatever is in between from forgetting a silent connection."""
        if self._lane is not None and (asked := self._lane.send(CHECK, ())) is not None:
            self._lane.wait_for(asked)

    def _is_lost(self, lane: Lane) -> bool:
        lane.look()
        if lane.is_suspect:
            self.check()
        return lane.is_lost

    def close(self) -> None:
        """Look dead from now on."""
        lane, self._lane, self.ahead.lane = self._lane, None, None
        if lane is not None:
            # Said and heard, and not left to the end of the session, which takes the server a moment to see.
            lane.close("SELECT pg_advisory_unlock_all()")
