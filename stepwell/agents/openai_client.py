"""`OpenAIChatClient`: any server that speaks Chat Completions, through the official SDK. The only file that imports it.

It believes no server: what is not a complete reply becomes a typed error, and is tried again where that makes sense.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from pydantic import SecretStr

from stepwell.agents.chat import AgentRunInputs, ChatResponse, ChatResponseUpdate, Message, as_messages
from stepwell.agents.client import ChatOptions, check_real_model_allowed, run_client_kwargs
from stepwell.agents.content import Content
from stepwell.agents.openai_errors import Refusal, lesson, retry_after, streamed_refusal
from stepwell.agents.openai_wire import Assembly, Feature, read_completion, request_body
from stepwell.checkpointing.journal import active_scope
from stepwell.errors import (
    MalformedReply,
    MissingConfiguration,
    ModelCallFailed,
    ModelTimeout,
    ModelUnreachable,
    RequestRejected,
    TransientModelError,
)
from stepwell.retry import RetryPolicy, RetryWait, retrying

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from stepwell.agents.agent import Agent

logger = logging.getLogger(__name__)

T = TypeVar("T")
Updates: TypeAlias = AsyncGenerator[ChatResponseUpdate, None]

DEFAULT_TIMEOUT = 300.0
_NO_KEY = "none"  # local servers want no key, but the SDK wants one to send


@dataclass(frozen=True, slots=True)
class _Connection:
    """The SDK's client for one event loop, and room for so many calls at once."""

    sdk: AsyncOpenAI
    slots: asyncio.Semaphore | nullcontext[None]
    ours: bool


class OpenAIChatClient:
    """A `ChatClient` for OpenAI and everything compatible (vLLM, Ollama, llama.cpp, Azure with its base URL).

    Arguments come first, then `OPENAI_MODEL`, `OPENAI_API_KEY` and `OPENAI_BASE_URL`. `timeout` is for one attempt, and
    for the silence between two pieces of a stream; `retry` says how often and how long to try again. `max_concurrency`
    is shared by everything that uses this client on one event loop.

    Use it (or the agent that has it) with `async with`, or call `aclose()`; it may be used again afterwards. An
    `async_client` that you pass is yours to close.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        api_key: str | SecretStr | None = None,
        base_url: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        retry: RetryPolicy | None = None,
        max_concurrency: int | None = None,
        async_client: AsyncOpenAI | None = None,
    ) -> None:
        self._connections: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connection] = WeakKeyDictionary()
        self.model: str = model or os.environ.get("OPENAI_MODEL") or _missing("model", "OPENAI_MODEL")
        self.base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
        self.timeout = timeout
        self.retry = retry if retry is not None else RetryPolicy()
        self.max_concurrency = max_concurrency
        self._given = async_client
        self._key = self._find_key(api_key)
        self._lacks: set[Feature] = {"max_completion_tokens"} if self.base_url else set()
        self._users = 0
        self._is_open = False

    def _find_key(self, api_key: str | SecretStr | None) -> SecretStr:
        if self._given is not None:
            return SecretStr(self._given.api_key)
        if isinstance(api_key, SecretStr):
            return api_key
        found = api_key or os.environ.get("OPENAI_API_KEY") or (_NO_KEY if self.base_url else None)
        return SecretStr(found or _missing("api_key", "OPENAI_API_KEY"))

    # --- asking -------------------------------------------------------------------------------------------------------

    def as_agent(self, *, instructions: str | None = None, **options: Any) -> Agent:
        """An agent that asks this client; takes what `Agent` takes."""
        from stepwell.agents.agent import Agent

        return Agent(self, instructions, **options)

    async def get_response(
        self, messages: AgentRunInputs, *, options: ChatOptions | Mapping[str, Any] | None = None
    ) -> ChatResponse:
        return await self._asking(self._complete, as_messages(messages), ChatOptions.of(options), stream=False)

    async def stream_response(
        self, messages: AgentRunInputs, *, options: ChatOptions | Mapping[str, Any] | None = None
    ) -> AsyncIterator[ChatResponseUpdate]:
        """The reply in pieces. Until the first of them a failure is tried again; after it, it is raised."""
        ask = as_messages(messages), ChatOptions.of(options)
        first, rest = await self._asking(self._begin, *ask, stream=True)
        async with aclosing(rest):
            yield first
            async for update in rest:
                yield update

    async def _complete(self, body: dict[str, Any]) -> ChatResponse:
        try:
            connection = await self._connection()
            async with connection.slots, asyncio.timeout(self.timeout):
                raw = await connection.sdk.chat.completions.with_raw_response.create(**body)
            return self._whole(raw.http_response.content)
        except Exception as error:
            failure = self._typed(error)
        raise failure

    async def _begin(self, body: dict[str, Any]) -> tuple[ChatResponseUpdate, Updates]:
        updates = self._updates(body)
        try:
            return await anext(updates), updates
        except BaseException:
            await updates.aclose()
            raise

    async def _updates(self, body: dict[str, Any]) -> Updates:
        try:
            connection = await self._connection()
            async with connection.slots, aclosing(self._received(connection.sdk, body)) as updates:
                async for update in updates:
                    yield update
            return
        except Exception as error:
            failure = self._typed(error)
        raise failure

    async def _received(self, sdk: AsyncOpenAI, body: dict[str, Any]) -> Updates:
        async with asyncio.timeout(self.timeout):
            stream = await sdk.chat.completions.create(**body)
        try:
            if "text/event-stream" not in stream.response.headers.get("content-type", ""):
                # It ignored `stream`. To the SDK that is a stream without chunks; it may well be a whole reply.
                async with asyncio.timeout(self.timeout):
                    yield _as_update(self._whole(await stream.response.aread()))
                return
            assembly = Assembly(self.model)
            async for chunk in self._chunks(stream, assembly):
                contents = assembly.chunk(chunk)
                if contents:
                    yield ChatResponseUpdate(tuple(contents))
            yield _ending(assembly)
        finally:
            await stream.close()

    async def _chunks(self, stream: Any, assembly: Assembly) -> AsyncIterator[Any]:
        """The chunks as plain data. A silence longer than the timeout ends them, even if the server sends comments."""
        while True:
            try:
                async with asyncio.timeout(self.timeout):
                    chunk = await anext(stream, None)
            except Exception:
                if assembly.finish_reason is None:
                    raise
                return  # the reply was complete; only what follows it (usage) is lost
            if chunk is None:
                return
            yield chunk.model_dump(exclude_unset=True, warnings=False) if hasattr(chunk, "model_dump") else chunk

    def _whole(self, body: bytes) -> ChatResponse:
        try:
            data = json.loads(body)
        except ValueError:
            data = None
        if (
            data is None
        ):  # raised out here, so that the parser's error (which holds the whole body) is not dragged along
            start = " ".join(body[:200].decode("utf-8", "replace").split())
            raise MalformedReply(self.model, f"the reply is no JSON, it begins with {start[:80]!r}")
        return read_completion(data, model=self.model)

    # --- trying again -------------------------------------------------------------------------------------------------

    async def _asking(
        self,
        ask: Callable[[dict[str, Any]], Awaitable[T]],
        messages: Sequence[Message],
        options: ChatOptions,
        *,
        stream: bool,
    ) -> T:
        check_real_model_allowed(repr(self))
        attempts = 0

        async def attempt() -> T:
            nonlocal attempts
            attempts += 1
            return await self._adapting(ask, messages, options, stream=stream)

        try:
            return await retrying(
                self.retry,
                attempt,
                is_transient=lambda error: isinstance(error, TransientModelError),
                retry_after=lambda error: getattr(error, "retry_after", None),
                on_wait=self._announce,
            )
        except ModelCallFailed as error:
            error.attempts = attempts
            raise

    async def _adapting(
        self,
        ask: Callable[[dict[str, Any]], Awaitable[T]],
        messages: Sequence[Message],
        options: ChatOptions,
        *,
        stream: bool,
    ) -> T:
        """Ask; what the server turns out to lack is left out, at once and from then on."""
        while True:
            lacks = frozenset(self._lacks)
            body = request_body(messages, options, model=self.model, stream=stream, lacks=lacks)
            try:
                return await ask(_addressed(body, options))
            except RequestRejected as error:
                missing = lesson(error, body)
                if missing is None or missing in lacks:
                    raise
                logger.info("model %r: this server lacks %s, going on without", self.model, missing)
                self._lacks.add(missing)

    def _announce(self, wait: RetryWait) -> None:
        status = getattr(wait.error, "status", None)
        kind = type(wait.error).__name__
        logger.info(
            "model %r: attempt %d failed (%s, status %s), waiting %.2f s",
            self.model,
            wait.attempt,
            kind,
            status,
            wait.seconds,
        )
        scope = active_scope.get()
        if scope is not None:
            details = {"model": self.model, "attempt": wait.attempt, "seconds": wait.seconds}
            scope.announce("call_retrying", {**details, "error": kind, "message": str(wait.error), "status": status})

    # --- failing ------------------------------------------------------------------------------------------------------

    def _typed(self, error: Exception) -> Exception:
        """The error in our words. The SDK's own is not chained to it: it holds the request, and that holds the key."""
        from httpx2 import HTTPError, TimeoutException
        from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError

        match error:
            case ModelCallFailed():
                error.detail = self._redacted(error.detail)
                error.args = (error.model or self.model, error.detail, *error.args[2:])
                return error
            case TimeoutError() | APITimeoutError() | TimeoutException():
                return ModelTimeout(self.model, f"nothing came for {self.timeout:g} s")
            case APIStatusError():
                return self._refusal(error).error()
            case APIConnectionError() | HTTPError():
                cause = error.__cause__ if isinstance(error, APIConnectionError) and error.__cause__ else error
                return ModelUnreachable(self.model, self._redacted(f"{type(cause).__name__}: {cause}"))
            case APIError():
                said = self._redacted(error.message)
                return streamed_refusal(self.model, said, code=error.code, kind=error.type).error()
            case json.JSONDecodeError() | UnicodeDecodeError():
                return MalformedReply(self.model, f"the stream is not made of JSON ({type(error).__name__})")
        return error

    def _refusal(self, error: Any) -> Refusal:
        headers = error.response.headers
        return Refusal(
            self.model,
            error.status_code,
            self._redacted(" ".join(str(error.message).split())[:1000]),
            code=error.code or error.type,
            request_id=headers.get("x-request-id"),
            retry_after=retry_after(headers),
        )

    def _redacted(self, text: str) -> str:
        key = self._key.get_secret_value()
        return text.replace(key, "***") if key and key != _NO_KEY else text

    # --- connections --------------------------------------------------------------------------------------------------

    async def _connection(self) -> _Connection:
        loop = asyncio.get_running_loop()
        if loop not in self._connections:
            # Importing the SDK and reading certificates takes most of a second: not on the loop.
            sdk = await asyncio.to_thread(self._connect)
            if loop in self._connections:  # a concurrent first call was faster
                if self._given is None:
                    await sdk.close()
            else:
                slots = asyncio.Semaphore(self.max_concurrency) if self.max_concurrency else nullcontext()
                self._connections[loop] = _Connection(sdk, slots, ours=self._given is None)
                self._is_open = self._given is None
        return self._connections[loop]

    def _connect(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient, Timeout

        if self._given is not None:
            return self._given.with_options(max_retries=0)
        timeout = Timeout(self.timeout, connect=min(self.timeout, 10.0))
        # With a transport of our own the SDK does not close it behind our back when it is garbage-collected.
        return AsyncOpenAI(
            api_key=self._key.get_secret_value(),
            base_url=self.base_url,
            timeout=timeout,
            max_retries=0,
            http_client=DefaultAsyncHttpxClient(timeout=timeout),
        )

    async def aclose(self) -> None:
        """Close the connections that this client opened, on whatever loop."""
        here = asyncio.get_running_loop()
        self._is_open = False
        while self._connections:
            loop, connection = self._connections.popitem()
            if not connection.ours:
                continue
            if loop is here:
                await connection.sdk.close()
            elif not loop.is_closed():
                asyncio.run_coroutine_threadsafe(connection.sdk.close(), loop)

    async def __aenter__(self) -> Self:
        self._users += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users -= 1
        if self._users == 0:
            await self.aclose()

    def __del__(self) -> None:
        # Not by looking into `_connections`: the garbage collector may have cleared its weak references already.
        if getattr(self, "_is_open", False):
            warnings.warn(f"{self!r} was dropped open; use `async with` or aclose()", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        where = f", base_url={_without_credentials(self.base_url)!r}" if self.base_url else ""
        return f"OpenAIChatClient({self.model!r}{where})"


def _addressed(body: dict[str, Any], options: ChatOptions) -> dict[str, Any]:
    """The request with what is no part of the question: idempotency key, and the run's own headers and fields."""
    given = dict(run_client_kwargs.get())
    headers = dict(given.pop("extra_headers", None) or {})
    if options.idempotency_key:
        headers.setdefault("Idempotency-Key", options.idempotency_key)
    extra = {**body.get("extra_body", {}), **(given.pop("extra_body", None) or {})}
    return {**body, **given, "extra_headers": headers, "extra_body": extra or None}


def _as_update(reply: ChatResponse) -> ChatResponseUpdate:
    contents = [content for message in reply.messages for content in message.contents]
    if reply.usage_details is not None:
        contents.append(Content.from_usage(reply.usage_details))
    return ChatResponseUpdate(tuple(contents), reply.finish_reason, reply.model, reply.response_id)


def _ending(assembly: Assembly) -> ChatResponseUpdate:
    usage = [Content.from_usage(assembly.usage)] if assembly.usage is not None else []
    reason = assembly.finished()
    return ChatResponseUpdate((*assembly.calls(), *usage), reason, assembly.answered_by, assembly.response_id)


def _missing(setting: str, variable: str) -> NoReturn:
    raise MissingConfiguration(setting, variable)


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
