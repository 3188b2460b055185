"""The tables of a SQLite storage, and how a connection to them is made.

    workflows    names, so that a checkpoint's index entry is a small number
    runs         one row per run: how it stands, who holds it since which epoch
    holders      storage instances that hold runs, and until when they count as alive without being heard of
    checkpoints  headers and roots; the row id is the order of saving
    nodes        values stored once; the id says which run wrote it
    departed     runs that were deleted while branches still refer to some of their nodes
    calls        the journal
    requests     questions to people and their answers

What of a row has no digest of its own has a seal (see `sqlite_seals.py`).

Large columns come last, so that reading the small ones of a row never touches its overflow pages. There is no WITHOUT
ROWID: with bodies of a kilobyte it triples the file.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from stepwell.checkpointing.storage.sqlite_log import LOG_PAGES
from stepwell.checkpointing.storage.sqlite_sealing import seal_everything
from stepwell.errors import CheckpointDamaged, FormatTooNew, StorageError, WorkflowCheckpointException

APPLICATION_ID = 0x53746570
SCHEMA_VERSION = 2

BUSY_SECONDS = 20.0
"""How long another process may keep the database locked before a write gives up."""

_READ_CACHE_KIB = 256

_OLDEST_SQLITE = (3, 35, 0)

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})

_TABLES = (
    "CREATE TABLE workflows (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    """CREATE TABLE holders (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        holder TEXT NOT NULL,
        expires REAL NOT NULL,
        expires_here REAL NOT NULL)""",
    # AUTOINCREMENT: a key that is part of node ids must never come back.
    """CREATE TABLE runs (
        key INTEGER PRIMARY KEY AUTOINCREMENT,
        run_id TEXT NOT NULL UNIQUE,
        workflow INTEGER NOT NULL,
        origin TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        holder INTEGER,
        sweeps INTEGER NOT NULL DEFAULT 0,
        next_node INTEGER NOT NULL DEFAULT 0,
        sweep_at INTEGER NOT NULL DEFAULT 0,
        sequence INTEGER NOT NULL DEFAULT 0,
        supersteps INTEGER NOT NULL DEFAULT 0,
        state TEXT NOT NULL,
        updated_at TEXT NOT NULL,
        usage TEXT NOT NULL DEFAULT '{}',
        parent_checkpoint_id TEXT,
        parent_run_id TEXT,
        stopped_by TEXT)""",
    "CREATE INDEX runs_of_workflow ON runs (workflow)",
    "CREATE INDEX runs_of_origin ON runs (origin)",
    "CREATE INDEX runs_held ON runs (holder) WHERE holder IS NOT NULL",
    "CREATE TABLE departed (run_key INTEGER PRIMARY KEY, origin TEXT NOT NULL)",
    """CREATE TABLE checkpoints (
        id INTEGER PRIMARY KEY,
        checkpoint_id TEXT NOT NULL UNIQUE,
        run_key INTEGER NOT NULL,
        workflow INTEGER NOT NULL,
        digest BLOB NOT NULL,
        header TEXT NOT NULL,
        refs BLOB NOT NULL,
        body TEXT NOT NULL)""",
    "CREATE INDEX checkpoints_of_run ON checkpoints (run_key)",
    "CREATE INDEX checkpoints_of_workflow ON checkpoints (workflow)",
    "CREATE TABLE nodes (id INTEGER PRIMARY KEY, digest BLOB NOT NULL, refs BLOB NOT NULL, body TEXT NOT NULL)",
    """CREATE TABLE calls (
        id INTEGER PRIMARY KEY,
        run_key INTEGER NOT NULL,
        call_id TEXT NOT NULL,
        digest BLOB NOT NULL,
        body TEXT NOT NULL,
        UNIQUE (run_key, call_id))""",
    """CREATE TABLE requests (
        id INTEGER PRIMARY KEY,
        run_key INTEGER NOT NULL,
        request_id TEXT NOT NULL,
        source TEXT NOT NULL,
        request_type TEXT NOT NULL,
        response_type TEXT NOT NULL,
        asked_at TEXT NOT NULL,
        deadline TEXT,
        answered_at TEXT,
        typed INTEGER,
        shown TEXT NOT NULL,
        answer TEXT,
        UNIQUE (run_key, request_id))""",
    "CREATE INDEX requests_named ON requests (request_id)",
    f"PRAGMA application_id = {APPLICATION_ID}",
)

_SEALS = (
    "ALTER TABLE runs ADD COLUMN newest TEXT",
    "ALTER TABLE runs ADD COLUMN seal BLOB",
    "ALTER TABLE requests ADD COLUMN seal BLOB",
)
"""What the second version has more than the first."""


def connect_writer(path: Path) -> sqlite3.Connection:
    """A connection for writing to the database at `path`, which is created if it is not there."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StorageError(str(path), f"SQLite {sqlite3.sqlite_version} is too old, 3.35 is needed")
    _create_file(path)
    connection = _connect(path)
    try:
        version = _check_owner(connection, path)
        _switch_to_wal(connection)
        for pragma in (
            "synchronous = FULL",
            f"wal_autocheckpoint = {LOG_PAGES}",
            "secure_delete = FAST",
            "temp_store = MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}")
        if version < SCHEMA_VERSION:
            _bring_up_to_date(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that can't write. Any one thread at a time may use it."""
    connection = _connect(path)
    connection.execute("PRAGMA query_only = ON")
    # What is read is read once and in order; pages that stay would only have to be found room for.
    connection.execute(f"PRAGMA cache_size = {-_READ_CACHE_KIB}")
    return connection


MEDIUM_ERRORS = (sqlite3.Error, OSError, UnicodeDecodeError)
"""What a broken database raises. The last is SQLite quoting from a damaged schema in its error message."""


def failure(error: Exception, path: Path, *, reading: bool = False) -> WorkflowCheckpointException:
    """What went wrong with the database at `path`, in terms of stepwell."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT if isinstance(error, UnicodeError) else 0)
    if reading and code & 0xFF in _DAMAGED:
        return CheckpointDamaged(str(path), str(error))
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return StorageError(str(path), f"{error} ({name})")


def file_at(path: str) -> tuple[int, int] | None:
    """Which file has this name now: a connection goes on with the one it opened, whatever becomes of the name."""
    try:
        found = os.stat(path)  # noqa: PTH116 - asked in every commit, and `Path` takes twice as long
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def is_busy(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    # Damaged text must reach the digest that tells, and not fail half-way as undecodable.
    connection.text_factory = _as_text
    return connection


def _as_text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")


def torn(text: str) -> str | bytes:
    """A text for `CAST(? AS TEXT)`, which also stores half a surrogate pair that a program cut off somewhere."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _create_file(path: Path) -> None:
    """Make an empty database that only its owner can read; SQLite gives its other files the same mode."""
    missing = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        _make_entry_durable(folder)
    try:
        # Only if it is new: closing a descriptor of an existing one would drop this process's locks on it.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    _make_entry_durable(path)


def _make_entry_durable(path: Path) -> None:
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_owner(connection: sqlite3.Connection, path: Path) -> int:
    """The schema's version, 0 for an empty database; refuses what is another program's or a later stepwell's."""
    owner, version, tables = _identity(connection)
    if owner != APPLICATION_ID and (tables or version or owner):
        raise StorageError(str(path), "this is the database of another program, not one of stepwell's")
    if version > SCHEMA_VERSION:
        raise FormatTooNew(str(path), f"schema {version}", f"schema {SCHEMA_VERSION}")
    return int(version)


def _identity(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Whose database this is, its version and its number of tables, all as of one instant.

    Asked one by one, the answers could come from before and after somebody else created the tables.
    """
    within = connection.in_transaction
    if not within:
        connection.execute("BEGIN")
    try:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (owner,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    finally:
        if not within and connection.in_transaction:
            connection.execute("ROLLBACK")
    return owner, version, tables


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    # SQLite does not wait here for others who open the same new file, so we do.
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            with closing(connection.execute("PRAGMA journal_mode = WAL")) as cursor:
                (mode,) = cursor.fetchone()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
            continue
        if mode != "wal":
            raise sqlite3.OperationalError(f"the file system does not support write-ahead logging (mode is {mode})")
        return


def _bring_up_to_date(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables, or add to those of an earlier version what they lack, all at once.

    Whoever reads has the writer connect first, so nobody ever reads tables of an earlier version.
    """
    connection.execute("BEGIN EXCLUSIVE")
    try:
        # Looked at again under the lock: somebody else may have been faster.
        version = _check_owner(connection, path)
        for statement in (*(_TABLES if version < 1 else ()), *(_SEALS if version < 2 else ())):
            connection.execute(statement)
        if version == 1:
            seal_everything(connection)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
