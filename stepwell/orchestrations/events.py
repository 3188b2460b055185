"""What a team tells of itself besides what every run tells."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stepwell.agents.chat import Message
from stepwell.orchestrations.ledger import MagenticProgressLedger
from stepwell.orchestrations.plan import Plan

ORCHESTRATOR_EVENT = "magentic_orchestrator"
"""The type of events whose data is a `MagenticOrchestratorEvent`."""
GROUP_CHAT_EVENT = "group_chat"
"""The type of events that say who was asked and who has answered."""


class MagenticOrchestratorEventType(StrEnum):
    PLAN_CREATED = "plan_created"
    REPLANNED = "replanned"
    PROGRESS_LEDGER_UPDATED = "progress_ledger_updated"
    STALLED = "stalled"
    RESET = "reset"
    LIMIT_REACHED = "limit_reached"


@dataclass(frozen=True, slots=True)
class MagenticOrchestratorEvent:
    """Something the orchestrator did: `content` is the ledger, or says in words what it was."""

    event_type: MagenticOrchestratorEventType
    content: Message | MagenticProgressLedger
    plan: Plan | None = None
    """The plan, where there is a new one."""


@dataclass(frozen=True, slots=True)
class GroupChatRequestSentEvent:
    """A participant was asked to speak."""

    round_index: int
    participant_name: str
    instruction: str = ""


@dataclass(frozen=True, slots=True)
class GroupChatResponseReceivedEvent:
    """A participant has spoken."""

    round_index: int
    participant_name: str
