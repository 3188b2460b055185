"""Events folded into what a person sees, from real runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepwell import (
    Executor,
    InMemoryCheckpointStorage,
    RetryPolicy,
    SQLiteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    executor,
    handler,
)
from stepwell.cli.demo.team import TASK, build
from stepwell.cli.live_entries import (
    Asked,
    Entry,
    Judged,
    Noted,
    Planned,
    Replayed,
    Said,
    Saved,
    ToolUsed,
    Worked,
    Yielded,
)
from stepwell.cli.live_recall import recall
from stepwell.cli.live_state import LiveState


async def shown(state: LiveState, workflow: Workflow, message: Any = None, **given: Any) -> list[Entry]:
    entries: list[Entry] = []
    arguments = given if message is None else {"message": message, **given}
    async for event in workflow.run(**arguments, stream=True):
        entries += state.fold(event)
    return entries


async def planned(state: LiveState, workflow: Workflow, run_id: str = "one") -> tuple[list[Entry], WorkflowEvent]:
    """A team up to its question."""
    entries: list[Entry] = []
    requests = []
    async for event in workflow.run(TASK, run_id=run_id, stream=True):
        entries += state.fold(event)
        if event.type == "request_info":
            requests.append(event)
    [request] = requests
    return entries, request


async def test_a_first_plan_that_somebody_is_asked_about_is_left_to_whoever_asks() -> None:
    state = LiveState(first_plan_is_asked_about=True)

    entries, _ = await planned(state, build(InMemoryCheckpointStorage()))

    assert [entry for entry in entries if isinstance(entry, Planned)] == []
    assert state.plan is not None


async def test_a_team_is_told_from_its_plan_to_its_end() -> None:
    state, workflow = LiveState(), build(InMemoryCheckpointStorage())

    entries, request = await planned(state, workflow)
    assert state.phase == "waiting"
    assert [type(entry) for entry in entries if not isinstance(entry, Saved)] == [Planned]

    state.answered()
    entries = await shown(state, workflow, responses={request.request_id: request.data.approve()})

    assert state.phase == "done"
    assert [entry.speaker for entry in entries if isinstance(entry, Asked)] == ["researcher", "writer", "researcher"]
    assert [entry.who for entry in entries if isinstance(entry, Said)] == ["researcher", "writer", "researcher"]
    assert [entry.name for entry in entries if isinstance(entry, ToolUsed)] == ["search_notes", *["read_note"] * 4]
    assert [entry.verdict for entry in entries if isinstance(entry, Judged)] == ["satisfied"]
    assert state.plan is not None
    assert [standing for _, standing in state.plan.steps] == ["done", "done", "done"]
    assert (state.totals.model_calls, state.totals.all_tool_calls, state.totals.replayed) == (12, 5, 0)
    assert state.totals.all_tokens > 0
    assert not state.turns


async def test_the_reason_for_each_turn_is_the_ledgers() -> None:
    state, workflow = LiveState(), build(InMemoryCheckpointStorage())
    _, request = await planned(state, workflow)

    entries = await shown(state, workflow, responses={request.request_id: request.data.approve()})

    asked = next(entry for entry in entries if isinstance(entry, Asked))
    assert asked.reason.startswith("nothing is known yet")
    assert asked.instruction.startswith("Search the notes")


async def test_words_grow_in_the_state_and_are_written_down_when_the_turn_ends() -> None:
    state, workflow = LiveState(), build(InMemoryCheckpointStorage())
    _, request = await planned(state, workflow)
    longest = 0

    async for event in workflow.run(responses={request.request_id: request.data.approve()}, stream=True):
        entries = state.fold(event)
        if "writer" in state.turns:
            assert not any(isinstance(entry, Said) and entry.who == "writer" for entry in entries)
            longest = max(longest, len(state.turns["writer"].text))

    assert longest > 500


async def test_an_edited_plan_is_the_one_that_is_shown() -> None:
    state, workflow = LiveState(), build(InMemoryCheckpointStorage())
    _, request = await planned(state, workflow)
    edited = request.data.approve(edited_plan="1. researcher: Find one fact.\n2. writer: Write it down.")

    entries = await shown(state, workflow, responses={request.request_id: edited})

    assert state.plan is not None
    assert [step.text for step, _ in state.plan.steps] == ["Find one fact.", "Write it down."]
    assert [entry.speaker for entry in entries if isinstance(entry, Asked)] == ["researcher", "writer"]


async def test_a_run_that_began_elsewhere_is_shown_with_its_plan_and_its_progress(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SQLiteCheckpointStorage(path) as storage:
        workflow = build(storage)
        _, request = await planned(LiveState(), workflow)
        async with workflow.run(
            run_id="one", responses={request.request_id: request.data.approve()}, stream=True
        ) as stream:
            async for event in stream:
                if event.type == "executor_invoked" and event.executor_id == "writer":
                    break

    state = LiveState()
    async with SQLiteCheckpointStorage(path) as storage:
        await recall(state, storage, "one")

    assert state.plan is not None
    assert [standing for _, standing in state.plan.steps] == ["done", "current", "open"]
    assert state.totals.model_calls > 0


async def test_replayed_calls_are_counted_once_per_superstep(tmp_path: Path) -> None:
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as storage:
        workflow = build(storage)
        _, request = await planned(LiveState(), workflow)
        tools = 0
        async with workflow.run(
            run_id="one", responses={request.request_id: request.data.approve()}, stream=True
        ) as stream:
            async for event in stream:
                tools += event.provisional and any(c.type == "function_result" for c in event.data.contents)
                if tools:
                    break

        state = LiveState()
        entries = await shown(state, workflow, run_id="one")

    assert [entry.count for entry in entries if isinstance(entry, Replayed)] == [state.totals.replayed]
    assert state.totals.replayed >= 2


# --- any workflow -----------------------------------------------------------------------------------------------------


class Flaky(Executor):
    """Fails once."""

    def __init__(self) -> None:
        super().__init__("flaky", retry=RetryPolicy(max_attempts=2, initial_wait=0.001))
        self.failed = False

    @handler
    async def work(self, number: int, ctx: WorkflowContext[None, str]) -> None:
        if not self.failed:
            self.failed = True
            raise ConnectionError("the line is down")
        await ctx.yield_output(f"done with {number}")


async def test_any_workflow_is_told_by_who_took_what_and_gave_what() -> None:
    @executor(id="double")
    async def double(number: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(2 * number)

    @executor(id="end")
    async def end(number: int, ctx: WorkflowContext[None, int]) -> None:
        await ctx.yield_output(number)

    state = LiveState()
    workflow = WorkflowBuilder(start_executor=double).add_edge(double, end).build()
    entries = await shown(state, workflow, 21)

    assert [entry for entry in entries if isinstance(entry, Worked)] == [
        Worked("double", 21, (42,)),
        Worked("end", 42, (42,)),
    ]
    assert [entry for entry in entries if isinstance(entry, Yielded)] == [Yielded("end", 42, True)]
    assert state.phase == "done"


async def test_a_retry_is_noted() -> None:
    entries = await shown(LiveState(), WorkflowBuilder(start_executor=Flaky()).build(), 1)

    [note] = [entry for entry in entries if isinstance(entry, Noted)]
    assert note.kind == "retry"
    assert "the line is down" in note.text


async def test_a_message_that_nobody_takes_is_noted() -> None:
    @executor(id="lonely")
    async def lonely(number: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(number)

    entries = await shown(LiveState(), WorkflowBuilder(start_executor=lonely).build(), 1)

    assert [entry.kind for entry in entries if isinstance(entry, Noted)] == ["warning"]


async def test_a_failure_is_noted_with_its_reason() -> None:
    @executor(id="broken")
    async def broken(number: int, ctx: WorkflowContext[int]) -> None:
        raise ValueError("no such number")

    state, entries = LiveState(), []
    with pytest.raises(ValueError, match="no such number"):
        async for event in WorkflowBuilder(start_executor=broken).build().run(1, stream=True):
            entries += state.fold(event)

    assert Noted("error", "ValueError: no such number", "broken") in entries
    assert state.phase == "failed"
    assert not state.turns


class Moody:
    """Something of somebody's program that can't print itself."""

    def __repr__(self) -> str:
        raise RuntimeError("not now")


def test_a_value_that_can_not_print_itself_is_named() -> None:
    [note] = LiveState().fold(WorkflowEvent("mood", Moody()))

    assert note == Noted("event", "mood: <Moody that can't be shown: RuntimeError>", None)


@pytest.mark.parametrize("kind", ["started", "nonsense", "status", "checkpoint", "output", "call_replayed", "warning"])
def test_no_event_is_too_strange(kind: str) -> None:
    """Without the data that its kind comes with, it moves nothing and is at most written down as what it is."""
    state = LiveState()

    entries = state.fold(WorkflowEvent(kind))

    assert (state.phase, state.turns) == ("starting", {})
    assert len(entries) <= 1
    assert all(isinstance(entry, Noted | Yielded) for entry in entries)
