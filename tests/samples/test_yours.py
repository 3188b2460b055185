"""Samples that are for your tests: the storage passes the shipped contract, the test file passes under pytest."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepwell.testing import CheckpointStorageContract
from tests.samples.conftest import SAMPLES


def sample(name: str) -> Any:
    """The module of a sample, which no import statement can name."""
    spec = importlib.util.spec_from_file_location(f"sample_{name}", SAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LogStorage = sample("41_storage_of_your_own").LogStorage


class TestTheStorageOfTheSample(CheckpointStorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Any:
        return LogStorage(tmp_path / "log.jsonl")


async def test_a_line_that_a_crash_cut_off_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"delete": "nothing"}\n{"save": {"checkpoint_id": "é')

    assert await LogStorage(path).list_checkpoint_ids() == []
    assert path.read_text("utf-8") == '{"delete": "nothing"}\n'


def test_the_sample_test_file_passes(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"),
            *("-c", os.devnull, "--rootdir", str(tmp_path), str(SAMPLES / "50_test_your_team.py")),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 passed" in done.stdout
