"""Messages and contents: immutable, comparable, compact."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from stepwell.agents import AgentResponse, AgentResponseUpdate, ChatResponse, ChatResponseUpdate, Content, Message
from stepwell.agents.content import FrozenDict
from stepwell.checkpointing.codec import Codec
from stepwell.errors import AgentException, ChatClientException, ModelCallFailed, RateLimited, StepwellError

CALL = Content.from_function_call("c1", "pay", arguments={"invoice": 7, "tags": ["a", "b"]})

CONTENTS = [
    pytest.param(Content.from_text("héllo ☃"), id="text"),
    pytest.param(Content.from_text_reasoning(text="hm"), id="reasoning"),
    pytest.param(CALL, id="call with a dict"),
    pytest.param(Content.from_function_call("c1", "pay", arguments='{"invoice": 7}'), id="call with text"),
    pytest.param(Content.from_function_result("c1", result={"paid": [1, 2.5, True, None]}), id="result"),
    pytest.param(Content.from_function_result("c1", result="no", exception="Error"), id="failure"),
    pytest.param(Content.from_function_approval_request("c1", CALL), id="approval request"),
    pytest.param(Content.from_function_approval_response(True, "c1", CALL), id="approval response"),
    pytest.param(Content.from_data(b"\x00\xff", "image/png"), id="data"),
    pytest.param(Content.from_uri("https://example.test/a.png", media_type="image/png"), id="uri"),
    pytest.param(Content.from_usage({"input_token_count": 3}), id="usage"),
    pytest.param(Content.from_error("broken", error_code="E1"), id="error"),
]


@pytest.mark.parametrize("content", CONTENTS)
def test_a_content_survives_every_way_of_being_written_down(content: Content) -> None:
    codec = Codec()
    message = Message("user", [content], author_name="ada", message_id="m1", additional_properties={"x": [1]})

    assert Content.from_dict(json.loads(json.dumps(content.to_dict()))) == content
    assert pickle.loads(pickle.dumps(message)) == message
    assert codec.decode_text(codec.encode_text(message), strict=True) == message
    assert codec.decode_text(codec.encode_text(content), strict=True) == content


def test_a_message_takes_a_text_or_a_list_of_texts_and_contents() -> None:
    assert Message("user", "hi") == Message("user", ["hi"]) == Message("user", [Content.from_text("hi")])
    assert Message("user", text="hi").text == "hi"
    assert Message("user", ["a", CALL, "b"]).text == "ab"


def test_a_message_has_no_id_of_its_own_so_equal_words_are_equal_messages() -> None:
    assert Message("user", "hi").message_id is None
    assert len({Message("user", "hi"), Message("user", "hi"), Message("assistant", "hi")}) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(1, True, id="int and bool"),
        pytest.param(1, 1.0, id="int and float"),
        pytest.param("1", 1, id="str and int"),
        pytest.param(0, False, id="zero and false"),
    ],
)
def test_equality_is_strict_about_types(one: Any, other: Any) -> None:
    assert Message("user", "x", additional_properties={"v": one}) != Message(
        "user", "x", additional_properties={"v": other}
    )
    assert Content.from_function_result("c", result=one) != Content.from_function_result("c", result=other)


def test_nothing_in_a_message_can_be_changed() -> None:
    arguments = {"deep": [{"x": 1}]}
    message = Message(
        "user", [Content.from_function_call("c", "f", arguments=arguments)], additional_properties={"a": {"b": []}}
    )
    before = hash(message)
    arguments["deep"].append({"y": 2})

    for change in (
        lambda: setattr(message, "role", "system"),
        lambda: setattr(message.contents[0], "name", "g"),
        lambda: message.additional_properties.update(a=1),
        lambda: message.additional_properties["a"].__setitem__("b", 1),
        lambda: message.additional_properties.pop("a"),
        lambda: delattr(message, "role"),
    ):
        with pytest.raises((AttributeError, TypeError)):
            change()
    with pytest.raises(AttributeError):
        message.additional_properties["a"]["b"].append(1)
    assert hash(message) == before
    assert message.contents[0].parse_arguments() == {"deep": [{"x": 1}]}


def test_copies_of_a_message_are_the_message() -> None:
    message = Message("user", "hi", additional_properties={"a": 1})

    assert copy.copy(message) is message
    assert copy.deepcopy([message])[0] is message
    assert copy.deepcopy(message.additional_properties) is message.additional_properties


def test_what_is_no_json_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"additional_properties\.raw is a object"):
        Message("user", "hi", additional_properties={"raw": object()})
    with pytest.raises(TypeError, match="keys are strings"):
        Content.from_function_call("c", "f", arguments={1: 2})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="colour"):
        Content("text", colour="red")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values), st.text())
def test_any_json_data_comes_back_from_a_checkpoint(properties: dict[str, Any], text: str) -> None:
    codec = Codec()
    message = Message("user", [text], additional_properties=properties)

    loaded = codec.decode_text(codec.encode_text(message), strict=True)

    assert loaded == message
    assert hash(loaded) == hash(message)


def test_data_is_carried_as_a_data_uri() -> None:
    assert Content.from_data(b"\x89PNG", "image/png").data == b"\x89PNG"
    assert Content.from_uri("data:text/plain,a%20b").data == b"a b"
    assert Content.from_uri("data:image/gif;base64,AAAA").media_type == "image/gif"


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        pytest.param('{"a": 1}', {"a": 1}, id="text"),
        pytest.param({"a": [1]}, {"a": [1]}, id="dict"),
        pytest.param("", None, id="empty"),
        pytest.param(None, None, id="none"),
    ],
)
def test_arguments_are_parsed_from_text_and_dict(arguments: Any, parsed: Any) -> None:
    assert Content.from_function_call("c", "f", arguments=arguments).parse_arguments() == parsed


def test_arguments_that_are_no_object_are_a_value_error() -> None:
    with pytest.raises(ValueError, match="list"):
        Content.from_function_call("c", "f", arguments="[1]").parse_arguments()


def test_only_an_approval_request_can_be_approved() -> None:
    response = Content.from_function_approval_request("c1", CALL).to_function_approval_response(False)

    assert (response.type, response.id, response.approved) == ("function_approval_response", "c1", False)
    with pytest.raises(ValueError, match="function_call"):
        CALL.to_function_approval_response(True)


def test_pydantic_models_hold_messages_and_accept_them_as_json() -> None:
    class Note(BaseModel):
        message: Message

    note = Note(message=Message("user", "hi"))

    assert Note.model_validate_json(note.model_dump_json()) == note
    assert TypeAdapter(Message).validate_python({"role": "user", "contents": ["hi"]}) == Message("user", "hi")


def test_a_streamed_reply_is_put_together_again() -> None:
    reply = ChatResponse.from_updates(
        [
            ChatResponseUpdate((Content.from_text("Hel"),), model="m"),
            ChatResponseUpdate((Content.from_text("lo"),)),
            ChatResponseUpdate((Content.from_function_call("c1", "f", arguments='{"a"'),)),
            ChatResponseUpdate((Content.from_function_call("c1", "f", arguments=": 1}"),)),
            ChatResponseUpdate((Content.from_usage({"input_token_count": 3}),), finish_reason="tool_calls"),
        ]
    )

    assert reply.text == "Hello"
    assert reply.function_calls[0].parse_arguments() == {"a": 1}
    assert reply.usage_details == {"input_token_count": 3}
    assert (reply.finish_reason, reply.model) == ("tool_calls", "m")


def test_an_agents_updates_amount_to_its_messages() -> None:
    response = AgentResponse.from_updates(
        [
            AgentResponseUpdate((Content.from_text("I "),), author_name="a"),
            AgentResponseUpdate((Content.from_text("look."), CALL), author_name="a"),
            AgentResponseUpdate((Content.from_function_result("c1", result="ok"),), role="tool"),
            AgentResponseUpdate((Content.from_text("Done."),), author_name="a", finish_reason="stop"),
        ]
    )

    assert [message.role for message in response.messages] == ["assistant", "tool", "assistant"]
    assert response.text == "I look.\nDone."
    assert response.finish_reason == "stop"


def test_responses_survive_the_codec_and_their_own_dict() -> None:
    codec = Codec()
    agent = AgentResponse([Message("assistant", "hi")], usage_details=FrozenDict({"total_token_count": 3}))
    chat = ChatResponse.of("hi", finish_reason="stop", usage_details=FrozenDict({"total_token_count": 3}))
    update = AgentResponseUpdate((Content.from_text("h"),), author_name="a")

    for value in (agent, chat, update, agent.usage_details):
        assert codec.decode_text(codec.encode_text(value), strict=True) == value
    assert AgentResponse.from_dict(json.loads(json.dumps(agent.to_dict()))) == agent
    assert ChatResponse.from_dict(json.loads(json.dumps(chat.to_dict()))) == chat


def test_a_recorded_reply_is_compact() -> None:
    text = Codec().encode_text(ChatResponse.of("hello", finish_reason="stop"))

    assert len(text) < 200


def leaves(cls: type[Exception]) -> list[type[Exception]]:
    below = cls.__subclasses__()
    return [leaf for child in below for leaf in leaves(child)] if below else [cls]


def sample_arguments(kind: type[Exception]) -> list[Any]:
    """Something for each parameter that has no default, by its annotation."""
    samples: dict[str, Any] = {"str": "x", "int": 2, "tuple[str, ...]": ("q",)}
    if not inspect.isfunction(kind.__init__):  # it is the built-in one, which takes anything
        return ["x"]
    parameters = inspect.signature(kind).parameters.values()
    wanted = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
    return [samples[p.annotation] for p in wanted] or ["x"]


@pytest.mark.parametrize(
    "kind", [kind for branch in (AgentException, ChatClientException) for kind in leaves(branch)], ids=str
)
def test_every_error_of_this_room_survives_pickling(kind: type[StepwellError]) -> None:
    error = kind(*sample_arguments(kind))

    again = pickle.loads(pickle.dumps(error))

    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_a_failed_call_says_what_to_do_next() -> None:
    error = RateLimited("gpt", "slow down", 429, "rate_limit_exceeded", "req_1", 2.0)
    error.attempts = 4

    assert isinstance(error, ModelCallFailed)
    for part in ("'gpt'", "after 4 attempts", "HTTP 429", "slow down", "max_concurrency", "req_1"):
        assert part in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
