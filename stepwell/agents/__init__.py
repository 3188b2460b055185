"""Agents: a model, instructions, tools and a memory. Model in, tool calls out.

agent = Agent(OpenAIChatClient(), "You are brief.", name="writer", tools=[look_up])
response = await agent.run("Hello")
"""

from __future__ import annotations

from stepwell.agents.agent import Agent, AgentResponseStream, BaseAgent, SupportsAgentRun
from stepwell.agents.agent_executor import AgentExecutor, AgentExecutorRequest, AgentExecutorResponse
from stepwell.agents.approval import PendingApprovals
from stepwell.agents.chat import (
    AgentResponse,
    AgentResponseUpdate,
    AgentRunInputs,
    ChatResponse,
    ChatResponseUpdate,
    Message,
)
from stepwell.agents.client import ChatClient, ChatOptions, ResponseFormat, ToolSpec
from stepwell.agents.content import Content, UsageDetails
from stepwell.agents.openai_client import OpenAIChatClient
from stepwell.agents.session import AgentSession, HistoryProvider, InMemoryHistoryProvider
from stepwell.agents.stream import AgentStream
from stepwell.agents.tools import FunctionInvocationContext, FunctionTool, ToolContext, tool
from stepwell.agents.workflow_agent import WorkflowAgent
from stepwell.errors import ToolError
from stepwell.retry import RetryPolicy

__all__ = [
    "Agent",
    "AgentExecutor",
    "AgentExecutorRequest",
    "AgentExecutorResponse",
    "AgentResponse",
    "AgentResponseStream",
    "AgentResponseUpdate",
    "AgentRunInputs",
    "AgentSession",
    "AgentStream",
    "BaseAgent",
    "ChatClient",
    "ChatOptions",
    "ChatResponse",
    "ChatResponseUpdate",
    "Content",
    "FunctionInvocationContext",
    "FunctionTool",
    "HistoryProvider",
    "InMemoryHistoryProvider",
    "Message",
    "OpenAIChatClient",
    "PendingApprovals",
    "ResponseFormat",
    "RetryPolicy",
    "SupportsAgentRun",
    "ToolContext",
    "ToolError",
    "ToolSpec",
    "UsageDetails",
    "WorkflowAgent",
    "tool",
]
