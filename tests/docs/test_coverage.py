"""Nothing public is missing from the documentation, and the site is whole and self-contained."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell import errors
from tests.conftest import REPOSITORY

DOCS = REPOSITORY / "docs"
ROOMS = ("workflows", "checkpointing", "agents", "orchestrations", "testing")


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_troubleshooting_has_a_heading_for_every_error_and_for_nothing_else() -> None:
    headings = re.findall(r"^### (\w+)$", text_of("troubleshooting.md"), flags=re.MULTILINE)

    assert len(headings) == len(set(headings))
    assert set(headings) == set(errors.__all__)


def test_every_error_of_the_module_is_public() -> None:
    defined = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }

    assert defined == set(errors.__all__)


@pytest.mark.parametrize("room", ROOMS)
def test_the_reference_of_a_room_has_each_of_its_names(room: str) -> None:
    names = set(importlib.import_module(f"stepwell.{room}").__all__)
    shown = set(re.findall(rf"^::: stepwell\.{room}\.(\w+)$", text_of(f"reference/{room}.md"), flags=re.MULTILINE))

    assert names - shown - set(errors.__all__) == set(), "not in the reference"
    assert shown - names == set(), "in the reference, and not there"


def test_the_promises_of_the_readme_are_those_of_the_page() -> None:
    rows = r"^\| (\d+) \| \**([^|*]+?)\** \|"
    readme = re.findall(rows, (REPOSITORY / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    page = re.findall(rows, text_of("promises.md"), flags=re.MULTILINE)

    assert len(readme) == 10
    assert readme == page


def test_the_pictures_are_what_their_program_draws(tmp_path: Path) -> None:
    program = DOCS / "images" / "diagrams.py"
    copy = tmp_path / "diagrams.py"
    copy.write_text(program.read_text(encoding="utf-8"), encoding="utf-8")
    subprocess.run([sys.executable, str(copy)], check=True, timeout=60)
    drawn = sorted(tmp_path.glob("*.svg"))

    assert len(drawn) == 5
    assert [d.name for d in drawn if d.read_bytes() != (program.parent / d.name).read_bytes()] == []


# --- the site ---------------------------------------------------------------------------------------------------------


def built(where: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Not `--quiet`: mkdocs counts only the warnings that it prints."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(where), *options],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it: a warning is an error."""
    where = tmp_path_factory.mktemp("site")
    done = built(where)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return where


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Here\n\n[there](there.md)\n", encoding="utf-8")
    config = tmp_path / "mkdocs.yml"
    config.write_text(
        f"INHERIT: {REPOSITORY / 'mkdocs.yml'}\ndocs_dir: {tmp_path / 'docs'}\nextra_css: []\nnav: [index.md]\n",
        encoding="utf-8",
    )
    done = built(tmp_path / "site", "--config-file", str(config))

    assert done.returncode != 0
    assert "there.md" in done.stderr


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loading = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\s>]*"
        r"|<link\b(?=[^>]*rel=[\"']?(?:stylesheet|preconnect|preload|icon))[^>]*href=[\"']?(?:https?:)?//[^\s>]*"
    )
    pages = sorted(site.rglob("*.html"))
    found = {page.name: loading.findall(page.read_text(encoding="utf-8")) for page in pages}
    styles = [
        sheet.name
        for sheet in site.rglob("*.css")
        if re.search(r"url\([\"']?https?:|@import", sheet.read_text("utf-8"))
    ]

    # The theme's script fetches mermaid for a page that has such a diagram, and for no other.
    diagrams = [page.name for page in pages if 'class="mermaid"' in page.read_text(encoding="utf-8")]

    assert len(pages) > 30
    assert diagrams == []
    assert {name: links for name, links in found.items() if links} == {}
    assert styles == []


def test_the_measured_tables_are_part_of_their_pages(site: Path) -> None:
    for page in ("comparison.html", "promises.html"):
        assert "--8&lt;--" not in (site / page).read_text(encoding="utf-8")


def test_the_reference_shows_docstrings(site: Path) -> None:
    page = (site / "reference" / "workflows.html").read_text(encoding="utf-8")

    assert "Start, resume, answer or continue a run." in page
