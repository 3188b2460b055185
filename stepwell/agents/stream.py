"""A running turn, seen from outside: updates as they come, then the final response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar

from stepwell.errors import AgentException

U = TypeVar("U")
R = TypeVar("R")


class AgentStream(Generic[U, R]):
    """Iterate for the updates, `await` it (or `get_final_response()`) for the result; either order, both, or one.

    The work starts when somebody first asks for something. Leaving early (`aclose`, the end of `async with`, or just
    dropping the stream) cancels it.
    """

    def __init__(self, work: Callable[[Callable[[U], None]], Awaitable[R]]) -> None:
        self._work = work
        self._updates: asyncio.Queue[U | None] = asyncio.Queue()
        self._task: asyncio.Task[R] | None = None
        self._closed = False

    def __aiter__(self) -> AsyncIterator[U]:
        return self

    async def __anext__(self) -> U:
        task = self._started()
        if task.done() and self._updates.empty():
            self._settle(task)
        try:
            update = await self._updates.get()
        except asyncio.CancelledError:
            await self.aclose()  # whoever is cancelled while reading leaves nothing running behind
            raise
        if update is None:
            await asyncio.wait([task])
            self._settle(task)
        return update

    async def get_final_response(self) -> R:
        """The result of the whole turn; updates that nobody has read yet are dropped."""
        task = self._started()
        if self._closed and task.cancelled():
            raise AgentException("the stream was closed before the turn was over; run the agent again")
        return await task

    def __await__(self) -> Generator[Any, None, R]:
        return self.get_final_response().__await__()

    async def aclose(self) -> None:
        """Stop the turn if it is still running, and wait until it has stopped."""
        self._closed = True
        task = self._started()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        task = getattr(self, "_task", None)
        if task is not None and not task.done() and not task.get_loop().is_closed():
            # The last reference may be dropped in any thread.
            task.get_loop().call_soon_threadsafe(task.cancel)

    def _started(self) -> asyncio.Task[R]:
        if self._task is None:
            self._task = asyncio.ensure_future(_run(self._work, self._updates))
            self._task.add_done_callback(_look_at)
        return self._task

    @staticmethod
    def _settle(task: asyncio.Task[R]) -> NoReturn:
        if task.cancelled():
            raise StopAsyncIteration
        error = task.exception()
        if error is not None:
            raise error
        raise StopAsyncIteration


async def _run(work: Callable[[Callable[[U], None]], Awaitable[R]], updates: asyncio.Queue[U | None]) -> R:
    # Not a method: the task must not keep the stream alive, or dropping the stream could never cancel it.
    try:
        return await work(updates.put_nowait)
    finally:
        updates.put_nowait(None)


def _look_at(task: asyncio.Task[Any]) -> None:
    """An error that nobody asked for is no news for the event loop's exception handler."""
    if not task.cancelled():
        task.exception()
