"""A researcher/writer team killed with SIGKILL at every call in turn, and run again.

    python -m tests.orchestrations.kills                     # prints a table for each durable storage
    python -m tests.orchestrations.kills --backend postgres  # for this one; exit status 1 if a kill went wrong

For each call, three instants: while it is being made, when it is made and not recorded, and when its record is durable
and nobody has heard of it. Each call that is really made leaves a line in a file before it answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell import Agent, Message, tool
from stepwell.orchestrations import MagenticBuilder
from stepwell.testing import ScriptedChatClient, calls
from stepwell.testing.crash import CRASH_VARIABLE, CrashingStorage, reached
from tests.faults.backends import BACKENDS, Backend, open_store
from tests.orchestrations.teams import DONE, FACTS, PLAN, STALL, TASK, ledger, purpose

REPOSITORY = Path(__file__).resolve().parents[2]
IN_FLIGHT = "call in flight"
INSTANTS = {IN_FLIGHT: "in flight", "before call": "made, not recorded", "after call": "recorded"}


# --- in the process that is killed ------------------------------------------------------------------------------------


@dataclass
class Desk:
    """Where every call that is really made is noted, by what it is about."""

    log: Path

    def note(self, name: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{name}\n")
        reached(IN_FLIGHT)

    def model(self, who: str, script: Callable[[Sequence[Message]], Any]) -> ScriptedChatClient:
        def answer(messages: Sequence[Message]) -> Any:
            name, reply = script(messages)
            self.note(f"{who}: {name}")
            return reply

        return ScriptedChatClient(answer)


def manage(messages: Sequence[Message]) -> tuple[str, str]:
    """What the manager says depends on the conversation alone, as with a real model: it stalls once, then finishes."""
    said = [message.author_name for message in messages]
    replanned = any("Second time round" in message.text for message in messages)
    match purpose(messages):
        case "facts":
            return "facts", FACTS
        case "plan":
            return "plan", PLAN
        case "facts again":
            return "facts again", "Second time round"
        case "plan again":
            return "plan again", PLAN
        case "ledger" if replanned:
            turn = said.count("researcher") + said.count("writer")
            return f"ledger {turn + 3}", [ledger("researcher"), ledger("writer"), DONE][turn]
        case "ledger":
            return f"ledger {said.count('writer') + 1}", [ledger("writer"), STALL][min(1, said.count("writer"))]
        case other:
            texts = " | ".join(message.text.strip().splitlines()[-1] for message in messages if message.author_name)
            return other, f"Final: {texts}"


def research(messages: Sequence[Message]) -> tuple[str, Any]:
    results = [message for message in messages if message.role == "tool"]
    if not results:
        return "asks for a tool", calls("look_up", topic="wells")
    return "answers", "They are deep."


async def work(log: Path, store: str) -> None:
    desk = Desk(log)

    @tool
    def look_up(topic: str) -> str:
        """Look it up."""
        desk.note(f"tool: look_up {topic}")
        return f"notes on {topic}"

    async with open_store(store) as storage:
        workflow = MagenticBuilder(
            participants=[
                Agent(desk.model("researcher", research), name="researcher", tools=[look_up]),
                Agent(desk.model("writer", lambda m: (f"turn {len(m)}", f"Draft after {len(m)}.")), name="writer"),
            ],
            manager_agent=Agent(desk.model("manager", manage), name="manager"),
            enable_plan_review=True,
            review_replans=False,
            max_stall_count=0,
            checkpoint_storage=CrashingStorage(storage),
        ).build()
        result = await workflow.run(TASK, run_id="r")
        replayed = _replayed(result)
        for request in result.get_request_info_events():
            result = await workflow.run(run_id="r", responses={request.request_id: request.data.approve()})
            replayed += _replayed(result)
    print(json.dumps({"answer": result.get_outputs()[0].text, "replayed": replayed, "usage": result.usage}))


def _replayed(result: Any) -> int:
    return sum(event.type == "call_replayed" for event in result)


# --- in the process that kills ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """One kill, and what became of it."""

    number: int
    call: str
    instant: str
    repeats: tuple[str, ...]
    replayed: int
    answer_is_same: bool
    tokens_are_same: bool

    @property
    def is_good(self) -> bool:
        """Only the call that was cut off may have been made again."""
        allowed = () if self.instant == "after call" else (self.call,)
        return self.answer_is_same and self.tokens_are_same and self.repeats in ((), allowed)


@dataclass(frozen=True)
class Bench:
    """Where one team works: its calls are noted in a folder, its runs kept in a store of their own."""

    folder: Path
    store: str

    @classmethod
    def in_(cls, folder: Path, backend: Backend) -> Bench:
        folder.mkdir()
        return cls(folder, backend.place(folder))

    @property
    def log(self) -> Path:
        return self.folder / "calls"

    def made(self) -> list[str]:
        return self.log.read_text().splitlines()

    def child(self, crash_at: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tests.orchestrations.kills", "--work", str(self.log), "--store", self.store],
            cwd=REPOSITORY,
            env={**os.environ, CRASH_VARIABLE: crash_at or ""},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def uninterrupted(bench: Bench) -> tuple[list[str], dict[str, Any]]:
    done = bench.child()
    assert done.returncode == 0, done.stderr
    return bench.made(), json.loads(done.stdout)


def trial(bench: Bench, number: int, instant: str, expected: tuple[list[str], dict[str, Any]]) -> Trial:
    """Kill at that instant of the `number`-th call, run again to the end, and compare."""
    calls_made, told = expected
    killed = bench.child(f"{instant}#{number}")
    assert killed.returncode == -signal.SIGKILL, (killed.returncode, killed.stderr)
    again = bench.child()
    assert again.returncode == 0, again.stderr
    result = json.loads(again.stdout)
    made = Counter(bench.made())
    repeats = tuple((made - Counter(calls_made)).elements())
    tokens = {who: counts.get("total_tokens") for who, counts in result["usage"].items()}
    before = {who: counts.get("total_tokens") for who, counts in told["usage"].items()}
    same = result["answer"] == told["answer"] and made.keys() == set(calls_made)
    return Trial(number, calls_made[number - 1], instant, repeats, result["replayed"], same, tokens == before)


def table(backend: Backend) -> int:
    """Every call and every instant; how many kills went wrong?"""
    bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        expected = uninterrupted(Bench.in_(root / "whole", backend))
        print(f"\n{backend.name}: {len(expected[0])} calls; answer: {expected[1]['answer']!r}\n")
        print(f"{'killed at':<34}{'instant':<22}{'replayed':>9}  {'made again':<32}answer, tokens")
        for number in range(1, len(expected[0]) + 1):
            for instant in INSTANTS:
                bench = Bench.in_(root / f"{number}-{instant.replace(' ', '-')}", backend)
                one = trial(bench, number, instant, expected)
                backend.tear_down(bench.store)
                bad += not one.is_good
                print(_line(one), flush=True)
    print(f"\n{bad} of {3 * len(expected[0])} kills went wrong" if bad else "\nno recorded call was made twice")
    return bad


def _line(one: Trial) -> str:
    verdict = "the same" if one.answer_is_same and one.tokens_are_same else "DIFFERENT"
    return (
        f"{one.number:>3}  {one.call:<29}{INSTANTS[one.instant]:<22}{one.replayed:>9}  "
        f"{', '.join(one.repeats) or '-':<32}{verdict}{'' if one.is_good else '   WRONG'}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.orchestrations.kills", description=__doc__)
    parser.add_argument("--backend", choices=sorted(BACKENDS), action="append", help="only this one")
    parser.add_argument("--work", type=Path, help="be the process that is killed, and note calls in this file")
    parser.add_argument("--store", help="with --work: for example sqlite:/tmp/runs.db")
    options = parser.parse_args(arguments)
    if options.work:
        asyncio.run(work(options.work, options.store))
        return 0
    return min(1, sum(table(BACKENDS[name]) for name in options.backend or BACKENDS))


if __name__ == "__main__":
    sys.exit(main())
