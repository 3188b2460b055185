"""A Magentic team as a workflow inside a workflow: its plan is reviewed outside, its calls are repeated nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import InMemoryCheckpointStorage, Workflow, WorkflowBuilder, WorkflowExecutor, WorkflowRunState
from stepwell.testing import CrashingStorage, PowerLoss, ScriptedChatClient
from tests.orchestrations.teams import TASK, Team, usual
from tests.orchestrations.test_durability import EXPECTED, stateless


def newsroom(crew: Team, storage: Any, **options: Any) -> Workflow:
    """A team, and after it an agent that is asked about what the team has written."""
    editor = ScriptedChatClient(lambda messages: f"Edited: {messages[-1].text}").as_agent(name="editor")
    desk = WorkflowExecutor(crew.build(**options), "desk", propagate_request=True)
    builder = WorkflowBuilder(start_executor=desk, name="newsroom", checkpoint_storage=storage)
    return builder.add_edge(desk, editor).build()


async def test_a_team_is_followed_by_an_agent() -> None:
    result = await newsroom(usual(), None).run(TASK)

    assert [output.text for output in result.get_outputs()] == ["Edited: The brief."]


async def test_its_plan_is_reviewed_by_whoever_runs_the_workflow_around_it() -> None:
    crew, storage = usual(), InMemoryCheckpointStorage()
    waiting = await newsroom(crew, storage, enable_plan_review=True).run(TASK)
    [event] = waiting.get_request_info_events()
    assert waiting.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS

    again = newsroom(crew, storage, enable_plan_review=True)
    done = await again.run(responses={str(event.request_id): event.data.approve()})

    assert [output.text for output in done.get_outputs()] == ["Edited: The brief."]
    assert crew.asked == ["facts", "plan", "ledger", "ledger", "ledger", "final"]
    assert done.usage["manager"]["calls"] == 6


@pytest.mark.parametrize("call", range(1, len(EXPECTED) + 1), ids=EXPECTED)
async def test_a_crash_at_any_of_its_calls_repeats_none(call: int) -> None:
    note: list[str] = []
    crew, disk = stateless(note), InMemoryCheckpointStorage()
    with pytest.raises(PowerLoss):
        await newsroom(crew, CrashingStorage(disk, at=f"after call#{call}")).run(TASK, run_id="r")

    result = await newsroom(crew, disk).run(TASK, run_id="r")

    assert note == EXPECTED
    assert [output.text for output in result.get_outputs()] == ["Edited: After 2."]
