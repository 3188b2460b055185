"""`scripts/fresh-clone` runs the README's two commands on what is committed, whatever kind of checkout it stands in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

MAKEFILE = """\
demo:
\t@echo "demo YES=$(YES)" && cat word && ls
test:
\t@echo tests in $(CURDIR) && test "$$(cat word)" != broken
"""

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(where: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=tester", "-c", "user.email=tester@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(where), *identity, *arguments], check=True, capture_output=True)


def commit(where: Path, word: str) -> None:
    (where / "word").write_text(f"{word}\n", encoding="utf-8")
    git(where, "add", "--all")
    git(where, "commit", "--message", word)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project with the same script and two such commands."""
    where = tmp_path / "project"
    (where / "scripts").mkdir(parents=True)
    shutil.copy(REPOSITORY / "scripts" / "fresh-clone", where / "scripts")
    (where / "Makefile").write_text(MAKEFILE, encoding="utf-8")
    (where / "word").write_text("uncommitted\n", encoding="utf-8")
    return where


def fresh_clone(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    scratch = project.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    return subprocess.run(
        [str(project / "scripts" / "fresh-clone"), *arguments],
        env={**os.environ, "TMPDIR": str(scratch), "GIT_DIR": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def committed(project: Path) -> None:
    git(project, "init", "--initial-branch", "main")
    commit(project, "first")
    commit(project, "second")


def test_what_is_committed_is_cloned_and_both_commands_run(project: Path) -> None:
    committed(project)
    (project / "word").write_text("changed since\n", encoding="utf-8")
    done = fresh_clone(project)

    assert done.returncode == 0, done.stderr
    assert re.search(r"fresh clone of \w+\ndemo YES=1\nsecond\n", done.stdout)
    assert "a fresh clone runs both commands" in done.stdout
    assert list((project.parent / "scratch").iterdir()) == [], "the clone is removed"


def test_a_detached_head_is_cloned_as_it_stands(project: Path) -> None:
    committed(project)
    git(project, "checkout", "--detach", "HEAD~1")
    commit(project, "on no branch")

    assert "demo YES=1\non no branch\n" in fresh_clone(project).stdout


@pytest.mark.parametrize("repository", [False, True], ids=["no repository", "no commit yet"])
def test_without_a_commit_the_files_are_copied_and_no_caches(project: Path, repository: bool) -> None:
    if repository:
        git(project, "init")
    (project / ".venv").mkdir()
    (project / "__pycache__").mkdir()
    done = fresh_clone(project)

    assert done.returncode == 0, done.stderr
    assert "demo YES=1\nuncommitted\n" in done.stdout
    assert "__pycache__" not in done.stdout


def test_a_repository_around_it_is_not_taken_for_its_own(project: Path) -> None:
    git(project.parent, "init")
    (project.parent / "other").write_text("x", encoding="utf-8")
    git(project.parent, "add", "other")
    git(project.parent, "commit", "--message", "around")

    assert "demo YES=1\nuncommitted\n" in fresh_clone(project).stdout


def test_a_command_that_fails_fails_it(project: Path) -> None:
    git(project, "init")
    commit(project, "broken")
    done = fresh_clone(project)

    assert done.returncode != 0
    assert "runs both commands" not in done.stdout
    assert list((project.parent / "scratch").iterdir()) == []


def test_it_can_be_kept_to_be_looked_at(project: Path) -> None:
    committed(project)
    fresh_clone(project, "--keep")

    [kept] = (project.parent / "scratch").iterdir()
    assert (kept / "stepwell" / "word").read_text(encoding="utf-8") == "second\n"
