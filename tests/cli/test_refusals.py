"""What can't be done is said in one sentence on stderr, with an exit code, without a traceback and without a trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Stepwell, Told

COMMANDS = ("demo", "run", "resume", "runs", "show", "review", "branch", "graph", "prune", "verify")


def refused(told: Told, *, code: int = 2) -> str:
    """The one sentence."""
    assert told.code == code, told
    assert told.out == ""
    assert "Traceback" not in told.err
    [sentence] = told.err.strip().splitlines()
    return sentence


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("nowhere.py:team", "there is no file 'nowhere.py'"),
        ("nowhere:team", "there is no module 'nowhere'"),
        ("team.py", "module:variable or file.py:variable"),
        ("team.py:", "module:variable or file.py:variable"),
        ("team.py:squad", "there is no 'squad' in it; it has team"),
        ("shop.py:not_a_workflow", "is an int, not a workflow"),
        ("shop.py:returns_a_text", "returned a str, not a workflow"),
        ("shop.py:wants_two", "takes first, second"),
        ("shop.py:breaks", "RuntimeError: the builder broke"),
        ("shop.py:Order", "takes item, euros"),
        ("broken.py:team", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("broken:team", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("unreadable.py:team", "SyntaxError"),
        ("json.py:team", "there is no file"),
    ],
)
@pytest.mark.parametrize("command", ["run", "graph"])
def test_a_target_that_is_no_workflow(stepwell: Stepwell, command: str, target: str, sentence: str) -> None:
    words = [command, target, *(["hello"] if command == "run" else [])]
    assert sentence in refused(stepwell(*words))


def test_a_file_named_like_a_module_in_use_is_refused_by_name(stepwell: Stepwell) -> None:
    Path("json.py").write_text("team = 1\n")
    assert "rename it" in refused(stepwell("graph", "json.py:team"))


@pytest.mark.parametrize(
    "words",
    [
        ("runs",),
        ("show", "r"),
        ("review",),
        ("verify",),
        ("prune", "--finished"),
        ("resume", "team.py:team", "r"),
        ("branch", "team.py:team", "c"),
    ],
    ids=lambda words: words[0],
)
def test_a_store_that_is_not_there_is_not_made(stepwell: Stepwell, words: tuple[str, ...]) -> None:
    before = sorted(Path().iterdir())
    assert "there is no store at .stepwell/runs.db" in refused(stepwell(*words))
    assert sorted(Path().iterdir()) == before


def test_a_store_of_another_kind_of_url_is_refused(stepwell: Stepwell) -> None:
    assert "postgres://" in refused(stepwell("runs", "--store", "mysql://localhost/x"))


def test_a_file_that_is_no_database_is_said_to_be_none(stepwell: Stepwell) -> None:
    assert "team.py" in refused(stepwell("runs", "--store", "team.py"), code=1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("show", "breif"), "there is no run 'breif' in this store; did you mean brief?"),
        (("review", "nothing"), "there is no run and no request 'nothing'"),
        (("review", "nothing", "--approve"), "there is no run and no request 'nothing'"),
        (("resume", "team.py:team", "breif"), "did you mean brief?"),
        (("branch", "team.py:team", "0000"), "0000"),
        (("branch", "team.py:team", "../../etc/passwd"), "etc/passwd"),
        (("graph", "team.py:team", "--run", "breif"), "did you mean brief?"),
    ],
    ids=lambda words: " ".join(words[:2]) if isinstance(words, tuple) else "",
)
def test_an_id_that_is_not_there(stepwell: Stepwell, words: tuple[str, ...], sentence: str) -> None:
    assert stepwell("run", "team.py:team", "Hello.", "--run-id", "brief").code == 3
    assert sentence in refused(stepwell(*words))


@pytest.mark.parametrize(
    "setting", ["count", "=1", "count=one", "a..b=1", "_executor_state=1", "count.inner=1"], ids=str
)
def test_a_change_of_state_that_makes_no_sense(stepwell: Stepwell, setting: str) -> None:
    stepwell("run", "counting.py:workflow", "2", "--json-message", "--run-id", "c1")
    newest = stepwell("show", "c1", "--json").json["timeline"][-1]["checkpoint_id"]
    refused(stepwell("branch", "counting.py:workflow", newest, "--set", setting))
    assert len(stepwell("runs", "--json").json["runs"]) == 1


def test_a_run_needs_a_message_or_an_id(stepwell: Stepwell) -> None:
    told = stepwell("run", "team.py:team")
    assert told.code == 2
    assert "a message is needed" in told.err


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_an_example(stepwell: Stepwell, command: str) -> None:
    told = stepwell(command, "--help")
    assert told.code == 0
    assert f"stepwell {command}" in told.out.partition("Example")[2]


def test_without_the_extra_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; from stepwell.cli import main; main()"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert told.returncode == 2
    assert told.stderr == "stepwell: the command line needs typer; pip install 'stepwell[cli]'\n"


def test_the_command_line_imports_no_model_client_before_it_is_needed() -> None:
    code = (
        "import sys; from stepwell.cli.app import app\n"
        "print([name for name in ('openai', 'pydantic', 'psycopg', 'stepwell.agents') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout == "[]\n"
