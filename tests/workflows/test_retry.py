"""Executor retry and timeout: a failed attempt leaves nothing but the calls that were recorded in it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from stepwell import (
    AgentExecutor,
    CallUndecided,
    Executor,
    ExecutorTimeout,
    InMemoryCheckpointStorage,
    ReplayDivergence,
    RetryPolicy,
    StorageError,
    WorkflowContext,
    WorkflowEvent,
    WorkflowRunState,
    WorkflowValidationError,
    executor,
    handler,
    tool,
)
from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.lease import Fence
from stepwell.testing import ScriptedChatClient, calls
from tests.workflows.parts import alone, chained, types_in, warnings_in

AT_ONCE = RetryPolicy(initial_wait=0)


class Flaky(Executor):
    """Fails in its first attempts, after it has done everything a handler can do."""

    def __init__(self, *, failures: int = 2, retry: RetryPolicy | None = AT_ONCE) -> None:
        super().__init__("flaky", retry=retry)
        self.failures = failures
        self.attempts = 0
        self.kept: list[int] = []
        self.seen: list[list[str]] = []
        self.restored = 0

    @handler
    async def handle(self, words: list[str], ctx: WorkflowContext[str, Any]) -> None:
        self.attempts += 1
        self.seen.append(list(words))
        words.append("changed")
        self.kept.append(self.attempts)
        await ctx.yield_output([self.attempts, list(self.kept), ctx.get_state("attempt")])
        ctx.set_state("attempt", self.attempts)
        await ctx.add_event(WorkflowEvent("told", self.attempts))
        await ctx.send_message(f"sent {self.attempts}")
        if self.attempts <= self.failures:
            await ctx.request_info(f"asked {self.attempts}", str)
            raise ConnectionError(f"attempt {self.attempts}")

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"kept": self.kept}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.restored += 1
        self.kept = state["kept"]


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "in memory"])
async def test_a_failed_attempt_leaves_nothing(durable: bool) -> None:
    flaky = Flaky()
    heard: list[str] = []

    @executor(id="listener")
    async def listener(text: str, ctx: WorkflowContext[str, str]) -> None:
        heard.append(text)
        heard.append(str(ctx.get_state("attempt")))

    result = await chained([flaky, listener], InMemoryCheckpointStorage() if durable else None).run(["x"])

    assert result.get_outputs() == [[3, [3], None]]  # Its state was put back, and shared state not written.
    assert heard == ["sent 3", "3"]
    assert [event.data for event in result if event.type == "told"] == [3]
    assert result.get_request_info_events() == []
    assert result.get_final_state() is WorkflowRunState.IDLE


async def test_each_attempt_gets_a_fresh_copy_of_the_message() -> None:
    flaky = Flaky()
    await alone(flaky).run(["x"])

    assert flaky.seen == [["x"], ["x"], ["x"]]


async def test_each_attempt_but_the_first_begins_with_the_state_before_this_delivery() -> None:
    class Feeder(Executor):
        @handler
        async def feed(self, number: int, ctx: WorkflowContext[list[str]]) -> None:
            for index in range(number):
                await ctx.send_message([f"m{index}"])

    flaky = Flaky(failures=1)
    result = await chained([Feeder("feeder"), flaky]).run(2)

    assert [kept for _, kept, _ in result.get_outputs()] == [[2], [2, 3]]
    assert flaky.restored == 1


async def test_each_retry_is_announced_with_what_went_wrong() -> None:
    result = await alone(Flaky()).run(["x"])

    told = [event for event in result if event.type == "executor_retrying"]
    assert [(event.executor_id, event.details["attempt"], event.details["error"]) for event in told] == [
        ("flaky", 1, "ConnectionError: attempt 1"),
        ("flaky", 2, "ConnectionError: attempt 2"),
    ]
    assert len({event.event_id for event in told}) == 2
    types = types_in(result)
    assert types.count("executor_invoked") == types.count("executor_completed") == 1
    assert "executor_failed" not in types


async def test_the_last_error_ends_the_run_when_the_policy_is_used_up() -> None:
    flaky = Flaky(failures=9, retry=RetryPolicy(initial_wait=0, max_attempts=3))
    stream = alone(flaky).run(["x"], stream=True)
    events = []
    with pytest.raises(ConnectionError, match="attempt 3"):
        async for event in stream:
            events.append(event)  # noqa: PERF401 - those before the error count

    assert types_in(events).count("executor_retrying") == 2
    assert types_in(events).count("executor_failed") == 1


async def test_errors_that_the_policy_does_not_cover_are_not_retried() -> None:
    flaky = Flaky(retry=RetryPolicy(initial_wait=0, retry_on=(ValueError,)))

    with pytest.raises(ConnectionError, match="attempt 1"):
        await alone(flaky).run(["x"])


# --- calls ------------------------------------------------------------------------------------------------------------


async def test_three_model_calls_before_two_failures_are_each_made_once() -> None:
    """The whole of it: an agent's calls, a handler that fails twice and then works."""
    model = ScriptedChatClient("one", "two", "three")
    agent = model.as_agent(name="writer")
    failures = [ConnectionError("first"), ConnectionError("second")]

    class Careful(Executor):
        @handler
        async def write(self, text: str, ctx: WorkflowContext[str, str]) -> None:
            replies = [await ctx.call(self._ask, f"{text} {number}") for number in (1, 2, 3)]
            if failures:
                raise failures.pop(0)
            await ctx.yield_output(" ".join(replies))

        async def _ask(self, text: str) -> str:
            return (await agent.run(text)).text

    result = await alone(Careful("careful", retry=AT_ONCE), InMemoryCheckpointStorage()).run("part")

    assert result.get_outputs() == ["one two three"]
    assert model.texts == ["part 1", "part 2", "part 3"]
    assert types_in(result).count("call_replayed") == 6
    assert result.usage["writer"]["calls"] == 3


async def test_a_call_that_failed_is_made_again_by_the_next_attempt() -> None:
    made: list[int] = []

    def ask() -> str:
        made.append(len(made) + 1)
        if made[-1] < 3:
            raise ConnectionError("busy")
        return "well"

    @executor(id="asker", retry=AT_ONCE)
    async def asker(text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(await ctx.call(ask))

    result = await alone(asker, InMemoryCheckpointStorage()).run("x")

    assert result.get_outputs() == ["well"]
    assert made == [1, 2, 3]


async def test_an_at_most_once_call_that_raised_is_not_made_again_by_a_retry() -> None:
    made: list[str] = []

    def pay() -> str:
        made.append("paid")
        raise ConnectionError("the line went dead")

    @executor(id="payer", retry=AT_ONCE)
    async def payer(text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(await ctx.call(pay, at_most_once=True))

    workflow = alone(payer, InMemoryCheckpointStorage())
    with pytest.raises(CallUndecided):
        await workflow.run("x", run_id="r")
    assert made == ["paid"]

    [event] = (await workflow.run("x", run_id="r")).get_request_info_events()
    done = await workflow.run(responses={str(event.request_id): event.data.done("receipt")})
    assert done.get_outputs() == ["receipt"]
    assert made == ["paid"]


async def test_calls_that_differ_from_one_attempt_to_the_next_are_a_divergence_not_a_retry() -> None:
    attempts: list[int] = []

    @executor(id="fickle", retry=AT_ONCE)
    async def fickle(text: str, ctx: WorkflowContext[str, str]) -> None:
        attempts.append(1)
        await ctx.call(str, len(attempts), key="same")
        raise ConnectionError("busy")

    with pytest.raises(ReplayDivergence):
        await alone(fickle, InMemoryCheckpointStorage()).run("x")
    assert len(attempts) == 2


class Full(InMemoryCheckpointStorage):
    """A disk that is full when the first call is to be recorded."""

    async def _record_call(self, fence: Fence, row: CallRecord, supersedes: Sequence[str]) -> None:
        raise StorageError("the disk", "no space left")


@pytest.mark.parametrize("wrapped", [False, True], ids=["as it is", "wrapped by the handler"])
async def test_a_failure_of_the_storage_is_never_retried(wrapped: bool) -> None:
    made: list[str] = []

    @executor(id="caller", retry=AT_ONCE)
    async def caller(text: str, ctx: WorkflowContext[str, str]) -> None:
        try:
            await ctx.call(made.append, text)
        except StorageError as error:
            if wrapped:
                raise RuntimeError("my own words") from error
            raise

    with pytest.raises(RuntimeError if wrapped else StorageError):
        await alone(caller, Full()).run("x")
    assert made == ["x"]


# --- timeouts ---------------------------------------------------------------------------------------------------------


async def forever(*_: Any) -> None:
    await asyncio.get_running_loop().create_future()


async def test_a_handler_that_takes_too_long_ends_the_run_by_name() -> None:
    @executor(id="slow", timeout=0.01)
    async def slow(text: str, ctx: WorkflowContext[str, str]) -> None:
        await forever()

    with pytest.raises(ExecutorTimeout, match="'slow'"):
        await alone(slow).run("x")


async def test_a_timeout_is_retried_like_any_error() -> None:
    attempts: list[int] = []

    @executor(id="slow", timeout=0.01, retry=AT_ONCE)
    async def slow(text: str, ctx: WorkflowContext[str, str]) -> None:
        attempts.append(1)
        if len(attempts) < 3:
            await forever()
        await ctx.yield_output(text)

    assert (await alone(slow).run("x")).get_outputs() == ["x"]
    assert len(attempts) == 3


async def test_a_timeout_of_the_handlers_own_is_told_apart() -> None:
    @executor(id="impatient", timeout=60)
    async def impatient(text: str, ctx: WorkflowContext[str, str]) -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine") as caught:
        await alone(impatient).run("x")
    assert not isinstance(caught.value, ExecutorTimeout)


async def test_a_thread_that_takes_too_long_is_warned_about_and_not_started_a_second_time() -> None:
    release = threading.Event()
    started: list[str] = []

    @executor(id="stubborn", timeout=0.01, retry=AT_ONCE)
    def stubborn(text: str) -> None:
        started.append(text)
        release.wait(30)

    stream = alone(stubborn).run("x", stream=True)
    events = []
    try:
        with pytest.raises(ExecutorTimeout, match="'stubborn'"):
            async for event in stream:
                events.append(event)  # noqa: PERF401 - those before the error count
    finally:
        release.set()

    [warning] = warnings_in(events)
    assert "thread of executor 'stubborn'" in warning
    assert started == ["x"]


async def test_what_a_late_thread_does_after_its_timeout_reaches_nobody() -> None:
    release, over = threading.Event(), threading.Event()

    @executor(id="late", timeout=0.01)
    def late(text: str, ctx: WorkflowContext[str, str]) -> None:
        release.wait(30)
        ctx.set_state("late", True)
        _ = ctx.send_message("too late")
        over.set()

    storage = InMemoryCheckpointStorage()
    with pytest.raises(ExecutorTimeout):
        await alone(late, storage).run("x", run_id="r")
    release.set()
    await asyncio.to_thread(over.wait, 30)

    latest = await storage.get_latest(run_id="r")
    assert latest is not None
    assert "late" not in latest.state


async def test_a_sync_function_that_raises_is_retried() -> None:
    attempts: list[int] = []

    @executor(id="sync", retry=AT_ONCE)
    def sync(text: str, ctx: WorkflowContext[str, str]) -> None:
        attempts.append(1)
        _ = ctx.yield_output(f"attempt {len(attempts)}")
        if len(attempts) < 2:
            raise OSError("busy")

    assert (await alone(sync).run("x")).get_outputs() == ["attempt 2"]


# --- cancellation and siblings ----------------------------------------------------------------------------------------


async def test_cancelling_a_run_is_not_retried() -> None:
    attempts: list[int] = []
    begun = asyncio.Event()

    @executor(id="waiting", retry=AT_ONCE, timeout=60)
    async def waiting(text: str, ctx: WorkflowContext[str, str]) -> None:
        attempts.append(1)
        begun.set()
        await forever()

    storage = InMemoryCheckpointStorage()
    task = asyncio.ensure_future(alone(waiting, storage).run("x", run_id="r"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len(attempts) == 1
    [info] = await storage.list_runs()
    assert info.state == "CANCELLED"


async def test_cancelling_a_run_that_waits_for_its_next_attempt_ends_it_at_once() -> None:
    attempts: list[int] = []
    failed = asyncio.Event()

    @executor(id="failing", retry=RetryPolicy(initial_wait=100, max_wait=100, max_seconds=1000))
    async def failing(text: str, ctx: WorkflowContext[str, str]) -> None:
        attempts.append(1)
        failed.set()
        raise ConnectionError("busy")

    task = asyncio.ensure_future(alone(failing).run("x"))
    await failed.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(attempts) == 1


async def test_when_an_executor_fails_for_good_its_siblings_are_cancelled_and_awaited() -> None:
    from stepwell import WorkflowBuilder

    left: list[str] = []

    @executor(id="start")
    async def start(text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text)

    @executor(id="patient")
    async def patient(text: str, ctx: WorkflowContext[str, str]) -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            left.append("patient")

    @executor(id="failing", retry=RetryPolicy(initial_wait=0, max_attempts=2))
    async def failing(text: str, ctx: WorkflowContext[str, str]) -> None:
        raise ConnectionError("busy")

    workflow = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, [patient, failing]).build()
    with pytest.raises(ConnectionError):
        await workflow.run("x")
    assert left == ["patient"]


def test_a_timeout_that_is_not_positive_is_refused() -> None:
    with pytest.raises(WorkflowValidationError, match="timeout must be positive"):
        Executor("x", timeout=0)


# --- agents -----------------------------------------------------------------------------------------------------------


async def test_an_agent_whose_turn_broke_off_goes_on_where_it_was() -> None:
    looked_up: list[str] = []

    @tool
    def look_up(city: str) -> str:
        """Look up the weather."""
        looked_up.append(city)
        return "sunny"

    model = ScriptedChatClient([calls("look_up", city="Rome"), ConnectionError("busy"), "It is sunny."])
    agent = model.as_agent(name="guide", tools=[look_up])
    workflow = alone(AgentExecutor(agent, retry=AT_ONCE), InMemoryCheckpointStorage())
    result = await workflow.run("Rome?")

    assert [output.text for output in result.get_outputs()] == ["It is sunny."]
    assert looked_up == ["Rome"]
    assert len(model.asked) == 3  # The first reply was recorded; the call that failed was made again.
    assert [message.text for message in model.asked[2].messages if message.role == "user"] == ["Rome?"]
