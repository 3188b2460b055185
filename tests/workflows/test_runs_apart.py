"""What runs have in common, and what they do not: shared empty values, arguments for tools, routes."""

from __future__ import annotations

from typing import Any

from stepwell import WorkflowBuilder, WorkflowContext, executor
from stepwell.workflows.context import run_kwargs


async def echo(message: str, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(message)


async def test_what_a_caller_writes_into_the_usage_of_a_result_is_not_in_other_results() -> None:
    workflow = WorkflowBuilder(start_executor=executor(echo)).build()
    first = await workflow.run("one")
    scribbled: Any = first.usage
    scribbled["nobody"] = {"calls": 1}

    second = await workflow.run("two")

    assert second.usage == {}


async def test_a_run_that_a_handler_starts_has_none_of_the_arguments_for_tools_of_the_run_around_it() -> None:
    seen: list[Any] = []

    @executor(id="inside")
    async def inside(message: str, ctx: WorkflowContext[None, str]) -> None:
        seen.append(dict(run_kwargs.get().function_invocation))

    inner = WorkflowBuilder(start_executor=inside).build()

    @executor(id="around")
    async def around(message: str, ctx: WorkflowContext[None, str]) -> None:
        await inner.run(message)
        seen.append(dict(run_kwargs.get().function_invocation))

    workflow = WorkflowBuilder(start_executor=around).build()
    await workflow.run("go", function_invocation_kwargs={"user": "ada"})

    assert seen == [{}, {"user": "ada"}]


async def test_an_edge_with_a_condition_is_asked_beside_one_without() -> None:
    reached: list[str] = []

    @executor(id="source")
    async def source(message: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(message)

    @executor(id="always")
    async def always(message: int, ctx: WorkflowContext) -> None:
        reached.append(f"always {message}")

    @executor(id="large")
    async def large(message: int, ctx: WorkflowContext) -> None:
        reached.append(f"large {message}")

    builder = WorkflowBuilder(start_executor=source).add_edge(source, always)
    workflow = builder.add_edge(source, large, condition=lambda number: number > 5).build()
    await workflow.run(1)
    await workflow.run(9)

    assert reached == ["always 1", "always 9", "large 9"]
