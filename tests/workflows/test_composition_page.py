"""docs/composition.md: its code runs, and its pictures are there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "composition.md"


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    script = tmp_path / "example.py"
    script.write_text(code, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(script)]
    environment = {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"# > (.*)", code)


def test_the_pictures_of_the_page_are_there() -> None:
    shown = re.findall(r"!\[[^]]*\]\(([^)]*)\)", PAGE.read_text(encoding="utf-8"))

    assert len(shown) == 4
    assert [name for name in shown if not (PAGE.parent / name).is_file()] == []
