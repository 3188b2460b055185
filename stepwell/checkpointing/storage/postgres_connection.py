"""Which database, how a connection to it is made, and what its errors mean.

The only place that sees the password: nothing that leaves here, in an error, a log or a `repr`, has it.
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias
from weakref import WeakSet

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8BinaryDumper

from stepwell.checkpointing.storage.forking import after_fork_in_child
from stepwell.errors import CheckpointDamaged, StorageError, WorkflowCheckpointException

logger = logging.getLogger(__name__)

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

MEDIUM_ERRORS = (psycopg.Error, OSError)
"""What a database that is gone, full or broken raises."""

_IDLE_WRITER_SECONDS, _IDLE_READER_SECONDS = 5, 300
"""A writer that is frozen within a transaction keeps rows locked for no longer than this. Readers lock none."""
_LOCK_SECONDS = 20
_TRANSACTION_SECONDS = 120
_OLDEST_SERVER = 12_00_00

_DEFAULTS: dict[str, Any] = {
    # A peer that vanished without a word is noticed within half a minute, and not after the hours TCP would take.
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}

END_PREDECESSOR = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = %s AND usename = current_user AND pid <> pg_backend_pid()"""
"""End the session of this name that was lost here, and that the server may still be busy with."""

_SCHEMA_NAME = re.compile(r"(?!pg_)[A-Za-z_][A-Za-z0-9_$]{0,62}\Z")


@dataclass(frozen=True, slots=True)
class Target:
    """One schema of one database."""

    parameters: dict[str, Any] = field(repr=False)
    schema: str
    where: str
    """The database for people to read, without the password."""

    @property
    def identity(self) -> object:
        named = (self.parameters.get(name) for name in ("host", "hostaddr", "port", "dbname", "service"))
        return ("postgres", self.schema, *map(str, named))

    def redacted(self, text: str) -> str:
        password = str(self.parameters.get("password") or "")
        return text.replace(password, "***") if password else text


def target_of(dsn: str, schema: str) -> Target:
    """What `dsn` and `schema` name; `ValueError` if they can't name anything."""
    if not _SCHEMA_NAME.match(schema) or schema.lower() == "information_schema":
        raise ValueError(f"{schema!r} can't be the schema: use 1 to 63 of A-Z a-z 0-9 _ $, beginning with no pg_")
    try:
        parameters = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # libpq quotes from what it does not understand, and that may be the password.
        raise ValueError(
            "the dsn can't be understood; it looks like postgresql://user:password@host:5432/database "
            "(with %-escapes for special characters) or like host=… dbname=…"
        ) from None
    named = ("user", ""), ("host", "@"), ("port", ":"), ("dbname", "/")
    shown = "".join(f"{mark}{parameters[name]}" for name, mark in named if parameters.get(name))
    return Target(parameters, schema, f"postgres {shown or '(from the environment)'} schema {schema}")


def connect(target: Target, purpose: str, *, writing: bool = False) -> Connection:
    """A connection of its own, each statement its own transaction unless BEGIN says otherwise."""
    options = {**_DEFAULTS, **target.parameters, "application_name": purpose, "client_encoding": "utf8"}
    if writing:
        # With several hosts in the dsn this finds the one that can be written to, also after a failover.
        options.setdefault("target_session_attrs", "read-write")
    connection = psycopg.connect(**options, autocommit=True)
    _made.add(connection)
    try:
        if connection.info.server_version < _OLDEST_SERVER:
            raise StorageError(target.where, f"PostgreSQL {connection.info.server_version // 10000} is too old: use 12")
        _configure(connection, target, writing=writing)
    except BaseException:
        connection.close()
        raise
    return connection


def _configure(connection: Connection, target: Target, *, writing: bool) -> None:
    # All integers are sent as bigint: an array whose type depends on its numbers is a new statement each time.
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    settings = {
        "search_path": f"{sql.Identifier(target.schema).as_string(connection)}, pg_temp",
        # Whoever has waited for a lock has to see what is there now, whatever the role is used to.
        "default_transaction_isolation": "read committed",
        "lock_timeout": f"{_LOCK_SECONDS}s",
        "idle_in_transaction_session_timeout": f"{_IDLE_WRITER_SECONDS if writing else _IDLE_READER_SECONDS}s",
    }
    if connection.info.server_version >= 14_00_00:
        settings["idle_session_timeout"] = "0"
    if writing and connection.info.server_version >= 17_00_00:
        settings["transaction_timeout"] = f"{_TRANSACTION_SECONDS}s"
    each = ", ".join(["set_config(%s, %s, false)"] * len(settings))
    connection.execute(f"SELECT {each}", list(chain.from_iterable(settings.items())))
    if writing:
        _insist_on_durability(connection, target)


_warned_of: set[str] = set()
"""Servers that run without fsync; one word about each is enough."""


def _insist_on_durability(connection: Connection, target: Target) -> None:
    """A commit returns when it is on disk, and on the synchronous standbys if there are any."""
    row = connection.execute("SELECT current_setting('synchronous_commit'), current_setting('fsync')").fetchone()
    level, fsync = row or ("", "")
    if level not in ("on", "remote_apply"):
        connection.execute("SET synchronous_commit TO on")
    if fsync != "on" and target.where not in _warned_of:
        _warned_of.add(target.where)
        logger.warning("%s: the server runs with fsync=off, a power cut may lose what was acknowledged", target.where)


# --- forks ------------------------------------------------------------------------------------------------------------

_made: WeakSet[Connection] = WeakSet()
_abandoned: list[object] = []


def _close_inherited() -> None:
    """In a forked child: drop the copies of the parent's sockets, without a word to the server.

    To say goodbye would end the parent's session; to keep them would keep it, and its lock, alive after its death.
    """
    for connection in list(_made):
        with suppress(OSError, psycopg.Error):  # it was closed already
            os.close(connection.fileno())
        _abandoned.append(connection)
    _made.clear()


after_fork_in_child(_close_inherited)


# --- what went wrong --------------------------------------------------------------------------------------------------

_PASSING_STATES = ("08", "40", "57P0", "53300", "25P03", "25P04")
_PASSING_WORDS = ("starting up", "shutting down", "recovery", "too many", "remaining connection slots", "terminating")


def may_pass(error: BaseException) -> bool:
    """Is it worth trying again: a connection lost or refused, a server that restarts, a deadlock?"""
    if not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, OSError)):
        return False
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return bool(state.startswith(_PASSING_STATES))
    text = str(error)
    # A server that answers and says no (wrong password, no such database) will say no again.
    return "FATAL" not in text or any(words in text for words in _PASSING_WORDS)


def is_the_databases(error: BaseException) -> bool:
    """Is the database at fault, and not a job? Then everybody in the group fails."""
    at_fault = (psycopg.OperationalError, psycopg.InternalError, psycopg.InterfaceError, OSError)
    return isinstance(error, at_fault)


def failure(error: BaseException, target: Target, *, reading: bool = False) -> WorkflowCheckpointException:
    """What went wrong with the database, in terms of stepwell."""
    state = getattr(error, "sqlstate", None)
    text = target.redacted(" ".join(str(error).split())) or type(error).__name__
    if reading and state in ("XX001", "XX002"):
        return CheckpointDamaged(target.where, text)
    return StorageError(target.where, f"{text} ({state or type(error).__name__})")
