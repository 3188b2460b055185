"""Helpers for the agents' tests: a journal without a storage, and a wire without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import respx

from stepwell.agents import OpenAIChatClient, RetryPolicy
from stepwell.checkpointing.codec import Codec
from stepwell.checkpointing.journal import CallRecord, DeliveryScope, Journal, active_scope


class Ledger:
    """A run's recorded calls that outlive a crash, because they are kept in here."""

    run_id = "run-1"

    def __init__(self) -> None:
        self.rows: dict[str, CallRecord] = {}

    async def record_call(self, row: CallRecord, *, supersedes: Sequence[str]) -> None:
        self.rows[row.call_id] = row
        for call_id in supersedes:
            self.rows.pop(call_id, None)

    async def drop_calls(self, call_ids: Sequence[str]) -> None:
        for call_id in call_ids:
            self.rows.pop(call_id, None)

    @contextmanager
    def delivery(self, scope_id: str = "1/desk/0") -> Iterator[Delivery]:
        """One attempt at a delivery, as the engine makes it: what was recorded before is replayed."""
        delivery = Delivery(self, scope_id)
        token = active_scope.set(delivery.scope)
        try:
            yield delivery
        finally:
            active_scope.reset(token)


class Delivery:
    def __init__(self, ledger: Ledger, scope_id: str) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.journal = Journal(ledger, Codec(), rows=dict(ledger.rows))  # type: ignore[arg-type]
        self.scope: DeliveryScope = self.journal.scope(scope_id, lambda kind, _, data: self.events.append((kind, data)))

    def named(self, kind: str) -> list[Mapping[str, Any]]:
        return [data for name, data in self.events if name == kind]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def wire() -> Iterator[respx.Router]:
    with respx.mock(using="httpcore2", base_url="https://models.test/v1", assert_all_called=False) as router:
        yield router


QUICK = RetryPolicy(max_attempts=3, initial_wait=0.001, max_wait=0.001)


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., OpenAIChatClient]]:
    """Makes clients, and closes them at the end."""
    made: list[OpenAIChatClient] = []

    def make(**options: Any) -> OpenAIChatClient:
        defaults: dict[str, Any] = {
            "model": "test-model",
            "api_key": "sk-canary-3f9a7c21",
            "base_url": "https://models.test/v1",
            "retry": QUICK,
        }
        client = OpenAIChatClient(**{**defaults, **options})
        made.append(client)
        return client

    yield make
    for client in made:
        await client.aclose()


@pytest.fixture(autouse=True)
def no_openai_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
