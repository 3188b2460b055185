"""What `make bench`, `make faults` and `make kills` write for the documentation, from made-up results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"


def row(contender: str, figure: float | None, ratio: float | None, target: float | None = None, note: str = "") -> Any:
    return {"contender": contender, "figure": figure, "ratio": ratio, "target": target, "note": note}


RESULTS: dict[str, Any] = {
    "when": "2030-02-03T04:05:06+00:00",
    "python": "3.99.1",
    "machine": "riscv64",
    "system": "Linux",
    "cpus": 3,
    "load": [0.25, 0.1, 0.1],
    "versions": {"stepwell": "9.8", "langgraph": "7.6"},
    "tables": [
        {
            "title": "durable superstep",
            "unit": "µs",
            "reference": "raw",
            "rows": [
                row("stepwell", 250.0, 2.5, 2.5),
                row("stepwell, in flight", 2515.6, 25.156, 2.5),
                row("raw", 100.0, 1.0),
                row("langgraph", None, None, note="no answer | within 300 s"),
                row("stepwell on paper", None, None, 2.5),
            ],
        }
    ],
}


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(BENCHMARKS / program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    results, docs = tmp_path / "results", tmp_path / "docs"
    results.mkdir()
    (results / "storage.json").write_text(json.dumps(RESULTS), encoding="utf-8")
    return results, docs


def test_a_benchmarks_tables_are_written_with_every_miss(places: tuple[Path, Path]) -> None:
    results, docs = places
    done = run("report.py", "--results", results, "--docs", docs)
    assert done.returncode == 0, done.stderr

    assert (docs / "measured" / "storage.md").read_text(encoding="utf-8").splitlines() == [
        "*Measured 2030-02-03; Linux, riscv64, 3 processors, load 0.2 at the end; Python 3.99.1; "
        "stepwell 9.8, langgraph 7.6.*",
        "",
        "1 of 3 targets met.",
        "",
        "**durable superstep**",
        "",
        "|  | µs | × raw | target |  | remarks |",
        "| --- | ---: | ---: | --- | --- | --- |",
        "| **stepwell** | 250.0 | 2.50 | ≤ 2.5 | met |  |",
        "| **stepwell, in flight** | 2,516 | 25.16 | ≤ 2.5 | missed |  |",
        "| raw | 100.0 | 1.00 |  |  |  |",
        "| langgraph | – |  |  |  | no answer \\| within 300 s |",
        "| **stepwell on paper** | – |  | ≤ 2.5 | missed |  |",
    ]


def test_results_of_an_older_form_are_shown_too(places: tuple[Path, Path]) -> None:
    results, docs = places
    older = {key: RESULTS[key] for key in ("when", "python", "machine", "tables")}
    (results / "storage.json").write_text(json.dumps(older), encoding="utf-8")

    assert run("report.py", "--results", results, "--docs", docs).returncode == 0
    assert "*Measured 2030-02-03; riscv64; Python 3.99.1.*" in (docs / "measured" / "storage.md").read_text("utf-8")


def test_curves_without_a_program_to_draw_them_promise_no_picture(places: tuple[Path, Path]) -> None:
    results, docs = places
    drawable = {**RESULTS, "curves": {"stepwell": [30, [1.0, 2.0]]}, "bytes": {"stepwell": {"30": 9.0}}}
    (results / "storage.json").write_text(json.dumps(drawable), encoding="utf-8")

    assert run("report.py", "--results", results, "--docs", docs).returncode == 0
    shown = "images/growth.svg" in (docs / "measured" / "storage.md").read_text("utf-8")
    assert shown == (docs / "images" / "growth.svg").exists()


def test_without_results_there_is_nothing_to_write(tmp_path: Path) -> None:
    done = run("report.py", "--results", tmp_path, "--docs", tmp_path / "docs")

    assert done.returncode == 1
    assert "run the benchmarks first" in done.stderr
    assert not (tmp_path / "docs").exists()


@pytest.mark.parametrize(("status", "said"), [(0, "It ended well."), (3, "**It failed, with exit status 3.**")])
def test_what_a_program_prints_is_shown_and_kept_with_its_status(status: int, said: str, tmp_path: Path) -> None:
    page = tmp_path / "measured" / "kills.md"
    program = f"print('kills  lost'); print('   12     0'); raise SystemExit({status})"
    done = run("printed.py", page, sys.executable, "-c", program)

    assert (done.returncode, done.stdout) == (status, "kills  lost\n   12     0\n")
    written = page.read_text(encoding="utf-8")
    assert "```text\nkills  lost\n   12     0\n```\n" in written
    assert said in written
    assert written.startswith("*Measured 20")


def test_pages_that_show_measurements_speak_of_no_local_path() -> None:
    pages = sorted((REPOSITORY / "docs" / "measured").glob("*.md"))

    assert {page.stem for page in pages} >= {"engine", "storage", "magentic", "faults", "kills"}
    assert [page.name for page in pages if str(REPOSITORY) in page.read_text(encoding="utf-8")] == []
