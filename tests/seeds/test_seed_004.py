"""Seed 004, "HPD checkpointing": each builder call, retention mode and event, as docs/moving-over/hpd.md maps it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stepwell import (
    FULL_HISTORY,
    LATEST_ONLY,
    Agent,
    AgentExecutor,
    AgentSession,
    Executor,
    InMemoryCheckpointStorage,
    MissingState,
    RetryPolicy,
    SQLiteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    WorkflowValidationError,
    executor,
    handler,
    keep_last,
)
from stepwell.testing import CrashingStorage, PowerLoss, ScriptedChatClient
from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "moving-over" / "hpd.md"


def agent(name: str, *replies: Any) -> Agent:
    return ScriptedChatClient(*replies or [f"{name} has spoken"]).as_agent(name=name)


def echo(name: str) -> Agent:
    """Says what it was asked, and by which name."""
    return ScriptedChatClient(lambda messages: f"{name}: {messages[-1].text}").as_agent(name=name)


def durable_review(storage: Any = None) -> Workflow:
    """The seed's workflow, agents and keys, made afresh for each run."""
    draft = lambda: AgentExecutor(agent("writer", "a draft"), id="draft", output_key="draft")  # noqa: E731
    review = lambda: AgentExecutor(echo("critic"), id="review", input_key="draft")  # noqa: E731
    builder = WorkflowBuilder(start_executor=draft, name="DurableReview")
    if storage is not None:
        builder = builder.with_checkpointing(storage)
    return builder.add_edge(draft, review).build()


# --- building ---------------------------------------------------------------------------------------------------------


async def test_a_workflow_is_built() -> None:
    result = await durable_review().run("write")

    assert [output.text for output in result.get_outputs()] == ["a draft", "critic: a draft"]


async def test_the_name_groups_checkpoints() -> None:
    storage = InMemoryCheckpointStorage()
    await durable_review(storage).run("write")

    assert len(await storage.list_checkpoints(workflow_name="DurableReview")) == 3
    assert await storage.list_checkpoints(workflow_name="another") == []


async def test_checkpointing_is_a_storage() -> None:
    storage = InMemoryCheckpointStorage()
    result = await durable_review(storage).run("write")

    latest = await storage.get_latest(run_id=result.run_id)
    assert latest is not None
    assert latest.state["draft"] == "a draft"
    assert await durable_review().run("write")  # It is opt-in.


async def test_a_store_on_disk_survives_a_restart(tmp_path: Path) -> None:
    async with SQLiteCheckpointStorage(tmp_path / "workflows.db") as storage:
        await durable_review(storage).run("write", run_id="r")
    async with SQLiteCheckpointStorage(tmp_path / "workflows.db") as again:
        result = await durable_review(again).run(run_id="r")

    assert result.get_outputs()[-1].text == "critic: a draft"


# --- keys -------------------------------------------------------------------------------------------------------------


async def test_an_output_key_is_written_to_shared_state() -> None:
    draft = AgentExecutor(agent("writer", "a draft"), output_key="draft")
    seen: list[Any] = []

    @executor(id="reader", input=Any)
    async def reader(message: Any, ctx: WorkflowContext[str, str]) -> None:
        seen.append(ctx.get_state("draft"))

    await WorkflowBuilder(start_executor=draft).add_edge(draft, reader).build().run("write")

    assert seen == ["a draft"]


async def test_an_input_key_is_what_the_agent_is_asked() -> None:
    """Not the message, which only says when."""
    model = ScriptedChatClient("fine")
    review = AgentExecutor(model.as_agent(name="critic"), input_key="draft")

    @executor(id="writer")
    async def writer(text: str, ctx: WorkflowContext[str]) -> None:
        ctx.set_state("draft", "from the state")
        await ctx.send_message("from the message")

    await WorkflowBuilder(start_executor=writer).add_edge(writer, review).build().run("go")

    assert [message.text for message in model.asked[0].messages if message.role == "user"] == ["from the state"]


@pytest.mark.parametrize(
    ("value", "asked"),
    [("text", ["text"]), (["one", "two"], ["one", "two"]), ({"pages": 3}, ['{"pages":3}'])],
    ids=["a text", "several texts", "data"],
)
async def test_whatever_is_under_the_key_becomes_messages(value: Any, asked: list[str]) -> None:
    model = ScriptedChatClient("fine")
    review = AgentExecutor(model.as_agent(name="critic"), input_key="draft")

    @executor(id="writer")
    async def writer(text: str, ctx: WorkflowContext[str]) -> None:
        ctx.set_state("draft", value)
        await ctx.send_message("go")

    await WorkflowBuilder(start_executor=writer).add_edge(writer, review).build().run("go")

    assert [message.text for message in model.asked[0].messages if message.role == "user"] == asked


def test_a_key_that_nothing_writes_is_refused_when_building() -> None:
    draft = AgentExecutor(agent("writer"), output_key="drafts")
    review = AgentExecutor(agent("critic"), input_key="draft")

    with pytest.raises(WorkflowValidationError, match=r"'critic' reads the state 'draft'.*written before it: 'drafts'"):
        WorkflowBuilder(start_executor=draft).add_edge(draft, review).build()


def test_a_key_that_is_only_written_afterwards_is_refused_when_building() -> None:
    review = AgentExecutor(agent("critic"), input_key="draft")
    draft = AgentExecutor(agent("writer"), output_key="draft")

    with pytest.raises(WorkflowValidationError, match="nothing before it writes"):
        WorkflowBuilder(start_executor=review).add_edge(review, draft).build()


@pytest.mark.parametrize("key", ["", "_executor_state"])
def test_a_key_that_can_not_be_one_is_refused(key: str) -> None:
    with pytest.raises(WorkflowValidationError, match="can't be a key of shared state"):
        AgentExecutor(agent("writer"), output_key=key)


async def test_a_key_that_was_not_written_on_the_way_is_an_error_that_says_what_to_do() -> None:
    review = AgentExecutor(agent("critic"), input_key="draft")

    @executor(id="lazy")
    async def lazy(text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text)

    with pytest.raises(MissingState, match=r"set_state\('draft', …\)"):
        await WorkflowBuilder(start_executor=lazy).add_edge(lazy, review).build().run("go")


# --- retention --------------------------------------------------------------------------------------------------------


async def kept(retention: Any) -> list[int]:
    storage = InMemoryCheckpointStorage(retention=retention)
    await durable_review(storage).run("write", run_id="r")
    return [checkpoint.iteration_count for checkpoint in await storage.list_checkpoints(run_id="r")]


async def test_latest_only_keeps_one_checkpoint() -> None:
    assert await kept(LATEST_ONLY) == [2]


async def test_full_history_keeps_every_checkpoint() -> None:
    assert await kept(FULL_HISTORY) == [0, 1, 2]


async def test_keep_last_keeps_that_many() -> None:
    assert await kept(keep_last(2)) == [1, 2]


async def test_sessions_of_your_own_are_not_in_the_workflow_store() -> None:
    writer = agent("writer", "a draft", "a private word")
    mine: AgentSession = writer.create_session()
    storage = InMemoryCheckpointStorage()
    result = await WorkflowBuilder(start_executor=writer, checkpoint_storage=storage).build().run("write")
    await writer.run("between us", session=mine)

    latest = await storage.get_latest(run_id=result.run_id)
    assert latest is not None
    theirs = latest.state["_executor_state"]["writer"]["session"]
    assert theirs.session_id != mine.session_id
    assert "between us" not in str(latest.to_dict())


# --- events -----------------------------------------------------------------------------------------------------------


async def events_of(workflow: Workflow) -> list[Any]:
    return [event async for event in workflow.run("write", stream=True)]


async def test_started_and_completed() -> None:
    events = await events_of(durable_review())

    assert events[0].type == "started"
    assert (events[-1].type, events[-1].state) == ("status", WorkflowRunState.IDLE)


async def test_agents_start_and_complete() -> None:
    events = await events_of(durable_review())

    told = [(event.type, event.executor_id) for event in events if event.type.startswith("executor_")]
    assert told == [
        ("executor_invoked", "draft"),
        ("executor_completed", "draft"),
        ("executor_invoked", "review"),
        ("executor_completed", "review"),
    ]


async def test_an_agent_that_is_not_chosen_is_not_invoked() -> None:
    writer, critic, lawyer = agent("writer"), agent("critic"), agent("lawyer")
    workflow = (
        WorkflowBuilder(start_executor=writer)
        .add_edge(writer, critic)
        .add_edge(writer, lawyer, condition=lambda reply: "court" in reply.agent_response.text)
        .build()
    )
    events = await events_of(workflow)

    assert [event.executor_id for event in events if event.type == "executor_invoked"] == ["writer", "critic"]
    assert [event for event in events if event.type == "warning"] == []


async def test_a_traversed_edge_is_an_invocation() -> None:
    sources: list[str] = []

    @executor(id="end", input=Any)
    async def end(message: Any, ctx: WorkflowContext[str, str]) -> None:
        sources.append(ctx.get_source_executor_id())

    writer = agent("writer")
    events = await events_of(WorkflowBuilder(start_executor=writer).add_edge(writer, end).build())

    [invoked] = [event for event in events if event.type == "executor_invoked" and event.executor_id == "end"]
    assert invoked.data.agent_response.text == "writer has spoken"
    assert sources == ["writer"]


async def test_layers_are_supersteps() -> None:
    events = await events_of(durable_review(InMemoryCheckpointStorage()))

    layers = [(event.type, event.iteration) for event in events if event.type.startswith("superstep_")]
    assert layers == [
        ("superstep_started", 1),
        ("superstep_completed", 1),
        ("superstep_started", 2),
        ("superstep_completed", 2),
    ]
    assert [event.data.iteration_count for event in events if event.type == "superstep_completed"] == [1, 2]


async def test_diagnostics_are_warnings_and_retries() -> None:
    class Flaky(Executor):
        attempts = 0

        @handler
        async def work(self, text: str, ctx: WorkflowContext[str, str]) -> None:
            self.attempts += 1
            if self.attempts < 2:
                raise ConnectionError("busy")
            await ctx.send_message("to nobody")

    events = await events_of(WorkflowBuilder(start_executor=Flaky("flaky", retry=RetryPolicy(initial_wait=0))).build())

    assert [event.type for event in events if event.type in ("executor_retrying", "warning")] == [
        "executor_retrying",
        "warning",
    ]


async def test_checkpoints_are_announced() -> None:
    events = await events_of(durable_review(InMemoryCheckpointStorage()))

    assert [event.data.iteration_count for event in events if event.type == "checkpoint"] == [0, 1, 2]


# --- resuming ---------------------------------------------------------------------------------------------------------


async def test_resuming_is_the_point() -> None:
    writer, critic = ScriptedChatClient("a draft"), ScriptedChatClient("fine")
    disk = InMemoryCheckpointStorage()

    def build(storage: Any) -> Workflow:
        draft = lambda: AgentExecutor(writer.as_agent(name="writer"), id="draft", output_key="draft")  # noqa: E731
        review = lambda: AgentExecutor(critic.as_agent(name="critic"), id="review", input_key="draft")  # noqa: E731
        return WorkflowBuilder(start_executor=draft, checkpoint_storage=storage).add_edge(draft, review).build()

    with pytest.raises(PowerLoss):
        await build(CrashingStorage(disk, at="after call#2")).run("write", run_id="r")
    result = await build(disk).run("write", run_id="r")

    assert result.get_outputs()[-1].text == "fine"
    assert (len(writer.asked), len(critic.asked)) == (1, 1)


# --- the page ---------------------------------------------------------------------------------------------------------


def test_every_line_of_the_page_has_its_test() -> None:
    named = re.findall(r"`(test_\w+)`", PAGE.read_text(encoding="utf-8"))

    assert len(named) > 20
    assert [name for name in named if name not in globals()] == []


def test_every_event_of_the_seed_is_on_the_page() -> None:
    seed = """WorkflowStartedEvent WorkflowAgentStartedEvent WorkflowAgentCompletedEvent WorkflowAgentSkippedEvent
    WorkflowEdgeTraversedEvent WorkflowLayerStartedEvent WorkflowLayerCompletedEvent WorkflowCompletedEvent
    WorkflowDiagnosticEvent WithName WithCheckpointing WithJsonWorkflowStore WithInMemoryWorkflowStore AddAgent
    WithOutputKey WithInputKey .From .To BuildAsync LatestOnly FullHistory"""
    page = PAGE.read_text(encoding="utf-8")

    assert [word for word in seed.split() if word not in page] == []
