"""What one storage instance has of its database: a writer thread, readers, and an identity as a holder of runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from stepwell.checkpointing.lease import Holder
from stepwell.checkpointing.storage.postgres_commit import GroupCommit
from stepwell.checkpointing.storage.postgres_connection import Target, target_of
from stepwell.checkpointing.storage.postgres_opening import holders_here
from stepwell.checkpointing.storage.postgres_readers import Readers
from stepwell.checkpointing.storage.postgres_reading import Rows, TablesMissing
from stepwell.checkpointing.storage.writer import GroupWriter

P = ParamSpec("P")
T = TypeVar("T")


class Database:
    """Open from the first call until the storage is closed."""

    def __init__(self, target: Target, *, lease_seconds: float, retry_seconds: float) -> None:
        holder = Holder.here()
        self._holder = str(holder)
        self.readers = Readers(target, retry_seconds=retry_seconds)
        medium = GroupCommit(target, holder, self.readers, lease_seconds=lease_seconds, retry_seconds=retry_seconds)
        self.ahead = medium.ahead
        self.writer = GroupWriter(medium, name=f"stepwell-write {target.schema}")
        holders_here.add(self._holder)

    def read(self, query: Callable[Concatenate[Rows, P], T], *args: P.args, **options: P.kwargs) -> T:
        """Ask, within the snapshot under way in this thread or in one of its own."""
        return self.readers.within_snapshot(lambda: query(self.readers.rows, *args, **options))

    def left(self) -> None:
        """Nobody in this process is this holder any more."""
        holders_here.discard(self._holder)


class Maker:
    """Knows which database it is to be; the password stays in here."""

    def __init__(self, dsn: str, schema: str, *, lease_seconds: float, retry_seconds: float) -> None:
        self.target = target_of(dsn, schema)
        self._lease_seconds = lease_seconds
        self._retry_seconds = retry_seconds

    def is_there(self) -> bool:
        """Are there tables of stepwell's, of whichever version?"""
        readers = Readers(self.target, retry_seconds=self._retry_seconds)
        try:
            readers.within_snapshot(lambda: None)
        except TablesMissing:
            return False
        finally:
            readers.close()
        return True

    def __call__(self) -> Database:
        return Database(self.target, lease_seconds=self._lease_seconds, retry_seconds=self._retry_seconds)
