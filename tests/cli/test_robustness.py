"""Programs that end themselves, packages, passwords, streams that are closed or full, and texts that are too much."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.cli.json_texts import parsed_json
from stepwell.cli.passwords import masked
from stepwell.cli.stores import open_storage
from tests.cli.conftest import PATIENCE, Stepwell

COUNT = ("run", "counting.py:workflow", "2", "--json-message", "--run-id", "c1")
DEEP = "[" * 5000 + "]" * 5000

QUITTER = """
import sys
from stepwell import Executor, WorkflowBuilder, WorkflowContext, handler


class Quitter(Executor):
    @handler
    async def take(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        if text == "Stay.":
            await ctx.yield_output(text)
        else:
            sys.exit(0)


workflow = WorkflowBuilder(name="quitting", start_executor=Quitter("quitter")).build()


def build():
    sys.exit(0)


async def build_async():
    sys.exit(0)
"""

PACKAGED = """
from stepwell import Executor, WorkflowBuilder, WorkflowContext, handler


class Echo(Executor):
    @handler
    async def take(self, text: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(text)


def build():
    return WorkflowBuilder(name="echo", start_executor=Echo("echo")).build()
"""


# --- programs that end themselves -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", ["quits_at_once:workflow", "quits_at_once.py:workflow", "quitter.py:build", "quitter.py:build_async"]
)
def test_a_target_that_ends_the_program_can_not_be_used(
    stepwell: Stepwell, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.delitem(sys.modules, "quitter", raising=False)
    Path("quits_at_once.py").write_text("import sys\nsys.exit(0)\n")
    Path("quitter.py").write_text(QUITTER)
    told = stepwell("run", target, "Go.")
    assert (told.code, told.out) == (2, "")
    assert "SystemExit: 0" in told.err


def test_a_handler_that_ends_the_program_has_failed_and_its_run_can_be_resumed(stepwell: Stepwell) -> None:
    Path("quitter.py").write_text(QUITTER)
    process = stepwell.process("run", "quitter.py:workflow", "Go.", "--run-id", "q")
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (1, "")
    assert "the program ended itself with sys.exit(0)" in err
    assert "resume quitter.py:workflow q" in err
    assert "Traceback" not in err
    [run] = stepwell("runs", "--json").json["runs"]
    assert run["held_by"] is None


# --- packages ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(stepwell: Stepwell) -> Stepwell:
    """A package that imports from the very file that is named."""
    folder = stepwell.folder / "src" / "echoing"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from .team import build\n")
    (folder / "team.py").write_text(PACKAGED)
    return stepwell


@pytest.mark.parametrize("target", ["src/echoing/team.py:build", "src/echoing/__init__.py:build"])
def test_a_file_in_a_package_that_imports_it(package: Stepwell, target: str) -> None:
    process = package.process("run", target, "Hello.")
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, "Hello.\n"), err


def test_a_file_in_a_package_whose_name_is_taken_is_refused(stepwell: Stepwell) -> None:
    folder = stepwell.folder / "json"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "decoder.py").write_text("team = 1\n")
    told = stepwell("graph", "json/decoder.py:team")
    assert told.code == 2
    assert "rename it" in told.err


# --- passwords --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "shown"),
    [
        ("postgres://ada:secret@db/runs", "postgres://ada:***@db/runs"),
        ("postgres://ada@db/runs", "postgres://ada@db/runs"),
        ("postgresql://u@h/db?password=secret", "postgresql://u@h/db?password=***"),
        (
            "postgresql://u@h/db?sslmode=require&sslpassword=secret",
            "postgresql://u@h/db?sslmode=require&sslpassword=***",
        ),
        ("postgresql://u@h:5/db?password=sec@ret&x=1", "postgresql://u@h:5/db?password=***&x=1"),
        ("postgresql://u@h/db?pass%77ord=secret", "postgresql://u@h/db?pass%77ord=***"),
        ("postgresql://u:secret@h/db?password=secret", "postgresql://u:***@h/db?password=***"),
        ("host=h password=secret dbname=d", "host=h password=*** dbname=d"),
        (r"host=h password = 'sec\' ret' dbname=d", "host=h password = *** dbname=d"),
        (r"password=sec\ ret sslpassword='secret", "password=*** sslpassword=***"),
        ("a/path.db", "a/path.db"),
    ],
)
def test_no_password_is_shown(store: str, shown: str) -> None:
    assert masked(store) == shown


def test_a_dsn_in_words_is_postgres() -> None:
    storage = open_storage("host=db.example user=ada password=secret dbname=runs", create=True)
    assert repr(storage) == "PostgresCheckpointStorage(postgres ada@db.example/runs schema stepwell)"


def test_a_dsn_in_words_that_can_not_be_understood_is_no_file_name(stepwell: Stepwell) -> None:
    before = sorted(Path().iterdir())
    told = stepwell(*COUNT, store="user=u passwort=x password=secret")
    assert told.code == 2
    assert "password=***" in told.err
    assert "secret" not in told.err
    assert sorted(Path().iterdir()) == before


def test_a_store_file_with_such_a_name_is_found(stepwell: Stepwell) -> None:
    assert stepwell(*COUNT, store="./year=2026.db").code == 0
    assert stepwell("show", "c1", store="year=2026.db").code == 0


# --- streams ----------------------------------------------------------------------------------------------------------


def in_a_shell(stepwell: Stepwell, words: str) -> subprocess.CompletedProcess[str]:
    command = f'exec "{sys.executable}" -m stepwell.cli {words}'
    return subprocess.run(
        ["/bin/sh", "-c", command], cwd=stepwell.folder, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_without_stdout_nothing_is_begun(stepwell: Stepwell) -> None:
    told = in_a_shell(stepwell, "run counting.py:workflow 2 --json-message >&-")
    assert told.returncode == 1
    assert told.stderr.startswith("stepwell: stdout is closed")
    assert len(told.stderr.splitlines()) == 1
    assert not Path(".stepwell").exists()


def test_without_stdin_and_stderr_it_works_all_the_same(stepwell: Stepwell) -> None:
    told = in_a_shell(stepwell, "run counting.py:workflow 2 --json-message <&- 2>&-")
    assert (told.returncode, told.stdout) == (0, "2\n")


def test_without_any_stream_it_fails_silently(stepwell: Stepwell) -> None:
    assert in_a_shell(stepwell, "run counting.py:workflow 2 --json-message <&- >&- 2>&-").returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", ["verify", "runs --json", "prune --finished --dry-run"])
def test_output_that_can_not_be_written_is_a_failure_in_one_sentence(stepwell: Stepwell, words: str) -> None:
    stepwell(*COUNT)
    told = in_a_shell(stepwell, f"{words} > /dev/full")
    assert told.returncode == 1
    [sentence] = told.stderr.splitlines()
    assert "No space left on device" in sentence


# --- texts ------------------------------------------------------------------------------------------------------------


def test_a_traceback_shows_what_it_disarms_and_keeps_its_lines(stepwell: Stepwell) -> None:
    told = stepwell("run", "hostile.py:workflow", "fail \x1b[31mred\x07", "--traceback")
    assert told.code == 1
    assert "Traceback (most recent call last):\n  File" in told.err
    assert r"\x1b[31mred\x07" in told.err
    assert not {"\x1b", "\x07"}.intersection(told.err)


def test_json_is_as_deep_as_a_checkpoint_can_be_and_no_deeper() -> None:
    assert parsed_json("[" * 64 + "]" * 64)
    assert parsed_json("3") == 3
    for text in ("[" * 65 + "]" * 65, '{"a":' * 65 + "1" + "}" * 65, DEEP):
        with pytest.raises(ValueError, match="levels deep"):
            parsed_json(text)


def test_json_that_is_too_deep_is_a_usage_error(stepwell: Stepwell) -> None:
    stepwell(*COUNT)
    first = stepwell("show", "c1", "--json").json["timeline"][0]["checkpoint_id"]
    stepwell("run", "team.py:team", "What?", "--run-id", "t1")
    path = ".".join("a" * 2000)
    for words in (
        ("run", "counting.py:workflow", DEEP, "--json-message"),
        ("branch", "counting.py:workflow", first, "--set", f"x={DEEP}"),
        ("branch", "counting.py:workflow", first, "--set", f"{path}=1"),
        ("review", "t1", "--answer", DEEP),
    ):
        told = stepwell(*words)
        assert told.code == 2, words[0]
        [sentence] = told.err.splitlines()
        assert len(sentence) < 300


def test_an_age_before_all_time_is_a_usage_error(stepwell: Stepwell) -> None:
    told = stepwell("prune", "--older-than", "999999w")
    assert told.code == 2
    assert "999999w" in told.err


# --- Ctrl-C before the first command ----------------------------------------------------------------------------------

INTERRUPTED_WHILE_IMPORTING = """
import signal, sys
from stepwell.cli import main


class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "stepwell.cli.app":
            signal.raise_signal(signal.SIGINT)


sys.meta_path.insert(0, CtrlC())
main()
"""


def test_ctrl_c_while_it_is_being_imported_ends_it_quietly() -> None:
    code = [sys.executable, "-c", INTERRUPTED_WHILE_IMPORTING]
    told = subprocess.run(code, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (told.returncode, told.stdout, told.stderr) == (130, "", "")
