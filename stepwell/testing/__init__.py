"""For your tests: scripted models, crashes at chosen points, and the contract that every storage has to pass.

What is not asked for is not imported, so a program that only wants a scripted model needs no pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell.testing.clock import time_is as time_is
    from stepwell.testing.crash import CRASH_POINTS as CRASH_POINTS
    from stepwell.testing.crash import Crash as Crash
    from stepwell.testing.crash import CrashingStorage as CrashingStorage
    from stepwell.testing.crash import PowerLoss as PowerLoss
    from stepwell.testing.crash import reached as reached
    from stepwell.testing.models import Delayed as Delayed
    from stepwell.testing.models import ScriptedChatClient as ScriptedChatClient
    from stepwell.testing.models import ScriptExhausted as ScriptExhausted
    from stepwell.testing.models import ScriptLeftOver as ScriptLeftOver
    from stepwell.testing.models import Streamed as Streamed
    from stepwell.testing.models import calls as calls
    from stepwell.testing.models import forbid_real_models as forbid_real_models
    from stepwell.testing.models import real_models_allowed as real_models_allowed
    from stepwell.testing.storage import CheckpointStorageContract as CheckpointStorageContract
    from stepwell.testing.storage import Reopen as Reopen
    from stepwell.testing.storage import RunStorageContract as RunStorageContract
    from stepwell.testing.teams import scripted_ledger as scripted_ledger
    from stepwell.testing.teams import scripted_manager as scripted_manager

_HOMES = {
    "CRASH_POINTS": "crash",
    "CheckpointStorageContract": "storage",
    "Crash": "crash",
    "CrashingStorage": "crash",
    "Delayed": "models",
    "PowerLoss": "crash",
    "Reopen": "storage",
    "RunStorageContract": "storage",
    "ScriptExhausted": "models",
    "ScriptLeftOver": "models",
    "ScriptedChatClient": "models",
    "Streamed": "models",
    "calls": "models",
    "forbid_real_models": "models",
    "reached": "crash",
    "real_models_allowed": "models",
    "scripted_ledger": "teams",
    "scripted_manager": "teams",
    "time_is": "clock",
}

__all__ = [
    "CRASH_POINTS",
    "CheckpointStorageContract",
    "Crash",
    "CrashingStorage",
    "Delayed",
    "PowerLoss",
    "Reopen",
    "RunStorageContract",
    "ScriptExhausted",
    "ScriptLeftOver",
    "ScriptedChatClient",
    "Streamed",
    "calls",
    "forbid_real_models",
    "reached",
    "real_models_allowed",
    "scripted_ledger",
    "scripted_manager",
    "time_is",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
