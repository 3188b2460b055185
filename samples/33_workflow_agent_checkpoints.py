"""The checkpoints of a workflow that is used as an agent: kept wherever `run` is told to, and resumed from any of them.

    python samples/33_workflow_agent_checkpoints.py

It prints the conversation, the checkpoints that one turn left, and the turn again from the one in its middle: the
assistant is not asked a second time, the reviewer is.
"""

import asyncio

from models import model

from stepwell import Agent, InMemoryCheckpointStorage, WorkflowAgent, WorkflowBuilder


def reviewed_assistant() -> WorkflowAgent:
    assistant = Agent(
        model("They keep water cool.", "They gather people."), "Name one benefit in four words.", name="assistant"
    )
    reviewer = Agent(
        model("True, and fresh.", "True, at least in summer.", "True, all year round."),
        "Say in five words whether the last statement is true.",
        name="reviewer",
    )
    workflow = WorkflowBuilder(start_executor=assistant, name="reviewed").add_edge(assistant, reviewer).build()
    return workflow.as_agent(name="reviewed-assistant")


async def main() -> None:
    checkpoint_storage = InMemoryCheckpointStorage()
    agent = reviewed_assistant()
    session = agent.create_session()

    for question in ("What are stepwells good for?", "What else?"):
        response = await agent.run(question, session=session, checkpoint_storage=checkpoint_storage)
        print(question)
        for message in response.messages:
            print(f"  {message.author_name}: {message.text}")

    checkpoints = await checkpoint_storage.list_checkpoints(workflow_name=agent.workflow.name)
    print(f"checkpoints after supersteps {[checkpoint.iteration_count for checkpoint in checkpoints]}")

    middle = checkpoints[-2]  # the assistant has spoken for the second time, the reviewer has not
    response = await agent.run(checkpoint_id=middle.checkpoint_id, checkpoint_storage=checkpoint_storage)
    print("the second turn again, from its middle:")
    for message in response.messages:
        print(f"  {message.author_name}: {message.text}")


if __name__ == "__main__":
    asyncio.run(main())
