"""Agents in a process that is really killed: nothing that was recorded is paid or asked twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPECTED = " | ".join(f"{name} paid: {', '.join(f'{name}{i}' for i in range(6))}" for name in ("ann", "bob"))


class Office:
    """A store and a diary, and processes that come and go."""

    def __init__(self, where: Path) -> None:
        self._store, self._diary = where / "runs.db", where / "diary"

    def command(self, death: str = "") -> list[str]:
        return [sys.executable, "-m", "tests.agents.payments", str(self._store), str(self._diary), death]

    def work(self, death: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(death), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    def work_and_be_killed(self, after: float) -> bool:
        """Killed after so many seconds, unless it was done before."""
        child = subprocess.Popen(self.command(), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            child.wait(after)
        except subprocess.TimeoutExpired:
            child.kill()
        return child.wait() == -signal.SIGKILL

    def noted(self, kind: str) -> list[str]:
        lines = self._diary.read_text().splitlines() if self._diary.exists() else []
        return [line.partition(" ")[2] for line in lines if line.startswith(kind)]

    @property
    def payments(self) -> Counter[str]:
        return Counter(line.split()[0] for line in self.noted("tool"))


@pytest.mark.parametrize("k", range(1, 7))
def test_killed_after_the_kth_recorded_payment_none_is_made_twice(tmp_path: Path, k: int) -> None:
    office = Office(tmp_path)
    # Two agents ask in turn; by model call 2k + 2 each has k payments behind it, most of them recorded.
    assert office.work(f"model:{2 * k + 2}").returncode == -signal.SIGKILL
    begun = Counter(office.noted("model"))

    done = office.work()

    assert done.stdout.strip() == EXPECTED, done.stderr
    assert all(count <= 2 for count in begun.values())
    # Only what was in flight when the process died may be there twice: one thing per agent at the most.
    repeated = [name for name, count in (office.payments + Counter(office.noted("model"))).items() if count > 1]
    assert len(repeated) <= 2, repeated
    assert sum(office.payments.values()) <= 12 + 2


@pytest.mark.parametrize("k", [1, 3, 6])
def test_a_payment_cut_in_flight_is_made_again_with_the_same_idempotency_key(tmp_path: Path, k: int) -> None:
    office = Office(tmp_path)
    assert office.work(f"tool:{k}").returncode == -signal.SIGKILL

    done = office.work()

    assert done.stdout.strip() == EXPECTED, done.stderr
    keys: dict[str, set[str]] = {}
    for line in office.noted("tool"):
        invoice, key = line.split()
        keys.setdefault(invoice, set()).add(key)
    assert all(len(of_one) == 1 for of_one in keys.values())
    assert sum(office.payments.values()) <= 12 + 2  # one in flight per agent


def test_two_agents_killed_at_random_get_their_own_replies_back(tmp_path: Path) -> None:
    office, dice, kills = Office(tmp_path), random.Random(4711), 0
    while kills < 5 and office.work_and_be_killed(after=dice.uniform(0.25, 0.6)):
        kills += 1

    done = office.work()

    assert done.stdout.strip() == EXPECTED, done.stderr
    # Each death can cut one call of each of the two agents, and nothing else is ever repeated.
    repeats = sum(count - 1 for count in (office.payments + Counter(office.noted("model"))).values())
    assert repeats <= 2 * kills
