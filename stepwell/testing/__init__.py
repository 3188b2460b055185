"""For testing what you build with stepwell: scripted models, and a switch that keeps tests away from real ones."""

from __future__ import annotations

from stepwell.testing.models import (
    Asked,
    Delayed,
    ScriptedChatClient,
    ScriptExhausted,
    ScriptLeftOver,
    Streamed,
    calls,
    forbid_real_models,
    real_models_allowed,
)

__all__ = [
    "Asked",
    "Delayed",
    "ScriptExhausted",
    "ScriptLeftOver",
    "ScriptedChatClient",
    "Streamed",
    "calls",
    "forbid_real_models",
    "real_models_allowed",
]
