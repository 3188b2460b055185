"""Workflows asked like agents: turns, sessions, requests, failures, streams."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepwell import (
    LATEST_ONLY,
    Agent,
    AgentException,
    AgentResponse,
    AgentResponseUpdate,
    AgentSession,
    AlreadyAnswered,
    CheckpointStorage,
    Content,
    Executor,
    InMemoryCheckpointStorage,
    Message,
    ResponseTypeMismatch,
    RunUnfinished,
    SQLiteCheckpointStorage,
    SupportsAgentRun,
    UnknownApproval,
    UnknownRequest,
    Workflow,
    WorkflowAgent,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
    tool,
)
from stepwell.orchestrations import MagenticPlanReviewRequest
from stepwell.testing import ScriptedChatClient, Streamed, calls
from stepwell.testing.crash import CrashingStorage, PowerLoss
from tests.orchestrations.teams import DONE, FACTS, PLAN, TASK, Team, ledger, usual


def agent(name: str, *replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedChatClient(*replies), f"You are the {name}.", name=name, **options)


def heard(member: Agent) -> list[list[str]]:
    """What the agent's model was asked, call by call, without the instructions."""
    client = member.client
    assert isinstance(client, ScriptedChatClient)
    return [[message.text for message in call.messages if message.role != "system"] for call in client.asked]


def chain(*agents: Any, **options: Any) -> Workflow:
    builder = WorkflowBuilder(start_executor=agents[0], **options)
    return (builder.add_chain(list(agents)) if len(agents) > 1 else builder).build()


def elsewhere(session: AgentSession) -> AgentSession:
    """The session as another process gets it."""
    return AgentSession.from_dict(json.loads(json.dumps(session.to_dict())))


@dataclass(frozen=True)
class Question:
    text: str


@dataclass(frozen=True)
class Verdict:
    good: bool
    reason: str = ""


class Asker(Executor):
    """Asks before it answers."""

    def __init__(self, response_type: Any = str, *, questions: int = 1) -> None:
        super().__init__("asker")
        self.response_type = response_type
        self.questions = questions

    @handler
    async def ask(self, text: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(f"about {text}")
        for number in range(self.questions):
            await ctx.request_info(Question(f"{text}, question {number + 1}?"), self.response_type)

    @response_handler
    async def answered(self, question: Question, answer: str | bool | Verdict, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(f"{question.text} {answer}")


def asker(response_type: Any = str, *, questions: int = 1, **options: Any) -> Workflow:
    return WorkflowBuilder(
        start_executor=lambda: Asker(response_type, questions=questions), name="asker", **options
    ).build()


# --- turns ------------------------------------------------------------------------------------------------------------


async def test_outputs_become_messages_in_order() -> None:
    team = chain(agent("writer", "a draft"), agent("editor", "a text")).as_agent("desk", description="Writes")

    response = await team.run("wells")

    assert isinstance(team, SupportsAgentRun)
    assert (team.name, team.description) == ("desk", "Writes")
    assert [(m.author_name, m.text) for m in response.messages] == [("writer", "a draft"), ("editor", "a text")]
    assert response.text == "a draft\na text"


async def test_a_further_turn_sends_only_what_is_new() -> None:
    writer, editor = agent("writer", "draft 1", "draft 2", "draft 3"), agent("editor", "text 1", "text 2", "text 3")
    team = chain(writer, editor).as_agent()
    session = team.create_session()

    for word in ("one", "two", "three"):
        await team.run(word, session=session)

    assert heard(writer)[-1] == ["one", "draft 1", "two", "draft 2", "three"]
    assert heard(editor)[-1] == ["one", "draft 1", "text 1", "two", "draft 2", "text 2", "three", "draft 3"]


async def test_the_same_words_again_are_a_further_turn() -> None:
    writer = agent("writer", "first", "second")
    team = chain(writer).as_agent()
    session = team.create_session()

    answers = [(await team.run("go on", session=session)).text for _ in range(2)]

    assert answers == ["first", "second"]


async def test_without_a_session_each_run_stands_alone() -> None:
    writer = agent("writer", "first", "second")
    team = chain(writer).as_agent()

    await team.run("one")
    await team.run("two")

    assert heard(writer) == [["one"], ["two"]]


async def test_a_start_executor_gets_the_shape_it_takes() -> None:
    class Reader(Executor):
        @handler
        async def read(self, message: Message, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output(f"one message: {message.text}")

    class Counter(Executor):
        @handler
        async def read(self, number: int, ctx: WorkflowContext[Any, int]) -> None:
            await ctx.yield_output(number)

    assert (await chain(Reader("reader")).as_agent().run("hello")).text == "one message: hello"
    with pytest.raises(AgentException, match="'counter' accepts int"):
        await chain(Counter("counter"), name="n").as_agent().run("hello")


async def test_an_output_that_is_no_text_is_the_value_too() -> None:
    class Judge(Executor):
        @handler
        async def judge(self, text: str, ctx: WorkflowContext[Any, Verdict]) -> None:
            await ctx.yield_output(Verdict(True, text))

    response = await chain(Judge("judge")).as_agent().run("fine")

    assert response.value == Verdict(True, "fine")
    assert "fine" in response.text


async def test_usage_is_that_of_the_turn() -> None:
    writer = agent("writer", "one", "two three")
    team = chain(writer).as_agent()
    session = team.create_session()

    first, second = [await team.run(word, session=session) for word in ("a b", "c")]

    def counted(response: AgentResponse) -> dict[str, int]:
        return dict(response.usage_details or {})

    # The scripted model counts words: the instructions, what was said so far, and one more for each reply.
    assert counted(first) == {"input_token_count": 6, "output_token_count": 2, "total_token_count": 8}
    assert counted(second) == {"input_token_count": 8, "output_token_count": 3, "total_token_count": 11}


async def test_nothing_to_do_is_refused() -> None:
    with pytest.raises(AgentException, match="was asked nothing"):
        await chain(agent("writer")).as_agent().run()


async def test_runs_can_be_named_and_heard_again() -> None:
    storage, writer = InMemoryCheckpointStorage(), agent("writer", "once")
    team = chain(writer).as_agent()

    first = await team.run("go", run_id="r", checkpoint_storage=storage)
    again = await team.run("go", run_id="r", checkpoint_storage=storage)
    silent = await team.run(run_id="r", checkpoint_storage=storage)

    assert first.text == again.text == silent.text == "once"
    assert len(heard(writer)) == 1


# --- checkpoints ------------------------------------------------------------------------------------------------------


async def test_a_checkpoint_can_be_gone_on_from() -> None:
    storage, writer = InMemoryCheckpointStorage(), agent("writer", "one", "two", "other two")
    team = chain(writer, name="w").as_agent()
    session = team.create_session()
    await team.run("first", session=session, checkpoint_storage=storage)
    after_first = await storage.get_latest(workflow_name="w")
    assert after_first is not None
    await team.run("second", session=session, checkpoint_storage=storage)

    response = await team.run("instead", checkpoint_id=after_first.checkpoint_id, checkpoint_storage=storage)

    assert response.text == "other two"
    assert heard(writer)[-1] == ["first", "one", "instead"]


async def test_output_made_during_a_restore_is_returned() -> None:
    storage, writer, editor = (
        InMemoryCheckpointStorage(),
        agent("writer", "draft", "more"),
        agent("editor", "fine", "ok"),
    )
    team = chain(writer, editor, name="w").as_agent()
    await team.run("first", checkpoint_storage=storage)
    [_, middle, _] = await storage.list_checkpoints(workflow_name="w")
    editor.client.add("fine again", "last")  # type: ignore[attr-defined]

    resumed = await team.run(checkpoint_id=middle.checkpoint_id, checkpoint_storage=storage)
    went_on = await team.run("next", checkpoint_id=middle.checkpoint_id, checkpoint_storage=storage)

    assert resumed.text == "draft\nok"
    assert went_on.text == "fine again\nmore\nlast"


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_a_request_is_a_user_input_content_that_knows_its_type() -> None:
    team = asker().as_agent()

    response = await team.run("wells")

    [request] = response.user_input_requests
    assert request.function_call is not None
    assert request.function_call.name == "request_info"
    assert team.request_data(request) == Question("wells, question 1?")
    assert response.messages[-1].author_name == "asker"
    assert response.text == "about wells"


@pytest.mark.parametrize("way", ["content", "responses", "without a session", "storage"])
async def test_an_answer_is_taken_every_way(way: str, tmp_path: Path) -> None:
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        team = asker(checkpoint_storage=storage).as_agent()
        session = team.create_session()
        [request] = (await team.run("wells", session=session)).user_input_requests
        session = elsewhere(session)

        if way == "content":
            answer = Content.from_function_result(str(request.id), result="deep")
            response = await team.run(Message("tool", [answer]), session=session)
        elif way == "responses":
            response = await team.run(responses={str(request.id): "deep"}, session=session)
        elif way == "without a session":
            response = await team.run(responses={str(request.id): "deep"})
        else:
            await storage.answer(str(request.id), "deep")
            response = await team.run(session=session)

    assert response.messages[-1].text == "wells, question 1? deep"
    # A session remembers what it has heard; without one, or asked how it stands, the whole turn is told.
    assert (response.messages[0].text == "about wells") == (way in ("without a session", "storage"))


@pytest.mark.parametrize(
    ("response_type", "answer", "expected"),
    [
        (bool, True, "True"),
        (Verdict, {"good": False, "reason": "no"}, "Verdict(good=False, reason='no')"),
        (Verdict, '{"good": true}', "Verdict(good=True, reason='')"),
        (str, '{"good": true}', '{"good": true}'),
    ],
    ids=["bool", "object", "JSON text", "text that looks like JSON"],
)
async def test_an_answer_as_content_is_of_the_type_that_was_asked_for(
    response_type: Any, answer: Any, expected: str
) -> None:
    team = asker(response_type).as_agent()
    session = team.create_session()
    [request] = (await team.run("q", session=session)).user_input_requests
    said = (
        request.to_function_approval_response(answer)
        if isinstance(answer, bool)
        else Content.from_function_result(str(request.id), result=answer)
    )

    response = await team.run([said], session=session)

    assert response.text == f"q, question 1? {expected}"


async def test_an_answer_of_the_wrong_type_changes_nothing() -> None:
    team = asker(Verdict).as_agent()
    session = team.create_session()
    [request] = (await team.run("q", session=session)).user_input_requests

    with pytest.raises(ResponseTypeMismatch):
        await team.run(responses={str(request.id): "well"}, session=session)

    assert "good=True" in (await team.run(responses={str(request.id): Verdict(True)}, session=session)).text


async def test_requests_can_be_answered_one_by_one_and_nothing_is_said_twice() -> None:
    team = asker(questions=2).as_agent()
    session = team.create_session()

    asked = await team.run("q", session=session)
    ids = [str(request.id) for request in asked.user_input_requests]
    half = await team.run(responses={ids[1]: "yes"}, session=session)
    whole = await team.run(responses={ids[0]: "no"}, session=session)

    assert (asked.text, half.text, whole.text) == ("about q", "q, question 2? yes", "q, question 1? no")
    assert [str(request.id) for request in half.user_input_requests] == ids[:1]
    assert whole.user_input_requests == []


async def test_an_answer_counts_once() -> None:
    team = asker().as_agent()
    session = team.create_session()
    [request] = (await team.run("q", session=session)).user_input_requests
    await team.run(responses={str(request.id): "yes"}, session=session)

    with pytest.raises(AlreadyAnswered):
        await team.run(responses={str(request.id): "no"}, session=session)


async def test_a_question_that_waits_is_not_talked_over() -> None:
    team = asker().as_agent()
    session = team.create_session()
    [request] = (await team.run("q", session=session)).user_input_requests

    with pytest.raises(RunUnfinished):
        await team.run("something else", session=session)
    with pytest.raises(AgentException, match="answers and further messages at once"):
        await team.run("something else", responses={str(request.id): "yes"}, session=session)

    assert (await team.run(responses={str(request.id): "yes"}, session=session)).text == "q, question 1? yes"


async def test_unknown_answers_are_refused() -> None:
    team = asker().as_agent()
    session = team.create_session()
    await team.run("q", session=session)
    stranger = Content.from_function_approval_response(True, "nobody")

    with pytest.raises(UnknownApproval):
        await team.run([stranger], session=session)
    with pytest.raises(UnknownRequest):
        await team.run(responses={"nobody": True}, session=session)


async def test_a_request_sent_back_with_its_answer_is_no_news() -> None:
    team = asker(bool).as_agent()
    session = team.create_session()
    asked = await team.run("q", session=session)
    [request] = asked.user_input_requests

    answer = Message("user", [request.to_function_approval_response(True)])
    response = await team.run([asked.messages[-1], answer], session=session)

    assert response.text == "q, question 1? True"


async def test_a_tool_approval_is_the_content_itself() -> None:
    paid: list[str] = []

    @tool(approval_mode="always")
    def pay(invoice: str) -> str:
        """Pay."""
        paid.append(invoice)
        return "paid"

    team = chain(agent("payer", calls("pay", invoice="A1"), "done", tools=[pay])).as_agent()
    session = team.create_session()
    [request] = (await team.run("pay A1", session=session)).user_input_requests
    assert request.function_call is not None
    assert request.function_call.name == "pay"

    response = await team.run([request.to_function_approval_response(True)], session=session)

    assert (paid, response.messages[-1].text) == (["A1"], "done")


async def test_two_agents_that_number_their_calls_alike_are_told_apart() -> None:
    paid: list[str] = []

    @tool(approval_mode="always")
    def pay(invoice: str) -> str:
        """Pay."""
        paid.append(invoice)
        return "paid"

    start, ann, bob = (
        agent("start", "go"),
        agent("ann", calls("pay", call_id="call_0", invoice="ann's"), "ann is done", tools=[pay]),
        agent("bob", calls("pay", call_id="call_0", invoice="bob's"), "bob is done", tools=[pay]),
    )
    team = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, [ann, bob]).build().as_agent()
    session = team.create_session()
    asked = await team.run("pay", session=session)
    anns, bobs = asked.user_input_requests

    answers = [anns.to_function_approval_response(False), bobs.to_function_approval_response(True)]
    response = await team.run(answers, session=elsewhere(session))

    assert anns.id != bobs.id
    assert paid == ["bob's"]
    assert {"ann is done", "bob is done"} <= set(response.text.splitlines())


# --- plan reviews -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["content", "JSON", "typed"])
async def test_a_plan_is_approved_with_the_session_alone(way: str, tmp_path: Path) -> None:
    crew = usual(name="crew", enable_plan_review=True)
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        team = crew.build(storage).as_agent()
        session = team.create_session()
        await team.run(TASK, session=session)
        saved = elsewhere(session)

    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        team = crew.build(storage).as_agent()
        [request] = (await team.run(session=saved)).user_input_requests
        review = team.request_data(request)
        assert isinstance(review, MagenticPlanReviewRequest)
        if way == "content":
            answer: dict[str, Any] = {"messages": [request.to_function_approval_response(True)]}
        else:
            answer = {"responses": {review.request_id: review.approve() if way == "typed" else {"decision": "approve"}}}
        response = await team.run(**answer, session=saved)

    assert response.text == "The brief."
    assert len(crew.asked) == len(set(crew.asked)) + crew.asked.count("ledger") - 1


async def test_a_plan_can_be_rejected_and_revised_by_content_and_by_word() -> None:
    crew = usual(enable_plan_review=True)
    crew.manager = ScriptedChatClient([FACTS, PLAN, PLAN])
    team = crew.build().as_agent()
    session = team.create_session()
    [request] = (await team.run(TASK, session=session)).user_input_requests

    revised = await team.run(
        responses={str(request.id): {"decision": "revise", "feedback": "Shorter"}}, session=session
    )
    [again] = revised.user_input_requests
    rejected = await team.run([again.to_function_approval_response(False)], session=session)

    assert request.id != again.id
    assert "rejected" in rejected.text


async def test_a_team_goes_on_with_its_conversation() -> None:
    crew: Team = usual(name="crew")
    team = crew.build().as_agent()
    session = team.create_session()
    await team.run(TASK, session=session)
    crew.manager.add(FACTS, PLAN, ledger("writer"), DONE, "Shorter.")

    response = await team.run("Make it shorter.", session=elsewhere(session))

    assert response.text == "Shorter."
    conversation = "\n".join(message.text for message in crew.manager.asked[-1].messages)
    assert conversation.count("Make it shorter.") >= 1
    assert conversation.count("The answer that was given:\nThe brief.") == 1


# --- failures ---------------------------------------------------------------------------------------------------------


class Moody(Executor):
    """Remembers what it was told, unless it is in a bad mood."""

    def __init__(self) -> None:
        super().__init__("moody")
        self.heard: list[str] = []

    @handler
    async def hear(self, text: str, ctx: WorkflowContext[Any, str]) -> None:
        self.heard.append(text)
        if text == "bad":
            raise ValueError("not in the mood")
        await ctx.yield_output(", ".join(self.heard))

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"heard": self.heard}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.heard = list(state["heard"])


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_failed_turn_is_reported_and_the_next_is_fine(streamed: bool) -> None:
    team = moody().as_agent()
    session = team.create_session()
    await team.run("one", session=session)

    with pytest.raises(ValueError, match="not in the mood"):
        await team.run("bad", session=session, stream=streamed)
    response = await team.run("two", session=elsewhere(session))

    assert response.text == "one, two"


async def test_a_first_turn_that_failed_does_not_spoil_the_second() -> None:
    team = moody().as_agent()
    session = team.create_session()

    with pytest.raises(ValueError, match="not in the mood"):
        await team.run("bad", session=session)

    assert (await team.run("one", session=session)).text == "one"
    assert (await team.run("two", session=session)).text == "one, two"


async def test_a_failed_turn_can_be_taken_up_again() -> None:
    writer = agent("writer", "one", RuntimeError("no network"), "two")
    team = chain(writer).as_agent()
    session = team.create_session()
    await team.run("first", session=session)
    with pytest.raises(RuntimeError, match="no network"):
        await team.run("second", session=session)

    response = await team.run(session=session)

    assert response.text == "two"
    assert heard(writer)[-1] == ["first", "one", "second"]


async def test_a_turn_given_up_is_not_recovered_later(tmp_path: Path) -> None:
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        workflow = moody(checkpoint_storage=storage)
        team = workflow.as_agent()
        session = team.create_session()
        await team.run("one", session=session)
        with pytest.raises(PowerLoss):
            await team.run("two", session=session, checkpoint_storage=CrashingStorage(storage, at="after checkpoint#1"))

    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        workflow = moody(checkpoint_storage=storage)
        response = await workflow.as_agent().run("three", session=session)

        assert response.text == "one, three"
        assert await workflow.recover() == []


async def test_without_the_checkpoint_to_go_on_from_the_error_says_what_to_do() -> None:
    storage = InMemoryCheckpointStorage(retention=LATEST_ONLY)
    team = moody(checkpoint_storage=storage).as_agent()
    session = team.create_session()
    await team.run("one", session=session)
    with pytest.raises(ValueError, match="not in the mood"):
        await team.run("bad", session=session)

    with pytest.raises(AgentException, match="resume the failed turn first"):
        await team.run("two", session=session)


def moody(**options: Any) -> Workflow:
    return WorkflowBuilder(start_executor=lambda: Moody(), name="moody", **options).build()


async def test_a_turn_whose_end_nobody_heard_of_is_not_done_twice() -> None:
    storage, writer = InMemoryCheckpointStorage(), agent("writer", "one", "two")
    team = chain(writer, checkpoint_storage=storage).as_agent()
    session = team.create_session()
    await team.run("first", session=session)
    saved = elsewhere(session)  # The process dies before it saves the session again.
    unheard = await team.run("second", session=session)

    again = await team.run("second", session=saved)

    assert (again.text, len(heard(writer))) == (unheard.text, 2)


# --- sessions side by side --------------------------------------------------------------------------------------------


async def test_two_hundred_sessions_at_once_do_not_hear_each_other(tmp_path: Path) -> None:
    def echo(messages: Any) -> str:
        return "|".join(message.text for message in messages if message.role == "user")

    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        first, second = agent("first", echo), agent("second", echo)
        team = chain(first, second, checkpoint_storage=storage, output_from=[second]).as_agent()

        async def converse(number: int) -> list[str]:
            session = team.create_session(session_id=f"user-{number}")
            return [(await team.run(f"{number}.{turn}", session=session)).text for turn in range(3)]

        talks = await asyncio.gather(*(converse(number) for number in range(200)))

    for number, talk in enumerate(talks):
        assert talk == [f"{number}.0", f"{number}.0|{number}.1", f"{number}.0|{number}.1|{number}.2"]
    for member in (first, second):
        for conversation in heard(member):
            assert len({said.split(".")[0] for text in conversation for said in text.split("|")}) == 1


async def test_a_session_is_found_by_its_id_alone(tmp_path: Path) -> None:
    writer = agent("writer", "one", "two")
    for word, answer in (("first", "one"), ("second", "two")):
        async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
            team = chain(writer, name="w", checkpoint_storage=storage).as_agent()
            assert (await team.run(word, session=team.create_session(session_id="user/42"))).text == answer

    assert heard(writer)[-1] == ["first", "one", "second"]


# --- streams ----------------------------------------------------------------------------------------------------------


async def collected(stream: Any) -> tuple[list[AgentResponseUpdate], AgentResponse]:
    updates = [update async for update in stream]
    return updates, await stream.get_final_response()


def texts(updates: list[AgentResponseUpdate]) -> list[tuple[str | None, str]]:
    """Who said what, the pieces of one speaker put together."""
    said: list[tuple[str | None, str]] = []
    for update in updates:
        if update.text and said and said[-1][0] == update.author_name:
            said[-1] = (update.author_name, said[-1][1] + update.text)
        elif update.text:
            said.append((update.author_name, update.text))
    return said


async def test_updates_are_live_have_an_author_and_come_once() -> None:
    team = chain(agent("writer", "one two three"), agent("editor", "four five")).as_agent()

    updates, response = await collected(team.run("go", stream=True))

    assert texts(updates) == [("writer", "one two three"), ("editor", "four five")]
    assert len([update for update in updates if update.text]) == 5
    assert {update.response_id for update in updates} == {response.response_id}
    assert response.text == "one two three\nfour five"


async def test_a_stream_amounts_to_its_final_response() -> None:
    def build() -> WorkflowAgent:
        return chain(agent("writer", "one two"), asker_after()).as_agent()

    updates, streamed = await collected(build().run("go", stream=True))
    awaited = await build().run("go")

    amount = AgentResponse.from_updates(updates)
    for response in (amount, streamed):
        assert [(m.author_name, m.text) for m in response.messages] == [
            (m.author_name, m.text) for m in awaited.messages
        ]
        assert len(response.user_input_requests) == 1
    assert amount.usage_details == streamed.usage_details == awaited.usage_details


def asker_after() -> Executor:
    class After(Executor):
        @handler
        async def ask(self, response: Any, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output("one thing:")
            await ctx.request_info(Question("really?"), bool)

        @response_handler
        async def answered(self, question: Question, answer: bool, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output(str(answer))

    return After("after")


async def test_an_approval_is_streamed_once() -> None:
    @tool(approval_mode="always")
    def pay(invoice: str) -> str:
        """Pay."""
        return "paid"

    team = chain(agent("payer", calls("pay", invoice="A1"), "done", tools=[pay])).as_agent()
    session = team.create_session()

    updates, response = await collected(team.run("pay", session=session, stream=True))
    [request] = [request for update in updates for request in update.user_input_requests]
    assert [request] == response.user_input_requests

    updates, response = await collected(
        team.run([request.to_function_approval_response(True)], session=session, stream=True)
    )
    assert texts(updates) == [("payer", "done")]
    assert response.messages[-1].text == "done"


async def test_a_stream_that_resumes_a_turn_begins_with_what_it_had_come_to() -> None:
    storage = InMemoryCheckpointStorage()
    writer, editor = agent("writer", "a draft"), agent("editor", Streamed(("a",), RuntimeError("gone")), "a text")
    team = chain(writer, editor, checkpoint_storage=storage).as_agent()
    session = team.create_session()
    with pytest.raises(RuntimeError, match="gone"):
        await collected(team.run("go", session=session, stream=True))

    for word in (None, "go"):
        updates, response = await collected(team.run(word, session=elsewhere(session), stream=True))
        assert texts(updates) == [("writer", "a draft"), ("editor", "a text")]
        assert response.text == "a draft\na text"

    assert len(heard(writer)) == 1


async def test_leaving_a_stream_interrupts_the_turn_and_the_next_run_goes_on() -> None:
    writer = agent("writer", "one two three", "four")
    team = chain(writer).as_agent()
    session = team.create_session()
    async with team.run("go", session=session, stream=True) as stream:
        async for update in stream:
            if update.text:
                break

    assert (await team.run(session=session)).text == "four"


async def test_a_storage_of_just_six_methods_is_enough() -> None:
    class Shelf:
        """Just the six methods."""

        def __init__(self) -> None:
            self._inner = InMemoryCheckpointStorage()
            for name in ("save", "load", "list_checkpoints", "list_checkpoint_ids", "get_latest", "delete"):
                setattr(self, name, getattr(self._inner, name))

    storage: CheckpointStorage = Shelf()  # type: ignore[assignment]
    team = asker().as_agent()
    session = team.create_session()
    [request] = (await team.run("q", session=session, checkpoint_storage=storage)).user_input_requests

    answer = Content.from_function_result(str(request.id), result="yes")
    response = await team.run([Message("tool", [answer])], session=elsewhere(session), checkpoint_storage=storage)

    assert response.text == "q, question 1? yes"
