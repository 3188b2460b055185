"""Durable supersteps beside the peers and raw SQLite: `make bench-storage`.

"Raw" is the least code that gives the same guarantee: one SQLite insert of the new bytes, WAL, `synchronous=FULL`, in
the same directory and the same invocation. Files and Postgres are shown beside the least of their own kind: a file that
is written, fsynced and renamed and its folder fsynced; one insert that is committed. agent-framework-core's file
storage does not fsync at all. `--full` lets the peers go to 3,000 supersteps as well, which takes gigabytes of disk;
`--only chat` runs one part, `--quick` a tenth.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure import RESULTS, Outcome, Table, best, compare, conclude, remarks, run_contender, show, take_turns
from plot import picture, text_curves

OURS = "stepwell"
RELAY = "stepwell, in flight"
RAW = "raw SQLite"
FILES = "stepwell on files"
RAW_FILES = "raw files"
POSTGRES = "stepwell on Postgres"
RAW_POSTGRES = "raw Postgres"
ASYNCIO = "asyncio alone"
AGENT_FRAMEWORK = "agent-framework-core"
LANGGRAPH = "langgraph"
DBOS = "dbos"
PROGRAMS = {
    OURS: "ours",
    RELAY: "ours",
    RAW: "raw",
    FILES: "ours_file",
    RAW_FILES: "ours_file",
    POSTGRES: "ours_postgres",
    RAW_POSTGRES: "ours_postgres",
    ASYNCIO: "raw",
    AGENT_FRAMEWORK: "agent_framework_core",
    LANGGRAPH: "langgraph_sqlite",
    DBOS: "dbos_sqlite",
}
RAW_BESIDE_OURS = (RAW_FILES, RAW_POSTGRES)
"""Those whose programs are in the same file as ours."""
PEERS = (AGENT_FRAMEWORK, LANGGRAPH, DBOS)

Outcomes = Mapping[str, list[Outcome]]


def task_of(contender: str, workload: str) -> str:
    """What the contender's program calls this work."""
    if contender == RELAY:
        return "relay"
    return f"raw_{workload}" if contender in RAW_BESIDE_OURS else workload


@dataclass
class Bench:
    """How much is asked of whom, where, and what has been found so far."""

    directory: Path
    rounds: int
    scale: float
    full: bool
    tables: list[Table] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def scaled(self, count: int) -> int:
        return max(20, int(count * self.scale))

    def ask(
        self, contenders: tuple[str, ...], workload: str, *, timeout: float = 300, often: int = 1, **parameters: Any
    ) -> Outcomes:
        """Everybody does the work in a fresh directory; ours and raw in each round, peers once.

        Short work is asked for `often` times as often: chance has more of a say in it.
        """

        def once(contender: str) -> Outcome:
            with self.scratch() as directory:
                given, task = {"directory": directory, **parameters}, task_of(contender, workload)
                return run_contender(PROGRAMS[contender], task, given, timeout=timeout)

        rounds = {name: 1 if name in PEERS else self.rounds * often for name in contenders}
        return take_turns(rounds, once)

    @contextmanager
    def scratch(self) -> Iterator[str]:
        directory = tempfile.mkdtemp(dir=self.directory)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def table(
        self,
        title: str,
        unit: str,
        figures: Mapping[str, float | None],
        *,
        reference: str,
        targets: Mapping[str, float],
        notes: Mapping[str, str] | None = None,
    ) -> None:
        self.tables.append(compare(title, unit, figures, reference=reference, targets=targets, notes=notes))
        show(self.tables[-1])


def bests(outcomes: Outcomes, figure: str, factor: float = 1.0) -> dict[str, float | None]:
    found = {name: best(tries, figure) for name, tries in outcomes.items()}
    return {name: None if value is None else value * factor for name, value in found.items()}


# --- the parts --------------------------------------------------------------------------------------------------------


def durable_counter(bench: Bench) -> None:
    outcomes = bench.ask((OURS, RAW, *PEERS), "durable_counter", often=3, supersteps=bench.scaled(1000))
    bench.table(
        "durable superstep, state is one integer",
        "µs per superstep",
        bests(outcomes, "typical_us"),
        reference=RAW,
        targets={OURS: 2.5},
        notes=remarks(outcomes, "typical_us", _means(outcomes)),
    )


def _means(outcomes: Outcomes) -> dict[str, str]:
    means = bests(outcomes, "mean_us")
    return {name: f"{mean:,.0f} with the slowest tenth" for name, mean in means.items() if mean is not None}


LENGTHS = (100, 300, 1000, 3000)


def chat(bench: Bench) -> None:
    """One kilobyte more of `Message` per superstep; the peers keep plain dicts, which is easier."""
    found = {length: _chat_of(bench, length) for length in map(bench.scaled, LENGTHS)}
    for length, outcomes in found.items():
        bench.table(
            f"+1 KB of chat per superstep, {length} of them",
            "µs per superstep",
            bests(outcomes, "typical_us"),
            reference=RAW,
            targets={OURS: 2.5},
            notes=_growth_notes(outcomes),
        )
    _chat_is_flat(bench, found)
    _chat_on_disk(bench, found)
    _draw(bench, found)


def _chat_of(bench: Bench, length: int) -> Outcomes:
    peers = PEERS if bench.full or length <= bench.scaled(1000) else (DBOS,)
    return bench.ask((OURS, RELAY, RAW, *peers), "chat", supersteps=length, timeout=900)


def _growth_notes(outcomes: Outcomes) -> dict[str, str]:
    first, last = bests(outcomes, "first_us"), bests(outcomes, "last_us")
    notes = {
        name: f"first tenth {first[name]:,.0f}, last {last[name]:,.0f}"
        for name in outcomes
        if first[name] and last[name]
    }
    return remarks(outcomes, "typical_us", notes)


def _chat_is_flat(bench: Bench, found: Mapping[int, Outcomes]) -> None:
    shortest, longest = min(found), max(found)
    start = f"stepwell, all of {shortest}"
    end = f"stepwell, end of {longest}"
    figures = {start: best(found[shortest][OURS], "typical_us"), end: best(found[longest][OURS], "last_us")}
    bench.table("the same, early and late", "µs per superstep", figures, reference=start, targets={end: 1.5})


def _chat_on_disk(bench: Bench, found: Mapping[int, Outcomes]) -> None:
    for length, outcomes in found.items():
        bench.table(
            f"bytes on disk after {length} KB of chat",
            "MB",
            bests(outcomes, "bytes", 1e-6),
            reference=RAW,
            targets={OURS: 2.5, RELAY: 2.5} if length >= bench.scaled(1000) else {},
            notes=remarks(outcomes, "bytes"),
        )


def _draw(bench: Bench, found: Mapping[int, Outcomes]) -> None:
    curves: dict[str, tuple[int, list[float]]] = {}
    sizes: dict[str, dict[int, float]] = {}
    for length, outcomes in sorted(found.items()):
        for name, tries in outcomes.items():
            if tries and (size := best(tries, "bytes")) is not None:
                curves[name] = (length, min((outcome.figures["curve"] for outcome in tries), key=sum))
                sizes.setdefault(name, {})[length] = size
    bench.extra |= {"curves": curves, "bytes": sizes}
    title = "time per superstep along the longest run of each"
    print("\n" + text_curves(title, {name: curve for name, (_, curve) in curves.items()}, unit="µs"))
    if picture(RESULTS / "growth.png", supersteps=curves, sizes=sizes):
        print("drawn in benchmarks/results/growth.png")


def plain_state(bench: Bench) -> None:
    length = bench.scaled(1000)
    outcomes = bench.ask((OURS, RAW), "plain_state", often=2, supersteps=length)
    figures = bests(outcomes, "last_us")
    dumps = "one json.dumps of it"
    bench.table(
        f"state of {length} plain dicts of 1 KB, the last tenth",
        "µs per superstep",
        {OURS: figures[OURS], dumps: figures[RAW]},
        reference=dumps,
        targets={OURS: 2.0},
        notes=remarks(outcomes, "last_us"),
    )


def newest(bench: Bench) -> None:
    few, many = bench.scaled(50), bench.scaled(1000)
    early = bench.ask((OURS,), "newest", checkpoints=few)
    late = bench.ask((OURS, RAW, AGENT_FRAMEWORK, LANGGRAPH), "newest", checkpoints=many)
    start, end = f"stepwell, of {few}", f"stepwell, of {many}"
    others = {name: figure for name, figure in bests(late, "ms").items() if name != OURS}
    bench.table(
        f"find the newest of {many} checkpoints",
        "ms",
        {start: best(early[OURS], "ms"), end: best(late[OURS], "ms"), **others},
        reference=start,
        targets={end: 1.5},
        notes=remarks(late, "ms"),
    )


def resume(bench: Bench) -> None:
    """A fresh process opens what another one left, goes on for one superstep and closes it."""
    length = bench.scaled(1000)
    outcomes = _resumed(bench, (OURS, RAW, AGENT_FRAMEWORK, LANGGRAPH), length)
    bench.table(
        f"resume a run of {length} messages, one more superstep",
        "ms",
        bests(outcomes, "ms"),
        reference=RAW,
        targets={OURS: 3.0},
        notes=remarks(outcomes, "ms", _peaks(outcomes)),
    )


def _resumed(bench: Bench, contenders: tuple[str, ...], length: int) -> Outcomes:
    def once(contender: str) -> Outcome:
        program = PROGRAMS[contender]
        with bench.scratch() as directory:
            parameters = {"directory": directory, "supersteps": length}
            prepared = run_contender(program, task_of(contender, "prepare_resume"), parameters)
            return prepared if prepared.error else run_contender(program, task_of(contender, "resume"), parameters)

    return take_turns({name: 1 if name in PEERS else bench.rounds * 2 for name in contenders}, once)


def _peaks(outcomes: Outcomes) -> dict[str, str]:
    peaks = bests(outcomes, "peak_mb")
    return {name: f"{peak:.0f} MB more at the peak" for name, peak in peaks.items() if peak is not None}


def many_runs(bench: Bench) -> None:
    runs = bench.scaled(1000)
    contenders = (OURS, RAW, *PEERS)
    outcomes = bench.ask(contenders, "many_durable_runs", often=2, runs=runs, supersteps=10, seconds=0.005)
    bench.table(
        f"{runs} durable runs at once, 10 supersteps of 5 ms each",
        "ms",
        bests(outcomes, "seconds", 1e3),
        reference=RAW,
        targets={OURS: 10.0},
        notes=remarks(outcomes, "seconds"),
    )


def fan_out(bench: Bench) -> None:
    contenders = (OURS, ASYNCIO, AGENT_FRAMEWORK, LANGGRAPH)
    outcomes = bench.ask(contenders, "durable_fan_out", often=3, leaves=200, seconds=0.01)
    bench.table(
        "fan-out to 200 leaves of 10 ms, and back, with checkpoints",
        "ms",
        bests(outcomes, "seconds", 1e3),
        reference=ASYNCIO,
        targets={OURS: 1.5},
        notes=remarks(outcomes, "seconds"),
    )


@dataclass(frozen=True)
class Elsewhere:
    """A storage that is not SQLite, beside the least that its own kind of store can do."""

    ours: str
    raw: str
    tells_bytes: bool
    """Can it be said what a run takes on disk? A Postgres has its own housekeeping there."""

    @property
    def both(self) -> tuple[str, str]:
        return self.ours, self.raw

    def all(self, bench: Bench) -> None:
        """Told beside raw, not judged: the limits are SQLite's, the default."""
        for part in (self.counter, self.chat, self.newest, self.resume, self.runs):
            part(bench)

    def _tell(self, bench: Bench, title: str, unit: str, outcomes: Outcomes, figure: str, **more: Any) -> None:
        factor, notes = more.get("factor", 1.0), remarks(outcomes, figure, more.get("notes"))
        figures = bests(outcomes, figure, factor)
        bench.table(f"{title}: {self.ours}", unit, figures, reference=self.raw, targets={}, notes=notes)

    def counter(self, bench: Bench) -> None:
        outcomes = bench.ask(self.both, "durable_counter", often=2, supersteps=bench.scaled(1000))
        title = "durable superstep, state is one integer"
        self._tell(bench, title, "µs per superstep", outcomes, "typical_us", notes=_means(outcomes))

    def chat(self, bench: Bench) -> None:
        for length in map(bench.scaled, LENGTHS):
            outcomes = bench.ask(self.both, "chat", supersteps=length, timeout=900)
            title = f"+1 KB of chat per superstep, {length} of them"
            self._tell(bench, title, "µs per superstep", outcomes, "typical_us", notes=_growth_notes(outcomes))
            if self.tells_bytes:
                self._tell(bench, f"bytes on disk after {length} KB of chat", "MB", outcomes, "bytes", factor=1e-6)

    def newest(self, bench: Bench) -> None:
        for checkpoints in (bench.scaled(50), bench.scaled(1000)):
            outcomes = bench.ask(self.both, "newest", checkpoints=checkpoints)
            self._tell(bench, f"find the newest of {checkpoints} checkpoints", "ms", outcomes, "ms")

    def resume(self, bench: Bench) -> None:
        length = bench.scaled(1000)
        outcomes = _resumed(bench, self.both, length)
        title = f"resume a run of {length} messages, one more superstep"
        self._tell(bench, title, "ms", outcomes, "ms", notes=_peaks(outcomes))

    def runs(self, bench: Bench) -> None:
        runs = bench.scaled(1000)
        outcomes = bench.ask(self.both, "many_durable_runs", runs=runs, supersteps=10, seconds=0.005)
        title = f"{runs} durable runs at once, 10 supersteps of 5 ms each"
        self._tell(bench, title, "ms", outcomes, "seconds", factor=1e3)


PARTS: dict[str, Callable[[Bench], None]] = {
    "counter": durable_counter,
    "chat": chat,
    "plain": plain_state,
    "newest": newest,
    "resume": resume,
    "runs": many_runs,
    "fan-out": fan_out,
    "file": Elsewhere(FILES, RAW_FILES, tells_bytes=True).all,
    "postgres": Elsewhere(POSTGRES, RAW_POSTGRES, tells_bytes=False).all,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often ours and raw are asked (3); peers once")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; may be given several times")
    parser.add_argument("--full", action="store_true", help="the peers go to 3,000 supersteps as well")
    parser.add_argument("--quick", action="store_true", help="one round of a tenth of the work")
    parser.add_argument("--directory", type=Path, default=RESULTS, help="where the databases are written")
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    asked.directory.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(exist_ok=True)
    rounds, scale = (1, 0.1) if asked.quick else (asked.rounds, 1.0)
    bench = Bench(asked.directory, rounds, scale, full=asked.full)
    started = time.perf_counter()
    for name in asked.only or PARTS:
        PARTS[name](bench)
    print(f"\n{rounds} rounds, {time.perf_counter() - started:.0f} s")
    return conclude("storage", bench.tables, bench.extra)


if __name__ == "__main__":
    sys.exit(main())
