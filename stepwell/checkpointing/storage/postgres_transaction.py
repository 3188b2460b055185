"""A transaction under way: its statements, what they have to do, and what to remember once it is committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import psycopg

from stepwell.checkpointing.storage.postgres_connection import Connection

Cursor: TypeAlias = "psycopg.Cursor[tuple[Any, ...]]"
Values: TypeAlias = "Sequence[Any] | Mapping[str, Any]"


_COUNTED = "WITH done AS ({statement}) SELECT 1 / (CASE WHEN count(*) = %s THEN 1 ELSE 0 END) FROM done"

Contested = psycopg.errors.DivisionByZero
"""Somebody in a pipelined group may not write; who, is found out job by job."""


class Transaction:
    """Statements go out as a pipeline if there is one, together with the commit: one round trip for all of them."""

    def __init__(self, connection: Connection, pipeline: psycopg.Pipeline | None) -> None:
        self._connection = connection
        self._pipeline = pipeline
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

    def require(self, count: int, statement: str, values: Sequence[Any], refusal: Callable[[], Exception]) -> None:
        """Run a statement that returns a row for whatever it finds or changes, which has to be so many.

        Within a pipeline nobody looks at results before the commit is on its way, so it is Postgres that looks: it
        divides by zero, and nothing of the transaction takes place. Outside of one, `refusal` says what was wrong.
        """
        if self._pipeline is not None:
            self.execute(_COUNTED.format(statement=statement), (*values, count))
        elif self.execute(statement, values).rowcount != count:
            raise refusal()

    def then(self, effect: Callable[[], object]) -> None:
        """Do this once the transaction is committed."""
        self.effects.append(effect)

    def remembered(self) -> tuple[int, dict[int, int]]:
        return len(self.effects), dict(self.taken)

    def recall(self, before: tuple[int, dict[int, int]]) -> None:
        """What was done since then is undone."""
        effects, self.taken = before
        del self.effects[effects:]
