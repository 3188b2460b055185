"""A manager without a model: it follows whatever plan was approved, in whatever process."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell import Agent, CheckpointStorage, MagenticBuilder, SQLiteCheckpointStorage, Workflow
from stepwell.testing import ScriptedChatClient, scripted_ledger, scripted_manager


def team(storage: CheckpointStorage, *, asked: list[str]) -> Workflow:
    def member(name: str) -> Agent:
        def say(messages: object) -> str:
            asked.append(name)
            return f"{name} is done"

        return Agent(ScriptedChatClient(say), name=name)

    return MagenticBuilder(
        participants=[member("researcher"), member("writer")],
        manager_agent=Agent(
            scripted_manager(("researcher", "Find out."), ("writer", "Write."), answer="Here it is."), name="manager"
        ),
        enable_plan_review=True,
        checkpoint_storage=storage,
    ).build()


@pytest.mark.parametrize(
    ("edited", "order"),
    [
        pytest.param(None, ["researcher", "writer"], id="as it was planned"),
        pytest.param("1. writer: Draft.\n2. researcher: Check.\n3. writer: Mend.", ["writer", "researcher", "writer"],
                     id="as it was edited"),
    ],
)  # fmt: skip
async def test_a_plan_approved_in_another_process_is_carried_out(
    edited: str | None, order: list[str], tmp_path: Path
) -> None:
    asked: list[str] = []
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        waiting = await team(storage, asked=asked).run("Why?", run_id="r")
        [request] = waiting.get_request_info_events()
        assert request.data.plan.text == "1. researcher: Find out.\n2. writer: Write."
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        answers = {request.request_id: request.data.approve(edited)}
        result = await team(storage, asked=asked).run(run_id="r", responses=answers)

    assert asked == order
    assert result.get_outputs()[-1].text == "Here it is."


async def test_a_question_that_is_no_managers_is_not_answered() -> None:
    manager = scripted_manager(("writer", "Write."), answer="Done.")

    with pytest.raises(AssertionError, match="standard prompts only"):
        await Agent(manager).run("What is the weather like?")


async def test_ledgers_can_be_scripted_one_by_one() -> None:
    manager = ScriptedChatClient(
        "Nothing is known.",
        '{"steps": [{"owner": "writer", "text": "Write."}]}',
        scripted_ledger("writer", "Write."),
        scripted_ledger("writer", "", satisfied=True),
        "The end.",
    )
    async with manager:
        workflow = MagenticBuilder(
            participants=[Agent(ScriptedChatClient("A text."), name="writer")],
            manager_agent=Agent(manager, name="manager"),
        ).build()
        result = await workflow.run("Write something.")

    assert [output.text for output in result.get_outputs()] == ["The end."]
