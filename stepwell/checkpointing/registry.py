"""The closed registry: which types a checkpoint may name, and what they are called.

Loading never imports anything and never runs a constructor. A name in a stored record is looked up here, and what is
not here stays opaque. Workflows register what their graph declares; `register_type` adds the rest.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeVar
from uuid import UUID

T = TypeVar("T")

IMMUTABLE_SCALARS: frozenset[type] = frozenset(
    {type(None), bool, int, float, complex, str, bytes, date, datetime, time, timedelta, Decimal, UUID}
)


@dataclasses.dataclass(frozen=True, slots=True)
class TypeEntry:
    """How one type travels. Without `encode` and `decode` its fields are written and set back one by one."""

    cls: type
    name: str
    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None
    immutable: bool = False


def module_of(cls: type) -> str:
    """The module's importable name, also for a type defined in the script being run."""
    if cls.__module__ != "__main__":
        return cls.__module__
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return _dotted_name(Path(file)) if file else "__main__"


def _dotted_name(file: Path) -> str:
    parts = [file.stem]
    folder = file.absolute().parent
    while (folder / "__init__.py").exists() and folder.name:
        parts.append(folder.name)
        folder = folder.parent
    return ".".join(reversed(parts))


def stored_name(cls: type) -> str:
    return f"{module_of(cls)}:{cls.__qualname__}"


def is_model(cls: type) -> bool:
    """Is this a pydantic model? Asked without importing pydantic: whoever defines one has imported it."""
    pydantic = sys.modules.get("pydantic.main")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


def is_secret(value: Any) -> bool:
    pydantic = sys.modules.get("pydantic.types")
    return pydantic is not None and isinstance(value, pydantic.Secret | pydantic.SecretStr | pydantic.SecretBytes)


def is_record(cls: Any) -> bool:
    """Can this type's instances be taken apart into fields and put together again without calling it?"""
    return isinstance(cls, type) and (
        dataclasses.is_dataclass(cls)
        or issubclass(cls, enum.Enum)
        or is_model(cls)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    )


class TypeRegistry:
    """Types by name and names by type; what a child lacks is looked up in its parent."""

    def __init__(self, parent: TypeRegistry | None = None) -> None:
        self._parent = parent
        self._by_type: dict[type, TypeEntry] = {}
        self._by_name: dict[str, TypeEntry] = {}
        self._by_qualname: dict[str, list[TypeEntry]] = defaultdict(list)

    def register(
        self,
        cls: type[T],
        *,
        name: str | None = None,
        encode: Callable[[T], Any] | None = None,
        decode: Callable[[Any], T] | None = None,
        immutable: bool | None = None,
    ) -> type[T]:
        if (encode is None) != (decode is None):
            raise TypeError(f"register_type({cls.__qualname__}): give both encode and decode, or neither")
        if encode is None and not is_record(cls):
            raise TypeError(
                f"register_type({cls.__qualname__}): not a dataclass, pydantic model, enum or named tuple; "
                "make it one, or pass encode= and decode="
            )
        frozen = is_immutable_type(cls, self) if immutable is None else immutable
        entry = TypeEntry(cls, name or stored_name(cls), encode, decode, frozen)
        other = self._by_name.get(entry.name)
        if other is not None and stored_name(other.cls) != stored_name(cls):
            raise TypeError(
                f"register_type({cls.__qualname__}): {entry.name!r} is the name of {stored_name(other.cls)}; "
                "records could not tell them apart, so give it another name="
            )
        self._by_type[cls] = entry
        self._by_name[entry.name] = entry
        qualname = entry.name.partition(":")[2]
        self._by_qualname[qualname] = [e for e in self._by_qualname[qualname] if e.name != entry.name] + [entry]
        return cls

    def entry_for(self, cls: type) -> TypeEntry | None:
        found = self._by_type.get(cls)
        if found is None and self._parent is not None:
            return self._parent.entry_for(cls)
        return found

    def entry_named(self, name: str) -> TypeEntry | None:
        found = self._by_name.get(name) or self._alias(name)
        if found is None and self._parent is not None:
            return self._parent.entry_named(name)
        return found

    def child(self, classes: Iterable[type]) -> TypeRegistry:
        """A registry that knows these as well, and prefers them where names clash."""
        child = TypeRegistry(self)
        for cls in classes:
            known = self.entry_for(cls)
            if known is not None:
                child._adopt(known)
            else:
                child.register(cls)
        return child

    def entries(self) -> Iterator[TypeEntry]:
        yield from self._by_type.values()

    def _adopt(self, entry: TypeEntry) -> None:
        self._by_type[entry.cls] = entry
        self._by_name[entry.name] = entry

    def _alias(self, name: str) -> TypeEntry | None:
        # One file may be run as `mod` today and imported as `package.mod` tomorrow.
        module, _, qualname = name.partition(":")
        matches = [
            entry for entry in self._by_qualname.get(qualname, ()) if _same_module(module, entry.name.partition(":")[0])
        ]
        return matches[0] if len(matches) == 1 else None


def _same_module(one: str, other: str) -> bool:
    return one.endswith("." + other) or other.endswith("." + one)


known_types = TypeRegistry()
"""What this process knows: stepwell's own types, those of every workflow built here, and those registered by hand."""


def register_type(
    cls: type[T],
    *,
    name: str | None = None,
    encode: Callable[[T], Any] | None = None,
    decode: Callable[[Any], T] | None = None,
    immutable: bool | None = None,
) -> type[T]:
    """Let checkpoints contain `cls`; returns it, so it works as a decorator too.

    Dataclasses, pydantic models, enums and named tuples need nothing more. For any other class give `encode`, which
    turns an instance into something savable, and `decode`, which takes that back. `name` is what the record says; by
    default the module and the qualified name, so give one before you move a class. `immutable=True` promises that
    instances never change: they are stored once per run and recognised by identity.
    """
    return known_types.register(cls, name=name, encode=encode, decode=decode, immutable=immutable)


def record_types_in(annotation: Any) -> Iterator[type]:
    """Every record type an annotation mentions, and those that their fields mention."""
    seen: dict[int, Any] = {}  # the objects too: an id is only good while its object lives
    waiting = [annotation]
    while waiting:
        current = waiting.pop()
        if id(current) in seen or isinstance(current, str):
            continue
        seen[id(current)] = current
        waiting.extend(typing.get_args(current))
        if is_record(current) and not is_secret_type(current):
            yield current
            waiting.extend(_field_annotations(current))


def is_secret_type(cls: type) -> bool:
    pydantic = sys.modules.get("pydantic.types")
    return pydantic is not None and issubclass(cls, pydantic.Secret | pydantic.SecretStr | pydantic.SecretBytes)


def records_beside(cls: type) -> Iterator[type]:
    """The record types that the module of `cls` defines or imports: what an executor there can put into its state."""
    module = sys.modules.get(cls.__module__)
    for value in list(vars(module).values()) if module is not None else ():
        if is_record(value) and not _is_library_type(value):
            yield value


def _is_library_type(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in sys.stdlib_module_names or cls.__module__.startswith("pydantic")


def _field_annotations(cls: type) -> Iterable[Any]:
    if issubclass(cls, enum.Enum):
        return ()
    if is_model(cls):
        # A field's own annotation may still be the name of a class that was defined later.
        hints = annotations_of(cls)
        return [hints.get(name, field.annotation) for name, field in cls.model_fields.items()]  # type: ignore[attr-defined]
    return annotations_of(cls).values()


def annotations_of(obj: Any) -> dict[str, Any]:
    """Resolved annotations; those that name something unknown here are left out rather than guessed at."""
    try:
        return typing.get_type_hints(obj)
    except Exception:  # an annotation is somebody else's code
        return dict(_resolvable_annotations(obj))


def _resolvable_annotations(obj: Any) -> Iterator[tuple[str, Any]]:
    """One by one, so that a name imported only for type checkers does not take the others with it."""
    for owner in reversed(obj.__mro__) if isinstance(obj, type) else (inspect.unwrap(obj),):
        module = sys.modules.get(getattr(owner, "__module__", None) or "")
        names = getattr(owner, "__globals__", None) or vars(module or types)
        for name, hint in _bare_annotations(owner).items():
            with suppress(Exception):  # see above
                yield name, typing.get_type_hints(types.SimpleNamespace(__annotations__={name: hint}), names)[name]


def _bare_annotations(obj: Any) -> dict[str, Any]:
    try:
        return inspect.get_annotations(obj)
    except Exception:  # see above
        return {}


def is_immutable_type(cls: type, registry: TypeRegistry) -> bool:
    """Can no instance of this type ever change, judging by its declaration? Checked once per type."""
    if cls in IMMUTABLE_SCALARS or issubclass(cls, enum.Enum) or issubclass(cls, PurePath):
        return True
    entry = registry.entry_for(cls)
    if entry is not None:
        return entry.immutable
    if not _is_frozen(cls):
        return False
    hints = annotations_of(cls)
    names = _field_names(cls)
    return all(name in hints and _is_immutable_annotation(hints[name], registry, cls) for name in names)


def _is_frozen(cls: type) -> bool:
    if dataclasses.is_dataclass(cls):
        return bool(cls.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    if is_model(cls):
        # Private attributes and extras can be changed even so.
        config, private = cls.model_config, cls.__private_attributes__  # type: ignore[attr-defined]
        return bool(config.get("frozen")) and config.get("extra") != "allow" and not private
    return issubclass(cls, tuple) and hasattr(cls, "_fields") and not cls.__dictoffset__


def _field_names(cls: type) -> Iterable[str]:
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    if is_model(cls):
        return list(cls.model_fields)  # type: ignore[attr-defined]
    return list(cls._fields)  # type: ignore[attr-defined]


def _is_immutable_annotation(hint: Any, registry: TypeRegistry, owner: type) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType, typing.Literal):
        members = typing.get_args(hint)
        return origin is typing.Literal or all(_is_immutable_annotation(m, registry, owner) for m in members)
    if origin in (tuple, frozenset):
        return all(a is Ellipsis or _is_immutable_annotation(a, registry, owner) for a in typing.get_args(hint))
    if origin is typing.Annotated:
        return _is_immutable_annotation(typing.get_args(hint)[0], registry, owner)
    if hint is None or hint is owner or hint is PurePosixPath:
        return True
    # A bare `tuple` or a subclassable type may hold anything, so only types that are themselves checked count.
    return isinstance(hint, type) and hint is not tuple and is_immutable_type(hint, registry)
