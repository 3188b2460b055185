"""Changes to a checkpoint's shared state, as they are given on a command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from stepwell.checkpointing.checkpoint import RESERVED_STATE_KEYS
from stepwell.checkpointing.codec import MAX_DEPTH
from stepwell.cli.json_texts import parsed_json
from stepwell.cli.remedies import Unusable
from stepwell.cli.safe_text import one_line


def edited_state(state: Mapping[str, Any], *, file: Path | None, settings: Sequence[str]) -> dict[str, Any]:
    """The keys of shared state that change, with their new values: those of the file, then those set one by one."""
    edits = _read(file) if file is not None else {}
    for setting in settings:
        path, value = _parsed(setting)
        key, *inner = path
        if not inner:
            edits[key] = value
            continue
        there = edits[key] if key in edits else deepcopy(state.get(key, {}))
        edits[key] = _changed(there, inner, value, setting)
    if reserved := RESERVED_STATE_KEYS.intersection(edits):
        raise Unusable(f"{', '.join(sorted(reserved))} can't be changed; only shared state can")
    return edits


def _read(file: Path) -> dict[str, Any]:
    try:
        data = parsed_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unusable(f"{file} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise Unusable(f"{file} is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise Unusable(f"{file} has to hold an object: the keys of shared state that change")
    return data


def _parsed(setting: str) -> tuple[list[str], Any]:
    path, separator, text = setting.partition("=")
    if not separator or not all(path.split(".")) or path.count(".") >= MAX_DEPTH:
        raise Unusable(f"--set {one_line(setting, 80)!r}: write it as path=JSON, for example customer.name='\"Ada\"'")
    try:
        return path.split("."), parsed_json(text)
    except ValueError as error:
        raise Unusable(f"--set {one_line(setting, 80)!r}: that is no JSON ({error}); texts need quotes") from error


def _changed(there: Any, path: Sequence[str], value: Any, setting: str) -> Any:
    """A copy of `there` with the value at the end of the path replaced."""
    key, *rest = path
    if isinstance(there, list) and key.isdigit() and int(key) < len(there):
        place: Any = int(key)
    elif isinstance(there, dict):
        place = key
    else:
        raise Unusable(f"--set {setting!r}: {key!r} leads nowhere; only dicts and lists can be changed inside")
    if rest and isinstance(there, dict) and place not in there:
        there[place] = {}
    there[place] = _changed(there[place], rest, value, setting) if rest else value
    return there
