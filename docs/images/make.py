"""Draws the pictures of the documentation: `python docs/images/make.py`, from the repository's root or anywhere else.

They are drawn by `WorkflowViz` alone, so the same program draws the same files, byte for byte.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from stepwell import (
    Agent,
    Case,
    Default,
    Executor,
    InMemoryCheckpointStorage,
    MagenticBuilder,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WorkflowViz,
    handler,
    response_handler,
)
from stepwell.testing import ScriptedChatClient

HERE = Path(__file__).parent


class Step(Executor):
    """Passes on what it gets."""

    @handler
    async def take(self, message: Any, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.send_message(message)


class Approval(Executor):
    """Asks a person before it passes a text on."""

    @handler
    async def ask(self, text: Any, ctx: WorkflowContext[str, str]) -> None:
        await ctx.request_info(text, bool)

    @response_handler
    async def decide(self, text: Any, approved: bool, ctx: WorkflowContext[str, str]) -> None:
        await ctx.send_message(text if approved else "")


def agent(name: str) -> Agent:
    return ScriptedChatClient().as_agent(name=name)


def fan_out_and_in() -> Workflow:
    dispatcher, aggregator = Step("dispatcher"), Step("aggregator")
    experts = [Step("researcher"), Step("marketer"), Step("legal")]
    return (
        WorkflowBuilder(start_executor=dispatcher, name="experts")
        .add_fan_out_edges(dispatcher, experts)
        .add_fan_in_edges(experts, aggregator)
        .build()
    )


def is_spam(text: str) -> bool:
    return "prize" in text


def is_question(text: str) -> bool:
    return text.endswith("?")


def is_approved(text: str) -> bool:
    return bool(text)


def is_rejected(text: str) -> bool:
    return not text


def switch() -> Workflow:
    inbox, bin, answer, archive = (Step(name) for name in ("inbox", "bin", "answer", "archive"))
    reply = Step("reply")
    return (
        WorkflowBuilder(start_executor=inbox, name="mail")
        .add_switch_case_edge_group(inbox, [Case(is_spam, bin), Case(is_question, answer), Default(archive)])
        .add_edge(answer, reply)
        .add_edge(reply, answer, condition=is_question)
        .add_edge(reply, archive)
        .build()
    )


def nested_team() -> Workflow:
    research = MagenticBuilder(
        participants=[agent("web"), agent("library"), agent("archive")],
        manager_agent=agent("chief"),
        name="research team",
    ).build()
    editor, writer, approval, publish = Step("editor"), agent("writer"), Approval("approval"), Step("publish")
    desk = WorkflowExecutor(research, "desk")
    return (
        WorkflowBuilder(start_executor=editor, name="newsroom")
        .add_edge(editor, desk)
        .add_edge(desk, writer)
        .add_edge(writer, approval)
        .add_edge(approval, publish, condition=is_approved)
        .add_edge(approval, editor, condition=is_rejected)
        .build()
    )


async def waiting() -> WorkflowViz:
    """Two drafts wait for a person inside a workflow, one side of a fan-in is done and the other has not come."""
    storage = InMemoryCheckpointStorage()
    entrance, review = Step("entrance"), Approval("review")
    inner = WorkflowBuilder(start_executor=entrance, name="review draft").add_edge(entrance, review).build()
    split, layout, press = Step("split"), Step("layout"), Step("press")
    sub = WorkflowExecutor(inner, "drafts", propagate_request=True)
    workflow = (
        WorkflowBuilder(start_executor=split, name="magazine", checkpoint_storage=storage)
        .add_fan_out_edges(split, [sub, layout])
        .add_fan_in_edges([sub, layout], press)
        .build()
    )
    await workflow.run("spring", run_id="spring-issue")
    return WorkflowViz(workflow, state=await storage.get_latest(run_id="spring-issue"))


def main() -> None:
    pictures = {
        "fan-out-fan-in": WorkflowViz(fan_out_and_in()),
        "switch": WorkflowViz(switch()),
        "nested-team": WorkflowViz(nested_team()),
        "waiting-run": asyncio.run(waiting()),
    }
    for name, viz in pictures.items():
        viz.save_svg(HERE / f"{name}.svg")


if __name__ == "__main__":
    main()
