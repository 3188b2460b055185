"""A team member without a model: an executor that is told what the others say, and speaks when it is asked.

    python samples/23_executor_in_a_team.py

It prints what the calculator heard and said, then the team's answer.
"""

import asyncio
import re
from typing import Any

from models import model, model_or

from stepwell import Agent, Executor, InMemoryCheckpointStorage, Message, WorkflowContext, handler
from stepwell.orchestrations import (
    GroupChatParticipantMessage,
    GroupChatRequestMessage,
    GroupChatResponseMessage,
    MagenticBuilder,
)
from stepwell.testing import scripted_manager


class Calculator(Executor):
    """Adds up the tonnes that the others mention."""

    description = "Adds up what the others have found, without mistakes."

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._heard: list[int] = []

    @handler
    async def told(self, message: GroupChatParticipantMessage, ctx: WorkflowContext) -> None:
        if message.reset:
            self._heard = []
        for said in message.messages:
            if said.author_name == "researcher":
                self._heard += [int(number) for number in re.findall(r"(\d+) tonnes", said.text)]

    @handler
    async def asked(self, request: GroupChatRequestMessage, ctx: WorkflowContext[GroupChatResponseMessage]) -> None:
        text = f"{' + '.join(map(str, self._heard))} = {sum(self._heard)} tonnes"
        print(f"calculator, asked to {request.additional_instruction!r}: {text}")
        await ctx.send_message(GroupChatResponseMessage(Message("assistant", [text], author_name=self.id)))

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"heard": self._heard}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._heard = state["heard"]


async def main() -> None:
    brain = scripted_manager(
        ("researcher", "Find out how much was cleared."),
        ("calculator", "Add it up."),
        answer="2350 tonnes were cleared in all.",
    )
    found = "Bansilalpet gave 2000 tonnes of debris, Toorji ka Jhalra 350 tonnes."
    researcher = Agent(model(lambda _: found), "Report figures in tonnes.", name="researcher", description="Finds out.")
    team = MagenticBuilder(
        participants=[researcher, lambda: Calculator("calculator")],  # a factory: one for each run
        manager_agent=Agent(model_or(brain), name="manager"),
        name="clearing",
        max_round_count=6,
        checkpoint_storage=InMemoryCheckpointStorage(),
    ).build()

    result = await team.run("How much debris was taken out of the two stepwells?")
    print(f"answer: {result.get_outputs()[-1].text}")


if __name__ == "__main__":
    asyncio.run(main())
