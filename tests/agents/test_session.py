"""Sessions: what is remembered, where, and that it survives being written down."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest

from stepwell.agents import Agent, AgentSession, Content, HistoryProvider, InMemoryHistoryProvider, Message, tool
from stepwell.checkpointing.codec import Codec
from stepwell.errors import ModelUnreachable
from stepwell.testing import ScriptedChatClient, calls


async def test_a_session_remembers_what_was_said() -> None:
    model = ScriptedChatClient("Hello Ada.", "Ada.")
    agent = Agent(model, "Be brief.")
    session = agent.create_session()

    await agent.run("I am Ada.", session=session)
    await agent.run("Who am I?", session=session)

    assert [m.text for m in model.asked[1].messages] == ["Be brief.", "I am Ada.", "Hello Ada.", "Who am I?"]


async def test_without_a_session_nothing_is_remembered() -> None:
    model = ScriptedChatClient("one", "two")
    agent = Agent(model)

    await agent.run("first")
    await agent.run("second")

    assert [m.text for m in model.asked[1].messages] == ["second"]


async def test_a_failed_turn_does_not_spoil_the_next() -> None:
    model = ScriptedChatClient("fine", ModelUnreachable("m", "down"), "fine again")
    agent = Agent(model)
    session = agent.create_session()

    await agent.run("first", session=session)
    with pytest.raises(ModelUnreachable):
        await agent.run("second", session=session)
    await agent.run("third", session=session)

    assert [m.text for m in model.asked[2].messages] == ["first", "fine", "third"]


async def test_a_session_goes_on_from_json_and_from_a_checkpoint() -> None:
    model = ScriptedChatClient("one", "two", "three", "four")
    agent = Agent(model)
    session = AgentSession("s1", service_session_id="remote", state={"mine": {"k": [1, "x", None]}})
    await agent.run("first", session=session)
    codec = Codec()

    from_json = AgentSession.from_dict(json.loads(json.dumps(session.to_dict())))
    from_checkpoint = codec.decode_text(codec.encode_text(session), strict=True)
    twin = copy.deepcopy(session)

    for restored in (from_json, from_checkpoint, twin):
        assert (restored.session_id, restored.service_session_id) == ("s1", "remote")
        assert restored.state["mine"] == {"k": [1, "x", None]}
        await agent.run("again", session=restored)
        assert [m.text for m in model.asked[-1].messages][:2] == ["first", "one"]
    assert len(session.state["in_memory"]) == 2


async def test_pending_approvals_survive_json() -> None:
    @tool(approval_mode="always")
    def pay(amount: int) -> str:
        return f"paid {amount}"

    agent = Agent(ScriptedChatClient(calls("pay", amount=3), "done"), tools=[pay])
    session = agent.create_session()
    request = (await agent.run("pay", session=session)).user_input_requests[0]

    restored = AgentSession.from_dict(json.loads(json.dumps(session.to_dict())))
    response = await agent.run(request.to_function_approval_response(True), session=restored)

    assert response.messages[0].contents[0].result == "paid 3"


def test_what_is_no_json_is_refused_with_its_path() -> None:
    session = AgentSession(state={"deep": [{"x": object()}]})

    with pytest.raises(TypeError, match=r"state\.deep\[0\]\.x is a object"):
        session.to_dict()


def test_sessions_have_ids_of_their_own() -> None:
    agent = Agent(ScriptedChatClient())

    assert agent.create_session().session_id != agent.create_session().session_id
    assert agent.create_session(session_id="mine").session_id == "mine"
    assert agent.get_session("remote").service_session_id == "remote"


class Notebook(HistoryProvider):
    """Keeps only the last two messages, somewhere else."""

    def __init__(self) -> None:
        super().__init__("notebook")
        self.pages: dict[str | None, list[Message]] = {}

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        return self.pages.get(session_id, [])[-2:]

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self.pages.setdefault(session_id, []).extend(messages)


async def test_a_history_provider_decides_what_is_remembered() -> None:
    notebook, model = Notebook(), ScriptedChatClient("1", "2", "3")
    agent = Agent(model, context_providers=[notebook])
    session = agent.create_session()

    for text in ("a", "b", "c"):
        await agent.run(text, session=session)

    assert [m.text for m in model.asked[2].messages] == ["b", "2", "c"]
    assert session.state == {}
    assert len(notebook.pages[session.session_id]) == 6


def test_an_agent_has_one_history() -> None:
    with pytest.raises(TypeError, match="one HistoryProvider"):
        Agent(ScriptedChatClient(), context_providers=[InMemoryHistoryProvider(), Notebook()])


async def test_a_long_conversation_is_stored_as_the_messages_themselves() -> None:
    model = ScriptedChatClient(lambda messages: f"answer {len(messages)}")
    agent = Agent(model)
    session = agent.create_session()
    for number in range(20):
        await agent.run(f"question {number}", session=session)

    history = session.state["in_memory"]
    again = copy.deepcopy(session).state["in_memory"]

    assert len(history) == 40
    assert all(one is other for one, other in zip(history, again, strict=True))


async def test_a_text_content_can_be_asked_too() -> None:
    model = ScriptedChatClient("ok")

    await Agent(model).run([Content.from_text("a"), "b", Message("system", "c")])

    assert [(m.role, m.text) for m in model.asked[0].messages] == [("user", "a"), ("user", "b"), ("system", "c")]
