"""A workflow drawn, perhaps with where a run of it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepwell.cli.runs_by_id import run_named
from stepwell.cli.sessions import nowhere, session
from stepwell.cli.targets import load_workflow
from stepwell.workflows.viz import WorkflowViz

if TYPE_CHECKING:
    from stepwell.cli.sessions import Session


def draw(target: str, form: str, *, run_id: str | None, store: str | None) -> str:
    """The text of the picture. Without a run no store is needed, so none has to be there."""
    with session(store) if run_id else nowhere() as here:
        workflow = load_workflow(target, here)
        viz = WorkflowViz(workflow, state=_standing(here, run_id) if run_id else None)
    match form:
        case "dot":
            return viz.to_digraph()
        case "svg":
            return viz.to_svg()
    return viz.to_mermaid()


def described(target: str) -> dict[str, Any]:
    """The same workflow for programs: its executors, and the edges that join them."""
    with nowhere() as here:
        graph = load_workflow(target, here).graph
    return {
        "workflow": graph.name,
        "start": graph.start,
        "executors": [{"id": name, "type": type(slot.prototype).__name__} for name, slot in graph.slots.items()],
        "edges": [
            {"kind": group.kind, "sources": list(group.sources), "targets": list(group.targets)}
            for group in graph.groups
        ],
    }


def _standing(here: Session, run_id: str) -> Any:
    run = here.run(run_named(here.storage, run_id))
    return here.run(here.storage.get_latest(run_id=run_id)) or run
