"""How the benchmarks measure: each contender in a process of its own, taking turns, the best of several rounds.

Noise only ever adds time, so the best round is the nearest to what the work costs. A contender that crashes, hangs or
is not installed is shown as such and hides nobody else. Ratios are always between figures of the same invocation.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from documents import conditions

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
MARK = "@figures "

Figures = dict[str, Any]


# --- inside a contender's process -------------------------------------------------------------------------------------


def contend(workloads: Mapping[str, Callable[..., Any]]) -> None:
    """Run the workload named on the command line and print its figures: the whole `main` of a contender."""
    workload, parameters = sys.argv[1], json.loads(sys.argv[2])
    figures = workloads[workload](**parameters)
    if inspect.isawaitable(figures):
        figures = asyncio.run(_settle(figures))
    print(MARK + json.dumps(figures), flush=True)


async def _settle(figures: Any) -> Figures:
    return dict(await figures)


class Stopwatch:
    """Seconds of the `with` block, with what earlier work left behind collected beforehand."""

    seconds: float

    def __enter__(self) -> Stopwatch:
        gc.collect()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start


def paragraphs(count: int, *, size: int = 1024) -> list[str]:
    """As many different texts of about a kilobyte, the same ones each time."""
    dice = random.Random(count)
    letters = "etaoinshrdlu"
    words = ["".join(dice.choices(letters, k=dice.randint(2, 9))) for _ in range(2000)]
    texts = (f"{number}. {' '.join(dice.choices(words, k=size // 5))}" for number in range(count))
    return [text[:size] for text in texts]


def typical(times: Sequence[float]) -> float:
    """The mean without the slowest tenth, which on a shared machine is mostly other people's work."""
    return fmean(sorted(times)[: max(1, len(times) * 9 // 10)])


def tenths(stamps: Sequence[float]) -> Figures:
    """Typical microseconds per superstep in the first tenth, the last one and all of a run, from when each one began.

    `mean_us` leaves nothing out. `curve` is one figure for each thirtieth, to be drawn.
    """
    steps = [(after - before) * 1e6 for before, after in itertools.pairwise(stamps)]
    tenth, piece = max(1, len(steps) // 10), max(1, len(steps) // 30)
    return {
        "first_us": typical(steps[:tenth]),
        "last_us": typical(steps[-tenth:]),
        "typical_us": typical(steps),
        "mean_us": fmean(steps),
        "curve": [typical(steps[start : start + piece]) for start in range(0, len(steps), piece)],
    }


def bytes_under(directory: str | Path) -> int:
    return sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())


def peak_megabytes() -> float:
    """The most memory this process has had resident so far."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# --- in the process that asks -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one contender's process reported, or why it did not."""

    figures: Figures = field(default_factory=dict)
    error: str | None = None


def run_contender(contender: str, workload: str, parameters: Mapping[str, Any], *, timeout: float = 300) -> Outcome:
    command = [sys.executable, str(HERE / "contenders" / f"{contender}.py"), workload, json.dumps(parameters)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return Outcome(error=f"no answer within {timeout:.0f} s")
    reported = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode == 0 and reported:
        return Outcome(json.loads(reported[-1].removeprefix(MARK)))
    return Outcome(error=_last_line(done.stderr) or f"exit status {done.returncode}")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def take_turns(rounds: Mapping[str, int], ask: Callable[[str], Outcome]) -> dict[str, list[Outcome]]:
    """Ask each contender as many times as `rounds` says, one after the other, in turned order every other round.

    One that failed is not asked again.
    """
    outcomes: dict[str, list[Outcome]] = {contender: [] for contender in rounds}
    for number in range(max(rounds.values())):
        for contender in list(rounds) if number % 2 == 0 else reversed(list(rounds)):
            failed = any(outcome.error for outcome in outcomes[contender])
            if number < rounds[contender] and not failed:
                outcomes[contender].append(ask(contender))
    return outcomes


def best(outcomes: Sequence[Outcome], figure: str) -> float | None:
    """The least of a figure over all rounds, or None if the contender failed in one or does not have it."""
    if not outcomes or any(outcome.error for outcome in outcomes):
        return None
    return min((float(outcome.figures[figure]) for outcome in outcomes if figure in outcome.figures), default=None)


# --- what is shown ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: a contender's figure, or its error."""

    contender: str
    figure: float | None
    ratio: float | None = None
    target: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        if self.ratio is None:
            return "NO FIGURE"
        return "pass" if self.ratio <= self.target else "FAIL"


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    unit: str
    reference: str
    rows: tuple[Row, ...]

    @property
    def passed(self) -> bool:
        return all(row.verdict in ("", "pass") for row in self.rows)


def compare(
    title: str,
    unit: str,
    figures: Mapping[str, float | None],
    *,
    reference: str,
    targets: Mapping[str, float] | None = None,
    notes: Mapping[str, str] | None = None,
) -> Table:
    """A table of figures and their ratios to the reference; `targets` are upper limits of such ratios."""
    base = figures.get(reference)
    rows = tuple(
        Row(
            name,
            figure,
            ratio=figure / base if figure is not None and base else None,
            target=(targets or {}).get(name),
            note=(notes or {}).get(name, ""),
        )
        for name, figure in figures.items()
    )
    return Table(title, unit, reference, rows)


UNSTEADY = 1.5
"""If the rounds of a contender differ by more than this, the machine was busy with something else."""


def remarks(
    outcomes: Mapping[str, Sequence[Outcome]], figure: str, notes: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Each contender's note, and how far its rounds are apart if that is a reason for doubt; errors come first."""
    found = dict(notes or {})
    for name, tries in outcomes.items():
        if (spread := _spread(tries, figure)) > UNSTEADY:
            found[name] = "; ".join(filter(None, [found.get(name), f"unsteady: rounds differ by {spread:.1f} x"]))
    return found | errors_of(outcomes)


def errors_of(outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, str]:
    """Why contenders have no figure."""
    return {
        name: outcome.error[:100] for name, tries in outcomes.items() for outcome in tries if outcome.error is not None
    }


def _spread(outcomes: Sequence[Outcome], figure: str) -> float:
    values = [float(outcome.figures[figure]) for outcome in outcomes if figure in outcome.figures]
    return max(values) / min(values) if values and min(values) > 0 else 1.0


def show(table: Table) -> None:
    print(f"\n{table.title}  [{table.unit}; ratios to {table.reference}]")
    for row in table.rows:
        figure = f"{row.figure:>12,.{_digits(row.figure)}f}" if row.figure is not None else f"{'-':>12}"
        ratio = f"{row.ratio:>8.2f} x" if row.ratio is not None else f"{'':>10}"
        target = f"<= {row.target:g} x" if row.target is not None else ""
        print(f"  {row.contender:<24}{figure}{ratio}  {target:<10}{row.verdict:<10}{row.note}".rstrip(), flush=True)


def _digits(figure: float) -> int:
    return 0 if figure >= 1000 else 1 if figure >= 10 else 2


def write_results(name: str, tables: Sequence[Table], extra: Mapping[str, Any] | None = None) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        **conditions(),
        "load": os.getloadavg(),
        "tables": [asdict(table) | {"passed": table.passed} for table in tables],
        **(extra or {}),
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path


def conclude(name: str, tables: Sequence[Table], extra: Mapping[str, Any] | None = None) -> int:
    """Write the results, say which targets were missed, and give the exit status that says the same."""
    path = write_results(name, tables, extra)
    missed = [
        f"{table.title}: {row.contender}" for table in tables for row in table.rows if row.verdict not in ("", "pass")
    ]
    print(f"\nresults in {path.relative_to(HERE.parent)}")
    print("all targets met" if not missed else "missed:\n  " + "\n  ".join(missed))
    if any("unsteady" in row.note for table in tables for row in table.rows):
        print("some rounds were far apart: the machine was busy, run it again when it is quiet")
    return 1 if missed else 0
