"""Building a workflow: every edge kind, what may stand for an executor, and what `build` refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepwell import (
    Case,
    Default,
    EdgeDuplicationError,
    Executor,
    GraphConnectivityError,
    TypeCompatibilityError,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowValidationError,
    executor,
    handler,
)
from tests.workflows.parts import Counter, Printer, Relay, chained

REPOSITORY = Path(__file__).resolve().parents[2]


class Gatherer(Executor):
    """Yields the list a fan-in gives it, sorted."""

    @handler
    async def gather(self, texts: list[str], ctx: WorkflowContext[str, list[str]]) -> None:
        await ctx.yield_output(sorted(texts))


class Numbers(Executor):
    @handler
    async def number(self, number: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(number)


async def outputs(workflow: Workflow, message: Any) -> list[Any]:
    return (await workflow.run(message)).get_outputs()


# --- edges ------------------------------------------------------------------------------------------------------------


async def test_an_edge_leads_from_one_executor_to_the_next() -> None:
    start, end = Relay("start"), Printer("end")
    assert await outputs(WorkflowBuilder(start_executor=start).add_edge(start, end).build(), "a") == ["a>start>end"]


@pytest.mark.parametrize(("message", "expected"), [("yes", ["yes>start>end"]), ("no", [])], ids=["holds", "fails"])
async def test_an_edge_with_a_condition_is_taken_if_it_holds(message: str, expected: list[str]) -> None:
    start, end = Relay("start"), Printer("end")
    builder = WorkflowBuilder(start_executor=start).add_edge(start, end, condition=lambda text: text.startswith("yes"))
    assert await outputs(builder.build(), message) == expected


async def test_a_condition_may_be_async() -> None:
    async def is_short(text: str) -> bool:
        return len(text) < 10

    start, end = Relay("start"), Printer("end")
    assert await outputs(WorkflowBuilder(start_executor=start).add_edge(start, end, is_short).build(), "a") == [
        "a>start>end"
    ]


async def test_a_chain_connects_one_after_the_other() -> None:
    assert await outputs(chained([Relay("a"), Relay("b"), Printer("c")]), "x") == ["x>a>b>c"]


async def test_a_fan_out_reaches_all_its_targets_in_declaration_order() -> None:
    start, targets = Relay("start"), [Printer("b"), Printer("a"), Printer("c")]
    workflow = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, targets).build()
    assert await outputs(workflow, "x") == ["x>start>b", "x>start>a", "x>start>c"]


async def test_a_fan_in_waits_for_all_its_sources() -> None:
    start, slow, fast, detour, end = Relay("start"), Relay("slow"), Relay("fast"), Relay("detour"), Gatherer("end")
    workflow = (
        WorkflowBuilder(start_executor=start)
        .add_fan_out_edges(start, [detour, fast])
        .add_edge(detour, slow)
        .add_fan_in_edges([slow, fast], end)
        .build()
    )
    assert await outputs(workflow, "x") == [["x>start>detour>slow", "x>start>fast"]]


@pytest.mark.parametrize(
    ("message", "expected"), [("1", ["1>start>one"]), ("2", ["2>start>two"]), ("3", ["3>start>other"])], ids=str
)
async def test_a_switch_takes_the_first_case_that_holds_or_the_default(message: str, expected: list[str]) -> None:
    start, one, two, other = Relay("start"), Printer("one"), Printer("two"), Printer("other")
    cases: list[Any] = [
        Case(condition=lambda text: text[0] == "1", target=one),
        Case(condition=lambda text: text[0] in "12", target=two),
        Default(target=other),
    ]
    workflow = WorkflowBuilder(start_executor=start).add_switch_case_edge_group(start, cases).build()
    assert await outputs(workflow, message) == expected


async def test_a_multi_selection_reaches_those_that_were_picked() -> None:
    start, targets = Relay("start"), [Printer("a"), Printer("b"), Printer("c")]

    def pick(text: str, ids: list[str]) -> list[str]:
        return [name for name in ids if name in text.partition(">")[0]]

    workflow = WorkflowBuilder(start_executor=start).add_multi_selection_edge_group(start, targets, pick).build()
    assert await outputs(workflow, "cb") == ["cb>start>b", "cb>start>c"]


async def test_a_selection_of_a_stranger_names_it_and_what_may_be_picked() -> None:
    start, targets = Relay("start"), [Printer("a"), Printer("b")]
    builder = WorkflowBuilder(start_executor=start)
    workflow = builder.add_multi_selection_edge_group(start, targets, lambda *_: ["zoe"]).build()
    with pytest.raises(Exception, match=r"after 'start' picked 'zoe'; it may pick from \('a', 'b'\)"):
        await workflow.run("x")


async def test_all_but_build_return_the_builder() -> None:
    a, b, c, d = Relay("a"), Relay("b"), Relay("c"), Gatherer("d")
    builder = WorkflowBuilder()
    returned = [
        builder.set_start_executor(a),
        builder.add_edge(a, b),
        builder.add_chain([b, c]),
        builder.add_fan_in_edges([b, c], d),
        builder.with_checkpointing(None),  # type: ignore[arg-type]
    ]
    assert all(item is builder for item in returned)
    assert isinstance(builder.build(), Workflow)


# --- what may stand for an executor -----------------------------------------------------------------------------------


async def test_a_factory_is_called_for_each_run() -> None:
    made: list[Counter] = []

    def make() -> Counter:
        made.append(Counter(end=1))
        return made[-1]

    workflow = WorkflowBuilder(start_executor=make).build()
    before = len(made)
    await workflow.run(1)
    await workflow.run(1)
    assert [counter.seen for counter in made[before:]] == [[1], [1]]


async def test_one_factory_given_twice_is_one_executor() -> None:
    slot = lambda: Counter(end=3)  # noqa: E731
    workflow = WorkflowBuilder(start_executor=slot).add_edge(slot, slot).build()
    assert list(workflow.executors) == ["counter"]


async def test_functions_become_executors() -> None:
    @executor(id="upper")
    async def to_upper(text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text.upper())

    @executor
    async def reverse(text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(text[::-1])

    assert await outputs(chained([to_upper, reverse]), "abc") == ["CBA"]


def test_instances_are_shared_between_builds_of_one_builder() -> None:
    builder = WorkflowBuilder(start_executor=Relay("a"))
    assert builder.build().executors["a"] is builder.build().executors["a"]


# --- validation -------------------------------------------------------------------------------------------------------


def no_start() -> WorkflowBuilder:
    return WorkflowBuilder()


def unreachable() -> WorkflowBuilder:
    a, b, island, shore = Relay("a"), Printer("b"), Relay("island"), Printer("shore")
    return WorkflowBuilder(start_executor=a).add_edge(a, b).add_edge(island, shore)


def duplicate() -> WorkflowBuilder:
    a, b = Relay("a"), Printer("b")
    return WorkflowBuilder(start_executor=a).add_edge(a, b).add_edge(a, b)


def duplicate_by_fan_out() -> WorkflowBuilder:
    a, b, c = Relay("a"), Printer("b"), Printer("c")
    return WorkflowBuilder(start_executor=a).add_edge(a, b).add_fan_out_edges(a, [b, c])


def wrong_types() -> WorkflowBuilder:
    a, b = Relay("a"), Numbers("b")
    return WorkflowBuilder(start_executor=a).add_edge(a, b)


def same_id() -> WorkflowBuilder:
    return WorkflowBuilder(start_executor=Relay("a")).add_edge(Relay("b"), Printer("b"))


def lonely_fan_out() -> WorkflowBuilder:
    a, b = Relay("a"), Printer("b")
    return WorkflowBuilder(start_executor=a).add_fan_out_edges(a, [b])


def lonely_fan_in() -> WorkflowBuilder:
    a, b = Relay("a"), Gatherer("b")
    return WorkflowBuilder(start_executor=a).add_fan_in_edges([a], b)


def empty_selection() -> WorkflowBuilder:
    a = Relay("a")
    return WorkflowBuilder(start_executor=a).add_multi_selection_edge_group(a, [], lambda *_: [])


def switch_without_default() -> WorkflowBuilder:
    a, b = Relay("a"), Printer("b")
    return WorkflowBuilder(start_executor=a).add_switch_case_edge_group(a, [Case(lambda _: True, b)])


def short_chain() -> WorkflowBuilder:
    a = Relay("a")
    return WorkflowBuilder(start_executor=a).add_chain([a])


def no_handler() -> WorkflowBuilder:
    return WorkflowBuilder(start_executor=Executor("idle"))


def a_class() -> WorkflowBuilder:
    return WorkflowBuilder(start_executor=Relay)


def bare_function() -> WorkflowBuilder:
    return WorkflowBuilder(start_executor=lambda: "not an executor")


def no_super_init() -> WorkflowBuilder:
    class Careless(Relay):
        def __init__(self) -> None:
            self.results: dict[str, int] = {}

    return WorkflowBuilder(start_executor=Careless())


def output_of_a_stranger() -> WorkflowBuilder:
    return WorkflowBuilder(start_executor=Printer("a"), output_from=["zoe"])


def output_of_a_strange_object() -> WorkflowBuilder:
    return WorkflowBuilder(start_executor=Printer("a"), output_from=[Printer("zoe")])


def both_designations() -> WorkflowBuilder:
    return WorkflowBuilder(start_executor=Printer("a"), output_from=["a"], intermediate_output_from=["a"])


def all_other_twice() -> WorkflowBuilder:
    return WorkflowBuilder(start_executor=Printer("a"), output_from="all_other", intermediate_output_from="all_other")


def output_from_a_word() -> WorkflowBuilder:
    return WorkflowBuilder(start_executor=Printer("a"), output_from="a")


REFUSED: list[tuple[Callable[[], WorkflowBuilder], type[Exception], str]] = [
    (no_start, WorkflowValidationError, "no start executor; pass start_executor=… or call set_start_executor"),
    (
        unreachable,
        GraphConnectivityError,
        "'island', 'shore' can't be reached from the start executor 'a'; add",
    ),
    (duplicate, EdgeDuplicationError, "the edge 'a' -> 'b' was added twice; remove one"),
    (duplicate_by_fan_out, EdgeDuplicationError, "the edge 'a' -> 'b' was added twice; remove one"),
    (wrong_types, TypeCompatibilityError, "'a' sends str but 'b' accepts int; add a handler for it to 'b'"),
    (same_id, WorkflowValidationError, "two executors have the id 'b'"),
    (lonely_fan_out, WorkflowValidationError, "the fan-out from 'a' has 1 target(s); use add_edge for one"),
    (lonely_fan_in, WorkflowValidationError, "the fan-in to 'b' has 1 source(s); use add_edge for one"),
    (empty_selection, WorkflowValidationError, "the multi-selection from 'a' has no targets; give it"),
    (switch_without_default, WorkflowValidationError, "exactly one Default"),
    (short_chain, WorkflowValidationError, "add_chain needs two executors or more, not 1"),
    (no_handler, WorkflowValidationError, "executor 'idle' (Executor) has no handler; decorate an async method"),
    (a_class, WorkflowValidationError, "Relay is a class; pass an instance, or a factory such as"),
    (bare_function, WorkflowValidationError, "returned str, not an executor; to use a function as an executor"),
    (no_super_init, WorkflowValidationError, "Careless has no id; call super().__init__(id=…)"),
    (output_of_a_stranger, WorkflowValidationError, "output_from names 'zoe', which the workflow lacks; it has 'a'"),
    (output_of_a_strange_object, WorkflowValidationError, "output_from names Printer('zoe'), which is not in the"),
    (both_designations, WorkflowValidationError, "'a' can't be in output_from and intermediate_output_from"),
    (all_other_twice, WorkflowValidationError, 'can\'t both be "all_other"'),
    (output_from_a_word, WorkflowValidationError, "output_from takes a list of executors"),
]


@pytest.mark.parametrize(("make", "error", "words"), REFUSED, ids=[make.__name__ for make, _, _ in REFUSED])
def test_what_makes_no_sense_is_refused_by_name_and_with_the_fix(
    make: Callable[[], WorkflowBuilder], error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as refusal:
        make().build()
    assert isinstance(refusal.value, WorkflowValidationError)
    assert words in str(refusal.value)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_no_supersteps_is_refused(limit: int) -> None:
    with pytest.raises(WorkflowValidationError, match="max_iterations must be at least 1"):
        WorkflowBuilder(start_executor=Relay("a"), max_iterations=limit)


# --- whose yields are what --------------------------------------------------------------------------------------------


class Echo(Executor):
    """Yields and sends on."""

    @handler
    async def echo(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(self.id)
        await ctx.send_message(text)


DESIGNATIONS: list[tuple[Any, Any, list[str], list[str]]] = [
    (None, None, ["a", "b", "c"], []),
    (["c"], None, ["c"], []),
    (["c"], ["a"], ["c"], ["a"]),
    (["c"], "all_other", ["c"], ["a", "b"]),
    ("all", None, ["a", "b", "c"], []),
    ("all_other", ["a"], ["b", "c"], ["a"]),
    (None, ["a", "b"], ["c"], ["a", "b"]),
]


@pytest.mark.parametrize(("output_from", "intermediate_from", "out", "between"), DESIGNATIONS, ids=repr)
async def test_designations_decide_what_a_yield_is(
    output_from: Any, intermediate_from: Any, out: list[str], between: list[str]
) -> None:
    executors = [Echo("a"), Echo("b"), Echo("c")]
    workflow = chained(executors, output_from=output_from, intermediate_output_from=intermediate_from)
    result = await workflow.run("x")
    assert (result.get_outputs(), result.get_intermediate_outputs()) == (out, between)


async def test_designations_take_executors_as_well_as_ids() -> None:
    a, b = Echo("a"), Echo("b")
    result = await chained([a, b], output_from=[b], intermediate_output_from=[a]).run("x")
    assert (result.get_outputs(), result.get_intermediate_outputs()) == (["b"], ["a"])


# --- names and signatures ---------------------------------------------------------------------------------------------


def test_the_default_name_depends_on_the_graph_alone() -> None:
    assert chained([Relay("a"), Printer("b")]).name == chained([Relay("a"), Printer("b")]).name
    assert chained([Relay("a"), Printer("b")]).name != chained([Relay("a"), Printer("c")]).name


def test_a_given_name_is_kept() -> None:
    assert chained([Relay("a"), Printer("b")], name="mine").name == "mine"


def test_conditions_and_classes_are_no_part_of_the_signature() -> None:
    def built(kind: type[Executor], condition: Callable[[Any], bool]) -> Workflow:
        a, b = kind("a"), Printer("b")
        return WorkflowBuilder(start_executor=a).add_edge(a, b, condition).build()

    one, other = built(Relay, lambda _: True), built(Echo, lambda text: bool(text))
    assert one.graph_signature_hash == other.graph_signature_hash


SCRIPT = """
from stepwell import Executor, WorkflowBuilder, WorkflowContext, handler

class Step(Executor):
    @handler
    async def step(self, text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text)

def build():
    a, b = Step("a"), lambda: Step("b")
    return WorkflowBuilder(start_executor=a).add_edge(a, b, condition=lambda text: True).build()

workflow = build()
print(workflow.name, workflow.graph_signature_hash)
"""


def test_name_and_signature_are_the_same_in_every_process_run_or_imported(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(SCRIPT, encoding="utf-8")
    seen = set()
    for seed, arguments in [("1", ["flow.py"]), ("2", ["-c", "import flow"]), ("3", ["-m", "flow"])]:
        environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{tmp_path}", "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        seen.add(done.stdout)
    assert len(seen) == 1
