"""Managers: who plans, judges the progress and writes the final answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepwell.agents.agent import Agent, SupportsAgentRun
from stepwell.agents.calls import CallKeys, journalled_request
from stepwell.agents.chat import AgentResponse, Message
from stepwell.agents.client import ChatOptions, ResponseFormat
from stepwell.agents.content import Content, freeze
from stepwell.checkpointing.journal import CallTicket
from stepwell.checkpointing.registry import register_type
from stepwell.errors import LedgerUnreadable, ManagerCannotAsk
from stepwell.orchestrations import prompts as wording
from stepwell.orchestrations.ledger import LedgerProblem, MagenticProgressLedger, ledger_schema, parse_ledger
from stepwell.orchestrations.plan import Plan, PlanStep, plan_schema
from stepwell.orchestrations.prompts import Prompts
from stepwell.workflows.context import run_kwargs

MANAGER_NAME = "magentic_manager"
"""The author of what the manager says to the team and to the person who asked."""

LEDGER_ATTEMPTS = 3


@dataclass(slots=True)
class MagenticContext:
    """Where a team stands: what managers decide by."""

    task: str
    chat_history: list[Message] = field(default_factory=list)
    participant_descriptions: dict[str, str] = field(default_factory=dict)
    round_count: int = 0
    stall_count: int = 0
    reset_count: int = 0
    stopped_because: str | None = None
    """Why the work ends although the request is not satisfied; None if it is, or goes on."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.participant_descriptions)

    @property
    def team(self) -> str:
        """The members and what they can do, one per line."""
        described = self.participant_descriptions.items()
        return "\n".join(f"- {name}: {text}" if text else f"- {name}" for name, text in described)

    @property
    def anyone_has_spoken(self) -> bool:
        return any(message.author_name in self.participant_descriptions for message in self.chat_history)

    def reset(self) -> None:
        """Forget the conversation: a new plan starts from what the new facts say."""
        self.chat_history = []
        self.stall_count = 0


@dataclass(frozen=True, slots=True)
class MagenticTaskLedger:
    """What a team goes by: what is known, and the plan. `text` is what it is told."""

    facts: str
    plan: Plan
    text: str


register_type(MagenticTaskLedger, name="stepwell.MagenticTaskLedger", immutable=True)

PlanLike = MagenticTaskLedger | Plan | Message | str
"""What a manager of your own may return for a plan."""


def task_ledger_of(given: PlanLike, context: MagenticContext) -> MagenticTaskLedger:
    """A task ledger, whatever the manager returned."""
    if isinstance(given, MagenticTaskLedger):
        return given
    if isinstance(given, Plan):
        return compose(context, "", given)
    text = given if isinstance(given, str) else given.text
    return MagenticTaskLedger("", Plan.parse(text, context.names), text)


def compose(context: MagenticContext, facts: str, plan: Plan, prompt: str = wording.TASK_LEDGER) -> MagenticTaskLedger:
    text = prompt.format(task=context.task, team=context.team, facts=facts or "Nothing yet.", plan=plan.text)
    return MagenticTaskLedger(facts, plan, text)


class MagenticManagerBase(ABC):
    """What a manager does. Subclass it to plan and judge in your own way; calls that cost money go through agents or
    `durable_call`, so that they are recorded.

    `create_progress_ledger` may raise `LedgerUnreadable`; the team then replans.
    """

    def __init__(
        self,
        *,
        max_stall_count: int = 3,
        max_reset_count: int | None = None,
        max_round_count: int | None = None,
    ) -> None:
        self.name = MANAGER_NAME
        self.max_stall_count = max_stall_count
        self.max_reset_count = max_reset_count
        self.max_round_count = max_round_count
        self.task_ledger: MagenticTaskLedger | None = None

    @abstractmethod
    async def plan(self, magentic_context: MagenticContext) -> PlanLike:
        """Take stock and make the first plan."""

    @abstractmethod
    async def replan(self, magentic_context: MagenticContext) -> PlanLike:
        """Make another plan. The context still holds the whole conversation; it is cleared afterwards."""

    @abstractmethod
    async def create_progress_ledger(self, magentic_context: MagenticContext) -> MagenticProgressLedger:
        """Judge where the team stands, and say who is next."""

    @abstractmethod
    async def prepare_final_answer(self, magentic_context: MagenticContext) -> Message:
        """Write the answer; if the context says why the work was stopped, as good an answer as there can be."""

    async def revise_plan(self, magentic_context: MagenticContext, feedback: str) -> PlanLike:
        """Make another plan that heeds a person's feedback: here by replanning, with it in the conversation."""
        magentic_context.chat_history.append(Message("user", [f"A person who looked at the plan says: {feedback}"]))
        return await self.replan(magentic_context)

    def composed(self, magentic_context: MagenticContext, facts: str, plan: Plan) -> MagenticTaskLedger:
        """What the team is told of these facts and this plan."""
        return compose(magentic_context, facts, plan)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """What the manager keeps besides the context and `task_ledger`."""
        return {}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:  # noqa: B027 - most have nothing to restore
        """Take back what `on_checkpoint_save` gave."""


class StandardMagenticManager(MagenticManagerBase):
    """A manager that has a model think: facts, then a plan, then a ledger after each turn, then the final answer.

    Each of these is a call of its own, recorded by itself. A ledger that can't be read is asked for again, with what is
    wrong with it, `progress_ledger_retry_count` times in all.
    """

    def __init__(
        self,
        agent: SupportsAgentRun,
        task_ledger: MagenticTaskLedger | None = None,
        *,
        task_ledger_facts_prompt: str | None = None,
        task_ledger_plan_prompt: str | None = None,
        task_ledger_full_prompt: str | None = None,
        task_ledger_facts_update_prompt: str | None = None,
        task_ledger_plan_update_prompt: str | None = None,
        task_ledger_plan_revision_prompt: str | None = None,
        progress_ledger_prompt: str | None = None,
        final_answer_prompt: str | None = None,
        max_stall_count: int = 3,
        max_reset_count: int | None = None,
        max_round_count: int | None = None,
        progress_ledger_retry_count: int | None = None,
    ) -> None:
        super().__init__(
            max_stall_count=max_stall_count, max_reset_count=max_reset_count, max_round_count=max_round_count
        )
        self.agent = agent
        self.task_ledger = task_ledger
        self._formats: dict[tuple[str, tuple[str, ...]], ResponseFormat] = {}
        self.prompts = Prompts.of(
            {
                "facts": task_ledger_facts_prompt,
                "plan": task_ledger_plan_prompt,
                "task_ledger": task_ledger_full_prompt,
                "facts_update": task_ledger_facts_update_prompt,
                "plan_update": task_ledger_plan_update_prompt,
                "plan_revision": task_ledger_plan_revision_prompt,
                "progress_ledger": progress_ledger_prompt,
                "final_answer": final_answer_prompt,
            }
        )
        self.progress_ledger_retry_count = (
            LEDGER_ATTEMPTS if progress_ledger_retry_count is None else progress_ledger_retry_count
        )

    # --- the outer loop ----------------------------------------------------------------------------------------------

    async def plan(self, magentic_context: MagenticContext) -> MagenticTaskLedger:
        context = magentic_context
        asked = self.prompts.facts.format(task=context.task, team=context.team)
        return await self._take_stock(context, asked, self.prompts.plan)

    async def replan(self, magentic_context: MagenticContext) -> MagenticTaskLedger:
        context = magentic_context
        known = self.task_ledger.facts if self.task_ledger is not None else ""
        asked = self.prompts.facts_update.format(task=context.task, team=context.team, old_facts=known or "Nothing.")
        return await self._take_stock(context, asked, self.prompts.plan_update)

    async def revise_plan(self, magentic_context: MagenticContext, feedback: str) -> MagenticTaskLedger:
        """The facts have not changed, so only the plan is asked for."""
        ledger = self.task_ledger
        if ledger is None:
            raise ValueError("there is no plan yet that could be revised")
        context = magentic_context
        asked = self.prompts.plan_revision.format(
            plan=ledger.plan.text,
            feedback=feedback or "No reason was given.",
            team=context.team,
            names=", ".join(context.names),
            task=context.task,
        )
        known = Message("user", [ledger.text], author_name=self.name)
        return await self._make_plan(context, [*context.chat_history, known, _question(asked)], ledger.facts)

    async def _take_stock(self, context: MagenticContext, asked: str, plan_prompt: str) -> MagenticTaskLedger:
        """Facts, then the plan: the second call goes on where the first one ended."""
        messages = [*context.chat_history, _question(asked)]
        facts = await self._ask(messages, "facts")
        planning = plan_prompt.format(team=context.team, names=", ".join(context.names), task=context.task)
        return await self._make_plan(context, [*messages, _reply(facts), _question(planning)], facts)

    async def _make_plan(self, context: MagenticContext, messages: list[Message], facts: str) -> MagenticTaskLedger:
        wanted = self._format("plan", context, plan_schema)
        for _ in range(LEDGER_ATTEMPTS):
            reply = await self._ask(messages, "plan", wanted)
            plan = Plan.parse(reply, context.names)
            if plan:
                break
            messages = [*messages, _reply(reply), _question(wording.PLAN_AGAIN)]
        else:
            plan = Plan((PlanStep("Work on the request."),))
        self.task_ledger = self.composed(context, facts.strip(), plan)
        return self.task_ledger

    def composed(self, magentic_context: MagenticContext, facts: str, plan: Plan) -> MagenticTaskLedger:
        return compose(magentic_context, facts, plan, self.prompts.task_ledger)

    # --- the inner loop ----------------------------------------------------------------------------------------------

    async def create_progress_ledger(self, magentic_context: MagenticContext) -> MagenticProgressLedger:
        context = magentic_context
        asked = self.prompts.progress_ledger.format(
            task=context.task, team=context.team, names=", ".join(context.names)
        )
        messages = [*context.chat_history, _question(asked)]
        wanted = self._format("ledger", context, ledger_schema)
        problem, doubted, left = "", context.anyone_has_spoken, max(1, self.progress_ledger_retry_count)
        while left:
            reply = await self._ask(messages, "ledger", wanted)
            try:
                ledger = parse_ledger(reply, context.names)
            except LedgerProblem as error:
                problem, left = str(error), left - 1
                messages = [*messages, _reply(reply), _question(wording.LEDGER_AGAIN.format(problem=problem))]
                continue
            if doubted or not ledger.satisfied:
                return ledger
            # Small models call a request satisfied before anything was done; they get one chance to look again.
            doubted = True
            messages = [*messages, _reply(reply), _question(wording.NOBODY_HAS_SPOKEN)]
        raise LedgerUnreadable(_label(self.agent), problem, self.progress_ledger_retry_count)

    async def prepare_final_answer(self, magentic_context: MagenticContext) -> Message:
        context = magentic_context
        ending = context.stopped_because or wording.SATISFIED
        asked = self.prompts.final_answer.format(task=context.task, ending=ending)
        answer = await self._ask([*context.chat_history, _question(asked)], "final")
        return Message("assistant", [answer], author_name=self.name)

    # --- the model ---------------------------------------------------------------------------------------------------

    def _format(
        self, purpose: str, context: MagenticContext, schema: Callable[[Sequence[str]], dict[str, Any]]
    ) -> ResponseFormat:
        """The form a reply is asked for in; made once, it is sent with every ledger."""
        key = (purpose, context.names)
        if key not in self._formats:
            self._formats[key] = ResponseFormat(purpose, freeze(schema(context.names)))
        return self._formats[key]

    async def _ask(self, messages: list[Message], purpose: str, wanted: ResponseFormat | None = None) -> str:
        """One recorded call, known by its purpose; a second one of that purpose in one delivery is numbered."""
        if not isinstance(self.agent, Agent):
            return await self._ask_foreign(self.agent, messages, purpose)
        kwargs = run_kwargs.get()
        response = await self.agent.run(
            messages,
            options=None if wanted is None else ChatOptions(response_format=wanted),
            call_key=purpose,
            function_invocation_kwargs=kwargs.function_invocation,
            client_kwargs=kwargs.client,
        )
        return _said(response, self.agent, purpose)

    async def _ask_foreign(self, agent: SupportsAgentRun, messages: list[Message], purpose: str) -> str:
        async def ask(_: CallTicket) -> str:
            return _said(await agent.run(messages), agent, purpose)

        label = _label(agent)
        request = journalled_request(messages)
        return await CallKeys(label, purpose).call("agent", ask, name=f"agent:{label}", request=request)


def _said(response: AgentResponse, agent: SupportsAgentRun, purpose: str) -> str:
    """What a manager answered. A question would be lost here: a manager's turn has nowhere to wait for a person."""
    if response.user_input_requests:
        raise ManagerCannotAsk(_label(agent), purpose, tuple(map(_question_text, response.user_input_requests)))
    return response.text


def _question_text(request: Content) -> str:
    call = request.function_call
    return f"approval of {call.name}" if call is not None else f"request {request.id}"


def _label(agent: SupportsAgentRun) -> str:
    return agent.name or agent.id


def _question(text: str) -> Message:
    return Message("user", [text])


def _reply(text: str) -> Message:
    return Message("assistant", [text])
