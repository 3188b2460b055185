"""An event loop that user code can't leave by ending the program."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Loop:
    """Runs one piece of work after the other; one that is ended by a `SystemExit` ends in order before that is raised.

    asyncio leaves its loop at once when a task calls `sys.exit`, and once more at each task that waited for it. All
    else in that loop would stay half done: a run would not be given back, and the next work would meet its remains.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Ctrl-C cancels the work and is raised when that has ended."""
        task = self._runner.get_loop().create_task(work)
        try:
            while not task.done():
                with suppress(SystemExit):
                    self._runner.run(_end_of(task))
        except KeyboardInterrupt:
            task.cancel()  # a Ctrl-C before the loop heard of it, or a second one, has not cancelled it
            raise
        return task.result()


async def _end_of(task: asyncio.Task[Any]) -> None:
    """Wait for the task without being ended by what ends it; Ctrl-C, which cancels this, cancels the task."""
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # otherwise asyncio reports it as one that nobody has looked at
        raise
