"""Seed 001, "Checkpoints": capturing, resuming on the same workflow object, rehydrating a new one, saving state."""

from __future__ import annotations

from typing import Any

from stepwell import Executor, InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, handler


class Step(Executor):
    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.messages: list[str] = []

    @handler
    async def handle(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        self.messages.append(message)
        await ctx.send_message(f"{message}>{self.id}")

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"messages": self.messages}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.messages = state.get("messages", [])


class End(Executor):
    @handler
    async def handle(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(message)


def parts() -> tuple[Step, Step, End, End]:
    return Step("start"), Step("b"), End("c"), End("end")


async def test_checkpoints_are_captured_and_listed_without_a_name() -> None:
    start_executor, executor_b, executor_c, end_executor = parts()
    checkpoint_storage = InMemoryCheckpointStorage()

    builder = WorkflowBuilder()
    builder.set_start_executor(start_executor)
    builder.add_edge(start_executor, executor_b)
    builder.add_edge(executor_b, executor_c)
    builder.add_edge(executor_b, end_executor)
    workflow = builder.with_checkpointing(checkpoint_storage).build()

    events = [event async for event in workflow.run_streaming("in")]
    checkpoints = await checkpoint_storage.list_checkpoints()

    assert [event.data for event in events if event.type == "output"] == ["in>start>b", "in>start>b"]
    assert [checkpoint.iteration_count for checkpoint in checkpoints] == [0, 1, 2, 3]


async def test_a_checkpoint_is_resumed_on_the_same_workflow_object() -> None:
    start_executor, executor_b, executor_c, end_executor = parts()
    checkpoint_storage = InMemoryCheckpointStorage()
    builder = WorkflowBuilder()
    builder.set_start_executor(start_executor)
    builder.add_edge(start_executor, executor_b)
    builder.add_edge(executor_b, executor_c)
    builder.add_edge(executor_b, end_executor)
    workflow = builder.with_checkpointing(checkpoint_storage).build()
    await workflow.run("in")
    checkpoints = await checkpoint_storage.list_checkpoints()

    saved_checkpoint = checkpoints[1]
    outputs = []
    async for event in workflow.run_stream_from_checkpoint(saved_checkpoint.checkpoint_id):
        if event.type == "output":
            outputs.append(event.data)  # noqa: PERF401 - as in the seed

    assert outputs == ["in>start>b", "in>start>b"]
    assert (start_executor.messages, executor_b.messages) == (["in"], ["in>start"])


async def test_a_checkpoint_is_rehydrated_in_a_new_workflow_that_has_no_storage_of_its_own() -> None:
    checkpoint_storage = InMemoryCheckpointStorage()
    first_start, first_b, first_c, first_end = parts()
    builder = WorkflowBuilder()
    builder.set_start_executor(first_start)
    builder.add_edge(first_start, first_b)
    builder.add_edge(first_b, first_c)
    builder.add_edge(first_b, first_end)
    await builder.with_checkpointing(checkpoint_storage).build().run("in")
    checkpoints = await checkpoint_storage.list_checkpoints()

    start_executor, executor_b, executor_c, end_executor = parts()
    builder = WorkflowBuilder()
    builder.set_start_executor(start_executor)
    builder.add_edge(start_executor, executor_b)
    builder.add_edge(executor_b, executor_c)
    builder.add_edge(executor_b, end_executor)
    # This workflow instance doesn't require checkpointing enabled.
    workflow = builder.build()

    saved_checkpoint = checkpoints[1]
    outputs = []
    async for event in workflow.run_stream_from_checkpoint(
        saved_checkpoint.checkpoint_id,
        checkpoint_storage,
    ):
        if event.type == "output":
            outputs.append(event.data)  # noqa: PERF401 - as in the seed

    assert outputs == ["in>start>b", "in>start>b"]
    assert (start_executor.messages, executor_b.messages) == (["in"], ["in>start"])


async def test_the_checkpoint_is_on_the_superstep_completed_event() -> None:
    start, end = Step("start"), End("end")
    storage = InMemoryCheckpointStorage()
    builder = WorkflowBuilder(start_executor=start, checkpoint_storage=storage).add_edge(start, end)
    stream = builder.build().run("in", stream=True)
    checkpoints = [event.data.checkpoint_id async for event in stream if event.type == "superstep_completed"]
    assert checkpoints == (await storage.list_checkpoint_ids())[1:]
