"""A transaction under way: its statements, what they have to have done, and what to remember once it is committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import psycopg

from stepwell.checkpointing.storage.postgres_connection import Connection

Cursor: TypeAlias = "psycopg.Cursor[tuple[Any, ...]]"
Values: TypeAlias = "Sequence[Any] | Mapping[str, Any]"


class Transaction:
    """Statements go out as a pipeline if there is one; then results are looked at when all have been sent."""

    def __init__(self, connection: Connection, pipeline: psycopg.Pipeline | None) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._checks: list[tuple[Cursor, int, Callable[[], Exception]]] = []
        self.effects: list[Callable[[], object]] = []
        self.taken: dict[int, int] = {}
        """Runs that were opened within this transaction, with their epochs."""

    def execute(self, statement: str, values: Values = ()) -> Cursor:
        return self._connection.execute(statement, values, binary=True)

    def rows(self, query: str, values: Values) -> list[tuple[Any, ...]]:
        """All rows, at once."""
        return self.fetched(self.execute(query, values))

    def fetched(self, cursor: Cursor) -> list[tuple[Any, ...]]:
        """What a statement that was sent before has found."""
        if self._pipeline is not None:
            # Not only flushed: between synchronised statements the server's clock for idle transactions runs, so
            # that a process which is frozen just here does not keep rows locked for ever.
            self._pipeline.sync()
        return cursor.fetchall()

    def expect(self, cursor: Cursor, count: int, refusal: Callable[[], Exception]) -> None:
        """This statement must change so many rows; if not, everything is undone for `refusal`."""
        if self._pipeline is None:
            _check(cursor, count, refusal)
        else:
            self._checks.append((cursor, count, refusal))

    def settle(self) -> None:
        """Now that all results are there: did each statement do what it had to?"""
        self._pipeline = None
        for cursor, count, refusal in self._checks:
            _check(cursor, count, refusal)

    def then(self, effect: Callable[[], object]) -> None:
        """Do this once the transaction is committed."""
        self.effects.append(effect)

    def remembered(self) -> tuple[int, dict[int, int]]:
        return len(self.effects), dict(self.taken)

    def recall(self, before: tuple[int, dict[int, int]]) -> None:
        """What was done since then is undone."""
        effects, self.taken = before
        del self.effects[effects:]


def _check(cursor: Cursor, count: int, refusal: Callable[[], Exception]) -> None:
    if cursor.rowcount != count:
        raise refusal()
