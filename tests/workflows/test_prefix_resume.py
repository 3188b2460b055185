"""Any prefix of supersteps, then a resume in a workflow built anew, gives the outputs of an undisturbed run.

Graphs are random sequences of stages (relays, fan-outs that join again, switches, loops, shared state, questions). Each
turns a text into one that tells the way it took.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell import (
    Case,
    Default,
    Executor,
    InMemoryCheckpointStorage,
    ResponseStream,
    Workflow,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowContext,
    WorkflowRunResult,
    handler,
    response_handler,
)

Kind = Literal["relay", "fan", "switch", "loop", "state", "ask"]


@dataclass(frozen=True)
class Stage:
    """One stage of a random graph; `size` is how many branches or rounds it has."""

    kind: Kind
    size: int


class Step(Executor):
    """Adds its name and how often it was called, which only its saved state can tell after a resume."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.calls: dict[int, str] = {}

    def passed(self, text: str) -> str:
        self.calls[len(self.calls)] = text
        return f"{text} {self.id}.{len(self.calls)}"

    @handler
    async def step(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.send_message(self.passed(text))

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"calls": self.calls}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


class Join(Step):
    @handler
    async def join(self, texts: list[str], ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"joined {len(texts)}")
        await ctx.send_message(self.passed(f"[{' | '.join(texts)}]"))


class Loop(Step):
    """Sends to itself until it has been called `rounds` times, then on."""

    def __init__(self, id: str, rounds: int) -> None:
        super().__init__(id)
        self.rounds = rounds

    @handler
    async def step(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        text = self.passed(text)
        await ctx.yield_output(f"round {len(self.calls)}")
        again = len(self.calls) % (self.rounds + 1) != 0
        await ctx.send_message(text, target_id=self.id if again else self.id + "-end")


class Remember(Step):
    """Writes shared state that later stages read."""

    @handler
    async def step(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        trail = [*ctx.get_state("trail", ()), self.id]
        ctx.set_state("trail", tuple(trail))
        await ctx.send_message(self.passed(f"{text} after {'+'.join(trail)}"))


class Ask(Step):
    """Asks `questions` questions and sends on each answer."""

    def __init__(self, id: str, questions: int) -> None:
        super().__init__(id)
        self.questions = questions

    @handler
    async def step(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        for number in range(self.questions):
            await ctx.request_info(f"{self.passed(text)} q{number}", str)

    @response_handler
    async def answered(self, question: str, answer: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.send_message(self.passed(f"({answer})"))


class End(Step):
    @handler
    async def step(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(self.passed(text))


def is_even(text: str) -> bool:
    return len(text) % 2 == 0


def build(stages: list[Stage], storage: InMemoryCheckpointStorage) -> Workflow:
    """The same graph each time, with executors that remember nothing."""
    last: Any = lambda: Step("start")  # noqa: E731
    builder = WorkflowBuilder(start_executor=last, checkpoint_storage=storage, name="random", max_iterations=None)
    for index, stage in enumerate(stages):
        last = add_stage(builder, last, f"{stage.kind}{index}", stage)
    return builder.add_edge(last, lambda: End("end")).build()


def add_stage(builder: WorkflowBuilder, last: Any, name: str, stage: Stage) -> Any:
    end: Any = lambda: Step(f"{name}-end")  # noqa: E731
    middle: list[Any] = [_step(f"{name}-{number}") for number in range(stage.size + 1)]
    match stage.kind:
        case "relay":
            builder.add_chain([last, *middle, end])
        case "fan":
            end = lambda: Join(f"{name}-end")  # noqa: E731
            builder.add_fan_out_edges(last, middle).add_fan_in_edges(middle, end)
        case "switch":
            one, other = middle[0], middle[-1]
            builder.add_switch_case_edge_group(last, [Case(is_even, one), Default(other)])
            builder.add_edge(one, end).add_edge(other, end)
            builder.add_chain([last, *middle[1:-1], end]) if len(middle) > 2 else None
        case "loop":
            loop: Any = lambda: Loop(name, stage.size)  # noqa: E731
            builder.add_edge(last, loop).add_edge(loop, loop).add_edge(loop, end)
        case "state":
            remember: Any = lambda: Remember(name)  # noqa: E731
            builder.add_chain([last, remember, end])
        case "ask":
            ask: Any = lambda: Ask(name, stage.size)  # noqa: E731
            builder.add_chain([last, ask, end])
    return end


def _step(name: str) -> Any:
    return lambda: Step(name)


def answers(result: WorkflowRunResult) -> dict[str, str]:
    return {str(event.request_id): f"re {event.data}" for event in result.get_request_info_events()}


async def finish(stages: list[Stage], storage: InMemoryCheckpointStorage, result: WorkflowRunResult) -> list[Any]:
    """Answer whatever is asked, in workflows built anew, until the run is over."""
    while pending := answers(result):
        result = await build(stages, storage).run(run_id=result.run_id, responses=pending)
    return result.get_outputs()


async def undisturbed(stages: list[Stage], storage: InMemoryCheckpointStorage) -> list[Any]:
    return await finish(stages, storage, await build(stages, storage).run("go", run_id="r"))


async def copied_up_to(kept: list[WorkflowCheckpoint], index: int) -> InMemoryCheckpointStorage:
    """A storage that holds what was there after the first checkpoints, carried over as JSON text."""
    copy = InMemoryCheckpointStorage()
    for checkpoint in kept[: index + 1]:
        await copy.save(WorkflowCheckpoint.from_dict(json.loads(json.dumps(checkpoint.to_dict()))))
    return copy


STAGES = st.lists(
    st.builds(Stage, st.sampled_from(["relay", "fan", "switch", "loop", "state", "ask"]), st.integers(1, 3)),
    min_size=1,
    max_size=4,
)
RANDOM_GRAPHS = settings(max_examples=60, deadline=None)


@RANDOM_GRAPHS
@given(STAGES, st.data())
def test_a_run_interrupted_after_any_superstep_ends_as_if_it_had_not_been(stages: list[Stage], data: Any) -> None:
    async def check() -> None:
        storage, other = InMemoryCheckpointStorage(), InMemoryCheckpointStorage()
        expected = await undisturbed(stages, storage)
        supersteps = (await storage.list_runs())[0].supersteps
        prefix = data.draw(st.integers(0, supersteps), label="supersteps before the interruption")
        stream = build(stages, other).run("go", run_id="r", stream=True)
        async for event in stream:
            if event.type == "checkpoint" and event.iteration == prefix:
                break
        await stream.aclose()
        result = await build(stages, other).run("go", run_id="r")
        assert await finish(stages, other, result) == expected

    asyncio.run(check())


@RANDOM_GRAPHS
@given(STAGES, st.data())
def test_any_checkpoint_copied_to_another_storage_goes_on_to_the_same_end(stages: list[Stage], data: Any) -> None:
    async def check() -> None:
        storage = InMemoryCheckpointStorage()
        expected = await undisturbed(stages, storage)
        kept = await storage.list_checkpoints(run_id="r")
        copy = await copied_up_to(kept, data.draw(st.integers(0, len(kept) - 1), label="checkpoint"))
        assert await finish(stages, copy, await build(stages, copy).run(run_id="r")) == expected

    asyncio.run(check())


@RANDOM_GRAPHS
@given(STAGES, st.data())
def test_a_branch_from_any_checkpoint_goes_on_to_the_same_end(stages: list[Stage], data: Any) -> None:
    async def check() -> None:
        storage = InMemoryCheckpointStorage()
        expected = await undisturbed(stages, storage)
        kept = await storage.list_checkpoint_ids(run_id="r")
        chosen = data.draw(st.sampled_from(kept), label="checkpoint")
        branch = await build(stages, storage).run(checkpoint_id=chosen, branch=True)
        assert await finish(stages, storage, branch) == expected
        assert await storage.list_checkpoint_ids(run_id="r") == kept

    asyncio.run(check())


async def stopped_after_a_superstep(stream: ResponseStream) -> bool:
    """Read until a superstep has ended; false if there was none any more."""
    async for event in stream:
        if event.type == "superstep_completed":
            return True
    return False


@settings(max_examples=20, deadline=None)
@given(STAGES)
def test_a_run_interrupted_after_every_superstep_ends_as_if_it_had_not_been(stages: list[Stage]) -> None:
    async def check() -> None:
        storage, other = InMemoryCheckpointStorage(), InMemoryCheckpointStorage()
        expected = await undisturbed(stages, storage)
        responses: dict[str, str] = {}
        outputs: list[Any] | None = None
        while outputs is None:
            workflow = build(stages, other)
            if responses:
                stream = workflow.run(run_id="r", responses=responses, stream=True)
            else:
                stream = workflow.run("go", run_id="r", stream=True)
            responses = {}
            async with stream:
                if not await stopped_after_a_superstep(stream):
                    result = await stream.get_final_response()
                    responses = answers(result)
                    outputs = None if responses else result.get_outputs()
        assert outputs == expected

    asyncio.run(check())
