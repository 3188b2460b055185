"""OpenAIChatClient on the wire: requests as sent, replies as they really come. No server; respx answers."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import pytest
import respx
from pydantic import BaseModel, SecretStr

from stepwell.agents import Agent, ChatOptions, ChatResponse, Content, Message, OpenAIChatClient, RetryPolicy, tool
from stepwell.agents.openai_errors import Refusal, retry_after
from stepwell.errors import (
    ContentFiltered,
    ContextTooLong,
    InvalidCredentials,
    MalformedReply,
    MissingConfiguration,
    ModelCallFailed,
    ModelNotFound,
    ModelTimeout,
    ModelUnavailable,
    ModelUnreachable,
    QuotaExhausted,
    RateLimited,
    RequestRejected,
    StreamInterrupted,
)

KEY = "sk-canary-3f9a7c21"
Connect = Callable[..., OpenAIChatClient]
ASK = [Message("user", "hi")]
PLAIN = ChatOptions()


def completion(content: str | None = "hello", **changes: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **changes.pop("message", {})}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "test-model-0613",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", **changes.pop("choice", {})}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
        **changes,
    }


def ok(body: Any) -> httpx.Response:
    return httpx.Response(200, json=body)


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


USAGE = {"id": "c", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}


def sse(*chunks: Any, done: bool = True) -> httpx.Response:
    lines = [f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n" for chunk in chunks]
    text = "".join(lines) + ("data: [DONE]\n\n" if done else "")
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=text.encode())


def sent(wire: respx.Router, index: int = -1) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(wire.calls[index].request.content)
    return body


def answer(wire: respx.Router, *responses: Any) -> respx.Route:
    return wire.post("/chat/completions").mock(side_effect=list(responses))


async def streamed(client: OpenAIChatClient, options: ChatOptions = PLAIN) -> ChatResponse:
    return ChatResponse.from_updates([update async for update in client.stream_response(ASK, options=options)])


# --- what is sent -----------------------------------------------------------------------------------------------------


async def test_a_conversation_is_sent_as_chat_completions_want_it(connect: Connect, wire: respx.Router) -> None:
    answer(wire, ok(completion()))
    call = Content.from_function_call("c1", "look", arguments={"q": "é"})
    messages = [
        Message("system", "Be brief."),
        Message("user", ["What is ", "this?"], author_name="ada"),
        Message("user", ["Look:", Content.from_data(b"PNG", "image/png")], author_name="not a valid name!"),
        Message("user", [Content.from_uri("https://x.test/a.png"), Content.from_data(b"%PDF", "application/pdf")]),
        Message("assistant", ["Let me look.", call, Content.from_text_reasoning(text="hm")], author_name="bob"),
        Message("assistant", [Content.from_function_call("c2", "look", arguments='{"q": 1}')]),
        Message("tool", [Content.from_function_result("c1", result={"a": 1}), Content.from_function_result("c2")]),
    ]

    await connect().get_response(messages, options=PLAIN)

    assert sent(wire) == {
        "model": "test-model",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is this?", "name": "ada"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look:"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,UE5H"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
                    {"type": "file", "file": {"filename": "file", "file_data": "data:application/pdf;base64,JVBERg=="}},
                ],
            },
            {
                "role": "assistant",
                "content": "Let me look.",
                "name": "bob",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q": "é"}'}}
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c2", "type": "function", "function": {"name": "look", "arguments": '{"q": 1}'}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": '{"a":1}'},
            {"role": "tool", "tool_call_id": "c2", "content": "null"},
        ],
    }


async def test_options_are_sent_and_what_is_not_set_is_left_to_the_server(connect: Connect, wire: respx.Router) -> None:
    answer(wire, ok(completion()))
    options = ChatOptions.of(
        {"temperature": 0.0, "max_tokens": 9, "seed": 1, "stop": ["END"], "model": "other", "top_k": 5}
    )

    await connect().get_response(ASK, options=options)

    body = sent(wire)
    assert {k: body[k] for k in ("temperature", "max_tokens", "seed", "stop", "model", "top_k")} == {
        "temperature": 0.0,
        "max_tokens": 9,
        "seed": 1,
        "stop": ["END"],
        "model": "other",
        "top_k": 5,
    }
    assert "top_p" not in body


async def test_tools_are_declared_and_one_may_be_required(connect: Connect, wire: respx.Router) -> None:
    @tool
    def look(q: str) -> str:
        """Look it up."""
        return q

    answer(wire, ok(completion()))

    await connect().get_response(ASK, options=ChatOptions(tools=(look.spec,), tool_choice="look"))

    assert sent(wire)["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "look",
                "description": "Look it up.",
                "parameters": {
                    "type": "object",
                    "properties": {"q": {"type": "string"}},
                    "required": ["q"],
                    "additionalProperties": False,
                },
            },
        }
    ]
    assert sent(wire)["tool_choice"] == {"type": "function", "function": {"name": "look"}}


async def test_the_idempotency_key_and_the_runs_own_headers_are_sent(
    connect: Connect, wire: respx.Router, ledger: Any
) -> None:
    answer(wire, ok(completion()), ok(completion()))
    agent = Agent(connect(), name="a")
    with ledger.delivery():
        await agent.run("hi", client_kwargs={"extra_headers": {"X-Tenant": "t1"}, "user": "ada"})
    await agent.run("hi")

    first, second = (call.request for call in wire.calls)

    assert len(first.headers["idempotency-key"]) == 32
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]
    assert first.headers["x-tenant"] == "t1"
    assert sent(wire, 0)["user"] == "ada"
    assert "x-tenant" not in second.headers


async def test_half_an_emoji_does_not_fail_the_request(connect: Connect, wire: respx.Router) -> None:
    answer(wire, ok(completion("fine \U0001f600")))

    reply = await connect().get_response([Message("user", "cut \ud83d")], options=PLAIN)

    assert sent(wire)["messages"][0]["content"] == "cut ?"
    assert reply.text == "fine \U0001f600"


async def test_a_link_that_chat_completions_can_not_follow_is_refused_before_it_is_sent(
    connect: Connect, wire: respx.Router
) -> None:
    message = Message("user", [Content.from_uri("https://x.test/a.mp4", media_type="video/mp4")])

    with pytest.raises(RequestRejected, match="from_data"):
        await connect().get_response([message], options=PLAIN)
    assert not wire.calls


# --- what comes back --------------------------------------------------------------------------------------------------


async def test_a_reply_is_read(connect: Connect, wire: respx.Router) -> None:
    answer(wire, ok(completion("Grüße ☃")))

    reply = await connect().get_response(ASK, options=PLAIN)

    assert (reply.text, reply.finish_reason, reply.model) == ("Grüße ☃", "stop", "test-model-0613")
    assert reply.usage_details == {"input_token_count": 5, "output_token_count": 2, "total_token_count": 7}


async def test_parallel_tool_calls_are_read(connect: Connect, wire: respx.Router) -> None:
    tool_calls = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": {"y": 2}}},
    ]
    answer(wire, ok(completion(None, message={"tool_calls": tool_calls})))

    reply = await connect().get_response(ASK, options=PLAIN)

    assert [(c.call_id, c.name, c.parse_arguments()) for c in reply.function_calls] == [
        ("a", "f", {"x": 1}),
        ("b", "g", {"y": 2}),
    ]
    assert reply.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("body", "finish", "text"),
    [
        pytest.param(completion("cut", choice={"finish_reason": "length"}), "length", "cut", id="truncated"),
        pytest.param(completion(None, message={"refusal": "I won't."}), "refusal", "I won't.", id="refused"),
        pytest.param(completion("", choice={"finish_reason": "content_filter"}), "content_filter", "", id="filtered"),
        pytest.param(completion("x", usage=None), "stop", "x", id="without usage"),
        pytest.param(completion("x", choice={"finish_reason": None}), "stop", "x", id="without a reason"),
        pytest.param(completion([{"type": "text", "text": "x"}]), "stop", "x", id="content in parts"),  # type: ignore[arg-type]
    ],
)
async def test_how_a_reply_ended_is_surfaced(
    connect: Connect, wire: respx.Router, body: dict[str, Any], finish: str, text: str
) -> None:
    answer(wire, ok(body))

    reply = await connect().get_response(ASK, options=PLAIN)

    assert (reply.finish_reason, reply.text) == (finish, text)


HTML = httpx.Response(200, headers={"content-type": "text/html"}, text="<html><b>Welcome</b> to the proxy</html>")


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(HTML, id="an HTML page"),
        pytest.param(httpx.Response(200, headers={"content-type": "application/json"}, text='{"id": '), id="half JSON"),
        pytest.param(httpx.Response(200, text=""), id="nothing"),
        pytest.param(ok({"choices": []}), id="no choices"),
        pytest.param(ok({"choices": None}), id="null choices"),
        pytest.param(ok({}), id="an empty object"),
        pytest.param(ok([1]), id="a list"),
        pytest.param(ok("hello"), id="a string"),
        pytest.param(ok(None), id="null"),
        pytest.param(ok({"choices": [{"finish_reason": "stop"}]}), id="no message"),
        pytest.param(ok({"choices": [{"message": "hello"}]}), id="a message that is text"),
        pytest.param(ok({"choices": "hello"}), id="choices that are text"),
        pytest.param(ok({"error": {"message": "overloaded"}}), id="an error that says 200"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_success_that_is_no_reply_is_tried_again_and_then_a_typed_error(
    connect: Connect, wire: respx.Router, response: httpx.Response, stream: bool
) -> None:
    route = wire.post("/chat/completions").mock(return_value=response)
    client = connect()

    with pytest.raises(MalformedReply) as caught:
        await (streamed(client) if stream else client.get_response(ASK, options=PLAIN))

    assert route.call_count == 3
    assert caught.value.attempts == 3


async def test_a_proxys_page_followed_by_a_reply_is_a_reply(connect: Connect, wire: respx.Router) -> None:
    answer(wire, HTML, ok(completion()))

    assert (await connect().get_response(ASK, options=PLAIN)).text == "hello"


# --- streams ----------------------------------------------------------------------------------------------------------


async def test_a_stream_is_read_with_its_usage(connect: Connect, wire: respx.Router) -> None:
    answer(
        wire, sse(delta(role="assistant", content=""), delta(content="Hé"), delta(content="llo"), delta("stop"), USAGE)
    )

    updates = [update async for update in connect().stream_response(ASK, options=PLAIN)]
    reply = ChatResponse.from_updates(updates)

    assert [update.text for update in updates if update.text] == ["Hé", "llo"]
    assert (reply.text, reply.finish_reason) == ("Héllo", "stop")
    assert reply.usage_details == {"input_token_count": 5, "output_token_count": 2, "total_token_count": 7}
    assert (sent(wire)["stream"], sent(wire)["stream_options"]) == (True, {"include_usage": True})


def part(index: int | None = None, call_id: str | None = None, name: str | None = None, args: str | None = None) -> Any:
    function = {k: v for k, v in {"name": name, "arguments": args}.items() if v is not None}
    fields = {"index": index, "id": call_id, "function": function}
    return {k: v for k, v in fields.items() if v is not None}


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param(
            [
                [part(0, "a", "f", "")],
                [part(0, args='{"x')],
                [part(0, args='": 1}')],
                [part(1, "b", "g", '{"y": "é"}')],
            ],
            id="one after the other",
        ),
        pytest.param(
            [
                [part(0, "a", "f", ""), part(1, "b", "g", "")],
                [part(1, args='{"y": ')],
                [part(0, args='{"x": 1}')],
                [part(1, args='"é"}')],
            ],
            id="interleaved",
        ),
        pytest.param(
            [
                [part(0, "a")],
                [part(0, name="f")],
                *[[part(0, args=char)] for char in '{"x": 1}'],
                [part(1, "b", "g")],
                [part(1, args='{"y": "é"}')],
            ],
            id="a character at a time",
        ),
        pytest.param(
            [[part(None, "a", "f", '{"x"')], [part(args=": 1}")], [part(None, "b", "g", '{"y": "é"}')]], id="no index"
        ),
        pytest.param([[part(0, "a", "f", '{"x": 1}')], [part(0, "b", "g", '{"y": "é"}')]], id="always index 0"),
        pytest.param(
            [[part(0, "a", "f", '{"x"')], [part(0, "a", "f", ": 1}")], [part(1, "b", "g", '{"y": "é"}')]],
            id="id and name repeated",
        ),
    ],
)
async def test_tool_calls_are_assembled_from_pieces(connect: Connect, wire: respx.Router, deltas: list[Any]) -> None:
    answer(wire, sse(*[delta(tool_calls=calls) for calls in deltas], delta("tool_calls"), USAGE))

    reply = await streamed(connect())

    assert [(c.call_id, c.name, c.parse_arguments()) for c in reply.function_calls] == [
        ("a", "f", {"x": 1}),
        ("b", "g", {"y": "é"}),
    ]


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        pytest.param(sse(delta(content="so far")), StreamInterrupted, id="done without a reason"),
        pytest.param(sse(delta(content="so far"), done=False), StreamInterrupted, id="just ends"),
        pytest.param(sse(delta(content="so far"), "{not json"), MalformedReply, id="bad JSON"),
        pytest.param(sse(delta(content="so far"), '"text"'), MalformedReply, id="a chunk that is text"),
        pytest.param(
            sse(delta(content="so far"), {"error": {"message": "overloaded", "code": 503}}),
            ModelUnavailable,
            id="error",
        ),
        pytest.param(
            sse(delta(content="so far"), {"error": {"message": "slow", "type": "rate_limit_error"}}),
            RateLimited,
            id="rate limit",
        ),
    ],
)
async def test_a_stream_that_breaks_off_is_a_typed_error_after_what_it_said(
    connect: Connect, wire: respx.Router, response: httpx.Response, kind: type[ModelCallFailed]
) -> None:
    route = answer(wire, response)
    seen: list[str] = []

    with pytest.raises(kind):
        async for update in connect().stream_response(ASK, options=PLAIN):
            seen += [update.text]

    assert seen == ["so far"]
    assert route.call_count == 1


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(sse(), id="a stream of nothing"),
        pytest.param(sse(delta(role="assistant")), id="a stream that said nothing"),
        pytest.param(sse("{not json"), id="bad JSON"),
        pytest.param(sse({"choices": None}), id="null choices"),
        pytest.param(httpx.Response(503, json={"error": {"message": "busy"}}), id="busy"),
    ],
)
async def test_a_stream_that_fails_before_its_first_word_is_tried_again(
    connect: Connect, wire: respx.Router, broken: httpx.Response
) -> None:
    answer(wire, broken, sse(delta(content="hello"), delta("stop")))

    assert (await streamed(connect())).text == "hello"


async def test_a_server_that_ignores_stream_is_understood(connect: Connect, wire: respx.Router) -> None:
    answer(wire, ok(completion("all at once")))

    reply = await streamed(connect())

    assert (reply.text, reply.finish_reason) == ("all at once", "stop")
    assert reply.usage_details is not None


async def test_keepalives_and_empty_chunks_are_skipped(connect: Connect, wire: respx.Router) -> None:
    text = ": ping\n\n" + sse(delta(content="hel"), {"choices": []}, delta(content="lo"), delta("stop")).text
    answer(wire, httpx.Response(200, headers={"content-type": "text/event-stream; charset=utf-8"}, text=text))

    assert (await streamed(connect())).text == "hello"


# --- refusals and retries ---------------------------------------------------------------------------------------------


def refusal(status: int, message: str = "no", code: str | None = None, **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json={"error": {"message": message, "code": code}}, headers=names)


@pytest.mark.parametrize(
    ("response", "kind", "advice"),
    [
        pytest.param(refusal(401), InvalidCredentials, "OPENAI_API_KEY", id="bad key"),
        pytest.param(refusal(403), InvalidCredentials, "may use this model", id="forbidden"),
        pytest.param(refusal(404), ModelNotFound, "OPENAI_MODEL", id="unknown model"),
        pytest.param(refusal(400, code="context_length_exceeded"), ContextTooLong, "shorten", id="too long"),
        pytest.param(
            refusal(500, "the request exceeds the available context size"), ContextTooLong, "", id="llama.cpp"
        ),
        pytest.param(refusal(400, code="content_filter"), ContentFiltered, "rephrase", id="filtered"),
        pytest.param(refusal(429, code="insufficient_quota"), QuotaExhausted, "billing", id="no credit"),
        pytest.param(refusal(400, "bad temperature"), RequestRejected, "change the options", id="bad request"),
        pytest.param(refusal(422, "nope"), RequestRejected, "nope", id="unprocessable"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_can_not_be_retried_is_typed_and_says_what_to_do(
    connect: Connect,
    wire: respx.Router,
    response: httpx.Response,
    kind: type[ModelCallFailed],
    advice: str,
    stream: bool,
) -> None:
    route = wire.post("/chat/completions").mock(return_value=response)
    client = connect()

    with pytest.raises(kind) as caught:
        await (streamed(client) if stream else client.get_response(ASK, options=PLAIN))

    assert route.call_count == 1
    assert advice in str(caught.value)
    assert caught.value.status == response.status_code


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        pytest.param(refusal(429, x_request_id="req_7"), RateLimited, id="429"),
        pytest.param(refusal(408), ModelUnavailable, id="408"),
        pytest.param(refusal(409), ModelUnavailable, id="409"),
        pytest.param(refusal(500), ModelUnavailable, id="500"),
        pytest.param(httpx.Response(502, text="<html>Bad gateway</html>"), ModelUnavailable, id="502 in HTML"),
        pytest.param(refusal(529, "overloaded"), ModelUnavailable, id="529"),
        pytest.param(httpx2.ConnectError("no route"), ModelUnreachable, id="no connection"),
        pytest.param(httpx2.ReadError("reset"), ModelUnreachable, id="reset"),
        pytest.param(httpx2.RemoteProtocolError("disconnected"), ModelUnreachable, id="disconnected"),
        pytest.param(httpx2.ReadTimeout("slow"), ModelTimeout, id="timeout"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_passes_is_tried_again(
    connect: Connect, wire: respx.Router, response: Any, kind: type[ModelCallFailed], stream: bool
) -> None:
    good = sse(delta(content="hello"), delta("stop")) if stream else ok(completion())
    route = answer(wire, response, good, response, response, response)
    client = connect()

    def ask() -> Any:
        return streamed(client) if stream else client.get_response(ASK, options=PLAIN)

    assert (await ask()).text == "hello"
    with pytest.raises(kind, match="after 3 attempts"):
        await ask()
    assert route.call_count == 5


async def test_retry_after_is_honoured_and_each_wait_is_an_event(
    connect: Connect, wire: respx.Router, ledger: Any
) -> None:
    answer(
        wire, refusal(429, retry_after="0.02"), refusal(429, retry_after_ms="10", retry_after="99"), ok(completion())
    )
    agent = Agent(connect(), name="a")

    with ledger.delivery() as delivery:
        assert (await agent.run("hi")).text == "hello"

    waits = delivery.named("call_retrying")
    assert [(wait["attempt"], wait["seconds"]) for wait in waits] == [(1, 0.02), (2, 0.01)]
    assert {wait["error"] for wait in waits} == {"RateLimited"}
    assert len({call.request.headers["idempotency-key"] for call in wire.calls}) == 1


async def test_a_wait_longer_than_the_time_cap_is_raised_at_once(connect: Connect, wire: respx.Router) -> None:
    route = answer(wire, refusal(429, retry_after="3600"))

    with pytest.raises(RateLimited) as caught:
        await connect(retry=RetryPolicy(max_seconds=60)).get_response(ASK, options=PLAIN)

    assert (route.call_count, caught.value.retry_after) == (1, 3600)


async def test_retries_can_be_switched_off(connect: Connect, wire: respx.Router) -> None:
    route = answer(wire, refusal(500))

    with pytest.raises(ModelUnavailable):
        await connect(retry=RetryPolicy(max_attempts=1)).get_response(ASK, options=PLAIN)
    assert route.call_count == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"retry-after": "2"}, 2.0, id="seconds"),
        pytest.param({"retry-after-ms": "250", "retry-after": "2"}, 0.25, id="milliseconds first"),
        pytest.param({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90.0, id="a date"),
        pytest.param({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0, id="a date gone by"),
        pytest.param({"retry-after": "-5"}, 0.0, id="negative"),
        pytest.param({"retry-after": "soon"}, None, id="nonsense"),
        pytest.param({"retry-after": "nan"}, None, id="not a number"),
        pytest.param({"retry-after": "inf"}, None, id="forever"),
    ],
)
def test_retry_after_is_read_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, now=10.0) == seconds


def test_a_refusal_in_an_unknown_status_is_still_typed() -> None:
    assert isinstance(Refusal("m", 418, "teapot").error(), RequestRejected)


# --- structured output and other things servers lack ------------------------------------------------------------------


class City(BaseModel):
    name: str
    people: int = 0


async def test_an_output_type_is_asked_for_with_a_strict_schema(connect: Connect, wire: respx.Router) -> None:
    answer(wire, ok(completion('{"name": "Rome", "people": 3}')))

    response = await Agent(connect(), output_type=City).run("Rome?")

    assert response.value == City(name="Rome", people=3)
    assert sent(wire)["response_format"] == {
        "type": "json_schema",
        "json_schema": {
            "name": "City",
            "strict": True,
            "schema": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
                "required": ["name", "people"],
                "additionalProperties": False,
            },
        },
    }


async def test_a_server_without_schemas_is_asked_in_words_and_remembered(connect: Connect, wire: respx.Router) -> None:
    no = refusal(400, "response_format: 'json_schema' is not supported")
    no_object = refusal(400, "unknown field response_format")
    answer(wire, no, no_object, ok(completion('{"name": "Rome"}')), ok(completion('{"name": "Oslo"}')))
    agent = Agent(connect(), output_type=City)

    first = await agent.run("Rome?")
    second = await agent.run("Oslo?")

    assert (first.value, second.value) == (City(name="Rome"), City(name="Oslo"))
    formats = [sent(wire, index).get("response_format", {}).get("type") for index in range(4)]
    assert formats == ["json_schema", "json_object", None, None]
    assert "JSON schema" in sent(wire)["messages"][-1]["content"]


async def test_calls_that_find_out_at_the_same_time_all_go_on(connect: Connect, wire: respx.Router) -> None:
    both = asyncio.Barrier(2)

    async def reply(request: httpx.Request) -> httpx.Response:
        if "response_format" not in json.loads(request.content):
            return ok(completion('{"name": "Rome"}'))
        async with both:  # neither hears of the other's refusal before it was refused itself
            return refusal(400, "unknown field response_format")

    wire.post("/chat/completions").mock(side_effect=reply)
    agent = Agent(connect(), output_type=City)

    responses = await asyncio.gather(agent.run("a"), agent.run("b"))

    assert [response.value for response in responses] == [City(name="Rome")] * 2


async def test_a_server_without_stream_options_is_asked_without(connect: Connect, wire: respx.Router) -> None:
    answer(wire, refusal(400, "Unrecognized key: stream_options"), sse(delta(content="hello"), delta("stop")))

    assert (await streamed(connect())).text == "hello"
    assert "stream_options" not in sent(wire)


async def test_a_server_that_wants_the_long_name_of_the_limit_gets_it(connect: Connect, wire: respx.Router) -> None:
    no = refusal(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
    answer(wire, no, ok(completion()))

    await connect().get_response(ASK, options=ChatOptions(max_tokens=5))

    assert (sent(wire).get("max_tokens"), sent(wire)["max_completion_tokens"]) == (None, 5)


# --- concurrency, life and death --------------------------------------------------------------------------------------


async def test_no_more_than_max_concurrency_calls_are_under_way(connect: Connect, wire: respx.Router) -> None:
    under_way, most = 0, 0

    async def reply(_: Any) -> httpx.Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.005)
        under_way -= 1
        return ok(completion())

    wire.post("/chat/completions").mock(side_effect=reply)
    agents = [Agent(client := connect(max_concurrency=2), name="a"), Agent(client, name="b")]

    await asyncio.gather(*(agent.run("hi") for agent in agents for _ in range(5)))

    assert most == 2


async def test_a_total_timeout_ends_an_attempt_that_never_ends(connect: Connect, wire: respx.Router) -> None:
    async def never(_: Any) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    wire.post("/chat/completions").mock(side_effect=never)

    with pytest.raises(ModelTimeout, match="after 3 attempts"):
        await connect(timeout=0.01).get_response(ASK, options=PLAIN)


async def test_leaving_the_last_async_with_closes_what_was_opened(wire: respx.Router) -> None:
    wire.post("/chat/completions").mock(return_value=ok(completion()))
    client = OpenAIChatClient("m", api_key=KEY, base_url="https://models.test/v1")
    one, two = Agent(client, name="one"), Agent(client, name="two")

    async with one:
        async with two:
            await two.run("hi")
        assert len(client._connections) == 1
    assert len(client._connections) == 0

    await one.run("again")
    await client.aclose()


async def test_a_client_that_is_passed_in_is_not_closed(wire: respx.Router) -> None:
    from openai import AsyncOpenAI

    route = wire.post("/chat/completions").mock(return_value=refusal(500))
    sdk = AsyncOpenAI(api_key=KEY, base_url="https://models.test/v1")
    async with OpenAIChatClient("m", async_client=sdk, retry=RetryPolicy(max_attempts=1)) as client:
        with pytest.raises(ModelUnavailable):
            await client.get_response(ASK, options=PLAIN)

    assert route.call_count == 1
    assert not sdk.is_closed()
    await sdk.close()


async def test_dropping_an_open_client_warns(wire: respx.Router) -> None:
    wire.post("/chat/completions").mock(return_value=ok(completion()))
    client = OpenAIChatClient("m", api_key=KEY, base_url="https://models.test/v1")
    await client.get_response(ASK, options=PLAIN)
    sdk = next(iter(client._connections.values())).sdk

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del client
        gc.collect()

    assert [str(w.message) for w in caught if issubclass(w.category, ResourceWarning) and "dropped" in str(w.message)]
    await sdk.close()


def test_one_client_serves_one_event_loop_after_another(wire: respx.Router) -> None:
    wire.post("/chat/completions").mock(return_value=ok(completion()))
    client = OpenAIChatClient("m", api_key=KEY, base_url="https://models.test/v1", max_concurrency=1)

    async def ask() -> str:
        async with client:
            replies = await asyncio.gather(*(client.get_response(ASK, options=PLAIN) for _ in range(3)))
            return replies[0].text

    assert [asyncio.run(ask()) for _ in range(2)] == ["hello", "hello"]


# --- configuration ----------------------------------------------------------------------------------------------------


async def test_the_environment_fills_in_what_the_arguments_leave_out(
    wire: respx.Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(wire, ok(completion()))
    monkeypatch.setenv("OPENAI_MODEL", "from-env")
    monkeypatch.setenv("OPENAI_API_KEY", "key-from-env")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://models.test/v1")

    async with OpenAIChatClient() as client:
        await client.get_response(ASK, options=PLAIN)

    assert sent(wire)["model"] == "from-env"
    assert wire.calls[0].request.headers["authorization"] == "Bearer key-from-env"
    assert OpenAIChatClient("from-argument").model == "from-argument"


def test_missing_configuration_names_the_argument_and_the_variable() -> None:
    with pytest.raises(MissingConfiguration, match=r"model=.*OPENAI_MODEL"):
        OpenAIChatClient(api_key=KEY)
    with pytest.raises(MissingConfiguration, match=r"api_key=.*OPENAI_API_KEY"):
        OpenAIChatClient("m")


def test_a_local_server_needs_no_key() -> None:
    assert OpenAIChatClient("m", base_url="http://127.0.0.1:1/v1").base_url == "http://127.0.0.1:1/v1"


# --- the canary -------------------------------------------------------------------------------------------------------


def everything_said(error: BaseException) -> Iterator[str]:
    yield from traceback.format_exception(error)
    seen: BaseException | None = error
    while seen is not None:
        yield f"{seen!r} {seen} {vars(seen)} {seen.args}"
        seen = seen.__cause__ or seen.__context__


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(refusal(401, f"Incorrect API key provided: {KEY}."), id="bad key, echoed"),
        pytest.param(refusal(429, f"{KEY} is too fast"), id="rate limit, echoed"),
        pytest.param(httpx.Response(200, text=f"<html>{KEY}</html>"), id="page with the key"),
        pytest.param(ok({"error": f"no credit for {KEY}"}), id="200 with the key"),
        pytest.param(httpx2.ConnectError(f"could not connect with {KEY}"), id="connection error with the key"),
        pytest.param(sse({"error": {"message": f"stop it, {KEY}"}}), id="stream error with the key"),
    ],
)
async def test_the_key_is_in_no_text_that_anybody_sees(
    wire: respx.Router, ledger: Any, response: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wire.post("/chat/completions").mock(side_effect=[response] * 6)
    said: list[str] = []
    async with OpenAIChatClient(
        "m",
        api_key=SecretStr(KEY),
        base_url="https://models.test/v1",
        retry=RetryPolicy(max_attempts=2, initial_wait=0.001),
    ) as client:
        agent = Agent(client, name="a")
        for stream in (False, True):
            with ledger.delivery() as delivery, pytest.raises(ModelCallFailed) as caught:
                await agent.run("hi", stream=stream)
            said += [*everything_said(caught.value), str(delivery.events)]
        said += [repr(client), str(client), repr(agent), repr(vars(client)), caplog.text, str(ledger.rows)]

    assert not [text for text in said if KEY in text]


async def test_contents_are_not_logged_above_debug(
    connect: Connect, wire: respx.Router, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    answer(wire, refusal(500), ok(completion("top secret answer")))

    await Agent(connect(), "top secret instructions").run("top secret question")

    assert "attempt 1 failed" in caplog.text
    assert "secret" not in caplog.text
