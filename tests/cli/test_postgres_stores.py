"""Commands that only look leave a database as they find it, and one damaged run hides nothing from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from stepwell.cli import exits
from tests.cli.conftest import Stepwell
from tests.histories.office import HERE
from tests.histories.postgres_dump import load
from tests.postgres_server import server


@pytest.fixture
def database(stepwell: Stepwell) -> Iterator[psycopg.Connection[Any]]:
    """A database that nobody else uses, which the commands use."""
    name = f"cli_{uuid4().hex}"
    with server().connection() as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        stepwell.store = server().dsn.replace("/postgres?", f"/{name}?")
        with closing(psycopg.connect(stepwell.store, autocommit=True)) as inside:
            yield inside
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def earlier(database: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """The same, with a store of the first version in it."""
    load(database, (HERE / "1" / "postgres-1.sql").read_text(), "stepwell")
    return database


LOOKING = {
    "runs": ("runs",),
    "show": ("show", "waiting"),
    "verify": ("verify",),
    "review": ("review",),
    "prune": ("prune", "--finished", "--dry-run"),
}


def tables(database: psycopg.Connection[Any]) -> int:
    row = database.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'stepwell'").fetchone()
    return int(row[0]) if row else 0


@pytest.mark.parametrize("words", LOOKING.values(), ids=LOOKING.keys())
def test_looking_at_a_database_without_a_store_creates_none(
    stepwell: Stepwell, database: psycopg.Connection[Any], words: tuple[str, ...]
) -> None:
    told = stepwell(*words)
    assert told.code == 2
    assert "there is no store at postgresql://" in told.err
    assert tables(database) == 0


@pytest.mark.parametrize("words", LOOKING.values(), ids=LOOKING.keys())
def test_looking_at_a_store_of_an_earlier_version_upgrades_nothing(
    stepwell: Stepwell, earlier: psycopg.Connection[Any], words: tuple[str, ...]
) -> None:
    assert stepwell(*words).code in (exits.DONE, exits.WAITING)
    assert earlier.execute("SELECT version FROM stepwell.stepwell_version").fetchall() == [(1,)]


def test_a_damaged_run_is_shown_as_such_and_the_others_as_ever(
    stepwell: Stepwell, earlier: psycopg.Connection[Any]
) -> None:
    assert stepwell("review", "waiting", "--answer", "true").code == 0  # which upgrades
    earlier.execute("UPDATE stepwell.runs SET state = 'FAILED', updated_at = 'x' WHERE run_id = 'cut'")

    listed = {run["run_id"]: run["standing"] for run in stepwell("runs", "--json").json["runs"]}
    assert listed == {"cut": "damaged", "waiting": "answered", "finished": "done"}
    assert "damaged" in stepwell("runs").out
    assert [run["run_id"] for run in stepwell("runs", "--state", "damaged", "--json").json["runs"]] == ["cut"]
    assert stepwell("show", "finished").code == 0
    told = stepwell("show", "cut")
    assert told.code == 0
    assert "what is wrong: its row does not match its seal" in told.out
    verified = stepwell("verify", "--json")
    assert verified.code == 1
    assert [each["record"] for each in verified.json["damaged"]] == ["run cut"]


def test_a_damaged_run_is_not_pruned(stepwell: Stepwell, earlier: psycopg.Connection[Any]) -> None:
    assert stepwell("prune", "--keep", "1").code == 0  # which upgrades
    earlier.execute("UPDATE stepwell.runs SET updated_at = 'x' WHERE run_id = 'waiting'")
    removed = stepwell("prune", "--older-than", "0min", "--json").json
    assert set(removed["runs"]) == {"cut", "finished"}
    assert "damaged" in removed["stayed"]["waiting"]
    assert stepwell("prune", "--finished", "--json").json["stayed"] == {}
