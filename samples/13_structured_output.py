"""An agent whose answer is a pydantic model: validated, and asked for again if it does not fit.

python samples/13_structured_output.py
"""

import asyncio

from models import model
from pydantic import BaseModel, Field

from stepwell import Agent


class Stepwell(BaseModel):
    """What we want to know of a stepwell."""

    name: str
    storeys: int = Field(ge=1, le=20)


async def main() -> None:
    # The first reply breaks a rule of the model above, so the agent asks again, with the error.
    client = model('{"name": "Chand Baori", "storeys": 130}', '{"name": "Chand Baori", "storeys": 13}')
    async with Agent(client, "Answer with the facts asked for.", name="surveyor", output_type=Stepwell) as surveyor:
        response = await surveyor.run("Tell me about Chand Baori.")

    print(f"{response.value.name} has {response.value.storeys} storeys")


if __name__ == "__main__":
    asyncio.run(main())
