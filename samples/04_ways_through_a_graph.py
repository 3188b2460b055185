"""Ways through a graph: a switch picks one executor, a fan-out reaches several at once, a fan-in waits for all of them.

    python samples/04_ways_through_a_graph.py

It prints what became of three letters, and the graph as Mermaid.
"""

import asyncio
from dataclasses import dataclass

from stepwell import (
    Case,
    Default,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowViz,
    executor,
)


@dataclass(frozen=True)
class Letter:
    kind: str
    text: str


@executor(id="mailroom")
async def mailroom(line: str, ctx: WorkflowContext[Letter]) -> None:
    kind, _, text = line.partition(": ")
    await ctx.send_message(Letter(kind, text))


@executor(id="complaints")
async def complaints(letter: Letter, ctx: WorkflowContext[Letter]) -> None:
    await ctx.send_message(letter)


@executor(id="legal")
async def legal(letter: Letter, ctx: WorkflowContext[str]) -> None:
    await ctx.send_message("legal sees no risk" if "sue" not in letter.text else "legal sees a risk")


@executor(id="tone")
async def tone(letter: Letter, ctx: WorkflowContext[str]) -> None:
    await ctx.send_message("the tone is angry" if letter.text.endswith("!") else "the tone is calm")


@executor(id="reply")
async def reply(findings: list[str], ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(f"complaint: {', '.join(findings)}")


@executor(id="billing")
async def billing(letter: Letter, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(f"invoice: {letter.text} goes to billing")


@executor(id="bin")
async def waste(letter: Letter, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(f"{letter.kind}: thrown away")


def post_office() -> Workflow:
    return (
        WorkflowBuilder(start_executor=mailroom, name="post-office", checkpoint_storage=InMemoryCheckpointStorage())
        .add_switch_case_edge_group(
            mailroom,
            [
                Case(lambda letter: letter.kind == "complaint", complaints),
                Case(lambda letter: letter.kind == "invoice", billing),
                Default(waste),
            ],
        )
        .add_fan_out_edges(complaints, [legal, tone])
        .add_fan_in_edges([legal, tone], reply)  # `reply` gets both findings, in one list
        .build()
    )


async def main() -> None:
    workflow = post_office()
    for line in ("complaint: You lost my parcel, I will sue!", "invoice: 4711", "advert: buy now"):
        result = await workflow.run(line)
        print(result.get_outputs()[0])
    print(WorkflowViz(workflow).to_mermaid())


if __name__ == "__main__":
    asyncio.run(main())
