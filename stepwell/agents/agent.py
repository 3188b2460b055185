"""`Agent`: a model with instructions, tools and a memory. What others call to have something done."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias, TypedDict, Unpack, overload, runtime_checkable

from stepwell.agents.agent_tool import AgentTool
from stepwell.agents.calls import CallKeys, ToolCaller, turn_name
from stepwell.agents.chat import AgentResponse, AgentResponseUpdate, AgentRunInputs, Message, as_messages
from stepwell.agents.client import ChatClient, ChatOptions, ResponseFormat, run_client_kwargs
from stepwell.agents.content import freeze
from stepwell.agents.schema import schema_of
from stepwell.agents.session import AgentSession, HistoryProvider, InMemoryHistoryProvider
from stepwell.agents.stream import AgentStream
from stepwell.agents.tools import FunctionTool, ToolContext, ToolLike, as_tools, run_tool_kwargs
from stepwell.agents.turn import Emit, Turn, TurnPlan
from stepwell.checkpointing.registry import known_types, record_types_in, register_type

AgentResponseStream: TypeAlias = AgentStream[AgentResponseUpdate, AgentResponse]


@runtime_checkable
class SupportsAgentRun(Protocol):
    """Anything that can be asked like an agent.

    `run` returns an awaitable `AgentResponse`, or with `stream=True` something to iterate over `AgentResponseUpdate`s.
    """

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def description(self) -> str | None: ...

    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
    ) -> Any: ...

    def create_session(self, **kwargs: Any) -> AgentSession: ...


class BaseAgent(ABC):
    """The part that agents of your own need not write: an identity, and sessions."""

    def __init__(self, *, id: str | None = None, name: str | None = None, description: str | None = None) -> None:
        self.id: str = id or name or type(self).__name__
        self.name: str | None = name
        self.description: str | None = description

    @abstractmethod
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
    ) -> Any: ...

    def create_session(self, *, session_id: str | None = None, **kwargs: Any) -> AgentSession:
        return AgentSession(session_id)

    def get_session(self, service_session_id: str, *, session_id: str | None = None, **kwargs: Any) -> AgentSession:
        return AgentSession(session_id, service_session_id=service_session_id)

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        arg_name: str = "task",
        arg_description: str | None = None,
        approval_mode: Literal["always", "never", "always_require", "never_require"] = "never",
    ) -> FunctionTool:
        """This agent as a tool of another one, which passes it a task and gets its answer.

        If it has to ask a person, so does the agent that uses it, in its session; with the answer both go on.
        """
        return AgentTool(
            self,
            name=_tool_name(name or self.name or self.id),
            description=description or self.description or f"Ask {self.name or self.id}.",
            approval_mode=approval_mode,
            argument=(arg_name, arg_description or f"The task for {self.name or self.id}"),
        )


def _tool_name(text: str) -> str:
    return "".join(char if char.isascii() and (char.isalnum() or char in "_-") else "_" for char in text)[:64]


class RunArguments(TypedDict, total=False):
    """What else `Agent.run` takes.

    `function_invocation_kwargs` reach tools and `client_kwargs` the client; neither is ever recorded. `call_key` names
    the turn's calls in the journal; by default what was asked does. A handler that runs one agent once per message may
    give a constant: then a changed prompt is noticed before anything is called. `responses` answers what teams behind
    its tools have asked, in the requests' own types, by request id.
    """

    tools: ToolLike | Sequence[ToolLike] | None
    options: ChatOptions | Mapping[str, Any] | None
    output_type: Any
    function_invocation_kwargs: Mapping[str, Any] | None
    client_kwargs: Mapping[str, Any] | None
    call_key: str | None
    responses: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class _Ask:
    """One `run`, before it starts."""

    messages: list[Message]
    session: AgentSession | None
    options: ChatOptions
    output_type: Any
    tools: tuple[FunctionTool, ...]
    tool_kwargs: Mapping[str, Any]
    client_kwargs: Mapping[str, Any]
    call_key: str | None
    responses: Mapping[str, Any]


class Agent(BaseAgent):
    """A model with instructions and tools.

    It has no state of its own: conversations live in sessions, so one agent serves any number of them at once. Inside a
    workflow run each of its model and tool calls is recorded, and replayed after a crash; outside they are simply made.
    """

    def __init__(
        self,
        client: ChatClient,
        instructions: str | None = None,
        *,
        id: str | None = None,
        name: str | None = None,
        description: str | None = None,
        tools: ToolLike | Sequence[ToolLike] | None = None,
        output_type: Any = None,
        default_options: ChatOptions | Mapping[str, Any] | None = None,
        context_providers: Sequence[HistoryProvider] | None = None,
        max_tool_rounds: int = 25,
        max_output_attempts: int = 3,
    ) -> None:
        super().__init__(id=id or name or _derived_id(instructions), name=name, description=description)
        self.client = client
        self.instructions = instructions
        defaults = _Options.of(default_options)
        self.tools = as_tools([*as_tools(tools), *as_tools(defaults.tools)])
        self.default_options = defaults.options
        self.output_type = output_type if output_type is not None else defaults.output_type
        self.history_provider = _history_provider(context_providers)
        self.max_tool_rounds = max_tool_rounds
        self.max_output_attempts = max_output_attempts
        _register_output(self.output_type)

    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: Literal[False] = False,
        session: AgentSession | None = None,
        **more: Unpack[RunArguments],
    ) -> Awaitable[AgentResponse]: ...
    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: Literal[True],
        session: AgentSession | None = None,
        **more: Unpack[RunArguments],
    ) -> AgentResponseStream: ...
    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        **more: Unpack[RunArguments],
    ) -> Awaitable[AgentResponse] | AgentResponseStream: ...
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        **more: Unpack[RunArguments],
    ) -> Awaitable[AgentResponse] | AgentResponseStream:
        """Do a turn: answer these messages, using tools as needed.

        With a `session` the conversation so far is remembered and this turn is added to it, when it has succeeded. If a
        tool needs approval the turn ends with `user_input_requests`; pass the answers to the next `run`.
        """
        ask = self._asked(as_messages(messages), session, more)
        if not stream:
            return self._turn(ask, None)
        updates: AgentResponseStream = AgentStream(lambda emit: self._turn(ask, emit))
        return updates

    def _asked(self, messages: list[Message], session: AgentSession | None, more: RunArguments) -> _Ask:
        unknown = more.keys() - RunArguments.__annotations__.keys()
        if unknown:
            raise TypeError(f"run() has no argument {', '.join(sorted(unknown))}")
        given = _Options.of(more.get("options"))
        kinds = (more.get("output_type"), given.output_type, self.output_type)
        return _Ask(
            messages=messages,
            session=session,
            options=given.options.over(self.default_options),
            output_type=next((kind for kind in kinds if kind is not None), None),
            tools=as_tools([*self.tools, *as_tools(given.tools), *as_tools(more.get("tools"))]),
            tool_kwargs={**run_tool_kwargs.get(), **(more.get("function_invocation_kwargs") or {})},
            client_kwargs={**run_client_kwargs.get(), **(more.get("client_kwargs") or {})},
            call_key=more.get("call_key"),
            responses=dict(more.get("responses") or {}),
        )

    async def _turn(self, ask: _Ask, emit: Emit | None) -> AgentResponse:
        token = run_client_kwargs.set(ask.client_kwargs)
        try:
            return await self._take_turn(ask, emit)
        finally:
            run_client_kwargs.reset(token)

    async def _take_turn(self, ask: _Ask, emit: Emit | None) -> AgentResponse:
        history = await self._history(ask.session)
        label = self.name or self.id
        keys = CallKeys(label, ask.call_key or turn_name([*history, *ask.messages]))
        context = ToolContext(agent_name=label, session=ask.session, kwargs=ask.tool_kwargs)
        turn = Turn(
            plan=self._plan(ask, label),
            session=ask.session,
            caller=ToolCaller(label, {tool.name: tool for tool in ask.tools}, context, keys),
            keys=keys,
            emit=emit,
            conversation=history,
            responses=ask.responses,
        )
        return await turn.take(ask.messages)

    def _plan(self, ask: _Ask, label: str) -> TurnPlan:
        options, specs = ask.options, tuple(tool.spec for tool in ask.tools)
        if specs != options.tools:
            options = replace(options, tools=specs)
        if ask.output_type is not None:
            name = _tool_name(getattr(ask.output_type, "__name__", "output"))
            options = replace(options, response_format=ResponseFormat(name, freeze(schema_of(ask.output_type))))
        return TurnPlan(
            agent_id=self.id,
            agent_name=label,
            client=self.client,
            instructions=self.instructions,
            options=options,
            output_type=ask.output_type,
            history_provider=self.history_provider,
            max_tool_rounds=self.max_tool_rounds,
            max_output_attempts=self.max_output_attempts,
        )

    async def _history(self, session: AgentSession | None) -> list[Message]:
        if session is None or not self.history_provider.load_messages:
            return []
        return list(await self.history_provider.get_messages(session.session_id, state=session.state))

    async def __aenter__(self) -> Self:
        """Enters the client too, if it is one that can be entered: whoever leaves last closes its connections."""
        if isinstance(self.client, AbstractAsyncContextManager):
            await self.client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(self.client, AbstractAsyncContextManager):
            await self.client.__aexit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"Agent(id={self.id!r}, name={self.name!r}, tools={[tool.name for tool in self.tools]})"


def _derived_id(instructions: str | None) -> str:
    """An id for an agent without a name that is the same in the next process."""
    return f"agent-{hashlib.blake2b((instructions or '').encode(), digest_size=4).hexdigest()}"


@dataclass(frozen=True, slots=True)
class _Options:
    """Options as they are given, with what programs moving over put in there: functions, and a type to be filled."""

    options: ChatOptions
    output_type: Any = None
    tools: ToolLike | Sequence[ToolLike] | None = None

    @classmethod
    def of(cls, given: ChatOptions | Mapping[str, Any] | None) -> _Options:
        if not isinstance(given, Mapping):
            return cls(ChatOptions.of(given))
        rest = dict(given)
        tools = rest.pop("tools", None)
        declared = rest.pop("response_format") if isinstance(rest.get("response_format"), type) else None
        return cls(ChatOptions.of(rest), declared, tools)


def _history_provider(given: Sequence[HistoryProvider] | None) -> HistoryProvider:
    providers = list(given or [InMemoryHistoryProvider()])
    if len(providers) > 1 or not isinstance(providers[0], HistoryProvider):
        raise TypeError("context_providers takes one HistoryProvider, which keeps the agent's conversations")
    return providers[0]


def _register_output(kind: Any) -> None:
    """Types travel with the agent: a validated output can be saved without the user doing anything."""
    for cls in record_types_in(kind) if kind is not None else ():
        if known_types.entry_for(cls) is None:
            register_type(cls)
