"""Writes what the documentation shows of the benchmarks: `python benchmarks/report.py`, after they have run.

Reads `benchmarks/results/*.json`; writes `docs/measured/<name>.md` and, if there are curves and matplotlib is
installed, `docs/images/growth.svg`. Nothing is rounded in anybody's favour and no miss is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from documents import grid, told
from plot import picture

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
PICTURE = "growth.svg"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--docs", type=Path, default=DOCS)
    asked = parser.parse_args(arguments)
    found = sorted(asked.results.glob("*.json"))
    for path in found:
        document = json.loads(path.read_text(encoding="utf-8"))
        drawn = _draw(document, asked.docs / "images" / PICTURE)
        page = asked.docs / "measured" / path.with_suffix(".md").name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(page_of(document, drawn=drawn), encoding="utf-8")
        print(f"wrote {page}")
    if not found:
        print(f"there are no results in {asked.results}; run the benchmarks first", file=sys.stderr)
    return 0 if found else 1


def page_of(document: Mapping[str, Any], *, drawn: bool = False) -> str:
    """All tables of one benchmark, under the conditions they came about in."""
    missed = sum(verdict(row) == "missed" for table in document["tables"] for row in table["rows"])
    judged = sum(bool(verdict(row)) for table in document["tables"] for row in table["rows"])
    summary = f"{judged - missed} of {judged} targets met." if judged else "No target is judged here."
    parts = [told(document), summary, *(table_of(table) for table in document["tables"])]
    if drawn:
        parts.insert(2, f"![Time per superstep along a run, and bytes on disk](images/{PICTURE})")
    return "\n\n".join(parts) + "\n"


def table_of(table: Mapping[str, Any]) -> str:
    headings = ["", table["unit"], f"× {table['reference']}", "target", "", "remarks"]
    rows = [
        [
            f"**{row['contender']}**" if row["contender"].startswith("stepwell") else row["contender"],
            "–" if row["figure"] is None else figure(row["figure"]),
            "" if row["ratio"] is None else f"{row['ratio']:.2f}",
            "" if row["target"] is None else f"≤ {row['target']:g}",
            verdict(row),
            row["note"],
        ]
        for row in table["rows"]
    ]
    return f"**{table['title']}**\n\n" + grid(headings, rows, numbers=(1, 2))


def verdict(row: Mapping[str, Any]) -> str:
    """`met` or `missed` for a row with a target; one without a figure is missed."""
    if row["target"] is None:
        return ""
    return "met" if row["ratio"] is not None and row["ratio"] <= row["target"] else "missed"


def figure(value: float) -> str:
    return f"{value:,.{0 if value >= 1000 else 1 if value >= 10 else 2}f}"


def _draw(document: Mapping[str, Any], path: Path) -> bool:
    """Draw the growth curves of a document that has some; is there a picture to show?"""
    curves, sizes = document.get("curves"), document.get("bytes")
    if not curves or not sizes:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    supersteps = {name: (length, curve) for name, (length, curve) in curves.items()}
    by_length = {name: {int(length): size for length, size in lengths.items()} for name, lengths in sizes.items()}
    return picture(path, supersteps=supersteps, sizes=by_length) or path.exists()


if __name__ == "__main__":
    sys.exit(main())
