"""JSON texts of small values, made often.

`json.dumps` builds a new encoder at every call, which for a value of a few fields takes longer than encoding it. Here
the encoder is built once, and writes the same texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder as json_encoder
from typing import Any

JsonWriter = Callable[[Any], str]


def json_writer(
    *, sort_keys: bool = False, ensure_ascii: bool = True, allow_nan: bool = True, spaced: bool = False
) -> JsonWriter:
    """What `json.dumps` with these arguments does, compact unless `spaced`. A value within itself is too deep."""
    item, key = (", ", ": ") if spaced else (",", ":")
    settings = json.JSONEncoder(
        check_circular=False,
        sort_keys=sort_keys,
        ensure_ascii=ensure_ascii,
        allow_nan=allow_nan,
        separators=(item, key),
    )
    make: Any = getattr(json_encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without it
        return settings.encode
    quoted: Any = getattr(json_encoder, "encode_basestring_ascii" if ensure_ascii else "encode_basestring")
    pieces = make(None, settings.default, quoted, None, key, item, sort_keys, False, allow_nan)
    return lambda value: "".join(pieces(value, 0))
