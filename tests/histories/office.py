"""The program whose runs are kept in this folder, as each format of stepwell has written them.

`python -m tests.histories.office <format> <kind>…` writes them anew, for a format that has none yet; the database is
kept as `sqlite-<version>.db.gz` (`gzip -n`). Databases are there once for each version of their tables.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell import (
    Executor,
    FileCheckpointStorage,
    PostgresCheckpointStorage,
    SQLiteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from stepwell.checkpointing.storage.postgres_schema import SCHEMA_VERSION
from stepwell.checkpointing.storage.sqlite_schema import SCHEMA_VERSION as SQLITE_VERSION
from stepwell.testing.crash import CrashingStorage, PowerLoss
from tests.histories.postgres_dump import dumped
from tests.postgres_server import server

HERE = Path(__file__).resolve().parent
KINDS = ("file", "sqlite", "postgres")


def storage_at(place: Path) -> Any:
    """What was written to this file or folder."""
    return SQLiteCheckpointStorage(place) if place.suffix == ".db" else FileCheckpointStorage(place)


@dataclass(frozen=True)
class Letter:
    text: str
    pages: tuple[int, ...]


@dataclass(frozen=True)
class Question:
    letter: Letter
    cost: int


class Clerk(Executor):
    """Asks three things, one after the other, and writes a letter."""

    def __init__(self, asked: list[str]) -> None:
        super().__init__("clerk")
        self._asked = asked
        self._seen: dict[int, set[str]] = {}

    @handler
    async def work(self, task: str, ctx: WorkflowContext[Letter]) -> None:
        answers = [await ctx.call(self.ask, f"{task} {number}") for number in (1, 2, 3)]
        self._seen[len(answers)] = set(answers)
        await ctx.send_message(Letter(" ".join(answers) + " naïve ☃" * 40, (1, 2)))

    async def ask(self, question: str) -> str:
        self._asked.append(question)
        return question.upper()

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"seen": self._seen}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._seen = state["seen"]


class Chief(Executor):
    """Has a person approve each letter."""

    def __init__(self) -> None:
        super().__init__("chief")

    @handler
    async def review(self, letter: Letter, ctx: WorkflowContext[str, str]) -> None:
        await ctx.request_info(Question(letter, 3), bool, request_id="approve")

    @response_handler
    async def decide(self, question: Question, approved: bool, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(question.letter.text if approved else "no")


def office(asked: list[str]) -> Workflow:
    def clerk() -> Clerk:
        return Clerk(asked)

    return WorkflowBuilder(start_executor=clerk, name="office").add_edge(clerk, lambda: Chief()).build()


async def leave_runs(storage: Any) -> None:
    """A run that lost power after its second call, one that waits for a person, and one that is finished."""
    with suppress(PowerLoss):
        await office([]).run("cut", run_id="cut", checkpoint_storage=CrashingStorage(storage, at="after call#2"))
    await office([]).run("wait", run_id="waiting", checkpoint_storage=storage)
    await office([]).run("end", run_id="finished", checkpoint_storage=storage)
    await office([]).run(run_id="finished", responses={"approve": True}, checkpoint_storage=storage)


async def write(folder: Path, kinds: Sequence[str]) -> None:
    for name in kinds:
        if name == "postgres":
            await write_postgres(folder / f"postgres-{SCHEMA_VERSION}.sql")
        else:
            place = folder / (f"sqlite-{SQLITE_VERSION}.db" if name == "sqlite" else name)
            async with storage_at(place) as storage:
                await leave_runs(storage)


async def write_postgres(file: Path) -> None:
    schema = server().fresh_schema()
    async with PostgresCheckpointStorage(server().dsn, schema=schema) as storage:
        await leave_runs(storage)
    text = await asyncio.to_thread(dumped, server(), schema)
    await asyncio.to_thread(file.write_text, text)


if __name__ == "__main__":
    asyncio.run(write(HERE / sys.argv[1], sys.argv[2:] or KINDS))
