"""Who may write to a run, and since which epoch."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from uuid import uuid4


@dataclass(frozen=True, slots=True)
class Holder:
    """One storage instance of one process. It is recognised as dead by the OS lock that dies with it."""

    instance: str
    host: str
    pid: int

    @classmethod
    def here(cls) -> Holder:
        return cls(uuid4().hex, socket.gethostname(), os.getpid())

    @classmethod
    def parse(cls, text: str) -> Holder:
        instance, pid, host = text.split(":", 2)
        return cls(instance, host, int(pid))

    def __str__(self) -> str:
        return f"{self.instance}:{self.pid}:{self.host}"

    @property
    def described(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True, slots=True)
class Fence:
    """What a write must show: the run, and the epoch in which it was taken."""

    run_key: int
    run_id: str
    epoch: int
