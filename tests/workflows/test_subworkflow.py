"""Workflows inside workflows: outputs, requests, state, calls, crashes and changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from stepwell import (
    Executor,
    GraphChanged,
    InMemoryCheckpointStorage,
    ReplayDivergence,
    ResponseTypeMismatch,
    RetryPolicy,
    TypeCompatibilityError,
    Workflow,
    WorkflowBuilder,
    WorkflowBusy,
    WorkflowContext,
    WorkflowConvergenceException,
    WorkflowEvent,
    WorkflowRunState,
    WorkflowValidationError,
    executor,
    handler,
    response_handler,
)
from stepwell.checkpointing.journal import enclosing_idempotency_key, idempotency_key
from stepwell.testing import CrashingStorage
from stepwell.testing import PowerLoss as ProcessLoss
from stepwell.workflows import SubWorkflowRequestMessage, SubWorkflowResponseMessage, WorkflowExecutor
from tests.workflows.parts import (
    Asker,
    Counter,
    Fragile,
    Printer,
    Relay,
    alone,
    chained,
    checkpoints_of,
    counting,
    only_request,
    request_ids,
    types_in,
    warnings_in,
)


def inner(*names: str, **options: Any) -> Workflow:
    """Relays in a row and a printer at the end, made afresh for each run."""
    relays = [(lambda name=name: Relay(name)) for name in names[:-1]]
    return chained([*relays, lambda: Printer(names[-1])], **options) if relays else alone(lambda: Printer(names[-1]))


def around(workflow: Workflow, *after: Any, storage: Any = None, **options: Any) -> Workflow:
    """The workflow as the first executor of another one."""
    sub = WorkflowExecutor(workflow, "sub", **options)
    return chained([sub, *after], storage, name="around") if after else alone(sub, storage, name="around")


def asked_inside(storage: Any = None, **options: Any) -> Workflow:
    return around(alone(lambda: Asker("asker")), storage=storage, allow_direct_output=True, propagate_request=True)


# --- outputs ----------------------------------------------------------------------------------------------------------


async def test_what_an_inner_workflow_yields_is_a_message_for_the_next_executor() -> None:
    workflow = around(inner("a", "b"), lambda: Printer("end"))

    assert (await workflow.run("x")).get_outputs() == ["x>a>b>end"]


async def test_with_direct_output_it_is_an_output_of_the_parent() -> None:
    result = await around(inner("a", "b"), allow_direct_output=True).run("x")

    assert result.get_outputs() == ["x>a>b"]
    assert [event.executor_id for event in result if event.type == "output"] == ["sub"]


async def test_three_deep_is_no_different() -> None:
    innermost = around(inner("a"), allow_direct_output=True)
    workflow = around(around(innermost, allow_direct_output=True), lambda: Printer("end"))

    assert (await workflow.run("x")).get_outputs() == ["x>a>end"]


async def test_the_inner_supersteps_are_no_checkpoints_of_the_parent() -> None:
    storage = InMemoryCheckpointStorage()
    result = await around(counting(end=5), storage=storage, allow_direct_output=True).run(1)

    assert result.get_outputs() == [5]
    assert [point.iteration_count for point in await checkpoints_of(storage, result.run_id)] == [0, 1]


async def test_intermediate_outputs_of_an_inner_workflow_are_intermediate_outside_too() -> None:
    class Thinker(Executor):
        @handler
        async def think(self, text: str, ctx: WorkflowContext[str, str]) -> None:
            await ctx.yield_output(f"thinking of {text}")
            await ctx.send_message(text)

    workflow = chained(
        [lambda: Thinker("thinker"), lambda: Printer("end")],
        output_from=["end"],
        intermediate_output_from=["thinker"],
    )
    result = await around(workflow, allow_direct_output=True).run("x")

    assert result.get_outputs() == ["x>end"]
    assert result.get_intermediate_outputs() == ["thinking of x"]
    assert [event.executor_id for event in result if event.type == "intermediate"] == ["sub/thinker"]


async def test_events_of_inner_executors_carry_their_path_and_have_ids_of_their_own() -> None:
    result = await around(around(inner("a", "b"), allow_direct_output=True), lambda: Printer("end")).run("x")

    invoked = [event.executor_id for event in result if event.type == "executor_invoked"]
    assert invoked == ["sub", "sub/sub", "sub/sub/a", "sub/sub/b", "end"]
    ids = [event.event_id for event in result]
    assert len(ids) == len(set(ids))


async def test_an_inner_executors_own_events_are_announced_when_the_parents_checkpoint_is_durable() -> None:
    @executor(id="teller")
    async def teller(text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.add_event(WorkflowEvent("told", text))

    result = await around(alone(teller), storage=InMemoryCheckpointStorage()).run("x")
    types = types_in(result)

    assert types.index("told") > [index for index, kind in enumerate(types) if kind == "checkpoint"][1]
    assert next(event for event in result if event.type == "told").executor_id == "sub/teller"


# --- state ------------------------------------------------------------------------------------------------------------


async def test_shared_state_is_each_workflows_own() -> None:
    @executor(id="writer")
    async def writer(text: str, ctx: WorkflowContext[str, str]) -> None:
        seen = ctx.get_state("word", "nothing")
        ctx.set_state("word", text)
        await ctx.yield_output(f"{text} after {seen}")

    @executor(id="reader")
    async def reader(text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{text}; outside {ctx.get_state('word', 'nothing')}")

    result = await around(alone(writer), reader).run("x")

    assert result.get_outputs() == ["x after nothing; outside nothing"]


async def test_the_storage_of_an_inner_workflow_is_left_alone_and_a_warning_says_so() -> None:
    own = InMemoryCheckpointStorage()
    result = await around(inner("a", "b", storage=own, name="within"), allow_direct_output=True).run("x")

    assert await own.list_checkpoints() == []
    [warning] = warnings_in(result)
    assert "'within'" in warning
    assert "'sub'" in warning


async def test_executor_instances_inside_begin_every_inner_run_as_they_were() -> None:
    counter = Counter(end=3)
    workflow = WorkflowBuilder(start_executor=counter).add_edge(counter, counter).build()

    @executor(id="twice")
    async def twice(number: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(number)
        await ctx.send_message(number)

    sub = WorkflowExecutor(workflow, "sub", allow_direct_output=True)
    for _ in range(2):
        result = await chained([twice, sub]).run(1)

        assert result.get_outputs() == [3, 3]
        assert counter.seen == [1, 2, 3]


async def test_executor_instances_inside_serve_one_parent_run_at_a_time() -> None:
    gate = asyncio.Event()

    class Waiter(Executor):
        @handler
        async def wait(self, text: str, ctx: WorkflowContext[str, str]) -> None:
            await gate.wait()
            await ctx.yield_output(text)

    workflow = around(alone(Waiter("waiter")), allow_direct_output=True)
    first = asyncio.ensure_future(workflow.run("x"))
    await asyncio.sleep(0)
    with pytest.raises(WorkflowBusy, match="'waiter'"):
        await workflow.run("y")
    gate.set()

    assert (await first).get_outputs() == ["x"]


async def test_a_workflow_executor_made_of_factories_serves_any_number_of_runs_at_once() -> None:
    workflow = asked_inside()
    results = await asyncio.gather(*(workflow.run(f"q{number}") for number in range(5)))

    for number, result in enumerate(results):
        done = await workflow.run(run_id=result.run_id, responses={await only_request(result): "yes"})
        assert done.get_outputs() == [f"q{number}? yes"]


def test_one_instance_in_two_places_is_refused_when_building() -> None:
    workflow = alone(Printer("printer"))
    one, other = WorkflowExecutor(workflow, "one"), WorkflowExecutor(workflow, "other")

    with pytest.raises(WorkflowValidationError, match="'printer' is in the workflow more than once"):
        WorkflowBuilder(start_executor=one).add_edge(one, other).build()


def test_a_bare_workflow_among_executors_is_told_what_to_be_put_into() -> None:
    with pytest.raises(WorkflowValidationError, match="put it into a WorkflowExecutor"):
        alone(inner("a"))


def test_types_are_checked_through_the_inner_workflow() -> None:
    @executor(id="numbers")
    async def numbers(number: int, ctx: WorkflowContext[int]) -> None: ...

    with pytest.raises(TypeCompatibilityError):
        around(inner("a"), numbers)


# --- requests that are the parent's own -------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3, 12])
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "in memory"])
async def test_a_propagated_request_is_answered_through_any_number_of_levels(depth: int, durable: bool) -> None:
    storage = InMemoryCheckpointStorage() if durable else None

    def build() -> Workflow:
        workflow = alone(lambda: Asker("asker"))
        for _ in range(depth - 1):
            workflow = around(workflow, allow_direct_output=True, propagate_request=True)
        return around(workflow, storage=storage, allow_direct_output=True, propagate_request=True)

    workflow = build()
    waiting = await workflow.run("sure")
    [event] = waiting.get_request_info_events()
    assert waiting.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    assert (event.data, event.source_executor_id, event.response_type) == ("sure?", "sub", str)

    again = build() if durable else workflow
    done = await again.run(responses={str(event.request_id): "yes"})
    assert done.get_outputs() == ["sure? yes"]
    assert done.get_final_state() is WorkflowRunState.IDLE


async def test_a_wrong_answer_to_a_propagated_request_is_refused_and_changes_nothing() -> None:
    workflow = asked_inside(InMemoryCheckpointStorage())
    request_id = await only_request(await workflow.run("sure"))

    with pytest.raises(ResponseTypeMismatch):
        await workflow.run(responses={request_id: 5})
    assert (await workflow.run(responses={request_id: "yes"})).get_outputs() == ["sure? yes"]


async def test_an_inner_request_can_be_answered_without_the_program() -> None:
    storage = InMemoryCheckpointStorage()
    waiting = await asked_inside(storage).run("sure", run_id="r")
    await storage.answer(await only_request(waiting), "by mail")

    assert (await asked_inside(storage).run(run_id="r")).get_outputs() == ["sure? by mail"]


@dataclass
class Draft:
    text: str


@dataclass
class Verdict:
    approved: bool


class Reviewed(Executor):
    """Asks for a verdict about a draft of its own type."""

    @handler
    async def write(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.request_info(Draft(text), Verdict)

    @response_handler
    async def reviewed(self, draft: Draft, verdict: Verdict, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{draft.text}: {verdict.approved}")


async def test_inner_types_reach_the_parents_checkpoints_and_json_answers_them() -> None:
    storage = InMemoryCheckpointStorage()

    def build() -> Workflow:
        middle = around(alone(lambda: Reviewed("reviewed")), allow_direct_output=True, propagate_request=True)
        return around(middle, storage=storage, allow_direct_output=True, propagate_request=True)

    waiting = await build().run("a poem")
    [event] = waiting.get_request_info_events()
    assert (event.data, event.response_type) == (Draft("a poem"), Verdict)
    done = await build().run(responses={str(event.request_id): {"approved": True}})

    assert done.get_outputs() == ["a poem: True"]


class Splitter(Executor):
    """Sends each word by itself, so that several inner runs begin in one superstep."""

    @handler
    async def split(self, text: str, ctx: WorkflowContext[str]) -> None:
        for word in text.split():
            await ctx.send_message(word)


def several(storage: Any = None, asker: Callable[[], Executor] = lambda: Asker("asker")) -> Workflow:
    sub = WorkflowExecutor(alone(asker), "sub", allow_direct_output=True, propagate_request=True)
    return chained([lambda: Splitter("splitter"), sub], storage, name="several")


async def test_several_inner_runs_wait_at_once_and_are_kept_apart() -> None:
    storage = InMemoryCheckpointStorage()
    waiting = await several(storage).run("a b c")
    asked = {event.data: str(event.request_id) for event in waiting.get_request_info_events()}

    one = await several(storage).run(responses={asked["b?"]: "B"})
    two = await several(storage).run(responses={asked["c?"]: "C", asked["a?"]: "A"})

    assert one.get_outputs() == ["b? B"]
    assert two.get_outputs() == ["b? B", "c? C", "a? A"]
    assert two.get_final_state() is WorkflowRunState.IDLE


class Named(Executor):
    """Asks under an id of its own choice, whatever it is asked about, and counts its questions."""

    def __init__(self) -> None:
        super().__init__("named")
        self.heard: list[str] = []

    @handler
    async def ask(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        self.heard.append(text)
        await ctx.request_info(f"{text}?", str, request_id="approve")

    @response_handler
    async def answered(self, question: str, answer: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{question} {answer} {self.heard}")

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"heard": self.heard}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.heard = state["heard"]


@pytest.mark.parametrize("shared", [True, False], ids=["one instance", "a factory"])
async def test_inner_runs_that_choose_the_same_request_id_are_kept_apart_too(shared: bool) -> None:
    storage = InMemoryCheckpointStorage()
    instance = Named()
    workflow = several(storage, asker=instance if shared else lambda: Named())
    waiting = await workflow.run("a b")
    first, second = request_ids(waiting)
    assert first == "approve"
    assert second.startswith("approve-")

    await workflow.run(run_id=waiting.run_id, responses={second: "B"})
    done = await workflow.run(run_id=waiting.run_id, responses={first: "A"})

    assert done.get_outputs() == ["b? B ['b']", "a? A ['a']"]


async def test_a_branch_answers_an_inner_request_differently() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = several(storage, asker=lambda: Named())
    waiting = await workflow.run("a b")
    _, second = request_ids(waiting)
    before = (await checkpoints_of(storage, waiting.run_id))[-1].checkpoint_id
    await workflow.run(run_id=waiting.run_id, responses={second: "yes"})

    branch = await workflow.run(checkpoint_id=before, responses={second: "no"}, branch=True)

    assert branch.get_outputs() == ["b? no ['b']"]


async def test_an_inner_executor_without_hooks_keeps_its_attributes_while_the_process_lives() -> None:
    class Forgetful(Asker):
        asked = ""

        @handler
        async def ask(self, text: str, ctx: WorkflowContext[str, str]) -> None:
            self.asked = text
            await ctx.request_info(f"{text}?", str)

        @response_handler
        async def answered(self, question: str, answer: str, ctx: WorkflowContext[str, str]) -> None:
            await ctx.yield_output(f"{self.asked} {answer}")

    sub = WorkflowExecutor(alone(lambda: Forgetful("f")), "sub", allow_direct_output=True, propagate_request=True)
    workflow = alone(sub)
    waiting = await workflow.run("x")

    assert (await workflow.run(responses={await only_request(waiting): "y"})).get_outputs() == ["x y"]


# --- requests that the parent's executors answer ----------------------------------------------------------------------


class Desk(Executor):
    """Sends questions in, answers what it knows, asks a person about the rest."""

    def __init__(self, known: dict[str, str]) -> None:
        super().__init__("desk")
        self.known = known
        self.open: dict[str, SubWorkflowRequestMessage] = {}

    @handler
    async def begin(self, words: list[str], ctx: WorkflowContext[str]) -> None:
        for word in words:
            await ctx.send_message(word)

    @handler
    async def asked(
        self, request: SubWorkflowRequestMessage, ctx: WorkflowContext[SubWorkflowResponseMessage, str]
    ) -> None:
        question = request.source_event.data
        if question in self.known:
            await ctx.send_message(request.create_response(self.known[question]), target_id=request.executor_id)
            return
        self.open[question] = request
        await ctx.request_info(question, str)

    @response_handler
    async def person(self, question: str, answer: str, ctx: WorkflowContext[SubWorkflowResponseMessage, str]) -> None:
        request = self.open.pop(question)
        await ctx.send_message(request.create_response(answer), target_id=request.executor_id)

    @handler
    async def done(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(text)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"open": self.open}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.open = dict(state["open"])


def intercepted(storage: Any = None, desk: Callable[[], Executor] = lambda: Desk({"a?": "A", "b?": "B"})) -> Workflow:
    sub = WorkflowExecutor(alone(lambda: Asker("asker")), "sub")
    builder = WorkflowBuilder(start_executor=desk, checkpoint_storage=storage, name="intercepted")
    return builder.add_edge(desk, sub).add_edge(sub, desk).build()


async def test_executors_around_answer_what_an_inner_workflow_asks() -> None:
    result = await intercepted().run(["a", "b"])

    assert result.get_outputs() == ["a? A", "b? B"]
    assert result.get_request_info_events() == []


async def test_what_they_do_not_know_they_ask_a_person_in_another_process() -> None:
    storage = InMemoryCheckpointStorage()
    waiting = await intercepted(storage).run(["a", "strange"])
    [event] = waiting.get_request_info_events()
    assert (event.data, event.source_executor_id) == ("strange?", "desk")
    assert waiting.get_outputs() == ["a? A"]

    done = await intercepted(storage).run(responses={str(event.request_id): "well"})

    assert done.get_outputs() == ["a? A", "strange? well"]
    assert done.get_final_state() is WorkflowRunState.IDLE


async def test_the_same_question_is_not_asked_again_when_it_was_answered_after_a_restore() -> None:
    class Twice(Asker):
        @response_handler
        async def answered(self, question: str, answer: str, ctx: WorkflowContext[str, str]) -> None:
            if question.endswith("??"):
                await ctx.yield_output(f"{question} {answer}")
            else:
                await ctx.request_info(f"{question}?", str)

    storage = InMemoryCheckpointStorage()

    def build() -> Workflow:
        return around(alone(lambda: Twice("asker")), storage=storage, allow_direct_output=True, propagate_request=True)

    first = await build().run("x")
    second = await build().run(responses={await only_request(first): "one"})
    [event] = second.get_request_info_events()
    assert event.data == "x??"
    assert (await build().run(responses={str(event.request_id): "two"})).get_outputs() == ["x?? two"]


async def test_an_answer_of_the_wrong_type_is_refused_where_it_is_made() -> None:
    class Careless(Desk):
        @handler
        async def asked(self, request: SubWorkflowRequestMessage, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.send_message(request.create_response(7), target_id=request.executor_id)

    with pytest.raises(ResponseTypeMismatch, match="must be str"):
        await intercepted(desk=lambda: Careless({})).run(["a"])


async def test_a_second_answer_to_an_inner_request_is_a_warning_and_counts_for_nothing() -> None:
    class Eager(Desk):
        @handler
        async def asked(self, request: SubWorkflowRequestMessage, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.send_message(request.create_response("first"), target_id=request.executor_id)
            await ctx.send_message(request.create_response("second"), target_id=request.executor_id)

    result = await intercepted(desk=lambda: Eager({})).run(["a"])

    assert result.get_outputs() == ["a? first"]
    assert ["waits for none" in warning for warning in warnings_in(result)] == [True]


async def test_a_request_that_nobody_takes_is_a_warning() -> None:
    result = await around(alone(lambda: Asker("asker"))).run("x")

    [warning] = warnings_in(result)
    assert "'sub' sent SubWorkflowRequestMessage" in warning


async def test_an_answer_goes_to_the_workflow_executor_that_asked_and_to_no_other() -> None:
    class Broadcaster(Desk):
        @handler
        async def asked(self, request: SubWorkflowRequestMessage, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.send_message(request.create_response("yes"))

    desk = lambda: Broadcaster({})  # noqa: E731
    one = WorkflowExecutor(alone(lambda: Asker("asker")), "one")
    other = WorkflowExecutor(alone(lambda: Asker("asker")), "other")
    workflow = (
        WorkflowBuilder(start_executor=desk)
        .add_edge(desk, one)
        .add_edge(desk, other)
        .add_edge(one, desk)
        .add_edge(other, desk)
        .build()
    )
    result = await workflow.run(["a"])

    assert result.get_outputs() == ["a? yes", "a? yes"]
    assert warnings_in(result) == []


# --- calls, crashes and failures --------------------------------------------------------------------------------------


class Ledger:
    """The outside world: what was really called, and what although its record was durable."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.repeated: list[str] = []
        self._recorded: set[str] = set()

    def watch(self, point: str, subject: str) -> None:
        if point == "after call":
            self._recorded.add(idempotency_key("r", subject))

    def ask(self, name: str) -> str:
        self.calls.append(name)
        if enclosing_idempotency_key() in self._recorded:
            self.repeated.append(name)
        return f"{name}!"


class Caller(Executor):
    """Calls, asks a person, calls again."""

    def __init__(self, id: str, ledger: Ledger) -> None:
        super().__init__(id)
        self.ledger = ledger

    @handler
    async def begin(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        first = await ctx.call(self.ledger.ask, f"{self.id}:{text}")
        await ctx.request_info(f"{first}?", str)

    @response_handler
    async def go_on(self, question: str, answer: str, ctx: WorkflowContext[str, str]) -> None:
        last = await ctx.call(self.ledger.ask, f"{self.id}:{answer}")
        await ctx.yield_output(f"{self.id} {question} {last}")


class Entrance(Executor):
    """Sends a text to everyone after it."""

    @handler
    async def enter(self, text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text)


def level(number: int, ledger: Ledger, deepest: int = 3, storage: Any = None) -> Workflow:
    """A caller, and beside it the next level, down to the deepest: requests pend at each of them."""
    entrance, caller = (lambda: Entrance("entrance")), (lambda: Caller(f"caller-{number}", ledger))
    targets: list[Any] = [caller]
    if number < deepest:
        within = level(number + 1, ledger, deepest)
        targets.append(WorkflowExecutor(within, "sub", allow_direct_output=True, propagate_request=True))
    builder = WorkflowBuilder(start_executor=entrance, checkpoint_storage=storage, name=f"level-{number}")
    builder = builder.add_fan_out_edges(entrance, targets) if len(targets) > 1 else builder.add_edge(entrance, caller)
    return builder.build()


async def live(ledger: Ledger, storage: Any) -> list[str]:
    """One life of the program: start or resume, and answer whatever is asked, one question at a time."""
    workflow = level(1, ledger, storage=storage)
    result = await workflow.run("x", run_id="r")
    while request_ids(result):
        event = result.get_request_info_events()[0]
        result = await workflow.run(run_id="r", responses={str(event.request_id): f"re {event.data}"})
    return sorted(result.get_outputs())


EXPECTED = sorted(f"caller-{n} caller-{n}:x!? caller-{n}:re caller-{n}:x!?!" for n in (1, 2, 3))
CALLS = sorted(name for n in (1, 2, 3) for name in (f"caller-{n}:x", f"caller-{n}:re caller-{n}:x!?"))


async def test_requests_pend_at_each_of_three_levels_at_once() -> None:
    waiting = await level(1, Ledger()).run("x")

    assert sorted(event.data for event in waiting.get_request_info_events()) == [
        f"caller-{number}:x!?" for number in (1, 2, 3)
    ]


POINTS = ["after open", "before call", "after call", "before checkpoint", "after checkpoint", "before last checkpoint"]


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("point", POINTS)
async def test_a_crash_anywhere_in_three_levels_repeats_no_recorded_call(point: str, count: int) -> None:
    ledger, disk = Ledger(), InMemoryCheckpointStorage()
    try:
        outputs = await live(ledger, CrashingStorage(disk, at=f"{point}#{count}", watcher=ledger.watch))
    except ProcessLoss:
        outputs = await live(ledger, disk)

    assert outputs == EXPECTED
    assert sorted(set(ledger.calls)) == CALLS
    assert ledger.repeated == []
    if "checkpoint" in point:  # Then nothing was under way, so nothing is made again at all.
        assert sorted(ledger.calls) == CALLS


async def test_usage_of_inner_calls_counts_in_the_parents_run() -> None:
    from stepwell.testing import ScriptedChatClient

    storage = InMemoryCheckpointStorage()
    agent = ScriptedChatClient("well").as_agent(name="writer")
    workflow = around(around(alone(agent), allow_direct_output=True), storage=storage, allow_direct_output=True)
    result = await workflow.run("go")

    assert [output.text for output in result.get_outputs()] == ["well"]
    assert result.usage["writer"]["calls"] == 1
    [info] = await storage.list_runs()
    assert info.usage == result.usage


async def test_an_inner_agents_updates_stream_through_direct_output() -> None:
    from stepwell.testing import ScriptedChatClient

    agent = ScriptedChatClient("one two").as_agent(name="writer")
    stream = around(alone(agent), allow_direct_output=True).run("go", stream=True)
    pieces = [event.data.text async for event in stream if event.type == "output" and event.provisional]
    result = await stream.get_final_response()

    assert "".join(pieces) == "one two"
    assert [output.text for output in result.get_outputs()] == ["one two"]


async def test_a_call_that_a_changed_inner_workflow_no_longer_makes_is_a_divergence() -> None:
    ledger, disk = Ledger(), InMemoryCheckpointStorage()

    def build(names: tuple[str, ...], storage: Any) -> Workflow:
        class Step(Executor):
            @handler
            async def step(self, text: str, ctx: WorkflowContext[str, str]) -> None:
                await ctx.call(ledger.ask, self.id)
                if self.id == names[-1]:
                    await ctx.yield_output(text)
                else:
                    await ctx.send_message(text)

        steps = [(lambda name=name: Step(name)) for name in ("a", "b")]
        return around(chained(steps), storage=storage, allow_direct_output=True)

    with pytest.raises(ProcessLoss):
        await build(("a", "b"), CrashingStorage(disk, at="before last checkpoint")).run("x", run_id="r")
    with pytest.raises(ReplayDivergence, match="sub/0/2/b"):
        await build(("a",), disk).run("x", run_id="r")
    done = await build(("a",), disk).run("x", run_id="r", on_divergence="recall")

    assert done.get_outputs() == ["x"]
    assert ledger.calls == ["a", "b"]


async def test_a_call_in_doubt_inside_an_inner_workflow_asks_a_person() -> None:
    ledger, disk = Ledger(), InMemoryCheckpointStorage()

    @executor(id="payer")
    async def payer(text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(await ctx.call(ledger.ask, text, at_most_once=True))

    def build(storage: Any) -> Workflow:
        return around(around(alone(payer), allow_direct_output=True), storage=storage, allow_direct_output=True)

    with pytest.raises(ProcessLoss):
        await build(CrashingStorage(disk, at="before call")).run("pay", run_id="r")
    waiting = await build(disk).run("pay", run_id="r")
    [event] = waiting.get_request_info_events()
    done = await build(disk).run(responses={str(event.request_id): event.data.done("paid")})

    assert done.get_outputs() == ["paid"]
    assert ledger.calls == ["pay"]


async def test_a_failure_inside_names_the_inner_executor_and_a_resume_repeats_nothing() -> None:
    ledger, disk = Ledger(), InMemoryCheckpointStorage()
    fragile = Fragile()

    @executor(id="first")
    async def first(text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(await ctx.call(ledger.ask, text))

    workflow = around(chained([first, fragile], name="within"), storage=disk, allow_direct_output=True)
    with pytest.raises(Exception, match="x!") as caught:
        await workflow.run("x", run_id="r")
    notes = " ".join(caught.value.__notes__)
    assert "'fragile'" in notes
    assert "'within', which runs inside executor 'sub'" in notes
    fragile.is_broken = False

    assert (await workflow.run("x", run_id="r")).get_outputs() == ["x!"]
    assert ledger.calls == ["x"]


async def test_a_workflow_executor_can_be_retried_as_a_whole() -> None:
    ledger = Ledger()
    attempts: list[str] = []

    @executor(id="first")
    async def first(text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(await ctx.call(ledger.ask, text))

    @executor(id="flaky")
    async def flaky(text: str, ctx: WorkflowContext[str, str]) -> None:
        attempts.append(text)
        if len(attempts) < 3:
            raise ConnectionError("not yet")
        await ctx.yield_output(text)

    policy = RetryPolicy(initial_wait=0)
    workflow = around(
        chained([first, flaky]), storage=InMemoryCheckpointStorage(), allow_direct_output=True, retry=policy
    )
    result = await workflow.run("x")

    assert result.get_outputs() == ["x!"]
    assert (ledger.calls, len(attempts)) == (["x"], 3)


async def test_the_superstep_limit_of_an_inner_workflow_is_its_own() -> None:
    with pytest.raises(WorkflowConvergenceException) as caught:
        await around(counting(end=50, max_iterations=10), allow_direct_output=True).run(1)

    assert "runs inside executor 'sub'" in " ".join(caught.value.__notes__)
    assert (await around(counting(end=9, max_iterations=10), allow_direct_output=True).run(1)).get_outputs() == [9]


# --- changed graphs ---------------------------------------------------------------------------------------------------


def asked_by(name: str, storage: Any, *more: str) -> Workflow:
    entrance = lambda: Entrance("entrance")  # noqa: E731
    builder = WorkflowBuilder(start_executor=entrance, name="inner")
    for asker in (name, *more):
        builder.add_edge(entrance, lambda asker=asker: Asker(asker))
    middle = around(builder.build(), allow_direct_output=True, propagate_request=True)
    return around(middle, storage=storage, allow_direct_output=True, propagate_request=True)


async def test_an_inner_executor_that_a_waiting_run_needs_and_is_gone_is_refused_by_name() -> None:
    storage = InMemoryCheckpointStorage()
    waiting = await asked_by("asker", storage).run("x")

    with pytest.raises(GraphChanged, match="inside 'sub', inside 'sub', executor 'asker' is gone and a request"):
        await asked_by("renamed", storage).run(responses={await only_request(waiting): "y"})
    done = await asked_by("asker", storage).run(responses={await only_request(waiting): "y"})
    assert done.get_outputs() == ["x? y"]


async def test_any_other_change_inside_is_a_warning_that_lists_it() -> None:
    storage = InMemoryCheckpointStorage()
    waiting = await asked_by("asker", storage).run("x")

    request_id = await only_request(waiting)
    with pytest.raises(GraphChanged, match="added executor sub/sub/second"):
        await asked_by("asker", storage, "second").run(responses={request_id: "y"}, strict_graph=True)
    done = await asked_by("asker", storage, "second").run(responses={request_id: "y"})
    assert done.get_outputs() == ["x? y"]
    assert "added executor sub/sub/second" in warnings_in(done)[0]


# --- workflows in calls -----------------------------------------------------------------------------------------------


async def test_a_workflow_that_is_run_inside_a_recorded_call_names_its_own_calls_by_itself() -> None:
    """Two executors of it, at work side by side, make calls under one key: each gets its own result."""
    disk, inside = InMemoryCheckpointStorage(), InMemoryCheckpointStorage()

    def worker(name: str) -> Any:
        @executor(id=name)
        async def work(text: str, ctx: WorkflowContext[str, str]) -> None:
            async def ask() -> str:
                return f"for {name}"

            await ctx.yield_output(f"{name} got {await ctx.call(ask, key='model/0')}")

        return work

    entrance = lambda: Entrance("entrance")  # noqa: E731
    team = (
        WorkflowBuilder(start_executor=entrance, checkpoint_storage=inside)
        .add_fan_out_edges(entrance, [worker("one"), worker("two")])
        .build()
    )

    @executor(id="host")
    async def host(text: str, ctx: WorkflowContext[str, Any]) -> None:
        async def run_it() -> list[str]:
            return sorted((await team.run(text)).get_outputs())

        await ctx.yield_output(await ctx.call(run_it, key="team"))

    result = await alone(host, disk).run("x")

    assert result.get_outputs() == [["one got for one", "two got for two"]]
