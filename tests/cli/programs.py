"""Programs as users write them, put into a folder for the command line to find."""

from __future__ import annotations

from pathlib import Path

TEAM = '''
"""A team whose plan a person reviews."""
from stepwell import Agent, MagenticBuilder
from stepwell.testing import ScriptedChatClient
from stepwell.testing.teams import scripted_manager


def team():
    manager = scripted_manager(
        ("researcher", "Find out."), ("writer", "Write."), answer="Steps down to the water."
    )
    researcher = ScriptedChatClient(lambda messages: "They reach water at any level.")
    writer = ScriptedChatClient(lambda messages: "Steps down.")
    return MagenticBuilder(
        participants=[
            Agent(researcher, name="researcher", description="finds out"),
            Agent(writer, name="writer", description="writes"),
        ],
        manager_agent=Agent(manager, name="manager"),
        enable_plan_review=True,
        name="team",
    ).build()
'''

SHOP = '''
"""Orders that need a person's word, in types of their own."""
from dataclasses import dataclass
from pathlib import Path

from stepwell import Executor, WorkflowBuilder, WorkflowContext, handler, response_handler


@dataclass(frozen=True)
class Order:
    item: str
    euros: int


@dataclass(frozen=True)
class Terms:
    discount: float
    note: str = ""


class Clerk(Executor):
    @handler
    async def take(self, order: Order, ctx: WorkflowContext) -> None:
        ctx.set_state("customer", {"name": "Grace"})
        await ctx.request_info(order, Terms)

    @response_handler
    async def agree(self, order: Order, terms: Terms, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{order.item} for {order.euros * (1 - terms.discount):.0f} euros{terms.note}")


def build(storage):
    assert storage is not None
    return WorkflowBuilder(name="shop", start_executor=Clerk("clerk"), checkpoint_storage=storage).build()


async def build_async():
    return WorkflowBuilder(name="shop", start_executor=Clerk("clerk")).build()


workflow = WorkflowBuilder(name="shop", start_executor=Clerk("clerk")).build()
not_a_workflow = 17


def returns_a_text():
    return "hello"


def wants_two(first, second):
    return workflow


def breaks():
    raise RuntimeError("the builder broke")
'''

COUNTER = '''
"""Counts in shared state, fails once if told to, and takes its time if told to."""
import asyncio
import os
from pathlib import Path

from stepwell import Executor, WorkflowBuilder, WorkflowContext, handler


class Counter(Executor):
    @handler
    async def count(self, upto: int, ctx: WorkflowContext[int, int]) -> None:
        count = ctx.get_state("count", 0) + 1
        ctx.set_state("count", count)
        if count == 2 and os.environ.get("FAIL"):
            raise RuntimeError("the counter broke \\x1b[31m")
        if count == 2 and os.environ.get("HANG"):
            Path(os.environ["HANG"]).touch()
            await asyncio.sleep(600)
        if count >= upto:
            await ctx.yield_output(count)
        else:
            await ctx.send_message(upto)


counter = Counter("counter")
workflow = WorkflowBuilder(name="counting", start_executor=counter).add_edge(counter, counter).build()
'''

PAYMENTS = '''
"""A tool call that a person has to approve."""
from stepwell import Agent, WorkflowBuilder, tool
from stepwell.testing import ScriptedChatClient, calls


@tool(approval_mode="always")
def pay(invoice: str) -> str:
    """Pay an invoice."""
    return f"paid {invoice}"


def reply(messages):
    results = [c.result for m in messages for c in m.contents if c.type == "function_result"]
    return f"It says: {results[-1]}" if results else calls("pay", invoice="4711")


def build():
    clerk = Agent(ScriptedChatClient(reply), name="clerk", tools=[pay])
    return WorkflowBuilder(start_executor=clerk, name="payments").build()
'''

CHARGING = '''
"""A call that must not be made twice."""
import asyncio
import os
from pathlib import Path

from stepwell import Executor, WorkflowBuilder, WorkflowContext, handler


async def charge(card: str) -> str:
    if os.environ.get("HANG"):
        Path(os.environ["HANG"]).touch()
        await asyncio.sleep(600)
    return "charged again"


class Till(Executor):
    @handler
    async def take(self, card: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(await ctx.call(charge, card, at_most_once=True))


workflow = WorkflowBuilder(name="charging", start_executor=Till("till")).build()
'''

HOSTILE = '''
"""Says again what it is told, whatever that is."""
from dataclasses import dataclass
from stepwell import Executor, WorkflowBuilder, WorkflowContext, handler, response_handler

@dataclass(frozen=True)
class Shown:
    text: str

class Clerk(Executor):
    @handler
    async def take(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        if text.startswith("fail"):
            raise RuntimeError(text)
        await ctx.yield_output(text)
        await ctx.request_info(Shown(text), str)

    @response_handler
    async def done(self, shown: Shown, answer: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(shown.text + answer)

workflow = WorkflowBuilder(name="h\\x1b[31m", start_executor=Clerk("clerk")).build()
'''

NOISY = """
from stepwell import Executor, WorkflowBuilder, WorkflowContext, handler

print("imported")


class Noisy(Executor):
    @handler
    async def take(self, text: str, ctx: WorkflowContext[None, str]) -> None:
        print("handled")
        await ctx.yield_output(text)


def build():
    print("built")
    return WorkflowBuilder(name="noisy", start_executor=Noisy("noisy")).build()
"""

BROKEN = "import nothing_of_this_name\n"
UNREADABLE = "def broken(:\n"

PROGRAMS = {
    "team.py": TEAM,
    "shop.py": SHOP,
    "counting.py": COUNTER,
    "payments.py": PAYMENTS,
    "charging.py": CHARGING,
    "hostile.py": HOSTILE,
    "noisy.py": NOISY,
    "broken.py": BROKEN,
    "unreadable.py": UNREADABLE,
}


def write_programs(folder: Path) -> None:
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text, encoding="utf-8")
