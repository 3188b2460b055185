"""Teams inside teams: one run, one journal, one person at the outermost end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stepwell import (
    Agent,
    AgentException,
    AgentExecutor,
    AgentResponse,
    AgentSession,
    AlreadyAnswered,
    CallInDoubt,
    CheckpointStorage,
    Executor,
    GraphChanged,
    InMemoryCheckpointStorage,
    Message,
    ResponseTypeMismatch,
    RetryPolicy,
    SQLiteCheckpointStorage,
    TeamsTooDeep,
    Workflow,
    WorkflowAgent,
    WorkflowBuilder,
    WorkflowBusy,
    WorkflowContext,
    WorkflowExecutor,
    WorkflowRunState,
    handler,
    response_handler,
    tool,
)
from stepwell.orchestrations import MagenticBuilder, MagenticPlanReviewRequest, MagenticPlanReviewResponse
from stepwell.testing import ScriptedChatClient, calls
from stepwell.testing.crash import CRASH_POINTS, CrashingStorage, PowerLoss
from tests.orchestrations.teams import DONE, FACTS, PLAN, TASK, Team, ledger, purpose, usual


def agent(name: str, *replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedChatClient(*replies), name=name, **options)


def heard(member: Agent) -> list[list[str]]:
    client = member.client
    assert isinstance(client, ScriptedChatClient)
    return [[message.text for message in call.messages] for call in client.asked]


def alone(member: Any, **options: Any) -> Workflow:
    return WorkflowBuilder(start_executor=member, **options).build()


@dataclass(frozen=True)
class Question:
    text: str


class Asker(Executor):
    """Asks for a number under a name of its own choice, and answers with it."""

    def __init__(self, *names: str) -> None:
        super().__init__("asker")
        self.names = names or ("",)

    @handler
    async def ask(self, text: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(f"asked {text}")
        for name in self.names:
            await ctx.request_info(Question(f"{text} {name}".strip()), int, request_id=name or None)

    @response_handler
    async def answered(self, question: Question, answer: int, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(f"{question.text}: {answer}")


def asking(*names: str, name: str = "asking") -> WorkflowAgent:
    return alone(lambda: Asker(*names), name=name).as_agent()


# --- in a graph -------------------------------------------------------------------------------------------------------


async def test_a_team_in_a_graph_hears_and_is_heard_like_an_agent() -> None:
    writer, critic, editor = agent("writer", "a draft"), agent("critic", "too long"), agent("editor", "a text")
    desk = WorkflowBuilder(start_executor=writer, name="desk").add_edge(writer, critic).build().as_agent()

    result = await WorkflowBuilder(start_executor=desk).add_edge(desk, editor).build().run("wells")

    assert [output.text for output in result.get_outputs()] == ["a draft\ntoo long", "a text"]
    assert heard(editor) == [["wells", "a draft", "too long"]]


async def test_a_team_asked_again_goes_on_with_its_conversation_and_hears_nothing_twice() -> None:
    storage, writer = InMemoryCheckpointStorage(), agent("writer", "one", "two", "three")
    workflow = alone(alone(writer, name="inner").as_agent(), checkpoint_storage=storage)

    for word in ("first", "second", "third"):
        await workflow.run(word, run_id="r")

    assert heard(writer)[-1] == ["first", "one", "second", "two", "third"]


async def test_all_calls_and_all_usage_are_those_of_the_one_run() -> None:
    storage = InMemoryCheckpointStorage(audit=True)
    inner = alone(agent("writer", "a draft"), name="inner", checkpoint_storage=storage).as_agent()

    result = await alone(inner, name="outer", checkpoint_storage=storage).run("go", run_id="r")

    assert [info.run_id for info in await storage.list_runs()] == ["r"]
    assert result.usage["writer"]["calls"] == 1
    [output] = result.get_outputs()
    assert output.usage_details["total_token_count"] == result.total_usage()["total_tokens"]
    [warning] = [event.data for event in result if event.type == "warning"]
    assert "storage of workflow 'inner' is not used" in warning


async def test_usage_adds_up_without_a_storage_too() -> None:
    result = await alone(alone(agent("writer", "a draft"), name="inner").as_agent()).run("go")

    [output] = result.get_outputs()
    assert output.usage_details["total_token_count"] == result.total_usage()["total_tokens"] > 0


async def test_inner_executors_are_seen_at_work_under_their_path() -> None:
    inner = alone(agent("writer", "a draft"), name="inner").as_agent(name="desk")

    result = await alone(inner).run("go")

    invoked = [event.executor_id for event in result if event.type == "executor_invoked"]
    assert invoked == ["desk", "desk/writer"]


async def test_a_team_in_a_team_streams_every_piece_once() -> None:
    inner = alone(agent("writer", "one two three"), name="inner").as_agent(name="desk")
    middle = alone(inner, name="middle").as_agent(name="floor")
    stream = alone(middle, name="outer").as_agent().run("go", stream=True)

    updates = [update async for update in stream]

    assert [update.text for update in updates if update.text] == ["one ", "two ", "three"]
    assert {update.author_name for update in updates if update.text} == {"writer"}
    assert {update.response_id for update in updates} == {(await stream.get_final_response()).response_id}


async def test_what_a_team_does_on_the_side_is_announced_live() -> None:
    crew = usual(name="crew")
    stream = alone(crew.build().as_agent()).run(TASK, stream=True)

    events = [event async for event in stream]

    live = [e.executor_id for e in events if e.provisional and e.type == "intermediate"]
    assert set(live) == {"crew/researcher", "crew/writer"}
    assert {e.type for e in events} >= {"magentic_orchestrator", "group_chat"}
    [output] = (await stream.get_final_response()).get_outputs()
    assert output.text == "The brief."


async def test_tools_get_the_kwargs_of_the_outermost_run() -> None:
    seen: list[Any] = []

    @tool
    def look(**kwargs: Any) -> str:
        """Look."""
        seen.append(kwargs["tenant"])
        return "ok"

    inner = alone(agent("writer", calls("look"), "done", tools=[look]), name="inner").as_agent()

    await alone(inner).run("go", function_invocation_kwargs={"tenant": "acme"})

    assert seen == ["acme"]


# --- a person at the outermost end ------------------------------------------------------------------------------------


async def test_a_request_of_an_inner_team_is_the_outer_runs_in_its_own_type() -> None:
    result = await alone(asking()).run("wells")

    [event] = result.get_request_info_events()
    assert (event.data, event.response_type) == (Question("wells"), int)
    assert event.executor_id == "asking"
    assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    assert result.get_outputs() == []


async def test_an_answer_of_another_type_is_refused_at_the_outermost_end() -> None:
    workflow = alone(asking())
    [event] = (await workflow.run("wells")).get_request_info_events()

    with pytest.raises(ResponseTypeMismatch):
        await workflow.run(responses={event.request_id: "seven"})

    result = await workflow.run(responses={event.request_id: 7})
    assert [output.text for output in result.get_outputs()] == ["asked wells\nwells: 7"]


async def test_requests_of_an_inner_team_are_answered_one_by_one() -> None:
    storage = InMemoryCheckpointStorage()

    def build() -> Workflow:
        return alone(asking("depth", "width"), name="outer", checkpoint_storage=storage)

    asked = await build().run("well", run_id="r")
    half = await build().run(run_id="r", responses={"width": 2})
    whole = await build().run(run_id="r", responses={"depth": 1})

    assert [event.request_id for event in asked.get_request_info_events()] == ["depth", "width"]
    assert [event.request_id for event in half.get_request_info_events()] == ["depth"]
    assert [output.text for output in whole.get_outputs()] == ["asked well\nwell width: 2\nwell depth: 1"]
    with pytest.raises(AlreadyAnswered):
        await build().run(run_id="r", responses={"width": 3})


async def test_two_teams_may_choose_one_name_for_their_requests() -> None:
    start = agent("start", "well")
    one, other = asking("depth", name="one"), asking("depth", name="other")
    workflow = WorkflowBuilder(start_executor=start).add_edge(start, one).add_edge(one, other).build()

    first = await workflow.run("go")
    [event] = first.get_request_info_events()
    second = await workflow.run(responses={event.request_id: 1})
    [again] = second.get_request_info_events()
    third = await workflow.run(responses={again.request_id: 2})

    assert (event.executor_id, again.executor_id) == ("one", "other")
    assert event.request_id != again.request_id
    assert third.get_final_state() is WorkflowRunState.IDLE


async def test_an_answer_can_be_recorded_without_the_program() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = alone(asking(), name="outer", checkpoint_storage=storage)
    [event] = (await workflow.run("well", run_id="r")).get_request_info_events()

    await storage.answer(event.request_id, 3)
    result = await workflow.run(run_id="r")

    assert [output.text for output in result.get_outputs()] == ["asked well\nwell: 3"]


async def test_a_tool_approval_in_an_inner_team_reaches_the_outermost_agent(tmp_path: Path) -> None:
    paid: list[str] = []

    @tool(approval_mode="always")
    def pay(invoice: str) -> str:
        """Pay."""
        paid.append(invoice)
        return "paid"

    payer = agent("payer", calls("pay", invoice="A1"), "done", tools=[pay])

    def build(storage: CheckpointStorage) -> WorkflowAgent:
        inner = alone(alone(payer, name="inner").as_agent(), name="middle").as_agent()
        return alone(inner, name="outer", checkpoint_storage=storage).as_agent()

    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        session = AgentSession()
        [request] = (await build(storage).run("pay A1", session=session)).user_input_requests
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        saved = AgentSession.from_dict(session.to_dict())
        response = await build(storage).run([request.to_function_approval_response(True)], session=saved)

    assert (paid, response.messages[-1].text) == (["A1"], "done")


async def test_a_message_that_comes_while_a_team_waits_is_heard_afterwards() -> None:
    class Twice(Executor):
        @handler
        async def send(self, text: str, ctx: WorkflowContext[str]) -> None:
            await ctx.send_message(f"{text} 1")
            await ctx.send_message(f"{text} 2")

    start, team = Twice("twice"), asking()
    workflow = WorkflowBuilder(start_executor=start).add_edge(start, team).build()

    [event] = (await workflow.run("well")).get_request_info_events()
    result = await workflow.run(responses={event.request_id: 1})
    [again] = result.get_request_info_events()
    last = await workflow.run(responses={again.request_id: 2})

    assert (event.data, again.data) == (Question("well 1"), Question("well 2"))
    assert [output.text.splitlines()[-1] for output in last.get_outputs()] == ["well 1: 1", "well 2: 2"]


async def test_a_deadline_of_an_inner_request_is_the_outer_runs() -> None:
    class Hasty(Asker):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.request_info(Question(text), int, deadline=timedelta(seconds=-1), default=5)

    team = alone(lambda: Hasty(), name="hasty").as_agent()

    result = await alone(team, checkpoint_storage=InMemoryCheckpointStorage()).run("well")

    assert [output.text for output in result.get_outputs()] == ["well: 5"]


async def test_a_team_inside_an_inner_workflow_asks_the_outermost_caller_too() -> None:
    inner = WorkflowExecutor(alone(asking(), name="middle"), "sub", allow_direct_output=True, propagate_request=True)
    workflow = alone(inner, checkpoint_storage=InMemoryCheckpointStorage())

    [event] = (await workflow.run("well", run_id="r")).get_request_info_events()
    result = await workflow.run(run_id="r", responses={event.request_id: 4})

    assert (event.data, event.response_type) == (Question("well"), int)
    assert [output.text for output in result.get_outputs()] == ["asked well\nwell: 4"]


@pytest.mark.parametrize("verdict", ["done", "retry"])
async def test_a_call_in_doubt_inside_an_inner_team_is_decided_at_the_outermost_end(verdict: str) -> None:
    disk, paid = InMemoryCheckpointStorage(), list[str]()

    @tool(at_most_once=True)
    def pay(invoice: str) -> str:
        """Pay."""
        paid.append(invoice)
        return "paid"

    payer = agent("payer", calls("pay", invoice="A1"), "done", tools=[pay])
    workflow = alone(alone(payer, name="inner").as_agent(), name="outer", checkpoint_storage=disk)
    with pytest.raises(PowerLoss):
        await workflow.run("pay A1", run_id="r", checkpoint_storage=CrashingStorage(disk, at="after start#1"))

    [event] = (await workflow.run(run_id="r")).get_request_info_events()
    assert isinstance(event.data, CallInDoubt)
    answer = event.data.done("paid") if verdict == "done" else event.data.retry()
    result = await workflow.run(run_id="r", responses={event.request_id: answer})

    assert paid == ([] if verdict == "done" else ["A1"])
    assert result.get_outputs()[0].messages[-1].text == "done"
    assert len(heard(payer)) == 2


# --- in a Magentic team -----------------------------------------------------------------------------------------------


@dataclass
class Tower:
    """A crew with plan reviews, in a team with plan reviews, in a team."""

    crew: Team
    director: ScriptedChatClient
    president: ScriptedChatClient

    @classmethod
    def new(cls) -> Tower:
        return cls(
            usual(name="crew", enable_plan_review=True),
            ScriptedChatClient([FACTS, PLAN, ledger("crew", "Draft it."), DONE, "The director's word."]),
            ScriptedChatClient([FACTS, PLAN, ledger("office", "Have it done."), DONE, "The president's word."]),
        )

    def build(self, storage: CheckpointStorage | None = None) -> Workflow:
        office = MagenticBuilder(
            participants=[self.crew.build().as_agent()],
            manager_agent=Agent(self.director, name="director"),
            name="office",
            enable_plan_review=True,
        ).build()
        return MagenticBuilder(
            participants=[office.as_agent()],
            manager_agent=Agent(self.president, name="president"),
            name="tower",
            checkpoint_storage=storage,
        ).build()

    @property
    def asked(self) -> int:
        models = (self.crew.manager, self.crew.researcher, self.crew.writer, self.director, self.president)
        return sum(len(model.asked) for model in models)


async def test_plans_at_every_level_are_reviewed_at_the_outermost_and_every_call_is_made_once(tmp_path: Path) -> None:
    tower, reviews = Tower.new(), []
    answer: dict[str, Any] = {"message": TASK, "run_id": "r"}
    for _ in range(3):
        async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
            result = await tower.build(storage).run(**answer)
            runs = await storage.list_runs()
        for event in result.get_request_info_events():
            assert isinstance(event.data, MagenticPlanReviewRequest)
            assert (event.request_id, event.response_type) == (event.data.request_id, MagenticPlanReviewResponse)
            reviews.append(event.request_id)
            answer = {"responses": {event.request_id: event.data.approve()}}

    assert [output.text for output in result.get_outputs()] == ["The president's word."]
    assert len(reviews) == len(set(reviews)) == 2
    assert tower.asked == 5 + 5 + 6 + 1 + 1
    assert [info.run_id for info in runs] == ["r"]
    assert result.usage["manager"]["calls"] == 6
    assert sum(used["calls"] for used in result.usage.values()) == tower.asked


async def test_an_inner_plan_can_be_edited_and_sent_back_from_outside() -> None:
    tower = Tower.new()
    tower.crew.manager = ScriptedChatClient([FACTS, PLAN, PLAN, ledger("writer"), DONE, "The brief."])
    workflow = tower.build(InMemoryCheckpointStorage())
    [office] = (await workflow.run(TASK)).get_request_info_events()
    [crew] = (await workflow.run(responses={office.request_id: office.data.approve()})).get_request_info_events()

    revised = await workflow.run(responses={crew.request_id: crew.data.revise("Shorter.")})
    [again] = revised.get_request_info_events()
    result = await workflow.run(responses={again.request_id: again.data.approve("1. writer: Write it.")})

    assert again.request_id != crew.request_id
    assert [output.text for output in result.get_outputs()] == ["The president's word."]
    assert "Write it." in tower.crew.writer.asked[0].messages[-2].text


def counting(name: str, asked: Counter[str], *members: str) -> ScriptedChatClient:
    """A manager whose replies depend on the conversation alone, and what it was asked for how often."""

    def answer(messages: Sequence[Message]) -> str:
        spoken = sum(message.author_name in members for message in messages)
        about = purpose(messages)
        asked[f"{name} {about} {spoken}"] += 1
        verdict = ledger(members[spoken]) if spoken < len(members) else DONE
        return {"facts": FACTS, "plan": PLAN, "ledger": verdict}.get(about, f"The {name}'s word.")

    return ScriptedChatClient(answer)


ONCE = ("open", "last checkpoint", "release")
"""Reached once or twice in a life; calls and checkpoints are reached often."""


@pytest.mark.parametrize(
    ("point", "number"),
    [
        (point, number)
        for point in CRASH_POINTS
        if "start" not in point and "found" not in point
        for number in ([1] if point.endswith(ONCE) else [1, 4, 7])
    ],
)
async def test_a_crash_anywhere_in_three_levels_repeats_no_recorded_call(point: str, number: int) -> None:
    disk, asked = InMemoryCheckpointStorage(), Counter[str]()
    tower = Tower.new()
    tower.crew.manager = counting("crew", asked, "researcher", "writer")
    tower.director, tower.president = counting("office", asked, "crew"), counting("tower", asked, "office")

    async def live(storage: Any) -> list[str]:
        workflow = tower.build(storage)
        result: Any = await workflow.run(TASK, run_id="r")
        while events := result.get_request_info_events():
            result = await workflow.run(run_id="r", responses={e.request_id: e.data.approve() for e in events})
        return [output.text for output in result.get_outputs()]

    with pytest.raises(PowerLoss):
        await live(CrashingStorage(disk, at=f"{point}#{number}"))
    outputs = await live(disk)

    assert outputs == ["The tower's word."]
    assert len(asked) == 5 + 5 + 6
    # Only a call that was made and not recorded is made again.
    assert sum(asked.values()) - len(asked) <= (point == "before call")


# --- behind a tool ----------------------------------------------------------------------------------------------------


async def test_a_team_behind_a_tool_is_part_of_the_run() -> None:
    storage, writer = InMemoryCheckpointStorage(), agent("writer", "a draft")
    desk = alone(writer, name="inner").as_agent(name="desk")
    boss = agent("boss", calls("desk", task="draft it"), "Here it is.", tools=[desk.as_tool()])

    result = await alone(boss, checkpoint_storage=storage).run("go")

    assert heard(writer) == [["draft it"]]
    assert result.usage["writer"]["calls"] == 1
    assert [output.text for output in result.get_outputs()] == ["Here it is."]
    assert len(await storage.list_runs()) == 1


async def test_a_plan_behind_a_tool_is_reviewed_at_the_outermost_end(tmp_path: Path) -> None:
    crew = usual(name="crew", enable_plan_review=True)
    boss = ScriptedChatClient([calls("crew", task="draft it"), "Here it is."])

    def build(storage: CheckpointStorage) -> Workflow:
        chief = Agent(boss, name="boss", tools=[crew.build().as_agent().as_tool()])
        return alone(chief, name="outer", checkpoint_storage=storage)

    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        [event] = (await build(storage).run("go")).get_request_info_events()
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        answers = {event.request_id: event.data.approve()}
        result = await build(storage).run(responses=answers)

    assert isinstance(event.data, MagenticPlanReviewRequest)
    assert result.get_outputs()[0].text.splitlines()[-1] == "Here it is."
    assert boss.asked[-1].messages[-1].contents[0].result == "The brief."
    assert (len(boss.asked), len(crew.asked)) == (2, 6)


async def test_two_teams_behind_tools_wait_at_once_and_are_answered_in_any_order() -> None:
    storage = InMemoryCheckpointStorage()
    tools = [asking(name="deep").as_tool(), asking(name="wide").as_tool()]
    boss = agent("boss", (calls("deep", task="how deep"), calls("wide", task="how wide")), "Thanks.", tools=tools)
    workflow = alone(boss, checkpoint_storage=storage)

    asked = {e.data.text: e.request_id for e in (await workflow.run("go", run_id="r")).get_request_info_events()}
    half = await workflow.run(run_id="r", responses={asked["how wide"]: 2})
    whole = await workflow.run(run_id="r", responses={asked["how deep"]: 1})

    assert [e.request_id for e in half.get_request_info_events()] == [asked["how deep"]]
    results = [c.result for m in whole.get_outputs()[0].messages for c in m.contents if c.type == "function_result"]
    assert results == ["how deep: 1", "how wide: 2"]


async def test_one_team_asked_twice_at_once_by_its_tool_keeps_its_conversations_apart() -> None:
    desk = asking(name="desk")
    boss = agent("boss", (calls("desk", task="one"), calls("desk", task="two")), "Thanks.", tools=[desk.as_tool()])
    workflow = alone(boss, checkpoint_storage=InMemoryCheckpointStorage())

    events = (await workflow.run("go", run_id="r")).get_request_info_events()
    answers = {event.request_id: len(event.data.text) * 10 for event in events}
    result = await workflow.run(run_id="r", responses=answers)

    results = [c.result for m in result.get_outputs()[0].messages for c in m.contents if c.type == "function_result"]
    assert results == ["one: 30", "two: 30"]


async def test_an_agent_outside_of_any_run_pauses_with_the_team_behind_its_tool() -> None:
    crew = usual(name="crew", enable_plan_review=True)
    boss = agent("boss", calls("crew", task="draft it"), "Here it is.", tools=[crew.build().as_agent().as_tool()])
    session = boss.create_session()

    [request] = (await boss.run("go", session=session)).user_input_requests
    saved = AgentSession.from_dict(session.to_dict())
    response = await boss.run(Message("user", [request.to_function_approval_response(True)]), session=saved)

    assert response.text == "Here it is."
    assert saved.pending_approvals is None
    assert saved.paused_calls == {}


async def test_an_agent_behind_a_tool_may_ask_for_approval_too() -> None:
    paid: list[str] = []

    @tool(approval_mode="always")
    def pay(invoice: str) -> str:
        """Pay."""
        paid.append(invoice)
        return "paid"

    clerk = agent("clerk", calls("pay", invoice="A1"), "done", tools=[pay])
    boss = agent("boss", calls("clerk", task="pay A1"), "It is paid.", tools=[clerk.as_tool()])
    workflow = alone(boss, checkpoint_storage=InMemoryCheckpointStorage())

    [event] = (await workflow.run("go")).get_request_info_events()
    assert event.data.function_call.name == "pay"
    assert paid == []
    result = await workflow.run(responses={event.request_id: True})

    assert (paid, result.get_outputs()[0].messages[-1].text) == (["A1"], "It is paid.")


async def test_a_pause_behind_a_tool_needs_a_session_to_be_remembered_in() -> None:
    boss = agent("boss", calls("asking", task="q"), tools=[asking().as_tool()])

    with pytest.raises(AgentException, match=r"session=agent\.create_session"):
        await boss.run("go")


async def test_a_team_that_is_asked_something_else_instead_leaves_its_call_unfinished() -> None:
    boss = agent("boss", calls("asking", task="q"), "Never mind.", tools=[asking().as_tool()])
    session = boss.create_session()
    await boss.run("go", session=session)

    response = await boss.run("Forget it.", session=session)

    assert response.messages[0].contents[0].result.startswith("This call was not finished")
    assert response.text == "Never mind."


# --- limits and refusals ----------------------------------------------------------------------------------------------


async def test_a_team_that_contains_itself_is_stopped_with_a_clear_error() -> None:
    member = agent("member", lambda messages: calls("loop", task="again"))
    team = alone(member, name="loop").as_agent()
    member.tools = (team.as_tool(),)

    with pytest.raises(TeamsTooDeep, match=r"nested 11 deep, more than 10: loop > loop > .*contain itself"):
        await team.run("go")


async def test_a_session_with_a_run_of_its_own_does_not_become_part_of_another() -> None:
    team = alone(agent("writer", "one"), name="inner").as_agent()
    session = team.create_session()
    await team.run("go", session=session)

    with pytest.raises(AgentException, match="has a run of its own"):
        await alone(AgentExecutor(team, session=session)).run("go")


async def test_whoever_names_a_storage_gets_a_run_of_its_own_wherever_it_asks() -> None:
    own, team = InMemoryCheckpointStorage(), alone(agent("writer", "one"), name="inner").as_agent()

    class Handler(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext[Any, str]) -> None:
            response: AgentResponse = await team.run(text, checkpoint_storage=own, run_id=f"{ctx.run_id}-inner")
            await ctx.yield_output(response.text)

    await alone(Handler("handler")).run("go", run_id="r")

    assert [info.run_id for info in await own.list_runs()] == ["r-inner"]


async def test_executor_instances_in_a_team_serve_one_call_at_a_time() -> None:
    class Slow(Executor):
        @handler
        async def work(self, text: str, ctx: WorkflowContext[Any, str]) -> None:
            await asyncio.sleep(0)
            await ctx.yield_output(text)

    desk = alone(Slow("slow"), name="desk").as_agent()
    both = (calls("desk", task="one"), calls("desk", task="two"))
    boss = agent("boss", both, "Thanks.", tools=[desk.as_tool()])

    result = await alone(boss).run("go")

    texts = [c.result for m in result.get_outputs()[0].messages for c in m.contents if c.type == "function_result"]
    assert texts[0] == "one"
    assert WorkflowBusy.__name__ in texts[1]


async def test_a_waiting_team_whose_executor_is_gone_is_refused_by_name() -> None:
    storage = InMemoryCheckpointStorage()
    await alone(asking(), name="outer", checkpoint_storage=storage).run("well", run_id="r")
    changed = alone(agent("other", "hi"), name="asking").as_agent()

    with pytest.raises(GraphChanged, match="inside 'asking', executor 'asker' is gone"):
        await alone(changed, name="outer", checkpoint_storage=storage).run(run_id="r")


async def test_a_failed_inner_turn_leaves_the_team_as_it_was() -> None:
    writer = agent("writer", "one", RuntimeError("no network"), "two")
    team = AgentExecutor(alone(writer, name="inner").as_agent(), retry=RetryPolicy(max_attempts=2, initial_wait=0.001))
    workflow = alone(team, checkpoint_storage=InMemoryCheckpointStorage())
    await workflow.run("first", run_id="r")

    result = await workflow.run("second", run_id="r")

    assert [output.text for output in result.get_outputs()] == ["two"]
    assert heard(writer)[-1] == ["first", "one", "second"]


async def test_many_runs_of_nested_teams_at_once_keep_apart() -> None:
    def echo(messages: Any) -> str:
        return "|".join(message.text for message in messages if message.role == "user")

    inner = alone(agent("writer", echo), name="inner").as_agent()
    workflow = alone(alone(inner, name="middle").as_agent(), checkpoint_storage=InMemoryCheckpointStorage())

    async def converse(number: int) -> str:
        for turn in range(2):
            result = await workflow.run(f"{number}.{turn}", run_id=f"r{number}")
        return str(result.get_outputs()[0].text)

    assert await asyncio.gather(*map(converse, range(50))) == [f"{n}.0|{n}.1" for n in range(50)]
