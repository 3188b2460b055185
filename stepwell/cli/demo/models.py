"""Which models the demo's team asks: the configured one, or scripted ones that take their time."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from stepwell.agents.chat import ChatResponse, ChatResponseUpdate, Message
from stepwell.agents.client import ChatClient, ChatOptions
from stepwell.cli.demo import script
from stepwell.testing import ScriptedChatClient

NAMES = ("manager", "researcher", "writer")

THINKING_SECONDS = 0.5
"""How long a scripted model thinks when somebody is watching: long enough to follow, and to kill it."""
PIECES_PER_THOUGHT = 30
"""A piece of a reply takes a fraction of the time that a whole thought takes."""


def uses_a_real_model() -> bool:
    return bool(os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL"))


def described() -> str:
    """Which model it is, in a few words."""
    if not uses_a_real_model():
        return "scripted (no key, no network)"
    name = os.environ.get("OPENAI_MODEL", DEFAULT_MODEL)
    return f"{name}, a real one, at {os.environ.get('OPENAI_BASE_URL') or 'OpenAI'}"


DEFAULT_MODEL = "gpt-5-mini"


def models() -> dict[str, ChatClient]:
    if not uses_a_real_model():
        return {name: Unhurried(getattr(script, name), thinking_seconds()) for name in NAMES}
    from stepwell.agents.openai_client import OpenAIChatClient

    # Servers on this machine take any key and any model name, but want to see one.
    key = os.environ.get("OPENAI_API_KEY") or "none-needed"
    client = OpenAIChatClient(model=os.environ.get("OPENAI_MODEL", DEFAULT_MODEL), api_key=key, timeout=600)
    return dict.fromkeys(NAMES, client)


def thinking_seconds() -> float:
    given = os.environ.get("DEMO_DELAY")
    if given is not None:
        return float(given)
    return THINKING_SECONDS if sys.stdout.isatty() else 0.0


class Unhurried:
    """A scripted model at a pace that people can follow."""

    def __init__(self, answer: Callable[[Sequence[Message]], Any], seconds: float) -> None:
        self.model = "scripted"
        self._client = ScriptedChatClient(answer)
        self._seconds = seconds

    async def get_response(self, messages: Sequence[Message], *, options: ChatOptions) -> ChatResponse:
        await asyncio.sleep(self._seconds)
        return await self._client.get_response(messages, options=options)

    async def stream_response(
        self, messages: Sequence[Message], *, options: ChatOptions
    ) -> AsyncIterator[ChatResponseUpdate]:
        await asyncio.sleep(self._seconds)
        async for update in self._client.stream_response(messages, options=options):
            yield update
            await asyncio.sleep(self._seconds / PIECES_PER_THOUGHT)
