"""The scripted model that ships with stepwell, and the switch that forbids real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import respx

from stepwell.agents import Agent, ChatClient, ChatResponse, Content, Message, OpenAIChatClient, tool
from stepwell.errors import ModelUnreachable, RealModelForbidden
from stepwell.testing import (
    Delayed,
    ScriptedChatClient,
    ScriptExhausted,
    ScriptLeftOver,
    Streamed,
    calls,
    forbid_real_models,
    real_models_allowed,
)


async def test_replies_are_given_in_order_and_what_was_asked_is_kept() -> None:
    model = ScriptedChatClient(["one", "two"])
    agent = Agent(model, "Be brief.", default_options={"temperature": 0.5})

    assert [(await agent.run(text)).text for text in ("a", "b")] == ["one", "two"]
    assert model.texts == ["a", "b"]
    assert model.asked[0].messages[0] == Message("system", "Be brief.")
    assert model.asked[0].options.temperature == 0.5


async def test_a_function_of_the_messages_can_answer_instead() -> None:
    async def later(messages: Sequence[Message]) -> str:
        return messages[-1].text.upper()

    assert (await Agent(ScriptedChatClient(later)).run("hi")).text == "HI"
    assert (await Agent(ScriptedChatClient(lambda messages: messages[-1].text * 2)).run("hi")).text == "hihi"


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param("hi", id="text"),
        pytest.param(Content.from_text("hi"), id="content"),
        pytest.param(("h", "i"), id="contents"),
        pytest.param(Message("assistant", "hi"), id="message"),
        pytest.param(ChatResponse.of("hi"), id="response"),
        pytest.param(Delayed(0.001, "hi"), id="delayed"),
        pytest.param(Streamed(("h", "i")), id="streamed"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_can_be_said_in_many_ways(reply: Any, stream: bool) -> None:
    agent = Agent(ScriptedChatClient([reply]))

    assert (await agent.run("?", stream=stream)).text == "hi"


async def test_an_error_in_the_script_is_raised() -> None:
    with pytest.raises(ModelUnreachable):
        await Agent(ScriptedChatClient(ModelUnreachable("m", "down"))).run("?")


async def test_a_stream_may_break_off() -> None:
    stream = Agent(ScriptedChatClient(Streamed(("so ", "far"), error=ModelUnreachable("m", "gone")))).run(
        "?", stream=True
    )
    seen: list[str] = []

    with pytest.raises(ModelUnreachable):
        async for update in stream:
            seen += [update.text]

    assert seen == ["so ", "far"]


async def test_an_exhausted_script_says_what_was_asked() -> None:
    with pytest.raises(ScriptExhausted, match="one more thing"):
        await Agent(ScriptedChatClient()).run("one more thing")


async def test_replies_left_over_are_complained_about() -> None:
    with pytest.raises(ScriptLeftOver, match="never"):
        async with ScriptedChatClient("used", "never") as model:
            await Agent(model).run("?")


async def test_the_tests_own_error_is_not_hidden_by_the_complaint() -> None:
    with pytest.raises(ZeroDivisionError):
        async with ScriptedChatClient("never"):
            raise ZeroDivisionError


async def test_tool_calls_are_numbered_when_the_script_does_not_name_them() -> None:
    @tool
    def f(x: int) -> int:
        return x

    model = ScriptedChatClient((calls("f", x=1), calls("f", x=2)), (calls("f", call_id="mine", x=3),), "done")

    response = await Agent(model, tools=[f]).run("go")

    ids = [c.call_id for m in response.messages for c in m.contents if c.type == "function_call"]
    assert ids == ["call_1", "call_2", "mine"]


async def test_a_delay_lets_others_go_first() -> None:
    model = ScriptedChatClient(
        lambda messages: Delayed(0.02, "slow") if messages[-1].text == "slow" else Delayed(0, "fast")
    )
    agent, order = Agent(model), []

    async def ask(text: str) -> None:
        order.append((await agent.run(text)).text)

    async with asyncio.TaskGroup() as group:
        group.create_task(ask("slow"))
        group.create_task(ask("fast"))
    assert order == ["fast", "slow"]


def test_it_is_a_chat_client_like_any_other() -> None:
    client: ChatClient = ScriptedChatClient()

    assert isinstance(client, ChatClient)


async def test_real_models_can_be_forbidden(connect: Callable[..., OpenAIChatClient], wire: respx.Router) -> None:
    agent = Agent(connect())

    with real_models_allowed(False), pytest.raises(RealModelForbidden, match="ScriptedChatClient"):
        await agent.run("hi")
    assert not wire.calls


async def test_real_models_can_be_forbidden_for_the_whole_process(
    connect: Callable[..., OpenAIChatClient], wire: respx.Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(connect())
    forbid_real_models()
    try:
        with pytest.raises(RealModelForbidden):
            await agent.run("hi", stream=True)
    finally:
        forbid_real_models(forbidden=False)
    monkeypatch.setenv("STEPWELL_FORBID_REAL_MODELS", "1")
    with pytest.raises(RealModelForbidden):
        await agent.run("hi")
    assert not wire.calls
