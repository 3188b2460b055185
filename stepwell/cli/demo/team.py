"""The team of the demo: a manager who plans, a researcher with tools over the bundled notes, a writer."""

from __future__ import annotations

import json
from importlib.resources import files

from stepwell.agents.agent import Agent
from stepwell.agents.tools import tool
from stepwell.checkpointing.storage.protocol import CheckpointStorage
from stepwell.cli.demo.models import models
from stepwell.cli.demo.names import NAME
from stepwell.orchestrations.magentic import MagenticBuilder
from stepwell.workflows.workflow import Workflow

TASK = "Write a one-page brief on stepwells for a city council that thinks about restoring one. Use the notes."


def read_notes() -> dict[str, str]:
    """The bundled notes by title."""
    notes = (entry for entry in files(__package__).joinpath("notes").iterdir() if entry.name.endswith(".md"))
    return {note.name.removesuffix(".md"): note.read_text("utf-8") for note in sorted(notes, key=lambda n: n.name)}


@tool
def search_notes(query: str) -> str:
    """Find the notes that mention a word. Returns their titles as a JSON list."""
    notes = read_notes()
    found = [title for title, text in notes.items() if query.lower() in text.lower()]
    return json.dumps(found or list(notes))


@tool
def read_note(title: str) -> str:
    """Read one note, by a title that search_notes gave."""
    notes = read_notes()
    return notes.get(title, f"There is no note {title!r}. The titles are: {', '.join(notes)}")


def build(storage: CheckpointStorage | None = None) -> Workflow:
    """The team, on the configured model or on the script."""
    model = models()
    researcher = Agent(
        model["researcher"],
        "You are a researcher. Look things up in the notes with your tools before you answer. Report only what they "
        "say, as a list of facts with figures.",
        name="researcher",
        description="Searches and reads the notes; knows nothing that is not in them.",
        tools=[search_notes, read_note],
        max_tool_rounds=6,
        default_options={"max_tokens": 1500},
    )
    writer = Agent(
        model["writer"],
        "You are a writer. Write plainly and briefly, from what the researcher found.",
        name="writer",
        description="Writes texts from facts that others have found.",
        default_options={"max_tokens": 1500},  # small models may not find an end
    )
    manager = Agent(
        model["manager"], "You manage a small team. Be brief.", name="manager", default_options={"max_tokens": 1000}
    )
    return MagenticBuilder(
        participants=[researcher, writer],
        manager_agent=manager,
        name=NAME,
        enable_plan_review=True,
        review_replans=False,
        checkpoint_storage=storage,
        max_round_count=8,
        max_reset_count=2,
    ).build()
