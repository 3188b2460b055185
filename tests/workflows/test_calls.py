"""`ctx.call`: what was recorded is not done again, and what is in doubt is asked about."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from stepwell import (
    CallFailed,
    CallInDoubt,
    DuplicateCallKey,
    InMemoryCheckpointStorage,
    NotSavable,
    ReplayDivergence,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunResult,
    WorkflowRunState,
    executor,
    handler,
    response_handler,
)
from stepwell.checkpointing.journal import CallTicket, durable_call
from tests.workflows.parts import Asker, ObservedStorage, PowerLoss, Relay, alone, only_request, types_in, warnings_in


@dataclass
class Desk:
    """Answers questions, remembers each one, and loses power when told to."""

    asked: list[str] = field(default_factory=list)
    fails_at: str | None = None

    async def ask(self, question: str) -> str:
        self.asked.append(question)
        if question == self.fails_at:
            raise PowerLoss(question)
        return f"{question}! ({len(self.asked)})"


def working(desk: Desk, questions: list[str], storage: Any, **options: Any) -> Workflow:
    """One executor that asks these questions, one after the other."""

    @executor(id="worker")
    async def work(message: str, ctx: WorkflowContext[Any, list[str]]) -> None:
        await ctx.yield_output([await ctx.call(desk.ask, question, **options) for question in questions])

    return alone(work, storage)


async def interrupted(desk: Desk, questions: list[str], storage: Any, **options: Any) -> None:
    """A run `r` that loses power at its last question; the desk works again afterwards."""
    desk.fails_at = questions[-1]
    with pytest.raises(PowerLoss):
        await working(desk, questions, storage, **options).run("go", run_id="r")
    desk.fails_at = None


# --- replay -----------------------------------------------------------------------------------------------------------


async def test_a_recorded_call_is_never_made_again() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    await interrupted(desk, ["plan", "code", "review"], storage)
    result = await working(desk, ["plan", "code", "review"], storage).run(run_id="r")
    assert desk.asked == ["plan", "code", "review", "review"]
    assert result.get_outputs() == [["plan! (1)", "code! (2)", "review! (4)"]]


async def test_a_replayed_call_is_announced() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    await interrupted(desk, ["plan", "code", "review"], storage)
    result = await working(desk, ["plan", "code", "review"], storage).run(run_id="r")
    replayed = [event for event in result if event.type == "call_replayed"]
    assert [(event.executor_id, event.details["name"]) for event in replayed] == [("worker", "Desk.ask")] * 2
    assert len({event.event_id for event in replayed}) == 2


async def test_a_call_is_recorded_before_its_result_reaches_the_handler() -> None:
    storage = ObservedStorage()

    def now() -> int:
        return 1

    @executor(id="worker")
    async def work(message: str, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.call(now)
        assert "call now" in storage.diary[-1]

    await alone(work, storage).run("x")


async def test_equal_calls_are_told_apart_by_their_order() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    questions = ["roll", "roll", "stop"]
    await interrupted(desk, questions, storage)
    result = await working(desk, questions, storage).run(run_id="r")
    assert result.get_outputs() == [["roll! (1)", "roll! (2)", "stop! (4)"]]


async def test_results_keep_their_types() -> None:
    storage, broken = InMemoryCheckpointStorage(), True

    async def measure() -> dict[int, tuple[str, ...]]:
        return {1: ("a",)}

    @executor(id="worker")
    async def work(message: str, ctx: WorkflowContext[Any, Any]) -> None:
        result = await ctx.call(measure)
        if broken:
            raise PowerLoss
        await ctx.yield_output(result)

    workflow = alone(work, storage)
    with pytest.raises(PowerLoss):
        await workflow.run("x", run_id="r")
    broken = False
    assert (await workflow.run(run_id="r")).get_outputs() == [{1: ("a",)}]


async def test_a_failed_call_is_made_again() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    await interrupted(desk, ["only"], storage)
    await working(desk, ["only"], storage).run(run_id="r")
    assert desk.asked == ["only", "only"]


async def test_calls_of_a_finished_superstep_are_forgotten() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    await working(desk, ["plan"], storage).run("go", run_id="r")
    await working(desk, ["plan"], storage).run("go on", run_id="r")
    assert desk.asked == ["plan", "plan"]


async def test_without_a_storage_calls_are_simply_made() -> None:
    desk = Desk()
    assert (await working(desk, ["plan"], None).run("go")).get_outputs() == [["plan! (1)"]]


async def test_sync_functions_run_in_a_thread_and_are_recorded() -> None:
    threads: list[threading.Thread] = []
    storage, broken = InMemoryCheckpointStorage(), True

    def now() -> str:
        threads.append(threading.current_thread())
        return "noon"

    @executor(id="worker")
    async def work(message: str, ctx: WorkflowContext[Any, Any]) -> None:
        time = await ctx.call(now)
        if broken:
            raise PowerLoss
        await ctx.yield_output(time)

    workflow = alone(work, storage)
    with pytest.raises(PowerLoss):
        await workflow.run("x", run_id="r")
    broken = False
    assert (await workflow.run(run_id="r")).get_outputs() == ["noon"]
    assert len(threads) == 1
    assert threads != [threading.main_thread()]


async def test_a_call_inside_a_call_is_replayed_too() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()

    @executor(id="worker")
    async def work(message: str, ctx: WorkflowContext[Any, Any]) -> None:
        async def outer() -> list[str]:
            return [await ctx.call(desk.ask, "inner"), await ctx.call(desk.ask, "last")]

        await ctx.yield_output(await ctx.call(outer))

    workflow = alone(work, storage)
    desk.fails_at = "last"
    with pytest.raises(PowerLoss):
        await workflow.run("x", run_id="r")
    desk.fails_at = None
    assert (await workflow.run(run_id="r")).get_outputs() == [["inner! (1)", "last! (3)"]]


# --- never mis-paired -------------------------------------------------------------------------------------------------


async def test_concurrent_calls_of_two_executors_are_never_swapped() -> None:
    storage = InMemoryCheckpointStorage()
    made: list[str] = []
    turn = {"a": asyncio.Event(), "b": asyncio.Event()}
    broken = True

    def member(name: str) -> Any:
        @executor(id=name)
        async def work(message: str, ctx: WorkflowContext[Any, Any]) -> None:
            async def ask(question: str) -> str:
                await turn[name].wait()
                made.append(name)
                return f"for {name}"

            answer = await ctx.call(ask, "same question")
            turn["b" if name == "a" else "a"].set()
            if broken:
                await asyncio.Event().wait() if name != last else None
                raise PowerLoss
            await ctx.yield_output((name, answer))

        return work

    start, a, b = Relay("start"), member("a"), member("b")
    workflow = (
        WorkflowBuilder(start_executor=start, checkpoint_storage=storage).add_fan_out_edges(start, [a, b]).build()
    )
    last = "a"
    turn["b"].set()
    with pytest.raises(PowerLoss):
        await workflow.run("x", run_id="r")
    assert made == ["b", "a"]
    broken = False
    result = await workflow.run(run_id="r")
    assert result.get_outputs() == [("a", "for a"), ("b", "for b")]
    assert made == ["b", "a"]


async def test_concurrent_calls_of_one_handler_are_never_swapped() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    order = ["x", "y", "z"]
    broken = True

    @executor(id="worker")
    async def work(message: str, ctx: WorkflowContext[Any, Any]) -> None:
        answers = await asyncio.gather(*(ctx.call(desk.ask, question) for question in order))
        if broken:
            raise PowerLoss
        await ctx.yield_output(dict(zip(order, answers, strict=True)))

    workflow = alone(work, storage)
    with pytest.raises(PowerLoss):
        await workflow.run("go", run_id="r")
    broken, order[:] = False, ["z", "x", "y"]
    assert (await workflow.run(run_id="r")).get_outputs() == [{"x": "x! (1)", "y": "y! (2)", "z": "z! (3)"}]


class Chair(Asker):
    """Asks first; later gets the list of a fan-in. Calls the same function for the list and for the answer."""

    desk = Desk()
    is_broken = True

    @handler
    async def gather(self, texts: list[str], ctx: WorkflowContext[str, str]) -> None:
        answer = await ctx.call(Chair.desk.ask, "question")
        if Chair.is_broken:
            raise PowerLoss
        await ctx.yield_output(f"list: {answer}")

    @response_handler
    async def answered(self, question: str, answer: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"answer: {await ctx.call(Chair.desk.ask, 'question')}")


async def test_an_answer_that_arrives_for_a_cut_off_superstep_does_not_shift_its_calls() -> None:
    storage, start, a, b, chair = InMemoryCheckpointStorage(), Relay("start"), Relay("a"), Relay("b"), Chair("chair")
    builder = WorkflowBuilder(start_executor=start, checkpoint_storage=storage)
    builder.add_fan_out_edges(start, [a, b]).add_edge(start, chair).add_fan_in_edges([a, b], chair)
    workflow = builder.build()
    with pytest.raises(PowerLoss):
        await workflow.run("x", run_id="r")
    Chair.is_broken = False
    [info] = await storage.list_runs()
    [pending] = info.pending_requests
    result = await workflow.run(run_id="r", responses={pending.request_id: "yes"})
    assert sorted(result.get_outputs()) == ["answer: question! (2)", "list: question! (1)"]
    assert Chair.desk.asked == ["question", "question"]


# --- keys and divergence ----------------------------------------------------------------------------------------------


async def test_a_keyed_call_is_known_by_its_key() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    await interrupted(desk, ["plan", "code"], storage)
    with pytest.raises(ReplayDivergence):
        await working(desk, ["something else", "code"], storage).run(run_id="r")


def keyed(desk: Desk, question: str, storage: Any) -> Workflow:
    @executor(id="worker")
    async def work(message: str, ctx: WorkflowContext[Any, Any]) -> None:
        answer = await ctx.call(desk.ask, question, key="step")
        await ctx.call(desk.ask, "end", key="end")
        await ctx.yield_output(answer)

    return alone(work, storage)


async def keyed_and_interrupted(desk: Desk, storage: Any) -> None:
    desk.fails_at = "end"
    with pytest.raises(PowerLoss):
        await keyed(desk, "old prompt", storage).run("go", run_id="r")
    desk.fails_at = None


async def test_a_changed_request_under_a_key_diverges_and_names_both_before_anything_is_called() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    await keyed_and_interrupted(desk, storage)
    before = list(desk.asked)
    with pytest.raises(ReplayDivergence) as divergence:
        await keyed(desk, "new prompt", storage).run(run_id="r")
    assert "old prompt" in divergence.value.recorded
    assert "new prompt" in divergence.value.requested
    assert 'on_divergence="recall"' in str(divergence.value)
    assert desk.asked == before


async def test_recall_drops_what_diverged_with_a_warning_and_calls_anew() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    await keyed_and_interrupted(desk, storage)
    result = await keyed(desk, "new prompt", storage).run(run_id="r", on_divergence="recall")
    assert result.get_outputs() == ["new prompt! (3)"]
    [warning] = warnings_in(result)
    assert "1 recorded call(s)" in warning
    assert "made anew (on_divergence='recall')" in warning


async def test_recorded_calls_that_are_not_made_any_more_diverge_before_the_checkpoint() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    await interrupted(desk, ["plan", "code"], storage)
    before = await storage.list_checkpoint_ids()
    with pytest.raises(ReplayDivergence, match="nothing: the handler ended without making this call"):
        await working(desk, [], storage).run(run_id="r")
    assert await storage.list_checkpoint_ids() == before


async def test_recall_lets_a_mended_handler_leave_calls_out() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    await interrupted(desk, ["plan", "code"], storage)
    result = await working(desk, [], storage).run(run_id="r", on_divergence="recall")
    assert (result.get_outputs(), len(warnings_in(result))) == ([[]], 1)


async def test_a_key_names_one_call() -> None:
    desk = Desk()
    with pytest.raises(DuplicateCallKey, match="two calls with key='k' for one message"):
        await working(desk, ["a", "b"], InMemoryCheckpointStorage(), key="k").run("go")


async def test_arguments_that_can_not_be_encoded_need_a_key() -> None:
    lock = threading.Lock()

    def use(thing: Any) -> str:
        return "used"

    def workflow(key: str | None) -> Workflow:
        @executor(id="worker")
        async def work(message: str, ctx: WorkflowContext[Any, Any]) -> None:
            await ctx.yield_output(await ctx.call(use, lock, key=key))

        return alone(work, InMemoryCheckpointStorage())

    with pytest.raises(NotSavable, match="pass key=… to name this call of use yourself"):
        await workflow(None).run("x")
    assert (await workflow("k").run("x")).get_outputs() == ["used"]


# --- at most once -----------------------------------------------------------------------------------------------------


async def in_doubt(desk: Desk, storage: Any) -> tuple[WorkflowRunResult, str, CallInDoubt]:
    """A payment was cut off; the resume asks about it."""
    await interrupted(desk, ["pay"], storage, at_most_once=True)
    asked = await working(desk, ["pay"], storage, at_most_once=True).run(run_id="r")
    [event] = asked.get_request_info_events()
    return asked, str(event.request_id), event.data


async def test_a_call_in_doubt_is_asked_about_before_anything_runs() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    asked, _, doubt = await in_doubt(desk, storage)
    assert asked.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    assert "executor_invoked" not in types_in(asked)
    assert (doubt.name, doubt.error, desk.asked) == ("Desk.ask", "PowerLoss: pay", ["pay"])


async def test_a_call_in_doubt_is_asked_about_again_until_it_is_decided() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    _, request_id, _ = await in_doubt(desk, storage)
    again = await working(desk, ["pay"], storage, at_most_once=True).run(run_id="r")
    assert await only_request(again) == request_id
    assert desk.asked == ["pay"]


async def test_done_gives_the_program_the_result_without_calling() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    _, request_id, doubt = await in_doubt(desk, storage)
    workflow = working(desk, ["pay"], storage, at_most_once=True)
    result = await workflow.run(responses={request_id: doubt.done("paid by hand")})
    assert (result.get_outputs(), desk.asked) == ([["paid by hand"]], ["pay"])


async def test_retry_makes_the_call_again() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    _, request_id, doubt = await in_doubt(desk, storage)
    workflow = working(desk, ["pay"], storage, at_most_once=True)
    result = await workflow.run(responses={request_id: doubt.retry()})
    assert (result.get_outputs(), desk.asked) == ([["pay! (2)"]], ["pay", "pay"])


async def test_fail_raises_in_the_program_with_the_reason() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    _, request_id, doubt = await in_doubt(desk, storage)
    workflow = working(desk, ["pay"], storage, at_most_once=True)
    with pytest.raises(CallFailed, match="was declared failed by a person: card expired"):
        await workflow.run(responses={request_id: doubt.fail("card expired")})
    assert desk.asked == ["pay"]


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [({"kind": "retry"}, [["pay! (2)"]]), ({"kind": "done", "result": "by hand"}, [["by hand"]])],
    ids=["retry", "done"],
)
async def test_a_verdict_can_be_given_as_json_without_the_program(verdict: Any, expected: Any) -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    _, request_id, _ = await in_doubt(desk, storage)
    await storage.answer(request_id, verdict)
    result = await working(desk, ["pay"], storage, at_most_once=True).run(run_id="r")
    assert result.get_outputs() == expected


async def test_a_retried_call_that_is_cut_off_again_is_asked_about_again() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    _, request_id, doubt = await in_doubt(desk, storage)
    workflow = working(desk, ["pay"], storage, at_most_once=True)
    desk.fails_at = "pay"
    with pytest.raises(PowerLoss):
        await workflow.run(responses={request_id: doubt.retry()})
    again = await workflow.run(run_id="r")
    assert [type(event.data) for event in again.get_request_info_events()] == [CallInDoubt]
    assert desk.asked == ["pay", "pay"]


async def test_a_finished_at_most_once_call_is_replayed_without_asking() -> None:
    desk, storage, broken = Desk(), InMemoryCheckpointStorage(), True

    @executor(id="worker")
    async def work(message: str, ctx: WorkflowContext[Any, Any]) -> None:
        receipt = await ctx.call(desk.ask, "pay", at_most_once=True)
        if broken:
            raise PowerLoss
        await ctx.yield_output(receipt)

    workflow = alone(work, storage)
    with pytest.raises(PowerLoss):
        await workflow.run("go", run_id="r")
    broken = False
    assert ((await workflow.run(run_id="r")).get_outputs(), desk.asked) == (["pay! (1)"], ["pay"])


async def test_a_branch_has_no_calls_in_doubt() -> None:
    desk, storage = Desk(), InMemoryCheckpointStorage()
    await in_doubt(desk, storage)
    latest = await storage.get_latest(run_id="r")
    assert latest is not None
    workflow = working(desk, ["pay"], storage, at_most_once=True)
    assert (await workflow.run(checkpoint_id=latest.checkpoint_id, branch=True)).get_outputs() == [["pay! (2)"]]


# --- idempotency keys and usage ---------------------------------------------------------------------------------------


async def test_a_call_that_is_made_again_has_the_same_idempotency_key_and_others_have_their_own() -> None:
    keys: list[str] = []
    storage, broken = InMemoryCheckpointStorage(), True

    @executor(id="worker")
    async def work(message: str, ctx: WorkflowContext[Any, Any]) -> None:
        def pay(what: str) -> None:
            keys.append(ctx.idempotency_key)
            if broken and what == "b":
                raise PowerLoss

        keys.append(ctx.idempotency_key)
        await ctx.call(pay, "a")
        await ctx.call(pay, "b")

    workflow = alone(work, storage)
    with pytest.raises(PowerLoss):
        await workflow.run("go", run_id="r")
    broken = False
    await workflow.run(run_id="r")
    delivery, first, second, delivery_again, second_again = keys
    assert (delivery, second) == (delivery_again, second_again)
    assert len({delivery, first, second}) == 3


async def test_two_runs_have_different_idempotency_keys() -> None:
    keys: list[str] = []

    @executor(id="worker")
    async def work(message: str, ctx: WorkflowContext[Any, Any]) -> None:
        keys.append(ctx.idempotency_key)

    workflow = alone(work, InMemoryCheckpointStorage())
    await workflow.run("go", run_id="one")
    await workflow.run("go", run_id="two")
    assert len(set(keys)) == 2


def five_tokens(_: Any) -> dict[str, dict[str, float]]:
    return {"ann": {"tokens": 5}}


async def test_usage_is_counted_once_even_if_its_call_is_replayed() -> None:
    storage, broken = InMemoryCheckpointStorage(), True

    async def model(_: CallTicket) -> str:
        return "text"

    @executor(id="worker")
    async def work(message: str, ctx: WorkflowContext[Any, Any]) -> None:
        for number in range(2):
            await durable_call(
                "model", model, key=f"model/{number}", request=number, usage=lambda _: {"ann": {"tokens": 5}}
            )
        if broken:
            raise PowerLoss

    workflow = alone(work, storage)
    with pytest.raises(PowerLoss):
        await workflow.run("go", run_id="r")
    broken = False
    result = await workflow.run(run_id="r")
    [info] = await storage.list_runs()
    assert (result.usage, info.usage) == ({"ann": {"tokens": 10}}, {"ann": {"tokens": 10}})


async def test_usage_adds_up_over_supersteps_and_turns() -> None:
    async def model(_: CallTicket) -> str:
        return "text"

    @executor(id="worker")
    async def work(message: str, ctx: WorkflowContext[Any, Any]) -> None:
        await durable_call("model", model, key="model", request=1, usage=five_tokens)

    workflow = alone(work, InMemoryCheckpointStorage())
    await workflow.run("one", run_id="r")
    assert (await workflow.run("two", run_id="r")).usage == {"ann": {"tokens": 10}}
