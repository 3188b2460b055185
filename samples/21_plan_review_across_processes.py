"""A team's plan waits for a person, on disk. Whoever comes back, in whatever process, answers it from the checkpoint.

    python samples/21_plan_review_across_processes.py plan                     # plans, and ends; the plan waits
    python samples/21_plan_review_across_processes.py revise "Ask a lawyer."   # the manager makes another plan
    python samples/21_plan_review_across_processes.py edit "writer: Write it." # or you do, and the team goes to work
    python samples/21_plan_review_across_processes.py approve                  # or the plan is good as it is
    python samples/21_plan_review_across_processes.py reject "Too expensive."  # or nothing is done at all

Without arguments it plans and approves. The checkpoints are JSON files in the folder that STEPWELL_STORE names.
"""

import asyncio
import os
import sys
from pathlib import Path

from models import model, model_or

from stepwell import Agent, FileCheckpointStorage, Workflow, WorkflowRunState
from stepwell.orchestrations import (
    GroupChatRequestSentEvent,
    MagenticBuilder,
    MagenticPlanReviewRequest,
    MagenticPlanReviewResponse,
)
from stepwell.testing import scripted_manager

CHECKPOINTS = Path(os.environ.get("STEPWELL_STORE", ".stepwell/checkpoints"))


def build_workflow(storage: FileCheckpointStorage) -> Workflow:
    brain = scripted_manager(
        ("researcher", "Find out what stepwells are for."),
        ("writer", "Write the brief."),
        answer="Stepwells keep water within reach: restore yours.",
    )
    researcher = Agent(model(lambda _: "They reach water at any level."), name="researcher", description="Finds out.")
    writer = Agent(model(lambda _: "Steps lead down to the water."), name="writer", description="Writes.")
    return MagenticBuilder(
        participants=[researcher, writer],
        manager_agent=Agent(model_or(brain), name="manager"),
        enable_plan_review=True,
        checkpoint_storage=storage,
        max_round_count=8,
    ).build()


async def plan(storage: FileCheckpointStorage) -> None:
    workflow = build_workflow(storage)
    async for event in workflow.run("Draft a brief on stepwells.", stream=True):
        if event.type == "request_info" and isinstance(event.data, MagenticPlanReviewRequest):
            print(f"the plan waits:\n{event.data.plan.text}")
        if event.state == WorkflowRunState.IDLE_WITH_PENDING_REQUESTS:
            break


def decision(request: MagenticPlanReviewRequest, word: str, text: str) -> MagenticPlanReviewResponse:
    match word:
        case "revise":
            return request.revise(text)
        case "edit":
            return request.approve(edited_plan=text)
        case "reject":
            return request.reject(text)
        case _:
            return request.approve()


async def answer(storage: FileCheckpointStorage, word: str, text: str) -> None:
    workflow = build_workflow(storage)
    checkpoint = await storage.get_latest(workflow_name=workflow.name)
    if checkpoint is None or not checkpoint.pending_request_info_events:
        sys.exit("no plan waits for an answer")
    [request] = [pending.data for pending in checkpoint.pending_request_info_events.values()]
    responses = {request.request_id: decision(request, word, text)}
    async for event in workflow.run(checkpoint_id=checkpoint.checkpoint_id, responses=responses, stream=True):
        if event.type == "request_info":
            print(f"the plan waits again:\n{event.data.plan.text}")
        elif isinstance(event.data, GroupChatRequestSentEvent):
            print(f"  manager to {event.data.participant_name}: {event.data.instruction}")
        elif event.type == "output":
            print(f"final result: {event.data.text}")


async def main() -> None:
    async with FileCheckpointStorage(CHECKPOINTS) as storage:
        match sys.argv[1:]:
            case []:
                await plan(storage)
                await answer(storage, "approve", "")
            case ["plan"]:
                await plan(storage)
            case ["approve" | "revise" | "edit" | "reject" as word, *text]:
                await answer(storage, word, " ".join(text))
            case _:
                sys.exit(__doc__)


if __name__ == "__main__":
    asyncio.run(main())
