"""A program to be killed: agents that pay invoices with a scripted model, on a real SQLite file.

    python -m tests.agents.payments STORE DIARY [model:N | tool:N]

The diary is a file outside the store, one `write` per line, so it survives SIGKILL: every model call and every payment,
with its idempotency key. `model:3` kills the process when the third model call begins (whatever came before it is
recorded by then), `tool:3` after the third payment has been made and before its tool returns.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from stepwell import (
    Agent,
    AgentExecutorResponse,
    Executor,
    Message,
    SQLiteCheckpointStorage,
    ToolContext,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    tool,
)
from stepwell.testing import Delayed, ScriptedChatClient, calls

INVOICES = 6


class Diary:
    """Notes what really happens, and dies where it is told to."""

    def __init__(self, path: str, death: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._kind, _, number = death.partition(":")
        self._left = int(number or 0)

    def note(self, kind: str, text: str) -> None:
        os.write(self._file, f"{kind} {text}\n".encode())
        if kind == self._kind:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def payer(name: str, diary: Diary) -> Agent:
    def script(messages: Sequence[Message]) -> Any:
        done = [c for m in messages for c in m.contents if c.type == "function_result"]
        diary.note("model", f"{name}-{len(done)}")
        if len(done) < INVOICES:
            return Delayed(0.002, calls("pay", call_id=f"{name}-{len(done)}", invoice=f"{name}{len(done)}"))
        return Delayed(0.002, f"{name} paid: {', '.join(str(c.result) for c in done)}")

    @tool
    async def pay(invoice: str, context: ToolContext) -> str:
        """Pay an invoice."""
        await asyncio.sleep(0.001)
        diary.note("tool", f"{invoice} {context.idempotency_key}")
        return invoice

    return Agent(ScriptedChatClient(script), "Pay all.", name=name, tools=[pay])


class Start(Executor):
    @handler
    async def go(self, text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text)


class Join(Executor):
    @handler
    async def end(self, replies: list[AgentExecutorResponse], ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(" | ".join(reply.agent_response.text for reply in replies))


def build(storage: SQLiteCheckpointStorage, diary: Diary) -> Workflow:
    """Two payers in one superstep, their answers joined."""
    start, join, ann, bob = Start("start"), Join("join"), payer("ann", diary), payer("bob", diary)
    return (
        WorkflowBuilder(start_executor=start, name="payments", checkpoint_storage=storage, output_from=[join])
        .add_fan_out_edges(start, [ann, bob])
        .add_fan_in_edges([ann, bob], join)
        .build()
    )


async def main(store: str, diary: str, death: str = "") -> None:
    async with SQLiteCheckpointStorage(store) as storage:
        result = await build(storage, Diary(diary, death)).run("go", run_id="r")
    print(result.get_outputs()[0])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
