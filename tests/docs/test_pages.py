"""The documentation is true: its code runs and prints what it says, its commands and links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.docs.pages import Block, blocks_of, program_of, run_page

DOCS = REPOSITORY / "docs"
GENERATED = DOCS / "measured"
README, CONTRIBUTING = REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"
PAGES = [README, CONTRIBUTING, *(page for page in sorted(DOCS.rglob("*.md")) if GENERATED not in page.parents)]


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def named(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def python_of(page: Path) -> list[Block]:
    return [block for block in blocks_of(text_of(page)) if block.language == "python"]


# --- the harness can fail ---------------------------------------------------------------------------------------------

GOOD = """\
# A page

```python
x = 1
print(x + 1)  #> 2
```

and then, in the same process

```python
print(x + 2)
#> 3
```

```sh
make nothing
```
"""


def test_blocks_share_a_process_and_are_compared_one_by_one(tmp_path: Path) -> None:
    ran = run_page(GOOD, where=tmp_path)

    assert (ran.status, ran.errors) == (0, "")
    assert ran.printed == {3: ["2"], 10: ["3"]}
    assert [block.promised for block in blocks_of(GOOD)] == [["2"], ["3"], []]


def test_the_program_has_the_line_numbers_of_the_page(tmp_path: Path) -> None:
    ran = run_page("# Title\n\n```python\nx = 1\nx / 0\n```\n", where=tmp_path)

    assert ran.status == 1
    assert "line 5" in ran.errors


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        pytest.param("import warnings; warnings.warn('old')", "UserWarning", id="a warning"),
        pytest.param("import socket; socket.create_connection(('192.0.2.1', 9))", "may not leave", id="a connection"),
        pytest.param("import socket; socket.gethostbyname; socket.getaddrinfo('example.org', 80)", "may not leave",
                     id="a look-up"),
        pytest.param("import asyncio\nfrom stepwell import OpenAIChatClient\n"
                     "asyncio.run(OpenAIChatClient('m', base_url='http://127.0.0.1:9').get_response('hi'))",
                     "RealModelForbidden", id="a real model"),
    ],
)  # fmt: skip
def test_what_a_page_must_not_do_is_noticed(code: str, complaint: str, tmp_path: Path) -> None:
    ran = run_page(f"```python\n{code}\n```\n", where=tmp_path)

    assert ran.status != 0
    assert complaint in ran.errors


# --- the pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if python_of(page)], ids=named)
def test_the_code_of_a_page_runs_and_prints_what_it_says(page: Path, tmp_path: Path) -> None:
    ran = run_page(text_of(page), where=tmp_path, name=page.stem.replace("-", "_").lower())

    assert ran.status == 0, ran.errors
    assert ran.printed == {block.line: block.promised for block in python_of(page)}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_block_of_a_page_escapes_the_tests(page: Path) -> None:
    """An indented or misspelt fence would be shown as code and never run."""
    fences = re.findall(r"^(\s*)(`{3,}|~{3,})\s*(\w*)", text_of(page), flags=re.MULTILINE)
    odd = [fence for fence in fences if fence[0].strip("\n") or fence[1] != "```" or fence[2] in ("py", "python3")]

    assert odd == []
    assert len(fences) == 2 * len(blocks_of(text_of(page)))


def test_the_team_of_the_readme_fits_into_25_lines() -> None:
    [team] = python_of(README)

    assert len(team.code.splitlines()) <= 25


def test_every_how_to_shows_code() -> None:
    without = [named(page) for page in (DOCS / "how-to").glob("[!i]*.md") if not blocks_of(text_of(page))]

    assert without == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_make_target_a_page_names_exists(page: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    said = set(re.findall(r"(?:`|^)make (?:[A-Z]+=\S+ )*([a-z-]+)", text_of(page), flags=re.MULTILINE))

    assert said - targets == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_file_of_the_repository_a_page_names_exists(page: Path) -> None:
    pattern = r"`((?:stepwell|tests|samples|benchmarks|docs|scripts)/[\w./-]+)`"
    said = set(re.findall(pattern, text_of(page)))
    # What a command writes, and is not in a fresh clone.
    written = {name for name in said if name.startswith("benchmarks/results")}

    assert {name for name in said - written if not (REPOSITORY / name).exists()} == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_local_link_leads_somewhere(page: Path) -> None:
    """mkdocs looks at the links of docs/ as well; the README is read elsewhere."""
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[\w.-]*)?\)", text_of(page))
    local = [target for target in targets if "://" not in target]

    assert [target for target in local if not (page.parent / target).exists()] == []


def test_a_programs_lines_stay_where_they_are() -> None:
    assert program_of(GOOD).splitlines()[3:5] == ["x = 1", "print(x + 1)  #> 2"]
