"""The workflows that an agent consists of or can call: what an executor around it has to know of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepwell.agents.agent import Agent
from stepwell.agents.agent_tool import AgentTool
from stepwell.agents.session import AgentSession
from stepwell.agents.workflow_agent import WorkflowAgent
from stepwell.agents.workflow_memory import InnerMemory
from stepwell.checkpointing.checkpoint import GRAPH_SHAPE
from stepwell.workflows.executor import HandlerSpec
from stepwell.workflows.opening import missing_from

if TYPE_CHECKING:
    from stepwell.workflows.graph import Graph


def workflows_behind(agent: Any) -> dict[str, Graph]:
    """The workflows whose state may be in a session of this agent, by name: its own, or those behind its tools."""
    graphs = {team.workflow.name: team.workflow.graph for team in _teams_behind(agent)}
    for graph in graphs.values():
        _ = graph.registry  # Makes the types known that its state is made of.
    return graphs


def answers_taken_by(agent: Any) -> Iterator[HandlerSpec]:
    """What the executors of these workflows ask, and what they are answered, to any depth."""
    for team in _teams_behind(agent):
        for executor in team.workflow.get_executors_list():
            for spec in executor.specs:
                if spec.responds_to:
                    yield HandlerSpec("_respond", spec.accepts, (), (), responds_to=spec.responds_to)


def missing_in(session: AgentSession, teams: dict[str, Graph]) -> Iterator[str]:
    """What runs that wait in this session need and the workflows do not have any more, in words."""
    memory = InnerMemory.of(session)
    if memory is not None:
        for graph in teams.values():
            yield from missing_from(memory.state, graph, memory.record["state"].get(GRAPH_SHAPE, graph.shape))


def _teams_behind(agent: Any) -> Iterator[WorkflowAgent]:
    """The agent itself if it is a team, else those behind its tools; an agent may well have itself among them."""
    waiting, seen = [agent], set()
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, WorkflowAgent):
            yield one
        elif isinstance(one, Agent) and id(one) not in seen:
            seen.add(id(one))
            waiting += [tool.agent for tool in one.tools if isinstance(tool, AgentTool)]
