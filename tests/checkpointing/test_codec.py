"""Values survive with their types, what can't survive is refused when it is saved, and loading never runs code."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum, auto
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    PrivateAttr,
    Secret,
    SecretBytes,
    SecretStr,
    field_validator,
    model_validator,
)

from stepwell.checkpointing import codec as codec_module
from stepwell.checkpointing.codec import MAX_DEPTH, Codec, OpaqueValue
from stepwell.checkpointing.registry import TypeRegistry
from stepwell.errors import (
    CodecError,
    LimitExceeded,
    NotSavable,
    SecretRefused,
    Undecodable,
    UnknownType,
)
from stepwell.testing.storage import exact

T = TypeVar("T")

REPOSITORY = Path(__file__).parents[2]


# --- the types of a small shop ----------------------------------------------------------------------------------------


class Colour(Enum):
    RED = 1
    GREEN = "green"
    ALSO_RED = 1


class Priority(IntEnum):
    LOW = 1
    HIGH = 2


class Kind(StrEnum):
    A = "a"


class Rights(Flag):
    READ = auto()
    WRITE = auto()
    ALL = READ | WRITE


class Bits(IntFlag):
    """Keeps bits that have no name."""

    ONE = 1
    TWO = 2


class Point(NamedTuple):
    x: int
    y: Any = None


@dataclass
class Order:
    number: int
    lines: list[Any] = field(default_factory=list)
    total: Decimal = Decimal(0)


@dataclass(frozen=True)
class Stamp:
    at: Any


@dataclass(frozen=True, slots=True)
class SlottedStamp:
    at: Any


@dataclass(slots=True)
class Draft:
    """Some fields are set later, or never."""

    title: str
    body: str = field(init=False)
    tags: list[str] = field(init=False, default_factory=list)


@dataclass
class Rush(Order):
    until: Any = None


@dataclass
class Priced:
    net: int
    rate: InitVar[int] = 2
    gross: int = field(init=False, default=0)

    def __post_init__(self, rate: int) -> None:
        self.gross = self.net * rate


@dataclass
class Titled:
    """Keeps more than its fields, as `__post_init__` often does."""

    title: str

    def __post_init__(self) -> None:
        self.slug = self.title.lower()

    @cached_property
    def parser(self) -> Any:
        return lambda: self.title


@dataclass
class Box(Generic[T]):
    content: T


class Address(BaseModel):
    street: str
    number: int = 1


class Customer(BaseModel):
    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)
    name: str
    address: Address | None = None
    anything: Any = None
    _seen: list[int] = PrivateAttr(default_factory=list)
    _never_set: int = PrivateAttr()


class Shy(BaseModel):
    """Has room for a private attribute, and nothing in it."""

    _secretly: int = PrivateAttr()


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    name: str


class Celsius:
    """Not a record: it needs a hand."""

    def __init__(self, degrees: float) -> None:
        self.degrees = degrees

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Celsius) and self.degrees == other.degrees

    def __hash__(self) -> int:
        return hash(self.degrees)

    def __repr__(self) -> str:
        return f"Celsius({self.degrees})"


RECORDS: list[type] = [
    *(Colour, Priority, Kind, Rights, Bits, Point),
    *(Order, Stamp, SlottedStamp, Draft, Rush, Priced, Titled, Box),
    *(Address, Customer, Shy, Frozen),
]


def shop() -> TypeRegistry:
    registry = TypeRegistry()
    for cls in RECORDS:
        registry.register(cls)
    registry.register(Celsius, encode=lambda c: c.degrees, decode=Celsius)
    return registry


CODEC = Codec(shop())


def round_trip(value: Any) -> Any:
    return CODEC.decode_text(CODEC.encode_text(value), strict=True)


# --- values survive with their types ----------------------------------------------------------------------------------


def drafts() -> dict[str, Any]:
    untouched, full = Draft("a"), Draft("b")
    full.body = "text"
    tagless = Draft("c")
    del tagless.tags
    return {"unset slot": untouched, "all slots": full, "deleted slot": tagless}


def customers() -> dict[str, Any]:
    seen = Customer(name="Ann")
    seen._seen.append(1)
    seen._never_set = 7
    return {
        "model": Customer(name="Ann", address=Address(street="x")),
        "model with extra": Customer.model_validate({"name": "Ann", "nick": "A", "$": 1, "t": {"$": 2}}),
        "model with private": seen,
        "model with fields set": Address(street="x", number=1),
        "model with fields not set": Address(street="x"),
        "model with odd values": Customer(name="Ann", anything={1: (2, {3})}),
        "model that lacks a field": Address.model_construct(number=3),
        "model with nothing private yet": Shy(),
        "frozen model": Frozen(name="x"),
    }


BERLIN = ZoneInfo("Europe/Berlin")

SURVIVORS: dict[str, Any] = {
    "lone surrogates": ["\ud800", "\udfff text", {"\ud83d": 1}],
    "a pair torn apart": ["\ud83d" + "\ude00", {"\ud83d" + "\ude00": ("\ud83d" + "\ude00" + "\ud83d",)}],
    "a pair in one piece": "😀",
    "control characters": "\x00\x1f\x7f\u2028\u2029",
    "huge ints": [10**4400, -(10**4400), 2**4096, 2**4095, (10**5000,)],
    "floats": [0.1, 1e308, 5e-324, 1e22, 1.0],
    "minus zero": [-0.0, 0.0],
    "not finite": [float("nan"), float("inf"), float("-inf"), {"x": float("nan")}, (float("inf"), 1)],
    "one, true and one point zero": [1, True, 1.0, {"a": 1}, {"a": True}],
    "int keys": {1: "a", -2: "b", 10**30: "c"},
    "keys that differ by type only": {1: "int", "1": "str", (1,): "tuple"},
    "keys of every kind": {None: 0, True: 1, 2.5: 2, (1, (2,)): 3, frozenset({1}): 4, b"x": 5, Colour.RED: 6},
    "records as keys": {Stamp(1): 1, Point(1, 2): 2, UUID(int=1): 3, date(2026, 1, 1): 4},
    "nan as key": {float("nan"): 1},
    "keys that look like ours": [{"$": 1}, {"$": "tuple", "v": [1]}, {"$": None}, {"t": 1, "v": 2}, {"$": {"$": 3}}],
    "insertion order": {"b": 1, "a": 2, "c": {3: 1, 1: 2, 2: 3}},
    "empty containers": [[], {}, (), set(), frozenset(), deque(), OrderedDict(), Counter(), "", b"", bytearray()],
    "tuples": [(), (1,), ((1, [2]), {3}), {"a": (1,)}],
    "sets": [{1, "a", None}, frozenset({(1, 2), frozenset({3})}), {Colour.RED, Kind.A}],
    "bytes": [b"\x00\xff", bytearray(b"\x00\xff")],
    "deque": [deque([1, (2,)]), deque([1], maxlen=3), deque(maxlen=0)],
    "counter": Counter({"a": 2, "b": -1, 3: 0}),
    "ordered dict": OrderedDict([("b", 1), ("a", 2)]),
    "defaultdicts": [defaultdict(list, {"a": [1]}), defaultdict(None, {1: 2}), defaultdict(int), defaultdict(dict)],
    "complex": [1 + 2j, complex("nan"), complex(0.0, -0.0)],
    "naive datetime": datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001
    "datetime in utc": datetime(2026, 1, 2, tzinfo=UTC),
    "datetime with an offset": datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-3, minutes=-30, seconds=5))),
    "datetime in a zone": datetime(2026, 7, 1, tzinfo=BERLIN),
    "the first of two half past two": datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN),
    "the second of two half past two": datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
    "times": [time(1, 2, 3, 4), time(2, 30, fold=1), time(1, tzinfo=UTC), time(1, tzinfo=BERLIN)],
    "dates": [date.min, date.max, datetime.min, datetime.max],  # noqa: DTZ901
    "spans": [timedelta.min, timedelta.max, timedelta(microseconds=-1)],
    "decimals": [
        Decimal("1.10"),
        Decimal("-0"),
        Decimal("NaN"),
        Decimal("sNaN123"),
        Decimal("Infinity"),
        Decimal("1E+9"),
    ],
    "uuid": UUID(int=2**127),
    "paths": [Path("a/b"), Path("/"), Path(), PurePosixPath("a/../b"), PureWindowsPath("C:\\x\\y")],
    "enums": [Colour.RED, Colour.ALSO_RED, Colour.GREEN, Priority.HIGH, Kind.A],
    "flags": [Rights.READ, Rights.ALL, Rights(0), Bits.ONE, Bits(0), Bits.ONE | Bits(8), Bits(8)],
    "named tuples": [Point(1), Point(1, (2, [3]))],
    "dataclass": Order(1, [Order(2), (1,)], Decimal("2.50")),
    "frozen dataclass": Stamp([1, {2}]),
    "slotted dataclass": SlottedStamp((1, 2)),
    "inherited dataclass": Rush(1, until=datetime(2026, 1, 1, tzinfo=UTC)),
    "init-only argument": Priced(2, 3),
    "attributes beside the fields": Titled("A Tale"),
    "generic dataclass": Box[int](3),
    "helped": Celsius(1.5),
    "nested": {"a": [Order(1, [Point(1, Customer(name="x", anything=Stamp({1: (2,)})))])]},
    **drafts(),
    **customers(),
}


@pytest.mark.parametrize("name", SURVIVORS)
def test_a_value_survives_with_its_type(name: str) -> None:
    value = SURVIVORS[name]
    if name == "generic dataclass":
        del value.__orig_class__
    assert exact(round_trip(value)) == exact(value)


def test_a_generic_dataclass_made_with_its_parameter_is_savable() -> None:
    assert round_trip(Box[int](3)) == Box(3)


def test_a_cached_property_is_not_part_of_the_value() -> None:
    title = Titled("A Tale")
    assert title.parser() == "A Tale"
    assert round_trip(title).parser() == "A Tale"


def test_models_stay_equal() -> None:
    for customer in customers().values():
        assert round_trip(customer) == customer


TEXTS = st.text(st.characters(exclude_categories=()), max_size=12)
ZONES = st.sampled_from([None, UTC, timezone(timedelta(minutes=-90)), BERLIN, ZoneInfo("America/New_York")])
KEYS: st.SearchStrategy[Any] = st.one_of(
    TEXTS,
    st.sampled_from(["$", "t", "v", "b"]),
    st.integers(),
    st.booleans(),
    st.none(),
    st.binary(max_size=4),
    st.tuples(st.integers(), TEXTS),
    st.frozensets(st.integers(), max_size=3),
    st.sampled_from([Colour.RED, Priority.LOW, Kind.A, Point(1, 2), Stamp("x")]),
)
SCALARS: st.SearchStrategy[Any] = st.one_of(
    KEYS,
    st.floats(),
    st.integers(min_value=-(2**5000), max_value=2**5000),
    st.complex_numbers(),
    st.binary(max_size=8).map(bytearray),
    st.datetimes(timezones=ZONES),
    st.times(timezones=st.sampled_from([None, UTC])),
    st.dates(),
    st.timedeltas(),
    st.decimals(),
    st.uuids(),
    st.sampled_from([Path("a/b"), PurePosixPath("c"), PureWindowsPath("C:\\d")]),
    st.integers(0, 3).map(Rights),
    st.integers(0, 31).map(Bits),
)


def containers(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(items, max_size=5)
    return st.one_of(
        lists,
        lists.map(tuple),
        st.builds(deque, lists, st.sampled_from([None, 3])),
        st.dictionaries(KEYS, items, max_size=5),
        st.dictionaries(TEXTS, items, max_size=5).map(OrderedDict),
        st.dictionaries(KEYS, st.integers(), max_size=5).map(Counter),
        st.dictionaries(TEXTS, items, max_size=5).map(lambda d: defaultdict(list, d)),
        st.sets(KEYS, max_size=5),
        st.frozensets(KEYS, max_size=5),
        st.builds(Order, st.integers(), lists),
        st.builds(Rush, st.integers(), lists, until=items),
        st.builds(SlottedStamp, items),
        st.builds(Point, st.integers(), items),
        st.builds(Customer, name=TEXTS, anything=items),
        st.dictionaries(TEXTS, items, max_size=3).map(lambda extra: Customer.model_construct(name="x", **extra)),
    )


VALUES = st.recursive(SCALARS, containers, max_leaves=20)


@given(VALUES)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_nesting_of_values_survives_with_its_types(value: Any) -> None:
    assert exact(round_trip(value)) == exact(value)


@given(VALUES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_written_is_plain_utf8_json_and_always_the_same(value: Any) -> None:
    text = CODEC.encode_text(value)
    assert json.loads(text.encode()) is not object
    assert CODEC.encode_text(round_trip(value)) == text


def test_equal_sets_are_written_alike_whatever_order_they_have_in_memory() -> None:
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other), "the point of it"
    assert CODEC.encode_text(one) == CODEC.encode_text(other)


# --- types change over time -------------------------------------------------------------------------------------------


def test_a_field_added_since_gets_its_default() -> None:
    text = CODEC.encode_text(Order(1)).replace('"lines":[],', "")
    assert round_trip(Order(1)) == CODEC.decode_text(text, strict=True)


def test_a_field_added_since_without_a_default_is_named() -> None:
    text = CODEC.encode_text(Order(1)).replace('"number":1,', "")
    with pytest.raises(Undecodable, match="'number' was added since"):
        CODEC.decode_text(text)


def test_a_field_of_a_model_added_since_gets_its_default() -> None:
    text = tagged("model", t=name_of(Address), v={"street": "x"})
    assert CODEC.decode_text(text) == Address(street="x")


def test_a_field_removed_since_is_dropped() -> None:
    text = CODEC.encode_text(Stamp(1)).replace('"at":1', '"at":1,"gone":2')
    assert CODEC.decode_text(text) == Stamp(1)


def test_a_member_removed_since_is_named() -> None:
    text = CODEC.encode_text(Colour.RED).replace("RED", "BLUE")
    with pytest.raises(Undecodable, match="no member 'BLUE'"):
        CODEC.decode_text(text)


def name_of(cls: type) -> str:
    entry = CODEC.registry.entry_for(cls)
    assert entry is not None
    return entry.name


# --- what can't be saved is refused at save ---------------------------------------------------------------------------


class Plain:
    pass


class Unnamed(Enum):
    """Makes members up as it goes."""

    KNOWN = 1

    @classmethod
    def _missing_(cls, value: object) -> Unnamed:
        made_up = object.__new__(cls)
        made_up._value_, made_up._name_ = value, "MADE_UP"  # type: ignore[assignment]
        return made_up


@dataclass
class Unregistered:
    x: int


@dataclass
class Problem(Exception):
    """A dataclass whose instances can't be made without calling it."""

    x: int


class LoudInt(int):
    pass


class LoudStr(str):
    __slots__ = ()


def numbers() -> Iterator[int]:
    yield 1


REFUSED: dict[str, tuple[Any, str, str]] = {
    "an object": ({"a": [Plain()]}, "value['a'][0]", "register_type(Plain, encode=..., decode=...)"),
    "a function": ({"a": {"b": print}}, "value['a']['b']", "keep functions"),
    "a class": ([Plain], "value[0]", "keep functions"),
    "a generator": ((1, numbers()), "value[1]", "iterators"),
    "an unregistered dataclass": (Stamp([Unregistered(1)]), "value.at[0]", "register_type(Unregistered)"),
    "a subclass of int": (Point(LoudInt(1)), "value.x", "convert it to a plain int"),
    "a subclass of str": ({"k": LoudStr("x")}, "value['k']", "convert it to a plain str"),
    "a key": ({LoudInt(1): 1}, "value key 1", "convert it to a plain int"),
    "a member of a set": ({LoudStr("x")}, "value{'x'}", "plain str"),
    "an odd default factory": ({"d": defaultdict(lambda: 1)}, "value['d']", "plain dict"),
    "inside a deque": (deque([print]), "value[0]", "keep functions"),
    "inside a model": (Customer(name="x", anything=[print]), "value.anything[0]", "keep functions"),
    "inside a model's extras": (Customer.model_construct(name="x", more=print), "value.more", "keep functions"),
    "inside a slotted dataclass": (SlottedStamp(print), "value.at", "keep functions"),
    "a dataclass that is an exception": ([Problem(1)], "value[0]", "register_type(Problem, encode=..., decode=...)"),
    "a made-up member": ([Unnamed("new")], "value[0]", "no declared member"),
    "a memoryview": ([memoryview(b"x")], "value[0]", "register_type(memoryview, encode="),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_where_the_value_sits_and_what_to_do(name: str) -> None:
    value, path, fix = REFUSED[name]
    registry = shop()
    registry.register(Problem)
    registry.register(Unnamed)
    with pytest.raises(NotSavable) as caught:
        Codec(registry).encode_text(value)
    assert caught.value.path == path
    assert fix in caught.value.fix


def test_an_attribute_beside_the_fields_is_refused_too() -> None:
    title = Titled("x")
    title.hook = print  # type: ignore[attr-defined]
    with pytest.raises(NotSavable, match=r"value\.hook"):
        CODEC.encode_text(title)


class ApiKey(SecretStr):
    pass


class Account(BaseModel):
    key: SecretStr


@dataclass
class Login:
    key: Any


SECRETS: dict[str, Any] = {
    "a secret text": SecretStr("s3cret"),
    "secret bytes": SecretBytes(b"s3cret"),
    "a subclass": ApiKey("s3cret"),
    "a secret of any type": Secret[int](7),
    "in a list": [1, SecretStr("s3cret")],
    "in a dict": {"a": {"b": SecretStr("s3cret")}},
    "as a key": {SecretStr("s3cret"): 1},
    "in a dataclass": Login(SecretStr("s3cret")),
    "in a model": Account(key=SecretStr("s3cret")),
    "in a model in a dataclass in a list": [Login(Account(key=SecretStr("s3cret")))],
    "in a model's extras": Customer.model_construct(name="x", key=SecretStr("s3cret")),
    "in a named tuple": Point(1, SecretStr("s3cret")),
}


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_refused_wherever_they_hide(name: str) -> None:
    registry = shop()
    registry.register(Account)
    registry.register(Login)
    with pytest.raises(SecretRefused) as caught:
        Codec(registry).encode_text(SECRETS[name])
    assert "s3cret" not in str(caught.value)


def nested(levels: int, wrap: Any = lambda x: [x]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


WRAPS: dict[str, Any] = {
    "lists": lambda x: [x],
    "dicts": lambda x: {"a": x},
    "int keys": lambda x: {1: x},
    "tuples": lambda x: (x,),
    "frozen sets": lambda x: frozenset([x]),
    "dataclasses": Stamp,
    "models": lambda x: Customer.model_construct(name="x", anything=x),
    "named tuples": lambda x: Point(1, x),
}


@pytest.mark.parametrize("name", WRAPS)
def test_depth_is_limited_and_everything_within_the_limit_survives(name: str) -> None:
    deep = nested(MAX_DEPTH - 1, WRAPS[name])
    assert exact(round_trip(deep)) == exact(deep)
    with pytest.raises(LimitExceeded, match="depth"):
        CODEC.encode_text(nested(MAX_DEPTH + 2, WRAPS[name]))


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {"list": []}
    loop["list"].append(loop)
    with pytest.raises(LimitExceeded, match="depth") as caught:
        CODEC.encode_text({"state": loop})
    assert caught.value.path.startswith("value['state']['list']")


def test_size_is_limited_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    text = CODEC.encode_text("x" * 100)
    monkeypatch.setattr(codec_module, "MAX_TEXT", 50)
    with pytest.raises(LimitExceeded, match="size"):
        CODEC.encode_text("x" * 100)
    with pytest.raises(LimitExceeded, match="size"):
        CODEC.decode_text(text)


# --- types unknown here -----------------------------------------------------------------------------------------------

BARE = Codec(TypeRegistry())

UNKNOWN: dict[str, Any] = {
    "dataclass": Order(1, [Point(1, 2)]),
    "dataclass with more": Titled("x"),
    "dataclass with unset fields": Draft("x"),
    "model": customers()["model with private"],
    "model with extra": customers()["model with extra"],
    "enum": Colour.RED,
    "flag": Bits.ONE | Bits(8),
    "named tuple": Point(1, (2,)),
    "helped": Celsius(1.5),
    "set of enums": {Colour.RED, Colour.GREEN},
    "set of records": frozenset({Stamp(1), Stamp((1, 2)), Point(1, 2), Point(2, 1)}),
    "records as keys": {Stamp(1): 1, Point(1, (2,)): 2},
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_unknown_here_is_written_back_unchanged(name: str) -> None:
    text = CODEC.encode_text(UNKNOWN[name])
    again = BARE.encode_text(BARE.decode_text(text))
    assert exact(CODEC.decode_text(again, strict=True)) == exact(UNKNOWN[name])


def test_what_is_unknown_here_shows_its_type_and_its_data() -> None:
    opaque = BARE.decode_text(CODEC.encode_text([Order(1, [(2,)])]))[0]
    assert opaque == OpaqueValue(name_of(Order), {"number": 1, "lines": [(2,)], "total": Decimal(0)})


def test_resuming_needs_the_type() -> None:
    with pytest.raises(UnknownType) as caught:
        BARE.decode_text(CODEC.encode_text({"a": Order(1)}), strict=True, path="checkpoint c1")
    assert (caught.value.type_name, caught.value.path) == (name_of(Order), "checkpoint c1")
    assert "register_type" in str(caught.value)


# --- loading runs nothing ---------------------------------------------------------------------------------------------

ran: list[str] = []


@dataclass
class Tripwire:
    x: int

    def __new__(cls, *_: Any) -> Tripwire:
        ran.append("__new__")
        return object.__new__(cls)

    def __init__(self, x: int) -> None:
        ran.append("__init__")
        self.x = x

    def __post_init__(self) -> None:
        ran.append("__post_init__")

    def __setattr__(self, name: str, value: Any) -> None:
        ran.append("__setattr__")
        object.__setattr__(self, name, value)

    def __setstate__(self, state: Any) -> None:
        ran.append("__setstate__")


class WiredModel(BaseModel):
    x: int

    def __init__(self, **data: Any) -> None:
        ran.append("__init__")
        super().__init__(**data)

    def model_post_init(self, _: Any) -> None:
        ran.append("model_post_init")

    @field_validator("x")
    @classmethod
    def check(cls, value: int) -> int:
        ran.append("field validator")
        return value

    @model_validator(mode="after")
    def check_all(self) -> WiredModel:
        ran.append("model validator")
        return self


class WiredTuple(NamedTuple("WiredTuple", [("x", int)])):
    __slots__ = ()

    def __new__(cls, x: int) -> WiredTuple:
        ran.append("__new__")
        return super().__new__(cls, x)


class WiredEnum(Enum):
    A = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        ran.append("_missing_")


@pytest.mark.parametrize(
    "make",
    [lambda: Tripwire(1), lambda: WiredModel(x=1), lambda: WiredTuple(1), lambda: WiredEnum.A],
    ids=["dataclass", "model", "named tuple", "enum"],
)
def test_loading_runs_no_constructor_validator_or_hook(make: Any) -> None:
    registry = TypeRegistry()
    value = make()
    registry.register(type(value))
    text = Codec(registry).encode_text(value)
    ran.clear()
    loaded = Codec(registry).decode_text(text, strict=True)
    assert ran == []
    assert type(loaded) is type(value)


def test_what_a_decode_function_raises_is_told_as_undecodable() -> None:
    registry = TypeRegistry()
    registry.register(Celsius, encode=lambda c: c.degrees, decode=lambda _: Celsius(1 / 0))
    with pytest.raises(Undecodable, match="ZeroDivisionError"):
        Codec(registry).decode_text(Codec(registry).encode_text(Celsius(1)))


# --- hostile text -----------------------------------------------------------------------------------------------------


def tagged(tag: Any, **more: Any) -> str:
    return json.dumps({"$": tag, **more})


MALFORMED: dict[str, str] = {
    "nothing": "",
    "not json": "{]",
    "half": '{"a": [1, 2',
    "two values": "1 2",
    "nan": "NaN",
    "infinity": "[Infinity]",
    "minus infinity": '{"a": -Infinity}',
    "a huge number": "9" * 5000,
    "deep lists": "[" * 100_000,
    "deep and closed": "[" * 100_000 + "]" * 100_000,
    "deep objects": '{"a":' * 100_000,
    "deep tuples": '{"$":"tuple","v":[' * 5000 + "]}" * 5000,
    "unknown tag": tagged("pickle", v="gASV"),
    "tag null": tagged(None, v=1),
    "tag true": tagged(True, t="a:b", v=1),
    "tag float": tagged(1.5, t="a:b", v=1),
    "tag list": tagged(["tuple"], v=1),
    "tag object": tagged({"a": 1}, v=1),
    "tag tuple": '{"$":{"$":"tuple","v":["object"]},"t":"a:b","v":1}',
    "a reference to nothing": tagged(0),
    "a reference below nothing": tagged(-1),
    "no type name": tagged("object", v={}),
    "type name no text": tagged("object", t=["os", "system"], v={}),
    "block list outside of a store": tagged("list", b=[0], v=[]),
    "block map outside of a store": tagged("map", b=[0], v={}),
    "join outside of a store": tagged("join"),
    "tuple of text": tagged("tuple", v="abc"),
    "tuple of nothing": tagged("tuple"),
    "set of text": tagged("set", v="abc"),
    "set of lists": tagged("set", v=[[1]]),
    "frozenset of dicts": tagged("frozenset", v=[{}]),
    "dict of text": tagged("dict", v="ab"),
    "dict of texts": tagged("dict", v=["ab"]),
    "dict of triples": tagged("dict", v=[[1, 2, 3]]),
    "dict with a list as key": tagged("dict", v=[[[], 1]]),
    "bad base64": tagged("bytes", v="a"),
    "base64 with junk": tagged("bytes", v="YQ==\n;"),
    "bytes of a list": tagged("bytes", v=[1, 2]),
    "bytearray of a number": tagged("bytearray", v=10**12),
    "int in decimal": tagged("int", v="12"),
    "int of nothing": tagged("int", v=None),
    "int with underscores": tagged("int", v="0x1_0"),
    "float of a number": tagged("float", v="1.5"),
    "float of a list": tagged("float", v=["nan"]),
    "complex of one": tagged("complex", v=["1"]),
    "deque that is negative": tagged("deque", v=[], max=-1),
    "deque of text": tagged("deque", v="abc", max=None),
    "deque without a limit": tagged("deque", v=[]),
    "a factory that is eval": tagged("defaultdict", f="eval", v=[]),
    "a factory that is a list": tagged("defaultdict", f=["list"], v=[]),
    "datetime of a number": tagged("datetime", v=1),
    "datetime of words": tagged("datetime", v="tomorrow"),
    "zone of a list": tagged("datetime", v="2026-01-01", zone=["UTC"]),
    "date of words": tagged("date", v="never"),
    "time of words": tagged("time", v="noon"),
    "timedelta of text": tagged("timedelta", v=["a"]),
    "timedelta too long": tagged("timedelta", v=[10**12]),
    "timedelta of too many": tagged("timedelta", v=[1] * 20),
    "decimal of words": tagged("decimal", v="much"),
    "uuid of a number": tagged("uuid", v=1),
    "uuid too short": tagged("uuid", v="00"),
    "path of a number": tagged("path", v=1),
    "path of another kind": tagged("path", v="x", pure="mac"),
    "text of numbers": tagged("str", v=[1]),
    "enum of a list": tagged("enum", t="shop:Colour", v=["RED"]),
    "enum of a dunder": tagged("enum", t="shop:Colour", v="__class__"),
    "enum of a method": tagged("enum", t="shop:Colour", v="mro"),
    "flag of a number": tagged("flag", t="shop:Rights", v=3),
    "flag with words for bits": tagged("flag", t="shop:Bits", v=[], bits="rm"),
    "flag that is an enum": tagged("flag", t="shop:Colour", v=[]),
    "object of a list": tagged("object", t="shop:Order", v=[1]),
    "object of a model": tagged("object", t="shop:Address", v={}),
    "object of an enum": tagged("object", t="shop:Colour", v={}),
    "object with more that is text": tagged("object", t="shop:Order", v={"number": 1}, more="abc"),
    "object that lacks a field": tagged("object", t="shop:Order", v={}),
    "model of a dataclass": tagged("model", t="shop:Order", v={}),
    "model of text": tagged("model", t="shop:Address", v="abc"),
    "model whose set is a number": tagged("model", t="shop:Address", v={"street": "x"}, set=1),
    "model whose extra is text": tagged("model", t="shop:Customer", v={"name": "x"}, extra="abc"),
    "model whose private is text": tagged("model", t="shop:Customer", v={"name": "x"}, private="abc"),
    "named tuple of text": tagged("named", t="shop:Point", v="ab"),
    "named tuple too long": tagged("named", t="shop:Point", v=[1, 2, 3]),
    "named tuple of a number": tagged("named", t="shop:Point", v=2),
    "named tuple of a dataclass": tagged("named", t="shop:Order", v=[]),
    "custom of a dataclass": tagged("custom", t="shop:Order", v=1),
    "custom that its own decode refuses": tagged("custom", t="shop:Celsius", v=1),
}

REAL_NAMES = [
    "os:system",
    "posix:system",
    "builtins:eval",
    "builtins:exec",
    "builtins:__import__",
    "builtins:object",
    "subprocess:Popen",
    "pathlib:Path",
    "pathlib:PosixPath",
    "importlib:import_module",
    "pickle:loads",
    "code:InteractiveInterpreter",
    "shutil:rmtree",
    "antigravity:fly",
    "this:s",
    "stepwell.checkpointing.registry:TypeRegistry",
    "tests.checkpointing.test_codec:Plain",
    "../../etc/passwd",
    "__main__:Order",
    ":",
    "",
    "a" * 10_000,
]
RECORD_TAGS = ["object", "model", "enum", "flag", "named", "custom"]


def hostile_shop() -> Codec:
    """Knows the shop's types under short names, so that hostile text can name them."""
    registry = TypeRegistry()
    for cls in RECORDS:
        registry.register(cls, name=f"shop:{cls.__qualname__}")
    registry.register(Celsius, name="shop:Celsius", encode=lambda c: c.degrees, decode=lambda v: Celsius(v["x"]))
    return Codec(registry)


@pytest.mark.parametrize("strict", [True, False], ids=["to resume", "to look"])
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_text_is_refused_with_an_error_of_ours(name: str, strict: bool) -> None:
    with pytest.raises(CodecError):
        hostile_shop().decode_text(MALFORMED[name], strict=strict)


@pytest.mark.parametrize("tag", RECORD_TAGS)
def test_names_of_real_things_stay_names(tag: str) -> None:
    for name in REAL_NAMES:
        text = tagged(tag, t=name, v=["rm -rf /"])
        assert hostile_shop().decode_text(text) == OpaqueValue(name, ["rm -rf /"], tag)
        with pytest.raises(UnknownType):
            hostile_shop().decode_text(text, strict=True)


def test_the_last_of_two_equal_keys_counts() -> None:
    assert hostile_shop().decode_text('{"$":"object","t":"os:system","$":"tuple","v":[1]}') == (1,)


JSON_TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda tree: (
        st.lists(tree, max_size=4)
        | st.dictionaries(
            st.sampled_from(["$", "t", "v", "b", "f", "max", "set", "extra", "bits", "unset", "more"]), tree
        )
        | st.builds(
            lambda tag, name, tree, more: {"$": tag, "t": name, "v": tree, **more},
            st.sampled_from([*codec_module._BUILTIN_DECODERS, *RECORD_TAGS, "list", "map", "join", 0, -1]),
            st.sampled_from([*(f"shop:{cls.__qualname__}" for cls in RECORDS), "os:system"]),
            tree,
            st.dictionaries(
                st.sampled_from(["b", "f", "max", "set", "extra", "private", "bits", "unset", "more"]), tree
            ),
        )
    ),
    max_leaves=10,
)


@given(JSON_TREES, st.booleans())
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_json_is_decoded_or_refused_with_an_error_of_ours(tree: Any, strict: bool) -> None:
    text, shop = json.dumps(tree), hostile_shop()
    with suppress(CodecError):
        value = shop.decode_text(text, strict=strict)
        assert exact(shop.decode_text(text, strict=strict)) == exact(value)


WATCHED = """
    import json, sys
    sys.path.insert(0, {repository!r})
    corpus = json.loads(sys.stdin.read())
    from stepwell.checkpointing.codec import Codec
    from stepwell.checkpointing.registry import TypeRegistry
    from stepwell.checkpointing.values import Node, Root, ValueDecoder, digest_of
    from stepwell.errors import WorkflowCheckpointException
    import stepwell, stepwell.checkpointing, encodings.idna, encodings.ascii, _strptime

    HARMLESS = {{"object.__getattr__", "object.__setattr__", "sys._getframe", "gc.get_objects", "os.stat"}}
    seen, watching = [], False

    def watch(event, args):
        if not watching or event in HARMLESS:
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & 3):  # for reading
            return
        seen.append((event, repr(args)[:200]))

    def attempt(decode, text):
        global watching
        watching = True
        try:
            decode(text)
        except WorkflowCheckpointException:
            pass
        finally:
            watching = False

    def from_store(text):
        nodes = {{1: Node(1, "[1]", (), digest_of("[1]", ()))}}
        root = Root(text, (1,), digest_of(text, [nodes[1].digest]))
        ValueDecoder(TypeRegistry(), nodes, strict=False, path="root").root("", root)

    sys.addaudithook(watch)
    for text in corpus:
        for strict in (True, False):
            attempt(lambda text: Codec().decode_text(text, strict=strict), text)
        attempt(from_store, text)
    watching = True
    compile("1", "proof", "eval")
    watching = False
    print(json.dumps(seen))
"""


def test_decoding_imports_executes_spawns_and_writes_nothing() -> None:
    good = [CODEC.encode_text(value) for name, value in SURVIVORS.items() if name != "generic dataclass"]
    names = [tagged(tag, t=name, v=[]) for tag in RECORD_TAGS for name in REAL_NAMES]
    corpus = [*MALFORMED.values(), *names, *good]

    script = textwrap.dedent(WATCHED.format(repository=str(REPOSITORY)))
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(corpus), capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert [event for event, _ in json.loads(done.stdout)] == ["compile"], "only the proof that the watch works"


# --- a script that is run today and imported tomorrow -----------------------------------------------------------------

SCRIPT = """
    import sys
    from dataclasses import dataclass
    from stepwell import register_type
    from stepwell.checkpointing.codec import Codec

    @register_type
    @dataclass
    class Task:
        name: str

    def write():
        print(Codec().encode_text(Task("x")))

    def read(text):
        value = Codec().decode_text(text, strict=True)
        assert type(value) is Task, type(value)
        print("read")

    if __name__ == "__main__":
        write() if len(sys.argv) == 1 else read(sys.argv[1])
"""


def python(*args: str, folder: Path) -> str:
    environment = {"PYTHONPATH": f"{REPOSITORY}:{folder}", "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("package", ["", "team"], ids=["a bare file", "a file in a package"])
def test_a_type_of_the_script_being_run_is_found_again_when_it_is_imported(tmp_path: Path, package: str) -> None:
    home = tmp_path / package
    home.mkdir(exist_ok=True)
    if package:
        (home / "__init__.py").touch()
    (home / "job.py").write_text(
        textwrap.dedent(SCRIPT).replace("from stepwell import", "from stepwell.checkpointing import")
    )
    module = f"{package}.job" if package else "job"

    ran = python(str(home / "job.py"), folder=tmp_path)
    as_module = python("-m", module, folder=tmp_path)
    imported = python("-c", f"import {module} as job; job.write()", folder=tmp_path)

    for text in (ran, as_module, imported):
        assert python(str(home / "job.py"), text, folder=tmp_path) == "read"
        assert python("-m", module, text, folder=tmp_path) == "read"
        assert python("-c", f"import sys, {module} as job; job.read(sys.argv[1])", text, folder=tmp_path) == "read"
