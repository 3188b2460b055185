"""The command line. It needs the extra `cli`; without it, it says so."""

from __future__ import annotations

import importlib.util
import sys

from stepwell.cli import exits, streams

__all__ = ["main"]

_NEEDS = ("typer", "rich")


def main() -> None:
    """What `stepwell` runs."""
    try:
        streams.open_streams()
        sys.exit(streams.flushed(_exit_code()))
    except KeyboardInterrupt:
        sys.exit(exits.INTERRUPTED)  # before there was anything to interrupt, or after all was said


def _exit_code() -> int:
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        print(f"stepwell: the command line needs {' and '.join(missing)}; pip install 'stepwell[cli]'", file=sys.stderr)
        return exits.USAGE
    from stepwell.cli.app import app

    try:
        app(prog_name="stepwell")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else exits.DONE
    except OSError as error:
        return streams.unwritable(error)  # commands report whatever goes wrong in their work; what is left is printing
    return exits.DONE
