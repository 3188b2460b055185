"""What really happened, written down outside the store.

Each call notes its start and its end in a file that is only ever appended to, one `write` per line. A line that `write`
has returned for is the kernel's: killing the process does not take it back, so no fsync is needed to survive SIGKILL.
The order of the lines is the order of the events, across processes.

    start     a call begins                      finish    its effect has taken place
    recorded  the storage has acknowledged the record of this call to the journal
    found     a resumed run found the record of this call
    refused   the storage refused a write        output    the caller has the result in hand

A call is known by its idempotency key, which has to be the same in every attempt at it.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stepwell.checkpointing.journal import idempotency_key


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: who did what, for which call."""

    pid: int
    what: str
    key: str
    call: str = "-"


class Oracle:
    """The pen. Opened by each worker for itself."""

    def __init__(self, path: str | Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(self, what: str, key: str = "-", call: str = "-") -> None:
        line = f"{os.getpid()} {what} {key} {call}\n".encode()
        if os.write(self._descriptor, line) != len(line):
            raise OSError("the oracle's line was cut; the account is worthless")

    def watching(self, run_id: str) -> Watch:
        return Watch(self, run_id)


_NOTED = {"after call": "recorded", "after start": "begun", "found call": "found"}


@dataclass(frozen=True, slots=True)
class Watch:
    """A `Watcher` for a `CrashingStorage` that notes what the storage has acknowledged."""

    oracle: Oracle
    run_id: str

    def __call__(self, point: str, subject: str) -> None:
        if point in _NOTED:
            self.oracle.note(_NOTED[point], idempotency_key(self.run_id, subject))


@dataclass(frozen=True, slots=True)
class Repeats:
    """Calls made again, by how far they had come before."""

    cut: int = 0
    """Started and not finished: legitimate, and nobody's loss."""
    finished: int = 0
    """Finished, and the process was killed before the record was durable: to be kept rare."""
    found: int = 0
    """A resumed run had its record before its eyes: never."""
    acknowledged: int = 0
    """The record had been acknowledged: never."""

    def __add__(self, other: Repeats) -> Repeats:
        return Repeats(
            self.cut + other.cut,
            self.finished + other.finished,
            self.found + other.found,
            self.acknowledged + other.acknowledged,
        )


@dataclass(frozen=True, slots=True)
class Account:
    """All lines of one run, read after the fact."""

    entries: tuple[Entry, ...]

    @classmethod
    def read(cls, path: str | Path) -> Account:
        """The lines so far. A file that is not there is an account of nothing."""
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return cls(())
        return cls(tuple(_parsed(lines)))

    def since(self, earlier: Account) -> Account:
        """What was noted after `earlier` was read."""
        return Account(self.entries[len(earlier.entries) :])

    def of(self, pid: int) -> Account:
        return Account(tuple(entry for entry in self.entries if entry.pid == pid))

    def only(self, what: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.what == what]

    @property
    def starts(self) -> Counter[str]:
        """How often each call was started."""
        return Counter(entry.call for entry in self.only("start"))

    @property
    def acknowledged(self) -> set[str]:
        return {entry.key for entry in self.only("recorded")}

    @property
    def makers(self) -> dict[str, set[int]]:
        """Which processes made each call."""
        makers: dict[str, set[int]] = defaultdict(set)
        for entry in self.only("start"):
            makers[entry.call].add(entry.pid)
        return makers

    def repeats(self) -> Repeats:
        """Each start of a call that had been started before, by how far that had come."""
        reached: dict[str, str] = {}
        counts: Counter[str] = Counter()
        for entry in self.entries:
            before = reached.get(entry.key)
            if entry.what == "start" and before is not None:
                counts[before] += 1
            if entry.what in _RANKS and _RANKS[entry.what] >= _RANKS.get(before or "", 0):
                reached[entry.key] = entry.what
        return Repeats(counts["start"], counts["finish"], counts["found"], counts["recorded"])

    def unstable_keys(self) -> set[str]:
        """Calls whose idempotency key was not the same in every attempt, or not theirs alone."""
        keys: dict[str, set[str]] = defaultdict(set)
        calls: dict[str, set[str]] = defaultdict(set)
        for entry in self.only("start"):
            keys[entry.call].add(entry.key)
            calls[entry.key].add(entry.call)
        shared = {call for group in calls.values() if len(group) > 1 for call in group}
        return shared | {call for call, known in keys.items() if len(known) > 1}


_RANKS = {"start": 1, "finish": 2, "found": 3, "recorded": 4}


def _parsed(lines: Iterable[str]) -> Iterator[Entry]:
    for line in lines:
        pid, what, key, call = line.split(" ", 3)
        yield Entry(int(pid), what, key, call)
