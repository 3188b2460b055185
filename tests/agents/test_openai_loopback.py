"""OpenAIChatClient against a real HTTP server on the loopback interface that misbehaves in every way servers do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from stepwell.agents import Agent, ChatOptions, ChatResponse, Message, OpenAIChatClient, RetryPolicy, tool
from stepwell.errors import (
    MalformedReply,
    ModelCallFailed,
    ModelTimeout,
    ModelUnavailable,
    ModelUnreachable,
    StreamInterrupted,
)

Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]
ASK = [Message("user", "hi")]
PLAIN = ChatOptions()
PINGS: list[str | float] = [": ping\n\n", 0.05] * 100


class Server:
    """Answers each request with the next behaviour of its list; the last one stays."""

    def __init__(self) -> None:
        self.behaviours: list[Behaviour] = []
        self.requests: list[dict[str, Any]] = []
        self.connections = 0
        self.hung_up = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._handlers:
            task.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    def will(self, *behaviours: Behaviour) -> None:
        self.behaviours = list(behaviours)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.hung_up.set()
        finally:
            writer.close()
            self._handlers.discard(task)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        self.requests.append(json.loads(await reader.readexactly(length)))
        behaviour = self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]
        watch = asyncio.ensure_future(reader.read(1))
        act = asyncio.ensure_future(behaviour(writer))
        try:
            await asyncio.wait([watch, act], return_when=asyncio.FIRST_COMPLETED)
            if not act.done():
                self.hung_up.set()
                return False
            await act
            return False
        finally:
            for job in (watch, act):
                job.cancel()
            await asyncio.gather(watch, act, return_exceptions=True)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    server.url = await server.start()  # type: ignore[attr-defined]
    yield server
    await server.stop()


@pytest.fixture
async def client(server: Server, connect: Callable[..., OpenAIChatClient]) -> OpenAIChatClient:
    return connect(
        base_url=server.url,  # type: ignore[attr-defined]
        timeout=0.3,
        retry=RetryPolicy(max_attempts=2, initial_wait=0.001),
    )


# --- what it does -----------------------------------------------------------------------------------------------------


def whole(content: str = "hello", status: str = "200 OK", kind: str = "application/json", cut: int = 0) -> Behaviour:
    async def act(writer: asyncio.StreamWriter) -> None:
        body = content if kind != "application/json" or status != "200 OK" else completion(content)
        data = body.encode()
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + data[: len(data) - cut])
        await writer.drain()

    return act


def completion(content: str) -> str:
    message = {"role": "assistant", "content": content}
    return json.dumps({"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


def streams(*pieces: str | float, finish: bool = True, end: bool = True) -> Behaviour:
    """Text is said, numbers are waited for; without `end` the connection is dropped in the middle of the body."""

    async def act(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
        writer.write(b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n")
        for piece in pieces:
            if isinstance(piece, str):
                await say(writer, piece)
            else:
                await asyncio.sleep(piece)
        if finish:
            await say(writer, event({}, "stop") + "data: [DONE]\n\n")
        if end:
            writer.write(b"0\r\n\r\n")
        await writer.drain()

    return act


async def say(writer: asyncio.StreamWriter, text: str) -> None:
    data = text.encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


def event(delta: dict[str, Any], finish: str | None = None) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}]})}\n\n"


def words(text: str) -> str:
    return event({"content": text})


async def hangs_up(writer: asyncio.StreamWriter) -> None:
    """Closes the connection without a word."""


async def stalls(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def talks_nonsense(writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.7\r\n")
    await writer.drain()


async def streamed(client: OpenAIChatClient) -> ChatResponse:
    return ChatResponse.from_updates([update async for update in client.stream_response(ASK, options=PLAIN)])


# --- and what becomes of it -------------------------------------------------------------------------------------------


async def test_a_reply_and_a_stream_are_understood(server: Server, client: OpenAIChatClient) -> None:
    server.will(whole("Grüße"), streams(words("Hé"), words("llo")))

    assert (await client.get_response(ASK, options=PLAIN)).text == "Grüße"
    assert (await streamed(client)).text == "Héllo"


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        pytest.param(hangs_up, ModelUnreachable, id="hangs up"),
        pytest.param(stalls, ModelTimeout, id="stalls"),
        pytest.param(talks_nonsense, ModelUnreachable, id="speaks another protocol"),
        pytest.param(whole(cut=10), ModelUnreachable, id="drops the connection in the body"),
        pytest.param(whole("<html>login</html>", kind="text/html"), MalformedReply, id="sends HTML"),
        pytest.param(whole("", kind="text/plain"), MalformedReply, id="sends nothing"),
        pytest.param(whole("<html>", status="502 Bad Gateway", kind="text/html"), ModelUnavailable, id="bad gateway"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_that_misbehaves_is_tried_again_and_named(
    server: Server, client: OpenAIChatClient, behaviour: Behaviour, kind: type[ModelCallFailed], stream: bool
) -> None:
    def ask() -> Awaitable[ChatResponse]:
        return streamed(client) if stream else client.get_response(ASK, options=PLAIN)

    server.will(behaviour, streams(words("hello")) if stream else whole())
    assert (await ask()).text == "hello"

    server.will(behaviour)
    with pytest.raises(kind) as caught:
        await ask()
    assert caught.value.attempts == 2


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        pytest.param(streams(words("so far"), finish=False, end=False), ModelUnreachable, id="drops mid-stream"),
        pytest.param(streams(words("so far"), finish=False), StreamInterrupted, id="ends early"),
        pytest.param(streams(words("so far"), 30.0), ModelTimeout, id="stalls"),
        pytest.param(streams(words("so far"), *PINGS), ModelTimeout, id="only pings"),
        pytest.param(streams(words("so far"), "data: {oops\n\n"), MalformedReply, id="bad JSON"),
    ],
)
async def test_a_stream_that_breaks_is_a_typed_error_and_gives_its_connection_back(
    server: Server, client: OpenAIChatClient, behaviour: Behaviour, kind: type[ModelCallFailed]
) -> None:
    server.will(behaviour, whole())
    seen: list[str] = []

    with pytest.raises(kind):
        async for update in client.stream_response(ASK, options=PLAIN):
            seen += [update.text]

    assert seen == ["so far"]
    assert (await client.get_response(ASK, options=PLAIN)).text == "hello"


async def test_a_connection_that_drops_after_the_reply_was_complete_loses_nothing(
    server: Server, client: OpenAIChatClient
) -> None:
    server.will(streams(words("hello"), event({}, "stop"), finish=False, end=False))

    reply = await streamed(client)

    assert (reply.text, reply.finish_reason) == ("hello", "stop")


async def test_bytes_may_be_cut_anywhere(server: Server, client: OpenAIChatClient) -> None:
    text = words("Grüße, ") + words("☃\U0001f600") + event({}, "stop")

    async def byte_by_byte(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for byte in text.encode():
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    server.will(byte_by_byte)

    assert (await streamed(client)).text == "Grüße, ☃\U0001f600"


async def test_no_server_at_all_is_unreachable_and_says_where_to_look(
    server: Server, connect: Callable[..., OpenAIChatClient]
) -> None:
    await server.stop()
    client = connect(base_url=server.url, retry=RetryPolicy(max_attempts=2, initial_wait=0.001))  # type: ignore[attr-defined]

    with pytest.raises(ModelUnreachable, match="OPENAI_BASE_URL"):
        await client.get_response(ASK, options=PLAIN)


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling_a_call_hangs_up(
    server: Server, connect: Callable[..., OpenAIChatClient], stream: bool
) -> None:
    client = connect(base_url=server.url, timeout=60)  # type: ignore[attr-defined]
    server.will(streams(words("so"), 30.0) if stream else stalls)
    agent = Agent(client)

    task = asyncio.ensure_future(agent.run("hi", stream=True).get_final_response() if stream else agent.run("hi"))
    while not server.requests:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(server.hung_up.wait(), 5)


async def test_many_calls_share_one_client(server: Server, connect: Callable[..., OpenAIChatClient]) -> None:
    client = connect(base_url=server.url, max_concurrency=4)  # type: ignore[attr-defined]
    server.will(streams(words("hello")))

    replies = await asyncio.gather(*(streamed(client) for _ in range(40)))

    assert {reply.text for reply in replies} == {"hello"}


async def test_an_agent_goes_through_tools_and_a_broken_connection(server: Server, client: OpenAIChatClient) -> None:
    @tool
    def price(item: str) -> int:
        """What it costs."""
        return len(item)

    call = {"index": 0, "id": "c1", "function": {"name": "price", "arguments": '{"item": '}}
    rest = {"index": 0, "function": {"arguments": '"tea"}'}}
    server.will(
        hangs_up,
        streams(event({"tool_calls": [call]}), event({"tool_calls": [rest]})),
        hangs_up,
        streams(words("It costs "), words("3.")),
    )

    response = await Agent(client, tools=[price]).run("How much is tea?", stream=True)

    assert response.text == "It costs 3."
    assert server.requests[-1]["messages"][-1] == {"role": "tool", "tool_call_id": "c1", "content": "3"}
