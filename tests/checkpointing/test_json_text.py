"""A writer that is made once says what `json.dumps` says."""

from __future__ import annotations

import json
import math
from json import encoder as json_encoder
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.checkpointing.json_text import json_writer

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
COMPACT = (",", ":")
plain, canonical, spaced = json_writer(), json_writer(sort_keys=True, ensure_ascii=False), json_writer(spaced=True)


@given(VALUES)
def test_the_texts_are_those_of_dumps(value: Any) -> None:
    assert plain(value) == json.dumps(value, separators=COMPACT)
    assert canonical(value) == json.dumps(value, separators=COMPACT, sort_keys=True, ensure_ascii=False)
    assert spaced(value) == json.dumps(value)


@given(VALUES)
def test_an_interpreter_without_the_fast_encoder_writes_the_same(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_encoder, "c_make_encoder", None)
        slow = json_writer(sort_keys=True, ensure_ascii=False)
    assert slow(value) == canonical(value)


def test_what_is_no_json_is_refused() -> None:
    strict = json_writer(allow_nan=False)
    with pytest.raises(ValueError, match="JSON compliant"):
        strict([math.nan])
    with pytest.raises(TypeError, match="not JSON serializable"):
        plain({"a": object()})
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(RecursionError):
        plain(circle)
