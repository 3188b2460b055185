"""Questions to the outside: they pause, survive, are answered once, and the answer has the type that was asked for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from stepwell import (
    AlreadyAnswered,
    DuplicateRequest,
    Executor,
    InMemoryCheckpointStorage,
    InvalidRunArguments,
    ResponseTypeMismatch,
    UnknownRequest,
    UnknownRun,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    handler,
    response_handler,
)
from tests.workflows.parts import (
    Asker,
    FailingStorage,
    PowerLoss,
    Relay,
    alone,
    asking,
    checkpoints_of,
    only_request,
    request_ids,
    state_of,
)

IDLE = WorkflowRunState.IDLE
WAITING = WorkflowRunState.IDLE_WITH_PENDING_REQUESTS


@dataclass
class Address:
    street: str
    number: int


@dataclass
class Verdict:
    approved: bool
    note: str = ""
    address: Address | None = None


class Form(BaseModel):
    name: str
    age: int


class Desk(Executor):
    """Asks for one of several kinds of answers, and yields what it got."""

    KINDS: ClassVar[dict[str, Any]] = {
        "verdict": Verdict,
        "form": Form,
        "number": int,
        "words": list[str],
        "either": str | int,
        "maybe": str | None,
    }

    @handler
    async def ask(self, kind: str, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.request_info({"kind": kind}, self.KINDS[kind])

    @response_handler
    async def verdict(self, question: dict[str, str], answer: Verdict, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.yield_output(answer)

    @response_handler
    async def form(self, question: dict[str, str], answer: Form, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.yield_output(answer)

    @response_handler
    async def words(self, question: dict[str, str], answer: list[str], ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.yield_output(answer)

    @response_handler
    async def either(self, question: dict[str, str], answer: str | int, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.yield_output(answer)

    @response_handler
    async def nothing(self, question: dict[str, str], answer: str | None, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.yield_output(answer)


def desk(storage: InMemoryCheckpointStorage | None = None) -> Workflow:
    return alone(lambda: Desk("desk"), storage)


def two_askers(storage: InMemoryCheckpointStorage | None = None) -> Workflow:
    slots = [lambda: Relay("start"), lambda: Asker("a"), lambda: Asker("b")]
    builder = WorkflowBuilder(start_executor=slots[0], checkpoint_storage=storage)
    return builder.add_fan_out_edges(slots[0], slots[1:]).build()


# --- pausing ----------------------------------------------------------------------------------------------------------


async def test_a_request_pauses_the_run() -> None:
    storage = InMemoryCheckpointStorage()
    result = await asking(storage).run("tea", run_id="r")
    assert (result.get_final_state(), result.get_outputs()) == (WAITING, [])
    assert await state_of(storage, "r") == "IDLE_WITH_PENDING_REQUESTS"


async def test_the_event_says_who_asks_what_and_for_which_type() -> None:
    result = await asking(InMemoryCheckpointStorage()).run("tea", run_id="r")
    [event] = result.get_request_info_events()
    assert (event.data, event.source_executor_id, event.executor_id) == ("tea?", "asker", "asker")
    assert (event.request_type, event.response_type, event.run_id) == (str, str, "r")


async def test_the_request_id_is_derived_so_that_a_replay_keeps_it() -> None:
    storage = FailingStorage(at=2)
    workflow = asking(storage)
    with pytest.raises(PowerLoss):
        await workflow.run("tea", run_id="r")
    replayed = request_ids(await workflow.run(run_id="r"))
    undisturbed = request_ids(await asking(InMemoryCheckpointStorage()).run("tea", run_id="r"))
    assert replayed == undisturbed


async def test_equal_questions_have_different_ids() -> None:
    class Twice(Asker):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext[str, str]) -> None:
            await ctx.request_info(text, str)
            await ctx.request_info(text, str)

    assert len(set(request_ids(await alone(Twice("t")).run("x")))) == 2


async def test_the_checkpoint_holds_the_request() -> None:
    storage = InMemoryCheckpointStorage()
    request_id = await only_request(await asking(storage).run("tea", run_id="r"))
    latest = await storage.get_latest(run_id="r")
    assert latest is not None
    assert latest.pending_request_info_events[request_id].data == "tea?"


async def test_a_run_goes_on_beside_a_pending_request() -> None:
    start, asker, relay, last = Relay("start"), Asker("asker"), Relay("relay"), Asker("last")
    builder = WorkflowBuilder(start_executor=start, checkpoint_storage=InMemoryCheckpointStorage())
    workflow = builder.add_fan_out_edges(start, [asker, relay]).add_edge(relay, last).build()
    result = await workflow.run("x")
    states = [event.state for event in result.status_timeline()]
    assert states == [
        WorkflowRunState.STARTED,
        WorkflowRunState.IN_PROGRESS,
        WorkflowRunState.IN_PROGRESS_PENDING_REQUESTS,
        WAITING,
    ]


# --- answering --------------------------------------------------------------------------------------------------------


async def test_an_answer_reaches_the_executor_that_asked_in_a_workflow_built_anew() -> None:
    storage = InMemoryCheckpointStorage()
    request_id = await only_request(await asking(storage).run("tea", run_id="r"))
    result = await asking(storage).run(responses={request_id: "milk"})
    assert (result.get_outputs(), result.get_final_state()) == (["tea? milk"], IDLE)


async def test_an_answer_by_checkpoint_id_continues_the_run() -> None:
    storage = InMemoryCheckpointStorage()
    request_id = await only_request(await asking(storage).run("tea", run_id="r"))
    latest = await storage.get_latest(run_id="r")
    assert latest is not None
    result = await asking(storage).run(checkpoint_id=latest.checkpoint_id, responses={request_id: "milk"})
    assert (result.run_id, result.get_outputs()) == ("r", ["tea? milk"])


async def test_delivering_an_answer_writes_a_checkpoint() -> None:
    storage = InMemoryCheckpointStorage()
    request_id = await only_request(await asking(storage).run("tea", run_id="r"))
    await asking(storage).run(responses={request_id: "milk"})
    kept = await checkpoints_of(storage, "r")
    assert [(c.iteration_count, len(c.pending_request_info_events)) for c in kept] == [(0, 0), (1, 1), (1, 0), (2, 0)]


@pytest.mark.parametrize("storage", [InMemoryCheckpointStorage, None], ids=["storage", "no storage"])
async def test_several_requests_can_be_answered_one_by_one(storage: Any) -> None:
    workflow = two_askers(storage() if storage else None)
    one, other = request_ids(await workflow.run("x"))
    first = await workflow.run(responses={one: "1"})
    assert (first.get_final_state(), first.get_outputs()) == (WAITING, ["x>start? 1"])
    second = await workflow.run(responses={other: "2"})
    assert (second.get_final_state(), second.get_outputs()) == (IDLE, ["x>start? 1", "x>start? 2"])


@pytest.mark.parametrize("storage", [InMemoryCheckpointStorage, None], ids=["storage", "no storage"])
async def test_an_answer_to_one_of_two_leaves_the_other_among_the_questions(storage: Any) -> None:
    workflow = two_askers(storage() if storage else None)
    one, other = request_ids(await workflow.run("x"))
    assert request_ids(await workflow.run(responses={one: "1"})) == [other]


async def test_several_requests_can_be_answered_at_once() -> None:
    workflow = two_askers(InMemoryCheckpointStorage())
    one, other = request_ids(await workflow.run("x"))
    result = await workflow.run(responses={other: "2", one: "1"})
    assert sorted(result.get_outputs()) == ["x>start? 1", "x>start? 2"]


@pytest.mark.parametrize("storage", [InMemoryCheckpointStorage, None], ids=["storage", "no storage"])
async def test_a_request_is_answered_once(storage: Any) -> None:
    workflow = two_askers(storage() if storage else None)
    one, _ = request_ids(await workflow.run("x", run_id="r"))
    await workflow.run(responses={one: "1"})
    with pytest.raises(AlreadyAnswered, match=f"request '{one}' of run 'r' was answered at .* with \"1\""):
        await workflow.run(run_id="r", responses={one: "again"})


async def test_of_two_answers_at_once_one_counts() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = asking(storage)
    request_id = await only_request(await workflow.run("tea", run_id="r"))
    attempts = [asking(storage).run(run_id="r", responses={request_id: word}) for word in ("milk", "lemon")]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert sum(isinstance(outcome, Exception) for outcome in outcomes) == 1
    assert (await workflow.run(run_id="r")).get_outputs() in (["tea? milk"], ["tea? lemon"])


async def test_an_answer_whose_superstep_failed_is_not_asked_for_again() -> None:
    class Moody(Asker):
        is_broken = True

        @response_handler
        async def answered(self, question: str, answer: str, ctx: WorkflowContext[str, str]) -> None:
            if Moody.is_broken:
                raise PowerLoss
            await ctx.yield_output(answer)

    for storage in (InMemoryCheckpointStorage(), None):
        Moody.is_broken = True
        workflow = alone(lambda: Moody("moody"), storage)
        request_id = await only_request(await workflow.run("tea", run_id="r"))
        with pytest.raises(PowerLoss):
            await workflow.run(responses={request_id: "milk"})
        Moody.is_broken = False
        assert (await workflow.run(run_id="r")).get_outputs() == ["milk"]


# --- typed answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "answer", "expected"),
    [
        ("verdict", Verdict(True), Verdict(True)),
        ("verdict", {"approved": True, "note": "fine"}, Verdict(True, "fine")),
        (
            "verdict",
            {"approved": False, "address": {"street": "Elm", "number": 5}},
            Verdict(False, "", Address("Elm", 5)),
        ),
        ("form", Form(name="Ann", age=3), Form(name="Ann", age=3)),
        ("form", {"name": "Ann", "age": 3}, Form(name="Ann", age=3)),
        ("number", 7, 7),
        ("words", ["a", "b"], ["a", "b"]),
        ("either", "a", "a"),
        ("either", 1, 1),
        ("maybe", None, None),
    ],
    ids=repr,
)
async def test_an_answer_arrives_with_the_type_that_was_asked_for(kind: str, answer: Any, expected: Any) -> None:
    storage = InMemoryCheckpointStorage()
    request_id = await only_request(await desk(storage).run(kind))
    result = await desk(storage).run(responses={request_id: answer})
    assert result.get_outputs() == [expected]
    assert type(result.get_outputs()[0]) is type(expected)


@pytest.mark.parametrize(
    ("kind", "answer", "words"),
    [
        ("verdict", "yes", "must be Verdict: got str 'yes'"),
        ("verdict", {"note": "no decision"}, "must be Verdict: approved: Field required"),
        ("verdict", None, "must be Verdict: got NoneType"),
        ("form", {"name": "Ann", "age": "many"}, "must be Form: age: Input should be a valid integer"),
        ("number", "7", "must be int: got str '7'"),
        ("number", True, "must be int: got bool True"),
        ("words", ["a", 1], r"must be list\[str\]"),
        ("either", 1.5, "must be"),
    ],
    ids=repr,
)
async def test_an_answer_of_another_type_is_refused_and_nothing_changes(kind: str, answer: Any, words: str) -> None:
    storage = InMemoryCheckpointStorage()
    request_id = await only_request(await desk(storage).run(kind, run_id="r"))
    before = await storage.list_checkpoint_ids()
    with pytest.raises(ResponseTypeMismatch, match=words):
        await desk(storage).run(responses={request_id: answer})
    assert await storage.list_checkpoint_ids() == before
    assert await state_of(storage, "r") == "IDLE_WITH_PENDING_REQUESTS"
    assert request_ids(await desk(storage).run(run_id="r")) == [request_id]


async def test_one_wrong_answer_of_two_changes_nothing() -> None:
    storage = InMemoryCheckpointStorage()
    one, other = request_ids(await two_askers(storage).run("x", run_id="r"))
    with pytest.raises(ResponseTypeMismatch):
        await two_askers(storage).run(responses={one: "fine", other: 5})
    assert request_ids(await two_askers(storage).run(run_id="r")) == [one, other]


@pytest.mark.parametrize("storage", [InMemoryCheckpointStorage, None], ids=["storage", "no storage"])
async def test_an_unknown_request_names_what_waits(storage: Any) -> None:
    workflow = asking(storage() if storage else None)
    request_id = await only_request(await workflow.run("tea", run_id="r"))
    with pytest.raises(UnknownRequest, match=f"no request 'zoe' is waiting for an answer; waiting: '{request_id}'"):
        await workflow.run(run_id="r", responses={"zoe": "milk"})
    assert request_ids(await workflow.run(run_id="r")) == [request_id]


@pytest.mark.parametrize("storage", [InMemoryCheckpointStorage, None], ids=["storage", "no storage"])
async def test_answers_for_two_runs_at_once_are_refused(storage: Any) -> None:
    workflow = asking(storage() if storage else None)
    one = await only_request(await workflow.run("tea", run_id="one"))
    other = await only_request(await workflow.run("tea", run_id="other"))
    with pytest.raises((InvalidRunArguments, UnknownRequest)):
        await workflow.run(responses={one: "milk", other: "milk"})
    assert request_ids(await workflow.run(run_id="one")) == [one]


# --- ids, deadlines ---------------------------------------------------------------------------------------------------


class Named(Asker):
    """Asks under an id of its own choice."""

    @handler
    async def ask(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.request_info(text, str, request_id="mine")


async def test_a_request_id_can_be_chosen() -> None:
    workflow = alone(Named("n"))
    assert request_ids(await workflow.run("x")) == ["mine"]


async def test_a_chosen_request_id_can_be_used_once_in_a_run() -> None:
    workflow = alone(Named("n"), InMemoryCheckpointStorage())
    await workflow.run("x", run_id="r")
    await workflow.run(run_id="r", responses={"mine": "yes"})
    with pytest.raises(DuplicateRequest, match="'n' asked with request_id='mine', which this run has used before"):
        await workflow.run("again", run_id="r")


async def test_siblings_that_choose_one_request_id_are_refused_rather_than_one_being_lost() -> None:
    start, a, b = Relay("start"), Named("a"), Named("b")
    builder = WorkflowBuilder(start_executor=start, checkpoint_storage=InMemoryCheckpointStorage())
    with pytest.raises(DuplicateRequest, match="'b' asked with request_id='mine'"):
        await builder.add_fan_out_edges(start, [a, b]).build().run("x")


@pytest.mark.parametrize("deadline", [timedelta(hours=1), datetime(2030, 1, 1, tzinfo=UTC)], ids=["in", "at"])
async def test_a_deadline_is_on_the_record(deadline: Any) -> None:
    class Hurried(Asker):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext[str, str]) -> None:
            await ctx.request_info(text, str, deadline=deadline)

    storage = InMemoryCheckpointStorage()
    await alone(Hurried("h"), storage).run("x")
    [info] = await storage.list_runs()
    assert datetime.fromisoformat(str(info.pending_requests[0].deadline)).tzinfo is not None


# --- without a storage ------------------------------------------------------------------------------------------------


async def test_without_a_storage_a_waiting_run_is_kept_until_it_is_answered() -> None:
    workflow = asking()
    request_id = await only_request(await workflow.run("tea", run_id="r"))
    assert request_ids(await workflow.run(run_id="r")) == [request_id]
    assert (await workflow.run(responses={request_id: "milk"})).get_outputs() == ["tea? milk"]
    with pytest.raises(UnknownRun):
        await workflow.run(run_id="r")


async def test_without_a_storage_a_waiting_run_can_be_discarded() -> None:
    workflow = asking()
    request_id = await only_request(await workflow.run("tea", run_id="r"))
    assert workflow.discard("r")
    assert not workflow.discard("r")
    with pytest.raises(UnknownRequest):
        await workflow.run(responses={request_id: "milk"})


async def test_without_a_storage_instances_get_their_own_state_back() -> None:
    class Remembering(Asker):
        def __init__(self, id: str) -> None:
            super().__init__(id)
            self.asked: list[str] = []

        @handler
        async def ask(self, text: str, ctx: WorkflowContext[str, Any]) -> None:
            self.asked.append(text)
            await ctx.request_info(text, str)

        @response_handler
        async def answered(self, question: str, answer: str, ctx: WorkflowContext[str, Any]) -> None:
            await ctx.yield_output(list(self.asked))

        async def on_checkpoint_save(self) -> dict[str, Any]:
            return {"asked": self.asked}

        async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
            self.asked = state["asked"]

    workflow = alone(Remembering("r"))
    first = await only_request(await workflow.run("tea", run_id="one"))
    await workflow.run("cake", run_id="two")
    assert (await workflow.run(responses={first: "milk"})).get_outputs() == [["tea"]]


# --- answers recorded without the program -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "answer", "expected"),
    [("verdict", {"approved": True}, Verdict(True)), ("form", {"name": "A", "age": 1}, Form(name="A", age=1))],
    ids=["dataclass", "pydantic"],
)
async def test_an_answer_can_be_recorded_without_the_program_and_is_typed_when_delivered(
    kind: str, answer: Any, expected: Any
) -> None:
    storage = InMemoryCheckpointStorage()
    request_id = await only_request(await desk(storage).run(kind, run_id="r"))
    await storage.answer(request_id, answer)
    [info] = await storage.list_runs()
    assert (info.undelivered_answers, info.pending_requests) == (1, ())
    assert (await desk(storage).run(run_id="r")).get_outputs() == [expected]
    [info] = await storage.list_runs()
    assert info.undelivered_answers == 0


async def test_a_recorded_answer_counts_once() -> None:
    storage = InMemoryCheckpointStorage()
    request_id = await only_request(await asking(storage).run("tea", run_id="r"))
    await storage.answer(request_id, "milk")
    with pytest.raises(AlreadyAnswered):
        await storage.answer(request_id, "lemon")
    with pytest.raises(AlreadyAnswered):
        await asking(storage).run(responses={request_id: "lemon"})
    assert (await asking(storage).run(run_id="r")).get_outputs() == ["tea? milk"]


async def test_an_answer_given_to_the_program_can_not_be_recorded_again() -> None:
    storage = InMemoryCheckpointStorage()
    request_id = await only_request(await asking(storage).run("tea", run_id="r"))
    await asking(storage).run(responses={request_id: "milk"})
    with pytest.raises(AlreadyAnswered):
        await storage.answer(request_id, "lemon")


async def test_an_answer_to_an_unknown_request_can_not_be_recorded() -> None:
    with pytest.raises(UnknownRequest, match="zoe"):
        await InMemoryCheckpointStorage().answer("zoe", "milk")


async def test_a_pending_request_copied_to_another_storage_can_be_answered_there() -> None:
    storage, copy = InMemoryCheckpointStorage(), InMemoryCheckpointStorage()
    request_id = await only_request(await asking(storage).run("tea", run_id="r"))
    for checkpoint in await storage.list_checkpoints():
        await copy.save(type(checkpoint).from_dict(checkpoint.to_dict()))
    assert (await asking(copy).run(run_id="r", responses={request_id: "milk"})).get_outputs() == ["tea? milk"]
