"""The commands, put together. What a command needs is imported when it is used, so that `stepwell` answers at once."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from stepwell.cli.looking import graph, runs, show, verify
from stepwell.cli.pruning import prune
from stepwell.cli.reviewing import review
from stepwell.cli.running import branch, resume, run

app = typer.Typer(
    name="stepwell",
    help="Durable teams of agents: run them, watch them, answer them, and go on where they were.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 waiting for a person, 130 interrupted (resumable).",
)


def _version(asked: bool) -> None:
    if asked:
        from stepwell import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def stepwell(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Durable teams of agents: run them, watch them, answer them, and go on where they were.

    \b
    Example:
      stepwell demo
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that can't show a letter gets its code, not a crash.
            stream.reconfigure(errors="backslashreplace")


def _register() -> None:
    from stepwell.cli.demo.command import demo

    app.command("demo")(demo)
    for command in (run, resume, runs, show, review, branch, graph, prune, verify):
        app.command(command.__name__)(command)


_register()
