"""The guide's program (seed 000): pause for a plan review, leave the process, resume in another one.

Nothing differs from it but the import line, the client, and that the two halves are run one after the other:

    python -m tests.orchestrations.guide_program pause STORE
    python -m tests.orchestrations.guide_program resume STORE approve|edit|revise|reject
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import stepwell
from stepwell import Agent, WorkflowRunState
from stepwell.orchestrations import MagenticBuilder, MagenticPlanReviewRequest
from stepwell.testing import ScriptedChatClient
from tests.orchestrations.teams import DONE, FACTS, PLAN, ledger

REVISED = json.dumps({"steps": [{"owner": "writer", "text": "Write a haiku."}]})
FIRST = [FACTS, PLAN]
WORK = [ledger("researcher"), ledger("writer"), DONE, "The brief."]

researcher = Agent(ScriptedChatClient(lambda messages: "Notes."), name="researcher", description="Finds out")
writer = Agent(ScriptedChatClient(lambda messages: "Draft."), name="writer", description="Writes")
script = ScriptedChatClient()
manager = Agent(script, name="manager")


def storage_at(path: str) -> Any:
    kind = getattr(stepwell, "FileCheckpointStorage", None)
    if path.endswith(".db") or kind is None:
        from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage

        return SQLiteCheckpointStorage(Path(path))
    return kind(Path(path))


def build_workflow(storage: Any) -> Any:
    return MagenticBuilder(
        participants=[researcher, writer],
        enable_plan_review=True,
        checkpoint_storage=storage,
        manager_agent=manager,
    ).build()


async def pause(path: str) -> dict[str, Any]:
    script.add(*FIRST)
    storage = storage_at(path)
    workflow = build_workflow(storage)

    # Run until human review is needed
    plan_request = None
    async for ev in workflow.run("Draft a brief...", stream=True):
        if ev.type == "request_info" and isinstance(ev.data, MagenticPlanReviewRequest):
            plan_request = ev.data
        if ev.state == WorkflowRunState.IDLE_WITH_PENDING_REQUESTS:
            break

    assert plan_request is not None
    return {"request": plan_request.request_id, "plan": plan_request.plan.text}


async def resume(path: str, how: str) -> dict[str, Any]:
    storage = storage_at(path)
    workflow = build_workflow(storage)

    # Retrieve the checkpoint
    checkpoint = await storage.get_latest(workflow_name=workflow.name)
    [pending] = checkpoint.pending_request_info_events.values()
    plan_request = pending.data
    answers = {
        "approve": plan_request.approve,
        "edit": lambda: plan_request.approve(edited_plan=plan_request.plan.without(0).added("Check it.", "researcher")),
        "edit as text": lambda: plan_request.approve(edited_plan="- Writer: Write it.\n- researcher: Check it."),
        "revise": lambda: plan_request.revise("A haiku, please."),
        "reject": lambda: plan_request.reject("Too expensive."),
    }
    script.add(*([REVISED] if how == "revise" else WORK))

    outputs, asked, final_state = [], [], None
    async for ev in workflow.run(
        checkpoint_id=checkpoint.checkpoint_id,
        stream=True,
        responses={plan_request.request_id: answers[how]()},
    ):
        if ev.type == "output":
            outputs.append(str(ev.data))
        if ev.type == "request_info":
            asked.append({"request": ev.request_id, "same": ev.data.request_id, "plan": ev.data.plan.text})
        final_state = ev.state or final_state
    told = [message.text for call in script.asked for message in call.messages]
    return {"outputs": outputs, "asked": asked, "state": final_state, "told": told, "request": plan_request.request_id}


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    print(json.dumps(asyncio.run({"pause": pause, "resume": resume}[command](*arguments))))
