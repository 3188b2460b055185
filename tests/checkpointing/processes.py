"""Scripts that run in processes of their own, on whichever store their command line names."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap

from tests.faults.children import REPOSITORY

WORKER = """
    import asyncio, sys
    from stepwell.testing.storage import call, draft, opened
    from tests.faults.backends import open_store

    async def work(storage, name):
        log = await opened(storage, name)
        for n in range(10):
            await log.record_call(call(f"{name} {n}"), supersedes=())
            await log.save(draft(n, {"name": name, "n": n}, final=n == 9))

    async def main():
        async with open_store(sys.argv[1]) as storage:
            await asyncio.gather(*[work(storage, f"run-{sys.argv[2]}-{n}") for n in range(5)])

    asyncio.run(main())
"""
"""Finishes five runs at once, named after its argument."""


def child(script: str, *args: object) -> str:
    """Run a script to its end; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- processes that are told what to do -------------------------------------------------------------------------------

PROLOGUE = """
import asyncio, os, subprocess, sys, time
from stepwell.errors import LeaseError
from stepwell.testing.storage import call, draft, opened
from tests.faults.backends import open_store

store = sys.argv[1]
lease = float(sys.argv[2])

def say(text):
    print(text, flush=True)

def hear():
    return sys.stdin.readline().strip()
"""

HOLDER = """
async def main():
    async with open_store(store, lease_seconds=lease) as storage:
        log = await opened(storage)
        await log.record_call(call("asked"), supersedes=())
        say("holding")
        n = 1
        while await asyncio.to_thread(hear):
            try:
                await log.save(draft(n))
                say("saved")
            except LeaseError as error:
                say(f"{type(error).__name__}: {error}")
            n += 1
        await log.release()
    say("released")

asyncio.run(main())
"""
"""Holds `run-1`, and saves a checkpoint whenever it is told something."""


class Process:
    """A child that is told what to do line by line, and tells what it did."""

    def __init__(self, script: str, store: str, lease: float = 30.0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROLOGUE + textwrap.dedent(script), store, str(lease)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        self.pid = self._process.pid

    async def hear(self) -> str:
        assert self._process.stdout is not None
        return (await asyncio.to_thread(self._process.stdout.readline)).strip()

    async def say(self, text: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()
        return await self.hear()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Processes:
    """Those that a test has started at one store."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._started: list[Process] = []

    def start(self, script: str = HOLDER, lease: float = 30.0) -> Process:
        self._started.append(Process(script, self._store, lease))
        return self._started[-1]

    async def holding(self, lease: float = 30.0) -> Process:
        process = self.start(HOLDER, lease)
        assert await process.hear() == "holding"
        return process

    def end(self) -> None:
        for process in self._started:
            process.end()
