"""A session on which statements are sent without waiting for the answers to those before.

The server finishes what it has begun, also if the process that sent it is killed a moment later. It gives up when it
finds out that nobody is there to take the answer; so what is sent here should not take long. Each statement is a
transaction by itself, goes out in one piece with the mark that ends it, and is committed without waiting for the disk:
the next commit of another session that does wait makes it durable, for the log of the server is written in order.

Any thread may send; one thread takes in the answers.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from struct import Struct

from psycopg import pq

from stepwell.checkpointing.storage.forking import fork_guard
from stepwell.checkpointing.storage.postgres_connection import MEDIUM_ERRORS, Connection

MOST_UNDER_WAY = 32
"""With more than this, statements over many rows are cheaper."""

_DONE = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)

Value = bytes | str | int
_INTEGER, _LENGTH = Struct(">q"), Struct(">i")
_BYTEA = 17


class Flight:
    """A statement on its way."""

    __slots__ = ("has_failed", "is_over", "lane", "rows", "statement", "values")

    def __init__(self, lane: Lane, statement: bytes, values: Sequence[Value]) -> None:
        self.lane = lane
        self.statement = statement
        self.values = values
        self.is_over = False
        self.has_failed = False
        self.rows = 0

    @property
    def took_place(self) -> bool:
        """Has the server said that it is committed, though not yet on disk?"""
        return self.is_over and not self.has_failed and self.rows == 1


class Lane:
    """One session with these prepared statements, from its opening to its loss."""

    def __init__(self, connection: Connection, statements: Mapping[bytes, str]) -> None:
        for name, statement in statements.items():
            connection.execute(f"PREPARE {name.decode()} AS {statement}")
        connection.execute("SET synchronous_commit TO off")
        self._connection = connection
        self._session = connection.pgconn
        self._session.enter_pipeline_mode()
        self._guard = fork_guard()
        self._poll = select.poll()
        self._outbox: deque[Flight] = deque()
        """Filled without the guard; whoever has the guard empties it."""
        self._under_way: deque[Flight] = deque()
        self.is_lost = False
        self.is_suspect = False
        """It was heard of without having been asked, or in anger: it may be about to end."""

    # --- sending -----------------------------------------------------------------------------------------------------

    def send(self, statement: bytes, values: Sequence[Value]) -> Flight | None:
        """Send it, from any thread and without waiting for anybody; None if it is not the time for it."""
        if self.is_lost or len(self._under_way) >= MOST_UNDER_WAY:
            return None
        flight = Flight(self, statement, values)
        self._outbox.append(flight)
        self._send_what_waits()
        return flight

    def _send_what_waits(self) -> None:
        """To be called by whoever has put something there, and by whoever had the guard at that moment."""
        while self._outbox and self._guard.acquire(blocking=False):
            try:
                self._empty_outbox()
            finally:
                self._guard.release()

    def _empty_outbox(self) -> None:
        try:
            while self._outbox:
                self._send(self._outbox[0])
                self._outbox.popleft()
        except BaseException:
            # Ctrl-C in the middle: from here on nobody could tell which answer belongs to which statement.
            self._lose()
            raise

    def _send(self, flight: Flight) -> None:
        values = list(map(_packed, flight.values))
        self._under_way.append(flight)
        if self.is_lost:
            self._lose()
            return
        try:
            self._session.send_query_prepared(flight.statement, values, [pq.Format.BINARY] * len(values))
            self._session.pipeline_sync()  # this also flushes, as far as the socket takes it
        except MEDIUM_ERRORS:
            self._lose()

    # --- answers -----------------------------------------------------------------------------------------------------

    def wait_for(self, flight: Flight) -> None:
        """Take in answers until this one has come, or the session is lost."""
        while True:
            events = self.look()
            if flight.is_over:
                return
            self._poll.register(self._session.socket, events)
            self._poll.poll()

    def look(self) -> int:
        """Take in what has come; says what to `poll` for next."""
        with self._guard:
            self._empty_outbox()
            events = self._take_in()
        self._send_what_waits()
        return events

    def _take_in(self) -> int:
        unsent = 0
        try:
            unsent = self._session.flush()
            if not self._under_way:
                if not _has_news(self._session.socket):
                    return select.POLLIN
                self.is_suspect = True
            self._session.consume_input()
            while self._session.status == pq.ConnStatus.OK and self._under_way and not self._session.is_busy():
                self._note(self._session.get_result())
        except MEDIUM_ERRORS:
            self._lose()
        if self._session.status != pq.ConnStatus.OK:
            self._lose()
        return select.POLLIN | select.POLLOUT if unsent else select.POLLIN

    def _note(self, result: pq.abc.PGresult | None) -> None:
        if result is None:  # the end of one statement's results
            return
        flight = self._under_way[0]
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            # Only now: the commit comes last, and may fail like all else.
            self._under_way.popleft()
            flight.is_over = True
            if flight.took_place:
                self.is_suspect = False
        elif result.status in _DONE:
            flight.rows = result.command_tuples or 0
        else:
            flight.has_failed = self.is_suspect = True

    # --- the end -----------------------------------------------------------------------------------------------------

    def _lose(self) -> None:
        """Nobody knows what became of the statements under way: they count as failed, and may be repeated."""
        self.is_lost = True
        for flight in self._under_way:
            flight.has_failed = flight.is_over = True
        self._under_way.clear()

    def close(self, farewell: str) -> None:
        """Nothing can be sent from now on. The server is told, if that is possible, and heard to have understood."""
        with self._guard:
            was_lost, self.is_lost = self.is_lost, True
            with suppress(*MEDIUM_ERRORS):  # if it can't be told, it notices by itself
                if not was_lost:
                    self._session.exit_pipeline_mode()
                    self._connection.execute(farewell)
            self._connection.close()


def _has_news(socket: int) -> bool:
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


def _packed(value: Value) -> bytes:
    """A value as Postgres takes it in binary form."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return _INTEGER.pack(value)


def bytea_array(values: Sequence[bytes]) -> bytes:
    """An array of byte strings as Postgres takes it in binary form."""
    if not values:
        return b"".join(map(_LENGTH.pack, (0, 0, _BYTEA)))
    head = map(_LENGTH.pack, (1, 0, _BYTEA, len(values), 1))
    return b"".join((*head, *(_LENGTH.pack(len(value)) + value for value in values)))
