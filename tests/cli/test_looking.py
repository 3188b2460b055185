"""runs, show, graph, verify and prune."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.cli.conftest import Stepwell


@pytest.fixture
def finished(stepwell: Stepwell) -> Stepwell:
    """A team that is done, a shop that waits, and a counter that failed."""
    assert stepwell("run", "team.py:team", "What are stepwells for?", "--run-id", "brief", "--yes").code == 0
    words = ("--json-message", "--run-id")
    assert stepwell("run", "shop.py:workflow", '{"item": "lamp", "euros": 50}', *words, "order").code == 3
    assert stepwell("run", "counting.py:workflow", "3", *words, "count", env={"FAIL": "1"}).code == 1
    return stepwell


def test_runs_tells_how_each_run_stands(finished: Stepwell) -> None:
    lines = finished("runs").out.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["count", "counting", "failed"],
        ["order", "shop", "waiting"],
        ["brief", "team", "done"],
    ]


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (("--waiting",), ["order"]),
        (("--state", "failed"), ["count"]),
        (("--workflow", "team"), ["brief"]),
        (("--workflow", "nobody's"), []),
    ],
)
def test_runs_can_be_picked(finished: Stepwell, words: tuple[str, ...], ids: list[str]) -> None:
    assert [run["run_id"] for run in finished("runs", *words, "--json").json["runs"]] == ids


def test_show_tells_the_whole_story(finished: Stepwell) -> None:
    out = finished("show", "brief").out
    for expected in (
        "run brief of team: done",
        "you → magentic_orchestrator: What are stepwells for?",
        "1. researcher: Find out.",
        "approve",
        "next: writer",
        "researcher → all: They reach water at any level.",
        "output of magentic_orchestrator: Steps down to the water.",
        "used in all: 8 calls",
        "KB",
    ):
        assert expected in out


def test_show_as_json_has_every_checkpoint_and_every_decision(finished: Stepwell) -> None:
    story = finished("show", "brief", "--json").json
    kinds = [moment["kind"] for moment in story["timeline"]]
    assert kinds == ["message", "superstep", "answers", *["superstep"] * 5]
    [decision] = [decision for moment in story["timeline"] for decision in moment["decisions"]]
    assert decision["answer"]["decision"] == "approve"
    assert [moment["sequence"] for moment in story["timeline"]] == list(range(1, 9))
    assert all(moment["bytes"] > 0 for moment in story["timeline"])
    spent = sum(used["calls"] for moment in story["timeline"] for used in moment["usage"].values())
    assert spent == sum(used["calls"] for used in story["run"]["usage"].values()) == 8
    assert story["timeline"][-1]["ledger"]["is_request_satisfied"]["answer"] is True


def test_show_leaves_out_what_is_too_much(finished: Stepwell) -> None:
    story = finished("show", "brief", "--last", "2", "--json").json
    assert (len(story["timeline"]), story["left_out"]) == (2, 6)
    assert story["timeline"][0]["usage"] == {"writer": pytest.approx(story["timeline"][0]["usage"]["writer"])}
    assert finished("show", "brief", "--last", "2", "--all", "--json").json["left_out"] == 0


def test_show_says_why_a_run_failed_and_what_one_waits_for(finished: Stepwell) -> None:
    assert "stopped by RuntimeError: the counter broke" in finished("show", "count").out
    assert "clerk asks: Order" in finished("show", "order").out


def test_runs_and_show_need_no_program(finished: Stepwell) -> None:
    for name in ("shop.py", "team.py", "counting.py"):
        (finished.folder / name).unlink()
    for words in (("runs", "--json"), ("show", "order")):
        reader = finished.process(*words)
        out, err = reader.communicate(timeout=60)
        assert (reader.returncode, err) == (0, "")
        assert "lamp" in out


@pytest.mark.parametrize(
    ("form", "beginning"), [("mermaid", "flowchart"), ("dot", "digraph"), ("svg", "<svg")], ids=str
)
def test_a_workflow_is_drawn_without_making_a_store(stepwell: Stepwell, form: str, beginning: str) -> None:
    told = stepwell("graph", "shop.py:build", "--format", form)
    assert told.code == 0
    assert beginning in told.out[:200]
    assert not Path(".stepwell").exists()


def test_a_workflow_is_described_for_programs(stepwell: Stepwell) -> None:
    told = stepwell("graph", "shop.py:build", "--json").json
    assert told["start"] in {each["id"] for each in told["executors"]}
    assert {"workflow", "edges"} < set(told)


def test_a_picture_goes_into_a_file_and_marks_where_a_run_is(finished: Stepwell) -> None:
    assert finished("graph", "shop.py:workflow", "-f", "svg", "-o", "shop.svg", "--run", "order").code == 0
    plain = finished("graph", "shop.py:workflow", "-f", "svg").out
    marked = Path("shop.svg").read_text()
    assert "<svg" in marked
    assert marked != plain


def test_verify_reads_everything(finished: Stepwell) -> None:
    told = finished("verify", "--json")
    assert told.code == 0
    assert (told.json["ok"], told.json["runs"], told.json["damaged"]) == (True, 3, [])
    assert "all of it is good" in finished("verify").out


def test_verify_names_what_is_damaged_and_ends_with_1(finished: Stepwell) -> None:
    victim = finished("show", "brief", "--json").json["timeline"][-1]["checkpoint_id"]
    with sqlite3.connect(".stepwell/runs.db") as database:
        change = "UPDATE checkpoints SET header = replace(header, 'team', 'tram') WHERE checkpoint_id = ?"
        assert database.execute(change, (victim,)).rowcount == 1
    database.close()
    told = finished("verify")
    assert told.code == 1
    assert victim in told.out
    assert not finished("verify", "--json").json["ok"]
    assert "can't be read" in finished("show", "brief").out


# --- prune ------------------------------------------------------------------------------------------------------------


def ids(stepwell: Stepwell) -> list[str]:
    return [run["run_id"] for run in stepwell("runs", "--json").json["runs"]]


def test_prune_removes_finished_runs(finished: Stepwell) -> None:
    assert "would remove run brief" in finished("prune", "--finished", "--dry-run").out
    assert ids(finished) == ["count", "order", "brief"]
    assert "removed run brief" in finished("prune", "--finished").out
    assert ids(finished) == ["count", "order"]


def test_prune_goes_by_age_and_spares_what_waits_for_a_person(finished: Stepwell) -> None:
    assert "nothing to remove" in finished("prune", "--older-than", "1h").out
    removed = finished("prune", "--older-than", "0s", "--json").json
    assert removed["runs"] == ["count", "brief"]
    assert "waits for a person" in removed["stayed"]["order"]
    assert ids(finished) == ["order"]


def test_prune_keeps_the_newest_checkpoints(finished: Stepwell) -> None:
    assert finished("prune", "--keep", "2", "--json").json["checkpoints"]["brief"] == 6
    assert len(finished("show", "brief", "--json").json["timeline"]) == 2
    assert finished("review", "order", "--answer", '{"discount": 0}', "--target", "shop.py:workflow").code == 0


def test_prune_has_to_be_told_what_may_go(finished: Stepwell) -> None:
    assert finished("prune").code == 2
    assert finished("prune", "--older-than", "a while").code == 2
