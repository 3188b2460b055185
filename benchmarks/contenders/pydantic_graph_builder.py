"""pydantic-graph, which keeps nothing: only the engine's workloads."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic_graph import BaseNode, End, GraphBuilder, GraphRunContext, StepContext, reduce_list_append

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measure import Figures, Stopwatch, contend


@dataclass
class Count(BaseNode[None, None, int]):
    value: int
    limit: int
    seconds: float

    async def run(self, ctx: GraphRunContext[None, None]) -> Count | End[int]:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        if self.value + 1 < self.limit:
            return Count(self.value + 1, self.limit, self.seconds)
        return End(self.value + 1)


def counting() -> object:
    builder = GraphBuilder(input_type=Count, output_type=int)
    builder.add(builder.node(Count), builder.edge_from(builder.start_node).to(Count))
    return builder.build()


async def counter(*, supersteps: int, seconds: float = 0.0) -> Figures:
    graph = counting()
    await graph.run(inputs=Count(0, 100, 0))
    with Stopwatch() as watch:
        result = await graph.run(inputs=Count(0, supersteps, seconds))
    assert result == supersteps
    return {"seconds": watch.seconds}


async def many_runs(*, runs: int, supersteps: int, seconds: float) -> Figures:
    graph = counting()
    with Stopwatch() as watch:
        await asyncio.gather(*(graph.run(inputs=Count(0, supersteps, seconds)) for _ in range(runs)))
    return {"seconds": watch.seconds}


async def fan_out(*, leaves: int, seconds: float) -> Figures:
    builder = GraphBuilder(input_type=int, output_type=int)

    @builder.step
    async def root(ctx: StepContext[None, None, int]) -> list[int]:
        return list(range(ctx.inputs))

    @builder.step
    async def leaf(ctx: StepContext[None, None, int]) -> int:
        await asyncio.sleep(seconds)
        return ctx.inputs

    @builder.step
    async def count(ctx: StepContext[None, None, list[int]]) -> int:
        return len(ctx.inputs)

    gather = builder.join(reduce_list_append, initial_factory=list[int])
    builder.add(
        builder.edge_from(builder.start_node).to(root),
        builder.edge_from(root).map().to(leaf),
        builder.edge_from(leaf).to(gather),
        builder.edge_from(gather).to(count),
        builder.edge_from(count).to(builder.end_node),
    )
    graph = builder.build()
    times = []
    for _ in range(3):
        with Stopwatch() as watch:
            result = await graph.run(inputs=leaves)
        assert result == leaves
        times.append(watch.seconds)
    return {"seconds": min(times)}


if __name__ == "__main__":
    contend({"counter": counter, "fan_out": fan_out, "many_runs": many_runs})
