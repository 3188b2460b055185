"""Every fault is shown on every durable backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.backends import BACKENDS, Backend
from tests.faults.children import Case


@pytest.fixture(params=list(BACKENDS.values()), ids=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Backend:
    chosen: Backend = request.param
    return chosen


@pytest.fixture
def case(backend: Backend, tmp_path: Path) -> Iterator[Case]:
    """A run that has not begun, in a store of its own."""
    store = backend.place(tmp_path)
    yield Case(store, tmp_path)
    backend.tear_down(store)
