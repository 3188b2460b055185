"""Teams from beginning to end: who is asked what, and what comes out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from stepwell import (
    Agent,
    AgentResponse,
    BaseAgent,
    Executor,
    InMemoryCheckpointStorage,
    ManagerCannotAsk,
    Message,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    WorkflowValidationError,
    handler,
    tool,
)
from stepwell.orchestrations import (
    GroupChatParticipantMessage,
    GroupChatRequestMessage,
    GroupChatRequestSentEvent,
    GroupChatResponseMessage,
    MagenticBuilder,
    MagenticContext,
    MagenticManagerBase,
    MagenticOrchestratorEventType,
    MagenticProgressLedger,
    MagenticProgressLedgerItem,
    StandardMagenticManager,
)
from stepwell.testing import ScriptedChatClient, calls
from stepwell.testing.crash import CrashingStorage, PowerLoss
from tests.orchestrations.teams import DONE, FACTS, PLAN, STALL, TASK, Team, ledger, team, usual


def final_text(result: Any) -> str:
    [output] = result.get_outputs()
    assert isinstance(output, AgentResponse)
    return output.text


def kinds(result: Any) -> list[str]:
    return [event.data.event_type.name for event in result if event.type == "magentic_orchestrator"]


def said(client: ScriptedChatClient, call: int = 0) -> str:
    return "\n".join(message.text for message in client.asked[call].messages)


# --- the way it goes --------------------------------------------------------------------------------------------------


async def test_a_team_plans_works_and_answers() -> None:
    crew = usual()

    result = await crew.build().run(TASK)

    assert final_text(result) == "The brief."
    assert result.get_final_state() is WorkflowRunState.IDLE
    assert crew.asked == ["facts", "plan", "ledger", "ledger", "ledger", "final"]
    assert len(crew.researcher.asked) == len(crew.writer.asked) == 1
    crew.manager.check()


async def test_the_final_answer_is_one_output_event_streaming_or_not() -> None:
    streamed = [event async for event in usual().build().run(TASK, stream=True) if event.type == "output"]
    plain = [event for event in await usual().build().run(TASK) if event.type == "output"]

    assert [event.data.text for event in streamed] == [event.data.text for event in plain] == ["The brief."]


async def test_what_participants_stream_is_intermediate() -> None:
    events = [event async for event in usual().build().run(TASK, stream=True)]

    spoken = {event.executor_id for event in events if event.type == "intermediate"}
    assert spoken == {"researcher", "writer"}


async def test_participants_get_the_task_the_plan_and_what_others_said() -> None:
    crew = usual()
    await crew.build().run(TASK)

    heard = said(crew.writer)
    assert TASK in heard
    assert "1. researcher: Collect the facts." in heard
    assert "researcher:\nfound" in heard
    assert crew.writer.asked[0].text == "Write it."


async def test_tool_calls_are_not_broadcast() -> None:
    def look_up(topic: str) -> str:
        return f"secret notes on {topic}"

    crew = usual()
    researcher = Agent(
        ScriptedChatClient([calls("look_up", topic="wells"), "They are deep."]), name="researcher", tools=[look_up]
    )
    writer = Agent(crew.writer, name="writer")
    workflow = MagenticBuilder(participants=[researcher, writer], manager_agent=Agent(crew.manager)).build()

    await workflow.run(TASK)

    assert "They are deep." in said(crew.writer)
    assert "secret notes" not in said(crew.writer) + said(crew.manager, -1)


async def test_nothing_is_told_to_a_participant_twice() -> None:
    crew = team(*[ledger(name) for name in ("researcher", "writer", "researcher", "writer")], DONE)
    await crew.build().run(TASK)

    texts = [message.text for message in crew.writer.asked[-1].messages]
    assert len(texts) == len(set(texts)) + 1  # the instruction was the same both times


async def test_the_managers_calls_begin_alike_so_that_prompt_caches_work() -> None:
    crew = usual()
    await crew.build().run(TASK)

    facts, plan, *ledgers, final = [call.messages for call in crew.manager.asked]
    assert plan[: len(facts)] == facts
    for earlier, later in zip(ledgers, [*ledgers[1:], final], strict=True):
        assert later[: len(earlier) - 1] == earlier[:-1]


async def test_the_ledger_is_asked_for_with_a_schema_that_names_the_team() -> None:
    crew = usual()
    await crew.build().run(TASK)

    schema = crew.manager.asked[2].options.response_format
    assert schema is not None
    assert "researcher" in json.dumps(schema.schema["properties"]["next_speaker"])


async def test_the_events_tell_the_story() -> None:
    result = await usual().build().run(TASK)

    assert kinds(result) == ["PLAN_CREATED", *["PROGRESS_LEDGER_UPDATED"] * 3]
    plan = next(event.data for event in result if event.type == "magentic_orchestrator")
    assert isinstance(plan.content, Message)
    assert [step.owner for step in plan.plan.steps] == ["researcher", "writer"]
    asked = [event.data for event in result if isinstance(event.data, GroupChatRequestSentEvent)]
    assert [(event.round_index, event.participant_name) for event in asked] == [(1, "researcher"), (2, "writer")]
    ids = [event.event_id for event in result if event.type in ("magentic_orchestrator", "group_chat")]
    assert len(ids) == len(set(ids))


async def test_usage_is_counted_per_agent_and_per_run() -> None:
    result = await usual().build(InMemoryCheckpointStorage()).run(TASK)

    assert {name: counts["calls"] for name, counts in result.usage.items()} == {
        "manager": 6,
        "researcher": 1,
        "writer": 1,
    }
    assert result.total_usage()["total_tokens"] > 0


async def test_one_workflow_serves_many_runs_at_once() -> None:
    def script(messages: Any) -> str:
        # What a stateless model would say, from the conversation alone.
        from tests.orchestrations.teams import purpose

        spoken = [name for name in ("researcher", "writer") if any(m.author_name == name for m in messages)]
        match purpose(messages):
            case "facts":
                return FACTS
            case "plan":
                return PLAN
            case "ledger":
                return [ledger("researcher"), ledger("writer"), DONE][len(spoken)]
        return messages[0].text + "|" + messages[1].text.split("\n\n")[1]

    crew = Team(ScriptedChatClient(script), ScriptedChatClient(lambda m: "a"), ScriptedChatClient(lambda m: "b"))
    workflow = crew.build(InMemoryCheckpointStorage())

    results = await asyncio.gather(*(workflow.run(f"Task {number}.") for number in range(20)))

    assert [final_text(result) for result in results] == [f"You manage.|Task {number}." for number in range(20)]


async def test_a_manager_that_calls_it_done_before_anyone_spoke_is_asked_again_once() -> None:
    crew = team(DONE, ledger("writer"), DONE)

    result = await crew.build().run(TASK)

    assert crew.asked == ["facts", "plan", "ledger", "ledger doubted", "ledger", "final"]
    assert len(crew.writer.asked) == 1
    assert final_text(result) == "The brief."


async def test_a_manager_that_insists_is_believed() -> None:
    crew = team(DONE, DONE)

    await crew.build().run(TASK)

    assert crew.asked == ["facts", "plan", "ledger", "ledger doubted", "final"]


# --- replanning -------------------------------------------------------------------------------------------------------


async def test_replanning_sees_the_whole_conversation_and_only_then_clears_it() -> None:
    crew = team(ledger("researcher"), STALL, FACTS, PLAN, ledger("writer"), DONE, max_stall_count=0)

    result = await crew.build().run(TASK)

    assert crew.asked[2:] == ["ledger", "ledger", "facts again", "plan again", "ledger", "ledger", "final"]
    assert "found" in said(crew.manager, 4)
    assert "found" in said(crew.manager, 5)
    assert "found" not in said(crew.manager, 6)
    assert kinds(result)[3:6] == ["STALLED", "REPLANNED", "RESET"]


async def test_participants_sessions_are_really_reset_by_a_replan() -> None:
    crew = team(
        ledger("researcher", "Early words."),
        STALL,
        FACTS,
        PLAN,
        ledger("researcher", "Later words."),
        DONE,
        max_stall_count=0,
    )

    await crew.build().run(TASK)

    assert "Early words." not in said(crew.researcher, 1)
    assert "Later words." in said(crew.researcher, 1)


@pytest.mark.parametrize("stalls", [0, 1, 3])
async def test_a_team_replans_when_it_stalled_more_often_than_allowed(stalls: int) -> None:
    crew = team(*[STALL] * (stalls + 1), FACTS, PLAN, DONE, DONE, max_stall_count=stalls)

    result = await crew.build().run(TASK)

    assert kinds(result).count("STALLED") == 1
    assert len(crew.researcher.asked) == stalls


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_max_round_count_ends_with_a_best_effort_answer_that_says_so() -> None:
    crew = team(*[ledger("researcher")] * 3, final="As far as we got.", max_round_count=2)

    result = await crew.build().run(TASK)

    [output] = result.get_outputs()
    assert output.text.startswith("As far as we got.")
    assert "max_round_count=2" in output.text
    assert output.additional_properties == {"limit": "max_round_count"}
    assert "max_round_count=2" in said(crew.manager, -1)
    assert kinds(result)[-1] == "LIMIT_REACHED"


async def test_max_reset_count_ends_with_a_best_effort_answer_that_says_so() -> None:
    crew = team(ledger("researcher"), STALL, FACTS, PLAN, STALL, max_stall_count=0, max_reset_count=1)

    result = await crew.build().run(TASK)

    assert "max_reset_count=1" in final_text(result)


async def test_satisfied_counts_before_a_limit() -> None:
    crew = team(ledger("researcher"), DONE, max_round_count=1)

    assert final_text(await crew.build().run(TASK)) == "The brief."


async def test_a_run_stopped_by_a_limit_goes_on_when_the_limit_is_raised() -> None:
    storage = InMemoryCheckpointStorage()
    crew = team(ledger("researcher"), ledger("writer"), max_round_count=1)
    stopped = await crew.build(storage).run(TASK, run_id="r")
    assert "max_round_count=1" in final_text(stopped)

    crew.manager.add(ledger("writer"), DONE, "The whole brief.")
    result = await crew.build(storage, max_round_count=9).run(TASK, run_id="r", new_turn=True)

    assert final_text(result) == "The whole brief."
    assert crew.asked.count("plan") == 1
    assert len(crew.researcher.asked) == len(crew.writer.asked) == 1


# --- afterwards -------------------------------------------------------------------------------------------------------


async def test_a_follow_up_continues_the_conversation() -> None:
    storage = InMemoryCheckpointStorage()
    crew = usual()
    await crew.build(storage).run(TASK, run_id="r")

    crew.manager.add(FACTS, PLAN, ledger("writer", "Shorten it."), DONE, "The short brief.")
    result = await crew.build(storage).run("Make it shorter.", run_id="r")

    assert final_text(result) == "The short brief."
    assert "The brief." in said(crew.manager, 6)  # facts again
    heard = said(crew.writer, 1)
    assert "Make it shorter." in heard
    assert "Write it." in heard  # its session went on


# --- other participants and managers ----------------------------------------------------------------------------------


class Parrot(Executor):
    """Repeats what it was asked, and keeps what it was told."""

    description = "Repeats"

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.told: list[str] = []

    @handler
    async def told_something(self, message: GroupChatParticipantMessage, ctx: WorkflowContext) -> None:
        self.told += [told.text for told in message.messages]

    @handler
    async def asked(self, message: GroupChatRequestMessage, ctx: WorkflowContext[GroupChatResponseMessage]) -> None:
        reply = Message("assistant", [f"You said: {message.additional_instruction}"], author_name=self.id)
        await ctx.send_message(GroupChatResponseMessage(message=reply))


async def test_executors_can_be_participants_and_hear_the_others_at_once() -> None:
    crew = team(ledger("parrot", "Hello."), ledger("writer"), DONE)
    parrot = Parrot("parrot")
    workflow = MagenticBuilder(
        participants=[parrot, Agent(crew.writer, name="writer")], manager_agent=Agent(crew.manager)
    ).build()

    result = await workflow.run(TASK)

    assert final_text(result) == "The brief."
    assert "parrot:\nYou said: Hello." in said(crew.writer)
    assert any("wrote" in text for text in parrot.told)
    assert not [event for event in result if event.type == "warning"]


class Foreman(MagenticManagerBase):
    """A manager without a model."""

    async def plan(self, magentic_context: MagenticContext) -> Message:
        return Message("assistant", ["- researcher: look\n- writer: write"], author_name=self.name)

    async def replan(self, magentic_context: MagenticContext) -> Message:
        return await self.plan(magentic_context)

    async def create_progress_ledger(self, magentic_context: MagenticContext) -> MagenticProgressLedger:
        done = magentic_context.round_count >= 2
        speaker = ["researcher", "writer", "nobody"][magentic_context.round_count]
        return MagenticProgressLedger(
            is_request_satisfied=MagenticProgressLedgerItem(reason="r", answer=done),
            is_in_loop=MagenticProgressLedgerItem(reason="r", answer=False),
            is_progress_being_made=MagenticProgressLedgerItem(reason="r", answer=True),
            next_speaker=MagenticProgressLedgerItem(reason="r", answer=speaker),
            instruction_or_question=MagenticProgressLedgerItem(reason="r", answer="go"),
        )

    async def prepare_final_answer(self, magentic_context: MagenticContext) -> Message:
        return Message("assistant", [f"{len(magentic_context.chat_history)} messages"], author_name=self.name)


async def test_a_manager_of_ones_own_needs_no_model() -> None:
    crew = usual()
    participants = [Agent(crew.researcher, name="researcher"), Agent(crew.writer, name="writer")]
    workflow = MagenticBuilder(participants=participants, manager=Foreman()).build()

    first, second = await workflow.run(TASK), await workflow.run(TASK)

    assert final_text(first) == final_text(second) == "5 messages"


async def test_a_manager_made_per_run_serves_runs_at_once() -> None:
    crew = usual()
    participants = [Agent(crew.researcher, name="researcher"), Agent(crew.writer, name="writer")]
    workflow = MagenticBuilder(participants=participants, manager_factory=Foreman).build()

    results = await asyncio.gather(*(workflow.run(TASK) for _ in range(5)))

    assert {final_text(result) for result in results} == {"5 messages"}


async def test_a_third_partys_agent_can_manage_and_its_calls_are_recorded() -> None:
    crew = usual()

    class Third(BaseAgent):
        def run(self, messages: Any = None, *, stream: bool = False, session: Any = None) -> Any:
            return Agent(crew.manager).run(messages)

    participants = [Agent(crew.researcher, name="researcher"), Agent(crew.writer, name="writer")]
    storage = InMemoryCheckpointStorage()
    workflow = MagenticBuilder(
        participants=participants, manager_agent=Third(name="third"), checkpoint_storage=storage
    ).build()

    with pytest.raises(PowerLoss):
        await workflow.run(TASK, run_id="r", checkpoint_storage=CrashingStorage(storage, at="after call#2"))
    result = await workflow.run(TASK, run_id="r")

    assert final_text(result) == "The brief."
    crew.manager.check()


async def test_a_participants_tool_can_ask_a_person() -> None:
    @tool(approval_mode="always_require")
    def publish(text: str) -> str:
        """Publish it."""
        return f"published {text}"

    crew = team(ledger("writer"), DONE)
    writer = Agent(ScriptedChatClient([calls("publish", text="it"), "It is out."]), name="writer", tools=[publish])
    workflow = MagenticBuilder(participants=[writer], manager_agent=Agent(crew.manager)).build()

    [asked] = (await workflow.run(TASK, run_id="r")).get_request_info_events()
    result = await workflow.run(run_id="r", responses={asked.request_id: True})

    assert final_text(result) == "The brief."
    assert "writer:\nIt is out." in said(crew.manager, -1)


async def test_a_managers_own_prompts_are_used() -> None:
    crew = usual(task_ledger_facts_prompt="take stock of <{task}>")
    await crew.build().run(TASK)

    assert crew.manager.asked[0].text == f"take stock of <{TASK}>"


# --- mistakes ---------------------------------------------------------------------------------------------------------


def agent(name: str | None = "a") -> Agent:
    return Agent(ScriptedChatClient(), name=name)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        pytest.param({"participants": [agent()]}, "no manager", id="no manager"),
        pytest.param(
            {
                "participants": [agent()],
                "manager_agent": agent(),
                "manager": StandardMagenticManager(agent()),
            },
            "two managers",
            id="two managers",
        ),
        pytest.param({"participants": [agent(), agent()], "manager_agent": agent()}, "'a'", id="duplicate names"),
        pytest.param({"participants": [agent(None)], "manager_agent": agent()}, "has no name", id="no name"),
        pytest.param({"participants": [], "manager_agent": agent()}, "participants", id="nobody"),
        pytest.param({"participants": [3], "manager_agent": agent()}, "3", id="no agent"),
        pytest.param(
            {"participants": [agent("magentic_orchestrator")], "manager_agent": agent()},
            "orchestrator's",
            id="its name",
        ),
        pytest.param(
            {"participants": [agent()], "manager_agent": agent(), "max_round_count": 0}, "max_round_count", id="limit"
        ),
        pytest.param(
            {"participants": [agent()], "manager_agent": agent(), "final_answer_prompt": "{tsak}"},
            "{tsak}",
            id="prompt",
        ),
        pytest.param(
            {"participants": [agent()], "manager": StandardMagenticManager(agent()), "final_answer_prompt": "x"},
            "final_answer_prompt",
            id="prompt for a manager made by hand",
        ),
    ],
)
def test_a_mistake_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(WorkflowValidationError, match=named):
        MagenticBuilder(**options).build()


def test_an_executor_that_can_not_be_asked_is_named() -> None:
    class Deaf(Executor):
        @handler
        async def on_text(self, text: str, ctx: WorkflowContext) -> None: ...

    with pytest.raises(WorkflowValidationError, match="'deaf' can't be asked to speak"):
        MagenticBuilder(participants=[Deaf("deaf")], manager_agent=agent()).build()


def test_every_kind_of_event_is_named() -> None:
    assert {kind.name for kind in MagenticOrchestratorEventType} >= {
        "PLAN_CREATED",
        "REPLANNED",
        "PROGRESS_LEDGER_UPDATED",
        "STALLED",
        "RESET",
        "LIMIT_REACHED",
    }


async def test_a_manager_that_asks_a_person_is_refused_by_name() -> None:
    @tool(approval_mode="always_require")
    def spend(euros: int) -> str:
        """Spend money."""
        return "spent"

    manager = Agent(ScriptedChatClient(calls("spend", euros=5)), name="boss", tools=[spend])
    writer = Agent(ScriptedChatClient(), name="writer", description="writes")
    workflow = MagenticBuilder(participants=[writer], manager_agent=manager).build()

    with pytest.raises(ManagerCannotAsk, match=r"manager 'boss' was asked for the facts .*approval of spend"):
        await workflow.run(TASK)


async def test_a_team_that_asks_a_person_can_not_manage_and_its_question_is_not_lost() -> None:
    class Asking(Executor):
        @handler
        async def ask(self, messages: list[Message], ctx: WorkflowContext) -> None:
            await ctx.request_info("May I?", bool)

    office = WorkflowBuilder(start_executor=lambda: Asking("asking"), name="office").build().as_agent("office")
    writer = Agent(ScriptedChatClient(), name="writer", description="writes")
    workflow = MagenticBuilder(participants=[writer], manager_agent=office).build()

    with pytest.raises(ManagerCannotAsk, match="manager 'office'"):
        await workflow.run(TASK)
