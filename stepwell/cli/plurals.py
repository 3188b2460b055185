"""Counts and articles as people write them."""

from __future__ import annotations

_VOWELS = tuple("aeiouAEIOU")


def number_of(count: int, noun: str) -> str:
    """`1 call`, `7 calls`, `1,024 calls`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def article(noun: str) -> str:
    """`an int`, `a str`."""
    return f"{'an' if noun.startswith(_VOWELS) else 'a'} {noun}"
