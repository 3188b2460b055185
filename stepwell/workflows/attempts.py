"""Several attempts at one delivery, as if only the last one had happened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from stepwell.errors import ExecutorTimeout, WorkflowCheckpointException, WorkflowConvergenceException
from stepwell.workflows.executor import Executor
from stepwell.workflows.message import isolated

if TYPE_CHECKING:
    from stepwell.retry import RetryWait

T = TypeVar("T")

_NEVER_TRANSIENT = (WorkflowCheckpointException, WorkflowConvergenceException)

Tell = Callable[[str, Any, dict[str, Any] | None], None]


async def attempted(executor: Executor, attempt: Callable[[], Awaitable[T]], tell: Tell | None) -> T:
    """Await `attempt()` under the executor's timeout and, if it has a retry policy, again after it failed.

    Between attempts the executor gets back the state it had before this delivery. Failures of the storage or the
    journal are never retried, whatever they are wrapped in: they are not the executor's. Nor is a timeout in a thread,
    which may still be at work.
    """
    if executor.retry is None:
        return await _bounded(executor, attempt, tell)
    # tenacity is imported by programs that retry, and by nobody else.
    from stepwell.retry import retrying

    before = isolated(await executor.on_checkpoint_save()) if executor.keeps_state else None
    failed_before = False

    async def once() -> T:
        nonlocal failed_before
        if failed_before and before is not None:
            await executor.on_checkpoint_restore(isolated(before))
        failed_before = True
        return await _bounded(executor, attempt, tell)

    def is_transient(error: Exception) -> bool:
        return _is_transient(error, executor)

    return await retrying(executor.retry, once, is_transient=is_transient, on_wait=lambda wait: _announce(wait, tell))


def _announce(wait: RetryWait, tell: Tell | None) -> None:
    if tell is not None:
        error = f"{type(wait.error).__name__}: {wait.error}"
        tell("executor_retrying", None, {"attempt": wait.attempt, "seconds": wait.seconds, "error": error})


def _is_transient(error: Exception, executor: Executor) -> bool:
    if executor.runs_in_thread and isinstance(error, ExecutorTimeout):
        return False
    return not any(isinstance(one, _NEVER_TRANSIENT) for one in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came of: handlers wrap errors in their own."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, None if one.__suppress_context__ else one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


async def _bounded(executor: Executor, attempt: Callable[[], Awaitable[T]], tell: Tell | None) -> T:
    if executor.timeout is None:
        return await attempt()
    clock = asyncio.timeout(executor.timeout)
    try:
        async with clock:
            return await attempt()
    except TimeoutError as error:
        if not clock.expired():
            raise
        if executor.runs_in_thread and tell is not None:
            text = f"the thread of executor {executor.id!r} can't be stopped and may still be running"
            tell("warning", None, {"message": text})
        raise ExecutorTimeout(executor.id, executor.timeout) from error
