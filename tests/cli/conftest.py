"""The command line, as a user has it: a folder with programs in it, and `stepwell` called there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pexpect
import pytest
from typer.testing import CliRunner

from tests.cli.programs import PROGRAMS, write_programs

PATIENCE = 60


@dataclass(frozen=True)
class Told:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Stepwell:
    """`stepwell` in this process, for all that needs no signals and no terminal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store: str | None = None
        self._processes: list[subprocess.Popen[str]] = []
        self._terminals: list[pexpect.spawn[str]] = []

    def __call__(self, *words: str, store: str | None = None, env: dict[str, str] | None = None) -> Told:
        from stepwell.cli.app import app

        named = store or self.store
        words = (*words, *(["--store", named] if named and "--help" not in words else []))
        result = CliRunner().invoke(app, list(words), env=env or {})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Told(result.exit_code, result.stdout, result.stderr)

    def process(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """`stepwell` in a process of its own."""
        command = [sys.executable, "-m", "stepwell.cli", *words]
        environment = {**os.environ, "NO_COLOR": "1", **env}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        )
        self._processes.append(process)
        return process

    def at_terminal(self, *words: str, **env: str) -> pexpect.spawn[str]:
        """`stepwell` in front of somebody."""
        environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", **env}
        environment.pop("EDITOR", None)
        environment.pop("VISUAL", None)
        terminal = pexpect.spawn(
            sys.executable,
            ["-m", "stepwell.cli", *words],
            cwd=str(self.folder),
            env=environment,
            encoding="utf-8",
            timeout=PATIENCE,
            dimensions=(40, 100),
        )
        self._terminals.append(terminal)
        return terminal

    def leave(self) -> None:
        """End what a test that failed has left behind."""
        for terminal in self._terminals:
            terminal.close(force=True)
        for process in self._processes:
            process.kill()  # nothing happens to one that has ended
            process.wait(timeout=PATIENCE)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def stepwell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stepwell]:
    write_programs(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEPWELL_STORE", raising=False)
    path = list(sys.path)
    here = Stepwell(tmp_path)
    yield here
    here.leave()
    sys.path[:] = path
    for name in PROGRAMS:
        # The next test has files of its own under these names.
        sys.modules.pop(name.removesuffix(".py"), None)
