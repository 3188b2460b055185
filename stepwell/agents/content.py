"""`Content`: one piece of a message, and the immutability that all chat values share.

Everything in here is deeply immutable, so a message may be shared by histories, sessions, checkpoints and concurrent
runs without a copy, and a checkpoint stores it once. What goes into a content is JSON data: no SDK objects.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NoReturn, Self, TypeVar

from stepwell.checkpointing.json_text import json_writer
from stepwell.checkpointing.registry import register_type

UsageDetails = Mapping[str, int]
"""Token counts: `input_token_count`, `output_token_count`, `total_token_count`, and what else a provider reports."""

T = TypeVar("T")

canonical_json = json_writer(sort_keys=True, spaced=True)
_compact_json = json_writer(sort_keys=True)


class FrozenDict(dict[str, T]):
    """A dict that never changes; it compares, prints and serialises like any other dict."""

    __slots__ = ("_text",)

    _text: str

    @property
    def text(self) -> str:
        """It as canonical JSON; made once, so that schemas can be compared at every call."""
        try:
            return self._text
        except AttributeError:
            self._text = canonical_json(self)
            return self._text

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("this dict belongs to an immutable value; copy it with dict(...) and change the copy")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.text)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        return type(self), (dict(self),)


NOTHING: FrozenDict[Any] = FrozenDict()


def freeze(value: Any, *, path: str = "value") -> Any:
    """The same JSON data, deeply immutable: dicts are frozen, lists become tuples."""
    if type(value) is str:
        return value
    match value:
        case None | bool():
            return value
        case str():
            return value if type(value) is str else str.__str__(value)
        case int():
            return value if type(value) is int else int(value)
        case float():
            return value if type(value) is float else float(value)
        case Mapping():
            return FrozenDict({_checked_key(k, path): freeze(v, path=f"{path}.{k}") for k, v in value.items()})
        case list() | tuple():
            return tuple(freeze(item, path=f"{path}[{index}]") for index, item in enumerate(value))
    raise TypeError(
        f"{path} is a {type(value).__qualname__}; chat values hold JSON data only (str, numbers, lists, dicts)"
    )


def thaw(value: Any) -> Any:
    """The reverse of `freeze`: plain dicts and lists that the caller may change."""
    if type(value) is str:
        return value
    match value:
        case Mapping():
            return {key: thaw(item) for key, item in value.items()}
        case tuple() | list():
            return [thaw(item) for item in value]
    return value


def _checked_key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{path} has the key {key!r}; chat values hold JSON data, whose keys are strings")
    return str.__str__(key)


class ChatValue:
    """What `Content` and `Message` share: frozen, hashable, copied by reference, equal only if every type agrees."""

    __slots__ = ("__weakref__", "_key")

    equality_is_exact: ClassVar[bool] = True
    """Lets checkpoints compare long histories with `==`."""

    _key: str

    def to_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        raise NotImplementedError

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable; make a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable; make a new one instead of deleting {name!r}")

    @property
    def key(self) -> str:
        """The content as canonical JSON: unlike `==` on plain data, it tells 1 from True and from 1.0."""
        try:
            return self._key
        except AttributeError:
            key = _compact_json(self.to_dict())
            object.__setattr__(self, "_key", key)
            return key

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, ChatValue) and type(self) is type(other) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        return type(self).from_dict, (self.to_dict(),)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        """Lets pydantic models and `response_type=Message` hold these, and accept them as JSON."""
        from pydantic_core import core_schema

        def build(value: Any) -> ChatValue:
            return value if isinstance(value, cls) else cls.from_dict(value)

        serialise = core_schema.plain_serializer_function_ser_schema(cls.to_dict)
        schema = core_schema.union_schema([core_schema.is_instance_schema(cls), core_schema.dict_schema()])
        return core_schema.no_info_after_validator_function(build, schema, serialization=serialise)


class Content(ChatValue):
    """One piece of a message; `type` says which of the fields are set.

    Make them with the `from_…` methods. Types: `text`, `text_reasoning`, `function_call`, `function_result`,
    `function_approval_request`, `function_approval_response`, `data`, `uri`, `usage`, `error`.
    """

    __slots__ = (
        "_given",
        "additional_properties",
        "approved",
        "arguments",
        "call_id",
        "error_code",
        "error_details",
        "exception",
        "function_call",
        "id",
        "media_type",
        "message",
        "name",
        "result",
        "text",
        "type",
        "uri",
        "usage_details",
    )

    _FIELDS: ClassVar[frozenset[str]] = frozenset(__slots__) - {"type", "_given"}

    _given: tuple[str, ...]
    """The fields that are set, in order: only they take time, and there are many contents."""

    type: str
    text: str | None
    uri: str | None
    media_type: str | None
    call_id: str | None
    name: str | None
    arguments: str | FrozenDict[Any] | None
    result: Any
    exception: str | None
    id: str | None
    approved: bool | None
    function_call: Content | None
    usage_details: FrozenDict[int] | None
    message: str | None
    error_code: str | None
    error_details: str | None
    additional_properties: FrozenDict[Any]

    def __init__(self, type: str, **fields: Any) -> None:
        unknown = fields.keys() - self._FIELDS
        if unknown:
            raise TypeError(f"a content has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(self._FIELDS))}")
        put = object.__setattr__
        put(self, "type", type)
        given = sorted(name for name, value in fields.items() if value is not None)
        if "additional_properties" in given and not fields["additional_properties"]:
            given.remove("additional_properties")
        for name in given:
            value = fields[name]
            put(self, name, value if isinstance(value, Content) else freeze(value, path=name))
        put(self, "_given", tuple(given))

    def __getattr__(self, name: str) -> Any:
        """A field that is not set."""
        if name not in self._FIELDS:
            raise AttributeError(f"Content has no attribute {name!r}")
        return NOTHING if name == "additional_properties" else None

    # --- making them --------------------------------------------------------------------------------------------------

    @classmethod
    def from_text(cls, text: str, *, additional_properties: Mapping[str, Any] | None = None) -> Content:
        return cls("text", text=text, additional_properties=additional_properties)

    @classmethod
    def from_text_reasoning(cls, *, text: str, additional_properties: Mapping[str, Any] | None = None) -> Content:
        """What a model thought aloud; it is shown and kept, and never sent back."""
        return cls("text_reasoning", text=text, additional_properties=additional_properties)

    @classmethod
    def from_function_call(
        cls, call_id: str, name: str, *, arguments: str | Mapping[str, Any] | None = None, **properties: Any
    ) -> Content:
        return cls("function_call", call_id=call_id, name=name, arguments=arguments, **properties)

    @classmethod
    def from_function_result(
        cls, call_id: str, *, result: Any = None, exception: str | None = None, **properties: Any
    ) -> Content:
        """`exception` marks a failed call; `result` is what the model is told either way."""
        return cls("function_result", call_id=call_id, result=result, exception=exception, **properties)

    @classmethod
    def from_function_approval_request(cls, id: str, function_call: Content, **properties: Any) -> Content:
        return cls("function_approval_request", id=id, function_call=function_call, **properties)

    @classmethod
    def from_function_approval_response(
        cls, approved: bool, id: str, function_call: Content | None = None, **properties: Any
    ) -> Content:
        return cls("function_approval_response", approved=approved, id=id, function_call=function_call, **properties)

    @classmethod
    def from_data(cls, data: bytes, media_type: str, **properties: Any) -> Content:
        """An image or a file, carried inside the message as a data URI."""
        encoded = base64.b64encode(data).decode("ascii")
        return cls("data", uri=f"data:{media_type};base64,{encoded}", media_type=media_type, **properties)

    @classmethod
    def from_uri(cls, uri: str, *, media_type: str | None = None, **properties: Any) -> Content:
        """An image or a file that the model's server fetches; a `data:` URI is data."""
        if uri.startswith("data:"):
            declared = uri[5:].partition(",")[0].partition(";")[0]
            return cls("data", uri=uri, media_type=media_type or declared or None, **properties)
        return cls("uri", uri=uri, media_type=media_type, **properties)

    @classmethod
    def from_usage(cls, usage_details: UsageDetails, **properties: Any) -> Content:
        return cls("usage", usage_details=usage_details, **properties)

    @classmethod
    def from_error(
        cls, message: str, *, error_code: str | None = None, error_details: str | None = None, **properties: Any
    ) -> Content:
        return cls("error", message=message, error_code=error_code, error_details=error_details, **properties)

    def to_function_approval_response(self, approved: bool) -> Content:
        """The answer to this approval request. What will be run is what was stored, whatever the answer carries."""
        if self.type != "function_approval_request" or self.id is None:
            raise ValueError(f"a {self.type} content can't be approved; only a function_approval_request can")
        return Content.from_function_approval_response(approved, self.id, self.function_call)

    # --- reading them -------------------------------------------------------------------------------------------------

    @property
    def data(self) -> bytes:
        """The bytes of a data content."""
        if self.type != "data" or self.uri is None:
            raise ValueError(f"a {self.type} content carries no bytes")
        header, _, payload = self.uri.partition(",")
        if header.endswith(";base64"):
            return base64.b64decode(payload)
        from urllib.parse import unquote_to_bytes

        return unquote_to_bytes(payload)

    @property
    def user_input_request(self) -> bool:
        """Does this content wait for a person?"""
        return self.type == "function_approval_request"

    def parse_arguments(self) -> dict[str, Any] | None:
        """The arguments of a function call; None if there are none, ValueError if they are no JSON object."""
        if self.arguments is None or self.arguments == "":
            return None
        if isinstance(self.arguments, Mapping):
            return dict(thaw(self.arguments))
        parsed = json.loads(self.arguments)
        if not isinstance(parsed, dict):
            raise ValueError(f"the arguments of {self.name!r} are a JSON {type(parsed).__name__}, not an object")
        return parsed

    def to_dict(self) -> dict[str, Any]:
        """JSON data with the fields that are set."""
        result: dict[str, Any] = {"type": self.type}
        for name in self._given:
            value = getattr(self, name)
            result[name] = value.to_dict() if isinstance(value, Content) else thaw(value)
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Content:
        fields = {name: value for name, value in data.items() if name != "type"}
        if "function_call" in fields and isinstance(fields["function_call"], Mapping):
            fields["function_call"] = cls.from_dict(fields["function_call"])
        return cls(data["type"], **fields)

    @property
    def is_plain_text(self) -> bool:
        """Is this a text and nothing else?"""
        return self._given == _TEXT and self.type == "text"

    def __str__(self) -> str:
        return self.text or ""

    def __repr__(self) -> str:
        fields = ", ".join(f"{k}={_shortened(v)}" for k, v in self.to_dict().items() if k != "type")
        return f"Content({self.type!r}{', ' if fields else ''}{fields})"


_TEXT = ("text",)


# Calling a slot's own setter takes a third of the time of `object.__setattr__`, and long histories are read at once.
_set_type, _set_text, _set_given = (vars(Content)[name].__set__ for name in ("type", "text", "_given"))


def plain_text(text: str) -> Content:
    """`Content.from_text`, for text that a checkpoint vouches for."""
    content = object.__new__(Content)
    _set_type(content, "text")
    _set_text(content, text)
    _set_given(content, _TEXT)
    return content


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:119]}…"


def merged(contents: Iterable[Content]) -> tuple[Content, ...]:
    """Pieces of a stream put together: neighbouring texts are joined, parts of one function call become one."""
    result: list[Content] = []
    calls: dict[str, int] = {}
    for content in contents:
        last = result[-1] if result else None
        if content.type in ("text", "text_reasoning") and last is not None and _joinable(last, content):
            result[-1] = Content(content.type, text=(last.text or "") + (content.text or ""))
        elif content.type == "function_call" and content.call_id in calls:
            index = calls[content.call_id]
            result[index] = _extended(result[index], content)
        else:
            if content.type == "function_call" and content.call_id:
                calls[content.call_id] = len(result)
            result.append(content)
    return tuple(content for content in result if not _empty_text(content))


def _joinable(last: Content, content: Content) -> bool:
    return last.type == content.type and not last.additional_properties and not content.additional_properties


def _empty_text(content: Content) -> bool:
    return content.type in ("text", "text_reasoning") and not content.text


def _extended(call: Content, more: Content) -> Content:
    if isinstance(call.arguments, Mapping) or isinstance(more.arguments, Mapping):
        return more
    arguments = (call.arguments or "") + (more.arguments or "")
    return Content("function_call", call_id=call.call_id, name=call.name or more.name, arguments=arguments)


register_type(FrozenDict, name="stepwell.FrozenDict", encode=thaw, decode=freeze, immutable=True)
register_type(Content, name="stepwell.Content", encode=Content.to_dict, decode=Content.from_dict, immutable=True)
