"""A team: a manager who plans, a researcher with a tool, a writer, and a person who approves the plan.

    python samples/20_researcher_writer.py

Run it again and nothing is asked twice: the run is finished, and its brief is in the record. `make demo` shows a team
like this one at work on the screen.
"""

import asyncio
import os

import brief_script
from models import model

from stepwell import Agent, MagenticBuilder, SQLiteCheckpointStorage, Workflow, tool
from stepwell.testing import calls

STORE = os.environ.get("STEPWELL_STORE", ".stepwell/team.db")
NOTES = {
    "Chand Baori": "About 3,500 steps on thirteen storeys. Cooler at the bottom by five to six degrees.",
    "Bansilalpet": "Reopened in 2022, after 2,000 tonnes of debris had been taken out.",
}


@tool
def look_up(stepwell: str) -> str:
    """What the notes say about a stepwell."""
    return NOTES.get(stepwell, f"There is nothing about it. There are notes on {', '.join(NOTES)}.")


def team(storage: SQLiteCheckpointStorage) -> Workflow:
    researcher = Agent(
        model(
            (calls("look_up", stepwell="Chand Baori"), calls("look_up", stepwell="Bansilalpet")),
            "Chand Baori is five to six degrees cooler at its bottom; Bansilalpet was cleared by 2022.",
            "Both figures are right.",
        ),
        "Look things up before you answer, and report figures.",
        name="researcher",
        description="Looks things up in the notes.",
        tools=[look_up],
    )
    writer = Agent(
        model("Clear your stepwell, as Hyderabad did in 2022: its bottom is five degrees cooler than the street."),
        "Write plainly and briefly, from what the researcher found.",
        name="writer",
        description="Writes texts from facts that others have found.",
    )
    return MagenticBuilder(
        participants=[researcher, writer],
        manager_agent=Agent(model(brief_script.manager), name="manager"),
        name="brief-writers",
        enable_plan_review=True,
        max_round_count=6,
        checkpoint_storage=storage,
    ).build()


async def main() -> None:
    async with SQLiteCheckpointStorage(STORE) as storage:
        workflow = team(storage)
        result = await workflow.run("Write a one-page brief on stepwells for a city council.", run_id="brief")
        for request in result.get_request_info_events():
            print(f"the plan:\n{request.data.plan.text}")
            result = await workflow.run(responses={request.request_id: request.data.approve()})
        print(f"the brief: {result.get_outputs()[-1].text}")
        for name, used in result.usage.items():
            print(f"{name}: {used['calls']:.0f} model calls")


if __name__ == "__main__":
    asyncio.run(main())
