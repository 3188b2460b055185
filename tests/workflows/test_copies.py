"""Each receiver gets a copy of its own, and what never changes is shared: a conversation is not gone through."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel

from stepwell import Message, register_type
from stepwell.workflows.message import isolated


@register_type
@dataclass(frozen=True)
class Remark:
    """Immutable by declaration; nothing but its registration says so to `deepcopy`."""

    text: str


@dataclass
class Letter:
    conversation: list[Any]
    notes: list[Any] = field(default_factory=list)
    copies: tuple[Any, ...] = ()


class Form(BaseModel):
    conversation: list[Any]


@pytest.mark.parametrize("make", [Remark, lambda text: Message("user", [text])], ids=["records", "messages"])
@pytest.mark.parametrize(
    ("wrap", "conversation_in"),
    [
        (list, lambda copied: copied),
        (lambda said: {"n": [], "said": said}, lambda copied: copied["said"]),
        (Letter, lambda copied: copied.conversation),
        (lambda said: Form(conversation=said), lambda copied: copied.conversation),
    ],
    ids=["a list", "a dict", "a dataclass", "a pydantic model"],
)
def test_a_copied_conversation_is_another_list_of_the_same_messages(wrap: Any, conversation_in: Any, make: Any) -> None:
    sent = wrap([make(str(number)) for number in range(20)])
    copied = conversation_in(isolated(sent))
    assert copied is not conversation_in(sent)
    assert len(copied) == 20
    assert all(one is other for one, other in zip(copied, conversation_in(sent), strict=True))


def test_what_can_change_inside_a_record_is_copied() -> None:
    inner: list[Any] = [1]
    sent = Letter([Remark("a"), inner], [1, 2], ([3], Remark("b")))
    copied = isolated(sent)
    inner.append(2)
    sent.notes.append(3)
    sent.copies[0].append(4)
    assert copied == Letter([Remark("a"), [1]], [1, 2], ([3], Remark("b")))


def test_a_list_in_two_fields_is_one_list_in_the_copy_too() -> None:
    said = [Remark("a")]
    copied = isolated(Letter(said, said))
    assert copied.notes is copied.conversation
    assert copied.notes is not said


def test_tuples_are_as_immutable_as_what_they_hold() -> None:
    fixed, loose = ("a", (1, Remark("b"))), ("a", (1, [2]))
    assert isolated(fixed) is fixed
    assert isolated(loose)[1][1] is not loose[1][1]
    assert isolated([fixed, loose])[1][1][1] is not loose[1][1]
