"""A run as a person sees it: events are folded into what is on the screen now and what is written down for good.

Nothing here knows of terminals, widths, colours or clocks. `LiveState.fold` takes one event and returns the entries
that it brought; the rest of the state is what a view shows until the next event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stepwell.agents.chat import AgentResponseUpdate
from stepwell.agents.content import Content
from stepwell.checkpointing.checkpoint import WorkflowCheckpoint
from stepwell.cli.live_entries import (
    Asked,
    Entry,
    Judged,
    Noted,
    Planned,
    Replayed,
    Said,
    Saved,
    ToolUsed,
    Worked,
    Yielded,
    words_of,
)
from stepwell.cli.live_plan import PlanProgress
from stepwell.orchestrations.events import (
    GroupChatRequestSentEvent,
    GroupChatResponseReceivedEvent,
    MagenticOrchestratorEvent,
)
from stepwell.orchestrations.ledger import MagenticProgressLedger
from stepwell.orchestrations.manager import MANAGER_NAME
from stepwell.orchestrations.orchestrator import ORCHESTRATOR_ID
from stepwell.orchestrations.participants import (
    GroupChatParticipantMessage,
    GroupChatRequestMessage,
    GroupChatResponseMessage,
)
from stepwell.workflows.events import WorkflowErrorDetails, WorkflowEvent, WorkflowRunState

MANAGER = "manager"
"""What a team's manager is called, unless it has a name of its own."""

Phase = Literal["starting", "working", "waiting", "done", "failed", "interrupted"]

_PHASES: Mapping[WorkflowRunState, Phase] = {
    WorkflowRunState.STARTED: "starting",
    WorkflowRunState.IN_PROGRESS: "working",
    WorkflowRunState.IN_PROGRESS_PENDING_REQUESTS: "working",
    WorkflowRunState.IDLE: "done",
    WorkflowRunState.IDLE_WITH_PENDING_REQUESTS: "waiting",
    WorkflowRunState.FAILED: "failed",
    WorkflowRunState.CANCELLED: "interrupted",
}


_VOICES = {ORCHESTRATOR_ID: MANAGER, MANAGER_NAME: MANAGER}


@dataclass(slots=True)
class ToolUse:
    """A tool call under way."""

    name: str
    arguments: str


@dataclass(slots=True)
class Turn:
    """What an executor is doing now: the words that have come so far, and the tools it waits for."""

    took: Any = None
    pieces: list[str] = field(default_factory=list)
    tools: dict[str, ToolUse] = field(default_factory=dict)
    is_an_agents: bool = False

    @property
    def is_thought(self) -> bool:
        """Does it take a while in which there is nothing to see?"""
        return self.is_an_agents or isinstance(self.took, GroupChatRequestMessage)

    @property
    def text(self) -> str:
        if len(self.pieces) > 1:
            self.pieces[:] = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""

    def tail(self, length: int) -> str:
        """The end of what has been said."""
        return self.text[-length:]


@dataclass(slots=True)
class Totals:
    """What the run has used, as of its last checkpoint, and what has come since."""

    model_calls: int = 0
    tokens: int = 0
    tool_calls: int = 0
    replayed: int = 0
    tokens_since: int = 0
    """Of calls whose superstep is not saved yet, as far as they were streamed."""
    tool_calls_since: int = 0

    @property
    def all_tokens(self) -> int:
        return self.tokens + self.tokens_since

    @property
    def all_tool_calls(self) -> int:
        return self.tool_calls + self.tool_calls_since

    def count(self, usage: Mapping[str, Mapping[str, float]]) -> None:
        self.model_calls, self.tokens, self.tool_calls = (
            round(sum(used.get(counted, 0) for used in usage.values()))
            for counted in ("calls", "total_tokens", "tool_calls")
        )
        self.tokens_since = self.tool_calls_since = 0


@dataclass(slots=True)
class LiveState:
    """Where a run stands, for people to look at."""

    run_id: str | None = None
    phase: Phase = "starting"
    superstep: int = 0
    saved: Saved | None = None
    """The last checkpoint."""
    plans: dict[str, PlanProgress] = field(default_factory=dict)
    """By the orchestrator whose plan it is; a team may have teams in it."""
    turns: dict[str, Turn] = field(default_factory=dict)
    """Who is at work, in the order they began."""
    last_asked: Asked | None = None
    totals: Totals = field(default_factory=Totals)
    waiting_for: dict[str, str] = field(default_factory=dict)
    """Requests that nobody has answered yet, and who asks."""
    first_plan_is_asked_about: bool = False
    """Whoever asks about the run's first plan shows it, so it is not written down here as well."""
    _asked_tools: dict[str, ToolUse] = field(default_factory=dict)
    _managers: dict[str, str] = field(default_factory=dict)
    _reasons: dict[str, str] = field(default_factory=dict)
    _replayed: int = 0
    _ticked: set[tuple[str, str]] = field(default_factory=set)

    @property
    def plan(self) -> PlanProgress | None:
        """The plan that was touched last."""
        return next(reversed(self.plans.values()), None)

    def name_of(self, executor_id: str | None) -> str:
        """What people call an executor: a team's orchestrator is its manager's voice."""
        home, _, name = (executor_id or "the run").rpartition("/")
        return "/".join(filter(None, (home, self._managers.get(executor_id or "", _VOICES.get(name, name)))))

    # --- folding -----------------------------------------------------------------------------------------------------

    def fold(self, event: WorkflowEvent) -> list[Entry]:
        """Take one event, and return what is to be written down because of it."""
        self.run_id = event.run_id or self.run_id
        if isinstance(event.data, MagenticOrchestratorEvent):
            return list(self._team_event(str(event.executor_id), event.data))
        if isinstance(event.data, GroupChatRequestSentEvent):
            return list(self._asked(str(event.executor_id), event.data))
        if isinstance(event.data, GroupChatResponseReceivedEvent):
            self._heard(str(event.executor_id), event.data.participant_name)
            return []
        if event.provisional and isinstance(event.data, AgentResponseUpdate):
            return list(self._update(str(event.executor_id), event.data))
        return list(self._engine_event(event))

    def _engine_event(self, event: WorkflowEvent) -> Iterable[Entry]:
        match event.type:
            case "status" if event.state is not None:
                self.phase = _PHASES[event.state]
            case "superstep_started":
                self.superstep = event.iteration or self.superstep
            case "executor_invoked":
                yield from self._began(str(event.executor_id), event.data)
            case "executor_completed":
                yield from self._ended(str(event.executor_id), event.data)
            case "checkpoint" if isinstance(event.data, WorkflowCheckpoint):
                yield from self._checkpoint(event.data)
            case "call_replayed":
                self.totals.replayed += 1
                self._replayed += 1
            case "output" | "intermediate":
                yield Yielded(self.name_of(event.executor_id), event.data, event.type == "output")
            case "request_info":
                self.waiting_for[str(event.request_id)] = self.name_of(event.executor_id)
                self.asked_about(event.data)
            case "started" | "superstep_completed":
                pass
            case _:
                yield from self._trouble(event)

    def _trouble(self, event: WorkflowEvent) -> Iterable[Entry]:
        who = self.name_of(event.executor_id) if event.executor_id else None
        details = event.details
        match event.type:
            case "executor_retrying" | "call_retrying":
                self._drop_unfinished(str(event.executor_id))
                yield Noted("retry", _retry(event.type, details), who)
            case "executor_failed" | "failed":
                self.turns.pop(str(event.executor_id), None)
                if event.type == "failed":
                    self.phase = "failed"
                elif isinstance(details, WorkflowErrorDetails):
                    yield Noted("error", f"{details.error_type}: {details.message}", who)
            case "warning":
                yield Noted("warning", words_of(event.data), who)
            case _:
                yield Noted("event", event.type if event.data is None else f"{event.type}: {words_of(event.data)}", who)

    def answered(self) -> None:
        """A person has spoken: the run goes on, or asks again."""
        self.waiting_for.clear()
        self.phase = "starting"

    # --- executors ---------------------------------------------------------------------------------------------------

    def _began(self, who: str, message: Any) -> Iterable[Entry]:
        if who in self.turns:  # Several messages for one executor: it takes them one after the other.
            yield from self._words(who)
        self.turns[who] = Turn(message)

    def _ended(self, who: str, gave: Any) -> Iterable[Entry]:
        yield from self._words(who)
        turn = self.turns.pop(who, Turn())
        if isinstance(gave, list) and any(isinstance(sent, GroupChatResponseMessage) for sent in gave):
            home, _, name = who.rpartition("/")
            self._spoke("/".join(filter(None, (home, ORCHESTRATOR_ID))), name)
        for use in turn.tools.values():
            yield ToolUsed(self.name_of(who), use.name, use.arguments, None)
        if not turn.is_an_agents and not _is_team_talk(who, turn.took) and isinstance(gave, list):
            yield Worked(self.name_of(who), turn.took, tuple(gave))

    def _checkpoint(self, checkpoint: WorkflowCheckpoint) -> Iterable[Entry]:
        before = self.saved.superstep if self.saved is not None else 0
        superstep = checkpoint.iteration_count
        self.saved = Saved(checkpoint.sequence, superstep, is_step=superstep > before)
        self.totals.count(checkpoint.metadata.get("usage", {}))
        if self._replayed:
            yield Replayed(self._replayed)
            self._replayed = 0
        yield self.saved

    def _drop_unfinished(self, who: str) -> None:
        """A failed attempt leaves nothing, so what it had said so far is not shown as said."""
        if who in self.turns:
            self.turns[who] = Turn(self.turns[who].took, is_an_agents=self.turns[who].is_an_agents)

    # --- agents ------------------------------------------------------------------------------------------------------

    def _update(self, who: str, update: AgentResponseUpdate) -> Iterable[Entry]:
        turn = self.turns.setdefault(who, Turn())
        turn.is_an_agents = True
        for content in update.contents:
            yield from self._content(who, turn, content)

    def _content(self, who: str, turn: Turn, content: Content) -> Iterable[Entry]:
        match content.type:
            case "text" if content.text:
                turn.pieces.append(content.text)
            case "function_call":
                yield from self._words(who)
                turn.tools[str(content.call_id)] = ToolUse(str(content.name), _arguments(content))
            case "function_result":
                self.totals.tool_calls_since += 1
                asked = self._asked_tools.pop(str(content.call_id), None)
                use = turn.tools.pop(str(content.call_id), asked)
                if use is not None:
                    yield ToolUsed(self.name_of(who), use.name, use.arguments, _result(content))
            case "usage":
                counted: Mapping[str, int] = content.usage_details or {}
                self.totals.tokens_since += counted.get("total_token_count", 0)

    def asked_about(self, request: Any) -> None:
        """A person is asked whether a tool may be called; its result comes by itself, perhaps in another process."""
        call = request.function_call if isinstance(request, Content) else None
        if call is not None:
            self._asked_tools[str(call.call_id)] = ToolUse(str(call.name), _arguments(call))

    def _words(self, who: str) -> Iterable[Entry]:
        turn = self.turns.get(who)
        if turn is not None and turn.text.strip():
            yield Said(self.name_of(who), turn.text.strip("\n"))
            turn.pieces.clear()

    # --- teams -------------------------------------------------------------------------------------------------------

    def adopt_plan(self, orchestrator: str, progress: PlanProgress) -> None:
        """Look at this plan: a new one, one that was read from a checkpoint, or one that something happened to."""
        self.plans.pop(orchestrator, None)
        self.plans[orchestrator] = progress

    def _team_event(self, orchestrator: str, event: MagenticOrchestratorEvent) -> Iterable[Entry]:
        content = event.content
        if isinstance(content, MagenticProgressLedger):
            yield from self._judged(orchestrator, content)
            return
        if content.author_name not in (None, MANAGER_NAME):
            self._managers[orchestrator] = str(content.author_name)
        by = self.name_of(orchestrator)
        if event.plan is None:
            yield Noted("team", content.text.strip(), by)
            return
        before = self.plans.get(orchestrator)
        is_shown_elsewhere = self.first_plan_is_asked_about and not self.plans
        if (before is None or before.plan != event.plan) and not is_shown_elsewhere:
            yield Planned(event.plan, by, before.plan if before else None)
        self.adopt_plan(orchestrator, PlanProgress(event.plan))

    def _judged(self, orchestrator: str, ledger: MagenticProgressLedger) -> Iterable[Entry]:
        by = self.name_of(orchestrator)
        self._reasons[orchestrator] = ledger.next_speaker.reason
        if ledger.satisfied:
            yield Judged(by, "satisfied", ledger.is_request_satisfied.reason)
        elif ledger.is_in_loop.answer:
            yield Judged(by, "in a loop", ledger.is_in_loop.reason)
        elif not ledger.is_progress_being_made.answer:
            yield Judged(by, "no progress", ledger.is_progress_being_made.reason)

    def _asked(self, orchestrator: str, asked: GroupChatRequestSentEvent) -> Iterable[Entry]:
        self._touched(orchestrator).asked(asked.participant_name)
        reason = self._reasons.pop(orchestrator, "")
        self.last_asked = Asked(self.name_of(orchestrator), asked.participant_name, asked.instruction, reason)
        yield self.last_asked

    def _spoke(self, orchestrator: str, name: str) -> None:
        """A participant is through with its turn; the manager has not heard of it yet."""
        self._touched(orchestrator).spoke(name)
        self._ticked.add((orchestrator, name))

    def _heard(self, orchestrator: str, name: str) -> None:
        """The manager has a participant's reply, which may have been given before this process began."""
        if (orchestrator, name) in self._ticked:
            self._ticked.discard((orchestrator, name))
        else:
            self._touched(orchestrator).spoke(name)

    def _touched(self, orchestrator: str) -> PlanProgress:
        """This team's plan, as the one to look at."""
        self.adopt_plan(orchestrator, self.plans.get(orchestrator, PlanProgress()))
        return self.plans[orchestrator]


def _is_team_talk(who: str, took: Any) -> bool:
    """The orchestrator's own work is told by its events; participants who are told something only take note of it."""
    return who.rpartition("/")[2] == ORCHESTRATOR_ID or isinstance(took, GroupChatParticipantMessage)


def _arguments(content: Content) -> str:
    return content.arguments if isinstance(content.arguments, str) else str(content.arguments or "")


def _result(content: Content) -> str:
    return str(content.exception) if content.exception else str(content.result)


def _retry(kind: str, details: Any) -> str:
    told: Mapping[str, Any] = details if isinstance(details, Mapping) else {}
    what = "the model call" if kind == "call_retrying" else "it"
    message = f"{told.get('error', 'an error')}" + (f": {told['message']}" if told.get("message") else "")
    return f"attempt {told.get('attempt', '?')} failed ({message}); {what} is tried again"
