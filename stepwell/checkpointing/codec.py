"""Typed values to JSON and back, through the closed registry.

Plain JSON data is written as it is. Everything else is an object with the one reserved key `$`:

    {"$": "tuple", "v": [1, 2]}            built-in types, by tag
    {"$": "object", "t": "mod:Task", "v": {...}}   registered types, by name; fields are set, constructors never run
    {"$": 3}                               a value that is stored elsewhere (see `values.py`)

Loading is `json` with a hook that looks tags and names up; there is nothing to import and nothing to call.
"""

from __future__ import annotations

import base64
import binascii
import collections
import dataclasses
import enum
import json
import logging
import math
import re
import reprlib
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import cached_property, reduce
from operator import or_
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, ClassVar
from uuid import UUID

from stepwell.checkpointing.json_text import json_writer
from stepwell.checkpointing.registry import TypeEntry, TypeRegistry, is_model, is_record, is_secret, known_types
from stepwell.errors import (
    CodecError,
    LimitExceeded,
    NotSavable,
    SecretRefused,
    StepwellError,
    Undecodable,
    UnknownType,
)

logger = logging.getLogger(__name__)

MAX_DEPTH = 64
"""Well below what Python's recursion limit allows, so that what was saved here can be loaded from a deeper stack."""

MAX_TEXT = 256 * 1024 * 1024
TAG = "$"

_PLAIN = frozenset({str, int, bool, type(None), float})
_STR_ONLY = frozenset({str})
_FACTORIES: dict[str, Callable[[], Any]] = {f.__name__: f for f in (list, dict, set, int, float, str, tuple, bool)}
_SURROGATE_PAIR = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")
_ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}")


@dataclasses.dataclass(frozen=True, slots=True)
class OpaqueValue:
    """A stored value whose type this process does not know. It can be looked at and written back unchanged."""

    type_name: str
    data: Any
    tag: str = "object"
    extra: tuple[tuple[str, Any], ...] = ()

    def __hash__(self) -> int:
        # Unknown enums and frozen records sit in sets and dict keys too.
        return hash((self.type_name, self.tag, _content_hash(self.data)))


def _content_hash(data: Any) -> int:
    if isinstance(data, dict):
        return hash(frozenset((key, _content_hash(item)) for key, item in data.items()))
    if isinstance(data, list | tuple | collections.deque):
        return hash(tuple(map(_content_hash, data)))
    if isinstance(data, set | bytearray):
        return len(data)
    return hash(data)


class _Refused(Exception):
    """A value can't be encoded; where it sits is found out afterwards, so that good values pay nothing for it."""

    def __init__(self, error: Callable[[str], CodecError]) -> None:
        self.error = error


def _not_savable(value: Any, fix: str) -> _Refused:
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    return _Refused(lambda path: NotSavable(path, name, fix))


class TreeEncoder:
    """Turns one value into plain JSON data. Subclasses decide what is kept apart."""

    _plain_types: ClassVar[dict[type, Callable[[Any, Any], Any]]]

    def __init__(self, registry: TypeRegistry, *, trust_plain: bool = True) -> None:
        self.registry = registry
        self.trust_plain = trust_plain
        self.depth = 0
        # Functions that are given the encoder, not its methods: every run has an encoder, and there are many runs.
        self._by_type: dict[type, Callable[[Any, Any], Any]] = dict(self.plain_types())

    @classmethod
    def plain_types(cls) -> dict[type, Callable[[Any, Any], Any]]:
        """How to encode what needs no registry."""
        plain = cls.__dict__.get("_plain_types")
        if plain is None:
            plain = cls._plain_types = {
                type(None): _same,
                bool: _same,
                str: cls._text,
                int: cls._int,
                float: cls._float,
                list: cls.list,
                dict: cls.dict,
                tuple: cls._tuple,
                bytes: cls._buffer,
                bytearray: cls._buffer,
            }
        return plain

    def encode(self, value: Any) -> Any:
        return (self._by_type.get(type(value)) or self._planned(value))(self, value)

    def list(self, value: Any) -> Any:
        if self.trust_plain and _PLAIN.issuperset(map(type, value)):
            return list(value)
        return self._items(value)

    def dict(self, value: Any) -> Any:
        return self._values(value) if has_plain_keys(value) else self._keyed(value)

    def members(self, value: Any) -> Any:
        """A set's, which has no order of its own: one that depends on nothing but the content keeps digests stable."""
        return sorted(self._items(value), key=_sorting_text)

    def record_encoder(self, entry: TypeEntry) -> Callable[[Any, Any], Any]:
        """How to encode a registered type; `values.py` keeps the immutable ones apart."""
        return _record_encoder(entry)

    # What goes a level deeper counts it in place, and looks the encoders of its items up by itself: this is most of
    # what encoding is, and a call for each level and one for each item would double it.

    def _items(self, value: Any) -> Any:
        self.depth = depth = self.depth + 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        known = self._by_type.get
        tree = [(known(type(item)) or self._planned(item))(self, item) for item in value]
        self.depth = depth - 1
        return tree

    def _values(self, value: Any) -> Any:
        self.depth = depth = self.depth + 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        known = self._by_type.get
        tree = {key: (known(type(item)) or self._planned(item))(self, item) for key, item in value.items()}
        self.depth = depth - 1
        return tree

    def _pairs(self, value: Any) -> Any:
        self.depth = depth = self.depth + 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        tree = [[self.encode(key), self.encode(item)] for key, item in value.items()]
        self.depth = depth - 1
        return tree

    def unordered(self, value: Any) -> Any:
        """The pairs of a mapping that equals one with the same pairs in another order."""
        return self._pairs(value)

    def _keyed(self, value: Any) -> Any:
        return {TAG: "dict", "v": self.unordered(value)}

    def _text(self, value: str) -> Any:
        return value

    def _buffer(self, value: bytes | bytearray) -> Any:
        return {TAG: type(value).__name__, "v": base64.b64encode(value).decode()}

    def _int(self, value: int) -> Any:
        # Python refuses to print or parse longer ones in decimal.
        return value if value.bit_length() <= 4096 else {TAG: "int", "v": hex(value)}

    def _float(self, value: float) -> Any:
        return value if math.isfinite(value) else {TAG: "float", "v": repr(value)}

    def _tuple(self, value: Any) -> Any:
        return {TAG: "tuple", "v": self.list(value)}

    def _enum(self, entry: TypeEntry, value: enum.Enum) -> Any:
        if isinstance(value, enum.Flag):
            tree: dict[str, Any] = {TAG: "flag", "t": entry.name, "v": [member.name for member in value]}
            if unnamed := value.value & ~reduce(or_, (member.value for member in value), 0):
                tree["bits"] = unnamed
            return tree
        if value.name not in type(value).__members__:
            raise _not_savable(value, "it is no declared member of its enum; declare it, or store its value")
        return {TAG: "enum", "t": entry.name, "v": value.name}

    def _model(self, entry: TypeEntry, value: Any) -> Any:
        names = entry.cls.model_fields  # type: ignore[attr-defined]
        fields = {name: item for name, item in value.__dict__.items() if name in names}
        tree = {TAG: "model", "t": entry.name, "v": self._values(fields)}
        if value.__pydantic_fields_set__ != set(fields):
            tree["set"] = sorted(value.__pydantic_fields_set__)
        if len(fields) < len(names):
            tree["unset"] = [name for name in names if name not in fields]
        if value.__pydantic_extra__:
            tree["extra"] = self.dict(value.__pydantic_extra__)
        if value.__pydantic_private__ is not None:
            tree["private"] = self._values(value.__pydantic_private__)
        return tree

    def _planned(self, value: Any) -> Callable[[Any, Any], Any]:
        """How to encode this type from now on."""
        plan = self._by_type[type(value)] = self._plan(value)
        return plan

    def _plan(self, value: Any) -> Callable[[Any, Any], Any]:
        entry = self.registry.entry_for(type(value))
        if entry is not None:
            if entry.encode is None and not _can_be_put_together(entry.cls):
                name = entry.cls.__qualname__
                raise _not_savable(value, f"call stepwell.register_type({name}, encode=..., decode=...)")
            return self.record_encoder(entry)
        builtin = _BUILTIN_ENCODERS.get(type(value))
        if builtin is not None:
            return builtin
        if isinstance(value, OpaqueValue):
            return type(self)._opaque
        raise _refusal(value)

    def _opaque(self, value: OpaqueValue) -> Any:
        extra = {name: self.encode(item) for name, item in value.extra}
        return {TAG: value.tag, "t": value.type_name, "v": self.encode(value.data), **extra}


def _same(_: TreeEncoder, value: Any) -> Any:
    return value


def has_plain_keys(value: Any) -> bool:
    """Can this dict be written as a JSON object?"""
    return _STR_ONLY.issuperset(map(type, value)) and TAG not in value


def _too_deep() -> _Refused:
    return _Refused(lambda path: LimitExceeded("depth", MAX_DEPTH, path))


def _record_encoder(entry: TypeEntry) -> Callable[[Any, Any], Any]:
    if entry.encode is not None:
        return _custom_encoder(entry.name, entry.encode)
    if issubclass(entry.cls, enum.Enum):
        return lambda encoder, value: encoder._enum(entry, value)
    if is_model(entry.cls):
        return lambda encoder, value: encoder._model(entry, value)
    if issubclass(entry.cls, tuple):
        return lambda encoder, value: {TAG: "named", "t": entry.name, "v": encoder.list(list(value))}
    return _object_encoder(entry)


def _custom_encoder(name: str, taken_apart: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def encode(encoder: TreeEncoder, value: Any) -> Any:
        encoder.depth = depth = encoder.depth + 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        parts = taken_apart(value)
        tree = (encoder._by_type.get(type(parts)) or encoder._planned(parts))(encoder, parts)
        encoder.depth = depth - 1
        return {TAG: "custom", "t": name, "v": tree}

    return encode


def _object_encoder(entry: TypeEntry) -> Callable[[Any, Any], Any]:
    names = _field_names(entry.cls)

    def encode(encoder: TreeEncoder, value: Any) -> Any:
        fields, more, unset = _parts(value, names)
        tree = {TAG: "object", "t": entry.name, "v": encoder._values(fields)}
        if more:
            tree["more"] = encoder._values(more)
        if unset:
            tree["unset"] = unset
        return tree

    return encode


def _field_names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def _parts(value: Any, names: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """A dataclass instance taken apart: its fields, what `__post_init__` and others added, and the fields never set."""
    try:
        fields = {name: getattr(value, name) for name in names}
    except AttributeError:
        fields = {name: getattr(value, name) for name in names if hasattr(value, name)}
    attributes = getattr(value, "__dict__", fields)
    if len(fields) == len(names) and attributes.keys() <= fields.keys():
        return fields, {}, []
    more = {
        name: item
        for name, item in attributes.items()
        if name not in fields and not name.startswith("__") and not _is_cached(type(value), name)
    }
    return fields, more, [name for name in names if name not in fields]


def _is_cached(cls: type, name: str) -> bool:
    return isinstance(getattr(cls, name, None), cached_property)


def _can_be_put_together(cls: type) -> bool:
    """Can a bare instance be made without running code of its own? Not if it is a list or an exception underneath."""
    if issubclass(cls, enum.Enum | tuple):
        return True
    try:
        object.__new__(cls)
    except TypeError:
        return False
    return True


def _refusal(value: Any) -> _Refused:
    name = type(value).__qualname__
    if is_secret(value):
        return _Refused(lambda path: SecretRefused(path, name))
    if callable(value) or isinstance(value, Iterator):
        return _not_savable(value, "keep functions and iterators out of messages and state")
    if is_record(type(value)):
        return _not_savable(value, f"call stepwell.register_type({name}) where {name} is defined")
    for base in (str, int, float, list, dict, set, tuple, bytes):
        if isinstance(value, base):
            return _not_savable(value, f"convert it to a plain {base.__name__}")
    return _not_savable(
        value, f"make {name} a dataclass, or call stepwell.register_type({name}, encode=..., decode=...)"
    )


def _encode_set(tag: str) -> Callable[[TreeEncoder, Any], Any]:
    def encode(encoder: TreeEncoder, value: Any) -> Any:
        return {TAG: tag, "v": encoder.members(value)}

    return encode


def _sorting_text(tree: Any) -> str:
    return json.dumps(tree, sort_keys=True)


def _encode_moment(tag: str, value: datetime | time) -> Any:
    tree: dict[str, Any] = {TAG: tag, "v": value.isoformat()}
    if isinstance(value.tzinfo, zoneinfo.ZoneInfo) and value.tzinfo.key:
        tree["zone"] = value.tzinfo.key
    if value.fold:
        tree["fold"] = 1
    return tree


def _encode_defaultdict(encoder: TreeEncoder, value: Any) -> Any:
    factory = getattr(value.default_factory, "__name__", None)
    if value.default_factory is not None and _FACTORIES.get(factory or "") is not value.default_factory:
        raise _not_savable(value, "convert it to a plain dict: its default factory can't be stored")
    return {TAG: "defaultdict", "f": factory, "v": encoder.unordered(value)}


_BUILTIN_ENCODERS: dict[type, Callable[[TreeEncoder, Any], Any]] = {
    set: _encode_set("set"),
    frozenset: _encode_set("frozenset"),
    collections.deque: lambda e, v: {TAG: "deque", "v": e.list(list(v)), "max": v.maxlen},
    collections.OrderedDict: lambda e, v: {TAG: "odict", "v": e._pairs(v)},
    collections.Counter: lambda e, v: {TAG: "counter", "v": e.unordered(v)},
    collections.defaultdict: _encode_defaultdict,
    datetime: lambda _, v: _encode_moment("datetime", v),
    date: lambda _, v: {TAG: "date", "v": v.isoformat()},
    time: lambda _, v: _encode_moment("time", v),
    timedelta: lambda _, v: {TAG: "timedelta", "v": [v.days, v.seconds, v.microseconds]},
    Decimal: lambda _, v: {TAG: "decimal", "v": str(v)},
    UUID: lambda _, v: {TAG: "uuid", "v": v.hex},
    complex: lambda _, v: {TAG: "complex", "v": [repr(v.real), repr(v.imag)]},
    type(Path()): lambda _, v: {TAG: "path", "v": str(v)},
    PurePosixPath: lambda _, v: {TAG: "path", "v": str(v), "pure": "posix"},
    PureWindowsPath: lambda _, v: {TAG: "path", "v": str(v), "pure": "windows"},
}
_PATHS: dict[str | None, type[PurePath]] = {None: Path, "posix": PurePosixPath, "windows": PureWindowsPath}


def locate(encoder: TreeEncoder, value: Any, path: str, *, levels: int = MAX_DEPTH) -> CodecError:
    """Find the innermost value that refuses, and say where it sits. A value that contains itself has no innermost."""
    for child_path, child in _children(encoder, value, path) if levels else ():
        encoder.depth = 0
        try:
            encoder.encode(child)
        except _Refused as refused:
            too_deep = isinstance(refused.error(path), LimitExceeded)
            return locate(encoder, child, child_path, levels=min(levels - 1, 4) if too_deep else levels - 1)
        except RecursionError:
            return LimitExceeded("depth", MAX_DEPTH, child_path)
    encoder.depth = 0
    try:
        encoder.encode(value)
    except _Refused as refused:
        return refused.error(path)
    return LimitExceeded("depth", MAX_DEPTH, path)


def _children(encoder: TreeEncoder, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple | collections.deque):
        names = getattr(value, "_fields", None)
        for index, item in enumerate(value):
            yield (f"{path}.{names[index]}" if names else f"{path}[{index}]"), item
    elif isinstance(value, dict):
        for key, item in value.items():
            name = reprlib.repr(key)
            yield f"{path} key {name}", key
            yield f"{path}[{name}]", item
    elif isinstance(value, set | frozenset):
        for item in value:
            yield f"{path}{{{reprlib.repr(item)}}}", item
    elif (entry := encoder.registry.entry_for(type(value))) is not None:
        if entry.encode is not None:
            yield path, entry.encode(value)
        else:
            for name, item in _attributes(value).items():
                yield f"{path}.{name}", item


def _attributes(value: Any) -> dict[str, Any]:
    """What is encoded of a record, by name."""
    if is_model(type(value)):
        return {**vars(value), **(value.__pydantic_extra__ or {}), **(value.__pydantic_private__ or {})}
    if not dataclasses.is_dataclass(value):
        return {}
    fields, more, _ = _parts(value, _field_names(type(value)))
    return fields | more


class TreeDecoder:
    """Turns JSON text into values, without importing or calling anything the text asks for.

    `strict` refuses names that are not registered; otherwise they come back as `OpaqueValue`s.
    """

    def __init__(self, registry: TypeRegistry, *, strict: bool, path: str) -> None:
        self.registry = registry
        self.strict = strict
        self.path = path
        self._entries: dict[str, TypeEntry | None] = {}
        decoder = json.JSONDecoder(object_hook=self.hook, parse_constant=self._constant)
        self._scan: Callable[[str, int], tuple[Any, int]] = decoder.scan_once  # type: ignore[attr-defined]

    def decode(self, text: str) -> Any:
        return self.decode_part(text, 0, len(text))

    def decode_part(self, text: str, start: int, end: int) -> Any:
        """The value that stands between these places, without a copy of its text."""
        if end - start > MAX_TEXT:
            raise LimitExceeded("size", MAX_TEXT, self.path)
        try:
            value, stopped = self._scan(text, start)
            if stopped != end:
                raise ValueError("it ends too early or too late")
            return value
        except StopIteration:
            raise Undecodable(self.path, "it is not JSON") from None
        except RecursionError:
            raise LimitExceeded("depth", MAX_DEPTH, self.path) from None
        except CodecError:
            raise
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, InvalidOperation) as error:
            raise Undecodable(self.path, f"{type(error).__name__}: {error}"[:300]) from error

    def hook(self, tree: dict[str, Any]) -> Any:
        if TAG not in tree:
            return tree
        tag = tree[TAG]
        if type(tag) is int:
            return self.reference(tag)
        build = _BUILTIN_DECODERS.get(tag)
        if build is not None:
            return build(tree)
        return self._named(tag, tree)

    def reference(self, index: int) -> Any:
        raise Undecodable(self.path, f"refers to value {index}, but has none")

    def _constant(self, name: str) -> Any:
        raise Undecodable(self.path, f"{name} is not JSON")

    def _named(self, tag: str, tree: dict[str, Any]) -> Any:
        name, data = tree.get("t"), tree.get("v")
        build = _RECORD_DECODERS.get(tag)
        if build is None or type(name) is not str:
            raise Undecodable(self.path, f"unknown tag {str(tag)[:60]!r}")
        entry = self._entries[name] if name in self._entries else self._entry(name)
        if entry is None:
            if self.strict:
                raise UnknownType(name, self.path)
            extra = tuple((key, value) for key, value in tree.items() if key not in (TAG, "t", "v"))
            return OpaqueValue(name, data, tag, extra)
        return build(entry, data, tree)

    def _entry(self, name: str) -> TypeEntry | None:
        entry = self._entries[name] = self.registry.entry_named(name)
        return entry


def _decode_custom(entry: TypeEntry, data: Any, _: dict[str, Any]) -> Any:
    decode = entry.decode
    if decode is None:
        raise Undecodable(entry.name, "it was written by an encode= that is not registered here")
    try:
        return decode(data)
    except (StepwellError, RecursionError):
        raise
    except Exception as error:  # somebody else's code
        raise Undecodable(entry.name, f"{type(error).__name__}: {error}"[:300]) from error


def _decode_object(entry: TypeEntry, data: Any, tree: dict[str, Any]) -> Any:
    """Set the fields on a bare instance: `__init__` and `__post_init__` are code, and loading runs none."""
    if not dataclasses.is_dataclass(entry.cls) or not isinstance(data, dict):
        raise Undecodable(entry.name, "it was stored as a dataclass and is none here")
    instance = object.__new__(entry.cls)
    fields = {f.name: f for f in dataclasses.fields(entry.cls)}
    if "more" in tree and hasattr(instance, "__dict__"):
        vars(instance).update(tree["more"])
    for name, field in fields.items():
        if name in tree.get("unset", ()):
            continue
        if name in data:
            object.__setattr__(instance, name, data[name])
        elif field.default is not dataclasses.MISSING:
            object.__setattr__(instance, name, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            object.__setattr__(instance, name, field.default_factory())
        else:
            raise Undecodable(entry.name, f"the field {name!r} was added since and has no default")
    if dropped := data.keys() - fields.keys():
        logger.warning("%s no longer has the stored fields %s", entry.name, sorted(dropped))
    return instance


def _decode_model(entry: TypeEntry, data: Any, tree: dict[str, Any]) -> Any:
    if not is_model(entry.cls) or not isinstance(data, dict):
        raise Undecodable(entry.name, "it was stored as a pydantic model and is none here")
    values = dict(data)
    for name, field in entry.cls.model_fields.items():  # type: ignore[attr-defined]
        if name not in values and name not in tree.get("unset", ()):
            if field.is_required():
                raise Undecodable(entry.name, f"the field {name!r} was added since and has no default")
            values[name] = field.get_default(call_default_factory=True, validated_data=values)
    instance: Any = object.__new__(entry.cls)
    object.__setattr__(instance, "__dict__", values)
    object.__setattr__(instance, "__pydantic_fields_set__", set(tree.get("set", data)))
    extra = tree.get("extra", {} if entry.cls.model_config.get("extra") == "allow" else None)  # type: ignore[attr-defined]
    for name, more in (("__pydantic_extra__", extra), ("__pydantic_private__", tree.get("private"))):
        if more is not None and type(more) is not dict:
            raise Undecodable(entry.name, "its extra or private attributes are no dict")
        object.__setattr__(instance, name, more)
    return instance


def _decode_enum(entry: TypeEntry, data: Any, _: dict[str, Any]) -> Any:
    members: Any = getattr(entry.cls, "__members__", {})
    if data not in members:
        raise Undecodable(entry.name, f"it has no member {data!r}")
    return members[data]


def _decode_flag(entry: TypeEntry, data: Any, tree: dict[str, Any]) -> Any:
    if not issubclass(entry.cls, enum.Flag):
        raise Undecodable(entry.name, "it was stored as a flag and is none here")
    parts = [_decode_enum(entry, name, tree) for name in data]
    unnamed = entry.cls(tree.get("bits", 0))
    return reduce(or_, parts, unnamed) if unnamed.value else reduce(or_, parts) if parts else unnamed


def _decode_named(entry: TypeEntry, data: Any, _: dict[str, Any]) -> Any:
    if not issubclass(entry.cls, tuple) or len(data) != len(getattr(entry.cls, "_fields", ())):
        raise Undecodable(entry.name, "its fields have changed")
    return tuple.__new__(entry.cls, _listed(data))


_RECORD_DECODERS: dict[str, Callable[[TypeEntry, Any, dict[str, Any]], Any]] = {
    "custom": _decode_custom,
    "object": _decode_object,
    "model": _decode_model,
    "enum": _decode_enum,
    "flag": _decode_flag,
    "named": _decode_named,
}


def _listed(data: Any) -> list[Any]:
    if type(data) is not list:
        raise ValueError("not a list")
    return data


def _decode_bytes(tree: dict[str, Any]) -> bytes:
    try:
        return base64.b64decode(tree["v"], validate=True)
    except binascii.Error as error:
        raise ValueError(f"bad base64: {error}") from error


def _decode_int(tree: dict[str, Any]) -> int:
    if not re.fullmatch(r"-?0x[0-9a-f]+", tree["v"]):
        raise ValueError("not a hexadecimal number")
    return int(tree["v"], 16)


def _decode_float(tree: dict[str, Any]) -> float:
    if tree["v"] not in ("nan", "inf", "-inf"):
        raise ValueError("not nan or an infinity")
    return float(tree["v"])


def _decode_moment(cls: Any, tree: dict[str, Any]) -> Any:
    value = cls.fromisoformat(tree["v"])
    zone = _zone(tree["zone"]) if "zone" in tree else None
    return value.replace(tzinfo=zone or value.tzinfo, fold=1 if tree.get("fold") else 0)


def _decode_path(tree: dict[str, Any]) -> PurePath:
    return _PATHS[tree.get("pure")](tree["v"])


def _zone(key: str) -> zoneinfo.ZoneInfo | None:
    # `ZoneInfo` would import the tzdata package for keys the system lacks, and loading imports nothing.
    if not _ZONE_KEY.fullmatch(key) or not any(Path(folder, key).is_file() for folder in zoneinfo.TZPATH):
        return None
    return zoneinfo.ZoneInfo(key)


def _decode_defaultdict(tree: dict[str, Any]) -> Any:
    factory = None if tree["f"] is None else _FACTORIES[tree["f"]]
    return collections.defaultdict(factory, _pairs_of(tree))


def _pairs_of(tree: dict[str, Any]) -> Any:
    return ((key, value) for key, value in map(_listed, _listed(tree["v"])))


_BUILTIN_DECODERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "tuple": lambda t: tuple(_listed(t["v"])),
    "dict": lambda t: dict(_pairs_of(t)),
    "set": lambda t: set(_listed(t["v"])),
    "frozenset": lambda t: frozenset(_listed(t["v"])),
    "str": lambda t: "".join(_listed(t["v"])),
    "bytes": _decode_bytes,
    "bytearray": lambda t: bytearray(_decode_bytes(t)),
    "int": _decode_int,
    "float": _decode_float,
    "complex": lambda t: complex(float(t["v"][0]), float(t["v"][1])),
    "deque": lambda t: collections.deque(_listed(t["v"]), t["max"]),
    "odict": lambda t: collections.OrderedDict(_pairs_of(t)),
    "counter": lambda t: collections.Counter(dict(_pairs_of(t))),
    "defaultdict": _decode_defaultdict,
    "datetime": lambda t: _decode_moment(datetime, t),
    "date": lambda t: date.fromisoformat(t["v"]),
    "time": lambda t: _decode_moment(time, t),
    "timedelta": lambda t: timedelta(*t["v"]),
    "decimal": lambda t: Decimal(t["v"]),
    "uuid": lambda t: UUID(hex=t["v"]),
    "path": _decode_path,
}


_compact = json_writer(ensure_ascii=False, allow_nan=False)
_canonical = json_writer(ensure_ascii=False, allow_nan=False, sort_keys=True)


def dump_tree(tree: Any, *, sort_keys: bool = False) -> str:
    """Compact JSON that is always valid UTF-8: text with lone surrogates is written in escapes."""
    text = (_canonical if sort_keys else _compact)(tree)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            if _SURROGATE_PAIR.search(text):
                tree = _pairs_kept_apart(tree)
            return json.dumps(tree, separators=(",", ":"), allow_nan=False, sort_keys=sort_keys)
    return text


def _pairs_kept_apart(tree: Any) -> Any:
    """JSON escapes would join two halves of a surrogate pair into the character they were torn from."""
    if isinstance(tree, str):
        pieces = _SURROGATE_PAIR.split(tree)
        return tree if len(pieces) == 1 else {TAG: "str", "v": pieces}
    if isinstance(tree, list):
        return [_pairs_kept_apart(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if any(map(_SURROGATE_PAIR.search, tree)):
        return {TAG: "dict", "v": [[_pairs_kept_apart(key), _pairs_kept_apart(item)] for key, item in tree.items()]}
    return {key: _pairs_kept_apart(item) for key, item in tree.items()}


class _CanonicalEncoder(TreeEncoder):
    """For texts that are compared: what is equal looks equal."""

    def unordered(self, value: Any) -> Any:
        return sorted(self._pairs(value), key=_sorting_text)


class Codec:
    """Values to JSON text and back, for one set of types."""

    def __init__(self, registry: TypeRegistry = known_types) -> None:
        self.registry = registry

    def encode_text(self, value: Any, *, path: str = "value", sort_keys: bool = False) -> str:
        encoder = (_CanonicalEncoder if sort_keys else TreeEncoder)(self.registry)
        try:
            return checked_size(dump_tree(encoder.encode(value), sort_keys=sort_keys), path)
        except (_Refused, RecursionError):
            raise locate(TreeEncoder(self.registry), value, path) from None
        except ValueError:
            # Not-a-number and very long integers inside plain lists: rare, and the careful way handles them.
            return self._encode_carefully(value, path, sort_keys)

    def decode_text(self, text: str, *, path: str = "value", strict: bool = False) -> Any:
        return TreeDecoder(self.registry, strict=strict, path=path).decode(text)

    def _encode_carefully(self, value: Any, path: str, sort_keys: bool) -> str:
        encoder = (_CanonicalEncoder if sort_keys else TreeEncoder)(self.registry, trust_plain=False)
        try:
            return checked_size(dump_tree(encoder.encode(value), sort_keys=sort_keys), path)
        except (_Refused, RecursionError):
            raise locate(TreeEncoder(self.registry), value, path) from None


def checked_size(text: str, path: str) -> str:
    if len(text) > MAX_TEXT:
        raise LimitExceeded("size", MAX_TEXT, path)
    return text
