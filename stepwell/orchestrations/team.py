"""What a team is between two messages, and how that is saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from stepwell.agents.chat import Message
from stepwell.checkpointing.registry import register_type
from stepwell.orchestrations.decision import Counters, Limit, Replan
from stepwell.orchestrations.ledger import MagenticProgressLedger
from stepwell.orchestrations.manager import MagenticContext, MagenticTaskLedger
from stepwell.orchestrations.participants import GroupChatParticipantMessage

UNTOLD = -1
"""A participant that has heard nothing since the team (re)started: it begins anew when it is next told something."""

_KEPT = ("ledger", "progress", "heard", "counters", "speaker", "reviews", "starts_over", "stuck", "stopped_by")

register_type(
    Counters,
    name="stepwell.MagenticCounters",
    encode=lambda c: [c.rounds, c.stalls, c.resets, c.barren],
    decode=lambda v: Counters(*v),
    immutable=True,
)
register_type(Limit, name="stepwell.MagenticLimit", immutable=True)
register_type(Replan, name="stepwell.MagenticReplan", immutable=True)


@dataclass(slots=True)
class TeamState:
    """Where a team stands. The conversation only grows between two plans, so that checkpoints store what is new."""

    context: MagenticContext
    ledger: MagenticTaskLedger
    heard: dict[str, int]
    """How much of the conversation each participant was told."""
    counters: Counters = field(default_factory=Counters)
    progress: MagenticProgressLedger | None = None
    speaker: str | None = None
    """Who was asked and has not answered."""
    reviews: int = 0
    """How often the plan at hand was shown."""
    starts_over: bool = False
    """The plan at hand came from a stall: when it is carried out the conversation is cleared."""
    stuck: Replan | None = None
    """The replanning that waits for a person's word."""
    stopped_by: Limit | None = None

    @property
    def history(self) -> list[Message]:
        return self.context.chat_history

    def count(self, counters: Counters) -> None:
        """Take these counters, and let the manager see them."""
        self.counters = counters
        self.context.round_count, self.context.stall_count = counters.rounds, counters.stalls
        self.context.reset_count, self.context.stopped_because = counters.resets, None

    def start_over(self) -> None:
        """Forget the conversation; whoever is told something next begins anew."""
        self.context.reset()
        self.heard = dict.fromkeys(self.heard, UNTOLD)
        self.starts_over = False

    def news_for(self, name: str) -> GroupChatParticipantMessage | None:
        """What this participant has not heard: the plan, what others said, what the person wants. None if it has."""
        heard = self.heard.get(name, UNTOLD)
        told = self.history[max(0, heard) :]
        self.heard[name] = len(self.history)
        # What the manager told somebody else to do is between the two; nobody needs to hear its own words.
        news = tuple(message for message in told if message.role != "assistant" and message.author_name != name)
        return GroupChatParticipantMessage(news, reset=heard == UNTOLD) if news or heard == UNTOLD else None

    def saved(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in _KEPT}
        return {"task": self.context.task, "history": self.history, **kept}

    @classmethod
    def restored(cls, saved: Mapping[str, Any], team: Mapping[str, str]) -> TeamState:
        context = MagenticContext(saved["task"], list(saved["history"]), dict(team))
        kept = {name: saved[name] for name in _KEPT}
        state = cls(context, **{**kept, "heard": dict(saved["heard"])})
        state.count(state.counters)
        return state

    @classmethod
    def begun(cls, context: MagenticContext, ledger: MagenticTaskLedger, names: Iterable[str]) -> TeamState:
        return cls(context, ledger, dict.fromkeys(names, UNTOLD))


def explained(limit: Limit) -> str:
    """Which limit ended the work, in a sentence."""
    match limit.name:
        case "max_round_count":
            what = f"the limit max_round_count={limit.value} was reached"
        case "max_reset_count":
            what = f"the limit max_reset_count={limit.value} was reached: no plan worked out"
        case "max_plan_reviews":
            what = f"the limit max_plan_reviews={limit.value} was reached: the plan was sent back each time"
        case "barren_replans":
            what = f"the manager made {limit.value} new plans in a row without letting anyone speak"
        case never:
            assert_never(never)
    return f"Stopped early: {what}."
