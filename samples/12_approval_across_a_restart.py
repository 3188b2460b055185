"""A tool call that a person has to approve, answered by another process.

    python samples/12_approval_across_a_restart.py ask       # runs until the payment needs a yes, and ends
    python samples/12_approval_across_a_restart.py approve   # any time later: the payment is made, once
    python samples/12_approval_across_a_restart.py reject    # or it is not

Without an argument it does the first two, one after the other.
"""

import asyncio
import os
import sys

from models import model

from stepwell import Agent, AlreadyAnswered, SQLiteCheckpointStorage, Workflow, WorkflowBuilder, tool
from stepwell.testing import calls

STORE = os.environ.get("STEPWELL_STORE", ".stepwell/approval.db")
RUN = "invoice-4711"


@tool(approval_mode="always", at_most_once=True)
def pay(invoice: str, euros: int) -> str:
    """Pay an invoice."""
    print(f"*** {euros} euros paid for {invoice} ***")
    return f"paid {invoice}"


def build(storage: SQLiteCheckpointStorage, *script: object) -> Workflow:
    clerk = Agent(model(*script), "Pay what you are asked to pay, then say so.", name="clerk", tools=[pay])
    return WorkflowBuilder(start_executor=clerk, name="payments", checkpoint_storage=storage).build()


async def ask() -> None:
    async with SQLiteCheckpointStorage(STORE) as storage:
        workflow = build(storage, calls("pay", invoice="4711", euros=120))
        result = await workflow.run("Pay invoice 4711 over 120 euros.", run_id=RUN)
        for event in result.get_request_info_events():
            call = event.data.function_call
            print(f"waiting for approval: {call.name}({call.arguments})")


async def decide(approved: bool) -> None:
    async with SQLiteCheckpointStorage(STORE) as storage:
        workflow = build(storage, "Invoice 4711 is settled." if approved else "I did not pay invoice 4711.")
        [run] = [info for info in await storage.list_runs() if info.run_id == RUN]
        answers = {request.request_id: approved for request in run.pending_requests}
        if not answers:
            print("nothing waits for an answer")
            return
        result = await workflow.run(responses=answers)
        print(result.get_outputs()[0].text)
        try:
            await workflow.run(responses=answers)
        except AlreadyAnswered as error:
            print(f"a second answer is refused: {type(error).__name__}")


async def main() -> None:
    match sys.argv[1:]:
        case ["ask"]:
            await ask()
        case ["approve"]:
            await decide(True)
        case ["reject"]:
            await decide(False)
        case _:
            await ask()
            await decide(True)


if __name__ == "__main__":
    asyncio.run(main())
