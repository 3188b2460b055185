"""What follows from a ledger: finish, replan, let someone speak, or stop at a limit. Pure.

Counters come in and go out with the decision, so no sequence of ledgers can lead past a limit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, assert_never

from stepwell.orchestrations.ledger import MagenticProgressLedger
from stepwell.orchestrations.names import matched_name

LimitName: TypeAlias = Literal["max_round_count", "max_reset_count", "max_plan_reviews", "barren_replans"]

BARREN_REPLANS = 3
"""How often in a row a team may replan without anyone having spoken: past that the manager makes no sense."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a team may go. None means as far as it takes."""

    max_stall_count: int = 3
    max_round_count: int | None = None
    max_reset_count: int | None = None
    max_plan_reviews: int | None = None
    """How often a plan is shown before it is approved; heeded by the orchestrator."""


@dataclass(frozen=True, slots=True)
class Counters:
    """How far a team has gone."""

    rounds: int = 0
    """Turns of participants."""
    stalls: int = 0
    """Rounds without progress, less those with; a new plan starts at none."""
    resets: int = 0
    """New plans after the first."""
    barren: int = 0
    """New plans since somebody last spoke."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The manager gave no usable ledger, however often it was asked."""

    problem: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The request is satisfied."""


@dataclass(frozen=True, slots=True)
class Replan:
    """The plan does not work; make a new one."""

    reason: str
    counters: Counters


@dataclass(frozen=True, slots=True)
class Speak:
    """Somebody's turn."""

    speaker: str
    instruction: str
    counters: Counters


@dataclass(frozen=True, slots=True)
class Limit:
    """Enough: answer as well as can be, and say which limit it was."""

    name: LimitName
    value: int


Decision: TypeAlias = Finish | Replan | Speak | Limit


def decide(
    judgement: MagenticProgressLedger | Unreadable, counters: Counters, limits: Limits, names: Collection[str]
) -> Decision:
    """What to do next. Being satisfied counts before any limit, a limit before anything that costs another call."""
    if isinstance(judgement, Unreadable):
        return _replan(f"the manager's ledger could not be read: {judgement.problem}", counters, limits)
    if judgement.satisfied:
        return Finish()
    if limits.max_round_count is not None and counters.rounds >= limits.max_round_count:
        return Limit("max_round_count", limits.max_round_count)
    speaker = matched_name(judgement.speaker, names)
    if speaker is None:
        return _replan(f"the manager named {judgement.speaker!r}, who is not on the team", counters, limits)
    stalls = counters.stalls + 1 if judgement.stalled else max(0, counters.stalls - 1)
    if stalls > limits.max_stall_count:
        return _replan(_why_stalled(judgement), replace(counters, stalls=stalls), limits)
    return Speak(speaker, judgement.instruction, replace(counters, stalls=stalls, rounds=counters.rounds + 1, barren=0))


def _replan(reason: str, counters: Counters, limits: Limits) -> Replan | Limit:
    if limits.max_reset_count is not None and counters.resets >= limits.max_reset_count:
        return Limit("max_reset_count", limits.max_reset_count)
    if counters.barren >= BARREN_REPLANS:
        return Limit("barren_replans", BARREN_REPLANS)
    return Replan(reason, replace(counters, stalls=0, resets=counters.resets + 1, barren=counters.barren + 1))


def _why_stalled(ledger: MagenticProgressLedger) -> str:
    item = ledger.is_in_loop if ledger.is_in_loop.answer else ledger.is_progress_being_made
    return item.reason or ("the team goes in circles" if ledger.is_in_loop.answer else "no progress is being made")


def may_go_on(stopped_by: Limit, limits: Limits) -> bool:
    """Has the limit that stopped a run been raised since?"""
    match stopped_by.name:
        case "max_round_count":
            now = limits.max_round_count
        case "max_reset_count":
            now = limits.max_reset_count
        case "max_plan_reviews":
            now = limits.max_plan_reviews
        case "barren_replans":
            return False
        case never:
            assert_never(never)
    return now is None or now > stopped_by.value
