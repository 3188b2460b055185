"""Pictures of workflows: what is drawn, that nothing overlaps, and that no name can become markup."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell import (
    Case,
    Default,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowExecutor,
    WorkflowViz,
)
from stepwell.workflows.layout import Layout, Size, arrange
from tests.conftest import REPOSITORY
from tests.workflows.parts import Asker, Counter, Printer, Relay, alone, chained, counting
from tests.workflows.test_subworkflow import Ledger
from tests.workflows.test_subworkflow import level as nested_level

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    """What a person reads in the picture."""
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def dashes(svg: str) -> list[str]:
    return [
        path.get("stroke-dasharray", "") for path in ElementTree.fromstring(svg).iter(f"{SVG}path") if path.get("d")
    ]


def is_long(text: str) -> bool:
    return len(text) > 3


def all_kinds() -> Workflow:
    """Every kind of edge there is."""
    start, a, b, c, d, e, end = (Relay(name) for name in ("start", "a", "b", "c", "d", "e", "finish"))
    return (
        WorkflowBuilder(start_executor=start, name="kinds")
        .add_fan_out_edges(start, [a, b])
        .add_fan_in_edges([a, b], Listener("listener"))
        .add_edge(a, c, condition=is_long)
        .add_switch_case_edge_group(c, [Case(lambda text: True, d), Default(e)])
        .add_multi_selection_edge_group(d, [e, end], lambda text, targets: targets)
        .add_edge(e, end)
        .build()
    )


class Listener(Relay):
    """A relay that takes anything."""

    def can_handle(self, data: Any) -> bool:
        return True


# --- Mermaid ----------------------------------------------------------------------------------------------------------


def test_a_chain_in_mermaid() -> None:
    workflow = chained([Relay("first"), Printer("last")])

    assert WorkflowViz(workflow).to_mermaid() == (
        "flowchart TD\n"
        '  first(["first (start)"])\n'
        '  last["last"]\n'
        "  first --> last\n"
    )  # fmt: skip


def test_each_kind_of_edge_looks_different_in_mermaid() -> None:
    text = WorkflowViz(all_kinds()).to_mermaid()

    assert "((" + '"fan-in"' in text
    assert "((" + '"fan-out"' in text
    assert 'a -.->|"is_long"| c' in text
    assert '{"switch"}' in text
    assert '-->|"case 1"| d' in text
    assert '-->|"else"| e' in text
    assert '{{"any of"}}' in text
    assert " ==> " in text


def test_a_workflow_inside_is_a_subgraph() -> None:
    inner = chained([Relay("first"), Printer("last")], name="inner")
    workflow = chained([WorkflowExecutor(inner, "sub"), Printer("end")])
    text = WorkflowViz(workflow).to_mermaid()

    assert '  subgraph sub["sub (start): inner"]\n    sub_first(["first (start)"])\n' in text
    assert "    sub_first --> sub_last\n  end\n" in text
    # `end` is a word of Mermaid's own.
    assert '  x_end["end"]\n  sub --> x_end\n' in text


# --- DOT --------------------------------------------------------------------------------------------------------------


def test_a_chain_in_dot() -> None:
    text = WorkflowViz(chained([Relay("first"), Printer("last")], name="chain")).to_digraph()

    assert text.startswith('digraph "chain" {')
    assert '"first" -> "last";' in text
    assert text.rstrip().endswith("}")


def test_arrows_to_and_from_a_workflow_inside_end_at_its_frame() -> None:
    inner = chained([Relay("first"), Printer("last")], name="inner")
    workflow = chained([Relay("start"), WorkflowExecutor(inner, "sub"), Printer("end")])
    text = WorkflowViz(workflow).to_digraph()

    assert 'subgraph "cluster_sub" {' in text
    assert '"start" -> "sub/first" [lhead="cluster_sub"];' in text
    assert '"sub/first" -> "end" [ltail="cluster_sub"];' in text


def test_each_kind_of_edge_looks_different_in_dot() -> None:
    text = WorkflowViz(all_kinds()).to_digraph()

    for look in ("style=dashed", "style=dotted", "penwidth=2", "shape=diamond", 'label="is_long"'):
        assert look in text


# --- SVG --------------------------------------------------------------------------------------------------------------


def test_an_svg_names_every_executor_at_every_depth() -> None:
    svg = WorkflowViz(nested_level(1, Ledger())).to_svg()

    for name in ("entrance", "caller-1", "caller-2", "caller-3", "sub", "level-3"):
        assert name in texts(svg)


def test_each_kind_of_edge_looks_different_in_svg() -> None:
    svg = WorkflowViz(all_kinds()).to_svg()
    root = ElementTree.fromstring(svg)

    assert {"", "6 4", "2 4"} <= set(dashes(svg))
    assert len(list(root.iter(f"{SVG}polygon"))) == 2  # the switch and the multi-selection
    assert {"is_long", "case 1", "else"} <= set(texts(svg))


def test_a_loop_is_drawn_beside_its_executor() -> None:
    svg = WorkflowViz(counting()).to_svg()
    [loop] = [path for path in ElementTree.fromstring(svg).iter(f"{SVG}path") if " C " in path.get("d", "")]

    assert loop.get("marker-end") == "url(#head)"


def test_the_same_workflow_gives_the_same_bytes() -> None:
    assert WorkflowViz(all_kinds()).to_svg() == WorkflowViz(all_kinds()).to_svg()


def test_files_are_written_and_their_paths_returned(tmp_path: Path) -> None:
    viz = WorkflowViz(counting())

    assert Path(viz.save_svg(tmp_path / "a.svg")).read_text(encoding="utf-8") == viz.to_svg()
    assert Path(viz.export("dot", tmp_path / "a.dot")).read_text(encoding="utf-8") == viz.to_digraph()
    assert Path(viz.export("mermaid", tmp_path / "a.mmd")).read_text(encoding="utf-8") == viz.to_mermaid()
    assert Path(viz.export()).suffix == ".svg"
    with pytest.raises(ValueError, match="convert the SVG"):
        viz.export("png")


# --- where a run is ---------------------------------------------------------------------------------------------------


async def waiting_run() -> tuple[Workflow, InMemoryCheckpointStorage]:
    storage = InMemoryCheckpointStorage()
    inner = alone(lambda: Asker("asker"), name="inner")
    sub = WorkflowExecutor(inner, "sub", propagate_request=True)
    workflow = chained([Relay("start"), sub, Printer("end")], storage, name="outer")
    await workflow.run("x", run_id="r")
    return workflow, storage


async def test_a_checkpoint_shows_who_waits_for_what_at_every_depth() -> None:
    workflow, storage = await waiting_run()
    viz = WorkflowViz(workflow, state=await storage.get_latest(run_id="r"))

    assert texts(viz.to_svg()).count("waits for str") == 2  # the frame, and the executor in it
    assert "run r, superstep 2" in texts(viz.to_svg())
    assert "class sub,sub_asker waiting" in viz.to_mermaid()
    assert '"sub/asker" [label="asker (start)\\nwaits for str", style="rounded,filled"' in viz.to_digraph()


async def test_what_list_runs_tells_of_a_run_shows_who_waits() -> None:
    workflow, storage = await waiting_run()
    [info] = await storage.list_runs()
    viz = WorkflowViz(workflow, state=info)

    assert texts(viz.to_svg()).count("waits for str") == 1
    assert "run r: IDLE_WITH_PENDING_REQUESTS, superstep 2" in texts(viz.to_svg())
    assert "class sub waiting" in viz.to_mermaid()


async def test_a_checkpoint_on_the_way_shows_where_messages_are_coming() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = chained([Relay("a"), Relay("b"), Printer("c")], storage)
    await workflow.run("x", run_id="r")
    entry, first, *_ = await storage.list_checkpoints(run_id="r")

    assert "class a queued" in WorkflowViz(workflow, state=entry).to_mermaid()
    assert "class b queued" in WorkflowViz(workflow, state=first).to_mermaid()
    assert "message queued" in texts(WorkflowViz(workflow, state=first).to_svg())


async def test_a_half_filled_fan_in_shows_how_far_it_is() -> None:
    storage = InMemoryCheckpointStorage()
    start, asker, relay, end = Relay("start"), Asker("asker"), Relay("relay"), Listener("end")
    workflow = (
        WorkflowBuilder(start_executor=start, checkpoint_storage=storage)
        .add_fan_out_edges(start, [asker, relay])
        .add_fan_in_edges([asker, relay], end)
        .build()
    )
    await workflow.run("x", run_id="r")
    viz = WorkflowViz(workflow, state=await storage.get_latest(run_id="r"))

    assert "1 of 2" in texts(viz.to_svg())
    assert '(("fan-in 1 of 2"))' in viz.to_mermaid()


# --- names that mean harm ---------------------------------------------------------------------------------------------

HOSTILE = [
    '</text><script>alert("x")</script>',
    '"]; click a href "javascript:alert(1)" %% `',
    'x"] }\n digraph { evil -> "',
    "a\\",
    "&amp;&#x3c;",
    "end",
    "line\nbreak\ttab\x00\x1b[31m",
    "\u202egnp.exe",
    "\ud800",
    "--> b",
    "日本語の名前",
    "x" * 500,
    " ",
]


def hostile(name: str) -> Workflow:
    inner = alone(lambda: Printer(name), name=name)
    condition = lambda text: True  # noqa: E731
    condition.__name__ = name.strip() or "blank"
    start, sub = Relay(name), WorkflowExecutor(inner, f"{name}2")
    return WorkflowBuilder(start_executor=start, name=name).add_edge(start, sub, condition=condition).build()


@pytest.mark.parametrize("name", HOSTILE, ids=[f"name {number}" for number in range(len(HOSTILE))])
def test_no_name_becomes_markup_in_svg(name: str) -> None:
    svg = WorkflowViz(hostile(name)).to_svg()
    root = ElementTree.fromstring(svg.encode())

    known = {"svg", "title", "defs", "marker", "path", "rect", "text", "g", "circle", "polygon"}
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= known
    assert not any(key.startswith("on") or "href" in key for element in root.iter() for key in element.attrib)
    assert all(len(text) <= 60 for text in texts(svg))


@pytest.mark.parametrize("name", HOSTILE, ids=[f"name {number}" for number in range(len(HOSTILE))])
def test_no_name_becomes_syntax_in_mermaid(name: str) -> None:
    """Whatever the name, the lines are those of a harmless one, but for the text between quotes."""

    def bare(text: str) -> list[str]:
        return [re.sub(r"\b[A-Za-z]\w*", "N", re.sub(r'"[^"]*"', '""', line)) for line in text.splitlines()]

    text = WorkflowViz(hostile(name)).to_mermaid()
    assert bare(text) == bare(WorkflowViz(hostile("plain")).to_mermaid())
    for label in re.findall(r'"([^"]*)"', text):
        assert re.fullmatch(r"(?:[^<>`&;{}\[\]|%#\\]|#\d+;|<br/>)*", label)
    assert not re.search(r"(?m)^ *end\b *[^\n]", text), "a name of Mermaid's own"


@pytest.mark.parametrize("name", HOSTILE, ids=[f"name {number}" for number in range(len(HOSTILE))])
def test_no_name_becomes_syntax_in_dot(name: str) -> None:
    def bare(text: str) -> list[str]:
        return re.sub(r'"(?:[^"\\]|\\.)*"', '""', text).splitlines()

    assert bare(WorkflowViz(hostile(name)).to_digraph()) == bare(WorkflowViz(hostile("plain")).to_digraph())


# --- the layout -------------------------------------------------------------------------------------------------------


def check(layout: Layout, sizes: dict[str, Size], links: list[tuple[str, str]]) -> None:
    """No two boxes overlap, everything is inside, and every link goes from border to border."""
    boxes = {
        name: (
            x - sizes[name].width / 2,
            y - sizes[name].height / 2,
            x + sizes[name].width / 2,
            y + sizes[name].height / 2,
        )
        for name, (x, y) in layout.centres.items()
    }
    for one, other in combinations(boxes.values(), 2):
        assert (
            one[2] <= other[0] + 1e-6
            or other[2] <= one[0] + 1e-6
            or one[3] <= other[1] + 1e-6
            or other[3] <= one[1] + 1e-6
        )
    for left, top, right, bottom in boxes.values():
        assert left >= -1e-6
        assert top >= -1e-6
        assert right <= layout.size.width + 1e-6
        assert bottom <= layout.size.height + 1e-6
    for (source, target), route in zip(links, layout.routes, strict=True):
        for name, (x, y) in ((source, route[0]), (target, route[-1])) if route else ():
            left, top, right, bottom = boxes[name]
            assert left <= x <= right
            assert min(abs(y - top), abs(y - bottom)) < 1e-6


names = st.integers(0, 11).map(lambda number: f"n{number}")


@settings(max_examples=150, deadline=None)
@given(
    widths=st.lists(st.floats(30, 300), min_size=12, max_size=12),
    links=st.lists(st.tuples(names, names), max_size=30),
    labelled=st.sets(st.integers(0, 29)),
)
def test_boxes_never_overlap_and_links_end_at_borders(
    widths: list[float], links: list[tuple[str, str]], labelled: set[int]
) -> None:
    sizes = {f"n{number}": Size(width, 40.0) for number, width in enumerate(widths)}
    labels = {index: Size(50.0, 16.0) for index in labelled if index < len(links)}

    check(arrange(sizes, links, labels=labels), sizes, links)


def test_a_tree_is_drawn_without_crossings_and_a_parent_stands_over_its_children() -> None:
    sizes = dict.fromkeys("abcdefg", Size(60, 40))
    links = [("a", "b"), ("a", "c"), ("b", "d"), ("b", "e"), ("c", "f"), ("c", "g")]
    centres = arrange(sizes, links).centres

    assert centres["d"][0] < centres["e"][0] < centres["f"][0] < centres["g"][0]
    assert centres["b"][0] == pytest.approx((centres["d"][0] + centres["e"][0]) / 2, abs=1)
    assert centres["a"][0] == pytest.approx((centres["b"][0] + centres["c"][0]) / 2, abs=1)


def test_a_hundred_executors_are_drawn_in_no_time() -> None:
    relays = [Relay(f"relay-{number}") for number in range(100)]
    builder = WorkflowBuilder(start_executor=relays[0])
    for number in range(1, 100):
        builder.add_edge(relays[(number - 1) // 3], relays[number])
        if number % 7 == 0:
            builder.add_edge(relays[number], relays[number // 7])

    assert len(texts(WorkflowViz(builder.build()).to_svg())) >= 200


# --- the documentation ------------------------------------------------------------------------------------------------


def test_the_pictures_of_the_documentation_are_what_their_script_draws(tmp_path: Path) -> None:
    images = REPOSITORY / "docs" / "images"
    script = (images / "make.py").read_text(encoding="utf-8")
    (tmp_path / "make.py").write_text(script, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "make.py")]
    subprocess.run(command, cwd=REPOSITORY, env={"PYTHONPATH": str(REPOSITORY)}, check=True, timeout=60)

    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.svg")}
    assert len(drawn) >= 4
    assert drawn == {name: (images / name).read_text(encoding="utf-8") for name in drawn}


def test_a_counter_has_a_picture_too() -> None:
    """A workflow of instances is looked at, not run."""
    counter = Counter()
    WorkflowViz(alone(counter)).to_svg()

    assert counter.seen == []
