"""Executors: which handler gets what, from how it is declared."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any, Generic, Literal, NewType, TypeVar

import pytest

from stepwell import (
    Executor,
    InMemoryCheckpointStorage,
    NoHandler,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowValidationError,
    executor,
    handler,
    response_handler,
)
from tests.workflows.parts import alone, chained, only_request

T = TypeVar("T")
UserId = NewType("UserId", str)


@dataclass
class Animal:
    name: str


@dataclass
class Dog(Animal):
    pass


@dataclass
class Box(Generic[T]):
    content: T


async def outputs(start: Any, message: Any) -> list[Any]:
    return (await alone(start).run(message)).get_outputs()


# --- dispatch ---------------------------------------------------------------------------------------------------------


class Zoo(Executor):
    @handler
    async def text(self, message: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output("text")

    @handler
    async def number(self, message: int | float, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output("number")

    @handler
    async def animal(self, message: Animal, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output("animal")

    @handler
    async def dog(self, message: Dog, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output("dog")

    @handler
    async def words(self, message: list[str], ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output("words")

    @handler
    async def numbers(self, message: list[int], ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output("numbers")

    @handler
    async def table(self, message: dict[str, int], ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output("table")

    @handler
    async def nothing(self, message: None, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output("nothing")

    @handler
    async def box(self, message: Box[int], ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output("box")

    @handler
    async def pair(self, message: tuple[int, str], ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output("pair")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("a", "text"),
        (1, "number"),
        (1.5, "number"),
        (Animal("cat"), "animal"),
        (Dog("rex"), "dog"),
        (["a"], "words"),
        ([1], "numbers"),
        ({"a": 1}, "table"),
        (None, "nothing"),
        (Box(1), "box"),
        ((1, "a"), "pair"),
    ],
    ids=repr,
)
async def test_a_message_goes_to_the_handler_for_its_type(message: Any, expected: str) -> None:
    assert await outputs(Zoo("zoo"), message) == [expected]


@pytest.mark.parametrize(
    "message", [b"bytes", {"a": "b"}, ("a", 1), [1, "a"], object()], ids=["bytes", "dict", "tuple", "list", "object"]
)
async def test_a_message_no_handler_takes_is_refused_with_what_is_accepted(message: Any) -> None:
    with pytest.raises(NoHandler, match=r"executor 'zoo' has no handler for .*; it accepts str, int, float"):
        await alone(Zoo("zoo")).run(message)


async def test_a_first_message_that_nobody_takes_leaves_no_run_behind() -> None:
    storage = InMemoryCheckpointStorage()
    with pytest.raises(NoHandler):
        await alone(Zoo("zoo"), storage).run(b"bytes", run_id="r")
    assert await storage.list_runs() == []


async def test_types_can_be_given_explicitly() -> None:
    class Explicit(Executor):
        @handler(input=str | int, output=str, workflow_output=list[str])
        async def take(self, message, ctx):  # type: ignore[no-untyped-def]
            await ctx.yield_output([str(message)])

    subject = Explicit("x")
    assert (subject.input_types, subject.output_types, subject.workflow_output_types) == (
        (str, int),
        (str,),
        (list[str],),
    )
    assert await outputs(subject, 5) == [["5"]]


async def test_types_are_inferred_from_the_annotations() -> None:
    class Inferred(Executor):
        @handler
        async def take(self, message: str | None, ctx: WorkflowContext[int | str, Dog]) -> None: ...

    subject = Inferred("x")
    assert subject.input_types == (str, type(None))
    assert subject.output_types == (int, str)
    assert subject.workflow_output_types == (Dog,)


async def test_new_types_and_literals_are_understood() -> None:
    class Picky(Executor):
        @handler
        async def choice(self, message: Literal["a", "b"], ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output("choice")

        @handler
        async def user(self, message: UserId, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output("user")

    assert await outputs(Picky("p"), "a") == ["choice"]
    assert await outputs(Picky("p"), UserId("u")) == ["user"]


async def test_inherited_handlers_work_and_an_override_takes_their_place() -> None:
    class Parent(Executor):
        @handler
        async def text(self, message: str, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output("parent's text")

        @handler
        async def number(self, message: int, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output("parent's number")

    class Child(Parent):
        async def text(self, message: str, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output("child's text")

    assert await outputs(Child("c"), "a") == ["child's text"]
    assert await outputs(Child("c"), 1) == ["parent's number"]


async def test_types_local_to_a_function_are_found_although_annotations_are_strings() -> None:
    @dataclass
    class Task:
        name: str

    class Worker(Executor):
        @handler
        async def work(self, task: Task, ctx: WorkflowContext[Task, Task]) -> None:
            await ctx.yield_output(task)

    @executor(id="prepare")
    async def prepare(name: str, ctx: WorkflowContext[Task]) -> None:
        await ctx.send_message(Task(name))

    storage = InMemoryCheckpointStorage()
    result = await chained([prepare, Worker("worker")], storage).run("dig", run_id="r")
    latest = await storage.get_latest(run_id="r")
    assert latest is not None
    assert (result.get_outputs(), latest.outputs[0].data) == ([Task("dig")], Task("dig"))


async def test_an_undeclared_send_and_yield_work_at_run_time() -> None:
    class Loose(Executor):
        @handler
        async def take(self, message: str, ctx: WorkflowContext[int, int]) -> None:
            await ctx.send_message(Dog(message))  # type: ignore[arg-type]
            await ctx.yield_output(message)  # type: ignore[arg-type]

    class Kennel(Executor):
        @handler
        async def take(self, message: Dog | int, ctx: WorkflowContext[Any, Dog]) -> None:
            await ctx.yield_output(message)  # type: ignore[arg-type]

    assert (await chained([Loose("l"), Kennel("k")]).run("rex")).get_outputs() == ["rex", Dog("rex")]


# --- declarations that can't work -------------------------------------------------------------------------------------


def test_a_handler_without_an_annotation_is_refused_with_the_fix() -> None:
    class Bare(Executor):
        @handler
        async def take(self, message, ctx):  # type: ignore[no-untyped-def]
            pass

    with pytest.raises(WorkflowValidationError, match=r"Bare.take has no readable annotation for 'message'; annotate"):
        alone(Bare("b"))


def test_a_handler_with_the_wrong_number_of_arguments_is_refused() -> None:
    class Short(Executor):
        @handler
        async def take(self, message: str) -> None: ...

    with pytest.raises(WorkflowValidationError, match=r"Short.take must take \(self, message, ctx\)"):
        alone(Short("s"))


@pytest.mark.parametrize("id", ["", None, 5], ids=repr)
def test_an_executor_needs_a_stable_id(id: Any) -> None:
    with pytest.raises(WorkflowValidationError, match="Zoo needs an id"):
        Zoo(id)


# --- functions --------------------------------------------------------------------------------------------------------


async def test_a_sync_function_runs_in_a_thread() -> None:
    threads: list[threading.Thread] = []

    @executor(id="sync")
    def work(message: str, ctx: WorkflowContext[str, str]) -> None:
        threads.append(threading.current_thread())
        ctx.yield_output(message.upper())  # type: ignore[unused-awaitable]

    assert await outputs(work, "a") == ["A"]
    assert threads != [threading.main_thread()]


async def test_sync_functions_side_by_side_do_not_wait_for_each_other() -> None:
    meeting = threading.Barrier(2, timeout=30)

    @executor(id="start")
    async def start(message: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(message)

    def waiter(name: str) -> Any:
        @executor(id=name)
        def wait(message: str, ctx: WorkflowContext[str, str]) -> None:
            meeting.wait()
            ctx.yield_output(name)  # type: ignore[unused-awaitable]

        return wait

    workflow = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, [waiter("a"), waiter("b")]).build()
    assert (await workflow.run("x")).get_outputs() == ["a", "b"]


async def test_a_function_of_the_message_alone_sends_on_what_it_returns() -> None:
    @executor(id="double")
    def double(number: int) -> int:
        return 2 * number

    @executor(id="show")
    async def show(number: int, ctx: WorkflowContext[int, int]) -> None:
        await ctx.yield_output(number)

    assert (await chained([double, show]).run(4)).get_outputs() == [8]


async def test_a_function_executor_serves_several_runs_at_once() -> None:
    inside = 0
    both_inside = asyncio.Event()

    @executor(id="meet")
    async def meet(message: str, ctx: WorkflowContext[str, str]) -> None:
        nonlocal inside
        inside += 1
        if inside == 2:
            both_inside.set()
        await both_inside.wait()
        await ctx.yield_output(message)

    workflow = alone(meet)
    results = await asyncio.gather(workflow.run("a"), workflow.run("b"))
    assert [result.get_outputs() for result in results] == [["a"], ["b"]]


# --- answers ----------------------------------------------------------------------------------------------------------


@dataclass
class Question:
    text: str


class Clerk(Executor):
    """Asks for a word or a number, and has a handler for each kind of answer and question."""

    @handler
    async def ask(self, what: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.request_info(Question(what) if what != "plain" else what, int if what == "number" else str)

    @response_handler
    async def word(self, original_request: Question, response: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(f"word {response}")

    @response_handler
    async def number(self, original_request: Question, response: int, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(f"number {response}")

    @response_handler
    async def plain(self, original_request: str, response: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(f"plain {response}")


@pytest.mark.parametrize(
    ("what", "answer", "expected"),
    [("word", "w", "word w"), ("number", 7, "number 7"), ("plain", "p", "plain p")],
    ids=["word", "number", "plain"],
)
async def test_an_answer_goes_to_the_handler_for_its_question_and_type(what: str, answer: Any, expected: str) -> None:
    workflow = alone(Clerk("clerk"))
    asked = await workflow.run(what)
    assert (await workflow.run(responses={await only_request(asked): answer})).get_outputs() == [expected]


async def test_a_missing_response_handler_is_named() -> None:
    class Forgetful(Executor):
        @handler
        async def ask(self, what: str, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.request_info(what, str)

    workflow = alone(Forgetful("f"))
    asked = await workflow.run("x")
    with pytest.raises(NoHandler, match=r"'f' has no handler for the answer str to a str \(add a @response_handler\)"):
        await workflow.run(responses={await only_request(asked): "y"})
