"""WorkflowViz: what a workflow looks like, and where a run of it is.

viz = WorkflowViz(workflow)
print(viz.to_mermaid())
viz.save_svg("workflow.svg")
WorkflowViz(workflow, state=await storage.get_latest(run_id="r1")).save_svg("now.svg")
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from stepwell.workflows.picture import Arrow, Box, Picture, RunStanding, clean, picture_of

if TYPE_CHECKING:
    from stepwell.workflows.workflow import Workflow

_RESERVED = frozenset(
    {
        "end",
        "graph",
        "flowchart",
        "subgraph",
        "direction",
        "style",
        "linkstyle",
        "classdef",
        "class",
        "click",
        "default",
    }
)
_MERMAID_ARROWS = {
    "edge": "-->",
    "conditional": "-.->",
    "fan_out": "==>",
    "fan_in": "==>",
    "switch": "-->",
    "multi_selection": "-.->",
}
_MERMAID_JUNCTIONS = {"fork": ("((", "))"), "join": ("((", "))"), "choice": ("{", "}"), "pick": ("{{", "}}")}
_WORDS = {"fork": "fan-out", "join": "fan-in", "choice": "switch", "pick": "any of"}
_DOT_JUNCTIONS = {
    "fork": 'shape=box, height=0.08, width=0.9, style=filled, fillcolor="#475569"',
    "join": 'shape=box, height=0.08, width=0.9, style=filled, fillcolor="#475569"',
    "choice": "shape=diamond, height=0.4, width=0.4",
    "pick": "shape=diamond, height=0.4, width=0.4, style=dashed",
}
_DOT_ARROWS = {
    "conditional": "style=dashed",
    "multi_selection": "style=dotted",
    "fan_out": "penwidth=2",
    "fan_in": "penwidth=2",
}


class WorkflowViz:
    """Pictures of a workflow. Workflows inside it are frames, and each kind of edge looks different.

    With `state`, a `WorkflowCheckpoint` or what `list_runs` tells of a run, they show which executors have a message
    coming and which wait for an answer.
    """

    def __init__(self, workflow: Workflow, *, state: RunStanding | None = None) -> None:
        self._picture = picture_of(workflow.graph, state)

    def to_mermaid(self) -> str:
        """The text of a Mermaid flowchart."""
        return "\n".join(_mermaid(self._picture)) + "\n"

    def to_digraph(self) -> str:
        """The text of a Graphviz digraph (DOT)."""
        return "\n".join(_dot(self._picture)) + "\n"

    def to_svg(self) -> str:
        """The text of an SVG image, drawn without any other program."""
        from stepwell.workflows.svg import to_svg  # Programs that draw nothing need not know how.

        return to_svg(self._picture)

    def save_svg(self, path: str | Path) -> str:
        """Write the SVG image to a file and return its path."""
        return self.export(format="svg", filename=path)

    def export(self, format: str = "svg", filename: str | Path | None = None) -> str:
        """Write `svg`, `dot` or `mermaid` to a file (a temporary one if none is named) and return its path."""
        drawn = {"svg": self.to_svg, "dot": self.to_digraph, "mermaid": self.to_mermaid}.get(format)
        if drawn is None:
            raise ValueError(
                f"format={format!r} is not one of svg, dot, mermaid; for a PNG or PDF convert the SVG (rsvg-convert, "
                "a browser) or give to_digraph() to Graphviz"
            )
        if filename is None:
            import tempfile

            filename = Path(tempfile.mkdtemp(prefix="stepwell-")) / f"workflow.{format}"
        Path(filename).write_text(drawn(), encoding="utf-8")
        return str(filename)


# --- Mermaid ----------------------------------------------------------------------------------------------------------


def _mermaid(picture: Picture) -> Iterator[str]:
    names = _mermaid_names(picture)
    if picture.caption:
        yield f"---\ntitle: {_quoted(picture.caption)}\n---"
    yield "flowchart TD"
    yield from _mermaid_part(picture, names, "  ")
    waiting = [names[box.key] for box in picture.all_boxes() if box.mark.waits_for]
    coming = [names[box.key] for box in picture.all_boxes() if box.mark.is_next and not box.mark.waits_for]
    for kind, look, keys in (
        ("waiting", "fill:#fef3c7,stroke:#b45309,stroke-width:2px", waiting),
        ("queued", "fill:#eff6ff,stroke:#2563eb,stroke-width:2px", coming),
    ):
        if keys:
            yield f"  classDef {kind} {look}"
            yield f"  class {','.join(keys)} {kind}"


def _mermaid_part(picture: Picture, names: dict[str, str], indent: str) -> Iterator[str]:
    for box in picture.boxes.values():
        if box.inside is None:
            yield f"{indent}{_mermaid_box(box, names)}"
            continue
        yield f'{indent}subgraph {names[box.key]}["{_mermaid_label(box)}"]'
        yield from _mermaid_part(box.inside, names, indent + "  ")
        yield f"{indent}end"
    for arrow in picture.arrows:
        line = _MERMAID_ARROWS[arrow.kind] if arrow.has_head else "---"
        label = f'|"{_entities(arrow.label)}"|' if arrow.label else ""
        yield f"{indent}{names[arrow.source]} {line}{label} {names[arrow.target]}"


def _mermaid_box(box: Box, names: dict[str, str]) -> str:
    if box.shape in _MERMAID_JUNCTIONS:
        opening, closing = _MERMAID_JUNCTIONS[box.shape]
        return f'{names[box.key]}{opening}"{_entities(f"{_WORDS[box.shape]} {box.label}".strip())}"{closing}'
    opening, closing = ("([", "])") if box.is_start else ("[", "]")
    return f'{names[box.key]}{opening}"{_mermaid_label(box)}"{closing}'


def _mermaid_label(box: Box) -> str:
    return "<br/>".join(_entities(line) for line in _label_lines(box))


def _label_lines(box: Box) -> list[str]:
    lines = [f"{box.label} (start)" if box.is_start else box.label]
    if box.inside is not None and box.subtitle != box.label:
        lines[0] += f": {box.subtitle}"
    lines += [f"waits for {kind}" for kind in box.mark.waits_for]
    return [*lines, "message queued"] if box.mark.is_next else lines


def _mermaid_names(picture: Picture) -> dict[str, str]:
    """A plain identifier for each box: labels say the rest."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for box in picture.all_boxes():
        name = re.sub(r"[^A-Za-z0-9]+", "_", box.key).strip("_") or "x"
        if name[0].isdigit() or name.lower() in _RESERVED or box.shape in _WORDS:
            name = f"{_WORDS.get(box.shape, 'x').replace('-', '_').replace(' ', '_')}_{name}"
        base, number = name, 2
        while name.lower() in taken:
            name, number = f"{base}_{number}", number + 1
        taken.add(name.lower())
        names[box.key] = name
    return names


def _entities(text: str) -> str:
    """Letters, digits and a few marks as they are; whatever could mean something to Mermaid or HTML as its number."""
    return "".join(c if c.isalnum() or c in " _-.,:/()?" else f"#{ord(c)};" for c in clean(text)) or " "


# --- DOT --------------------------------------------------------------------------------------------------------------


def _dot(picture: Picture) -> Iterator[str]:
    yield f"digraph {_quoted(picture.title)} {{"
    yield "  rankdir=TB; compound=true; newrank=true;"
    yield '  node [shape=box, style=rounded, fontname="sans-serif"]; edge [fontname="sans-serif", fontsize=10];'
    if picture.caption:
        yield f"  label={_quoted(picture.caption)}; labelloc=t;"
    yield from _dot_part(picture, "  ")
    yield "}"


def _dot_part(picture: Picture, indent: str) -> Iterator[str]:
    for box in picture.boxes.values():
        if box.inside is None:
            yield f"{indent}{_quoted(box.key)} [{_dot_look(box)}];"
            continue
        yield f"{indent}subgraph {_quoted('cluster_' + box.key)} {{"
        border = ' color="#b45309";' if box.mark.waits_for else ""
        yield f"{indent}  label={_dot_label(box)};{border}"
        yield from _dot_part(box.inside, indent + "  ")
        yield f"{indent}}}"
    for arrow in picture.arrows:
        yield f"{indent}{_dot_arrow(arrow, picture)};"


def _dot_look(box: Box) -> str:
    if box.shape in _DOT_JUNCTIONS:
        outside = f", xlabel={_quoted(box.label)}" if box.label else ""
        return f'label=""{outside}, {_DOT_JUNCTIONS[box.shape]}'
    look = [f"label={_dot_label(box)}"]
    if box.mark.waits_for:
        look.append('style="rounded,filled", fillcolor="#fef3c7", color="#b45309"')
    elif box.mark.is_next:
        look.append('style="rounded,filled", fillcolor="#eff6ff", color="#2563eb"')
    elif box.is_start:
        look.append('style="rounded,bold"')
    return ", ".join(look)


def _dot_label(box: Box) -> str:
    return '"' + "\\n".join(_quoted(line)[1:-1] for line in _label_lines(box)) + '"'


def _dot_arrow(arrow: Arrow, picture: Picture) -> str:
    options = [f"label={_quoted(arrow.label)}"] if arrow.label else []
    options += [_DOT_ARROWS[arrow.kind]] if arrow.kind in _DOT_ARROWS else []
    options += [] if arrow.has_head else ["dir=none"]
    ends = []
    for key, side in ((arrow.source, "ltail"), (arrow.target, "lhead")):
        box = picture.boxes[key]
        if box.inside is not None:
            options.append(f"{side}={_quoted('cluster_' + key)}")
        ends.append(_quoted(_innermost_start(box)))
    return f"{ends[0]} -> {ends[1]}" + (f" [{', '.join(options)}]" if options else "")


def _innermost_start(box: Box) -> str:
    """Graphviz draws arrows between nodes only; the frame is where they are cut off."""
    while box.inside is not None:
        box = box.inside.boxes[box.inside.start]
    return box.key


def _quoted(text: str) -> str:
    return '"' + clean(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
