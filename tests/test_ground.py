"""The package itself: what importing it costs, what it offers and that the guards guard."""

from __future__ import annotations

import ast
import importlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from blockbuster import BlockingError

from tests.conftest import LIBRARY, REPOSITORY, LeftTheMachine, departures

ROOMS = [f"stepwell.{path.parent.name}" for path in sorted(Path(LIBRARY).glob("*/__init__.py"))]


def python(*arguments: str, cwd: Path | None = None) -> str:
    """What a fresh interpreter prints when it is started with these arguments."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(REPOSITORY)
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- importing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", ["openai", "httpx2", "psycopg", "typer", "rich", "pytest", "hypothesis"])
def test_importing_stepwell_does_not_import(absent: str) -> None:
    assert python("-c", f"import stepwell, sys; print({absent!r} in sys.modules)").strip() == "False"


def import_seconds(statement: str) -> float:
    """Processor time of one import in a fresh interpreter; time that other processes take does not count."""
    return float(python("-c", f"import time; t = time.process_time(); {statement}; print(time.process_time() - t)"))


def test_importing_stepwell_costs_at_most_three_and_a_half_times_what_it_stands_on() -> None:
    ours, base = float("inf"), float("inf")
    for attempt in range(20):  # noise only ever adds, so the best of several is the cost; more of them if it looks high
        base = min(base, import_seconds("import asyncio, sqlite3, json"))
        ours = min(ours, import_seconds("import stepwell"))
        if attempt >= 4 and ours <= 3.5 * base:
            return
    pytest.fail(f"import stepwell takes {ours * 1000:.0f} ms, {ours / base:.2f} times asyncio, sqlite3 and json")


# --- the public surface -----------------------------------------------------------------------------------------------


def offered(module: ModuleType) -> set[str]:
    """The public names of our own that are really there: no submodules, nothing a module imported for itself."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", "stepwell").startswith("stepwell")
        and name not in ("TYPE_CHECKING", "annotations")
    }


@pytest.mark.parametrize("name", ["stepwell", *ROOMS])
def test_all_is_what_can_be_imported(name: str) -> None:
    module = importlib.import_module(name)
    listed = list(module.__all__)

    assert len(listed) == len(set(listed)), "a name is listed twice"
    assert [entry for entry in listed if not hasattr(module, entry)] == [], "listed, but not there"
    assert offered(module) - set(listed) == set(), "there, but not listed"


def test_every_name_of_stepwell_is_the_same_object_in_its_room() -> None:
    stepwell = importlib.import_module("stepwell")
    homes = [importlib.import_module(name) for name in [*ROOMS, "stepwell.errors", "stepwell.retry"]]
    for name in stepwell.__all__:
        value = getattr(stepwell, name)
        assert name.startswith("__") or any(getattr(home, name, None) is value for home in homes), name


def test_stepwell_itself_has_no_code_but_imports() -> None:
    tree = ast.parse(Path(LIBRARY, "__init__.py").read_text(encoding="utf-8"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.AsyncFunctionDef | ast.For)]


# --- the guards -------------------------------------------------------------------------------------------------------

BLOCKING = "import time\n\ndef wait() -> None:\n    time.sleep(0)\n"


def compiled_as(filename: str) -> dict[str, object]:
    names: dict[str, object] = {}
    exec(compile(BLOCKING, filename, "exec"), names)
    return names


async def test_a_blocking_call_of_the_library_on_the_event_loop_is_caught() -> None:
    wait = compiled_as(f"{LIBRARY}workflows/runner.py")["wait"]
    assert callable(wait)
    with pytest.raises(BlockingError):
        wait()


async def test_a_blocking_call_of_a_test_is_its_own_business() -> None:
    wait = compiled_as(__file__)["wait"]
    assert callable(wait)
    wait()


def test_a_socket_to_another_machine_is_refused() -> None:
    with socket.socket() as connection, pytest.raises(LeftTheMachine):
        connection.connect(("192.0.2.1", 9))
    assert departures == ["socket.connect ('192.0.2.1', 9)"]
    departures.clear()
