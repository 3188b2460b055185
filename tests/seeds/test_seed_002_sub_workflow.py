"""Seed 002, sample 3, "sub-workflow checkpoint": a draft is written and reviewed by a workflow inside a workflow.

Every step of the story is a process of its own, which ends, or is killed; the store and the outside world are all that
is left of it. Run as a program, this file is that process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepwell import (
    Executor,
    SQLiteCheckpointStorage,
    SubWorkflowRequestMessage,
    SubWorkflowResponseMessage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    handler,
    response_handler,
)
from stepwell.testing import CrashingStorage

REPOSITORY = Path(__file__).resolve().parents[2]


# --- the program ------------------------------------------------------------------------------------------------------


@dataclass
class DraftTask:
    topic: str
    feedback: list[str] = field(default_factory=list)


@dataclass
class Draft:
    task: DraftTask
    text: str


@dataclass
class ReviewRequest:
    text: str
    iteration: int


@dataclass
class ReviewDecision:
    approved: bool
    feedback: str = ""


@dataclass
class FinalDraft:
    text: str
    iterations: int


class DraftWriter(Executor):
    """Writes with a model, which costs money: each call is noted where the test can count them."""

    def __init__(self, world: Path) -> None:
        super().__init__("draft_writer")
        self.world = world

    @handler
    async def write(self, task: DraftTask, ctx: WorkflowContext[Draft]) -> None:
        text = await ctx.call(self.model, task.topic, len(task.feedback))
        await ctx.send_message(Draft(task, text))

    def model(self, topic: str, revision: int) -> str:
        with (self.world / "calls").open("a", encoding="utf-8") as calls:
            calls.write(f"{topic} {revision}\n")
        return f"On {topic}, take {revision + 1}."


class DraftReviewRouter(Executor):
    """Asks for a review, and counts how often it did."""

    def __init__(self) -> None:
        super().__init__("router")
        self.iteration = 0
        self.draft: Draft | None = None

    @handler
    async def review(self, draft: Draft, ctx: WorkflowContext[DraftTask | FinalDraft]) -> None:
        self.iteration += 1
        self.draft = draft
        await ctx.request_info(ReviewRequest(draft.text, self.iteration), ReviewDecision)

    @response_handler
    async def decided(
        self, request: ReviewRequest, decision: ReviewDecision, ctx: WorkflowContext[DraftTask | FinalDraft]
    ) -> None:
        assert self.draft is not None
        if decision.approved:
            await ctx.send_message(FinalDraft(request.text, self.iteration))
        else:
            task = self.draft.task
            await ctx.send_message(DraftTask(task.topic, [*task.feedback, decision.feedback]))

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"iteration": self.iteration, "draft": self.draft}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.iteration, self.draft = state["iteration"], state["draft"]


class DraftFinaliser(Executor):
    @handler
    async def finalise(self, draft: FinalDraft, ctx: WorkflowContext[FinalDraft, FinalDraft]) -> None:
        await ctx.yield_output(draft)


class LaunchCoordinator(Executor):
    """The parent's executor: starts the inner workflow, and stands between it and the person."""

    def __init__(self) -> None:
        super().__init__("coordinator")
        self.waiting: dict[int, SubWorkflowRequestMessage] = {}

    @handler
    async def launch(self, topic: str, ctx: WorkflowContext[DraftTask]) -> None:
        await ctx.send_message(DraftTask(topic))

    @handler
    async def asked(
        self, request: SubWorkflowRequestMessage, ctx: WorkflowContext[SubWorkflowResponseMessage, str]
    ) -> None:
        review = request.source_event.data
        self.waiting[review.iteration] = request
        await ctx.request_info(review, ReviewDecision)

    @response_handler
    async def answered(
        self, review: ReviewRequest, decision: ReviewDecision, ctx: WorkflowContext[SubWorkflowResponseMessage, str]
    ) -> None:
        request = self.waiting.pop(review.iteration)
        await ctx.send_message(request.create_response(decision), target_id=request.executor_id)

    @handler
    async def done(self, draft: FinalDraft, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{draft.text} ({draft.iterations} reviews)")

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"waiting": self.waiting}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.waiting = dict(state["waiting"])


def build(world: Path, storage: Any) -> Workflow:
    writer, router, finaliser = DraftWriter(world), DraftReviewRouter(), DraftFinaliser("finaliser")
    review = (
        WorkflowBuilder(start_executor=writer, name="draft-review")
        .add_edge(writer, router)
        .add_edge(router, writer, condition=lambda message: isinstance(message, DraftTask))
        .add_edge(router, finaliser, condition=lambda message: isinstance(message, FinalDraft))
        .build()
    )
    coordinator, sub = LaunchCoordinator(), WorkflowExecutor(review, id="sub_workflow")
    return (
        WorkflowBuilder(start_executor=coordinator, name="launch", checkpoint_storage=storage)
        .add_edge(coordinator, sub)
        .add_edge(sub, coordinator)
        .build()
    )


async def main(world: Path, answer: dict[str, Any] | None) -> None:
    """Start, or answer what the newest checkpoint waits for. What is asked and put out is told as JSON."""
    async with SQLiteCheckpointStorage(world / "runs.db") as disk:
        workflow = build(world, CrashingStorage(disk))
        latest = await disk.get_latest(workflow_name=workflow.name)
        if latest is None:
            result = await workflow.run("durable teams")
        elif answer is None or not latest.pending_request_info_events:
            result = await workflow.run(checkpoint_id=latest.checkpoint_id)
        else:
            [request_id] = latest.pending_request_info_events
            result = await workflow.run(checkpoint_id=latest.checkpoint_id, responses={request_id: answer})
        asked = [event.data.text for event in result.get_request_info_events()]
        print(json.dumps({"asked": asked, "outputs": result.get_outputs(), "state": result.get_final_state()}))


# --- the story --------------------------------------------------------------------------------------------------------


def process(world: Path, answer: dict[str, Any] | None = None, *, crash_at: str = "") -> dict[str, Any] | None:
    """One process, from start to end; None if it was killed on the way."""
    arguments = [sys.executable, "-W", "error", __file__, str(world), json.dumps(answer)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "STEPWELL_CRASH_AT": crash_at}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if crash_at and done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def calls(world: Path) -> list[str]:
    return (world / "calls").read_text(encoding="utf-8").splitlines()


REVISE = {"approved": False, "feedback": "shorter"}
APPROVE = {"approved": True}
OUTPUT = "On durable teams, take 2. (2 reviews)"


def test_a_draft_is_reviewed_in_three_processes(tmp_path: Path) -> None:
    first = process(tmp_path)
    assert first == {"asked": ["On durable teams, take 1."], "outputs": [], "state": "IDLE_WITH_PENDING_REQUESTS"}
    second = process(tmp_path, REVISE)
    assert second == {"asked": ["On durable teams, take 2."], "outputs": [], "state": "IDLE_WITH_PENDING_REQUESTS"}
    third = process(tmp_path, APPROVE)
    assert third == {"asked": [], "outputs": [OUTPUT], "state": "IDLE"}

    assert calls(tmp_path) == ["durable teams 0", "durable teams 1"]


def test_a_process_that_only_looks_asks_the_same_question_again(tmp_path: Path) -> None:
    first = process(tmp_path)

    assert process(tmp_path) == first
    assert calls(tmp_path) == ["durable teams 0"]


def test_processes_that_are_killed_inside_the_inner_workflow_repeat_no_model_call(tmp_path: Path) -> None:
    assert process(tmp_path, crash_at="after call#1") is None
    first = process(tmp_path)
    assert first is not None
    assert first["asked"] == ["On durable teams, take 1."]

    # The answer is on the record before anything is done with it, so the next process needs not be told again.
    assert process(tmp_path, REVISE, crash_at="after call#1") is None
    second = process(tmp_path)
    assert second is not None
    assert second["asked"] == ["On durable teams, take 2."]

    assert process(tmp_path, APPROVE, crash_at="before last checkpoint") is None
    third = process(tmp_path)
    assert third is not None
    assert third["outputs"] == [OUTPUT]
    assert calls(tmp_path) == ["durable teams 0", "durable teams 1"]


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
