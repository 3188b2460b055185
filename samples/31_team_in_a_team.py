"""A team that is a tool of an agent in another team. All of it is one run, with one journal and one bill.

The payment is asked for two levels down; the approval is given at the top, by whoever runs the outermost workflow.

    python samples/31_team_in_a_team.py
"""

import asyncio
import os

from models import model

from stepwell import Agent, SQLiteCheckpointStorage, Workflow, WorkflowBuilder, tool
from stepwell.testing import calls

STORE = os.environ.get("STEPWELL_STORE", ".stepwell/teams.db")


@tool(approval_mode="always")
def pay(invoice: str, euros: int) -> str:
    """Pay an invoice."""
    print(f"*** {euros} euros paid for {invoice} ***")
    return f"paid {invoice}"


def build(storage: SQLiteCheckpointStorage) -> Workflow:
    checker = Agent(model("Invoice 4711 is in order."), "Check the invoice.", name="checker")
    payer = Agent(
        model(calls("pay", invoice="4711", euros=120), "Done."), "Pay what is in order.", name="payer", tools=[pay]
    )
    accounting = WorkflowBuilder(start_executor=checker, name="accounting").add_edge(checker, payer).build()
    office = accounting.as_agent(description="Checks and pays invoices").as_tool()
    secretary = Agent(
        model(calls("accounting", task="Settle invoice 4711 over 120 euros."), "Invoice 4711 is settled."),
        "Have things done by the right department.",
        name="secretary",
        tools=[office],
    )
    return WorkflowBuilder(start_executor=secretary, name="front-office", checkpoint_storage=storage).build()


async def main() -> None:
    async with SQLiteCheckpointStorage(STORE) as storage:
        workflow = build(storage)
        runs_before = len(await storage.list_runs())
        result = await workflow.run("Please settle invoice 4711.")
        while requests := result.get_request_info_events():
            for event in requests:
                call = event.data.function_call
                print(f"{event.executor_id} wants to {call.name}({call.arguments})")
            answers = {event.request_id: True for event in requests}
            result = await workflow.run(run_id=result.run_id, responses=answers)
        print(f"answer: {result.get_outputs()[-1].messages[-1].text}")
        print(f"{len(await storage.list_runs()) - runs_before} run; who was asked:", end=" ")
        print(", ".join(f"{name} {used['calls']:.0f}x" for name, used in sorted(result.usage.items())))


if __name__ == "__main__":
    asyncio.run(main())
