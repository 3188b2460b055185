"""A question to a person. The process that asked may be gone for long when the answer comes.

    python samples/05_human_in_the_loop.py ask stepwells                    # writes a draft, asks, ends
    python samples/05_human_in_the_loop.py waiting                          # any time later: what waits for whom
    python samples/05_human_in_the_loop.py answer revise "shorter, please"  # it is written anew, and asked for again
    python samples/05_human_in_the_loop.py answer approve                   # it is published

Without arguments it does all of them, one after the other.
"""

import asyncio
import os
import sys
from dataclasses import dataclass
from typing import Literal

from stepwell import (
    Executor,
    SQLiteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)

STORE = os.environ.get("STEPWELL_STORE", ".stepwell/drafts.db")


@dataclass(frozen=True)
class Draft:
    topic: str
    text: str
    version: int = 1


@dataclass(frozen=True)
class Verdict:
    word: Literal["approve", "revise"]
    feedback: str = ""


class Author(Executor):
    @handler
    async def write(self, topic: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(Draft(topic, f"All about {topic}."), Verdict)

    @response_handler
    async def decided(self, draft: Draft, verdict: Verdict, ctx: WorkflowContext[None, str]) -> None:
        if verdict.word == "approve":
            await ctx.yield_output(f"published, version {draft.version}: {draft.text}")
        else:
            text = f"On {draft.topic} ({verdict.feedback})."
            await ctx.request_info(Draft(draft.topic, text, draft.version + 1), Verdict)


def desk(storage: SQLiteCheckpointStorage) -> Workflow:
    return WorkflowBuilder(start_executor=Author("author"), name="desk", checkpoint_storage=storage).build()


async def act(*command: str) -> None:
    async with SQLiteCheckpointStorage(STORE) as storage:
        workflow = desk(storage)
        match command:
            case ["ask", topic]:
                result = await workflow.run(topic, run_id="draft")
            case ["waiting"]:
                result = await workflow.run(run_id="draft")  # nothing runs again; the question is asked again
            case ["answer", "approve" | "revise" as word, *feedback]:
                latest = await storage.get_latest(run_id="draft")
                pending = latest.pending_request_info_events if latest else {}
                if not pending:
                    print("nothing waits for an answer")
                    return
                answers = {request_id: Verdict(word, " ".join(feedback)) for request_id in pending}
                result = await workflow.run(run_id="draft", responses=answers)
            case _:
                sys.exit(__doc__)
        for event in result.get_request_info_events():
            print(f"version {event.data.version} waits for a {event.response_type.__name__}: {event.data.text}")
        for output in result.get_outputs():
            print(output)


async def main() -> None:
    if sys.argv[1:]:
        await act(*sys.argv[1:])
        return
    for command in (["ask", "stepwells"], ["waiting"], ["answer", "revise", "shorter, please"], ["answer", "approve"]):
        await act(*command)


if __name__ == "__main__":
    asyncio.run(main())
