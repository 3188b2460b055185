from __future__ import annotations
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
import pytest
from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
from stepwell.testing import CheckpointStorageContract, RunStorageContract


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SQLiteCheckpointStorage]:
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        yield storage


class TestTheSixMethods(CheckpointStorageContract):
    pass


class TestRuns(RunStorageContract):
    pass
