"""One agent with a tool, on its own: no workflow, no storage.

python samples/10_agent_with_tools.py
"""

import asyncio

from models import model

from stepwell import Agent, tool
from stepwell.testing import calls

DEPTHS = {"Chand Baori": 20, "Rani ki Vav": 28, "Agrasen ki Baoli": 15}


@tool
def depth_of(stepwell: str) -> str:
    """Look up how deep a stepwell is.

    Args:
        stepwell: the name of the stepwell
    """
    depth = DEPTHS.get(stepwell)
    return f"{stepwell} is {depth} metres deep" if depth else f"there is no record of {stepwell}"


async def main() -> None:
    client = model(
        (calls("depth_of", stepwell="Chand Baori"), calls("depth_of", stepwell="Rani ki Vav")),
        "Rani ki Vav is the deeper one: 28 metres against 20.",
    )
    async with Agent(client, "Answer in one sentence.", name="guide", tools=[depth_of]) as guide:
        response = await guide.run("Which is deeper, Chand Baori or Rani ki Vav?")

    for message in response.messages:
        for content in message.contents:
            if content.type == "function_call":
                print(f"called {content.name}({content.arguments})")
            elif content.type == "function_result":
                print(f"  -> {content.result}")
    print(response.text)


if __name__ == "__main__":
    asyncio.run(main())
