"""A program in the shape of agent-framework's public documentation: only its import line and its client differ."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable
from typing import Any, cast

from stepwell import Agent, AgentResponseUpdate, Message, WorkflowEvent
from stepwell.orchestrations import (
    GroupChatRequestSentEvent,
    MagenticBuilder,
    MagenticPlanReviewRequest,
    MagenticPlanReviewResponse,
    MagenticProgressLedger,
)
from stepwell.testing import ScriptedChatClient
from tests.orchestrations.teams import DONE, FACTS, PLAN, TASK, ledger

REVISED = json.dumps({"steps": [{"owner": "CoderAgent", "text": "Compute."}]})


async def test_the_documented_event_loop_and_plan_review() -> None:
    script = [FACTS, PLAN, REVISED, ledger("CoderAgent", "Compute it."), DONE, "42."]
    researcher_agent = Agent(
        name="ResearcherAgent",
        description="Specialist in research and information gathering",
        instructions="You are a Researcher.",
        client=ScriptedChatClient(lambda messages: "Found."),
    )
    coder_agent = Agent(
        name="CoderAgent",
        description="A helpful assistant that writes and executes code",
        instructions="You solve questions using code.",
        client=ScriptedChatClient(lambda messages: "Computed."),
    )
    manager_agent = Agent(
        name="MagenticManager",
        description="Orchestrator that coordinates the research and coding workflow",
        instructions="You coordinate a team to complete complex tasks efficiently.",
        client=ScriptedChatClient(list(script)),
    )
    workflow = MagenticBuilder(
        participants=[researcher_agent, coder_agent],
        enable_plan_review=True,
        manager_agent=manager_agent,
        max_round_count=10,
        max_stall_count=1,
        max_reset_count=2,
    ).build()
    shown: list[str] = []

    async def process_event_stream(stream: AsyncIterable[WorkflowEvent]) -> dict[str, Any] | None:
        requests: dict[str, MagenticPlanReviewRequest] = {}
        async for event in stream:
            if event.type == "request_info" and event.request_type is MagenticPlanReviewRequest:
                requests[event.request_id or ""] = cast(MagenticPlanReviewRequest, event.data)
            elif event.type == "intermediate" and isinstance(event.data, AgentResponseUpdate):
                if not event.data.text:
                    continue
                shown.append(f"{event.executor_id}: {event.data}")
            elif event.type == "magentic_orchestrator":
                if isinstance(event.data.content, Message):
                    shown.append(f"{event.data.event_type.name} {event.data.content.text[:11]}")
                elif isinstance(event.data.content, MagenticProgressLedger):
                    json.dumps(event.data.content.to_dict(), indent=2)
            elif event.type == "group_chat" and isinstance(event.data, GroupChatRequestSentEvent):
                shown.append(f"asked {event.data.participant_name}")
            elif event.type == "output":
                shown.append(event.data.messages[-1].text)
        responses: dict[str, MagenticPlanReviewResponse] = {}
        for request_id, request in requests.items():
            has_seen_it = "Compute." in request.plan.text
            responses[request_id] = request.approve() if has_seen_it else request.revise("Let the coder do it.")
        return responses or None

    pending_responses = await process_event_stream(workflow.run(TASK, stream=True))
    while pending_responses is not None:
        stream = workflow.run(stream=True, responses=pending_responses)
        pending_responses = await process_event_stream(stream)

    assert shown == [
        "PLAN_CREATED The request",
        "REPLANNED The request",
        "asked CoderAgent",
        "CoderAgent: Computed.",
        "42.",
    ]
