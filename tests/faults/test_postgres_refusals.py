"""Postgres is there and refuses: no more space, read-only, no more connections, no permission, another password.

Each of these befalls a run after some calls. It stops with a typed error before a worker makes another call without the
record of its last one, what was written before is good, and after the repair the same storage goes on.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage
from stepwell.errors import StorageError
from tests.faults.children import Case
from tests.faults.oracle import Oracle
from tests.faults.test_postgres_outages import (
    IMPATIENT,
    SHAPE,
    assert_it_stopped_in_that_superstep,
    assert_nothing_recorded_is_repeated,
    plain,
    run,
)
from tests.faults.troubles import Ahead
from tests.faults.workloads import expected_of
from tests.postgres_server import TestServer, server

SECRET = "tell-nobody-7"
CALLS = 13


@dataclass(frozen=True)
class Tenant:
    """Somebody who is no superuser, with a schema."""

    server: TestServer
    role: str
    schema: str

    @property
    def dsn(self) -> str:
        return make_conninfo(self.server.dsn, user=self.role, password=SECRET)

    def administer(self, *statements: str) -> None:
        """What an administrator does to it."""
        with self.server.connection() as connection:
            for statement in statements:
                connection.execute(statement.format(role=self.role, schema=self.schema))


@pytest.fixture
def tenant() -> Iterator[Tenant]:
    postgres = server()
    schema = postgres.fresh_schema()
    tenant = Tenant(postgres, f"role_{schema[5:25]}", schema)
    tenant.administer(f"CREATE ROLE {{role}} LOGIN PASSWORD '{SECRET}'", "GRANT CREATE ON DATABASE postgres TO {role}")
    yield tenant
    tenant.administer("DROP OWNED BY {role} CASCADE", "DROP ROLE {role}")


@pytest.fixture
def case(tenant: Tenant, tmp_path: Path) -> Case:
    store = f"postgres:{tenant.schema}@{tenant.dsn}"
    return Case(store, tmp_path, options={"rounds": SHAPE.rounds, "call_ms": 1})


@dataclass
class Refusal:
    """Something an administrator does, and undoes."""

    tenant: Tenant
    oracle: Oracle
    done: tuple[str, ...]
    undone: tuple[str, ...]
    ends_sessions: bool = False

    def begin(self) -> None:
        self.tenant.administer(*self.done)
        if self.ends_sessions:
            self.tenant.server.cut()
        self.oracle.note("trouble")

    def end(self) -> None:
        self.tenant.administer(*self.undone)
        self.oracle.note("repair")


_ALL = "{} ALL ON ALL TABLES IN SCHEMA {{schema}} {} {{role}}"
_RELOAD = "SELECT pg_reload_conf()"
_FULL = """CREATE FUNCTION {schema}.no_space() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN RAISE disk_full USING MESSAGE = 'could not extend file: No space left on device'; END$$"""

REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "a server that is read-only": (
        {
            "done": ("ALTER SYSTEM SET default_transaction_read_only TO on", _RELOAD),
            "undone": (
                "SET default_transaction_read_only TO off",
                "ALTER SYSTEM RESET default_transaction_read_only",
                _RELOAD,
            ),
            "ends_sessions": True,
        },
        "read-only",
    ),
    "a role that is read-only": (
        {
            "done": ("ALTER ROLE {role} SET default_transaction_read_only TO on",),
            "undone": ("ALTER ROLE {role} RESET default_transaction_read_only",),
            "ends_sessions": True,
        },
        "read-only",
    ),
    "no more connections": (
        {
            "done": ("ALTER ROLE {role} CONNECTION LIMIT 0",),
            "undone": ("ALTER ROLE {role} CONNECTION LIMIT -1",),
            "ends_sessions": True,
        },
        "too many connections",
    ),
    "no permission any more": (
        {"done": (_ALL.format("REVOKE", "FROM"),), "undone": (_ALL.format("GRANT", "TO"),)},
        "permission denied",
    ),
    "no permission for the journal": (
        {
            "done": ("REVOKE INSERT ON {schema}.calls FROM {role}",),
            "undone": ("GRANT INSERT ON {schema}.calls TO {role}",),
        },
        "permission denied",
    ),
    "a server that says that its disk is full": (
        {
            "done": (
                _FULL,
                "CREATE TRIGGER no_space BEFORE INSERT ON {schema}.calls EXECUTE FUNCTION {schema}.no_space()",
            ),
            "undone": ("DROP TRIGGER no_space ON {schema}.calls", "DROP FUNCTION {schema}.no_space()"),
        },
        "No space left",
    ),
}


async def stopped_and_resumed(case: Case, tenant: Tenant, trouble: Any, *, says: str, at_once: bool = True) -> None:
    watch = Oracle(case.oracle).watching(case.run_id)
    async with PostgresCheckpointStorage(tenant.dsn, schema=tenant.schema, retry_seconds=IMPATIENT) as storage:
        try:
            with pytest.raises(StorageError, match=says) as caught:
                await run(case, storage, Ahead(trouble, CALLS, watch))
        finally:
            await asyncio.to_thread(trouble.end)
        assert SECRET not in str(caught.value)
        if at_once:
            assert_it_stopped_in_that_superstep(case.account())
        for checkpoint_id in await storage.list_checkpoint_ids(run_id=case.run_id):
            assert (await storage.load(checkpoint_id)).state
        result = await run(case, storage, watch)
        assert (await storage.verify()).ok

    assert plain(result.get_outputs()) == [expected_of(SHAPE)]
    assert_nothing_recorded_is_repeated(case.account())


@pytest.mark.parametrize(("change", "says"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_a_run_that_is_refused_stops_at_once_and_goes_on_after_the_repair(
    case: Case, tenant: Tenant, change: dict[str, Any], says: str
) -> None:
    await stopped_and_resumed(case, tenant, Refusal(tenant, Oracle(case.oracle), **change), says=says)


async def test_a_password_that_was_changed_stops_the_run_and_is_told_to_nobody(case: Case, tenant: Tenant) -> None:
    trouble = Refusal(
        tenant,
        Oracle(case.oracle),
        done=("ALTER ROLE {role} PASSWORD 'another'",),
        undone=(f"ALTER ROLE {{role}} PASSWORD '{SECRET}'",),
        ends_sessions=True,
    )
    with passwords_asked_for(tenant):
        await stopped_and_resumed(case, tenant, trouble, says="password authentication failed")


@contextmanager
def passwords_asked_for(tenant: Tenant) -> Iterator[None]:
    with tenant.server.connection() as connection:
        row = connection.execute("SHOW hba_file").fetchone()
    assert row is not None
    file = Path(row[0])
    before = file.read_text()
    file.write_text(f"local all {tenant.role} scram-sha-256\n{before}")
    tenant.administer(_RELOAD)
    try:
        yield
    finally:
        file.write_text(before)
        tenant.administer(_RELOAD)


# --- a disk that is really full ---------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tenant: Tenant) -> Iterator[Path]:
    """A file system of four megabytes that the tenant's tables are on."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    place = tenant.server.folder / f"disk_{tenant.role}"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "stepwell-test", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        place.rmdir()
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.decode().strip()}")
    space = f"space_{tenant.role}"
    try:
        shutil.chown(place, tenant.server.user)
        tenant.administer(
            f"CREATE TABLESPACE {space} LOCATION '{place}'",
            f"GRANT CREATE ON TABLESPACE {space} TO {{role}}",
            f"ALTER ROLE {{role}} SET default_tablespace TO {space}",
        )
        yield place
        tenant.administer("DROP OWNED BY {role} CASCADE", "CHECKPOINT", f"DROP TABLESPACE {space}")
        tenant.administer("GRANT CREATE ON DATABASE postgres TO {role}")
    finally:
        subprocess.run(["umount", str(place)], check=True)
        place.rmdir()


class FullDisk:
    """All that is left of a disk is taken by something else. What has room on the pages it has still goes through."""

    def __init__(self, disk: Path, oracle: Oracle) -> None:
        self._other = disk / "something-else"
        self._oracle = oracle

    def begin(self) -> None:
        with self._other.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(bytes(4096))
        self._oracle.note("trouble")

    def end(self) -> None:
        self._other.unlink()
        self._oracle.note("repair")


async def test_a_disk_that_is_full_stops_the_run_and_it_goes_on_when_there_is_space(
    case: Case, tenant: Tenant, small_disk: Path
) -> None:
    trouble = FullDisk(small_disk, Oracle(case.oracle))
    # Not in the superstep of the trouble, but in that of the first page that the disk has no room for.
    await stopped_and_resumed(case, tenant, trouble, says="No space left on device", at_once=False)
