"""The file storage passes the contracts that every storage passes, and keeps its own promises about the files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stepwell.checkpointing.storage.file import FileCheckpointStorage
from stepwell.testing import CheckpointStorageContract, RunStorageContract
from stepwell.testing.storage import Reopen


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def storage(path: Path) -> AsyncIterator[FileCheckpointStorage]:
    async with FileCheckpointStorage(path) as storage:
        yield storage


@pytest.fixture
async def reopen() -> AsyncIterator[Reopen]:
    reopened: list[FileCheckpointStorage] = []

    async def again(storage: FileCheckpointStorage) -> FileCheckpointStorage:
        await storage.close()
        reopened.append(FileCheckpointStorage(storage.storage_path, retention=storage.retention, audit=storage.audit))
        return reopened[-1]

    yield again
    for storage in reopened:
        await storage.close()


class TestTheSixMethods(CheckpointStorageContract):
    pass


class TestRuns(RunStorageContract):
    pass
