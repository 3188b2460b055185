"""Tools: schemas from signatures, arguments validated, results told, errors handed back."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from stepwell.agents import FunctionTool, ToolContext, ToolError, tool
from stepwell.agents.schema import json_in, strict_schema
from stepwell.agents.tools import ToolFailure, as_tools, result_text
from stepwell.errors import InvalidArguments, StorageError


class Address(BaseModel):
    street: str
    title: str = "home"


class Colour(Enum):
    RED = "red"


@tool
def weather(city: str, days: int = 3, unit: Literal["c", "f"] = "c") -> str:
    """Tell the weather.

    It is a forecast.

    Args:
        city: Where, for example
            Rome.
        days (int): How far ahead.

    Returns:
        A sentence.
    """
    return f"{city} {days} {unit}"


def test_the_schema_comes_from_the_signature_and_the_docstring() -> None:
    assert weather.spec.name == "weather"
    assert weather.spec.description == "Tell the weather.\n\nIt is a forecast."
    assert weather.spec.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where, for example Rome."},
            "days": {"type": "integer", "default": 3, "description": "How far ahead."},
            "unit": {"type": "string", "enum": ("c", "f"), "default": "c"},
        },
        "required": ("city",),
        "additionalProperties": False,
    }


def test_descriptions_may_be_written_next_to_the_parameter() -> None:
    @tool(name="other", description="Said here.")
    def f(
        a: Annotated[str, "said plainly"], b: Annotated[int, Field(description="said by Field", ge=0)], c: float = 1
    ) -> None:
        """Not this.

        :param a: nor this
        :param b: nor this either
        :param float c: by the docstring
        :return: nothing
        """

    properties = f.spec.parameters["properties"]

    assert (f.name, f.description) == ("other", "Said here.")
    assert [properties[name]["description"] for name in "abc"] == ["said plainly", "said by Field", "by the docstring"]
    assert properties["b"]["minimum"] == 0


def test_parameters_may_have_the_names_of_model_attributes() -> None:
    @tool
    def f(schema: str, copy: bool, model_config: int, title: str, _hidden: int = 1) -> str:
        return f"{schema}{copy}{model_config}{title}{_hidden}"

    assert set(f.spec.parameters["properties"]) == {"schema", "copy", "model_config", "title", "_hidden"}


async def test_arguments_are_converted_to_what_the_function_expects() -> None:
    seen: list[Any] = []

    @tool
    def f(where: Address, when: datetime, colour: Colour, many: list[int] | None = None) -> None:
        seen.extend([where, when, colour, many])

    await f.invoke('{"where": {"street": "x"}, "when": "2030-01-01T00:00:00Z", "colour": "red", "many": ["1"]}')

    assert seen == [Address(street="x"), datetime(2030, 1, 1, tzinfo=UTC), Colour.RED, [1]]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param("{", "not valid JSON", id="cut off"),
        pytest.param("[1]", "dict", id="no object"),
        pytest.param("{}", "city: Field required", id="missing"),
        pytest.param('{"city": "x", "days": "soon"}', "days: Input should be a valid integer", id="wrong type"),
        pytest.param('{"city": "x", "colour": 1}', "colour: Extra inputs", id="unknown"),
        pytest.param('{"city": "x", "unit": "k"}', "unit: Input should be 'c' or 'f'", id="not in the enum"),
    ],
)
def test_a_complaint_about_arguments_is_in_words_a_model_can_use(arguments: str, complaint: str) -> None:
    with pytest.raises(InvalidArguments, match=complaint) as caught:
        weather.validate(arguments)
    assert "pydantic" not in str(caught.value)


@dataclass
class Point:
    x: int
    y: float


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param("plain", "plain", id="text"),
        pytest.param(None, "null", id="nothing"),
        pytest.param({"a": [1, None, True]}, '{"a":[1,null,true]}', id="json"),
        pytest.param(Address(street="é"), '{"street":"é","title":"home"}', id="pydantic"),
        pytest.param(Point(1, 2.5), '{"x":1,"y":2.5}', id="dataclass"),
        pytest.param(datetime(2030, 1, 1, tzinfo=UTC), '"2030-01-01T00:00:00Z"', id="datetime"),
        pytest.param({"p": Colour}, None, id="anything else"),
    ],
)
def test_any_result_can_be_told(value: Any, text: str | None) -> None:
    assert result_text(value) == text or text is None


async def test_a_sync_function_runs_in_a_thread_and_an_async_one_here() -> None:
    @tool
    def in_thread() -> int:
        return threading.get_ident()

    @tool
    async def here() -> int:
        return threading.get_ident()

    assert await here.invoke() == threading.get_ident()
    assert await in_thread.invoke() != threading.get_ident()


async def test_the_context_is_injected_and_the_model_does_not_see_it() -> None:
    @tool
    async def whoami(question: str, context: ToolContext | None = None, **kwargs: Any) -> str:
        assert context is not None
        return f"{question} {context.run_id} {context.idempotency_key} {kwargs['user']}"

    context = ToolContext(run_id="r1", idempotency_key="k1", kwargs={"user": "ada"})

    assert list(whoami.spec.parameters["properties"]) == ["question"]
    assert await whoami.invoke({"question": "who?"}, context=context) == "who? r1 k1 ada"


async def test_what_a_tool_raises_is_told_to_the_model() -> None:
    @tool
    def broken() -> None:
        raise LookupError("no such invoice")

    outcome = await broken.outcome(broken.validate("{}"), context=ToolContext())

    assert outcome == ToolFailure("Error: LookupError: no such invoice")


async def test_a_tool_may_ask_for_its_errors_to_be_raised() -> None:
    @tool(on_error="raise")
    def broken() -> None:
        raise LookupError("no such invoice")

    with pytest.raises(LookupError):
        await broken.outcome(broken.validate("{}"), context=ToolContext())


async def test_an_at_most_once_tool_raises_because_its_effect_is_unknown() -> None:
    @tool(at_most_once=True)
    def pay(invoice: int) -> None:
        raise ToolError("there is no such invoice") if invoice == 0 else ConnectionError("lost")

    with pytest.raises(ConnectionError):
        await pay.outcome(pay.validate('{"invoice": 1}'), context=ToolContext())
    refused = await pay.outcome(pay.validate('{"invoice": 0}'), context=ToolContext())
    assert refused == ToolFailure("Error: there is no such invoice")


async def test_an_error_of_the_journal_is_never_told_to_the_model() -> None:
    @tool
    def nested() -> None:
        raise StorageError("disk", "full")

    with pytest.raises(StorageError):
        await nested.outcome(nested.validate("{}"), context=ToolContext())


async def test_a_tool_that_takes_too_long_is_given_up() -> None:
    @tool(timeout=0.01)
    async def slow() -> None:
        await asyncio.Event().wait()

    outcome = await slow.outcome(slow.validate("{}"), context=ToolContext())

    assert outcome == ToolFailure("Error: slow did not finish within 0.01 seconds")


async def test_a_method_can_be_a_tool() -> None:
    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        @tool(approval_mode="always")
        def buy(self, item: str) -> str:
            """Buy something."""
            return f"{item} at {self.name}"

    bound = Shop("corner").buy

    assert list(bound.spec.parameters["properties"]) == ["item"]
    assert bound.needs_approval
    assert await bound.invoke({"item": "tea"}) == "tea at corner"


@pytest.mark.parametrize("mode", ["always", "always_require"])
def test_both_spellings_of_approval_are_understood(mode: Any) -> None:
    assert tool(approval_mode=mode)(lambda: None).needs_approval
    assert not tool(approval_mode="never_require")(lambda: None).needs_approval
    with pytest.raises(ValueError, match="sometimes"):
        tool(approval_mode="sometimes")(lambda: None)  # type: ignore[call-overload]


def test_a_tool_is_still_the_function_it_was() -> None:
    assert weather("Rome") == "Rome 3 c"
    assert weather.__doc__ is not None


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="weather"):
        as_tools([weather, weather])
    assert [type(item) for item in as_tools(lambda: None)] == [FunctionTool]


def test_an_unresolvable_annotation_is_an_error_that_names_the_tool() -> None:
    def f(x: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    with pytest.raises(TypeError, match="'f'"):
        _ = FunctionTool(f).spec


def test_the_strict_dialect_requires_everything_and_allows_nothing_besides() -> None:
    strict = strict_schema(Address.model_json_schema())

    assert strict is not None
    assert strict["required"] == ["street", "title"]
    assert strict["additionalProperties"] is False
    assert "default" not in strict["properties"]["title"]


def test_a_free_form_dict_can_not_be_said_in_the_strict_dialect() -> None:
    class Loose(BaseModel):
        data: dict[str, int]

    assert strict_schema(Loose.model_json_schema()) is None


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param('{"a": "}"}', id="bare"),
        pytest.param('```json\n{"a": "}"}\n```', id="fenced"),
        pytest.param('Sure! Here it is:\n```\n{"a": "}"}\n``` Anything else?', id="fenced with small talk"),
        pytest.param('Here you go: {"a": "}"} - hope that helps {really}', id="in a sentence"),
        pytest.param('Let {x} be.\n\n {"a": "}"}', id="after braces that are no JSON"),
    ],
)
def test_json_is_found_in_a_talkative_reply(reply: str) -> None:
    assert json_in(reply) == '{"a": "}"}'
