"""What a participant is told and asked, and agents as participants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepwell.agents.agent import Agent, SupportsAgentRun
from stepwell.agents.agent_executor import AgentExecutor
from stepwell.agents.chat import AgentResponse, Message, as_messages
from stepwell.agents.content import Content, FrozenDict, freeze
from stepwell.checkpointing.registry import register_type
from stepwell.workflows.context import WorkflowContext
from stepwell.workflows.executor import handler

_SAYS_SOMETHING = frozenset({"text", "data", "uri"})


@dataclass(frozen=True, slots=True)
class GroupChatRequestMessage:
    """You are asked to speak. Answer with a `GroupChatResponseMessage`."""

    additional_instruction: str | None = None
    metadata: FrozenDict[Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", freeze(self.metadata, path="metadata"))


@dataclass(frozen=True, slots=True)
class GroupChatParticipantMessage:
    """You are told what was said. With `reset` the team starts over: forget what came before, then take note."""

    messages: tuple[Message, ...]
    reset: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", tuple(as_messages(self.messages)))


@dataclass(frozen=True, slots=True)
class GroupChatResponseMessage:
    """What a participant says."""

    message: Message


register_type(GroupChatRequestMessage, name="stepwell.GroupChatRequestMessage", immutable=True)
register_type(GroupChatParticipantMessage, name="stepwell.GroupChatParticipantMessage", immutable=True)
register_type(GroupChatResponseMessage, name="stepwell.GroupChatResponseMessage", immutable=True)


def spoken(response: AgentResponse, author: str) -> Message:
    """What an agent's turn comes to for the others: its words, without its tool calls and their results."""
    words = [message for message in response.messages if message.role != "tool" and _says_something(message)]
    if len(words) == 1 and words[0].author_name == author and all(map(_is_said, words[0].contents)):
        return words[0]  # The very message that its session holds, so that it is stored once.
    said = [content for message in words for content in message.contents if _is_said(content)]
    return Message("assistant", _joined(said) or [Content.from_text("(no reply)")], author_name=author)


def _is_said(content: Content) -> bool:
    return content.type in _SAYS_SOMETHING


def _says_something(message: Message) -> bool:
    return any(map(_is_said, message.contents))


def _joined(contents: Sequence[Content]) -> list[Content]:
    """Texts of several messages are kept apart by a line break."""
    joined: list[Content] = []
    for content in contents:
        if joined and content.type == "text" and joined[-1].type == "text":
            content = Content.from_text(f"{joined.pop().text}\n{content.text}")
        joined.append(content)
    return joined


class AgentParticipant(AgentExecutor):
    """An agent in a team. What it is told waits until it is asked; when the team starts over it has a new session."""

    def __init__(self, agent: SupportsAgentRun, *, id: str | None = None) -> None:
        super().__init__(agent, id=id)

    @handler
    async def on_told(self, told: GroupChatParticipantMessage, ctx: WorkflowContext[GroupChatResponseMessage]) -> None:
        if told.reset:
            self._forget()
        self._unheard += told.messages

    @handler
    async def on_asked(
        self, request: GroupChatRequestMessage, ctx: WorkflowContext[GroupChatResponseMessage, AgentResponse]
    ) -> None:
        if request.additional_instruction:
            self._unheard.append(Message("user", [request.additional_instruction]))
        await self._reply(ctx)

    async def _reply(self, ctx: WorkflowContext[Any, Any]) -> None:
        # The session remembers what was said; a second list of it would only make checkpoints larger.
        heard, self._unheard = self._unheard, []
        await self._turn(heard, ctx)

    async def _said(self, response: AgentResponse, ctx: WorkflowContext[Any, Any]) -> None:
        if ctx.is_streaming():
            ctx.yield_shown(response)
        else:
            await ctx.yield_output(response)
        await ctx.send_message(GroupChatResponseMessage(spoken(response, self.id)))

    async def _run(
        self,
        agent: SupportsAgentRun,
        messages: list[Message],
        ctx: WorkflowContext[Any, Any],
        arguments: dict[str, Any],
    ) -> AgentResponse:
        if isinstance(agent, Agent):
            # One turn per request: a constant name makes a changed prompt a divergence instead of a second call.
            arguments = {**arguments, "call_key": "turn"}
        return await super()._run(agent, messages, ctx, arguments)
