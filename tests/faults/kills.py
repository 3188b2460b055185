"""Killing runs until they are done, and counting what it did to them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import chain, repeat
from typing import Any

from tests.faults.children import Case, Ending
from tests.faults.oracle import Repeats
from tests.faults.workloads import Shape, expected_of

LIVES_LEFT_ALONE = 3
"""A run that does not end although nobody kills it any more is lost."""

NAMED_POINTS = (
    "before open",
    "after open",
    "in call",
    "finished call",
    "before call",
    "before commit",
    "after commit",
    "after call",
    "acknowledged",
    "found call",
    "before checkpoint",
    "before other commit",
    "after other commit",
    "after checkpoint",
    "before last checkpoint",
    "after last checkpoint",
    "before output",
    "after output",
)
"""Where a life is ended on purpose, apart from random instants."""

ONCE_A_LIFE = frozenset(
    point for point in NAMED_POINTS if point.endswith(("open", "found call", "last checkpoint", "output"))
)

REPEAT_POINTS = ("finished call", "before call", "before commit")
"""Killed here, a call has finished and its record is not durable: the only places where a repeat is legitimate."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of a number of runs."""

    runs: int = 0
    lives: int = 0
    kills: int = 0
    calls: int = 0
    lost: int = 0
    wrong: int = 0
    swapped: int = 0
    missing: int = 0
    """Calls that the oracle never saw although the output holds their answer, and keys that changed."""
    repeats: Repeats = field(default_factory=Repeats)
    troubles: tuple[str, ...] = ()

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))

    @property
    def repeats_per_kill(self) -> float:
        return self.repeats.finished / self.kills if self.kills else 0.0

    def check(self, *, most_repeats_per_kill: float | None = None) -> None:
        """Every promise kept, or an assertion that says which was not."""
        broken = (self.lost, self.wrong, self.swapped, self.missing, self.repeats.acknowledged, self.repeats.found)
        assert broken == (0, 0, 0, 0, 0, 0), f"{self.row()} {self.troubles}"
        if most_repeats_per_kill is not None:
            assert self.repeats_per_kill <= most_repeats_per_kill, self.row()

    HEADINGS = (
        "kills",
        "runs",
        "calls",
        "lost",
        "wrong",
        "swapped",
        "repeats of acknowledged",
        "repeats of recorded",
        "repeats of finished",
        "per kill",
    )

    def row(self) -> dict[str, str]:
        values = (
            self.kills,
            self.runs,
            self.calls,
            self.lost,
            self.wrong,
            self.swapped,
            self.repeats.acknowledged,
            self.repeats.found,
            self.repeats.finished,
            f"{self.repeats_per_kill:.3f}",
        )
        return dict(zip(self.HEADINGS, map(str, values), strict=True))


Life = Callable[[], Ending]


def killed_at_random(case: Case, dice: random.Random, *, within: float) -> Ending:
    """A life that is cut off at a random instant, unless it ends before."""
    with case.start() as child:
        child.wait_for("running")
        child.listen_for(dice.uniform(0.0, within))
        return child.kill()


def killed_at_a_point(case: Case, dice: random.Random, point: str) -> Ending:
    """A life that ends by itself when the point is reached for the n-th time, if it ever is."""
    turn = 1 if point in ONCE_A_LIFE else dice.randint(1, 12)
    return case.live(crash_at=f"{point}#{turn}")


def finish(case: Case, lives: Iterable[Life]) -> Tally:
    """Live these lives, then let the run come to its end, and compare."""
    endings: list[Ending] = []
    for life in chain(lives, repeat(case.live, LIVES_LEFT_ALONE)):
        endings.append(life())
        if endings[-1].output is not None and not endings[-1].was_killed:
            break
    return tally(case, endings)


def tally(case: Case, endings: Sequence[Ending]) -> Tally:
    account, expected = case.account(), expected_of(case.shape)
    outputs = [ending.output for ending in endings if ending.output is not None]
    never_made = set(case.shape.names()) - account.starts.keys() if outputs else set()
    troubles = [f"{ending.error} {ending.told('error')}" for ending in endings if ending.error]
    troubles += [ending.stderr for ending in endings if ending.stderr]
    return Tally(
        runs=1,
        lives=len(endings),
        kills=sum(ending.was_killed for ending in endings),
        calls=sum(account.starts.values()),
        lost=int(endings[-1].output is None or bool(troubles)),
        wrong=sum(output != expected for output in outputs),
        swapped=sum(swapped(output, case.shape) for output in outputs),
        missing=len(never_made) + len(account.unstable_keys()),
        repeats=account.repeats(),
        troubles=tuple(troubles),
    )


def swapped(output: Sequence[dict[str, Any]], shape: Shape) -> int:
    """How many answers are not their call's, wherever they come from."""
    expected = {(report["worker"], report["round"]): report["answers"] for report in expected_of(shape)}
    return sum(
        mine != theirs
        for report in output
        for mine, theirs in zip(report["answers"], expected[report["worker"], report["round"]], strict=True)
    )


def killed_until_done(case: Case, dice: random.Random, *, kills: int, within: float) -> Tally:
    """A run that is killed this often at random instants and then left alone."""
    return finish(case, [partial(killed_at_random, case, dice, within=within)] * kills)


def killed_at_points(case: Case, dice: random.Random, points: Sequence[str]) -> Tally:
    """A run that is killed at each of these points in turn and then left alone."""
    return finish(case, [partial(killed_at_a_point, case, dice, point) for point in points])
