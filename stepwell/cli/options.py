"""The options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Target = Annotated[
    str,
    typer.Argument(help="A workflow or a function that builds one, as module:variable or file.py:variable."),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="PATH|URL",
        help="Where runs are kept: a file (SQLite), a directory (files) or a postgres:// URL. "
        "Default: $STEPWELL_STORE, or .stepwell/runs.db.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]
Traceback = Annotated[bool, typer.Option("--traceback", help="Show where an error came from.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Approve plans and tool calls without asking.")]
Audit = Annotated[bool, typer.Option("--audit", help="Keep each call's record, not only while it may be needed.")]
