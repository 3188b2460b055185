"""Every promise of a durable storage is shown on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpointing.stores import STORES, Store, fresh_store


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store that nobody has used yet, in a folder that is not there yet."""
    with fresh_store(request.param, tmp_path / "new" / "folder") as store:
        yield store
