"""Calls of functions that brought something along are told apart by it, whichever of them starts first."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepwell import Executor, InMemoryCheckpointStorage, Message, WorkflowBuilder, WorkflowContext, handler
from stepwell.checkpointing.callables import brought_along, call_name


async def fetch(what: str) -> str:
    return f"result of {what}"


class Site:
    """An object that can be changed, so nothing of it counts."""

    def __init__(self, what: str) -> None:
        self.what = what

    async def fetch(self) -> str:
        return await fetch(self.what)


def closure(what: str) -> Callable[[], Any]:
    async def inner() -> str:
        return await fetch(what)

    return inner


def closure_of_closure(what: str) -> Callable[[], Any]:
    inner = closure(what)

    async def outer() -> Any:
        return await inner()

    return outer


KINDS: dict[str, Callable[[str], Callable[[], Any]]] = {
    "lambda": lambda what: lambda: fetch(what),
    "default": lambda what: lambda what=what: fetch(what),  # type: ignore[misc]
    "closure": closure,
    "closure in a closure": closure_of_closure,
    "partial": lambda what: partial(fetch, what),
    "partial by name": lambda what: partial(fetch, what=what),
    "partial of a partial": lambda what: partial(partial(fetch, what)),
}


class Pair(Executor):
    """Makes two calls at once; which starts first differs between the attempts. The first attempt breaks off."""

    def __init__(self, made: Callable[[str], Callable[[], Any]], *, recorded: int = 2) -> None:
        super().__init__("pair")
        self.made, self.recorded, self.attempts = made, recorded, 0

    @handler
    async def on_text(self, _: str, ctx: WorkflowContext[Any, dict[str, str]]) -> None:
        self.attempts += 1
        first = asyncio.Event()
        names = ("a", "b") if self.attempts == 1 else ("b", "a")
        results: dict[str, str] = {}

        async def call(what: str) -> None:
            if what != names[0]:
                await first.wait()
            results[what] = await ctx.call(self.made(what))
            first.set()

        async with asyncio.TaskGroup() as group:
            for name in names[: self.recorded] if self.attempts == 1 else names:
                group.create_task(call(name))
        if self.attempts == 1:
            raise RuntimeError("broken off")
        await ctx.yield_output(results)


async def resumed(pair: Pair) -> tuple[Any, list[str]]:
    workflow = WorkflowBuilder(start_executor=pair, name="pair", checkpoint_storage=InMemoryCheckpointStorage()).build()
    with pytest.raises(RuntimeError, match="broken off"):
        await workflow.run("go", run_id="r")
    result = await workflow.run(run_id="r")
    return result.get_outputs()[0], [str(event.data) for event in result if event.type == "warning"]


@pytest.mark.parametrize("kind", KINDS)
async def test_two_at_once_get_their_own_results_when_the_other_one_starts_first(kind: str) -> None:
    results, warnings = await resumed(Pair(KINDS[kind]))
    assert results == {"a": "result of a", "b": "result of b"}
    assert warnings == []


async def test_a_record_that_answers_a_call_with_other_values_says_so() -> None:
    _, warnings = await resumed(Pair(KINDS["lambda"], recorded=1))
    assert any("captured other values" in text and "key=" in text for text in warnings)


async def test_methods_of_two_objects_are_told_apart_by_their_order_and_that_is_said() -> None:
    _, warnings = await resumed(Pair(lambda what: Site(what).fetch))
    assert any("different objects" in text and "key=" in text for text in warnings)


class Colour(enum.Enum):
    RED = 1


@dataclass
class Mutable:
    what: str


def test_what_can_change_and_what_an_ordinary_function_is_do_not_count() -> None:
    changing: list[Any] = [1]
    site = Site("x")
    assert brought_along(fetch) == []
    assert brought_along(Site) == []
    assert brought_along(lambda: changing) == []
    assert brought_along(lambda: (changing, site)) == []
    assert brought_along(site.fetch) == []
    assert brought_along(lambda: Mutable("a")) == []


@pytest.mark.parametrize("value", [1, "a", None, b"b", 1.5, (1, "a"), Path("p"), Message("user", "hello"), Colour.RED])
def test_what_cannot_change_counts(value: Any) -> None:
    assert brought_along(lambda: value)
    assert brought_along(partial(fetch, value)) != brought_along(partial(fetch, "another"))


def test_calls_are_named_by_their_function() -> None:
    assert call_name(fetch) == "fetch"
    assert call_name(Site("x").fetch) == "Site.fetch"
    assert call_name(closure("x")) == "inner"
    assert call_name(Site) == "Site"
