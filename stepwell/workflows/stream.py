"""A run's events, one after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

from stepwell.errors import WorkflowException
from stepwell.workflows.events import WorkflowEvent, WorkflowRunResult


class Channel:
    """Events on their way to one consumer. The run waits for its consumer, never the other way round for nothing."""

    def __init__(self) -> None:
        self._events: deque[WorkflowEvent] = deque()
        self._arrived: asyncio.Future[None] | None = None
        self._wanted: asyncio.Future[None] | None = None
        self._closed = False
        self._abandoned = False

    @property
    def is_waited_on(self) -> bool:
        """Has the consumer taken everything and asked for more?"""
        return self._arrived is not None and not self._events

    def put(self, event: WorkflowEvent) -> None:
        self._events.append(event)
        _wake(self._arrived)

    def close(self) -> None:
        self._closed = True
        _wake(self._arrived)
        _wake(self._wanted)

    def abandon(self) -> None:
        """Nobody takes events any more: a run whose handlers swallowed their cancellation stops at the next demand."""
        self._abandoned = True
        _wake(self._wanted)

    async def demand(self) -> None:
        """Return when the consumer has taken all events and asks for the next."""
        while not self.is_waited_on and not self._closed:
            if self._abandoned:
                raise asyncio.CancelledError
            self._wanted = asyncio.get_running_loop().create_future()
            try:
                await self._wanted
            finally:
                self._wanted = None

    async def get(self) -> WorkflowEvent | None:
        """The next event; None when there will be no more."""
        while not self._events:
            if self._closed:
                return None
            self._arrived = asyncio.get_running_loop().create_future()
            _wake(self._wanted)
            try:
                await self._arrived
            finally:
                self._arrived = None
        return self._events.popleft()


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class StreamedRun:
    """A run that is under way for a stream: its task, and the channel it fills.

    The stream holds this and this holds no stream, so a dropped stream is noticed at once.
    """

    def __init__(self, main: Callable[[Channel], Awaitable[WorkflowRunResult]]) -> None:
        self.channel = Channel()
        self._main = main
        self._task: asyncio.Task[WorkflowRunResult] | None = None
        self.is_leaving = False
        """Its stream was dropped or closed, and it is on its way out."""
        self.loss: Exception | None = None
        """What a consumer that comes back is told, if the run had to make way for another `run`."""

    @property
    def is_started(self) -> bool:
        return self._task is not None

    @property
    def is_parked(self) -> bool:
        """Is it waiting for a consumer who has not come back?"""
        return self._task is not None and not self._task.done() and not self.channel.is_waited_on

    async def next_event(self) -> WorkflowEvent | None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="stepwell-run")
        return await self.channel.get()

    def outcome(self) -> WorkflowRunResult | None:
        """The result, or the error the run ended with; None if it was stopped before its end."""
        if self._task is None or self._task.cancelled():
            if self.loss is not None:
                raise self.loss
            return None
        return self._task.result()

    async def finished(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Interrupt the run and wait until it has left everything in order."""
        task = self._task
        self.is_leaving = True
        if task is None or task.done():
            return
        self.channel.abandon()
        task.cancel()
        while not task.done():
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # It was reported as an event; asyncio need not report it again.

    async def _run(self) -> WorkflowRunResult:
        try:
            return await self._main(self.channel)
        finally:
            self.channel.close()


_closing: set[asyncio.Task[None]] = set()
"""Closings under way for streams that were dropped; kept here so that they are not dropped too."""


class ResponseStream(AsyncIterator[WorkflowEvent]):
    """The events of a run, as they come. Leaving early stops the run, which can be resumed.

    Iterate over it, or await it to run it to its end and get the `WorkflowRunResult`.
    """

    def __init__(self, main: Callable[[Channel], Awaitable[WorkflowRunResult]]) -> None:
        self.run = StreamedRun(main)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False

    def __aiter__(self) -> ResponseStream:
        return self

    async def __anext__(self) -> WorkflowEvent:
        if self._is_over:
            raise StopAsyncIteration
        self._loop = asyncio.get_running_loop()
        try:
            event = await self.run.next_event()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if event is not None:
            return event
        self._is_over = True
        await self.run.finished()
        self.run.outcome()
        raise StopAsyncIteration

    def __await__(self) -> Generator[Any, None, WorkflowRunResult]:
        return self.get_final_response().__await__()

    async def get_final_response(self) -> WorkflowRunResult:
        """Take whatever is left of the stream, and return the result."""
        async for _ in self:
            pass
        result = self.run.outcome()
        if result is None:
            raise WorkflowException("the stream was closed before its run ended; resume the run to get its result")
        return result

    async def aclose(self) -> None:
        """Stop the run if it is not over, and wait until it has stopped."""
        self._is_over = True
        await self.run.stop()

    async def __aenter__(self) -> ResponseStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        loop, run = self._loop, self.run
        if self._is_over or loop is None or loop.is_closed() or not run.is_started:
            return
        run.is_leaving = True

        def close() -> None:
            task = loop.create_task(run.stop())
            _closing.add(task)
            task.add_done_callback(_closing.discard)

        loop.call_soon_threadsafe(close)
