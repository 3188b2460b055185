"""Crashes at every instant, long runs, and limits that are raised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stepwell import Agent, CheckpointStorage, InMemoryCheckpointStorage, Message, WorkflowRunState
from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
from stepwell.orchestrations import MagenticBuilder
from stepwell.testing import ScriptedChatClient
from stepwell.testing.crash import CrashingStorage, PowerLoss
from tests.faults.backends import BACKENDS, Backend
from tests.orchestrations import kills
from tests.orchestrations.teams import DONE, FACTS, PLAN, TASK, Team, ledger, purpose, team, usual


def stateless(note: list[str], rounds: int = 2) -> Team:
    """A team whose models answer from the conversation alone, as models do, and note what they were asked."""

    def manage(messages: Sequence[Message]) -> str:
        replies = sum(message.author_name in ("researcher", "writer") for message in messages)
        kind = purpose(messages)
        note.append(f"{kind} {replies}")
        match kind:
            case "facts":
                return FACTS
            case "plan":
                return PLAN
            case "ledger":
                return DONE if replies >= rounds else ledger(("researcher", "writer")[replies % 2], f"Round {replies}.")
        return f"After {replies}."

    def speak(who: str) -> Callable[[Sequence[Message]], str]:
        def answer(messages: Sequence[Message]) -> str:
            note.append(f"{who} {len(messages)}")
            return f"{who} heard {len(messages)}"

        return answer

    return Team(
        ScriptedChatClient(manage), ScriptedChatClient(speak("researcher")), ScriptedChatClient(speak("writer"))
    )


EXPECTED = ["facts 0", "plan 0", "ledger 0", "researcher 3", "ledger 1", "writer 4", "ledger 2", "final 2"]


@pytest.mark.parametrize("call", range(1, len(EXPECTED) + 1), ids=EXPECTED)
@pytest.mark.parametrize("instant", ["before call", "after call"])
async def test_a_crash_at_any_call_repeats_none_that_was_recorded(tmp_path: Path, instant: str, call: int) -> None:
    note: list[str] = []
    crew = stateless(note)
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as disk:
        with pytest.raises(PowerLoss):
            await crew.build(CrashingStorage(disk, at=f"{instant}#{call}")).run(TASK, run_id="r")

        result = await crew.build(disk).run(TASK, run_id="r")

    cut_off = [EXPECTED[call - 1]] if instant == "before call" else []
    assert sorted(note) == sorted(EXPECTED + cut_off)
    assert result.get_outputs()[0].text == "After 2."


@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize("instant", ["before checkpoint", "after checkpoint"])
async def test_a_crash_at_any_checkpoint_repeats_nothing(tmp_path: Path, instant: str, number: int) -> None:
    note: list[str] = []
    crew = stateless(note)
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as disk:
        with pytest.raises(PowerLoss):
            await crew.build(CrashingStorage(disk, at=f"{instant}#{number}")).run(TASK, run_id="r")

        result = await crew.build(disk).run(TASK, run_id="r")

    assert note == EXPECTED
    assert result.get_outputs()[0].text == "After 2."


@pytest.mark.parametrize("number", [1, 4, 15])
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS.keys())
def test_a_process_that_is_killed_goes_on_in_the_next(tmp_path: Path, backend: Backend, number: int) -> None:
    whole, cut = (kills.Bench.in_(tmp_path / name, backend) for name in ("whole", "cut"))
    try:
        assert kills.trial(cut, number, "after call", kills.uninterrupted(whole)).is_good
    finally:
        for bench in (whole, cut):
            backend.tear_down(bench.store)


@pytest.mark.faults
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_process_killed_at_every_call_goes_on_in_the_next(backend: str) -> None:
    assert kills.main(["--backend", backend]) == 0


async def test_a_cancelled_run_goes_on() -> None:
    note: list[str] = []
    crew = stateless(note)
    storage = InMemoryCheckpointStorage()
    async for event in crew.build(storage).run(TASK, run_id="r", stream=True):
        if event.type == "group_chat":
            break

    result = await crew.build(storage).run(TASK, run_id="r")

    assert result.get_outputs()[0].text == "After 2."
    assert note == EXPECTED


# --- long runs --------------------------------------------------------------------------------------------------------


async def test_a_thousand_rounds(tmp_path: Path) -> None:
    note: list[str] = []
    crew = stateless(note, rounds=1000)
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as disk:
        result = await crew.build(disk).run(TASK)

    assert result.get_outputs()[0].text == "After 1000."
    assert result.get_final_state() is WorkflowRunState.IDLE
    assert result.usage["manager"]["calls"] == 1004


async def bytes_after(path: Path, rounds: int) -> int:
    async with SQLiteCheckpointStorage(path) as disk:
        await stateless([], rounds=rounds).build(disk).run(TASK)
    return path.stat().st_size


async def test_what_is_stored_grows_with_the_conversation_and_not_with_its_square(tmp_path: Path) -> None:
    small, large = [await bytes_after(tmp_path / f"{rounds}.db", rounds) for rounds in (50, 400)]

    assert large < 10 * small


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_a_run_stopped_by_a_limit_reports_it_again_while_the_limit_stands() -> None:
    storage = InMemoryCheckpointStorage()
    crew = team(ledger("researcher"), ledger("writer"), max_round_count=1)
    stopped = await crew.build(storage).run(TASK, run_id="r")

    again = await crew.build(storage).run(TASK, run_id="r")

    assert again.get_outputs()[0].text == stopped.get_outputs()[0].text
    assert len(crew.manager.asked) == 5


@pytest.mark.parametrize("message", [(TASK,), ()], ids=["the same message", "no message"])
async def test_the_same_line_again_goes_on_when_the_limit_was_raised(message: tuple[str, ...]) -> None:
    storage = InMemoryCheckpointStorage()
    crew = team(ledger("researcher"), ledger("writer"), max_round_count=1)
    await crew.build(storage).run(TASK, run_id="r")

    crew.manager.add(ledger("writer"), DONE, "The whole brief.")
    result = await crew.build(storage, max_round_count=9).run(*message, run_id="r")

    assert [output.text for output in result.get_outputs()] == ["The whole brief."]
    assert len(crew.researcher.asked) == len(crew.writer.asked) == 1


async def test_another_message_after_a_limit_is_a_further_turn() -> None:
    storage = InMemoryCheckpointStorage()
    crew = team(ledger("researcher"), ledger("writer"), max_round_count=1)
    await crew.build(storage).run(TASK, run_id="r")

    crew.manager.add(FACTS, PLAN, ledger("writer"), DONE, "Something else.")
    result = await crew.build(storage).run("Something else, then.", run_id="r")

    assert [output.text for output in result.get_outputs()] == ["Something else."]


# --- a team inside something else -------------------------------------------------------------------------------------


async def test_a_team_is_an_agent_that_can_be_asked_again() -> None:
    crew = usual(name="crew")
    agent = crew.build(InMemoryCheckpointStorage()).as_agent(name="crew")
    session = agent.create_session()

    first = await agent.run(TASK, session=session)
    crew.manager.add(FACTS, PLAN, ledger("writer"), DONE, "Shorter.")
    second = await agent.run("Make it shorter.", session=session)

    assert (first.text, second.text) == ("The brief.", "Shorter.")


async def test_a_team_can_be_a_participant_of_another_team() -> None:
    inner = usual(name="inner")
    outer = ScriptedChatClient([FACTS, PLAN, ledger("desk", "Have it drafted."), DONE, "Done."])
    storage: CheckpointStorage = InMemoryCheckpointStorage()
    workflow = MagenticBuilder(
        participants=[inner.build().as_agent(name="desk")], manager_agent=Agent(outer), checkpoint_storage=storage
    ).build()

    result: Any = await workflow.run(TASK)

    assert result.get_outputs()[0].text == "Done."
    assert "desk:\nThe brief." in "\n".join(message.text for message in outer.asked[-1].messages)


@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize("instant", ["before checkpoint", "after checkpoint", "before call", "after call"])
async def test_a_crash_after_the_approval_asks_again_only_if_it_was_not_recorded(
    tmp_path: Path, instant: str, number: int
) -> None:
    note: list[str] = []
    crew = stateless(note)
    crew.options["enable_plan_review"] = True
    async with SQLiteCheckpointStorage(tmp_path / "runs.db") as disk:
        [asked] = (await crew.build(disk).run(TASK, run_id="r")).get_request_info_events()
        answer = {asked.request_id: asked.data.approve()}
        with pytest.raises(PowerLoss):
            crashing = CrashingStorage(disk, at=f"{instant}#{number}")
            await crew.build(crashing).run(run_id="r", responses=answer)

        result = await crew.build(disk).run(TASK, run_id="r")
        waits = result.get_request_info_events()
        if waits:
            result = await crew.build(disk).run(run_id="r", responses=answer)

    assert bool(waits) == (f"{instant}#{number}" == "before checkpoint#1")
    assert result.get_outputs()[0].text == "After 2."
    assert len(note) == len(EXPECTED) + (instant == "before call")
