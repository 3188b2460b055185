"""Magentic teams beside their ancestors: `make bench-magentic`.

A model that answers at once, two workers, replies of a kilobyte. The targets: without storage a round costs at most
AutoGen's; durable at most that plus four commits at twice the raw price; flat and linear over 200 rounds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from measure import Outcome, Table, best, compare, conclude, errors_of, run_contender, show, take_turns

OURS = "stepwell"
AUTOGEN = "autogen-agentchat"
AGENT_FRAMEWORK = "agent-framework"
PROGRAMS = {OURS: "magentic_stepwell", AUTOGEN: "magentic_autogen", AGENT_FRAMEWORK: "magentic_agent_framework"}
BUDGET = "AutoGen + 8 raw commits"
COMMITS = 4
"""Per round: the ledger, the checkpoint after it, the worker's reply, and the checkpoint after that."""

Outcomes = Mapping[str, Sequence[Outcome]]


def ask(program: str, workload: str, *, durable: bool = False, **parameters: Any) -> Outcome:
    if not durable:
        return run_contender(program, workload, parameters, timeout=120)
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as directory:
        return run_contender(program, workload, {**parameters, "directory": directory}, timeout=300)


def without_storage(rounds: int, tries: int) -> tuple[Table, float | None]:
    outcomes = take_turns(dict.fromkeys(PROGRAMS, tries), lambda name: ask(PROGRAMS[name], "team", rounds=rounds))
    figures = {name: best(done, "ms") for name, done in outcomes.items()}
    table = compare(
        f"{rounds} rounds without storage",
        "ms per round",
        figures,
        reference=AUTOGEN,
        targets={OURS: 1.0},
        notes=errors_of(outcomes),
    )
    return table, figures[AUTOGEN]


def with_storage(rounds: int, tries: int, autogen: float | None) -> Table:
    """Our SQLite beside agent-framework's files, and what a commit costs when nothing else is done."""

    def once(name: str) -> Outcome:
        if name == "raw commit":
            return ask("raw", "chat", durable=True, supersteps=COMMITS * rounds)
        return ask(PROGRAMS[name], "team", durable=True, rounds=rounds)

    outcomes = take_turns({OURS: tries, AGENT_FRAMEWORK: min(tries, 2), "raw commit": tries}, once)
    raw = best(outcomes["raw commit"], "mean_us")
    budget = None if autogen is None or raw is None else autogen + 2 * COMMITS * raw / 1e3
    figures = {name: best(outcomes[name], "ms") for name in (OURS, AGENT_FRAMEWORK)}
    return compare(
        f"{rounds} rounds, durable (a raw commit: {(raw or 0):.0f} µs)",
        "ms per round",
        {**figures, BUDGET: budget},
        reference=BUDGET,
        targets={OURS: 1.0},
        notes=errors_of(outcomes),
    )


def growth(tries: int) -> list[Table]:
    """The last tenth of 200 rounds beside the first, and the bytes of 200 rounds beside those of 50."""
    long = [ask(PROGRAMS[OURS], "team", durable=True, rounds=200) for _ in range(tries)]
    short = [ask(PROGRAMS[OURS], "team", durable=True, rounds=50)]
    free = [ask(PROGRAMS[OURS], "team", rounds=200) for _ in range(tries)]
    tables = []
    for title, outcomes, targets in (("durable: flat", long, {"last tenth": 1.5}), ("without storage", free, {})):
        figures = {"first tenth": best(outcomes, "first_us"), "last tenth": best(outcomes, "last_us")}
        tables.append(
            compare(
                f"200 rounds, {title}",
                "µs per round",
                figures,
                reference="first tenth",
                targets=targets,
                notes=errors_of({"last tenth": outcomes}),
            )
        )
    sizes = {"50 rounds": best(short, "bytes"), "200 rounds": best(long, "bytes")}
    tables.append(compare("bytes on disk", "bytes", sizes, reference="50 rounds", targets={"200 rounds": 4.4}))
    return tables


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often everybody is asked")
    parser.add_argument("--quick", action="store_true", help="ask once")
    arguments = parser.parse_args()
    tries = 1 if arguments.quick else arguments.rounds
    free, autogen = without_storage(45, tries)
    tables = [free]
    show(free)
    for table in (with_storage(45, tries, autogen), *growth(min(tries, 3))):
        show(table)
        tables.append(table)
    return conclude("magentic", tables)


if __name__ == "__main__":
    sys.exit(main())
