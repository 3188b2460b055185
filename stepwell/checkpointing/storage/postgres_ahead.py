"""Calls that are recorded the short way: sent by whoever made them, before the writer thread has even woken up.

A call that has finished is lost if its process is killed before its record is on the way to the server. So the record
is sent at once, on the session whose lock says that this storage lives: nobody can take the run before the server has
carried out what it has begun there.

The writer thread waits for the answers, and then for a commit of its own that waits for the disk, before anybody hears
of them. Between the two the server must not have crashed, which it has not if the writer's connection was there before
the record was sent and is still there after that commit. What was refused, or is in doubt, the writer does again in the
usual way (see `postgres_commit.py`): recording a call twice changes nothing, and there the error is found out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.lease import Fence
from stepwell.checkpointing.storage.postgres_bulk import RECORD_ALONE
from stepwell.checkpointing.storage.postgres_lane import Flight, Lane, bytea_array
from stepwell.checkpointing.storage.postgres_text import name_key, storable
from stepwell.checkpointing.storage.records import call_digest, call_text

_LONGEST_RESULT = 32_000
"""Encoding a longer one is left to the writer thread."""

RECORD, CHECK = b"stepwell_record", b"stepwell_check"
STATEMENTS = {RECORD: RECORD_ALONE, CHECK: "SELECT 1"}


@dataclass(frozen=True, slots=True)
class Ahead:
    """The record of a call on its way, and the writer's connection as it was at that time."""

    flight: Flight
    writing: object

    def landed(self) -> bool:
        """Wait for the answer; did it take place?"""
        self.flight.lane.wait_for(self.flight)
        return self.flight.took_place


class SendingAhead:
    """Sends records of calls from any thread, through whichever lane there is."""

    def __init__(self, holder: str) -> None:
        self._holder = holder
        self._first: Counter[int] = Counter()
        self.lane: Lane | None = None
        self.is_crowded = False
        """So much is written at once that statements over many rows are better for everybody."""
        self.writing: object | None = None
        """The connection whose commits make durable what is sent ahead."""

    def send(self, fence: Fence, row: CallRecord, supersedes: Sequence[str]) -> Ahead | None:
        """Put this record on its way; None if it has to go the usual one."""
        lane, writing = self.lane, self.writing
        if lane is None or writing is None or self.is_crowded or fence.run_key in self._first:
            return None
        if len(row.result or "") > _LONGEST_RESULT:
            return None
        text = call_text(row)
        superseded = bytea_array([name_key(call_id) for call_id in supersedes])
        call = (name_key(row.call_id), storable(row.call_id), call_digest(text), text)
        flight = lane.send(RECORD, (fence.run_key, fence.epoch, self._holder, *call, superseded))
        return None if flight is None else Ahead(flight, writing)

    @contextmanager
    def after(self, fence: Fence) -> Iterator[None]:
        """While this lasts, calls of the run go the usual way: what is under way there has to come first."""
        self._first[fence.run_key] += 1
        try:
            yield
        finally:
            self._first[fence.run_key] -= 1
            if not self._first[fence.run_key]:
                del self._first[fence.run_key]
