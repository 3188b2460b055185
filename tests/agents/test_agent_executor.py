"""Agents as executors: what they hear, what they send on, what a checkpoint keeps of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepwell import (
    Agent,
    AgentExecutor,
    AgentExecutorRequest,
    AgentExecutorResponse,
    AgentResponse,
    AgentResponseUpdate,
    AgentSession,
    BaseAgent,
    Content,
    Executor,
    InMemoryCheckpointStorage,
    Message,
    SQLiteCheckpointStorage,
    ToolContext,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowConvergenceException,
    WorkflowRunState,
    WorkflowValidationError,
    handler,
    tool,
)
from stepwell.testing import ScriptedChatClient, calls


def agent(name: str, *replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedChatClient(*replies), f"You are the {name}.", name=name, **options)


def asked(member: Agent) -> list[list[str]]:
    """What the agent's model was asked, call by call, as texts without the instructions."""
    client = member.client
    assert isinstance(client, ScriptedChatClient)
    return [[message.text for message in call.messages if message.role != "system"] for call in client.asked]


def chain(*agents: Agent, **options: Any) -> Workflow:
    builder = WorkflowBuilder(start_executor=agents[0], **options)
    return (builder.add_chain(list(agents)) if len(agents) > 1 else builder).build()


# --- what is heard and said -------------------------------------------------------------------------------------------


async def test_the_second_agent_hears_the_task_and_the_first_ones_reply() -> None:
    writer, reviewer = agent("writer", "a draft"), agent("reviewer", "looks good")

    result = await chain(writer, reviewer).run("write about wells")

    assert [output.text for output in result.get_outputs()] == ["a draft", "looks good"]
    assert asked(reviewer) == [["write about wells", "a draft"]]


@pytest.mark.parametrize(
    "message",
    ["hello", Message("user", "hello"), ["hello"], [Message("user", "hello")], AgentExecutorRequest(("hello",))],
    ids=["str", "Message", "list of str", "list of Message", "request"],
)
async def test_an_agent_takes_every_shape_of_message(message: Any) -> None:
    member = agent("solo", "hi")

    await chain(member).run(message)

    assert asked(member) == [["hello"]]


async def test_a_request_that_wants_no_response_is_only_noted() -> None:
    class Chatter(Executor):
        @handler
        async def go(self, text: str, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
            await ctx.send_message(AgentExecutorRequest(("first",), should_respond=False))
            await ctx.send_message(AgentExecutorRequest(("second",)))

    member = agent("listener", "heard")
    start = Chatter("chatter")

    result = await WorkflowBuilder(start_executor=start).add_edge(start, member).build().run("go")

    assert [output.text for output in result.get_outputs()] == ["heard"]
    assert asked(member) == [["first", "second"]]


async def test_two_agents_going_round_do_not_hear_anything_twice() -> None:
    writer, critic = agent("writer", "draft 1", "draft 2"), agent("critic", "shorter", "fine")
    workflow = WorkflowBuilder(start_executor=writer, max_iterations=4).add_chain([writer, critic, writer]).build()

    with pytest.raises(WorkflowConvergenceException):
        await workflow.run("go")

    assert asked(writer)[1] == ["go", "draft 1", "shorter"]
    assert asked(critic)[1] == ["go", "draft 1", "shorter", "draft 2"]


async def test_with_last_agent_only_the_last_reply_is_heard() -> None:
    writer, reviewer = agent("writer", "a draft"), agent("reviewer", "ok")
    second = AgentExecutor(reviewer, context_mode="last_agent")

    await WorkflowBuilder(start_executor=writer).add_edge(writer, second).build().run("task")

    assert asked(reviewer) == [["a draft"]]


async def test_a_context_filter_picks_what_is_heard() -> None:
    writer, reviewer = agent("writer", "a draft"), agent("reviewer", "ok")
    second = AgentExecutor(reviewer, context_mode="custom", context_filter=lambda conversation: conversation[:1])

    await WorkflowBuilder(start_executor=writer).add_edge(writer, second).build().run("task")

    assert asked(reviewer) == [["task"]]


def test_a_context_filter_without_the_mode_for_it_is_refused() -> None:
    with pytest.raises(WorkflowValidationError, match="context_filter"):
        AgentExecutor(agent("writer"), context_filter=lambda conversation: conversation)


async def test_tool_calls_are_not_broadcast() -> None:
    @tool
    def look(topic: str) -> str:
        """Look something up."""
        return "it is deep"

    researcher = agent("researcher", calls("look", topic="wells"), "wells are deep", tools=[look])
    writer = agent("writer", "a brief")

    await chain(researcher, writer).run("task")

    assert asked(writer) == [["task", "wells are deep"]]


async def test_a_response_carries_the_whole_conversation() -> None:
    class Last(Executor):
        @handler
        async def end(self, response: AgentExecutorResponse, ctx: WorkflowContext[Any, list[str]]) -> None:
            await ctx.yield_output([f"{m.author_name or m.role}: {m.text}" for m in response.full_conversation])

    writer, last = agent("writer", "a draft"), Last("last")

    workflow = WorkflowBuilder(start_executor=writer, output_from=[last]).add_edge(writer, last).build()

    assert (await workflow.run("task")).get_outputs() == [["user: task", "writer: a draft"]]


async def test_agents_that_worked_side_by_side_are_heard_together() -> None:
    start, left, right, join = (agent(name, f"{name} says") for name in ("start", "left", "right", "join"))
    workflow = (
        WorkflowBuilder(start_executor=start)
        .add_fan_out_edges(start, [left, right])
        .add_fan_in_edges([left, right], join)
        .build()
    )

    await workflow.run("task")

    assert asked(join) == [["task", "start says", "left says", "right says"]]


# --- streaming --------------------------------------------------------------------------------------------------------


async def test_streamed_updates_are_live_and_the_whole_reply_is_not_announced_again() -> None:
    stream = chain(agent("writer", "one two three")).run("task", stream=True)

    outputs = [event async for event in stream if event.type == "output"]

    assert all(event.provisional and isinstance(event.data, AgentResponseUpdate) for event in outputs)
    assert "".join(event.data.text for event in outputs) == "one two three"
    assert [output.text for output in (await stream.get_final_response()).get_outputs()] == ["one two three"]


async def test_an_agent_whose_outputs_are_intermediate_streams_intermediate_updates() -> None:
    writer, editor = agent("writer", "draft"), agent("editor", "final")
    workflow = (
        WorkflowBuilder(start_executor=writer, output_from=[editor], intermediate_output_from=[writer])
        .add_edge(writer, editor)
        .build()
    )

    kinds = {(event.executor_id, event.type) async for event in workflow.run("x", stream=True) if event.provisional}

    assert kinds == {("writer", "intermediate"), ("editor", "output")}


# --- approval ---------------------------------------------------------------------------------------------------------


class Till:
    """Pays what was approved."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    def team(self, *replies: Any) -> Workflow:
        @tool(approval_mode="always")
        def pay(invoice: str) -> str:
            """Pay an invoice."""
            self.paid.append(invoice)
            return f"paid {invoice}"

        return chain(agent("payer", *replies, tools=[pay]), name="payments")


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("as_content", [True, False], ids=["content", "bool"])
async def test_an_approval_survives_a_restart_and_decides(tmp_path: Path, approved: bool, as_content: bool) -> None:
    till, place = Till(), tmp_path / "runs.db"
    async with SQLiteCheckpointStorage(place) as storage:
        paused = await till.team(calls("pay", invoice="A1")).run("pay A1", run_id="r", checkpoint_storage=storage)
        [event] = paused.get_request_info_events()
    assert paused.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    assert isinstance(event.data, Content)
    assert till.paid == []

    async with SQLiteCheckpointStorage(place) as storage:
        answer = event.data.to_function_approval_response(approved) if as_content else approved
        result = await till.team("done").run(responses={event.request_id: answer}, checkpoint_storage=storage)

    assert till.paid == (["A1"] if approved else [])
    assert [output.text for output in result.get_outputs()] == ["done"]


async def test_only_the_stored_arguments_are_run() -> None:
    till, storage = Till(), InMemoryCheckpointStorage()
    paused = await till.team(calls("pay", invoice="A1")).run("pay A1", checkpoint_storage=storage)
    [event] = paused.get_request_info_events()
    forged = Content.from_function_approval_request(
        event.data.id, Content.from_function_call(event.data.id, "pay", arguments='{"invoice": "EVIL"}')
    ).to_function_approval_response(True)

    await till.team("done").run(responses={event.request_id: forged}, checkpoint_storage=storage)

    assert till.paid == ["A1"]


async def test_an_answer_can_be_recorded_without_the_program() -> None:
    till, storage = Till(), InMemoryCheckpointStorage()
    paused = await till.team(calls("pay", invoice="A1")).run("pay A1", run_id="r", checkpoint_storage=storage)
    [event] = paused.get_request_info_events()

    await storage.answer(event.request_id, True)
    await till.team("done").run(run_id="r", checkpoint_storage=storage)

    assert till.paid == ["A1"]


async def test_two_approvals_of_one_reply_are_waited_for_together() -> None:
    till, storage = Till(), InMemoryCheckpointStorage()
    both = [calls("pay", call_id="a", invoice="A1"), calls("pay", call_id="b", invoice="B2")]
    paused = await till.team(tuple(both)).run("pay both", run_id="r", checkpoint_storage=storage)
    first, second = paused.get_request_info_events()

    half = await till.team().run(responses={first.request_id: True}, checkpoint_storage=storage)
    assert (half.get_final_state(), till.paid) == (WorkflowRunState.IDLE_WITH_PENDING_REQUESTS, [])
    await till.team("done").run(responses={second.request_id: False}, checkpoint_storage=storage)

    assert till.paid == ["A1"]


# --- other people's agents, sessions, kwargs --------------------------------------------------------------------------


class Foreign(BaseAgent):
    """An agent that knows nothing of journals."""

    def __init__(self) -> None:
        super().__init__(name="foreign")
        self.turns = 0

    def run(self, messages: Any = None, *, stream: bool = False, session: AgentSession | None = None) -> Any:
        async def turn() -> AgentResponse:
            self.turns += 1
            assert session is not None
            session.state["turns"] = session.state.get("turns", 0) + 1
            return AgentResponse([Message("assistant", f"turn {session.state['turns']}", author_name="foreign")])

        return turn()


class FailsOnce(Executor):
    """Fails the first time it is reached, in the superstep after the agent's."""

    broken = True

    @handler
    async def end(self, response: AgentExecutorResponse, ctx: WorkflowContext[Any, str]) -> None:
        if FailsOnce.broken:
            FailsOnce.broken = False
            raise RuntimeError("not yet")
        await ctx.yield_output(response.agent_response.text)


async def test_another_libraries_agent_is_one_recorded_call() -> None:
    foreign, storage = Foreign(), InMemoryCheckpointStorage()

    class Asks(AgentExecutor):
        """Fails right after the agent's turn, within the same superstep, the first time."""

        failed = False

        async def _turn(self, messages: Any, ctx: Any) -> None:
            await super()._turn(messages, ctx)
            if not Asks.failed:
                Asks.failed = True
                raise RuntimeError("power cut")

    def build() -> Workflow:
        return WorkflowBuilder(start_executor=lambda: Asks(foreign), name="foreign").build()

    with pytest.raises(RuntimeError, match="power cut"):
        await build().run("hello", run_id="r", checkpoint_storage=storage)
    result = await build().run("hello", run_id="r", checkpoint_storage=storage)

    assert foreign.turns == 1
    assert [output.text for output in result.get_outputs()] == ["turn 1"]


async def test_an_agents_session_goes_on_in_a_further_turn() -> None:
    storage = InMemoryCheckpointStorage()
    first = agent("solo", "hello Ada")
    await chain(first, name="talk").run("I am Ada", run_id="r", checkpoint_storage=storage)

    second = agent("solo", "you are Ada")
    await chain(second, name="talk").run("who am I?", run_id="r", checkpoint_storage=storage)

    assert asked(second) == [["I am Ada", "hello Ada", "who am I?"]]


async def test_kwargs_reach_tools_and_are_never_saved() -> None:
    seen: list[Any] = []

    @tool
    def who(context: ToolContext) -> str:
        """Say who is asking."""
        seen.append(context.kwargs["token"])
        return "noted"

    storage = InMemoryCheckpointStorage(audit=True)
    workflow = chain(agent("solo", calls("who"), "done", tools=[who]))
    await workflow.run("go", checkpoint_storage=storage, function_invocation_kwargs={"token": "canary-4711"})

    assert seen == ["canary-4711"]
    assert "canary-4711" not in repr([vars(storage)])


async def test_one_workflow_of_agents_serves_many_runs_at_once() -> None:
    import asyncio

    echo = Agent(ScriptedChatClient(lambda messages: f"re: {messages[-1].text}"), "Echo.", name="echo")
    workflow = chain(echo)

    results = await asyncio.gather(*(workflow.run(f"message {i}") for i in range(50)))

    assert [r.get_outputs()[0].text for r in results] == [f"re: message {i}" for i in range(50)]


# --- growth -----------------------------------------------------------------------------------------------------------


async def test_a_conversation_of_500_turns_grows_by_what_is_said(tmp_path: Path) -> None:
    echo = Agent(ScriptedChatClient(lambda messages: "y" * 500), "Talk.", name="echo")
    workflow = chain(echo, name="long talk")
    place = tmp_path / "runs.db"

    async def talk(turns: range) -> int:
        async with SQLiteCheckpointStorage(place) as storage:
            for turn in turns:
                await workflow.run(f"{turn} " + "x" * 500, run_id="r", checkpoint_storage=storage)
        return place.stat().st_size

    sizes = [await talk(range(start, start + 125)) for start in range(0, 500, 125)]

    growth = [later - earlier for earlier, later in zip([0, *sizes], sizes, strict=False)]
    assert max(growth[1:]) < 1.5 * min(growth[1:]), growth
    assert sizes[-1] < 500 * 1000 * 8


async def test_usage_is_counted_without_a_storage_too() -> None:
    result = await chain(agent("writer", "a draft"), agent("editor", "fine")).run("task")

    assert {name: counts["calls"] for name, counts in result.usage.items()} == {"writer": 1, "editor": 1}
    assert result.total_usage()["total_tokens"] > 0
