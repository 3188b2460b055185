"""Who speaks next: teams of agents.

team = MagenticBuilder(participants=[researcher, writer], manager_agent=manager, enable_plan_review=True).build()
result = await team.run("Write a brief about rainwater harvesting")
"""

from __future__ import annotations

from stepwell.errors import LedgerUnreadable
from stepwell.orchestrations.events import (
    GroupChatRequestSentEvent,
    GroupChatResponseReceivedEvent,
    MagenticOrchestratorEvent,
    MagenticOrchestratorEventType,
)
from stepwell.orchestrations.ledger import MagenticProgressLedger, MagenticProgressLedgerItem
from stepwell.orchestrations.magentic import MagenticBuilder
from stepwell.orchestrations.manager import (
    MagenticContext,
    MagenticManagerBase,
    MagenticTaskLedger,
    StandardMagenticManager,
)
from stepwell.orchestrations.orchestrator import MagenticOrchestrator
from stepwell.orchestrations.participants import (
    GroupChatParticipantMessage,
    GroupChatRequestMessage,
    GroupChatResponseMessage,
)
from stepwell.orchestrations.plan import Plan, PlanStep
from stepwell.orchestrations.review import MagenticPlanReviewRequest, MagenticPlanReviewResponse

__all__ = [
    "GroupChatParticipantMessage",
    "GroupChatRequestMessage",
    "GroupChatRequestSentEvent",
    "GroupChatResponseMessage",
    "GroupChatResponseReceivedEvent",
    "LedgerUnreadable",
    "MagenticBuilder",
    "MagenticContext",
    "MagenticManagerBase",
    "MagenticOrchestrator",
    "MagenticOrchestratorEvent",
    "MagenticOrchestratorEventType",
    "MagenticPlanReviewRequest",
    "MagenticPlanReviewResponse",
    "MagenticProgressLedger",
    "MagenticProgressLedgerItem",
    "MagenticTaskLedger",
    "Plan",
    "PlanStep",
    "StandardMagenticManager",
]
