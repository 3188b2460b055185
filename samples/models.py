"""Which model the samples talk to: yours if one is configured, else a script, so that they run offline."""

from __future__ import annotations

import os
import sys
from typing import Any

from stepwell import ChatClient, OpenAIChatClient
from stepwell.testing import ScriptedChatClient


def is_configured() -> bool:
    return bool(os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL"))


def model(*script: Any) -> ChatClient:
    """A client for the configured model, or one that replies with `script`, one entry per call."""
    return model_or(ScriptedChatClient(*script))


def model_or(scripted: ChatClient) -> ChatClient:
    """A client for the configured model, or the scripted one."""
    if not is_configured():
        return scripted
    client = OpenAIChatClient()
    print(f"(using the model {client.model!r})", file=sys.stderr)
    return client
