"""A manager that needs no model: it plans by a checklist and calls each specialist until the checklist is done.

What it keeps between turns goes through the same two hooks as an executor's state. A factory makes one for each run.

    python samples/22_manager_of_your_own.py

It prints who was asked to do what, then the answer.
"""

import asyncio
from typing import Any

from models import model

from stepwell import Agent, InMemoryCheckpointStorage, Message
from stepwell.orchestrations import (
    GroupChatRequestSentEvent,
    MagenticBuilder,
    MagenticContext,
    MagenticManagerBase,
    MagenticProgressLedger,
    Plan,
    PlanStep,
)


class Checklist(MagenticManagerBase):
    """Goes through its list from the top; a reply that says 'again' sends it back to the first item."""

    def __init__(self) -> None:
        super().__init__(max_round_count=10)
        self._next = 0
        self._times_sent_back = 0

    async def plan(self, magentic_context: MagenticContext) -> Plan:
        return Plan(
            (
                PlanStep("Measure the water level.", "surveyor"),
                PlanStep("Check the measurement.", "inspector"),
            )
        )

    async def replan(self, magentic_context: MagenticContext) -> Plan:
        self._next = 0
        return await self.plan(magentic_context)

    async def create_progress_ledger(self, magentic_context: MagenticContext) -> MagenticProgressLedger:
        steps = (await self.plan(magentic_context)).steps
        if "again" in magentic_context.chat_history[-1].text and self._times_sent_back == 0:
            self._next, self._times_sent_back = 0, 1
        is_done = self._next >= len(steps)
        step = steps[min(self._next, len(steps) - 1)]
        self._next += 1
        answers = {
            "is_request_satisfied": is_done,
            "is_in_loop": False,
            "is_progress_being_made": True,
            "next_speaker": step.owner,
            "instruction_or_question": step.text,
        }
        return MagenticProgressLedger.from_dict(answers)

    async def prepare_final_answer(self, magentic_context: MagenticContext) -> Message:
        last = magentic_context.chat_history[-1].text.removeprefix("inspector:\n")
        text = f"{last} (It was sent back {self._times_sent_back} time.)"
        return Message("assistant", [text], author_name=self.name)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"next": self._next, "times_sent_back": self._times_sent_back}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._next, self._times_sent_back = state["next"], state["times_sent_back"]


async def main() -> None:
    surveyor = Agent(model("The water is at 11.2 metres.", "The water is at 12.1 metres."), name="surveyor")
    inspector = Agent(model("Measure again.", "The water is at 12.1 metres, checked."), name="inspector")
    team = MagenticBuilder(
        participants=[surveyor, inspector],
        manager_factory=Checklist,
        name="survey",
        checkpoint_storage=InMemoryCheckpointStorage(),
    ).build()

    stream = team.run("How high is the water?", stream=True)
    async for event in stream:
        if isinstance(event.data, GroupChatRequestSentEvent):
            print(f"round {event.data.round_index}, {event.data.participant_name}: {event.data.instruction}")
    print((await stream.get_final_response()).get_outputs()[-1].text)


if __name__ == "__main__":
    asyncio.run(main())
