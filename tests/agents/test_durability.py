"""Agents inside a run: every call is recorded under a key of its own, and a recorded call is never made again."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from stepwell.agents import Agent, AgentResponse, Content, Message, ToolContext, tool
from stepwell.checkpointing.journal import CallVerdict, add_usage
from stepwell.errors import CallUndecided, ReplayDivergence
from stepwell.testing import Delayed, ScriptedChatClient, Streamed, calls


class PowerLoss(BaseException):
    """The process dies here."""


class Till:
    """Pays invoices, and loses power after a number of payments."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.keys: list[str] = []
        self.dies_after: int | None = None

    async def pay(self, invoice: int, context: ToolContext) -> str:
        """Pay an invoice."""
        self.paid.append(invoice)
        self.keys.append(context.idempotency_key)
        assert context.run_id == "run-1"
        if len(self.paid) == self.dies_after:
            raise PowerLoss
        return f"paid {invoice}"


def pay_six(messages: Sequence[Message]) -> Any:
    """A model that pays six invoices one by one."""
    done = sum(1 for m in messages for c in m.contents if c.type == "function_result")
    return calls("pay", call_id=f"c{done + 1}", invoice=done + 1) if done < 6 else "All six are paid."


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("k", range(1, 7))
async def test_a_crash_repeats_no_recorded_payment_and_no_recorded_model_call(
    ledger: Any, k: int, stream: bool
) -> None:
    till, model = Till(), ScriptedChatClient(pay_six)
    agent = Agent(model, name="payer", tools=[till.pay])
    till.dies_after = k
    with ledger.delivery(), pytest.raises(PowerLoss):
        await agent.run("Pay all six.", stream=stream)

    till.dies_after = None
    with ledger.delivery() as delivery:
        response = await agent.run("Pay all six.", stream=stream)
        await delivery.scope.finish()

    assert response.text == "All six are paid."
    # The k-th was cut in flight: made again, with the same idempotency key.
    assert till.paid == [*range(1, k + 1), *range(k, 7)]
    assert till.keys[k - 1] == till.keys[k]
    assert len(set(till.keys)) == 6
    assert len(model.asked) == 7
    assert len(delivery.named("call_replayed")) == 2 * k - 1


async def test_two_agents_of_one_delivery_get_their_own_replies_back_however_often_they_crash(ledger: Any) -> None:
    dice, threads = random.Random(7), itertools.count()
    lives = [10**9, 3, 7, 5, 4, 6, 2]

    def script(messages: Sequence[Message]) -> Any:
        lives[-1] -= 1
        if lives[-1] == 0:
            lives.pop()
            raise PowerLoss
        who, question = messages[0].text, messages[1].text
        said = [c for m in messages for c in m.contents if c.type == "function_call"]
        # The first reply of each run gives it a name of its own, so that runs that look alike can be told apart.
        thread = (said[0].parse_arguments() or {})["thread"] if said else f"{who}/{question}/{next(threads)}"
        step = len(said)
        reply: Any = calls("note", call_id=f"n{step}", thread=thread, step=step) if step < 4 else f"end of {thread}"
        return Delayed(dice.random() / 1000, reply)

    @tool
    async def note(thread: str, step: int) -> str:
        await asyncio.sleep(dice.random() / 1000)
        return f"{thread}#{step}"

    model = ScriptedChatClient(script)
    team = [Agent(model, name, name=name, tools=[note]) for name in ("ada", "bob")]

    async def attempt() -> list[AgentResponse]:
        with ledger.delivery() as delivery:
            async with asyncio.TaskGroup() as group:
                # Three runs of each agent, of which two are alike: six that may be mistaken for one another.
                tasks = [group.create_task(ask(agent, text)) for agent in team for text in ("same", "same", "other")]
            await delivery.scope.finish()
            return [task.result() for task in tasks]

    async def ask(agent: Agent, text: str) -> AgentResponse:
        await asyncio.sleep(dice.random() / 1000)  # who comes first is left to chance
        return await agent.run(text)

    responses: list[AgentResponse] = []
    crashes = 0
    while not responses:
        try:
            responses = await attempt()
        except BaseExceptionGroup as group:
            crashes += sum(isinstance(error, PowerLoss) for error in group.exceptions)

    assert crashes == 6
    asked = [f"{who}/{text}" for who in ("ada", "bob") for text in ("same", "same", "other")]
    for response, question in zip(responses, asked, strict=True):
        thread = response.text.removeprefix("end of ")
        assert thread.startswith(question + "/")
        results = [c.result for m in response.messages for c in m.contents if c.type == "function_result"]
        assert results == [f"{thread}#{step}" for step in range(4)]
    assert len({response.text for response in responses}) == 6
    assert len(ledger.rows) == 6 * (5 + 4)


async def test_a_finished_turn_is_replayed_without_asking_anybody(ledger: Any) -> None:
    model = ScriptedChatClient(pay_six)
    till = Till()
    agent = Agent(model, name="payer", tools=[till.pay])
    with ledger.delivery():
        first = await agent.run("go")

    with ledger.delivery() as delivery:
        second = await agent.run("go")

    assert second == first
    assert (len(model.asked), len(till.paid)) == (7, 6)
    assert {data["name"] for data in delivery.named("call_replayed")} == {"model:payer", "tool:pay"}


async def test_keys_name_agent_turn_and_call(ledger: Any) -> None:
    agent = Agent(ScriptedChatClient(pay_six), name="payer", tools=[Till().pay])

    with ledger.delivery():
        await agent.run("go", call_key="turn")

    keys = [call_id.removeprefix("1/desk/0/").replace("%2F", "/") for call_id in ledger.rows]
    assert keys[:4] == ["payer/turn/model/1", "payer/turn/tool/c1", "payer/turn/model/2", "payer/turn/tool/c2"]


async def test_running_one_agent_twice_in_one_delivery_records_two_turns(ledger: Any) -> None:
    model = ScriptedChatClient("one", "two", "three")
    agent = Agent(model, name="a")

    for _ in range(2):
        with ledger.delivery() as delivery:
            texts = [(await agent.run(text)).text for text in ("same", "same", "other")]
            await delivery.scope.finish()
        assert texts == ["one", "two", "three"]
    assert len(model.asked) == 3


async def test_a_changed_prompt_is_noticed_before_anything_is_called(ledger: Any) -> None:
    model = ScriptedChatClient("one", "two")
    with ledger.delivery():
        await Agent(model, "Old instructions.", name="a").run("go")

    with ledger.delivery(), pytest.raises(ReplayDivergence):
        await Agent(model, "New instructions.", name="a").run("go")
    assert len(model.asked) == 1


async def test_a_changed_input_is_noticed_before_anything_is_called_when_the_turn_has_a_name(ledger: Any) -> None:
    model = ScriptedChatClient("one", "two")
    agent = Agent(model, name="a")
    with ledger.delivery():
        await agent.run("It is Monday.", call_key="turn")

    with ledger.delivery(), pytest.raises(ReplayDivergence):
        await agent.run("It is Tuesday.", call_key="turn")
    assert len(model.asked) == 1


async def test_message_ids_and_credentials_are_no_part_of_what_is_compared(ledger: Any) -> None:
    model = ScriptedChatClient("one")
    agent = Agent(model, name="a")
    with ledger.delivery():
        await agent.run(
            Message("user", "go", message_id="m1"), call_key="t", client_kwargs={"extra_headers": {"k": "1"}}
        )

    with ledger.delivery():
        response = await agent.run(
            Message("user", "go", message_id="m2"), call_key="t", client_kwargs={"extra_headers": {"k": "2"}}
        )
    assert response.text == "one"
    assert "extra_headers" not in str(ledger.rows)


async def test_a_replayed_stream_is_one_update_per_reply(ledger: Any) -> None:
    model = ScriptedChatClient(Streamed(("so ", "it ", "is")))
    agent = Agent(model, name="a")
    with ledger.delivery():
        live = [update.text async for update in agent.run("go", stream=True) if update.text]

    with ledger.delivery():
        stream = agent.run("go", stream=True)
        replayed = [update async for update in stream]
        response = await stream

    assert live == ["so ", "it ", "is"]
    assert [update.text for update in replayed] == ["so it is"]
    assert response.usage_details is not None
    assert response.text == "so it is"


async def test_a_reply_that_broke_off_is_not_recorded(ledger: Any) -> None:
    model = ScriptedChatClient(Streamed(("half a ",), error=OSError("gone")), "whole")
    agent = Agent(model, name="a")
    with ledger.delivery(), pytest.raises(OSError):
        await agent.run("go", stream=True)
    assert ledger.rows == {}

    with ledger.delivery():
        assert (await agent.run("go", stream=True)).text == "whole"


async def test_the_failure_of_a_tool_is_recorded_like_a_result(ledger: Any) -> None:
    tries: list[int] = []

    @tool
    def flaky() -> str:
        tries.append(1)
        raise OSError("disk on fire")

    model = ScriptedChatClient(calls("flaky"), "I see.")
    agent = Agent(model, name="a", tools=[flaky])
    texts = []
    for _ in range(2):
        with ledger.delivery():
            response = await agent.run("go")
        texts.append([c.result for m in response.messages for c in m.contents if c.type == "function_result"])

    assert texts == [["Error: OSError: disk on fire"]] * 2
    assert len(tries) == 1


async def test_usage_is_counted_per_agent(ledger: Any) -> None:
    agent = Agent(ScriptedChatClient(pay_six), name="payer", tools=[Till().pay])
    with ledger.delivery() as delivery:
        response = await agent.run("go")

    total = add_usage({}, delivery.journal.usage())["payer"]

    assert response.usage_details is not None
    assert (total["calls"], total["tool_calls"]) == (7, 6)
    assert total["input_tokens"] == response.usage_details["input_token_count"]
    assert total["total_tokens"] == response.usage_details["total_token_count"]
    assert total["seconds"] >= 0


async def test_an_at_most_once_call_cut_in_flight_is_not_repeated_but_asked_about(ledger: Any) -> None:
    till = Till()
    model = ScriptedChatClient(pay_six)
    agent = Agent(model, name="payer", tools=[tool(at_most_once=True)(till.pay)])
    till.dies_after = 2
    with ledger.delivery(), pytest.raises(PowerLoss):
        await agent.run("go")

    with ledger.delivery(), pytest.raises(CallUndecided):
        await agent.run("go")
    assert till.paid == [1, 2]

    with ledger.delivery() as delivery:
        (doubtful,) = delivery.journal.in_doubt()
        await delivery.journal.decide(doubtful.call_id, CallVerdict("done", result={"receipt": 22}))
        response = await agent.run("go")

    told = [c.result for m in response.messages for c in m.contents if c.type == "function_result"]
    assert told[:3] == ["paid 1", '{"receipt":22}', "paid 3"]
    assert till.paid == [1, 2, 3, 4, 5, 6]


async def test_a_call_declared_failed_by_a_person_is_told_to_the_model(ledger: Any) -> None:
    till = Till()
    agent = Agent(ScriptedChatClient(pay_six), name="payer", tools=[tool(at_most_once=True)(till.pay)])
    till.dies_after = 1
    with ledger.delivery(), pytest.raises(PowerLoss):
        await agent.run("go")

    with ledger.delivery() as delivery:
        (doubtful,) = delivery.journal.in_doubt()
        await delivery.journal.decide(doubtful.call_id, CallVerdict("fail", reason="the bank says no"))
        response = await agent.run("go")

    assert response.messages[1].contents[0].result == "Error: the bank says no"


async def test_the_calls_of_an_agent_that_is_a_tool_are_inside_the_tools_call(ledger: Any) -> None:
    def boss(messages: Sequence[Message]) -> Any:
        return "outer answer" if messages[-1].role == "tool" else calls("expert", task="why", call_id="c1")

    inner = ScriptedChatClient("inner answer")
    agent = Agent(ScriptedChatClient(boss), name="boss", tools=[Agent(inner, name="expert").as_tool()])

    for _ in range(2):
        with ledger.delivery() as delivery:
            assert (await agent.run("go")).text == "outer answer"
            await delivery.scope.finish()
    assert len(inner.asked) == 1
    assert len(ledger.rows) == 3


async def test_approved_calls_are_recorded_too(ledger: Any) -> None:
    till = Till()
    model = ScriptedChatClient(calls("pay", call_id="c1", invoice=1), "Paid.")
    agent = Agent(model, name="payer", tools=[tool(approval_mode="always")(till.pay)])
    session = agent.create_session()
    with ledger.delivery("1/desk/0"):
        (request,) = (await agent.run("go", session=session)).user_input_requests
    saved = session.to_dict()

    for _ in range(2):
        restored = type(session).from_dict(saved)
        with ledger.delivery("2/desk/0") as delivery:
            response = await agent.run(request.to_function_approval_response(True), session=restored)
            await delivery.scope.finish()
        assert response.text == "Paid."
    assert till.paid == [1]
    assert len(model.asked) == 2


async def test_a_content_carries_no_trace_of_the_scripts_objects(ledger: Any) -> None:
    agent = Agent(ScriptedChatClient(Message("assistant", [Content.from_text("hi")])), name="a")
    with ledger.delivery():
        await agent.run("go")

    (row,) = ledger.rows.values()

    assert len(row.result) < 300
    assert '"hi"' in row.result
