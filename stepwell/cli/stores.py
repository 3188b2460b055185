"""Which store a command means, and the storage for it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.command_lines import command_line, shown_store
from stepwell.cli.remedies import Unusable

if TYPE_CHECKING:
    from stepwell.checkpointing import FileCheckpointStorage, PostgresCheckpointStorage, SQLiteCheckpointStorage

    Storage = FileCheckpointStorage | PostgresCheckpointStorage | SQLiteCheckpointStorage

VARIABLE = "STEPWELL_STORE"
DEFAULT = ".stepwell/runs.db"
_POSTGRES = ("postgres://", "postgresql://")
_KEY_VALUE = re.compile(r"\s*\w+\s*=")


def store_named(given: str | None) -> str:
    """What the option says, or the environment, or the default."""
    return given or os.environ.get(VARIABLE) or DEFAULT


def is_postgres(store: str) -> bool:
    """A postgres:// URL, or `host=… dbname=…`; a file with a name like that is meant if there is one."""
    return store.startswith(_POSTGRES) or (_KEY_VALUE.match(store) is not None and not Path(store).exists())


def open_storage(store: str, *, create: bool, **options: Any) -> Storage:
    """A storage for a directory (files), a file (SQLite) or a URL or `host=…` (Postgres). Reading never creates one.

    A new one is made when it is first used, so a command that fails before that leaves nothing behind.
    """
    if is_postgres(store):
        return _postgres(store, create=create, options=options)
    if "://" in store:
        raise Unusable(f"--store {shown_store(store)!r} is neither a path nor a postgres:// URL")
    path = Path(store).expanduser()
    if not create and not path.exists():
        raise _no_store(store)
    if path.is_dir() or store.endswith(os.sep):
        from stepwell.checkpointing import FileCheckpointStorage

        return FileCheckpointStorage(path, **options)
    from stepwell.checkpointing import SQLiteCheckpointStorage

    return SQLiteCheckpointStorage(path, **options)


def _no_store(store: str) -> Unusable:
    how = command_line("run", "--help", store=None)
    return Unusable(f"there is no store at {shown_store(store)}; name another with --store, or start a run: {how}")


def _postgres(store: str, *, create: bool, options: dict[str, Any]) -> Storage:
    try:
        from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage, is_there
    except ImportError as error:
        raise Unusable("a postgres:// store needs another package: pip install 'stepwell[postgres]'") from error
    try:
        storage = PostgresCheckpointStorage(store, **options)
    except ValueError as error:
        path = "" if store.startswith(_POSTGRES) else "; a file of that name is written ./NAME"
        raise Unusable(f"--store {shown_store(store)!r}: {error}{path}") from error
    if not create and not is_there(store):
        raise _no_store(store)
    return storage
