"""The Postgres storage passes the contracts that every storage passes, and keeps its own promises."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from stepwell.checkpointing.storage.postgres import PostgresCheckpointStorage
from stepwell.testing import CheckpointStorageContract, RunStorageContract
from stepwell.testing.storage import Reopen
from tests.postgres_server import TestServer, server


@pytest.fixture(scope="session")
def postgres() -> TestServer:
    return server()


@pytest.fixture
def schema(postgres: TestServer) -> Iterator[str]:
    schema = postgres.fresh_schema()
    yield schema
    postgres.drop(schema)


@pytest.fixture
async def storage(postgres: TestServer, schema: str) -> AsyncIterator[PostgresCheckpointStorage]:
    async with PostgresCheckpointStorage(postgres.dsn, schema=schema) as storage:
        yield storage


@pytest.fixture
async def reopen(postgres: TestServer) -> AsyncIterator[Reopen]:
    reopened: list[PostgresCheckpointStorage] = []

    async def again(storage: PostgresCheckpointStorage) -> PostgresCheckpointStorage:
        await storage.close()
        options = {"schema": storage.schema, "retention": storage.retention, "audit": storage.audit}
        reopened.append(PostgresCheckpointStorage(postgres.dsn, **options))
        return reopened[-1]

    yield again
    for storage in reopened:
        await storage.close()


class TestTheSixMethods(CheckpointStorageContract):
    pass


class TestRuns(RunStorageContract):
    pass
