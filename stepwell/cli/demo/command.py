"""`stepwell demo`: the command itself; what it does is imported when it is used."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from stepwell.cli import options


def demo(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve the plan without asking; so does YES=1.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Start another run, even if one could go on.")] = False,
    store: options.Store = None,
    traceback: options.Traceback = False,
) -> None:
    """Watch a researcher/writer team at work; kill it, run this again, and it goes on.

    The models are scripted and nothing leaves this machine, unless OPENAI_API_KEY or OPENAI_BASE_URL is set.

    \b
    Example:
      stepwell demo
    """
    from stepwell.cli.demo.performance import perform

    said_yes = yes or os.environ.get("YES", "") not in ("", "0")
    raise typer.Exit(perform(yes=said_yes, new=new, named_store=store, show_traceback=traceback))
