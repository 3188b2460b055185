"""Teams asked like agents by processes that are really killed, between turns and during them, on every storage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from stepwell.testing.crash import CRASH_VARIABLE
from tests.agents.team_program import IN_FLIGHT
from tests.faults.backends import BACKENDS, Backend

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Office:
    """A store, a session and a list of calls, and processes that come and go."""

    backend: Backend
    store: str
    folder: Path
    team: str

    def say(self, word: str, *, crash_at: str = "") -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-W", "error", "-m", "tests.agents.team_program"]
        return subprocess.run(
            [*program, self.team, self.store, str(self.folder), word],
            cwd=ROOT,
            env={**os.environ, CRASH_VARIABLE: crash_at},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def hear(self, word: str) -> dict[str, Any]:
        done = self.say(word)
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def is_killed(self, word: str, crash_at: str) -> bool:
        done = self.say(word, crash_at=crash_at)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode != 0

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


class Offices:
    """Makes offices, each with a store of its own."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        self._backend, self._folder = backend, folder
        self._stores: list[str] = []

    def open(self, team: str) -> Office:
        folder = self._folder / f"{team}-{len(self._stores)}"
        folder.mkdir()
        self._stores.append(self._backend.place(folder))
        return Office(self._backend, self._stores[-1], folder, team)

    def close(self) -> None:
        for store in self._stores:
            self._backend.tear_down(store)


@pytest.fixture(params=list(BACKENDS.values()), ids=list(BACKENDS))
def offices(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Offices]:
    made = Offices(request.param, tmp_path)
    yield made
    made.close()


@dataclass(frozen=True)
class Whole:
    """A conversation that nobody disturbed."""

    answers: list[dict[str, Any]]
    calls: list[str]


@cache
def undisturbed(team: str, *words: str) -> Whole:
    """It is the same on every storage, so one is enough."""
    with TemporaryDirectory() as scratch:
        office = Offices(BACKENDS["sqlite"], Path(scratch)).open(team)
        answers = [office.hear(word) for word in words]
        return Whole(answers, office.calls)


def gist(told: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on who was killed: all but how long it took."""
    return {**told, "usage": {who: used["total_tokens"] for who, used in told["usage"].items()}}


@pytest.mark.parametrize(
    "instant",
    [f"{IN_FLIGHT}#1", "before call#2", "after call#3", "after checkpoint#1", "after last checkpoint"],
)
def test_a_turn_that_was_cut_off_goes_on_with_the_session_as_it_was(offices: Offices, instant: str) -> None:
    whole, office = undisturbed("pair", "wells", "steps"), offices.open("pair")
    office.hear("wells")

    assert office.is_killed("steps", instant)
    told = office.hear("steps")

    assert gist(told) == gist(whole.answers[-1])
    repeats = Counter(office.calls) - Counter(whole.calls)
    assert sum(repeats.values()) == (1 if "flight" in instant or "before" in instant else 0), repeats


def test_a_first_turn_that_was_cut_off_is_found_by_the_session_that_was_saved_before_it(offices: Offices) -> None:
    whole, office = undisturbed("pair", "wells"), offices.open("pair")

    assert office.is_killed("wells", "after call#4")
    told = office.hear("wells")

    assert (gist(told), office.calls) == (gist(whole.answers[0]), whole.calls)
    assert told["runs"] == 1


def test_each_turn_in_a_process_of_its_own_hears_everything_once(offices: Offices) -> None:
    office = offices.open("pair")

    answers = [office.hear(word)["text"] for word in ("wells", "steps", "stones")]

    assert [answer.splitlines()[-1] for answer in answers] == [
        "Heard 2 messages, asked: wells.",
        "Heard 5 messages, asked: wells, steps.",
        "Heard 8 messages, asked: wells, steps, stones.",
    ]
    assert len(office.calls) == len(set(office.calls)) == 12


def test_a_plan_is_shown_again_elsewhere_and_approved_there(offices: Offices) -> None:
    office = offices.open("crew")

    asked = office.hear("a brief")
    shown = office.hear("--look")
    answer = office.hear("--approve")

    assert asked["asks"] == shown["asks"] != []
    assert asked["asks"][0].startswith("MagenticPlanReviewRequest: ")
    assert (answer["text"], answer["asks"]) == ("The brief of researcher, writer.", [])
    assert len(office.calls) == len(set(office.calls)), office.calls


def test_a_team_in_a_team_in_a_team_makes_every_call_once(offices: Offices) -> None:
    office = offices.open("tower")

    asked = office.hear("a brief")
    answer = office.hear("--approve")

    assert asked["asks"][0].startswith("MagenticPlanReviewRequest: ")
    assert answer["text"].endswith("They say: The brief of crew.")
    assert answer["runs"] == 1
    assert set(answer["usage"]) == {"boss", "director", "manager", "researcher", "writer"}
    assert len(office.calls) == len(set(office.calls)) == 15, office.calls


@pytest.mark.parametrize(("point", "number"), [("after call", 2), (IN_FLIGHT, 6), ("after call", 9)])
def test_a_team_in_a_team_in_a_team_repeats_no_recorded_call(offices: Offices, point: str, number: int) -> None:
    words = ("a brief", "--approve")
    whole, office = undisturbed("tower", *words), offices.open("tower")

    kills = [office.is_killed(word, f"{point}#{number}") for word in words]
    assert any(kills)
    told = [office.hear(words[0])] if kills[0] else []
    told.append(office.hear(words[1]))

    assert gist(told[-1]) == gist(whole.answers[-1])
    repeats = Counter(office.calls) - Counter(whole.calls)
    assert sum(repeats.values()) == (sum(kills) if point == IN_FLIGHT else 0), repeats
