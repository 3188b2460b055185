"""Tests for a team of your own: no network, no key, no bill, and a crash at every call.

    pytest samples/50_test_your_team.py

`team` is what your program would build; the tests give it scripted models and see what they were asked.
"""

from dataclasses import dataclass, field

import pytest

from stepwell import Agent, CheckpointStorage, InMemoryCheckpointStorage, MagenticBuilder, Workflow
from stepwell.testing import CrashingStorage, PowerLoss, ScriptedChatClient, scripted_manager

pytestmark = pytest.mark.asyncio

TASK = "Write a brief on stepwells."


@dataclass
class Models:
    """What the team talks to. Each answers from the conversation, so a resumed run finds them as they were."""

    manager: ScriptedChatClient = field(
        default_factory=lambda: scripted_manager(
            ("researcher", "Find out."), ("writer", "Write it."), answer="Restore yours."
        )
    )
    researcher: ScriptedChatClient = field(default_factory=lambda: ScriptedChatClient(lambda _: "They hold water."))
    writer: ScriptedChatClient = field(default_factory=lambda: ScriptedChatClient(lambda _: "Wells that hold water."))

    @property
    def times_asked(self) -> list[int]:
        return [len(client.asked) for client in (self.manager, self.researcher, self.writer)]


def team(models: Models, storage: CheckpointStorage, *, review: bool = False) -> Workflow:
    return MagenticBuilder(
        participants=[Agent(models.researcher, name="researcher"), Agent(models.writer, name="writer")],
        manager_agent=Agent(models.manager, name="manager"),
        enable_plan_review=review,
        checkpoint_storage=storage,
    ).build()


async def test_the_writer_is_told_what_the_researcher_found() -> None:
    models = Models()

    result = await team(models, InMemoryCheckpointStorage()).run(TASK)

    assert result.get_outputs()[-1].text == "Restore yours."
    assert any("They hold water." in message.text for message in models.writer.asked[0].messages)


async def test_nobody_works_before_the_plan_is_approved() -> None:
    models = Models()
    workflow = team(models, InMemoryCheckpointStorage(), review=True)

    waiting = await workflow.run(TASK)
    assert models.times_asked == [2, 0, 0]  # the manager, for the facts and for the plan

    [request] = waiting.get_request_info_events()
    await workflow.run(responses={request.request_id: request.data.approve(edited_plan="writer: Write it.")})
    assert models.times_asked[1:] == [0, 1]


@pytest.mark.parametrize("number", range(1, 9))
async def test_a_crash_after_any_call_repeats_none(number: int) -> None:
    models, disk = Models(), InMemoryCheckpointStorage()

    with pytest.raises(PowerLoss):
        await team(models, CrashingStorage(disk, at=f"after call#{number}")).run(TASK, run_id="brief")
    result = await team(models, disk).run(TASK, run_id="brief")

    assert result.get_outputs()[-1].text == "Restore yours."
    assert models.times_asked == [6, 1, 1]
