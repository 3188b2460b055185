"""The long version: a thousand kills per backend, two runs at a time, and a table."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

from tests.faults.backends import Backend
from tests.faults.children import Case
from tests.faults.kills import NAMED_POINTS, Tally, killed_at_points, killed_until_done

MOST_REPEATS_PER_KILL = 0.05
LANES = 2


@dataclass(frozen=True, slots=True)
class Series:
    """One line of the table: runs of one kind, until they have been killed often enough."""

    title: str
    workload: str
    share: float
    """Of all kills."""
    call_ms: float = 20.0
    shared: bool = False
    """Do both runs that are under way at a time share a store?"""
    points: Sequence[str] = ()
    """Named points to be killed at; none for random instants."""
    most_repeats_per_kill: float | None = MOST_REPEATS_PER_KILL

    @property
    def within(self) -> float:
        """Seconds that hold most of a run, so that every part of it is as likely to be hit."""
        return {"rounds": 60, "pairs": 100, "gathered": 10}[self.workload] * self.call_ms / 1000 + 0.2

    def one_run(self, case: Case, dice: random.Random) -> Tally:
        case = replace(case, workload=self.workload, options={"call_ms": self.call_ms})
        if self.points:
            return killed_at_points(case, dice, dice.sample(self.points, 8))
        return killed_until_done(case, dice, kills=6, within=self.within)


SERIES = (
    Series("3 workers × 3 calls of 20 ms", "rounds", 0.4),
    Series("2 workers × 10 calls of 20 ms", "pairs", 0.2),
    Series("3 workers × 3 calls of 5 ms", "rounds", 0.1, call_ms=5.0, most_repeats_per_kill=None),
    Series("2 workers × 10 calls of 5 ms at once", "gathered", 0.1, call_ms=5.0, most_repeats_per_kill=None),
    Series("two such runs in one store", "rounds", 0.1, shared=True, most_repeats_per_kill=None),
    Series("3 workers × 3 calls, named points", "rounds", 0.1, points=NAMED_POINTS, most_repeats_per_kill=None),
)
"""What may be repeated is what has finished and waits for its record to be written, so the share of it depends on how
long a call takes beside that, and on who else writes: with 5 ms or a shared store it is told, not judged. A kill at a
named point that lies between a call's end and its record repeats that call by design."""


class Lanes:
    """Shares out kills to threads, each of which kills one run at a time."""

    def __init__(self, series: Series, backend: Backend, kills: int) -> None:
        self._series = series
        self._backend = backend
        self._kills = kills
        self._lock = threading.Lock()
        self._begun = 0
        self.total = Tally()

    def work(self, folder: Path, store: str) -> None:
        """Kill run after run in this store, until there have been enough."""
        dice = random.Random()
        while (number := self._next()) is not None:
            result = self._series.one_run(Case(store, folder, run_id=f"run-{number}"), dice)
            with self._lock:
                self.total += result

    def _next(self) -> int | None:
        with self._lock:
            if self.total.kills >= self._kills:
                return None
            self._begun += 1
            return self._begun


def killed(series: Series, backend: Backend, kills: int) -> Tally:
    """Two runs at a time; each has a store of its own unless the series wants them to share one."""
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(_folder())) for _ in range(LANES)]
        stores = [_placed(backend, folder, stack) for folder in folders[: 1 if series.shared else LANES]]
        lanes = Lanes(series, backend, kills)
        with ThreadPoolExecutor(LANES) as pool:
            places = zip(folders, cycle(stores), strict=False)
            for future in [pool.submit(lanes.work, folder, store) for folder, store in places]:
                future.result()
        return lanes.total


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="stepwell-faults-")


def _placed(backend: Backend, folder: Path, stack: ExitStack) -> str:
    store = backend.place(folder)
    stack.callback(backend.tear_down, store)
    return store


def thousand_kills(backends: Iterable[Backend], *, kills: int = 1000, tell: Callable[[str], None] = print) -> int:
    """Print the table; how many promises were broken?"""
    broken = 0
    width = max(len(series.title) for series in SERIES)
    for backend in backends:
        began = time.monotonic()
        tell(f"\n{backend.name}: {kills} kills\n")
        tell(_line(["", *Tally.HEADINGS], width))
        total = Tally()
        for series in SERIES:
            result = killed(series, backend, round(kills * series.share))
            total += result
            tell(_line([series.title, *result.row().values()], width))
            broken += _broken(result, series, tell)
        tell(_line(["all", *total.row().values()], width))
        tell(f"\n{total.lives} processes in {time.monotonic() - began:.0f} s")
    return broken


def _broken(result: Tally, series: Series, tell: Callable[[str], None]) -> int:
    try:
        result.check(most_repeats_per_kill=series.most_repeats_per_kill)
    except AssertionError as broken:
        tell(f"  BROKEN: {broken}")
        return 1
    return 0


def _line(cells: Sequence[str], width: int) -> str:
    first, *others = cells
    aligned = (cell.rjust(len(heading)) for cell, heading in zip(others, Tally.HEADINGS, strict=True))
    return "  ".join([first.ljust(width), *aligned])
