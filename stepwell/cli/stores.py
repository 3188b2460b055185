"""Which store a command means, and the storage for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.failures import Unusable

if TYPE_CHECKING:
    from stepwell.checkpointing import FileCheckpointStorage, PostgresCheckpointStorage, SQLiteCheckpointStorage

    Storage = FileCheckpointStorage | PostgresCheckpointStorage | SQLiteCheckpointStorage

VARIABLE = "STEPWELL_STORE"
DEFAULT = ".stepwell/runs.db"
_POSTGRES = ("postgres://", "postgresql://")


def store_named(given: str | None) -> str:
    """What the option says, or the environment, or the default."""
    return given or os.environ.get(VARIABLE) or DEFAULT


def is_postgres(store: str) -> bool:
    return store.startswith(_POSTGRES)


def open_storage(store: str, *, create: bool, **options: Any) -> Storage:
    """A storage for a directory (files), a file (SQLite) or a URL (Postgres). Reading never creates one."""
    if is_postgres(store):
        return _postgres(store, options)
    if "://" in store:
        raise Unusable(f"--store {shown_store(store)!r} is neither a path nor a postgres:// URL")
    path = Path(store).expanduser()
    if not create and not path.exists():
        raise Unusable(f"there is no store at {store}; name another with --store, or start a run: stepwell run --help")
    if path.is_dir() or store.endswith(os.sep):
        from stepwell.checkpointing import FileCheckpointStorage

        return FileCheckpointStorage(path, **options)
    return _sqlite(path, create=create, options=options)


def _sqlite(path: Path, *, create: bool, options: dict[str, Any]) -> Storage:
    from stepwell.checkpointing import SQLiteCheckpointStorage

    if create:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unusable(f"no store can be made at {path}: {error.strerror}") from error
    return SQLiteCheckpointStorage(path, **options)


def _postgres(store: str, options: dict[str, Any]) -> Storage:
    try:
        from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage
    except ImportError as error:
        raise Unusable("a postgres:// store needs another package: pip install 'stepwell[postgres]'") from error
    return PostgresCheckpointStorage(store, **options)


def shown_store(store: str) -> str:
    """The store for messages: without the password, should a URL hold one."""
    scheme, separator, rest = store.partition("://")
    credentials, at, place = rest.rpartition("@")
    if not separator or ":" not in credentials:
        return store
    return f"{scheme}{separator}{credentials.partition(':')[0]}:***{at}{place}"
