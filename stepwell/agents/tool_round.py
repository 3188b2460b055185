"""The tool calls of one reply: made at once, and those whose agents ask a person set aside and taken up again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepwell.agents.approval import PausedCall, PendingApprovals
from stepwell.agents.calls import Prepared, ToolCaller, in_order
from stepwell.agents.content import Content
from stepwell.agents.session import AgentSession
from stepwell.agents.tools import CallPaused, ResumedCall
from stepwell.agents.workflow_memory import request_ids
from stepwell.errors import AgentException, UnknownApproval


@dataclass(frozen=True, slots=True)
class Made:
    """What became of some calls."""

    results: tuple[Content, ...] = ()
    paused: tuple[PausedCall, ...] = ()


@dataclass(frozen=True, slots=True)
class TakenUp:
    """A pause after some of its calls went on; `decisions` are the answers that were for nobody behind a tool."""

    pending: PendingApprovals
    decisions: tuple[Content, ...]


@dataclass(frozen=True, slots=True)
class ToolRound:
    """Makes calls for a turn, and keeps the conversations of those that pause in the turn's session."""

    caller: ToolCaller
    session: AgentSession | None

    async def make(self, prepared: Sequence[Prepared]) -> Made:
        """Make these calls at once; results in order."""
        return self._sorted(await in_order([self._attempt(item) for item in prepared]))

    async def take_up(
        self, pending: PendingApprovals, decisions: Sequence[Content], responses: Mapping[str, Any]
    ) -> TakenUp:
        """Go on with the paused calls that were answered."""
        resumed = self._resumed(pending, decisions, responses)
        taken = {str(request.id) for call in pending.paused for request in call.requests}
        rest = tuple(decision for decision in decisions if decision.id not in taken)
        unknown = set(responses) - {name for one in resumed.values() for name in one.responses}
        if unknown:
            raise UnknownApproval(min(unknown), tuple(str(request.id) for request in pending.undecided))
        if not resumed:
            return TakenUp(pending, rest)
        calls = _calls_of(pending)
        made = self._sorted(
            await in_order([self._attempt(self.caller.prepare(calls[k]), one) for k, one in resumed.items()])
        )
        pending = pending.with_outcomes(made.results, made.paused)
        assert self.session is not None
        # Kept at once: what was answered and done must not be answered again, should the rest of the turn fail.
        self.session.pending_approvals = pending
        self.session.paused_calls = {
            name: session
            for name, session in self.session.paused_calls.items()
            if name in {call.call_id for call in pending.paused}
        }
        return TakenUp(pending, rest)

    def _resumed(
        self, pending: PendingApprovals, decisions: Sequence[Content], responses: Mapping[str, Any]
    ) -> dict[str, ResumedCall]:
        found: dict[str, ResumedCall] = {}
        for call in pending.paused:
            session = self.session.paused_calls[call.call_id] if self.session is not None else AgentSession()
            known = request_ids(session)
            typed = {name: answer for name, answer in responses.items() if name in known}
            answers = call.answers_in(decisions)
            if typed or answers:
                found[call.call_id] = ResumedCall(session, answers, typed)
        return found

    async def _attempt(self, item: Prepared, resumed: ResumedCall | None = None) -> Content | PausedCall:
        call_id = str(item.call.call_id)
        try:
            return await self.caller.make(item, resumed)
        except CallPaused as paused:
            if self.session is None:
                raise AgentException(
                    f"{item.call.name!r} waits for a person, and agent {self.caller.agent_name!r} has no session to "
                    "remember that in; run it with session=agent.create_session()"
                ) from None
            self.session.paused_calls = {**self.session.paused_calls, call_id: paused.session}
            return PausedCall.of(call_id, paused.requests)

    def _sorted(self, outcomes: Sequence[Content | PausedCall]) -> Made:
        results = tuple(outcome for outcome in outcomes if isinstance(outcome, Content))
        return Made(results, tuple(outcome for outcome in outcomes if isinstance(outcome, PausedCall)))


def _calls_of(pending: PendingApprovals) -> dict[str, Content]:
    """The calls of the reply; those that were approved with the arguments that a person saw."""
    approved = (request.function_call for request in pending.requests)
    contents = (*pending.reply.contents, *(call for call in approved if call is not None))
    return {str(content.call_id): content for content in contents if content.type == "function_call"}
