"""Worker processes: started, watched, killed, stopped and reaped, each within a bounded time."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from stepwell.testing.crash import CRASH_VARIABLE
from tests.faults.oracle import Account
from tests.faults.workloads import WORKLOADS, Shape

REPOSITORY = Path(__file__).resolve().parents[2]
LIFETIME_SECONDS = 60.0
"""No worker has anything to do for that long: one that is still there hangs, and is killed for it."""


class Stuck(AssertionError):
    """A worker did not get on within its time."""


class Child:
    """A worker process. It is ours until it is reaped, so its id can't have become somebody else's."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._deadline = time.monotonic() + LIFETIME_SECONDS
        self._buffer = b""
        self._ending: Ending | None = None
        self.events: list[dict[str, Any]] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.kill()

    # --- listening ---------------------------------------------------------------------------------------------------

    def wait_for(self, event: str) -> dict[str, Any]:
        """Listen until it tells this; `Stuck` if it ends without."""
        while not (found := self.told(event)):
            if not self._listen(self._deadline):
                raise Stuck(f"worker {self.pid} ended without telling {event!r}: {self.events} {self._errors()}")
        return found[0]

    def listen_for(self, seconds: float) -> bool:
        """Let it work for so long; is it still there?"""
        until = min(time.monotonic() + seconds, self._deadline)
        while time.monotonic() < until:
            if not self._listen(until, patient=False):
                return False
        return True

    def told(self, event: str) -> list[dict[str, Any]]:
        return [told for told in self.events if told["event"] == event]

    def _listen(self, until: float, *, patient: bool = True) -> bool:
        """Take what it says; false when it has said its last."""
        output = self._process.stdout
        assert output is not None
        if not select.select([output], [], [], max(0.0, until - time.monotonic()))[0]:
            if patient:
                self._process.kill()
                raise Stuck(f"worker {self.pid} hangs: {self.events} {self._errors()}")
            return True
        read = os.read(output.fileno(), 1 << 16)
        *lines, self._buffer = (self._buffer + read).split(b"\n")
        self.events += [json.loads(line) for line in lines]
        return bool(read)

    # --- ending ------------------------------------------------------------------------------------------------------

    def send(self, number: signal.Signals) -> None:
        if self._ending is None:
            os.kill(self.pid, number)

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def kill(self) -> Ending:
        """SIGKILL, unless it is over already."""
        self.send(signal.SIGKILL)
        return self.ended()

    def ended(self) -> Ending:
        """Let it come to its end, and reap it."""
        if self._ending is None:
            while self._listen(self._deadline):
                pass
            errors = self._errors()
            self._process.wait(timeout=LIFETIME_SECONDS)
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                assert stream is not None
                stream.close()
            self._ending = Ending(self.pid, self._process.returncode, tuple(self.events), errors)
        return self._ending

    def _errors(self) -> str:
        """What it complained about; waits for its end."""
        errors = self._process.stderr
        assert errors is not None
        return errors.read().decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Ending:
    """What a worker said in its life, and how that ended."""

    pid: int
    returncode: int
    events: tuple[dict[str, Any], ...]
    stderr: str = ""

    @property
    def was_killed(self) -> bool:
        return self.returncode == -signal.SIGKILL

    def told(self, event: str) -> list[dict[str, Any]]:
        return [told for told in self.events if told["event"] == event]

    @property
    def output(self) -> Any:
        """The output it had in hand; None if it came to none."""
        return next((told["value"] for told in self.told("output")), None)

    @property
    def error(self) -> str | None:
        return next((told["type"] for told in self.told("error")), None)


@dataclass(frozen=True, slots=True)
class Case:
    """One run in one store, with an oracle of its own: what every life of it is started with."""

    store: str
    folder: Path
    run_id: str = "run-1"
    workload: str = "rounds"
    options: Mapping[str, Any] = field(default_factory=dict)
    program: str = "tests.faults.workloads"
    """The module that each life of it runs."""

    @property
    def shape(self) -> Shape:
        shape = WORKLOADS[self.workload].shape
        return Shape(shape.workers, shape.calls, self.options.get("rounds", shape.rounds))

    @property
    def oracle(self) -> Path:
        return self.folder / f"{self.run_id}.oracle"

    def start(self, *, crash_at: str = "", **options: Any) -> Child:
        """Begin a life, which dies at `crash_at` if that is given. The other options are the workers' own."""
        known = {"store": self.store, "run_id": self.run_id, "workload": self.workload, "oracle": self.oracle}
        arguments = [self.program]
        for name, value in {**known, **self.options, **options}.items():
            option = f"--{name.replace('_', '-')}"
            if isinstance(value, bool):
                arguments += [option] * value
            else:
                arguments += [option, json.dumps(value) if isinstance(value, dict) else str(value)]
        return Child(arguments, {CRASH_VARIABLE: crash_at})

    def live(self, *, crash_at: str = "", **options: Any) -> Ending:
        """A whole life."""
        with self.start(crash_at=crash_at, **options) as child:
            return child.ended()

    def account(self) -> Account:
        return Account.read(self.oracle)
