"""One thread that writes for everybody.

Making something durable costs an fsync, and an fsync costs the same for one write as for a thousand. So whatever is
waiting when the thread comes round is committed together, and then each event loop is woken once for the whole group.

The thread knows nothing of what it writes or to where: that is the `Medium`'s business.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

LARGEST_GROUP = 2048
"""More than this waits for the next group, so that the first in line is not kept waiting by the last."""


class Medium(Protocol):
    """Where groups of jobs are made durable. Used by the writer thread only."""

    def commit(self, jobs: Sequence[Any]) -> Sequence[Any]:
        """Do these in one transaction, in this order. One outcome per job; an exception is that job's failure."""
        ...

    def pause(self) -> float | None:
        """After how many idle seconds `tick` is due; None if there is nothing to tick for."""
        ...

    def tick(self) -> None:
        """What has to be done now and then although nobody writes."""
        ...

    def close(self) -> None: ...


_UNDECIDED: Final = object()


class _Waiting(asyncio.Future[None]):
    """A future for one task, which goes on in the very turn of the event loop that brings the news.

    An ordinary future has its callbacks called in the next turn. There is one of these in every superstep and in every
    recorded call, so the turn between counts.
    """

    _resume: tuple[Callable[[Any], object], Context | None] | None = None

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        if self._resume is None and not self.done():
            self._resume = (fn, context)
        else:
            super().add_done_callback(fn, context=context)

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg=msg):
            return False
        if self._resume is not None:
            fn, context = self._resume
            self.get_loop().call_soon(fn, self, context=context)
        return True

    def arrive(self) -> None:
        """Whoever waits goes on before this returns. Called by the event loop, outside of any task."""
        if self.done():
            return
        self.set_result(None)
        if self._resume is not None:
            fn, context = self._resume
            (copy_context() if context is None else context).run(fn, self)  # an empty context is false


class Ticket:
    """One job on its way. `outcome` is written by the thread and read by the event loop that waits for it."""

    __slots__ = ("future", "job", "loop", "outcome")

    def __init__(self, job: Any) -> None:
        self.job = job
        self.loop = asyncio.get_running_loop()
        self.future = _Waiting(loop=self.loop)
        self.outcome: Any = _UNDECIDED

    async def decided(self) -> Any:
        """The job's result or its error, once that is certain.

        A task that is cancelled meanwhile still waits for it: afterwards the job has happened or it has not, and it
        does not happen later.
        """
        try:
            await self.future
        except asyncio.CancelledError as cancelled:
            await self._certainty()
            if isinstance(self.outcome, BaseException):
                raise cancelled from self.outcome
            raise
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    async def _certainty(self) -> None:
        while self.outcome is _UNDECIDED:
            self.future = _Waiting(loop=self.loop)
            # Being cancelled again changes nothing: the first cancellation is already on its way out.
            with suppress(asyncio.CancelledError):
                await self.future


class _Errand:
    """A job whose outcome nobody waits for."""

    __slots__ = ("job",)

    def __init__(self, job: Any) -> None:
        self.job = job


class _Stop:
    """The last entry of a queue; `ended` is settled when the medium is closed."""

    __slots__ = ("ended",)

    def __init__(self, ended: Ticket | None) -> None:
        self.ended = ended


_Entry = Ticket | _Errand | _Stop


class GroupWriter:
    """Hands jobs to a thread of its own that commits them in groups.

    The thread is a daemon and holds no reference to whoever submits, so neither the process nor a forgotten storage is
    kept alive by it.
    """

    def __init__(self, medium: Medium, *, name: str) -> None:
        self._queue: SimpleQueue[_Entry] = SimpleQueue()
        threading.Thread(target=_serve, args=(self._queue, medium), name=name, daemon=True).start()

    def submit(self, job: Any) -> Ticket:
        """Queue a job; `await ticket.decided()` tells how it went."""
        ticket = Ticket(job)
        self._queue.put(ticket)
        return ticket

    def write(self, job: Any) -> Coroutine[Any, Any, Any]:
        """Queue a job; what it comes to is to be awaited."""
        return self.submit(job).decided()

    async def stop(self) -> None:
        """Write what is queued, close the medium, end the thread."""
        ended = Ticket(None)
        self._queue.put(_Stop(ended))
        await ended.decided()

    def leave(self, job: Any) -> None:
        """Queue a job without waiting for it: for those who can't, such as a destructor."""
        self._queue.put(_Errand(job))

    def stop_soon(self) -> None:
        """Like `stop`, for the same."""
        self._queue.put(_Stop(None))


def _serve(queue: SimpleQueue[_Entry], medium: Medium) -> None:
    while True:
        try:
            first = queue.get(timeout=medium.pause())
        except Empty:
            medium.tick()
            continue
        group, stop = _group(first, queue)
        if group:
            settle(group, _committed(medium, [ticket.job for ticket in group]))
        if stop is not None:
            outcome = _closed(medium)
            if stop.ended is not None:
                settle([stop.ended], [outcome])
            return
        # A finished group must not live on in this frame while the thread sleeps.
        del first, group


def _group(first: _Entry, queue: SimpleQueue[_Entry]) -> tuple[list[Ticket | _Errand], _Stop | None]:
    group: list[Ticket | _Errand] = []
    entry = first
    while True:
        if isinstance(entry, _Stop):
            return group, entry
        group.append(entry)
        if len(group) == LARGEST_GROUP or queue.empty():
            return group, None
        entry = queue.get_nowait()  # nobody else takes from it


def _committed(medium: Medium, jobs: Sequence[Any]) -> Sequence[Any]:
    try:
        return medium.commit(jobs)
    except BaseException as error:  # the thread must live: everybody else's writes depend on it
        return [error] * len(jobs)


def _closed(medium: Medium) -> BaseException | None:
    try:
        medium.close()
    except BaseException as error:  # whoever waits for the end has to hear of it, and of how it went
        return error
    return None


def settle(group: Sequence[Ticket | _Errand], outcomes: Sequence[Any]) -> None:
    """Tell everybody how it went; each event loop is woken once."""
    waiting: dict[asyncio.AbstractEventLoop, list[Ticket]] = {}
    for entry, outcome in zip(group, outcomes, strict=True):
        if isinstance(entry, Ticket):
            entry.outcome = outcome
            waiting.setdefault(entry.loop, []).append(entry)
    for loop, mine in waiting.items():
        with suppress(RuntimeError):  # that loop is closed, and nobody waits there any more
            loop.call_soon_threadsafe(_wake, mine)


def _wake(tickets: Sequence[Ticket]) -> None:
    waiting = iter(tickets)
    try:
        for ticket in waiting:
            ticket.future.arrive()
    except BaseException:  # one of them ends the program with Ctrl-C; the others must hear of their writes all the same
        if rest := list(waiting):
            rest[0].loop.call_soon(_wake, rest)
        raise
