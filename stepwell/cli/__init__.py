"""The command line. It needs the extra `cli`; without it, it says so."""

from __future__ import annotations

import importlib.util
import sys

__all__ = ["main"]

_NEEDS = ("typer", "rich")


def main() -> None:
    """What `stepwell` runs."""
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        print(f"stepwell: the command line needs {' and '.join(missing)}; pip install 'stepwell[cli]'", file=sys.stderr)
        sys.exit(2)
    from stepwell.cli.app import app

    app(prog_name="stepwell")
