"""Samples as people run them: each in a process of its own, in a folder of its own, offline."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "samples"
REAL_MODELS = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL")

Start = Callable[..., subprocess.CompletedProcess[str]]
Run = Callable[..., str]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Run a sample, named by its number, to whatever end it comes to."""

    def started(number: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        [sample] = SAMPLES.glob(f"{number}_*.py")
        environment = {name: value for name, value in os.environ.items() if name not in REAL_MODELS}
        return subprocess.run(
            [sys.executable, "-W", "error", str(sample), *arguments],
            cwd=tmp_path,
            env={**environment, "STEPWELL_STORE": str(tmp_path / "runs.db")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    return started


@pytest.fixture
def run(start: Start) -> Run:
    """Run a sample to its good end, and give back what it printed."""

    def ran(number: str, *arguments: str) -> str:
        done = start(number, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return ran
