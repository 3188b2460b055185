"""The programs that are killed. Each is started as a process of its own:

    python -m tests.faults.workloads --store sqlite:/tmp/runs.db --run-id r1 --workload rounds --oracle /tmp/r1.oracle

It runs its line (`workflow.run(message, run_id=…)`), and tells on standard output, one JSON object per line, that it is
`running`, which `request`s wait, and how it ended: `output` or `error`. The same command again is a resume.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from stepwell import CallFailed, Executor, Workflow, WorkflowBuilder, WorkflowContext, handler
from stepwell.checkpointing.journal import CallVerdict, enclosing_idempotency_key
from stepwell.errors import StepwellError
from stepwell.testing.crash import CRASH_VARIABLE, CrashingStorage, Watcher, reached
from tests.faults.backends import backend_of, open_store
from tests.faults.oracle import Oracle
from tests.faults.troubles import TROUBLES, Ahead, obey_permissions


@dataclass(frozen=True, slots=True)
class Shape:
    """How much there is to do."""

    workers: int
    calls: int
    rounds: int

    def names(self) -> list[str]:
        """Every call there is, by name."""
        return [
            call_name(f"worker-{worker}", round, call)
            for round in range(1, self.rounds + 1)
            for worker in range(1, self.workers + 1)
            for call in range(1, self.calls + 1)
        ]


def call_name(worker: str, round: int, call: int) -> str:
    return f"{worker}.{round}.{call}"


def answer_to(name: str) -> str:
    """What the model says to this call: nobody else's answer looks like it."""
    return f"{name}={hashlib.blake2b(name.encode(), digest_size=6).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Desk:
    """The outside world of one process: the model, and the oracle that sees each call."""

    oracle: Oracle
    call_ms: float = 5.0

    async def ask(self, name: str) -> str:
        """A model call. Its effect has taken place when `finish` is noted."""
        key = enclosing_idempotency_key() or "-"
        self.oracle.note("start", key, name)
        reached("in call")
        await asyncio.sleep(random.uniform(0.5, 1.5) * self.call_ms / 1000)
        self.oracle.note("finish", key, name)
        reached("finished call")
        return answer_to(name)


# --- rounds: a planner, workers in one superstep, a join -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Round:
    number: int
    of: int


@dataclass(frozen=True, slots=True)
class Report:
    worker: str
    round: int
    of: int
    answers: tuple[str, ...]
    total: int
    """How many answers this worker has had in all, by its own count."""


class Planner(Executor):
    """Begins each round, and counts them."""

    def __init__(self) -> None:
        super().__init__("planner")
        self._begun = 0

    @handler
    async def start(self, rounds: int, ctx: WorkflowContext[Round]) -> None:
        self._begun += 1
        await ctx.send_message(Round(1, rounds))

    @handler
    async def go_on(self, done: Round, ctx: WorkflowContext[Round]) -> None:
        self._begun += 1
        await ctx.send_message(Round(done.number + 1, done.of))

    async def on_checkpoint_save(self) -> dict[str, int]:
        return {"begun": self._begun}

    async def on_checkpoint_restore(self, state: dict[str, int]) -> None:
        self._begun = state["begun"]


class Worker(Executor):
    """Makes its calls one after the other, or all at once.

    All workers use one function with the same arguments in the same round: only where a call is made tells them apart.
    """

    def __init__(self, id: str, desk: Desk, calls: int, *, at_once: bool) -> None:
        super().__init__(id)
        self._desk = desk
        self._calls = calls
        self._at_once = at_once
        self._total = 0

    @handler
    async def work(self, task: Round, ctx: WorkflowContext[Report]) -> None:
        asking = (self._ask(task.number, call, ctx) for call in range(1, self._calls + 1))
        answers = await asyncio.gather(*asking) if self._at_once else [await one for one in asking]
        self._total += len(answers)
        await ctx.send_message(Report(self.id, task.number, task.of, tuple(answers), self._total))

    async def _ask(self, round: int, call: int, ctx: WorkflowContext[Report]) -> str:
        answer: str = await ctx.call(self.model, round, call)
        reached("acknowledged")
        return answer

    async def model(self, round: int, call: int) -> str:
        return await self._desk.ask(call_name(self.id, round, call))

    async def on_checkpoint_save(self) -> dict[str, int]:
        return {"total": self._total}

    async def on_checkpoint_restore(self, state: dict[str, int]) -> None:
        self._total = state["total"]


class Join(Executor):
    """Collects what was reported, and ends after the last round."""

    def __init__(self) -> None:
        super().__init__("join")
        self._reports: list[Report] = []

    @handler
    async def join_one(self, report: Report, ctx: WorkflowContext[Round, list[dict[str, Any]]]) -> None:
        await self.join([report], ctx)

    @handler
    async def join(self, reports: list[Report], ctx: WorkflowContext[Round, list[dict[str, Any]]]) -> None:
        self._reports += sorted(reports, key=lambda report: report.worker)
        round = reports[0]
        if round.round < round.of:
            await ctx.send_message(Round(round.round, round.of))
        else:
            await ctx.yield_output([asdict(report) for report in self._reports])

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"reports": self._reports}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._reports = list(state["reports"])


def team(desk: Desk, shape: Shape, *, at_once: bool = False) -> Workflow:
    """Fresh executors for each run, so that nothing but the store carries over."""
    planner, join = (lambda: Planner()), (lambda: Join())
    workers = [
        (lambda number=number: Worker(f"worker-{number}", desk, shape.calls, at_once=at_once))
        for number in range(1, shape.workers + 1)
    ]
    builder = WorkflowBuilder(start_executor=planner, name="rounds", max_iterations=100_000)
    if shape.workers == 1:
        builder.add_chain([planner, *workers, join])
    else:
        builder.add_fan_out_edges(planner, workers).add_fan_in_edges(workers, join)
    return builder.add_edge(join, planner).build()


def expected_of(shape: Shape) -> list[dict[str, Any]]:
    """What an uninterrupted run puts out."""
    return [
        {
            "worker": f"worker-{worker}",
            "round": round,
            "of": shape.rounds,
            "answers": [answer_to(call_name(f"worker-{worker}", round, call)) for call in range(1, shape.calls + 1)],
            "total": round * shape.calls,
        }
        for round in range(1, shape.rounds + 1)
        for worker in range(1, shape.workers + 1)
    ]


# --- payments: calls that must not be made twice ----------------------------------------------------------------------


class Payer(Executor):
    """Pays invoices one after the other, each at most once."""

    def __init__(self, desk: Desk) -> None:
        super().__init__("payer")
        self._desk = desk

    @handler
    async def pay_all(self, invoices: int, ctx: WorkflowContext[int, list[str]]) -> None:
        await ctx.yield_output([await self._pay(number, ctx) for number in range(1, invoices + 1)])

    async def _pay(self, number: int, ctx: WorkflowContext[int, list[str]]) -> str:
        try:
            receipt: str = await ctx.call(self.pay, number, at_most_once=True)
        except CallFailed as failure:
            return f"not paid: {failure.reason}"
        reached("acknowledged")
        return receipt

    async def pay(self, number: int) -> str:
        return await self._desk.ask(f"invoice.{number}")


def payments(desk: Desk) -> Workflow:
    return WorkflowBuilder(start_executor=lambda: Payer(desk), name="payments").build()


# --- which program ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Workload:
    """A program, and what it is started with."""

    build: Callable[[Desk, Shape], Workflow]
    shape: Shape

    def message(self, shape: Shape) -> int:
        return shape.rounds


WORKLOADS = {
    "rounds": Workload(team, Shape(workers=3, calls=3, rounds=20)),
    "pairs": Workload(team, Shape(workers=2, calls=10, rounds=10)),
    "gathered": Workload(lambda desk, shape: team(desk, shape, at_once=True), Shape(workers=2, calls=10, rounds=10)),
    "solo": Workload(team, Shape(workers=1, calls=3, rounds=2)),
    "payments": Workload(lambda desk, shape: payments(desk), Shape(workers=1, calls=3, rounds=3)),
}
"""`rounds` and `pairs` are those of the promise; `gathered` has each worker's calls under way all at once.
In `solo` nothing happens at once, so that what a kill at a named point costs is certain.
"""


# --- the process ------------------------------------------------------------------------------------------------------


def tell(event: str, **details: Any) -> None:
    """One line to whoever started this process."""
    sys.stdout.write(json.dumps({"event": event, **details}) + "\n")
    sys.stdout.flush()


def verdicts(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Answers from the command line: `{"request id": {"kind": "done", "result": …}}`."""
    return {request_id: CallVerdict(**answer) for request_id, answer in answers.items()}


async def run(options: argparse.Namespace, storage: Any) -> None:
    """The line that is the same before and after a crash."""
    workload = WORKLOADS[options.workload]
    shape = Shape(workload.shape.workers, workload.shape.calls, options.rounds or workload.shape.rounds)
    workflow = workload.build(Desk(options.pen, options.call_ms), shape)
    start = {"responses": verdicts(options.answers)} if options.answers else {"message": workload.message(shape)}
    tell("running", pid=os.getpid())
    try:
        result = await workflow.run(run_id=options.run_id, checkpoint_storage=storage, stream=options.stream, **start)
    except StepwellError as error:
        tell("error", type=type(error).__name__, text=str(error), holder=getattr(error, "holder", None))
        return
    reached("before output")
    for event in result.get_request_info_events():
        tell("request", request_id=event.request_id, data=asdict(event.data))
    outputs = [event.data for event in result if event.type == "output"]
    assert outputs == result.get_outputs(), "what is told and what is recorded differ"
    if outputs:
        options.pen.note("output")
        tell("output", value=outputs[0], state=result.get_final_state().value)
    reached("after output")


class Commits:
    """Tells the commits that hold the record of a call from all others; a `Watcher` on the way to the oracle's."""

    def __init__(self, watch: Watcher) -> None:
        self._watch = watch
        self._under_way = 0

    def __call__(self, point: str, subject: str) -> None:
        self._under_way += {"before call": 1, "after call": -1}.get(point, 0)
        self._watch(point, subject)

    def reached(self, point: str) -> None:
        """Before or after a commit, somewhere inside the storage."""
        reached(point if self._under_way else point.replace("commit", "other commit"))


async def live(options: argparse.Namespace, storage: Any, watcher: Watcher) -> None:
    """One run of the line; with trouble ahead a second one after the repair, on the same storage object."""
    if not options.trouble:
        await run(options, CrashingStorage(storage, watcher=watcher))
        return
    name, _, calls = options.trouble.partition("#")
    trouble = TROUBLES[name](options.store, options.pen)
    await run(options, CrashingStorage(storage, watcher=Ahead(trouble, int(calls), watcher)))
    trouble.end()
    if not options.leave:
        await run(options, CrashingStorage(storage, watcher=watcher))


async def main(options: argparse.Namespace) -> None:
    options.pen = Oracle(options.oracle)
    watcher = Commits(options.pen.watching(options.run_id))
    if "commit" in os.environ.get(CRASH_VARIABLE, ""):
        # Looking on costs time, so only when it is asked for.
        around_commits = backend_of(options.store).around_commits
        assert around_commits is not None, "this storage does not tell when it commits"
        around_commits(watcher.reached)
    if options.mortal:
        obey_permissions()
    if options.gate:
        tell("ready")
        await asyncio.to_thread(sys.stdin.readline)
    async with open_store(options.store, lease_seconds=options.lease) as storage:
        await live(options, storage, watcher)


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One life of a program that is killed.")
    parser.add_argument("--store", required=True, help="for example sqlite:/tmp/runs.db")
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="rounds")
    parser.add_argument("--oracle", required=True, help="the file that each call is noted in")
    parser.add_argument("--rounds", type=int, help="how many, if not the workload's own number")
    parser.add_argument("--call-ms", type=float, default=5.0, help="how long a call takes, on average")
    parser.add_argument("--lease", type=float, help="lease_seconds of the storage")
    parser.add_argument("--answers", type=json.loads, default={}, help="answers to requests, as JSON")
    parser.add_argument("--trouble", help="what befalls the store after so many calls: limit#10, io#10")
    parser.add_argument("--leave", action="store_true", help="do not try again after the repair")
    parser.add_argument("--mortal", action="store_true", help="obey file permissions although this may be root")
    parser.add_argument("--stream", action="store_true", help="take the events as they come")
    parser.add_argument("--gate", action="store_true", help="wait for a line on standard input first")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    asyncio.run(main(parsed()))
