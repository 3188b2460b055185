"""One turn of an agent: ask the model, make the calls it wants, go round until it has answered.

Nothing in here survives the turn; what does is in the session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from pydantic import TypeAdapter, ValidationError

from stepwell.agents.approval import PendingApprovals, closed, pending_in, take_responses, without_echo
from stepwell.agents.calls import CallKeys, ModelCall, ToolCaller
from stepwell.agents.chat import AgentResponse, AgentResponseUpdate, ChatResponse, Message, add_usage_details
from stepwell.agents.client import ChatClient, ChatOptions
from stepwell.agents.content import Content, FrozenDict
from stepwell.agents.schema import json_in
from stepwell.agents.session import AgentSession, HistoryProvider
from stepwell.agents.tool_round import ToolRound
from stepwell.errors import OutputInvalid, UnknownApproval

Emit = Callable[[AgentResponseUpdate], None]

LAST_ROUND = "You have used up your tool calls. Answer now, with what you have found out so far."


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """What a turn goes by: who does it, with what, how far."""

    agent_id: str
    agent_name: str
    client: ChatClient
    instructions: str | None
    options: ChatOptions
    output_type: Any
    history_provider: HistoryProvider
    max_tool_rounds: int
    max_output_attempts: int


@dataclass(slots=True)
class Turn:
    """A turn in progress: `conversation` is what the model sees, `added` what history gains, `produced` the answer."""

    plan: TurnPlan
    session: AgentSession | None
    caller: ToolCaller
    keys: CallKeys
    emit: Emit | None
    conversation: list[Message]
    responses: Mapping[str, Any] = field(default_factory=dict)
    """Answers for teams behind tools, by request id."""
    added: list[Message] = field(default_factory=list)
    produced: list[Message] = field(default_factory=list)
    asked: int = 0
    usage: FrozenDict[int] | None = None
    finish_reason: str | None = None
    response_id: str | None = None
    value: Any = None
    limit: str | None = None

    async def take(self, messages: Sequence[Message]) -> AgentResponse:
        """Answer these messages. The session changes when the turn is over, or has made calls that were approved."""
        waiting = await self._take_in(messages)
        if waiting is None:
            waiting = await self._go_round()
            await self._remember(self.added)
        if self.session is not None:
            self.session.pending_approvals = waiting
        if waiting is not None:
            self._show(waiting)
        return AgentResponse(
            self.produced,
            value=self.value,
            usage_details=self.usage,
            finish_reason=self.finish_reason,
            response_id=self.response_id,
            agent_id=self.plan.agent_id,
            additional_properties={"limit": self.limit} if self.limit else {},
        )

    # --- what comes in ------------------------------------------------------------------------------------------------

    async def _take_in(self, messages: Sequence[Message]) -> PendingApprovals | None:
        """Put the input into the conversation; answers to approvals are acted upon first."""
        decisions, rest = take_responses(messages)
        pending = self.session.pending_approvals if self.session is not None else None
        after: list[Message] = []
        if pending is not None:
            rest, after = [], without_echo(rest, pending)
        elif self.session is None:
            rest, pending, after = pending_in(rest)
        self._hear(rest)
        if pending is None:
            if unknown := [*self.responses, *(str(decision.id) for decision in decisions)]:
                raise UnknownApproval(unknown[0], ())
            return None
        taken = await self.round.take_up(pending, decisions, self.responses)
        pending = taken.pending.decide(taken.decisions)
        if pending.undecided and not after:
            return pending  # the others may still be answered; nothing is run before all are
        pending = await self._settle(pending, is_final=bool(after))
        self._hear(after)
        return pending

    def _hear(self, messages: Sequence[Message]) -> None:
        self.added += messages
        self.conversation = closed([*self.conversation, *messages])

    async def _settle(self, pending: PendingApprovals, *, is_final: bool) -> PendingApprovals | None:
        """Make the approved calls, with the stored arguments, and tell the model of the others.

        One of them may turn out to wait for a person itself; then so does the turn, unless it `is_final`.
        """
        made = await self.round.make([self.caller.prepare(call) for call in pending.approved_calls()])
        pending = pending.with_outcomes(made.results, made.paused)
        if pending.paused and not is_final:
            return pending
        results = pending.settled()
        self.conversation += [pending.reply, results]
        self.produced.append(results)
        self._announce(results.contents, role="tool")
        if self.session is not None:
            # Kept at once: should the rest of the turn fail, what was approved and done must not be done again.
            await self._remember([*self.added, pending.reply, results])
            self.added = []
            self.session.pending_approvals = None
            self.session.paused_calls = {}
        return None

    async def _remember(self, messages: Sequence[Message]) -> None:
        if self.session is not None and messages:
            await self.plan.history_provider.save_messages(self.session.session_id, messages, state=self.session.state)

    # --- the loop -----------------------------------------------------------------------------------------------------

    async def _go_round(self) -> PendingApprovals | None:
        """Model, tools, model, tools, answer; or calls that wait for a person."""
        for _ in range(self.plan.max_tool_rounds):
            reply = await self._ask(self.plan.options)
            if not _calls(reply):
                await self._answer(reply)
                return None
            results, waiting = await self._use_tools(reply)
            if waiting is not None:
                return waiting
            self._say(reply)
            self._say(results)
            self._announce(results.contents, role="tool")
        await self._answer_without_tools()
        return None

    async def _answer_without_tools(self) -> None:
        """The rounds are used up: one last reply, with what is known by now."""
        self.limit = "max_tool_rounds"
        reply = await self._ask(replace(self.plan.options, tool_choice="none"), Message("user", LAST_ROUND))
        said = [content for content in reply.contents if content.type != "function_call"]
        if not said:
            rounds = self.plan.max_tool_rounds
            said = [Content.from_text(f"(no answer: the limit of {rounds} rounds of tool calls was reached)")]
        await self._answer(reply.with_contents(said))

    async def _answer(self, reply: Message) -> None:
        """Accept the reply as the answer, once it fits the output type; the attempts that did not are not kept."""
        detour: list[Message] = []
        for attempt in range(1, self.plan.max_output_attempts + 1):
            if self.plan.output_type is None:
                break
            try:
                self.value = TypeAdapter(self.plan.output_type).validate_json(json_in(reply.text))
                break
            except ValidationError as error:
                problem = self._hopeless(error, attempt)
                if problem is not None:
                    name = getattr(self.plan.output_type, "__name__", str(self.plan.output_type))
                    raise OutputInvalid(self.plan.agent_name, name, problem, attempt) from error
                detour += [reply, complaint(error)]
                reply = await self._ask(replace(self.plan.options, tool_choice="none"), *detour)
        self._say(reply)

    def _hopeless(self, error: ValidationError, attempt: int) -> str | None:
        """Why asking once more would not help, or None if it might."""
        if self.finish_reason == "length":
            return "it was cut off at the token limit"
        if self.finish_reason in ("refusal", "content_filter"):
            return f"the model refused ({self.finish_reason})"
        if attempt == self.plan.max_output_attempts:
            return "; ".join(_problems(error))
        return None

    def _say(self, message: Message) -> None:
        for record in (self.conversation, self.added, self.produced):
            record.append(message)

    def _show(self, waiting: PendingApprovals) -> None:
        """A turn that pauses shows the whole reply, with what it asks of the person."""
        self._announce(waiting.undecided)
        self.produced.append(waiting.reply.with_contents([*waiting.reply.contents, *waiting.undecided]))
        if waiting.results:
            self.produced.append(Message("tool", waiting.results))

    # --- the model ----------------------------------------------------------------------------------------------------

    async def _ask(self, options: ChatOptions, *more: Message) -> Message:
        """One model call; the reply is recorded before anybody sees it whole."""
        self.asked += 1
        plan = self.plan
        system = [Message("system", plan.instructions)] if plan.instructions else []
        call = ModelCall(
            plan.client, [*system, *self.conversation, *more], options, self._announce if self.emit else None
        )
        reply: ChatResponse = await self.keys.call(
            f"model/{self.asked}",
            call.make,
            name=f"model:{plan.agent_name}",
            request=call.request(),
            usage=lambda reply: {plan.agent_name: call.usage(reply)},
        )
        self.usage = add_usage_details(self.usage, reply.usage_details)
        self.finish_reason, self.response_id = reply.finish_reason, reply.response_id
        message = self._own(reply)
        # A live stream has shown everything but the calls; a replay shows the whole reply at once.
        self._announce(_calls(message) if call.live else [*message.contents, *_usage(reply)])
        return message

    def _own(self, reply: ChatResponse) -> Message:
        """The reply as this agent's message, each call under an id that the conversation has not seen.

        Some servers number calls anew in each reply or leave ids out; results and approvals are paired by id.
        """
        contents: list[Content] = []
        calls = any(content.type == "function_call" for message in reply.messages for content in message.contents)
        # Looking through a long conversation is worth it only if there is something to compare.
        asked = (c for m in self.conversation for c in m.contents if c.type == "function_call")
        used = {c.call_id for c in asked} if calls else set()
        for content in (content for message in reply.messages for content in message.contents):
            if content.type == "function_call" and (not content.call_id or content.call_id in used):
                content = _renamed(content, used)
            used.add(content.call_id)
            contents.append(content)
        return Message("assistant", contents, author_name=self.plan.agent_name)

    async def _use_tools(self, reply: Message) -> tuple[Message, PendingApprovals | None]:
        """Make the reply's calls at once; results are in the order of the calls. Some may have to wait for a person."""
        prepared = [self.caller.prepare(call) for call in _calls(reply)]
        made = await self.round.make([item for item in prepared if not item.needs_approval])
        requests = tuple(item.request() for item in prepared if item.needs_approval)
        is_waiting = bool(requests or made.paused)
        waiting = PendingApprovals(reply, requests, made.results, paused=made.paused) if is_waiting else None
        return Message("tool", made.results), waiting

    @property
    def round(self) -> ToolRound:
        return ToolRound(self.caller, self.session)

    def _announce(self, contents: Sequence[Content], finish_reason: str | None = None, role: str = "assistant") -> None:
        if self.emit is not None and (contents or finish_reason):
            author = self.plan.agent_name if role == "assistant" else None
            self.emit(
                AgentResponseUpdate(
                    tuple(contents), role, author, agent_id=self.plan.agent_id, finish_reason=finish_reason
                )
            )


def _calls(reply: Message) -> list[Content]:
    return [content for content in reply.contents if content.type == "function_call"]


def _usage(reply: ChatResponse) -> list[Content]:
    return [] if reply.usage_details is None else [Content.from_usage(reply.usage_details)]


def _renamed(call: Content, used: set[str | None]) -> Content:
    base = call.call_id or "call"
    fresh = next(name for number in count(2) if (name := f"{base}-{number}") not in used)
    return Content.from_function_call(fresh, str(call.name), arguments=call.arguments)


def complaint(error: ValidationError) -> Message:
    """What the model is told about a reply that does not fit."""
    problems = "\n".join(f"- {problem}" for problem in _problems(error))
    return Message(
        "user", f"Your reply does not fit the schema:\n{problems}\nReply again, with the corrected JSON only."
    )


def _problems(error: ValidationError) -> list[str]:
    return [
        f"{'.'.join(str(part) for part in item['loc']) or 'the reply'}: {item['msg']}"
        for item in error.errors(include_url=False, include_context=False, include_input=False)[:20]
    ]
