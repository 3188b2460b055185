"""Agents as executors: the bridge from a model's turn to a superstep."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from stepwell.agents.agent import Agent, SupportsAgentRun
from stepwell.agents.calls import journalled_request
from stepwell.agents.chat import AgentResponse, AgentResponseUpdate, Message, add_usage_details, as_messages
from stepwell.agents.content import Content
from stepwell.agents.session import AgentSession
from stepwell.agents.teams import answers_taken_by, missing_in, workflows_behind
from stepwell.agents.workflow_agent import WorkflowAgent
from stepwell.agents.workflow_memory import open_requests
from stepwell.checkpointing.checkpoint import RESERVED_STATE_KEYS
from stepwell.checkpointing.codec import Codec
from stepwell.checkpointing.journal import CallTicket, durable_call
from stepwell.checkpointing.registry import register_type
from stepwell.errors import MissingState, WorkflowValidationError
from stepwell.workflows.context import WorkflowContext, derived_id, run_kwargs
from stepwell.workflows.executor import Executor, HandlerSpec, handler, response_handler
from stepwell.workflows.message import ResponseMessage
from stepwell.workflows.typing import fits

if TYPE_CHECKING:
    from stepwell.retry import RetryPolicy
    from stepwell.workflows.graph import Graph

_ABSENT: Any = object()

ContextMode = Literal["full", "last_agent", "custom"]
"""What an agent sees of the agents before it: the whole conversation, the last reply, or what a function picks."""


@dataclass(frozen=True, slots=True)
class AgentExecutorRequest:
    """Messages for an agent. Without `should_respond` it only takes note of them."""

    messages: tuple[Message, ...]
    should_respond: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", tuple(as_messages(self.messages)))


@dataclass(frozen=True, slots=True)
class AgentExecutorResponse:
    """An agent's reply, with the conversation that led to it."""

    executor_id: str
    agent_response: AgentResponse
    full_conversation: tuple[Message, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "full_conversation", tuple(self.full_conversation))

    def __deepcopy__(self, memo: Any) -> AgentExecutorResponse:
        """Each receiver gets a response of its own; the messages, which never change, are shared."""
        return AgentExecutorResponse(self.executor_id, copy.deepcopy(self.agent_response, memo), self.full_conversation)


register_type(AgentExecutorRequest, name="stepwell.AgentExecutorRequest", immutable=True)
register_type(AgentExecutorResponse, name="stepwell.AgentExecutorResponse", immutable=False)


class AgentExecutor(Executor):
    """An agent in a workflow. Its session, what it has heard, and approvals it waits for are in every checkpoint.

    Each model call and each tool call of an `Agent` is recorded by itself; any other agent is recorded as one call.
    A workflow that is used as an agent, here or behind a tool, runs inside this one: its calls are recorded by
    themselves, its state is in the session, and what it asks a person is asked by this workflow, in its own types.

    With an `input_key` the agent is asked what the shared state holds under it, and the message that arrives only says
    when. With an `output_key` the text of its reply is written there. `build` checks that what is read is written.
    """

    def __init__(
        self,
        agent: SupportsAgentRun,
        *,
        id: str | None = None,
        session: AgentSession | None = None,
        context_mode: ContextMode = "full",
        context_filter: Callable[[list[Message]], Sequence[Message]] | None = None,
        input_key: str | None = None,
        output_key: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
    ) -> None:
        name = id or agent.name or agent.id
        if not name:
            raise WorkflowValidationError(f"{agent!r} has no name; give it one, or pass AgentExecutor(agent, id=…)")
        super().__init__(name, retry=retry, timeout=timeout)
        for key in (input_key, output_key):
            if key is not None and (not key or key in RESERVED_STATE_KEYS):
                raise WorkflowValidationError(f"agent executor {name!r}: {key!r} can't be a key of shared state")
        if (context_mode == "custom") != (context_filter is not None):
            raise WorkflowValidationError(
                f"agent executor {name!r}: context_mode='custom' and context_filter=… go together"
            )
        self.agent = agent
        self.description = agent.description
        self._session = session if session is not None else agent.create_session()
        self._context_mode = context_mode
        self._context_filter = context_filter
        self._input_key = input_key
        self._output_key = output_key
        self._unheard: list[Message] = []
        self._conversation: list[Message] = []
        self._answers: list[Content] = []
        self._must_reply = False
        self._asked: dict[str, str] = {}
        """Contents that wait for a person, and the requests that teams asked them by."""
        self._responses: dict[str, Any] = {}
        self._partial: list[AgentResponse] = []
        """What a turn that waits for a person has come to so far."""
        self._teams = workflows_behind(agent)
        self._specs = (*super().specs, *answers_taken_by(agent)) if self._teams else super().specs

    @property
    def specs(self) -> tuple[HandlerSpec, ...]:
        return self._specs

    @property
    def inner_graph(self) -> Graph | None:
        return self.agent.workflow.graph if isinstance(self.agent, WorkflowAgent) else None

    @property
    def state_reads(self) -> tuple[str, ...]:
        return (self._input_key,) if self._input_key is not None else ()

    @property
    def state_writes(self) -> tuple[str, ...] | None:
        if type(self) is not AgentExecutor:
            return None  # A subclass may write anything.
        return (self._output_key,) if self._output_key is not None else ()

    # --- what comes in -----------------------------------------------------------------------------------------------

    @handler
    async def on_request(
        self, request: AgentExecutorRequest, ctx: WorkflowContext[AgentExecutorResponse, AgentResponse]
    ) -> None:
        self._unheard += request.messages
        if request.should_respond:
            await self._reply(ctx)

    @handler
    async def on_response(
        self, response: AgentExecutorResponse, ctx: WorkflowContext[AgentExecutorResponse, AgentResponse]
    ) -> None:
        self._unheard += self._new_in(self._relevant(response))
        await self._reply(ctx)

    @handler
    async def on_agent_response(
        self, response: AgentResponse, ctx: WorkflowContext[AgentExecutorResponse, AgentResponse]
    ) -> None:
        """What a workflow inside this one yields, if that is a team."""
        self._unheard += self._new_in([message for message in response.messages if not _is_tool_noise(message)])
        await self._reply(ctx)

    @handler
    async def on_text(self, text: str, ctx: WorkflowContext[AgentExecutorResponse, AgentResponse]) -> None:
        self._unheard += as_messages(text)
        await self._reply(ctx)

    @handler
    async def on_message(self, message: Message, ctx: WorkflowContext[AgentExecutorResponse, AgentResponse]) -> None:
        self._unheard.append(message)
        await self._reply(ctx)

    @handler
    async def on_messages(
        self, messages: list[str | Message], ctx: WorkflowContext[AgentExecutorResponse, AgentResponse]
    ) -> None:
        self._unheard += as_messages(messages)
        await self._reply(ctx)

    @handler
    async def on_responses(
        self, responses: list[AgentExecutorResponse], ctx: WorkflowContext[AgentExecutorResponse, AgentResponse]
    ) -> None:
        """What a fan-in collects from agents that worked side by side."""
        for response in responses:
            self._unheard += [m for m in self._new_in(self._relevant(response)) if m not in self._unheard]
        await self._reply(ctx)

    @response_handler
    async def on_approval(
        self,
        request: Content,
        answer: Content | bool,
        ctx: WorkflowContext[AgentExecutorResponse, AgentResponse],
    ) -> None:
        """A person decided about a tool call; once all of the turn's are decided, it goes on."""
        approved = answer if isinstance(answer, bool) else bool(answer.approved)
        self._answers.append(request.to_function_approval_response(approved))
        self._asked.pop(str(request.id), None)
        await self._go_on(ctx)

    async def _respond(self, message: ResponseMessage, ctx: WorkflowContext[Any, Any]) -> None:
        """An answer to what a team asked goes to it as it is; any other is a decision about a tool call."""
        asked = {request_id: content_id for content_id, request_id in self._asked.items()}
        content_id = asked.get(message.request.request_id)
        if content_id is None:
            await super()._respond(message, ctx)
            return
        inner = open_requests(self._session)[content_id]
        self._responses[inner.request_id] = message.response
        del self._asked[content_id]
        await self._go_on(ctx)

    async def _go_on(self, ctx: WorkflowContext[Any, Any]) -> None:
        """With the answers, when there are enough of them: a model needs all of its turn's, a team takes each."""
        if self._asked and not isinstance(self.agent, WorkflowAgent):
            return
        answers, self._answers = self._answers, []
        responses, self._responses = self._responses, {}
        await self._turn([Message("user", answers)] if answers else [], ctx, responses)

    # --- the turn ----------------------------------------------------------------------------------------------------

    @property
    def _is_waiting(self) -> bool:
        return bool(self._asked or self._session.pending_approvals)

    async def _reply(self, ctx: WorkflowContext[AgentExecutorResponse, AgentResponse]) -> None:
        if self._is_waiting:
            self._must_reply = True  # After the decision: a turn that waits for a person is not talked over.
            return
        heard, self._unheard = self._unheard, []
        if self._input_key is not None:
            heard = self._read(self._input_key, ctx)
        self._conversation += heard
        await self._turn(heard, ctx)

    async def _turn(
        self,
        messages: Sequence[Message],
        ctx: WorkflowContext[Any, Any],
        responses: Mapping[str, Any] | None = None,
    ) -> None:
        response = await self._ask(list(messages), ctx, responses or {})
        if response.user_input_requests:
            await self._pass_on(response, ctx)
            return
        partial, self._partial = self._partial, []
        await self._said(_whole([*partial, response]) if partial else response, ctx)

    async def _pass_on(self, response: AgentResponse, ctx: WorkflowContext[Any, Any]) -> None:
        """Ask the outside what the agent asks: a team's requests as they are, a tool call as the content it is."""
        # A model's words before it asks are in the session, and come again with its reply.
        is_team = isinstance(self.agent, WorkflowAgent)
        self._partial.append(replace(response, messages=_said_before(response) if is_team else []))
        found = open_requests(self._session)
        for content in response.user_input_requests:
            content_id = str(content.id)
            if content_id in self._asked:
                continue  # It was asked before and waits for its answer.
            request = found.get(content_id)
            if request is None:
                self._asked[content_id] = ""
                await ctx.request_info(content, Content | bool)
                continue
            name = request.request_id
            if ctx.is_request_id_taken(name):  # Chosen by the program, twice: by two teams, or by one that forgot.
                name = derived_id(name, ctx.run_id, ctx.scope_id, content_id)
            self._asked[content_id] = name
            ctx.relay_request(replace(request, request_id=name))

    async def _said(self, response: AgentResponse, ctx: WorkflowContext[Any, Any]) -> None:
        """The turn is over: yield the reply, and send it on."""
        self._conversation += response.messages
        if self._output_key is not None:
            ctx.set_state(self._output_key, response.text)
        if ctx.is_streaming():
            ctx.yield_shown(response)
        else:
            await ctx.yield_output(response)
        if ctx.leads_somewhere:
            await ctx.send_message(AgentExecutorResponse(self.id, response, tuple(self._conversation)))
        if self._must_reply:
            self._must_reply = False
            await self._reply(ctx)

    def _forget(self) -> None:
        """Begin anew, as if nobody had said anything."""
        self._session = self.agent.create_session()
        self._conversation, self._unheard, self._partial = [], [], []
        self._answers, self._responses, self._asked = [], {}, {}
        self._must_reply = False

    async def _ask(
        self, messages: list[Message], ctx: WorkflowContext[Any, Any], responses: Mapping[str, Any]
    ) -> AgentResponse:
        if isinstance(self.agent, WorkflowAgent):
            return await self._run(self.agent, messages, ctx, {"session": self._session, "responses": responses})
        if isinstance(self.agent, Agent):
            kwargs = run_kwargs.get()
            arguments: dict[str, Any] = {
                "session": self._session,
                # One turn per delivery, so a constant names it, and a changed prompt is noticed before any call.
                "call_key": "turn",
                "function_invocation_kwargs": kwargs.function_invocation,
                "client_kwargs": kwargs.client,
                "responses": responses,
            }
            return await self._run(self.agent, messages, ctx, arguments)
        return await self._ask_foreign(messages, ctx)

    async def _ask_foreign(self, messages: list[Message], ctx: WorkflowContext[Any, Any]) -> AgentResponse:
        """An agent that knows nothing of journals: its whole turn is one call, recorded with the session it leaves."""
        shown = False

        async def turn(_: CallTicket) -> list[Any]:
            nonlocal shown
            shown = True
            response = await self._run(self.agent, messages, ctx, {"session": self._session})
            return [response, self._session]

        request = journalled_request(messages)
        response, self._session = await durable_call(f"agent:{self.id}", turn, key="agent", request=request)
        if not shown and ctx.is_streaming():
            for message in response.messages:
                ctx.announce("update", AgentResponseUpdate(message.contents, message.role, message.author_name))
        return response  # type: ignore[no-any-return]

    async def _run(
        self,
        agent: SupportsAgentRun,
        messages: list[Message],
        ctx: WorkflowContext[Any, Any],
        arguments: dict[str, Any],
    ) -> AgentResponse:
        if not ctx.is_streaming():
            response: AgentResponse = await agent.run(messages, **arguments)
            return response
        stream = agent.run(messages, stream=True, **arguments)
        async for update in stream:
            ctx.announce("update", update)
        final: AgentResponse = await stream.get_final_response()
        return final

    # --- the conversation --------------------------------------------------------------------------------------------

    def _read(self, key: str, ctx: WorkflowContext[Any, Any]) -> list[Message]:
        """Shared state as something an agent can be asked: messages and texts as they are, the rest as JSON."""
        value = ctx.get_state(key, _ABSENT)
        if value is _ABSENT:
            raise MissingState(self.id, key)
        if isinstance(value, AgentResponse):
            return list(value.messages)
        if fits(value, str | Message | list[str | Message]):
            return as_messages(value)
        return as_messages(Codec().encode_text(value, path=f"state {key!r}"))

    def _relevant(self, response: AgentExecutorResponse) -> list[Message]:
        if self._context_mode == "last_agent":
            return list(response.agent_response.messages)
        conversation = list(response.full_conversation or response.agent_response.messages)
        if self._context_filter is not None:
            return list(self._context_filter(conversation))
        return [message for message in conversation if not _is_tool_noise(message)]

    def _new_in(self, messages: Sequence[Message]) -> list[Message]:
        """What this agent has neither heard nor said: conversations that come back round do not pile up."""
        known = Counter([*self._conversation, *self._unheard])
        fresh: list[Message] = []
        for message in messages:
            if known[message] > 0:
                known[message] -= 1
            else:
                fresh.append(message)
        return fresh

    # --- checkpoints -------------------------------------------------------------------------------------------------

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {
            "session": self._session,
            "conversation": self._conversation,
            "unheard": self._unheard,
            "answers": self._answers,
            "must_reply": self._must_reply,
            **{name: kept for name, kept in self._waiting_for().items() if kept},
        }

    def _waiting_for(self) -> dict[str, Any]:
        return {"asked": self._asked, "responses": self._responses, "partial": self._partial}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._session = state["session"]
        self._conversation = list(state["conversation"])
        self._unheard = list(state["unheard"])
        self._answers = list(state["answers"])
        self._must_reply = state["must_reply"]
        self._asked = dict(state["asked"] if "asked" in state else self._undecided())
        self._responses = dict(state.get("responses", ()))
        self._partial = list(state.get("partial", ()))

    def _undecided(self) -> dict[str, str]:
        """For checkpoints that do not tell: the tool calls that nobody has decided about."""
        pending, decided = self._session.pending_approvals, {answer.id for answer in self._answers}
        open_ones = pending.undecided if pending is not None else ()
        return {str(content.id): "" for content in open_ones if content.id not in decided}

    def missing_for(self, kept: Any) -> Iterable[str]:
        session = (kept or {}).get("session")
        for problem in missing_in(session, self._teams) if isinstance(session, AgentSession) else ():
            yield f"inside {self.id!r}, {problem}"


def _is_tool_noise(message: Message) -> bool:
    """Calls and results are one agent's business; providers also refuse results whose calls they do not see."""
    return message.role == "tool" or (
        bool(message.contents) and all(c.type in ("function_call", "usage") for c in message.contents)
    )


def _said_before(response: AgentResponse) -> list[Message]:
    """What was said before the agent had to ask."""
    return [m for m in response.messages if not any(content.user_input_request for content in m.contents)]


def _whole(parts: Sequence[AgentResponse]) -> AgentResponse:
    """A turn that paused, as one response."""
    messages = [message for part in parts for message in part.messages]
    return replace(
        parts[-1], messages=messages, usage_details=add_usage_details(*(part.usage_details for part in parts))
    )
