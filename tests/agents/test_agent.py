"""The agent's turn: tools, approvals, structured output, streaming."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from pydantic import BaseModel

from stepwell.agents import (
    Agent,
    AgentResponse,
    AgentResponseUpdate,
    AgentSession,
    BaseAgent,
    ChatOptions,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    Message,
    SupportsAgentRun,
    ToolContext,
    tool,
)
from stepwell.agents.chat import AgentRunInputs
from stepwell.errors import AgentException, ModelUnreachable, OutputInvalid, UnknownApproval
from stepwell.testing import Delayed, ScriptedChatClient, Streamed, calls


class Shop:
    """Something with side effects that can be counted."""

    def __init__(self) -> None:
        self.paid: list[int] = []

    def price(self, item: str) -> int:
        """What an item costs."""
        return len(item)

    async def pay(self, invoice: int, currency: str = "EUR") -> str:
        """Pay an invoice."""
        self.paid.append(invoice)
        return f"paid {invoice} {currency}"


def results(response: AgentResponse) -> list[Any]:
    return [c.result for m in response.messages for c in m.contents if c.type == "function_result"]


# --- tools ------------------------------------------------------------------------------------------------------------


async def test_an_agent_uses_a_tool_and_answers() -> None:
    model = ScriptedChatClient(calls("price", item="tea"), "It costs 3.")
    agent = Agent(model, "Sell.", name="clerk", tools=[Shop().price])

    response = await agent.run("How much is tea?")

    assert response.text == "It costs 3."
    assert [m.role for m in response.messages] == ["assistant", "tool", "assistant"]
    assert response.messages[0].author_name == "clerk"
    assert model.asked[1].messages[-1].contents[0].result == "3"
    assert model.asked[0].options.tools[0].name == "price"
    assert response.usage_details is not None
    assert response.usage_details["output_token_count"] > 0
    assert response.agent_id == "clerk"


async def test_calls_of_one_reply_run_at_once_and_their_results_keep_the_order() -> None:
    running, most = 0, 0
    both = asyncio.Event()

    @tool
    async def wait(name: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            both.set()
        await both.wait()
        await asyncio.sleep(0.01 if name == "first" else 0)
        return name

    model = ScriptedChatClient((calls("wait", name="first"), calls("wait", name="second")), "ok")

    response = await Agent(model, tools=[wait]).run("go")

    assert most == 2
    assert results(response) == ["first", "second"]


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        pytest.param(calls("steal", item="tea"), "there is no tool 'steal'; there are: price", id="unknown tool"),
        pytest.param(calls("price", thing="tea"), "item: Field required", id="wrong arguments"),
        pytest.param(
            Content.from_function_call("c", "price", arguments='{"item": "te'), "not valid JSON", id="cut off"
        ),
    ],
)
async def test_a_call_that_can_not_be_made_is_explained_to_the_model(call: Content, complaint: str) -> None:
    model = ScriptedChatClient(call, "sorry")

    response = await Agent(model, tools=[Shop().price]).run("go")

    assert complaint in results(response)[0]
    assert response.text == "sorry"


async def test_an_exception_in_a_tool_is_told_to_the_model() -> None:
    @tool
    def broken() -> None:
        raise LookupError("nothing there")

    response = await Agent(ScriptedChatClient(calls("broken"), "I see."), tools=[broken]).run("go")

    assert results(response) == ["Error: LookupError: nothing there"]


async def test_a_tool_that_raises_ends_the_turn_with_its_own_error_and_stops_the_others() -> None:
    stopped = asyncio.Event()

    @tool(on_error="raise")
    async def broken() -> None:
        raise LookupError("nothing there")

    @tool
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    agent = Agent(ScriptedChatClient((calls("endless"), calls("broken"))), tools=[broken, endless])

    with pytest.raises(LookupError, match="nothing there"):
        await agent.run("go")
    assert stopped.is_set()


async def test_the_loop_is_bounded_and_ends_with_an_answer() -> None:
    model = ScriptedChatClient(
        lambda messages: "Best guess." if "used up" in messages[-1].text else calls("price", item="x")
    )
    agent = Agent(model, tools=[Shop().price], max_tool_rounds=3)

    response = await agent.run("go")

    assert response.text == "Best guess."
    assert len(model.asked) == 4
    assert model.asked[-1].options.tool_choice == "none"
    assert response.additional_properties == {"limit": "max_tool_rounds"}


async def test_a_model_that_never_stops_calling_is_stopped() -> None:
    model = ScriptedChatClient(lambda messages: calls("price", item="x"))
    agent = Agent(model, tools=[Shop().price], max_tool_rounds=2)
    session = agent.create_session()

    response = await agent.run("go", session=session)

    assert "limit of 2 rounds" in response.text
    assert session.state["in_memory"][-1].role == "assistant"


async def test_servers_that_repeat_or_omit_call_ids_do_not_confuse_the_pairing() -> None:
    def again(name: str, call_id: str) -> Content:
        return Content.from_function_call(call_id, "price", arguments={"item": name})

    model = ScriptedChatClient(
        ChatResponse.of([again("a", "call_0"), again("bb", "call_0")]),
        ChatResponse.of([again("ccc", "call_0"), again("dddd", ""), again("eeeee", "")]),
        "done",
    )

    response = await Agent(model, tools=[Shop().price]).run("go")

    made = [c.call_id for m in response.messages for c in m.contents if c.type == "function_call"]
    answered = [c.call_id for m in response.messages for c in m.contents if c.type == "function_result"]
    assert made == answered
    assert len(set(made)) == 5
    assert results(response) == ["1", "2", "3", "4", "5"]


async def test_per_run_kwargs_reach_tools_and_are_not_part_of_the_conversation() -> None:
    seen: list[Any] = []

    @tool
    def who(context: ToolContext) -> str:
        seen.append((context.kwargs["user"], context.agent_name, context.session, bool(context.idempotency_key)))
        return "ok"

    agent = Agent(ScriptedChatClient(calls("who"), "ok"), name="desk", tools=[who])
    session = agent.create_session()

    await agent.run("go", session=session, function_invocation_kwargs={"user": "ada"})

    assert seen == [("ada", "desk", session, True)]
    assert "ada" not in str(session.to_dict())


async def test_tools_and_options_can_be_given_for_one_run() -> None:
    model = ScriptedChatClient(calls("price", item="tea"), "3")
    agent = Agent(model, default_options={"temperature": 0.1, "top_k": 5})

    response = await agent.run("go", tools=[Shop().price], options={"temperature": 0.9, "stop": "END"})

    options = model.asked[0].options
    assert (options.temperature, options.stop, options.extra) == (0.9, ("END",), {"top_k": 5})
    assert response.text == "3"


async def test_an_agent_can_be_a_tool_of_another() -> None:
    expert = Agent(ScriptedChatClient(lambda m: f"{m[-1].text}!"), name="the expert", description="Knows things.")
    model = ScriptedChatClient(calls("the_expert", task="why"), "Because why!")

    response = await Agent(model, tools=[expert.as_tool()]).run("go")

    spec = model.asked[0].options.tools[0]
    assert (spec.name, spec.description, list(spec.parameters["properties"])) == (
        "the_expert",
        "Knows things.",
        ["task"],
    )
    assert results(response) == ["why!"]


# --- approval ---------------------------------------------------------------------------------------------------------


def cashier(*replies: Any, shop: Shop) -> Agent:
    return Agent(
        ScriptedChatClient(list(replies)),
        name="cashier",
        tools=[tool(approval_mode="always")(shop.pay), shop.price],
    )


async def test_a_call_that_needs_approval_shows_its_final_arguments_and_is_not_made() -> None:
    shop = Shop()

    response = await cashier("Hm.", shop=shop).run("wait")
    assert response.user_input_requests == []

    agent = cashier(calls("pay", invoice=7), shop=shop)
    (request,) = (await agent.run("pay 7", session=agent.create_session())).user_input_requests

    assert request.function_call is not None
    assert request.function_call.name == "pay"
    assert request.function_call.parse_arguments() == {"invoice": 7, "currency": "EUR"}
    assert shop.paid == []


async def test_an_approved_call_is_made_once_with_the_stored_arguments() -> None:
    shop = Shop()
    agent = cashier(calls("pay", invoice=7), "Paid.", shop=shop)
    session = agent.create_session()
    (request,) = (await agent.run("pay 7", session=session)).user_input_requests
    forged = Content.from_function_approval_response(
        True, str(request.id), Content.from_function_call(str(request.id), "pay", arguments={"invoice": 666})
    )

    response = await agent.run(Message("user", [forged]), session=session)

    assert shop.paid == [7]
    assert response.text == "Paid."
    assert [m.role for m in session.state["in_memory"]] == ["user", "assistant", "tool", "assistant"]
    with pytest.raises(UnknownApproval, match="nothing"):
        await agent.run(Message("user", [forged]), session=session)
    assert shop.paid == [7]


async def test_a_rejected_call_is_not_made_and_the_model_is_told() -> None:
    shop = Shop()
    agent = cashier(calls("pay", invoice=7), "As you wish.", shop=shop)
    session = agent.create_session()
    (request,) = (await agent.run("pay 7", session=session)).user_input_requests

    response = await agent.run(request.to_function_approval_response(False), session=session)

    assert shop.paid == []
    assert "did not approve" in results(response)[0]
    assert response.text == "As you wish."


async def test_calls_that_need_no_approval_are_made_meanwhile() -> None:
    shop = Shop()
    agent = cashier((calls("pay", invoice=7), calls("price", item="tea")), "All done.", shop=shop)
    session = agent.create_session()

    first = await agent.run("go", session=session)
    second = await agent.run(first.user_input_requests[0].to_function_approval_response(True), session=session)

    assert results(first) == ["3"]
    assert results(second) == ["paid 7 EUR", "3"]


async def test_nothing_is_run_until_every_request_is_answered() -> None:
    shop = Shop()
    agent = cashier((calls("pay", invoice=1), calls("pay", invoice=2)), "Done.", shop=shop)
    session = agent.create_session()
    one, two = (await agent.run("go", session=session)).user_input_requests

    half = await agent.run(two.to_function_approval_response(False), session=session)
    assert half.user_input_requests == [one]
    assert shop.paid == []

    await agent.run(one.to_function_approval_response(True), session=session)
    assert shop.paid == [1]


async def test_contradictory_answers_run_nothing() -> None:
    shop = Shop()
    agent = cashier(calls("pay", invoice=7), "Paid.", shop=shop)
    session = agent.create_session()
    (request,) = (await agent.run("pay 7", session=session)).user_input_requests
    both = [request.to_function_approval_response(approved) for approved in (False, True)]

    with pytest.raises(UnknownApproval):
        await agent.run(Message("user", both), session=session)

    assert shop.paid == []
    assert session.pending_approvals is not None


async def test_another_message_instead_of_an_answer_means_no() -> None:
    shop = Shop()
    agent = cashier(calls("pay", invoice=7), "Fine.", shop=shop)
    session = agent.create_session()
    await agent.run("pay 7", session=session)

    response = await agent.run("Never mind.", session=session)

    assert shop.paid == []
    assert response.text == "Fine."
    assert session.pending_approvals is None


async def test_asking_for_nothing_while_a_call_waits_shows_the_request_again() -> None:
    shop = Shop()
    agent = cashier(calls("pay", invoice=7), "Paid.", shop=shop)
    session = agent.create_session()
    first = await agent.run("pay 7", session=session)

    again = await agent.run(session=session)
    await agent.run(again.user_input_requests[0].to_function_approval_response(True), session=session)

    assert again.user_input_requests == first.user_input_requests
    assert shop.paid == [7]


async def test_an_approval_id_is_not_used_twice_even_if_the_server_does_so() -> None:
    shop = Shop()
    again = Content.from_function_call("call_0", "pay", arguments={"invoice": 1})
    agent = cashier(ChatResponse.of([again]), "one", ChatResponse.of([again]), shop=shop)
    session = agent.create_session()
    (first,) = (await agent.run("pay", session=session)).user_input_requests
    answer = first.to_function_approval_response(True)
    await agent.run(answer, session=session)
    await agent.run("pay again", session=session)

    with pytest.raises(UnknownApproval):
        await agent.run(answer, session=session)
    assert shop.paid == [1]


async def test_without_a_session_the_conversation_carries_the_request() -> None:
    shop = Shop()
    agent = cashier(calls("pay", invoice=7), "Paid.", shop=shop)
    (request,) = (await agent.run("pay 7")).user_input_requests

    response = await agent.run(
        ["pay 7", Message("assistant", [request]), Message("user", [request.to_function_approval_response(True)])]
    )

    assert shop.paid == [7]
    assert response.text == "Paid."
    model: Any = agent.client
    assert [m.role for m in model.asked[1].messages] == ["user", "assistant", "tool"]


async def test_without_a_session_the_whole_response_may_be_sent_back() -> None:
    shop = Shop()
    agent = cashier((calls("pay", invoice=7), calls("price", item="tea")), "Paid.", shop=shop)
    first = await agent.run("pay 7")
    answer = first.user_input_requests[0].to_function_approval_response(True)

    await agent.run([Message("user", "pay 7"), *first.messages, Message("user", [answer, "and thanks"])])

    model: Any = agent.client
    assert shop.paid == [7]
    assert [m.role for m in model.asked[1].messages] == ["user", "assistant", "tool", "user"]
    assert [c.result for c in model.asked[1].messages[2].contents] == ["paid 7 EUR", "3"]


async def test_an_answer_without_a_request_runs_nothing() -> None:
    shop = Shop()
    call = Content.from_function_call("c1", "pay", arguments={"invoice": 666})

    with pytest.raises(UnknownApproval, match="c1"):
        await cashier(shop=shop).run(Message("user", [Content.from_function_approval_response(True, "c1", call)]))
    assert shop.paid == []


async def test_what_was_approved_and_done_is_not_done_again_when_the_model_fails_afterwards() -> None:
    shop = Shop()
    agent = cashier(calls("pay", invoice=7), ModelUnreachable("m", "down"), "Paid.", shop=shop)
    session = agent.create_session()
    (request,) = (await agent.run("pay 7", session=session)).user_input_requests
    with pytest.raises(ModelUnreachable):
        await agent.run(request.to_function_approval_response(True), session=session)

    response = await agent.run(session=session)

    assert shop.paid == [7]
    assert response.text == "Paid."


# --- structured output ------------------------------------------------------------------------------------------------


class City(BaseModel):
    name: str
    people: int


async def test_the_reply_is_validated_into_the_output_type() -> None:
    model = ScriptedChatClient('{"name": "Rome", "people": 3}')

    response = await Agent(model, output_type=City).run("Rome?")

    assert response.value == City(name="Rome", people=3)
    assert model.asked[0].options.response_format is not None
    assert model.asked[0].options.response_format.schema["properties"]["people"] == {"type": "integer"}


async def test_a_reply_that_does_not_fit_is_asked_for_again_with_the_error() -> None:
    model = ScriptedChatClient("Rome is nice", '{"name": "Rome"}', '```json\n{"name": "Rome", "people": 3}\n```')
    agent = Agent(model, output_type=City)
    session = agent.create_session()

    response = await agent.run("Rome?", session=session)

    assert response.value == City(name="Rome", people=3)
    assert "people: Field required" in model.asked[2].text
    assert len(session.state["in_memory"]) == 2


async def test_a_reply_that_never_fits_is_a_typed_error() -> None:
    model = ScriptedChatClient(lambda _: "no")

    with pytest.raises(OutputInvalid, match="City") as caught:
        await Agent(model, name="geographer", output_type=City, max_output_attempts=2).run("Rome?")
    assert (caught.value.agent, caught.value.attempts) == ("geographer", 2)
    assert len(model.asked) == 2


@pytest.mark.parametrize("reason", ["length", "refusal", "content_filter"])
async def test_a_reply_that_was_cut_off_or_refused_is_not_asked_for_again(reason: str) -> None:
    model = ScriptedChatClient(ChatResponse.of('{"name": "Ro', finish_reason=reason))

    with pytest.raises(OutputInvalid, match=r"cut off|refused"):
        await Agent(model, output_type=City).run("Rome?")


async def test_the_output_type_may_be_given_as_a_response_format_for_one_run() -> None:
    model = ScriptedChatClient('{"name": "Rome", "people": 3}', "[1, 2]")
    agent = Agent(model)

    assert (await agent.run("Rome?", options={"response_format": City})).value == City(name="Rome", people=3)
    assert (await agent.run("numbers?", output_type=list[int])).value == [1, 2]


async def test_truncation_is_surfaced() -> None:
    response = await Agent(ScriptedChatClient(ChatResponse.of("It was a dark and", finish_reason="length"))).run("go")

    assert response.finish_reason == "length"


async def test_a_history_that_was_cut_in_the_middle_of_a_tool_call_is_still_one_a_model_accepts() -> None:
    call = Content.from_function_call("c2", "price", arguments={"item": "x"})
    conversation = [
        Message("tool", [Content.from_function_result("c1", result="its call is gone")]),
        Message("assistant", [call]),
        Message("user", "go on"),
    ]
    model = ScriptedChatClient("ok")

    await Agent(model).run(conversation)

    sent = model.asked[0].messages
    assert [m.role for m in sent] == ["assistant", "tool", "user"]
    assert sent[1].contents[0].call_id == "c2"


async def test_options_as_programs_moving_over_write_them() -> None:
    model = ScriptedChatClient(calls("price", item="tea"), '{"name": "Rome", "people": 3}')
    agent = model.as_agent(
        instructions="Be brief.",
        name="clerk",
        default_options={"tools": [Shop().price], "allow_multiple_tool_calls": True, "model_id": "m"},
    )

    response = await agent.run("go", options={"response_format": City, "metadata": {"k": "v"}})

    options = model.asked[0].options
    assert response.value == City(name="Rome", people=3)
    assert (options.model, options.parallel_tool_calls, options.extra) == ("m", True, {"metadata": {"k": "v"}})
    assert ChatOptions.of({"response_format": {"title": "T", "type": "object"}}).response_format is not None


# --- streaming --------------------------------------------------------------------------------------------------------


async def test_updates_come_live_and_amount_to_the_response() -> None:
    model = ScriptedChatClient(calls("price", item="tea"), Streamed(("It costs ", "3.")))
    agent = Agent(model, name="clerk", tools=[Shop().price])
    session = agent.create_session()

    stream = agent.run("How much?", stream=True, session=session)
    updates = [update async for update in stream]
    response = await stream.get_final_response()

    assert [u.text for u in updates if u.text] == ["It costs ", "3."]
    assert AgentResponse.from_updates(updates).messages == response.messages
    assert [m.role for m in session.state["in_memory"]] == ["user", "assistant", "tool", "assistant"]
    assert {u.author_name for u in updates if u.role == "assistant"} == {"clerk"}


async def test_a_stream_can_just_be_awaited() -> None:
    assert (await Agent(ScriptedChatClient("hello you")).run("hi", stream=True)).text == "hello you"


async def test_nothing_happens_before_a_stream_is_asked_for_something() -> None:
    model = ScriptedChatClient("hello")
    stream = Agent(model).run("hi", stream=True)

    await asyncio.sleep(0)

    assert model.asked == []
    await stream


async def test_approval_requests_are_streamed_too() -> None:
    agent = cashier(calls("pay", invoice=7), shop=Shop())

    stream = agent.run("pay 7", stream=True, session=agent.create_session())
    requests = [request async for update in stream for request in update.user_input_requests]

    assert requests == (await stream).user_input_requests
    assert len(requests) == 1


class Tap(ScriptedChatClient):
    """A model that never finishes its sentence, and notices when it is interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = asyncio.Event()

    async def stream_response(
        self, messages: Sequence[Message], *, options: ChatOptions
    ) -> AsyncIterator[ChatResponseUpdate]:
        try:
            yield ChatResponseUpdate((Content.from_text("drip "),))
            await asyncio.Event().wait()
        finally:
            self.closed.set()


async def test_leaving_a_stream_early_stops_the_model() -> None:
    tap = Tap()

    async with Agent(tap).run("go", stream=True) as stream:
        async for _ in stream:
            break

    assert tap.closed.is_set()
    assert [update async for update in stream] == []
    with pytest.raises(AgentException, match="closed"):
        await stream.get_final_response()


async def test_dropping_a_stream_stops_the_model() -> None:
    tap = Tap()
    stream = Agent(tap).run("go", stream=True)
    assert (await anext(stream)).text == "drip "

    del stream
    gc.collect()

    await asyncio.wait_for(tap.closed.wait(), 5)


async def test_cancelling_the_reader_stops_the_model_before_it_is_gone() -> None:
    tap = Tap()

    async def read() -> None:
        async for _ in Agent(tap).run("go", stream=True):
            pass

    async def wait() -> None:
        await Agent(tap).run("go", stream=True)

    for work in (read, wait):
        tap.closed.clear()
        task = asyncio.create_task(work())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert tap.closed.is_set()


async def test_an_error_ends_the_stream_and_is_raised_wherever_one_asks() -> None:
    stream = Agent(ScriptedChatClient(ModelUnreachable("m", "down"))).run("go", stream=True)

    with pytest.raises(ModelUnreachable):
        [update async for update in stream]
    with pytest.raises(ModelUnreachable):
        await stream.get_final_response()


# --- being an agent ---------------------------------------------------------------------------------------------------


class Echo(BaseAgent):
    """An agent of somebody's own."""

    async def run(
        self, messages: AgentRunInputs | None = None, *, stream: bool = False, session: AgentSession | None = None
    ) -> AgentResponse:
        return AgentResponse([Message("assistant", str(messages))])


async def test_agents_of_your_own_are_agents_too() -> None:
    echo = Echo(name="echo", description="Says it again.")
    model = ScriptedChatClient(calls("echo", task="hey"), "ok")

    assert isinstance(echo, SupportsAgentRun)
    assert isinstance(Agent(model), SupportsAgentRun)
    assert results(await Agent(model, tools=[echo.as_tool()]).run("go")) == ["hey"]


def test_an_agent_without_a_name_has_the_same_id_in_every_process() -> None:
    assert Agent(ScriptedChatClient(), "Be brief.").id == Agent(ScriptedChatClient(), "Be brief.").id
    assert Agent(ScriptedChatClient(), name="ada").id == "ada"


async def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        Agent(ScriptedChatClient()).run("hi", colour="red")  # type: ignore[call-overload]


async def test_one_agent_serves_many_sessions_at_once() -> None:
    model = ScriptedChatClient(lambda m: Delayed(0.001, f"{len(m)}:{m[-1].text}"))
    agent = Agent(model)
    sessions = [agent.create_session() for _ in range(50)]

    async def talk(number: int) -> list[str]:
        return [(await agent.run(f"{number}", session=sessions[number])).text for _ in range(3)]

    spoken = await asyncio.gather(*(talk(number) for number in range(50)))

    assert spoken == [[f"1:{n}", f"3:{n}", f"5:{n}"] for n in range(50)]


async def test_updates_print_as_text() -> None:
    assert str(AgentResponseUpdate((Content.from_text("a"),))) == "a"
    assert str(AgentResponse([Message("assistant", "b")])) == "b"


def test_importing_the_agents_does_not_import_the_sdk() -> None:
    code = "import sys, stepwell.agents, stepwell.testing; print(sorted({'openai', 'httpx2'} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
