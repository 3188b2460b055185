"""The program that is killed while it is four workflows deep and a request pends at three of them.

Each level asks a person at its gate and runs the next level beside it; in the innermost one the team of `workloads.py`
is at work. The process answers what is asked, one question at a time, so every kill finds another one open.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Any

from stepwell import (
    Executor,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    handler,
    response_handler,
)
from stepwell.errors import StepwellError
from stepwell.testing.crash import CrashingStorage, reached
from tests.faults.backends import open_store
from tests.faults.oracle import Oracle
from tests.faults.workloads import WORKLOADS, Desk, Shape, Workload, parsed, team, tell

LEVELS = 3


class Entrance(Executor):
    """Starts what is at this level."""

    @handler
    async def enter(self, rounds: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(rounds)


class Gate(Executor):
    """Calls, asks a person about the answer, and calls again; it remembers what it was told."""

    def __init__(self, level: int, desk: Desk) -> None:
        super().__init__("gate")
        self._level = level
        self._desk = desk
        self._told = ""

    @handler
    async def ask(self, rounds: int, ctx: WorkflowContext[str]) -> None:
        self._told = await ctx.call(self._desk.ask, f"gate-{self._level}.before", key="before")
        reached("acknowledged")
        await ctx.request_info(f"level {self._level}", str)

    @response_handler
    async def answered(self, question: str, answer: str, ctx: WorkflowContext[str]) -> None:
        after = await ctx.call(self._desk.ask, f"gate-{self._level}.after", key="after")
        reached("acknowledged")
        await ctx.send_message(f"{question}: {answer}, {self._told}, {after}")

    async def on_checkpoint_save(self) -> dict[str, str]:
        return {"told": self._told}

    async def on_checkpoint_restore(self, state: dict[str, str]) -> None:
        self._told = state["told"]


class Exit(Executor):
    """Waits for the gate and for the level below, and hands on what came from there."""

    @handler
    async def leave(self, both: list[Any], ctx: WorkflowContext[Any, list[dict[str, Any]]]) -> None:
        word, reports = both
        assert word.startswith("level"), word
        await ctx.yield_output(reports)


def nested(desk: Desk, shape: Shape, level: int = 1) -> Workflow:
    """A gate, and beside it the next level; below the last one is the team."""
    entrance, gate, leave = (lambda: Entrance("entrance")), (lambda: Gate(level, desk)), (lambda: Exit("exit"))
    below = nested(desk, shape, level + 1) if level < LEVELS else team(desk, shape)
    sub = WorkflowExecutor(below, "below", propagate_request=True)
    return (
        WorkflowBuilder(start_executor=entrance, name=f"level-{level}")
        .add_fan_out_edges(entrance, [gate, sub])
        .add_fan_in_edges([gate, sub], leave)
        .build()
    )


WORKLOADS["nested"] = Workload(nested, Shape(workers=2, calls=3, rounds=3))
GATE_CALLS = [f"gate-{level}.{when}" for level in range(1, LEVELS + 1) for when in ("before", "after")]


async def run(options: argparse.Namespace, storage: Any) -> None:
    """Start or resume, and answer until nothing is asked any more."""
    workload = WORKLOADS["nested"]
    shape = Shape(workload.shape.workers, workload.shape.calls, options.rounds or workload.shape.rounds)
    workflow = workload.build(Desk(options.pen, options.call_ms), shape)
    tell("running", pid=os.getpid())
    try:
        result = await workflow.run(workload.message(shape), run_id=options.run_id, checkpoint_storage=storage)
        while asked := result.get_request_info_events():
            for event in asked:
                tell("request", request_id=event.request_id, data=event.data)
            answer = {str(asked[0].request_id): "yes"}
            result = await workflow.run(run_id=options.run_id, responses=answer, checkpoint_storage=storage)
    except StepwellError as error:
        tell("error", type=type(error).__name__, text=str(error), holder=getattr(error, "holder", None))
        return
    reached("before output")
    options.pen.note("output")
    [value] = result.get_outputs()
    tell("output", value=value, state=result.get_final_state().value)
    reached("after output")


async def main(options: argparse.Namespace) -> None:
    options.pen = Oracle(options.oracle)
    async with open_store(options.store, lease_seconds=options.lease) as storage:
        await run(options, CrashingStorage(storage, watcher=options.pen.watching(options.run_id)))


if __name__ == "__main__":
    asyncio.run(main(parsed()))
