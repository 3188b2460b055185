"""The engine without storage, beside its peers: `make bench-engine`.

The targets: a superstep costs at most a quarter of agent-framework-core's, waiting is limited by what is waited for,
and importing the package is cheap. `--rounds` for how often everybody is asked, `--quick` for a look.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from measure import Outcome, Table, best, compare, conclude, remarks, run_contender, show, take_turns

OURS = "stepwell"
ASYNCIO = "asyncio alone"
AGENT_FRAMEWORK = "agent-framework-core"
PROGRAMS = {
    OURS: "ours",
    ASYNCIO: "raw",
    AGENT_FRAMEWORK: "agent_framework_core",
    "langgraph": "langgraph_sqlite",
    "pydantic-graph": "pydantic_graph_builder",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """What everybody is asked to do, what one unit of it is, and how our figure has to compare with whose."""

    title: str
    name: str
    parameters: Mapping[str, Any]
    unit: str
    units: float
    reference: str
    target: float


def workloads(scale: float) -> list[Workload]:
    loop = int(5000 * scale)
    sleeps = int(300 * scale)
    runs = int(1000 * scale)
    return [
        Workload(
            title="counter that sends itself the next number",
            name="counter",
            parameters={"supersteps": loop},
            unit="µs per superstep",
            units=1e6 / loop,
            reference=AGENT_FRAMEWORK,
            target=0.25,
        ),
        Workload(
            title="the same with a handler that sleeps 1 ms",
            name="counter",
            parameters={"supersteps": sleeps, "seconds": 0.001},
            unit="ms per superstep",
            units=1e3 / sleeps,
            reference=ASYNCIO,
            target=1.25,
        ),
        Workload(
            title="fan-out to 200 leaves of 10 ms, and back",
            name="fan_out",
            parameters={"leaves": 200, "seconds": 0.01},
            unit="ms",
            units=1e3,
            reference=ASYNCIO,
            target=1.5,
        ),
        Workload(
            title=f"{runs} runs at once, 10 supersteps of 5 ms each",
            name="many_runs",
            parameters={"runs": runs, "supersteps": 10, "seconds": 0.005},
            unit="ms",
            units=1e3,
            reference=ASYNCIO,
            target=5.0,
        ),
    ]


def measure(workload: Workload, rounds: int) -> Table:
    def ask(contender: str) -> Outcome:
        return run_contender(PROGRAMS[contender], workload.name, workload.parameters, timeout=120)

    outcomes = take_turns(dict.fromkeys(PROGRAMS, rounds), ask)
    seconds = {name: best(tries, "seconds") for name, tries in outcomes.items()}
    return compare(
        workload.title,
        workload.unit,
        {name: None if figure is None else figure * workload.units for name, figure in seconds.items()},
        reference=workload.reference,
        targets={OURS: workload.target},
        notes=remarks(outcomes, "seconds"),
    )


IMPORTS = {
    OURS: "import stepwell",
    f"{OURS}'s builder": "from stepwell import WorkflowBuilder",
    "asyncio, sqlite3, json": "import asyncio, sqlite3, json",
    AGENT_FRAMEWORK: "from agent_framework import WorkflowBuilder",
    "langgraph": "from langgraph.graph import StateGraph",
    "pydantic-graph": "from pydantic_graph import GraphBuilder",
}


def import_once(contender: str) -> Outcome:
    code = f"import time; t = time.perf_counter(); {IMPORTS[contender]}; print(time.perf_counter() - t)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        return Outcome(error=done.stderr.strip().splitlines()[-1])
    return Outcome({"seconds": float(done.stdout)})


def measure_import(rounds: int) -> Table:
    outcomes = take_turns(dict.fromkeys(IMPORTS, rounds), import_once)
    seconds = {name: best(tries, "seconds") for name, tries in outcomes.items()}
    return compare(
        "import",
        "ms",
        {name: None if figure is None else figure * 1e3 for name, figure in seconds.items()},
        reference="asyncio, sqlite3, json",
        targets={OURS: 3.5},
        notes=remarks(outcomes, "seconds"),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each contender is asked (5)")
    parser.add_argument("--quick", action="store_true", help="two rounds of a fifth of the work")
    arguments = parser.parse_args()
    rounds, scale = (2, 0.2) if arguments.quick else (arguments.rounds, 1.0)

    started = time.perf_counter()
    tables: list[Table] = []
    for workload in workloads(scale):
        tables.append(measure(workload, rounds))
        show(tables[-1])
    tables.append(measure_import(rounds * 2))
    show(tables[-1])
    print(f"\n{rounds} rounds, {time.perf_counter() - started:.0f} s")
    return conclude("engine", tables)


if __name__ == "__main__":
    sys.exit(main())
