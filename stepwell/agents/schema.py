"""JSON schemas: of a function's parameters, of an output type, and the strict dialect that servers enforce."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model

_GOOGLE_SECTION = re.compile(r"^(Args|Arguments|Parameters|Params):\s*$")
_OTHER_SECTION = re.compile(r"^[A-Z][A-Za-z ]+:\s*$")
_GOOGLE_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_FIELD_ENTRY = re.compile(r"^:param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)$")
_FENCE = re.compile(r"```[A-Za-z]*\s*\n(.*?)```", re.DOTALL)


def docstring_parts(fn: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """What the docstring says of the function, and of each parameter (Google style, or `:param name:`)."""
    lines = inspect.cleandoc(fn.__doc__ or "").splitlines()
    about: list[str] = []
    params: dict[str, str] = {}
    section: str | None = None
    current: str | None = None
    for line in lines:
        stripped = line.strip()
        if _GOOGLE_SECTION.match(line):
            section, current = "params", None
        elif _OTHER_SECTION.match(line):
            section = "other"
        elif match := _FIELD_ENTRY.match(stripped):
            section, current = "fields", match[1]
            params[current] = match[2]
        elif stripped.startswith(":") and section in (None, "fields"):
            section, current = "fields", None
        elif section == "params" and line[:1].isspace() and (match := _GOOGLE_ENTRY.match(stripped)):
            current = match[1]
            params[current] = match[2]
        elif section in ("params", "fields") and current and stripped:
            params[current] = f"{params[current]} {stripped}".strip()
        elif section is None:
            about.append(line)
    return "\n".join(about).strip(), params


def parameters_model(fn: Callable[..., Any], *, hidden: Callable[[inspect.Parameter, Any], bool]) -> type[BaseModel]:
    """A pydantic model of what a caller may pass to `fn`, without the hidden parameters and `**kwargs`."""
    _, described = docstring_parts(fn)
    hints = _hints(fn)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(fn).parameters.values():
        hint = hints.get(parameter.name, Any if parameter.annotation is parameter.empty else parameter.annotation)
        if parameter.kind is parameter.VAR_KEYWORD or hidden(parameter, hint):
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise TypeError(f"tool {fn.__name__!r}: parameter {parameter.name!r} must be passable by name")
        default = ... if parameter.default is parameter.empty else parameter.default
        # The alias is what the world sees: a parameter may be called `schema` or `copy`, a model's field may not.
        kind = _annotated(_described(hint, described.get(parameter.name)), Field(alias=parameter.name))
        fields[f"arg{len(fields)}"] = (kind, default)
    return create_model(f"{fn.__name__}_arguments", __config__=ConfigDict(extra="forbid"), **fields)


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise TypeError(f"tool {fn.__name__!r} has an annotation that can't be resolved: {error}") from error


def _described(hint: Any, from_docstring: str | None) -> Any:
    """The annotation with a description: one written next to it wins over the docstring's."""
    if get_origin(hint) is Annotated:
        base, *extras = get_args(hint)
        texts = [extra for extra in extras if isinstance(extra, str)]
        if texts:
            rest = [extra for extra in extras if not isinstance(extra, str)]
            return _annotated(base, *rest, Field(description=texts[0]))
        if any(getattr(extra, "description", None) for extra in extras):
            return hint
    return _annotated(hint, Field(description=from_docstring)) if from_docstring else hint


def _annotated(hint: Any, *extras: Any) -> Any:
    return Annotated.__class_getitem__((hint, *extras))  # type: ignore[attr-defined]


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type, without the titles pydantic adds: they cost tokens and say nothing."""
    schema = TypeAdapter(kind).json_schema()
    cleaned: dict[str, Any] = _untitled(schema)
    return cleaned


def _untitled(node: Any) -> Any:
    if isinstance(node, list):
        return [_untitled(item) for item in node]
    if not isinstance(node, dict):
        return node
    # A property that is itself called "title" has a schema for its value, not a text.
    return {k: _untitled(v) for k, v in node.items() if not (k == "title" and isinstance(v, str))}


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema in the strict dialect (every property required, none besides), or None if it can't be said in it."""
    try:
        result: dict[str, Any] = _strict(dict(schema))
    except _NotStrict:
        return None
    return result


class _NotStrict(Exception):
    """The schema needs something that the strict dialect lacks, such as a free-form dict."""


def _strict(node: Any) -> Any:
    if isinstance(node, list):
        return [_strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return {"$ref": node["$ref"]}
    named = {"properties", "$defs"}
    result = {
        key: {name: _strict(sub) for name, sub in value.items()} if key in named else _strict(value)
        for key, value in node.items()
        if key != "default"
    }
    if result.get("type") == "object":
        if result.get("additionalProperties") not in (None, False) or not result.get("properties"):
            raise _NotStrict
        result["additionalProperties"] = False
        result["required"] = list(result["properties"])
    return result


def json_in(text: str) -> str:
    """The JSON inside a reply: models wrap it in fences and small talk whatever they were told."""
    candidates = [text, *_FENCE.findall(text)]
    candidates += [text[match.start() :] for match in re.finditer(r"[{\[]", text)][:50]
    for candidate in candidates:
        stripped = str(candidate).strip()
        try:
            value, end = json.JSONDecoder().raw_decode(stripped)
        except ValueError:
            continue
        if isinstance(value, dict | list) or end == len(stripped):
            return stripped[:end]
    return text


def instructions_for(schema: Mapping[str, Any]) -> str:
    """How to ask for JSON in words, for servers that can't be told otherwise."""
    return textwrap.dedent("""\
        Reply with one JSON value and nothing else: no prose, no code fence. It must fit this JSON schema:
        {schema}""").format(schema=json.dumps(schema, ensure_ascii=False))
