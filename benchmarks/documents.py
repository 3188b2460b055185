"""What the documentation shows of measurements, as text: tables, and under which conditions they came about. Pure but
for `conditions`, which looks at the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

PEERS = (
    "agent-framework-core",
    "agent-framework-orchestrations",
    "autogen-agentchat",
    "dbos",
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "pydantic-graph",
)


def conditions() -> dict[str, Any]:
    """The class of machine and the versions of everything that is installed here and compared."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "cpus": os.cpu_count(),
        "versions": {name: version for name in ("stepwell", *PEERS) if (version := _version(name))},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def told(document: Mapping[str, Any]) -> str:
    """One paragraph that says when, on what and with which versions; what an older document lacks is left out."""
    machine = [str(document[key]) for key in ("system", "machine") if document.get(key)]
    if document.get("cpus"):
        machine.append(f"{document['cpus']} processors")
    if document.get("load"):
        machine.append(f"load {document['load'][0]:.1f} at the end")
    versions = [f"{name} {version}" for name, version in (document.get("versions") or {}).items()]
    parts = [
        f"Measured {str(document['when'])[:10]}",
        ", ".join(machine),
        f"Python {document['python']}" if document.get("python") else "",
        ", ".join(versions),
    ]
    return "*" + "; ".join(part for part in parts if part) + ".*"


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """A Markdown table; the columns in `numbers` are aligned to the right."""
    rule = ["---:" if index in numbers else "---" for index in range(len(headings))]
    lines = [list(headings), rule, *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
