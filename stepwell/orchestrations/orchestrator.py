"""The orchestrator of a Magentic team: a small state machine around its manager.

Plan, perhaps have it reviewed, then round after round: ask for the ledger, decide, let somebody speak. What to do is
decided in `decision.py`; here it is done. Everything it keeps goes through its checkpoint hooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

from stepwell.agents.chat import AgentResponse, Message, as_messages, text_of
from stepwell.agents.content import Content
from stepwell.errors import LedgerUnreadable
from stepwell.orchestrations.decision import (
    Counters,
    Finish,
    Limit,
    Limits,
    Replan,
    Speak,
    Unreadable,
    decide,
    may_go_on,
)
from stepwell.orchestrations.events import (
    GROUP_CHAT_EVENT,
    ORCHESTRATOR_EVENT,
    GroupChatRequestSentEvent,
    GroupChatResponseReceivedEvent,
    MagenticOrchestratorEvent,
    MagenticOrchestratorEventType,
)
from stepwell.orchestrations.ledger import MagenticProgressLedger
from stepwell.orchestrations.manager import (
    MagenticContext,
    MagenticManagerBase,
    MagenticTaskLedger,
    PlanLike,
    task_ledger_of,
)
from stepwell.orchestrations.participants import (
    GroupChatParticipantMessage,
    GroupChatRequestMessage,
    GroupChatResponseMessage,
)
from stepwell.orchestrations.plan import Plan
from stepwell.orchestrations.review import MagenticPlanReviewRequest, MagenticPlanReviewResponse
from stepwell.orchestrations.team import TeamState, explained
from stepwell.workflows.context import WorkflowContext, derived_id
from stepwell.workflows.events import WorkflowEvent
from stepwell.workflows.executor import Executor, handler, response_handler

ORCHESTRATOR_ID = "magentic_orchestrator"

Sent = GroupChatParticipantMessage | GroupChatRequestMessage
Context = WorkflowContext[Sent, AgentResponse]
Kind = MagenticOrchestratorEventType


@dataclass(frozen=True, slots=True)
class ReviewPolicy:
    """When a person is asked."""

    plans: bool = False
    replans: bool = True
    """Whether plans made after a stall are shown too, if plans are."""
    stalls: bool = False
    """Whether a person is asked before a stalled team replans."""


class MagenticOrchestrator(Executor):
    """Has the manager plan and judge, asks participants, and yields the final answer."""

    def __init__(
        self,
        manager: MagenticManagerBase,
        team: Mapping[str, str],
        *,
        limits: Limits,
        review: ReviewPolicy,
        told_at_once: Iterable[str] = (),
    ) -> None:
        super().__init__(ORCHESTRATOR_ID)
        self.manager = manager
        self.team = dict(team)
        self.limits = limits
        self.review = review
        self.told_at_once = tuple(told_at_once)
        self._state: TeamState | None = None
        self._run_id: str | None = None
        self._announced = (0, 0)

    # --- what comes in -----------------------------------------------------------------------------------------------

    @handler
    async def on_task(self, task: str | Message | list[str | Message], ctx: Context) -> None:
        """A request begins a run; what comes after its end continues the conversation."""
        state, messages = self._state, as_messages(task)
        if self._run_id not in (None, ctx.run_id):
            state = None  # This object has served another run.
        self._run_id = ctx.run_id
        if state is None:
            await self._begin(messages, ctx)
        elif self._goes_on(state, messages):
            await self._go_on(state, ctx)
        else:
            await self._follow_up(state, messages, ctx)

    @handler
    async def on_reply(self, response: GroupChatResponseMessage, ctx: Context) -> None:
        """A participant has spoken. Only who was asked moves the team on; anybody else is heard."""
        state, author = self._team_state(), ctx.get_source_executor_id()
        # The name is in the text too: many models are not shown who a message is from.
        said = [Content.from_text(f"{author}:\n"), *response.message.contents]
        state.history.append(Message("user", said, author_name=author))
        await self._emit(ctx, GROUP_CHAT_EVENT, GroupChatResponseReceivedEvent(state.counters.rounds, author))
        await self._tell(state, (name for name in self.told_at_once if name != author), ctx)
        if state.speaker == author:
            state.speaker = None
            await self._next(state, ctx)

    @response_handler
    async def on_review(
        self, request: MagenticPlanReviewRequest, response: MagenticPlanReviewResponse, ctx: Context
    ) -> None:
        state = self._team_state()
        match response.decision:
            case "approve":
                await self._approved(state, request, response.edited_plan, ctx)
            case "revise":
                await self._sent_back(state, request, response.feedback, ctx)
            case "reject":
                await self._rejected(state, response.feedback, ctx)
            case never:
                assert_never(never)

    # --- beginning ---------------------------------------------------------------------------------------------------

    async def _begin(self, messages: list[Message], ctx: Context) -> None:
        pictures = [message for message in messages if any(content.type != "text" for content in message.contents)]
        context = MagenticContext(text_of(messages), pictures, dict(self.team))
        ledger = self._adopted(await self.manager.plan(context), context)
        self._state = TeamState.begun(context, ledger, self.team)
        await self._tell_plan(self._state, Kind.PLAN_CREATED, ctx)
        await self._propose(self._state, ctx, review=self.review.plans)

    async def _follow_up(self, state: TeamState, messages: list[Message], ctx: Context) -> None:
        """The conversation goes on with a new request: new counters and a new plan, and nothing is forgotten."""
        state.context.task = text_of(messages)
        state.history.extend(messages)
        state.reviews, state.stopped_by, state.stuck = 0, None, None
        state.count(Counters())
        state.ledger = self._adopted(await self.manager.replan(state.context), state.context)
        state.starts_over = False
        await self._tell_plan(state, Kind.PLAN_CREATED, ctx)
        await self._propose(state, ctx, review=self.review.plans)

    def _goes_on(self, state: TeamState, messages: list[Message]) -> bool:
        """Was the run stopped by a limit that is higher now, and asked for the same again?"""
        stopped = state.stopped_by
        return stopped is not None and may_go_on(stopped, self.limits) and text_of(messages) == state.context.task

    async def _go_on(self, state: TeamState, ctx: Context) -> None:
        stopped, state.stopped_by = state.stopped_by, None
        state.count(state.counters)
        if stopped is not None and stopped.name == "max_plan_reviews":
            await self._propose(state, ctx, review=True)
        else:
            await self._next(state, ctx)

    # --- plans -------------------------------------------------------------------------------------------------------

    async def _propose(self, state: TeamState, ctx: Context, *, review: bool, is_stalled: bool = False) -> None:
        if review:
            await self._ask_person(state, ctx, is_stalled=is_stalled)
        else:
            await self._carry_out(state, ctx)

    async def _ask_person(
        self, state: TeamState, ctx: Context, *, is_stalled: bool, before_replan: bool = False
    ) -> None:
        state.reviews += 1
        limit = self.limits.max_plan_reviews
        request = MagenticPlanReviewRequest(
            plan=state.ledger.plan,
            facts=state.ledger.facts,
            current_progress=state.progress,
            is_stalled=is_stalled,
            before_replan=before_replan,
            reviews_left=None if limit is None else max(0, limit - state.reviews),
            # The engine would derive one too, but the payload has to carry the same.
            request_id=derived_id("plan", ctx.run_id, ctx.scope_id),
        )
        await ctx.request_info(request, MagenticPlanReviewResponse, request_id=request.request_id)

    async def _carry_out(self, state: TeamState, ctx: Context) -> None:
        """Put the plan before the team. A plan that came from a stall starts over: the conversation has been read by
        now, and participants forget it."""
        state.reviews = 0
        if state.starts_over:
            state.start_over()
            await self._announce(ctx, Kind.RESET, "The team starts over with the new plan.")
        state.history.append(self._plan_message(state))
        await self._next(state, ctx)

    async def _replan(self, state: TeamState, decision: Replan, ctx: Context) -> None:
        state.starts_over = True
        state.count(decision.counters)
        state.ledger = self._adopted(await self.manager.replan(state.context), state.context)
        await self._tell_plan(state, Kind.REPLANNED, ctx)
        await self._propose(state, ctx, review=self.review.plans and self.review.replans, is_stalled=True)

    async def _stalled(self, state: TeamState, decision: Replan, ctx: Context) -> None:
        await self._announce(ctx, Kind.STALLED, f"The team is stuck: {decision.reason}")
        if self.review.stalls:
            state.stuck = decision
            await self._ask_person(state, ctx, is_stalled=True, before_replan=True)
        else:
            await self._replan(state, decision, ctx)

    # --- a person's word ---------------------------------------------------------------------------------------------

    async def _approved(
        self, state: TeamState, request: MagenticPlanReviewRequest, edited: Plan | None, ctx: Context
    ) -> None:
        if edited is not None:
            plan = edited.assigned(tuple(self.team))
            state.ledger = self._adopted(self.manager.composed(state.context, state.ledger.facts, plan), state.context)
            await self._tell_plan(state, Kind.REPLANNED, ctx)
        if not request.before_replan:
            await self._carry_out(state, ctx)
            return
        state.stuck, state.reviews = None, 0
        state.count(replace(state.counters, stalls=0))
        if edited is not None:
            state.history.append(self._plan_message(state))
        await self._next(state, ctx)

    async def _sent_back(
        self, state: TeamState, request: MagenticPlanReviewRequest, feedback: str, ctx: Context
    ) -> None:
        limit = self.limits.max_plan_reviews
        if state.stuck is not None:
            decision, state.stuck, state.reviews = state.stuck, None, 0
            state.history.append(Message("user", [f"A person who looked at this says: {feedback}"]))
            await self._replan(state, decision, ctx)
        elif limit is not None and state.reviews >= limit:
            await self._stop(state, Limit("max_plan_reviews", limit), ctx)
        else:
            state.ledger = self._adopted(await self.manager.revise_plan(state.context, feedback), state.context)
            await self._tell_plan(state, Kind.REPLANNED, ctx)
            await self._ask_person(state, ctx, is_stalled=request.is_stalled)

    async def _rejected(self, state: TeamState, reason: str, ctx: Context) -> None:
        state.stuck = None
        because = f": {reason}" if reason else "."
        await self._answer(state, f"The plan was rejected{because}\nNothing further was done.", ctx, ended="rejected")

    # --- rounds ------------------------------------------------------------------------------------------------------

    async def _next(self, state: TeamState, ctx: Context) -> None:
        """Judge, decide, act."""
        judgement = await self._judge(state, ctx)
        match decide(judgement, state.counters, self.limits, tuple(self.team)):
            case Finish():
                final = await self.manager.prepare_final_answer(state.context)
                await self._answer(state, final, ctx)
            case Limit() as limit:
                await self._stop(state, limit, ctx)
            case Replan() as replan:
                await self._stalled(state, replan, ctx)
            case Speak() as speak:
                await self._let_speak(state, speak, ctx)
            case never:
                assert_never(never)

    async def _judge(self, state: TeamState, ctx: Context) -> MagenticProgressLedger | Unreadable:
        try:
            ledger = await self.manager.create_progress_ledger(state.context)
        except LedgerUnreadable as error:
            return Unreadable(error.problem)
        state.progress = ledger
        await self._emit(ctx, ORCHESTRATOR_EVENT, MagenticOrchestratorEvent(Kind.PROGRESS_LEDGER_UPDATED, ledger))
        return ledger

    async def _let_speak(self, state: TeamState, decision: Speak, ctx: Context) -> None:
        state.speaker = decision.speaker
        state.count(decision.counters)
        await self._tell(state, {**dict.fromkeys(self.told_at_once), decision.speaker: None}, ctx)
        spoken = f"To {decision.speaker}: {decision.instruction}"
        state.history.append(Message("assistant", [spoken], author_name=self.manager.name))
        request = GroupChatRequestMessage(additional_instruction=decision.instruction)
        await ctx.send_message(request, decision.speaker)
        asked = GroupChatRequestSentEvent(state.counters.rounds, decision.speaker, decision.instruction)
        await self._emit(ctx, GROUP_CHAT_EVENT, asked)

    async def _tell(self, state: TeamState, names: Iterable[str], ctx: Context) -> None:
        for name in names:
            news = state.news_for(name)
            if news is not None:
                await ctx.send_message(news, name)

    # --- the end -----------------------------------------------------------------------------------------------------

    async def _stop(self, state: TeamState, limit: Limit, ctx: Context) -> None:
        """Answer as well as can be, and say what was in the way."""
        state.stopped_by = limit
        explanation = explained(limit)
        await self._announce(ctx, Kind.LIMIT_REACHED, explanation)
        state.context.stopped_because = explanation
        if not state.context.anyone_has_spoken and state.counters.rounds == 0:
            await self._answer(state, explanation, ctx, ended="limit", by=limit.name)
            return
        final = await self.manager.prepare_final_answer(state.context)
        noted = final.with_contents([*final.contents, Content.from_text(f"\n\n({explanation})")])
        await self._answer(state, noted, ctx, ended="limit", by=limit.name)

    async def _answer(
        self, state: TeamState, answer: Message | str, ctx: Context, *, ended: str | None = None, by: str | bool = True
    ) -> None:
        """Yield the answer; its properties say if it ended otherwise than by being satisfied."""
        state.speaker = None
        message = (
            answer if isinstance(answer, Message) else Message("assistant", [answer], author_name=self.manager.name)
        )
        # A user's message, as far as the team is concerned: nobody on it takes these words for its own.
        told = [Content.from_text("The answer that was given:\n"), *message.contents]
        state.history.append(Message("user", told, author_name=self.manager.name))
        properties = {ended: by} if ended is not None else {}
        await ctx.yield_output(AgentResponse([message], agent_id=self.id, additional_properties=properties))

    # --- odds and ends -----------------------------------------------------------------------------------------------

    def _team_state(self) -> TeamState:
        assert self._state is not None, "a message came in before the task"
        return self._state

    def _adopted(self, given: PlanLike, context: MagenticContext) -> MagenticTaskLedger:
        self.manager.task_ledger = ledger = task_ledger_of(given, context)
        return ledger

    def _plan_message(self, state: TeamState) -> Message:
        return Message("user", [state.ledger.text], author_name=self.manager.name)

    async def _tell_plan(self, state: TeamState, kind: Kind, ctx: Context) -> None:
        event = MagenticOrchestratorEvent(kind, self._plan_message(state), state.ledger.plan)
        await self._emit(ctx, ORCHESTRATOR_EVENT, event)

    async def _announce(self, ctx: Context, kind: Kind, text: str) -> None:
        message = Message("assistant", [text], author_name=self.manager.name)
        await self._emit(ctx, ORCHESTRATOR_EVENT, MagenticOrchestratorEvent(kind, message))

    async def _emit(self, ctx: Context, event_type: str, data: Any) -> None:
        superstep, number = self._announced
        self._announced = (ctx.superstep, number + 1 if superstep == ctx.superstep else 0)
        await ctx.add_event(WorkflowEvent(event_type, data, ordinal=self._announced[1]))

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def onward(self, state: dict[str, Any]) -> str | None:
        """A run that a limit stopped goes on by itself when it is resumed with a higher one."""
        stopped = state.get("stopped_by")
        return str(state["task"]) if stopped is not None and may_go_on(stopped, self.limits) else None

    async def on_checkpoint_save(self) -> dict[str, Any]:
        if self._state is None:
            return {}
        return {**self._state.saved(), "manager": await self.manager.on_checkpoint_save()}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._run_id = None  # Whichever run comes next, it is the one this state belongs to.
        self._state = TeamState.restored(state, self.team) if state else None
        if self._state is not None:
            self.manager.task_ledger = self._state.ledger
            await self.manager.on_checkpoint_restore(state["manager"])
