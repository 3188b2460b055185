"""A workflow inside a workflow. All of its state is in the parent's checkpoints, and so is what it waits for.

The inner workflow writes a text and asks whether it will do. The executor around it lets short texts pass and asks a
person about long ones, so the same question is answered by a rule or by whoever runs the program next.

    python samples/06_sub_workflow.py ask       # writes two texts; one waits for a person
    python samples/06_sub_workflow.py approve   # in another process: the inner workflow goes on where it was

Without an argument it does both.
"""

import asyncio
import os
import sys

from stepwell import (
    Executor,
    SQLiteCheckpointStorage,
    SubWorkflowRequestMessage,
    SubWorkflowResponseMessage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    handler,
    response_handler,
)

STORE = os.environ.get("STEPWELL_STORE", ".stepwell/office.db")


def expensive_model(topic: str) -> str:
    print(f"  (the model writes about {topic})")
    return f"Everything about {topic}." * (5 if topic == "stepwells" else 1)


class Writer(Executor):
    @handler
    async def write(self, topic: str, ctx: WorkflowContext) -> None:
        text = await ctx.call(expensive_model, topic)  # recorded: no process makes this call again
        await ctx.request_info(text, bool)

    @response_handler
    async def reviewed(self, text: str, accepted: bool, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{text[:20]}… ({len(text)} characters) is {'accepted' if accepted else 'refused'}")


class Office(Executor):
    """Starts the inner workflow, and stands between it and the person."""

    @handler
    async def begin(self, topics: list[str], ctx: WorkflowContext[str]) -> None:
        for topic in topics:
            await ctx.send_message(topic)

    @handler
    async def asked(self, request: SubWorkflowRequestMessage, ctx: WorkflowContext[SubWorkflowResponseMessage]) -> None:
        if len(request.source_event.data) < 50:
            await ctx.send_message(request.create_response(True), target_id=request.executor_id)
        else:
            await ctx.request_info(request, bool)

    @response_handler
    async def answered(
        self, request: SubWorkflowRequestMessage, accepted: bool, ctx: WorkflowContext[SubWorkflowResponseMessage]
    ) -> None:
        await ctx.send_message(request.create_response(accepted), target_id=request.executor_id)

    @handler
    async def done(self, result: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(result)


def build(storage: SQLiteCheckpointStorage) -> Workflow:
    inner = WorkflowBuilder(start_executor=lambda: Writer("writer"), name="writing").build()
    office, writing = Office("office"), WorkflowExecutor(inner, id="writing")
    builder = WorkflowBuilder(start_executor=office, name="office", checkpoint_storage=storage)
    return builder.add_edge(office, writing).add_edge(writing, office).build()


async def step(*, approve: bool) -> None:
    async with SQLiteCheckpointStorage(STORE) as storage:
        workflow = build(storage)
        result = await workflow.run(["wells", "stepwells"], run_id="texts")
        answers = {event.request_id: True for event in result.get_request_info_events()}
        if approve and answers:
            result = await workflow.run(run_id="texts", responses=answers)
        print(f"{result.get_final_state()}: {result.get_outputs()}")


async def main() -> None:
    for word in sys.argv[1:] or ["ask", "approve"]:
        await step(approve=word == "approve")


if __name__ == "__main__":
    asyncio.run(main())
