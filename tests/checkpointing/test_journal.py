"""A recorded call is never made again and never handed to another caller; what can't be known is asked of a person."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.checkpointing import CallInDoubt, CallVerdict, InMemoryCheckpointStorage
from stepwell.checkpointing.codec import Codec
from stepwell.checkpointing.journal import (
    CallRecord,
    CallTicket,
    DeliveryScope,
    Journal,
    OnDivergence,
    active_scope,
    add_usage,
    call_function,
    durable_call,
    enclosing_idempotency_key,
    escaped,
    idempotency_key,
)
from stepwell.checkpointing.registry import known_types
from stepwell.checkpointing.storage.protocol import RunLog
from stepwell.errors import (
    CallFailed,
    CallUndecided,
    DuplicateCallKey,
    NotSavable,
    ReplayDivergence,
    UnknownType,
)
from stepwell.testing.storage import exact, opened

SCOPE = "1/desk/0"


class PowerLoss(BaseException):
    """The process is gone."""


@dataclass
class World:
    """What the calls reach: it counts what really happened, whatever the journal says."""

    made: list[Any] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def does(self, what: Any, result: Any = "ok") -> Callable[[CallTicket], Awaitable[Any]]:
        async def act(ticket: CallTicket) -> Any:
            self.made.append(what)
            self.keys.append(ticket.idempotency_key)
            if isinstance(result, BaseException):
                raise result
            return result

        return act


@dataclass
class Program:
    """A run that can be killed and resumed; each attempt is one delivery of one message."""

    storage: InMemoryCheckpointStorage = field(default_factory=InMemoryCheckpointStorage)
    on_divergence: OnDivergence = "error"
    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    run_id: str = "run-1"

    async def attempt(self, handler: Callable[[DeliveryScope], Awaitable[Any]], scope_id: str = SCOPE) -> Any:
        log, journal = await self.journal()
        scope = journal.scope(scope_id, lambda event, _, details: self.events.append((event, details)))
        token = active_scope.set(scope)
        try:
            result = await handler(scope)
            await scope.finish()
            return result
        finally:
            active_scope.reset(token)
            await log.release()

    async def journal(self) -> tuple[RunLog, Journal]:
        log = await opened(self.storage, self.run_id)
        rows = {row.call_id: row for row in log.calls}
        return log, Journal(log, Codec(known_types), self.on_divergence, rows)

    async def rows(self) -> list[str]:
        log, journal = await self.journal()
        await log.release()
        return sorted(row.name for row in journal.rows.values())

    async def decide(self, verdict: Callable[[CallInDoubt], CallVerdict]) -> None:
        log, journal = await self.journal()
        for row in journal.in_doubt():
            doubt = CallInDoubt(row.call_id, row.name, row.request_preview, row.started_at, row.error)
            await journal.decide(row.call_id, verdict(doubt))
        await log.release()

    async def crash(self, handler: Callable[[DeliveryScope], Awaitable[Any]]) -> None:
        with pytest.raises(PowerLoss):
            await self.attempt(handler)

    def replayed(self) -> list[str]:
        return [details["name"] for event, details in self.events if event == "call_replayed"]

    def warnings(self) -> list[str]:
        return [details["message"] for event, details in self.events if event == "warning"]


# --- replay -----------------------------------------------------------------------------------------------------------


async def test_outside_of_a_run_a_call_is_simply_made() -> None:
    world = World()
    assert await durable_call("ask", world.does("a"), key="k", request=1) == "ok"
    assert await durable_call("ask", world.does("a"), key="k", request=1) == "ok"
    assert len(set(world.keys)) == 2


@pytest.mark.parametrize("key", ["k", None], ids=["with a key", "without a key"])
async def test_a_recorded_call_is_not_made_again(key: str | None) -> None:
    program, world = Program(), World()

    async def handler(_: DeliveryScope) -> Any:
        return await durable_call("ask", world.does("a", 42), key=key, request=["q"])

    assert [await program.attempt(handler) for _ in range(3)] == [42, 42, 42]
    assert world.made == ["a"]
    assert program.replayed() == ["ask", "ask"]


@pytest.mark.parametrize("result", [None, (1, {2}), {1: "a"}, Decimal("1.0"), "\ud83d", float("inf"), b"x"])
async def test_a_replayed_result_has_the_type_of_the_first(result: Any) -> None:
    program, world = Program(), World()

    async def handler(scope: DeliveryScope) -> Any:
        return await scope.call("ask", world.does("a", result), key="k", request=None)

    first, second = await program.attempt(handler), await program.attempt(handler)
    assert exact(first) == exact(second) == exact(result)


async def test_the_record_is_durable_before_the_result_reaches_the_program() -> None:
    program, world = Program(), World()

    async def handler(scope: DeliveryScope) -> None:
        await scope.call("ask", world.does("a"), key="k", request=1)
        raise PowerLoss

    await program.crash(handler)
    assert await program.rows() == ["ask"]


async def test_a_call_cut_in_flight_is_made_again_with_the_same_idempotency_key() -> None:
    program, world = Program(), World()

    async def handler(scope: DeliveryScope, result: Any) -> Any:
        return await scope.call("ask", world.does("a", result), key="k", request=1)

    await program.crash(lambda scope: handler(scope, PowerLoss()))
    assert await program.attempt(lambda scope: handler(scope, "ok")) == "ok"
    assert world.made == ["a", "a"]
    assert len(set(world.keys)) == 1


async def test_a_failed_call_is_made_again() -> None:
    program, world = Program(), World()

    async def handler(scope: DeliveryScope, result: Any) -> Any:
        return await scope.call("ask", world.does("a", result), key="k", request=1)

    with pytest.raises(ValueError, match="no"):
        await program.attempt(lambda scope: handler(scope, ValueError("no")))
    assert await program.attempt(lambda scope: handler(scope, "ok")) == "ok"


async def test_a_result_that_can_not_be_saved_is_refused_and_named() -> None:
    program, world = Program(), World()
    with pytest.raises(NotSavable, match=r"the result of ask\[0\]"):
        await program.attempt(lambda scope: scope.call("ask", world.does("a", [print]), key="k", request=1))


async def test_a_recorded_result_whose_type_is_unknown_here_is_refused() -> None:
    program = Program()
    log, journal = await program.journal()
    result = '{"$":"object","t":"gone:Type","v":{}}'
    await journal.record(CallRecord(f"{SCOPE}/k", SCOPE, "ask", "", "ask()", "2026-01-01T00:00:00+00:00", result))
    await log.release()
    with pytest.raises(UnknownType, match="gone:Type"):
        await program.attempt(lambda scope: scope.call("ask", World().does("a"), key="k", request=None))


# --- identity ---------------------------------------------------------------------------------------------------------


async def test_a_key_names_one_call_of_a_delivery() -> None:
    program, world = Program(), World()

    async def handler(scope: DeliveryScope) -> None:
        await scope.call("ask", world.does("a"), key="k", request=1)
        await scope.call("ask", world.does("b"), key="k", request=1)

    with pytest.raises(DuplicateCallKey) as caught:
        await program.attempt(handler)
    assert caught.value.key == "k"
    assert world.made == ["a"]


async def test_equal_calls_without_a_key_are_told_apart_by_their_order() -> None:
    program, world = Program(), World()

    async def handler(scope: DeliveryScope) -> list[Any]:
        return [await scope.call("roll", world.does(n, n), key=None, request=[6]) for n in range(3)]

    assert await program.attempt(handler) == [0, 1, 2]
    assert await program.attempt(handler) == [0, 1, 2]
    assert world.made == [0, 1, 2]


async def test_calls_without_a_key_may_change_their_order() -> None:
    program, world = Program(), World()

    async def handler(scope: DeliveryScope, order: list[str]) -> dict[str, Any]:
        return {name: await scope.call("look", world.does(name, name), key=None, request=[name]) for name in order}

    await program.attempt(lambda scope: handler(scope, ["a", "b", "c"]))
    assert await program.attempt(lambda scope: handler(scope, ["c", "a", "b"])) == {"a": "a", "b": "b", "c": "c"}
    assert world.made == ["a", "b", "c"]


async def test_the_order_of_a_requests_keys_does_not_matter() -> None:
    program, world = Program(), World()
    await program.attempt(lambda scope: scope.call("ask", world.does(1), key=None, request={"a": 1, "b": {2, 1}}))
    await program.attempt(lambda scope: scope.call("ask", world.does(2), key=None, request={"b": {1, 2}, "a": 1}))
    assert world.made == [1]


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), ("1", 1), ([1], (1,)), (b"x", bytearray(b"x"))])
async def test_requests_that_differ_by_type_only_are_different(one: Any, other: Any) -> None:
    program, world = Program(), World()

    async def handler(scope: DeliveryScope) -> list[Any]:
        return [
            await scope.call("ask", world.does(1, "one"), key=None, request=one),
            await scope.call("ask", world.does(2, "other"), key=None, request=other),
        ]

    assert await program.attempt(handler) == await program.attempt(handler) == ["one", "other"]
    assert world.made == [1, 2]


async def test_deliveries_do_not_see_each_others_calls() -> None:
    program, world = Program(), World()
    for scope_id in ("1/desk/0", "1/desk/1", "1/van/0", "2/desk/0", "1/desk/10"):
        await program.attempt(lambda scope: scope.call("ask", world.does("a"), key="k", request=1), scope_id)
    assert len(world.made) == len(set(world.keys)) == 5


KEYS = ["a", "a/b", "a%2Fb", "a%b", "@f(0)#0", "@", "", "a#0", "ä", "\ud83d", "a b"]


async def test_no_two_keys_name_the_same_call() -> None:
    program, world = Program(), World()

    async def handler(scope: DeliveryScope) -> list[Any]:
        return [await scope.call("ask", world.does(key, key), key=key, request=1) for key in KEYS]

    assert await program.attempt(handler) == await program.attempt(handler) == KEYS
    assert len(set(world.keys)) == len(KEYS)


@given(st.text(), st.text())
@settings(max_examples=200)
def test_escaping_keeps_components_apart(one: str, other: str) -> None:
    assert (escaped(one) == escaped(other)) is (one == other)
    assert not {"/", "@"} & set(escaped(one))


@pytest.mark.parametrize("key", ["k", None], ids=["with a key", "without a key"])
async def test_arguments_that_can_not_be_encoded_need_a_key(key: str | None) -> None:
    program, world = Program(), World()

    async def handler(scope: DeliveryScope) -> Any:
        return await scope.call("ask", world.does("a"), key=key, request=[[object()], {}])

    if key is None:
        with pytest.raises(NotSavable, match="pass key="):
            await program.attempt(handler)
        assert world.made == []
    else:
        await program.attempt(handler)
        await program.attempt(handler)
        assert world.made == ["a"]


def test_idempotency_keys_differ_for_every_call_of_every_run() -> None:
    keys = {idempotency_key(run, call) for run in ("a", "b") for call in ("x", "y", "\ud83d")}
    assert len(keys) == 6


# --- calls at once ----------------------------------------------------------------------------------------------------


async def handler_with_workers(scope: DeliveryScope, world: World, order: random.Random, die_after: int) -> Any:
    """Ten workers at once with three calls each, finishing in any order; some of the calls are equal."""

    async def call(worker: int, step: int) -> Any:
        async def act(_: CallTicket) -> Any:
            for _pause in range(order.randrange(4)):
                await asyncio.sleep(0)
            world.made.append((worker, step))
            return f"{worker}/{step}"

        key = f"w{worker}/{step}" if worker % 2 else None
        result = await scope.call("work", act, key=key, request=[worker, step])
        if len(world.made) >= die_after:
            raise PowerLoss
        return result

    async def work(worker: int) -> list[Any]:
        return [await call(worker, step) for step in range(3)]

    workers = list(range(10))
    order.shuffle(workers)
    tasks = {worker: asyncio.create_task(work(worker)) for worker in workers}
    try:
        return {worker: await task for worker, task in tasks.items()}
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values())
        for task in tasks.values():
            with suppress(asyncio.CancelledError):
                task.exception()


@pytest.mark.parametrize("seed", range(15))
async def test_calls_made_at_once_are_never_mis_paired(seed: int) -> None:
    order, program, world = random.Random(seed), Program(), World()
    for die_after in sorted(order.sample(range(1, 30), 3)):
        with suppress(PowerLoss):
            await program.attempt(partial(handler_with_workers, world=world, order=order, die_after=die_after))

    results = await program.attempt(lambda scope: handler_with_workers(scope, world, order, 10_000))

    assert results == {worker: [f"{worker}/{step}" for step in range(3)] for worker in range(10)}
    assert await program.attempt(lambda scope: handler_with_workers(scope, World(), order, 10_000)) == results


async def test_equal_calls_at_once_each_get_a_result_of_their_own() -> None:
    program, world = Program(), World()

    async def handler(scope: DeliveryScope) -> list[Any]:
        calls = [scope.call("draw", world.does(n, n), key=None, request=[]) for n in range(5)]
        return await asyncio.gather(*calls)

    first, second = await program.attempt(handler), await program.attempt(handler)
    assert sorted(first) == sorted(second) == [0, 1, 2, 3, 4]
    assert len(world.made) == 5


# --- divergence -------------------------------------------------------------------------------------------------------


async def recorded(program: Program, world: World, **requests: Any) -> None:
    async def handler(scope: DeliveryScope) -> None:
        for key, request in requests.items():
            await scope.call("ask", world.does(key), key=key, request=request)

    await program.attempt(handler)


async def test_a_key_with_another_request_is_a_divergence_that_names_both() -> None:
    program, world = Program(), World()
    await recorded(program, world, k={"q": "before"})
    with pytest.raises(ReplayDivergence) as caught:
        await program.attempt(lambda scope: scope.call("ask", world.does("new"), key="k", request={"q": "after"}))
    assert (caught.value.recorded, caught.value.requested) == ('{"q":"before"}', '{"q":"after"}')
    assert 'on_divergence="recall"' in str(caught.value)
    assert world.made == ["k"]


async def test_a_recorded_call_that_is_not_asked_for_is_a_divergence() -> None:
    program, world = Program(), World()
    await recorded(program, world, a=1, b=2)
    with pytest.raises(ReplayDivergence, match="b"):
        await program.attempt(lambda scope: scope.call("ask", world.does("a"), key="a", request=1))


async def test_a_call_without_a_key_whose_request_changed_is_a_divergence() -> None:
    program, world = Program(), World()
    await program.attempt(lambda scope: scope.call("ask", world.does("a"), key=None, request=["monday"]))
    with pytest.raises(ReplayDivergence, match="monday"):
        await program.attempt(lambda scope: scope.call("ask", world.does("b"), key=None, request=["tuesday"]))


async def test_a_divergence_elsewhere_is_none_of_this_deliverys() -> None:
    program, world = Program(), World()
    await program.attempt(lambda scope: scope.call("ask", world.does("a"), key="k", request=1), "1/van/0")
    await program.attempt(lambda scope: scope.call("ask", world.does("b"), key="k", request=2))
    assert world.made == ["a", "b"]


async def test_recall_makes_a_changed_call_anew_and_says_so() -> None:
    program, world = Program(), World()
    await recorded(program, world, k="before")
    program.on_divergence = "recall"
    result = await program.attempt(lambda scope: scope.call("ask", world.does("new", "new"), key="k", request="after"))
    assert (result, world.made) == ("new", ["k", "new"])
    assert len(program.warnings()) == 1


async def test_recall_drops_what_is_not_asked_for_any_more() -> None:
    program, world = Program(), World()
    await recorded(program, world, a=1, b=2)
    program.on_divergence = "recall"
    await program.attempt(lambda scope: scope.call("ask", world.does("a"), key="a", request=1))
    assert world.made == ["a", "b"]
    assert "1 recorded call(s)" in program.warnings()[0]
    program.on_divergence = "error"
    await program.attempt(lambda scope: scope.call("ask", world.does("a"), key="a", request=1))


async def test_recall_keeps_the_calls_that_were_asked_for_before_it() -> None:
    program, world = Program(), World()
    await recorded(program, world, a=1, b=2, c=3)
    program.on_divergence = "recall"

    async def handler(scope: DeliveryScope) -> None:
        await scope.call("ask", world.does("a"), key="a", request=1)
        await scope.call("ask", world.does("b again"), key="b", request="changed")
        await scope.call("ask", world.does("c again"), key="c", request=3)

    await program.attempt(handler)
    assert world.made == ["a", "b", "c", "b again", "c again"]


# --- calls inside of calls --------------------------------------------------------------------------------------------


def nesting(world: World, *, inner_keys: tuple[str, ...] = ("x", "y"), die: str | None = None) -> Any:
    async def handler(scope: DeliveryScope) -> Any:
        async def outer(_: CallTicket) -> list[Any]:
            world.made.append("outer")
            results = []
            for key in inner_keys:
                results.append(await durable_call(f"inner {key}", world.does(key, key), key=key, request=key))
                if die == key:
                    raise PowerLoss
            return results

        return await scope.call("outer", outer, key="o", request=1)

    return handler


async def test_a_call_answers_for_those_inside_it() -> None:
    program, world = Program(), World()
    assert await program.attempt(nesting(world)) == ["x", "y"]
    assert await program.rows() == ["outer"]
    assert await program.attempt(nesting(world)) == ["x", "y"]
    assert world.made == ["outer", "x", "y"]


async def test_calls_inside_one_that_was_cut_off_are_not_made_again() -> None:
    program, world = Program(), World()
    await program.crash(nesting(world, die="x"))
    assert await program.rows() == ["inner x"]
    assert await program.attempt(nesting(world)) == ["x", "y"]
    assert world.made == ["outer", "x", "outer", "y"]


async def test_equal_keys_inside_of_different_calls_are_different_calls() -> None:
    program, world = Program(), World()

    async def handler(scope: DeliveryScope) -> list[Any]:
        async def outer(name: str) -> Any:
            async def act(_: CallTicket) -> Any:
                return await durable_call("inner", world.does(name, name), key="x", request=1)

            return await scope.call("outer", act, key=name, request=1)

        return list(await asyncio.gather(outer("a"), outer("b")))

    assert await program.attempt(handler) == await program.attempt(handler) == ["a", "b"]
    assert sorted(world.made) == ["a", "b"]


async def test_a_call_after_another_is_not_inside_it() -> None:
    program, world = Program(), World()

    async def handler(scope: DeliveryScope) -> None:
        await scope.call("first", world.does("first"), key="first", request=1)
        assert enclosing_idempotency_key() is None
        await scope.call("second", world.does("second"), key="second", request=1)

    await program.attempt(handler)
    assert await program.rows() == ["first", "second"]


async def test_calls_inside_that_are_no_longer_made_are_mentioned() -> None:
    program, world = Program(), World()
    await program.crash(nesting(world, die="x"))
    assert await program.attempt(nesting(world, inner_keys=("z",))) == ["z"]
    assert "no longer makes 1 call(s)" in program.warnings()[0]
    assert await program.rows() == ["outer"]


async def test_the_call_being_made_knows_its_key() -> None:
    program, seen = Program(), []

    async def act(ticket: CallTicket) -> None:
        seen.append((ticket.run_id, ticket.idempotency_key == enclosing_idempotency_key()))

    await program.attempt(lambda scope: scope.call("ask", act, key="k", request=1))
    assert seen == [("run-1", True)]


# --- at most once -----------------------------------------------------------------------------------------------------


def paying(world: World, result: Any = "paid") -> Any:
    async def handler(scope: DeliveryScope) -> Any:
        return await scope.call("pay", world.does("pay", result), key="k", request=["7 EUR"], at_most_once=True)

    return handler


async def test_an_at_most_once_call_is_replayed_like_any_other() -> None:
    program, world = Program(), World()
    assert [await program.attempt(paying(world)) for _ in range(2)] == ["paid", "paid"]
    assert world.made == ["pay"]


@pytest.mark.parametrize("ending", [PowerLoss(), asyncio.CancelledError()], ids=["killed", "cancelled"])
async def test_an_at_most_once_call_cut_off_is_in_doubt_and_not_made_again(ending: BaseException) -> None:
    program, world = Program(), World()
    with pytest.raises(type(ending)):
        await program.attempt(paying(world, ending))
    with pytest.raises(CallUndecided, match="CallInDoubt"):
        await program.attempt(paying(world))
    assert world.made == ["pay"]


async def test_an_at_most_once_call_that_raised_is_in_doubt_too_and_says_why() -> None:
    program, world = Program(), World()
    with pytest.raises(TimeoutError):
        await program.attempt(paying(world, TimeoutError("no answer")))
    log, journal = await program.journal()
    [row] = journal.in_doubt()
    await log.release()
    assert (row.name, row.request_preview, row.error) == ("pay", '["7 EUR"]', "TimeoutError: no answer")


async def test_an_at_most_once_call_whose_result_can_not_be_saved_is_in_doubt() -> None:
    program, world = Program(), World()
    with pytest.raises(NotSavable):
        await program.attempt(paying(world, object()))
    with pytest.raises(CallUndecided):
        await program.attempt(paying(world))


async def test_a_person_may_say_that_it_was_done() -> None:
    program, world = Program(), World()
    await program.crash(paying(world, PowerLoss()))
    await program.decide(lambda doubt: doubt.done(("receipt", 7)))
    assert await program.attempt(paying(world)) == ("receipt", 7)
    assert world.made == ["pay"]


async def test_a_person_may_say_that_it_may_be_made_again() -> None:
    program, world = Program(), World()
    await program.crash(paying(world, PowerLoss()))
    await program.decide(lambda doubt: doubt.retry())
    assert await program.attempt(paying(world)) == "paid"
    assert await program.attempt(paying(world)) == "paid"
    assert world.made == ["pay", "pay"]
    assert len(set(world.keys)) == 1


async def test_a_second_try_that_is_cut_off_is_in_doubt_again() -> None:
    program, world = Program(), World()
    await program.crash(paying(world, PowerLoss()))
    await program.decide(lambda doubt: doubt.retry())
    await program.crash(paying(world, PowerLoss()))
    with pytest.raises(CallUndecided):
        await program.attempt(paying(world))
    assert world.made == ["pay", "pay"]


async def test_a_person_may_say_that_it_failed() -> None:
    program, world = Program(), World()
    await program.crash(paying(world, PowerLoss()))
    await program.decide(lambda doubt: doubt.fail("the bank says no"))
    for _ in range(2):
        with pytest.raises(CallFailed) as caught:
            await program.attempt(paying(world))
        assert caught.value.reason == "the bank says no"
    assert world.made == ["pay"]


async def test_calls_recorded_inside_one_in_doubt_are_not_made_again_when_it_is_retried() -> None:
    program, world = Program(), World()

    async def handler(scope: DeliveryScope, *, die: bool) -> Any:
        async def outer(_: CallTicket) -> Any:
            result = await durable_call("inner", world.does("inner"), key="x", request=1)
            if die:
                raise PowerLoss
            return result

        return await scope.call("outer", outer, key="o", request=1, at_most_once=True)

    await program.crash(lambda scope: handler(scope, die=True))
    await program.decide(lambda doubt: doubt.retry())
    await program.attempt(lambda scope: handler(scope, die=False))
    assert world.made == ["inner"]


@pytest.mark.parametrize(
    "value",
    [
        CallInDoubt("c", "pay", "[7]", "now", "boom"),
        CallVerdict("done", result=(1, {2})),
        CallVerdict("fail", reason="no"),
    ],
    ids=["the question", "done", "failed"],
)
def test_questions_and_verdicts_can_be_saved(value: Any) -> None:
    text = Codec().encode_text(value)
    assert '"t":"stepwell:Call' in text
    assert exact(Codec().decode_text(text, strict=True)) == exact(value)


# --- usage ------------------------------------------------------------------------------------------------------------


def tokens(count: int, who: str = "writer") -> Callable[[Any], Mapping[str, Mapping[str, float]]]:
    return lambda _: {who: {"tokens": count, "calls": 1}}


async def total_usage(program: Program) -> Mapping[str, Mapping[str, float]]:
    log, journal = await program.journal()
    await log.release()
    return add_usage({}, journal.usage())


async def test_usage_is_kept_with_the_call_and_counted_once() -> None:
    program, world = Program(), World()

    async def handler(scope: DeliveryScope) -> None:
        await scope.call("ask", world.does(1), key="a", request=1, usage=tokens(3))
        await scope.call("ask", world.does(2), key="b", request=1, usage=tokens(4))

    await program.attempt(handler)
    await program.attempt(handler)
    assert await total_usage(program) == {"writer": {"tokens": 7, "calls": 2}}


async def test_usage_inside_of_a_call_is_not_lost_when_the_call_ends() -> None:
    program, world = Program(), World()

    async def outer(_: CallTicket) -> Any:
        await durable_call("model", world.does(1), key="x", request=1, usage=tokens(5, "helper"))
        return await durable_call("model", world.does(2), key="y", request=1, usage=tokens(2))

    async def handler(scope: DeliveryScope) -> Any:
        return await scope.call("tool", outer, key="o", request=1, usage=tokens(1))

    await program.attempt(handler)
    assert await total_usage(program) == {"writer": {"tokens": 3, "calls": 2}, "helper": {"tokens": 5, "calls": 1}}


def test_adding_usage_changes_neither_side() -> None:
    total, more = {"a": {"tokens": 1.0}}, {"a": {"tokens": 2.0, "calls": 1.0}, "b": {"calls": 1.0}}
    assert add_usage(total, [more, more]) == {"a": {"tokens": 5.0, "calls": 2.0}, "b": {"calls": 2.0}}
    assert total == {"a": {"tokens": 1.0}}


# --- functions --------------------------------------------------------------------------------------------------------


async def test_a_sync_function_runs_in_a_thread_and_an_async_one_here() -> None:
    async def here() -> int:
        return threading.get_ident()

    assert await call_function(threading.get_ident, (), {}) != threading.get_ident()
    assert await call_function(here, (), {}) == threading.get_ident()


async def test_a_sync_function_that_returns_an_awaitable_is_awaited() -> None:
    async def later(x: int) -> int:
        return x + 1

    assert await call_function(lambda x: later(x), (1,), {}) == 2
