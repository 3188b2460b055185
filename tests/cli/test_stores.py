"""The same commands on each kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from psycopg import sql

from stepwell.cli.command_lines import command_line, shown_store
from tests.cli.conftest import Stepwell
from tests.postgres_server import server


@pytest.fixture
def postgres_database() -> Iterator[str]:
    """The URL of a database that nobody else uses."""
    name = f"cli_{uuid4().hex}"
    with server().connection() as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield server().dsn.replace("/postgres?", f"/{name}?")
    with server().connection() as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(params=["sqlite", "files", "postgres"])
def stored(request: pytest.FixtureRequest, stepwell: Stepwell) -> Stepwell:
    match request.param:
        case "sqlite":
            stepwell.store = "deep/down/runs.db"
        case "files":
            Path("runs").mkdir()
            stepwell.store = "runs"
        case "postgres":
            stepwell.store = request.getfixturevalue("postgres_database")
    return stepwell


def test_run_review_resume_show_branch_verify_and_prune(stored: Stepwell) -> None:
    assert stored("run", "team.py:team", "What are stepwells for?", "--run-id", "brief").code == 3
    assert [run["standing"] for run in stored("runs", "--json").json["runs"]] == ["waiting"]
    assert stored("review", "brief", "--approve").code == 0
    assert stored("resume", "team.py:team", "brief").out == "Steps down to the water.\n"
    timeline = stored("show", "brief", "--json").json["timeline"]
    assert [moment["superstep"] for moment in timeline] == [0, 1, 1, 2, 3, 4, 5, 6]
    words = ("--run-id", "again")
    assert stored("branch", "team.py:team", timeline[3]["checkpoint_id"], *words).out == "Steps down to the water.\n"
    assert stored("verify").code == 0
    assert stored("prune", "--keep", "2").code == 0
    assert stored("prune", "--finished").code == 0
    assert stored("runs", "--json").json["runs"] == []


def test_audited_calls_are_kept_and_shown(stored: Stepwell) -> None:
    told = stored("run", "team.py:team", "What are stepwells for?", "--run-id", "brief", "--audit")
    assert told.code == 3
    calls = stored("show", "brief", "--json").json["calls"]
    assert [call["name"] for call in calls] == ["model:manager", "model:manager"]


def test_a_directory_that_does_not_exist_yet_is_named_with_a_slash(stepwell: Stepwell) -> None:
    told = stepwell("run", "counting.py:workflow", "1", "--json-message", "--store", "kept/")
    assert told.code == 0
    assert list(Path("kept").glob("*.json"))


def test_a_password_is_not_shown() -> None:
    assert shown_store("postgres://ada:secret@db/runs") == "postgres://ada:***@db/runs"
    assert shown_store("postgres://ada@db/runs") == "postgres://ada@db/runs"
    assert shown_store("a/path.db") == "a/path.db"
    assert "secret" not in command_line("resume", "team.py:team", "r", store="postgres://ada:secret@db/runs")
