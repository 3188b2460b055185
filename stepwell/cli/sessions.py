"""One command's event loop and storage, opened together and closed together."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from stepwell.cli.loops import Loop
from stepwell.cli.stores import open_storage, store_named

if TYPE_CHECKING:
    from stepwell.checkpointing.storage.recording import RecordingStorage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Session:
    """A storage, and the loop on which it is used."""

    loop: Loop
    storage: RecordingStorage
    store: str

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(work)


@contextmanager
def session(given_store: str | None, *, create: bool = False, **options: Any) -> Iterator[Session]:
    """Open the store that was named; Ctrl-C during `run` cancels the work, and the storage is closed all the same."""
    store = store_named(given_store)
    with Loop() as loop:
        storage = open_storage(store, create=create, **options)
        try:
            yield Session(loop, storage, store)
        finally:
            loop.run(storage.close())


@contextmanager
def nowhere() -> Iterator[Session]:
    """For commands that keep nothing, and work with programs that want a storage all the same."""
    from stepwell.checkpointing import InMemoryCheckpointStorage

    with Loop() as loop:
        yield Session(loop, InMemoryCheckpointStorage(), "")
