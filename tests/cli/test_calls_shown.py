"""The calls on record are shown."""

from __future__ import annotations

import asyncio

import pytest

from stepwell import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, executor
from stepwell.checkpointing.journal import CallRecord
from stepwell.cli.story import Story, print_story, read_story, story_json

PAID = CallRecord(
    "c1", "1/clerk/0", "pay", "h", '["4711"]', "2026-01-01T00:00:00", result='"receipt"', usage={"x": {"calls": 1}}
)
IN_DOUBT = CallRecord("c2", "1/clerk/0", "ship", "h", "[\x1b[31m]", "2026-01-01T00:00:01", at_most_once=True)


class Archive(InMemoryCheckpointStorage):
    """A storage with two calls on record."""

    async def list_calls(self, run_id: str) -> list[CallRecord]:
        assert run_id == "r1"
        return [PAID, IN_DOUBT]


@executor(id="clerk")
async def clerk(text: str, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(text)


async def story_of(storage: InMemoryCheckpointStorage) -> Story:
    workflow = WorkflowBuilder(name="shop", start_executor=clerk).build()
    await workflow.run("hello", run_id="r1", checkpoint_storage=storage)
    return await read_story(storage, "r1", last=None)


def test_calls_are_shown_with_how_they_ended(capsys: pytest.CaptureFixture[str]) -> None:
    story = asyncio.run(story_of(Archive()))
    print_story(story, full=False)
    out = capsys.readouterr().out
    assert 'pay ["4711"]: finished' in out
    assert r"ship [\x1b[31m]: in doubt (at most once)" in out
    assert [call["result"] for call in story_json(story)["calls"]] == ["receipt", None]


def test_calls_of_finished_supersteps_are_forgotten() -> None:
    assert story_json(asyncio.run(story_of(InMemoryCheckpointStorage())))["calls"] == []
