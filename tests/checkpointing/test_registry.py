"""The registry is closed: it knows what was declared, by names that stay, and judges once what can never change."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Optional

import pytest
from pydantic import BaseModel, ConfigDict, PrivateAttr, SecretStr

from stepwell.checkpointing.codec import Codec
from stepwell.checkpointing.registry import (
    TypeRegistry,
    annotations_of,
    is_immutable_type,
    known_types,
    record_types_in,
    records_beside,
    register_type,
    stored_name,
)

if TYPE_CHECKING:
    from somewhere_else import OnlyForCheckers  # type: ignore[import-not-found]


class Mood(Enum):
    FINE = 1


@dataclass(frozen=True)
class Leaf:
    name: str


@dataclass
class Branch:
    leaves: list[Leaf]
    mood: Mood | None = None


class Tree(BaseModel):
    trunk: Branch
    nests: dict[str, tuple[Nest, ...]] = {}


class Nest(BaseModel):
    eggs: int
    key: SecretStr | None = None


class Pair(NamedTuple):
    left: Leaf
    right: int


class PlainClass:
    pass


# --- registering ------------------------------------------------------------------------------------------------------


def test_registering_works_as_a_decorator() -> None:
    @register_type
    @dataclass
    class Local:
        x: int

    entry = known_types.entry_for(Local)
    assert entry is not None
    assert known_types.entry_named(stored_name(Local)) is entry


def test_a_type_is_named_after_its_module_and_itself() -> None:
    assert stored_name(Leaf) == f"{Leaf.__module__}:Leaf"


def test_a_name_can_be_given_so_that_the_class_may_move() -> None:
    registry = TypeRegistry()
    registry.register(Leaf, name="garden:Leaf")
    assert '"garden:Leaf"' in Codec(registry).encode_text(Leaf("x"))


def test_a_type_with_a_new_name_is_still_found_by_its_old_one() -> None:
    registry = TypeRegistry()
    registry.register(Leaf, name="old:Leaf")
    text = Codec(registry).encode_text(Leaf("x"))
    registry.register(Leaf, name="new:Leaf")
    assert Codec(registry).decode_text(text, strict=True) == Leaf("x")
    assert "new:Leaf" in Codec(registry).encode_text(Leaf("x"))


def test_a_name_belongs_to_one_type() -> None:
    registry = TypeRegistry()
    registry.register(Leaf, name="garden:Thing")
    with pytest.raises(TypeError, match=r"'garden:Thing' is the name of .*:Leaf"):
        registry.register(Branch, name="garden:Thing")
    assert registry.entry_for(Branch) is None


def test_a_class_that_is_defined_again_takes_the_place_of_the_former() -> None:
    def define() -> type:
        @dataclass
        class Again:
            x: int

        return Again

    registry = TypeRegistry()
    first, second = define(), define()
    registry.register(first)
    registry.register(second)
    entry = registry.entry_named(stored_name(second))
    assert entry is not None
    assert entry.cls is second


@pytest.mark.parametrize("given", [{"encode": str}, {"decode": str}], ids=["encode only", "decode only"])
def test_encode_and_decode_come_together(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="both encode and decode"):
        TypeRegistry().register(PlainClass, **given)


def test_a_class_that_is_no_record_needs_a_hand() -> None:
    with pytest.raises(TypeError, match="make it one, or pass encode= and decode="):
        TypeRegistry().register(PlainClass)


# --- looking up -------------------------------------------------------------------------------------------------------


def test_a_child_knows_what_its_parent_knows() -> None:
    parent = TypeRegistry()
    parent.register(Leaf)
    child = parent.child([Branch])
    assert child.entry_for(Leaf) is parent.entry_for(Leaf)
    assert child.entry_named(stored_name(Leaf)) is not None


def test_a_parent_does_not_learn_from_its_child() -> None:
    parent = TypeRegistry()
    parent.child([Branch])
    assert parent.entry_for(Branch) is None


def test_a_child_keeps_the_name_its_parent_gave() -> None:
    parent = TypeRegistry()
    parent.register(Leaf, name="garden:Leaf")
    entry = parent.child([Leaf]).entry_for(Leaf)
    assert entry is not None
    assert entry.name == "garden:Leaf"


@pytest.mark.parametrize(
    ("stored", "found"),
    [
        pytest.param("jobs:Task", True, id="the same"),
        pytest.param("team.jobs:Task", True, id="in a package now"),
        pytest.param("a.team.jobs:Task", True, id="in a deeper package"),
        pytest.param("myjobs:Task", False, id="another module that ends alike"),
        pytest.param("jobs.more:Task", False, id="a module inside"),
        pytest.param("jobs:Other", False, id="another type"),
        pytest.param("jobs", False, id="no type"),
        pytest.param("", False, id="nothing"),
    ],
)
def test_a_module_is_recognised_inside_and_outside_of_its_package(stored: str, found: bool) -> None:
    registry = TypeRegistry()
    registry.register(Leaf, name="jobs:Task")
    assert (registry.entry_named(stored) is not None) is found


def test_a_name_that_could_mean_two_types_means_none() -> None:
    registry = TypeRegistry()
    registry.register(Leaf, name="a.jobs:Task")
    registry.register(Branch, name="b.jobs:Task")
    assert registry.entry_named("jobs:Task") is None


# --- what a graph declares --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        pytest.param(Leaf, {Leaf}, id="itself"),
        pytest.param(Branch, {Branch, Leaf, Mood}, id="its fields"),
        pytest.param(Tree, {Tree, Branch, Leaf, Mood, Nest}, id="a model's fields"),
        pytest.param(list[dict[str, Leaf]], {Leaf}, id="inside of containers"),
        pytest.param(Leaf | Pair | None, {Leaf, Pair}, id="a union"),
        pytest.param(Optional[Sequence[Pair]], {Leaf, Pair}, id="an old union"),  # noqa: UP045
        pytest.param(Annotated[Leaf, "big"], {Leaf}, id="annotated"),
        pytest.param(Literal["a"], set(), id="a literal"),
        pytest.param(int, set(), id="no record"),
        pytest.param(SecretStr, set(), id="a secret"),
        pytest.param(Any, set(), id="anything"),
        pytest.param("Leaf", set(), id="an unresolved name"),
    ],
)
def test_an_annotation_declares_every_record_it_mentions(annotation: Any, expected: set[type]) -> None:
    assert set(record_types_in(annotation)) == expected


def test_a_long_chain_of_annotations_is_followed_to_its_end() -> None:
    # Each one is made on the fly and gone again, and the next may get its id.
    length = 50
    for number in range(length):
        hints = {"next": f"list[Chain{number + 1}]"} if number + 1 < length else {"end": "int"}
        made = type(f"Chain{number}", (), {"__annotations__": hints, "__module__": __name__})
        globals()[f"Chain{number}"] = dataclass(made)
    assert len(set(record_types_in(globals()["Chain0"]))) == length


def test_the_records_of_a_module_are_found_beside_its_classes() -> None:
    found = set(records_beside(PlainClass))
    assert {Leaf, Branch, Tree, Mood, Pair} <= found
    assert BaseModel not in found


@dataclass
class HalfKnown:
    """One annotation can't be resolved here."""

    leaf: Leaf
    other: OnlyForCheckers | None = None
    number: int = 0


def half_known(leaf: Leaf, other: OnlyForCheckers, number: int) -> None: ...


@pytest.mark.parametrize("obj", [HalfKnown, half_known], ids=["class", "function"])
def test_an_annotation_that_is_unknown_here_does_not_hide_the_others(obj: Any) -> None:
    hints = annotations_of(obj)
    assert (hints["leaf"], hints["number"]) == (Leaf, int)
    assert "other" not in hints


def test_what_has_no_annotations_has_none() -> None:
    assert annotations_of(len) == {}
    assert annotations_of(3) == {}


# --- what can never change --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Solid:
    text: str
    when: datetime
    mood: Mood
    leaf: Leaf | None
    path: Path
    kind: Literal["a", "b"]
    many: tuple[Leaf, ...]
    few: frozenset[int]
    parent: Solid | None = None
    noted: Annotated[int, "x"] = 0


@dataclass(frozen=True)
class HoldsAList:
    items: list[int]


@dataclass(frozen=True)
class HoldsAnything:
    item: Any


@dataclass(frozen=True)
class HoldsABareTuple:
    items: tuple  # type: ignore[type-arg]


@dataclass(frozen=True)
class HoldsABranch:
    branch: Branch


@dataclass(frozen=True)
class HoldsATupleOfLists:
    items: tuple[list[int], ...]


@dataclass(frozen=True)
class HoldsTheUnknown:
    other: OnlyForCheckers


@dataclass
class NotFrozen:
    x: int = field(default=0)


class FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True)
    x: int


class FrozenWithExtras(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")
    x: int


class FrozenWithPrivate(BaseModel):
    model_config = ConfigDict(frozen=True)
    x: int
    _seen: list[int] = PrivateAttr(default_factory=list)


class OpenModel(BaseModel):
    x: int


class TupleWithADict(Pair):
    """A subclass without slots takes any attribute."""


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (int, True),
        (str, True),
        (Mood, True),
        (Leaf, True),
        (Pair, True),
        (Solid, True),
        (FrozenModel, True),
        (list, False),
        (tuple, False),
        (object, False),
        (bytearray, False),
        (HoldsAList, False),
        (HoldsAnything, False),
        (HoldsABareTuple, False),
        (HoldsABranch, False),
        (HoldsATupleOfLists, False),
        (HoldsTheUnknown, False),
        (NotFrozen, False),
        (OpenModel, False),
        (FrozenWithExtras, False),
        (FrozenWithPrivate, False),
        (TupleWithADict, False),
    ],
)
def test_only_what_is_immutable_all_the_way_down_counts_as_immutable(cls: type, expected: bool) -> None:
    assert is_immutable_type(cls, TypeRegistry()) is expected


def test_the_word_of_whoever_registers_a_type_counts() -> None:
    registry = TypeRegistry()
    registry.register(HoldsAnything, immutable=True)
    assert is_immutable_type(HoldsAnything, registry)


def test_type_hints_are_not_broken_by_the_test_itself() -> None:
    with pytest.raises(NameError):
        typing.get_type_hints(HalfKnown)
