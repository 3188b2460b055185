"""One thread commits for everybody: groups, several event loops, cancellation, the end."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Sequence
from contextvars import Context, ContextVar
from typing import Any

import pytest

from stepwell.checkpointing.storage.writer import LARGEST_GROUP, GroupWriter, Ticket, _wake


class Ledger:
    """A medium that writes into a list, one group at a time, and waits for `open` before each."""

    def __init__(self) -> None:
        self.groups: list[list[Any]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.ticks = 0
        self.every: float | None = None
        self.closed = False

    def commit(self, jobs: Sequence[Any]) -> Sequence[Any]:
        self.entered.set()
        self.gate.wait()
        self.groups.append(list(jobs))
        if "break" in jobs:
            raise OSError("the pencil broke")
        return [ValueError(job) if str(job).startswith("bad") else f"{job} written" for job in jobs]

    def pause(self) -> float | None:
        return self.every if self.ticks < 3 else None

    def tick(self) -> None:
        self.ticks += 1

    def close(self) -> None:
        self.closed = True

    @property
    def written(self) -> list[Any]:
        return [job for group in self.groups for job in group]

    async def close_gate(self, writer: GroupWriter) -> asyncio.Task[Any]:
        """Keep the thread busy with one job, so that whatever comes next has to wait."""
        self.gate.clear()
        self.entered.clear()
        first = asyncio.create_task(writer.write("first"))
        await asyncio.sleep(0)
        await asyncio.to_thread(self.entered.wait)
        return first


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
async def writer(ledger: Ledger) -> AsyncIterator[GroupWriter]:
    writer = GroupWriter(ledger, name="test-writer")
    yield writer
    ledger.gate.set()
    await writer.stop()


async def test_a_write_returns_what_the_medium_made_of_it(writer: GroupWriter) -> None:
    assert await writer.write("a") == "a written"


async def test_whatever_waits_is_committed_together(writer: GroupWriter, ledger: Ledger) -> None:
    first = await ledger.close_gate(writer)
    waiting = [asyncio.create_task(writer.write(n)) for n in range(5)]
    await asyncio.sleep(0)
    ledger.gate.set()
    await asyncio.gather(first, *waiting)

    assert ledger.groups == [["first"], [0, 1, 2, 3, 4]]


async def test_a_group_has_a_limit(writer: GroupWriter, ledger: Ledger) -> None:
    first = await ledger.close_gate(writer)
    waiting = [asyncio.create_task(writer.write(n)) for n in range(LARGEST_GROUP + 1)]
    await asyncio.sleep(0)
    ledger.gate.set()
    await asyncio.gather(first, *waiting)

    assert [len(group) for group in ledger.groups] == [1, LARGEST_GROUP, 1]


async def test_a_job_that_fails_fails_alone(writer: GroupWriter, ledger: Ledger) -> None:
    first = await ledger.close_gate(writer)
    waiting = [asyncio.create_task(writer.write(job)) for job in ("a", "bad", "c")]
    await asyncio.sleep(0)
    ledger.gate.set()
    outcomes = await asyncio.gather(first, *waiting, return_exceptions=True)

    assert [str(outcome) for outcome in outcomes] == ["first written", "a written", "bad", "c written"]


async def test_a_medium_that_breaks_fails_its_group_and_serves_the_next(writer: GroupWriter) -> None:
    with pytest.raises(OSError, match="pencil"):
        await writer.write("break")
    assert await writer.write("again") == "again written"


async def test_a_loop_is_woken_once_for_a_whole_group(
    writer: GroupWriter, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    first = await ledger.close_gate(writer)
    waiting = [asyncio.create_task(writer.write(n)) for n in range(50)]
    await asyncio.sleep(0)
    woken: list[str] = []
    original = loop.call_soon_threadsafe

    def counted(callback: Any, *args: Any, **kwargs: Any) -> Any:
        woken.append(callback.__name__)
        return original(callback, *args, **kwargs)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    ledger.gate.set()
    await asyncio.gather(first, *waiting)

    assert woken == ["_wake", "_wake"]


async def test_a_task_goes_on_in_its_own_context(writer: GroupWriter) -> None:
    variable: ContextVar[str] = ContextVar("variable")

    async def program() -> str:
        token = variable.set("mine")
        await writer.write("job")
        variable.reset(token)  # refused in any other context, be it a copy
        return variable.get("nobody's")

    empty = asyncio.get_running_loop().create_task(program(), context=Context())
    assert await asyncio.gather(empty, program()) == ["nobody's", "nobody's"]


async def test_a_task_that_ends_the_program_keeps_no_other_waiting() -> None:
    """Ctrl-C reaches whoever happens to be at work."""
    arrived: list[str] = []

    class Interrupted:
        def arrive(self) -> None:
            raise KeyboardInterrupt

    class Waiting:
        def arrive(self) -> None:
            arrived.append("the other")

    tickets: Any = [Ticket("first"), Ticket("second")]
    tickets[0].future, tickets[1].future = Interrupted(), Waiting()
    with pytest.raises(KeyboardInterrupt):
        _wake(tickets)
    await asyncio.sleep(0)
    assert arrived == ["the other"]


async def test_event_loops_in_several_threads_share_a_writer(writer: GroupWriter, ledger: Ledger) -> None:
    async def many(prefix: str) -> list[Any]:
        return await asyncio.gather(*[writer.write(f"{prefix}{n}") for n in range(20)])

    elsewhere = [asyncio.to_thread(asyncio.run, many(prefix)) for prefix in "abc"]
    results = await asyncio.gather(many("z"), *elsewhere)

    assert [len(result) for result in results] == [20] * 4
    assert len(set(ledger.written)) == 80


async def test_a_cancelled_write_waits_until_it_is_certain(writer: GroupWriter, ledger: Ledger) -> None:
    first = await ledger.close_gate(writer)
    cancelled = asyncio.create_task(writer.write("late"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.sleep(0)
    assert not cancelled.done()

    ledger.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert ledger.written == ["first", "late"]
    await first


async def test_cancelling_twice_changes_nothing(writer: GroupWriter, ledger: Ledger) -> None:
    first = await ledger.close_gate(writer)
    cancelled = asyncio.create_task(writer.write("late"))
    for _ in range(3):
        await asyncio.sleep(0)
        cancelled.cancel()
    await asyncio.sleep(0)
    assert not cancelled.done()

    ledger.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await first


async def test_a_cancelled_write_that_failed_says_so(writer: GroupWriter, ledger: Ledger) -> None:
    first = await ledger.close_gate(writer)
    ticket = writer.submit("bad luck")
    cancelled = asyncio.create_task(ticket.decided())
    await asyncio.sleep(0)
    cancelled.cancel()
    ledger.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await cancelled

    assert isinstance(ticket.outcome, ValueError)
    await first


async def test_stopping_writes_what_is_queued_and_closes_the_medium(ledger: Ledger) -> None:
    writer = GroupWriter(ledger, name="test-stopped-writer")
    first = await ledger.close_gate(writer)
    queued = asyncio.create_task(writer.write("queued"))
    await asyncio.sleep(0)
    stopping = asyncio.create_task(writer.stop())
    await asyncio.sleep(0)
    ledger.gate.set()
    await asyncio.gather(first, queued, stopping)

    assert (ledger.written, ledger.closed) == (["first", "queued"], True)


async def test_the_end_is_heard_of_even_if_the_medium_can_not_be_closed() -> None:
    class Stuck(Ledger):
        def close(self) -> None:
            raise OSError("stuck")

    writer = GroupWriter(Stuck(), name="test-stuck-writer")
    with pytest.raises(OSError, match="stuck"):
        await writer.stop()


async def test_a_job_left_by_someone_who_can_not_wait_is_done(writer: GroupWriter, ledger: Ledger) -> None:
    writer.leave("left")
    await writer.write("next")
    assert ledger.written == ["left", "next"]


async def test_the_medium_is_given_its_time_when_nobody_writes() -> None:
    ledger = Ledger()
    ledger.every = 0.001
    writer = GroupWriter(ledger, name="test-ticking-writer")
    while ledger.ticks < 3:
        await asyncio.sleep(0.001)
    await writer.stop()
    assert (ledger.ticks, ledger.groups, ledger.closed) == (3, [], True)


async def test_a_loop_that_is_gone_disturbs_nobody(writer: GroupWriter, ledger: Ledger) -> None:
    first = await ledger.close_gate(writer)

    def submit_and_leave() -> None:
        async def submit() -> None:
            writer.submit("nobody waits for this")

        asyncio.run(submit())

    await asyncio.to_thread(submit_and_leave)
    ledger.gate.set()
    await first
    assert await writer.write("after") == "after written"


async def test_the_thread_remembers_no_job_that_is_done() -> None:
    class Forgetful(Ledger):
        def commit(self, jobs: Sequence[Any]) -> Sequence[Any]:
            return [None] * len(jobs)

    class Job:
        pass

    writer = GroupWriter(Forgetful(), name="test-forgetful-writer")
    job = Job()
    seen = weakref.ref(job)
    await writer.write(job)
    del job
    gc.collect()

    while seen() is not None:  # until the thread has come round to waiting
        await asyncio.sleep(0.001)
    assert any(thread.name == "test-forgetful-writer" for thread in threading.enumerate()), "it forgot by ending"
    await writer.stop()


async def test_the_thread_does_not_keep_the_process_alive(writer: GroupWriter) -> None:
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "test-writer"]
    assert thread.daemon
