"""Reads the JSON that models really write.

Single quotes, trailing commas, bare words, comments, line breaks and unescaped quotes inside strings, Python's `True`
and `None`: all are understood. What is cut off is not guessed at. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_BLANK = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/|#[^\n]*)*", re.DOTALL)
_WORD = re.compile(r"[^\s,:{}\[\]\"'`]+")
_ENDS_STRING = re.compile(r"\s*(?:[,:}\]]|$)")
_QUOTES = {'"': '"', "'": "'", "`": "`", "“": "”", "‘": "’"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "null": None, "none": None}
_MAX_DEPTH = 40
_MAX_STARTS = 50


class NotJson(ValueError):
    """There is no value here that could be read."""


def objects_in(text: str) -> Iterator[dict[str, Any]]:
    """Every outermost JSON object in a reply, whatever is written around it."""
    position, starts = 0, 0
    while starts < _MAX_STARTS and (position := _next_start(text, position)) != -1:
        starts += 1
        try:
            value, end = _read(text, position)
        except NotJson:
            position += 1
            continue
        position = end
        yield from _objects_of(value)


def _next_start(text: str, position: int) -> int:
    found = [index for index in (text.find("{", position), text.find("[", position)) if index != -1]
    return min(found, default=-1)


def _objects_of(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _objects_of(item)


def _read(text: str, position: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder(strict=False).raw_decode(text, position)
    except (ValueError, RecursionError):
        reader = _Reader(text, position)
        return reader.value(0), reader.position


class _Reader:
    """A recursive descent over what resembles JSON."""

    def __init__(self, text: str, position: int) -> None:
        self.text = text
        self.position = position

    def value(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise NotJson("nested too deeply")
        char = self._peek()
        if char == "{":
            return self._object(depth)
        if char == "[":
            return self._list(depth)
        if char in _QUOTES:
            return self._string(char)
        return self._word()

    def _object(self, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        self.position += 1
        while self._peek() != "}":
            char = self._peek()
            key = self._string(char) if char in _QUOTES else self._bare()
            self._expect(":")
            result[str(key)] = self.value(depth + 1)
            self._separator("}")
        self.position += 1
        return result

    def _list(self, depth: int) -> list[Any]:
        result: list[Any] = []
        self.position += 1
        while self._peek() != "]":
            result.append(self.value(depth + 1))
            self._separator("]")
        self.position += 1
        return result

    def _string(self, opening: str) -> str:
        """A quote ends a string only where something can follow: models forget to escape those inside."""
        closing, pieces = _QUOTES[opening], []
        self.position += 1
        while self.position < len(self.text):
            char = self.text[self.position]
            self.position += 1
            if char == "\\":
                pieces.append(self._escape())
            elif char == closing and _ENDS_STRING.match(self.text, self.position):
                return "".join(pieces)
            else:
                pieces.append(char)
        raise NotJson("a string does not end")

    def _escape(self) -> str:
        char = self.text[self.position : self.position + 1]
        self.position += 1
        if char == "u":
            digits = self.text[self.position : self.position + 4]
            if re.fullmatch(r"[0-9a-fA-F]{4}", digits):
                self.position += 4
                return chr(int(digits, 16))
        return _ESCAPES.get(char, char)

    def _word(self) -> Any:
        word = self._bare()
        if word.casefold() in _CONSTANTS:
            return _CONSTANTS[word.casefold()]
        for number in (int, float):
            try:
                return number(word)
            except ValueError:
                continue
        return word

    def _bare(self) -> str:
        self._peek()
        match = _WORD.match(self.text, self.position)
        if match is None:
            raise NotJson(f"nothing to read at {self.position}")
        self.position = match.end()
        return match[0]

    def _separator(self, closing: str) -> None:
        char = self._peek()
        if char == ",":
            self.position += 1
        elif char not in (closing, '"', "'"):  # a forgotten comma before the next key is forgiven
            raise NotJson(f"expected , or {closing} at {self.position}")

    def _expect(self, char: str) -> None:
        if self._peek() != char:
            raise NotJson(f"expected {char} at {self.position}")
        self.position += 1

    def _peek(self) -> str:
        blank = _BLANK.match(self.text, self.position)
        assert blank is not None
        self.position = blank.end()
        if self.position >= len(self.text):
            raise NotJson("it is cut off")
        return self.text[self.position]
