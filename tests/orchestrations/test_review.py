"""A person looks at the plan: in this process or another one, once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepwell import (
    AlreadyAnswered,
    InMemoryCheckpointStorage,
    ResponseTypeMismatch,
    RunBusy,
    UnknownRequest,
    WorkflowRunState,
)
from stepwell.checkpointing.storage.sqlite import SQLiteCheckpointStorage
from stepwell.orchestrations import MagenticPlanReviewRequest, MagenticPlanReviewResponse, Plan
from tests.orchestrations.teams import DONE, FACTS, PLAN, STALL, TASK, Team, ledger, team

REPOSITORY = Path(__file__).resolve().parents[2]
REVISED = json.dumps({"steps": [{"owner": "writer", "text": "Write a haiku."}]})


def reviewed(*ledgers: str, **options: Any) -> Team:
    return team(*(ledgers or (ledger("researcher"), ledger("writer"), DONE)), enable_plan_review=True, **options)


def request_of(result: Any) -> MagenticPlanReviewRequest:
    [event] = result.get_request_info_events()
    assert isinstance(event.data, MagenticPlanReviewRequest)
    assert event.request_id == event.data.request_id
    return event.data


async def paused(crew: Team, storage: Any) -> MagenticPlanReviewRequest:
    result = await crew.build(storage).run(TASK, run_id="r")
    assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    return request_of(result)


async def answered(crew: Team, storage: Any, answer: Any, request: MagenticPlanReviewRequest) -> Any:
    return await crew.build(storage).run(run_id="r", responses={request.request_id: answer})


# --- another process --------------------------------------------------------------------------------------------------


def program(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.orchestrations.guide_program", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("store", ["runs.db", "checkpoints"])
@pytest.mark.parametrize(
    ("how", "output", "told"),
    [
        pytest.param("approve", "The brief.", "1. researcher: Collect the facts.", id="approve"),
        pytest.param("edit", "The brief.", "1. writer: Write the brief.\n2. researcher: Check it.", id="edit"),
        pytest.param("edit as text", "The brief.", "1. writer: Write it.\n2. researcher: Check it.", id="edit as text"),
        pytest.param("reject", "The plan was rejected: Too expensive.\nNothing further was done.", None, id="reject"),
    ],
)
def test_the_guides_program_goes_on_in_a_new_process(
    tmp_path: Path, store: str, how: str, output: str, told: str | None
) -> None:
    asked = program("pause", str(tmp_path / store))

    result = program("resume", str(tmp_path / store), how)

    assert asked["plan"] == "1. researcher: Collect the facts.\n2. writer: Write the brief."
    assert result["request"] == asked["request"]
    assert result["outputs"] == [output]
    assert result["state"] == "IDLE"
    assert told is None or any(told in text for text in result["told"])


def test_the_guides_program_revised_in_a_new_process_asks_again(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")
    asked = program("pause", store)

    revised = program("resume", store, "revise")
    approved = program("resume", store, "approve")

    [again] = revised["asked"]
    assert again["plan"] == "1. writer: Write a haiku."
    assert again["request"] == again["same"] != asked["request"]
    assert revised["state"] == "IDLE_WITH_PENDING_REQUESTS"
    assert any("A haiku, please." in text for text in revised["told"])
    assert approved["outputs"] == ["The brief."]


# --- what can be answered ---------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "none"])
def storage(request: pytest.FixtureRequest) -> InMemoryCheckpointStorage | None:
    return InMemoryCheckpointStorage() if request.param == "memory" else None


async def test_what_is_shown(storage: Any) -> None:
    request = request_of(await reviewed().build(storage).run(TASK))

    assert request.plan.owners == ("researcher", "writer")
    assert request.facts == FACTS
    assert request.current_progress is None
    assert not request.is_stalled


async def test_approving_goes_on_without_planning_again(storage: Any) -> None:
    crew = reviewed()
    workflow = crew.build(storage)
    request = request_of(await workflow.run(TASK))

    result = await workflow.run(responses={request.request_id: request.approve()})

    assert result.get_outputs()[0].text == "The brief."
    assert crew.asked == ["facts", "plan", "ledger", "ledger", "ledger", "final"]


async def test_revising_asks_only_for_the_plan_and_shows_it(storage: Any) -> None:
    crew = reviewed()
    crew.manager._left.insert(2, REVISED)
    workflow = crew.build(storage)
    request = request_of(await workflow.run(TASK))

    second = request_of(await workflow.run(responses={request.request_id: request.revise("A haiku.")}))
    result = await workflow.run(responses={second.request_id: second.approve()})

    assert second.plan.text == "1. writer: Write a haiku."
    assert crew.asked[:4] == ["facts", "plan", "plan revised", "ledger"]
    assert "1. writer: Write a haiku." in crew.writer.asked[0].messages[1].text
    assert result.get_outputs()[0].text == "The brief."


async def test_rejecting_ends_the_run_with_an_explanation_and_no_call(storage: Any) -> None:
    crew = reviewed()
    workflow = crew.build(storage)
    request = request_of(await workflow.run(TASK))

    result = await workflow.run(responses={request.request_id: request.reject("No budget.")})

    [output] = result.get_outputs()
    assert "The plan was rejected: No budget." in output.text
    assert result.get_final_state() is WorkflowRunState.IDLE
    assert crew.asked == ["facts", "plan"]


@pytest.mark.parametrize(
    ("answer", "plan"),
    [
        pytest.param({"decision": "approve"}, "1. researcher: Collect the facts.", id="approve"),
        pytest.param(
            {"decision": "approve", "edited_plan": "- Writer: All of it."}, "1. writer: All of it.", id="text"
        ),
        pytest.param(
            {"decision": "approve", "edited_plan": {"steps": [{"owner": "writer", "text": "All of it."}]}},
            "1. writer: All of it.",
            id="steps",
        ),
    ],
)
async def test_json_answers_are_understood(answer: dict[str, Any], plan: str) -> None:
    crew = reviewed()
    workflow = crew.build()
    request = request_of(await workflow.run(TASK))

    await workflow.run(responses={request.request_id: answer})

    assert any(plan in message.text for message in crew.manager.asked[2].messages)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"decision": "approve", "edited_plan": {"steps": []}}, id="no step"),
        pytest.param({"decision": "approve", "edited_plan": {"steps": [{"text": " "}]}}, id="a blank step"),
        pytest.param({"decision": "approve", "edited_plan": "1. \u202e\n2. "}, id="steps that show nothing"),
        pytest.param({"decision": "revise"}, id="no feedback"),
        pytest.param({"decision": "revise", "feedback": "   "}, id="blank feedback"),
    ],
)
async def test_json_answers_have_to_say_what_the_methods_have_to(answer: dict[str, Any]) -> None:
    crew = reviewed()
    workflow = crew.build()
    request = request_of(await workflow.run(TASK))
    with pytest.raises(ResponseTypeMismatch):
        await workflow.run(responses={request.request_id: answer})
    await workflow.run(responses={request.request_id: request.approve()})
    assert any("1. researcher: Collect the facts." in message.text for message in crew.manager.asked[2].messages)


async def test_reviews_are_bounded_and_no_unapproved_plan_is_carried_out() -> None:
    crew = reviewed(max_plan_reviews=2)
    crew.manager._left.insert(2, REVISED)
    workflow = crew.build()
    first = request_of(await workflow.run(TASK))
    second = request_of(await workflow.run(responses={first.request_id: first.revise("Shorter.")}))

    result = await workflow.run(responses={second.request_id: second.revise("Shorter still.")})

    assert (first.reviews_left, second.reviews_left) == (1, 0)
    [output] = result.get_outputs()
    assert "max_plan_reviews=2" in output.text
    assert not crew.researcher.asked


@pytest.mark.parametrize("wrong", [pytest.param("", id="blank"), pytest.param(Plan(), id="no step")])
def test_an_empty_plan_can_not_be_approved(wrong: Any) -> None:
    with pytest.raises(ValueError, match="no step"):
        MagenticPlanReviewRequest(Plan()).approve(edited_plan=wrong)


def test_revising_needs_words() -> None:
    with pytest.raises(ValueError, match="feedback"):
        MagenticPlanReviewResponse.revise("  ")


# --- replans ----------------------------------------------------------------------------------------------------------

STALLED = (ledger("researcher"), STALL, FACTS, REVISED, ledger("writer"), DONE)


async def test_a_replan_is_shown_again() -> None:
    crew = reviewed(*STALLED, max_stall_count=0)
    workflow = crew.build()
    first = request_of(await workflow.run(TASK))

    second = request_of(await workflow.run(responses={first.request_id: first.approve()}))
    result = await workflow.run(responses={second.request_id: second.approve()})

    assert second.is_stalled
    assert second.current_progress is not None
    assert second.plan.text == "1. writer: Write a haiku."
    assert result.get_outputs()[0].text == "The brief."


async def test_a_replan_is_not_shown_if_nobody_wants_to_see_it() -> None:
    crew = reviewed(*STALLED, max_stall_count=0, review_replans=False)
    workflow = crew.build()
    first = request_of(await workflow.run(TASK))

    result = await workflow.run(responses={first.request_id: first.approve()})

    assert result.get_outputs()[0].text == "The brief."


async def test_a_revised_replan_still_sees_the_conversation() -> None:
    crew = reviewed(ledger("researcher"), STALL, FACTS, PLAN, REVISED, ledger("writer"), DONE, max_stall_count=0)
    workflow = crew.build()
    first = request_of(await workflow.run(TASK))
    second = request_of(await workflow.run(responses={first.request_id: first.approve()}))

    await workflow.run(responses={second.request_id: second.revise("A haiku.")})

    assert crew.asked[-1] == "plan revised"
    assert any("found" in message.text for message in crew.manager.asked[-1].messages)


async def test_a_stalled_team_can_ask_before_it_replans_and_go_on_as_it_was() -> None:
    crew = team(ledger("researcher"), STALL, ledger("writer"), DONE, max_stall_count=0, review_stalls=True)
    workflow = crew.build()
    request = request_of(await workflow.run(TASK))
    assert request.is_stalled
    assert request.before_replan

    result = await workflow.run(responses={request.request_id: request.approve()})

    assert result.get_outputs()[0].text == "The brief."
    assert crew.asked == ["facts", "plan", "ledger", "ledger", "ledger", "ledger", "final"]


async def test_a_stalled_team_can_be_sent_to_replan_with_advice() -> None:
    crew = team(*STALLED, max_stall_count=0, review_stalls=True)
    workflow = crew.build()
    request = request_of(await workflow.run(TASK))

    result = await workflow.run(responses={request.request_id: request.revise("Ask the writer.")})

    assert result.get_outputs()[0].text == "The brief."
    assert any("Ask the writer." in message.text for message in crew.manager.asked[4].messages)
    assert crew.asked[4:6] == ["facts again", "plan again"]


# --- a decision counts once -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", ["approve", "reject", "revise"])
async def test_a_second_answer_is_refused_whatever_it_says(storage: Any, second: str) -> None:
    crew = reviewed()
    crew.manager._left.insert(2, REVISED)
    workflow = crew.build(storage)
    request = request_of(await workflow.run(TASK, run_id="r"))
    again = await workflow.run(responses={request.request_id: request.revise("A haiku.")})
    answers = {"approve": request.approve(), "reject": request.reject(), "revise": request.revise("More.")}

    with pytest.raises(AlreadyAnswered, match=request.request_id):
        await workflow.run(run_id="r", responses={request.request_id: answers[second]})

    assert request_of(again).request_id != request.request_id


async def test_a_replaced_plan_can_not_be_answered_from_its_own_checkpoint() -> None:
    store = InMemoryCheckpointStorage()
    crew = reviewed()
    crew.manager._left.insert(2, REVISED)
    request = await paused(crew, store)
    old = await store.get_latest(run_id="r")
    assert old is not None
    await answered(crew, store, request.revise("A haiku."), request)

    with pytest.raises(AlreadyAnswered):
        await crew.build(store).run(checkpoint_id=old.checkpoint_id, responses={request.request_id: request.approve()})


async def test_an_answer_to_nothing_is_refused() -> None:
    crew = reviewed()
    request = await paused(crew, InMemoryCheckpointStorage())

    with pytest.raises(UnknownRequest):
        await crew.build(InMemoryCheckpointStorage()).run(responses={"plan-x": request.approve()})


async def test_of_two_answers_at_once_one_counts(tmp_path: Path) -> None:
    crew = reviewed()
    async with (
        SQLiteCheckpointStorage(tmp_path / "runs.db") as here,
        SQLiteCheckpointStorage(tmp_path / "runs.db") as there,
    ):
        request = await paused(crew, here)

        results = await asyncio.gather(
            answered(crew, here, request.approve(), request),
            answered(crew, there, request.reject("No."), request),
            return_exceptions=True,
        )

        [error] = [result for result in results if isinstance(result, BaseException)]
        [decided] = [result for result in results if not isinstance(result, BaseException)]
        assert isinstance(error, AlreadyAnswered | RunBusy), error
        assert len(decided.get_outputs()) == 1


def test_of_two_processes_that_answer_at_once_one_counts(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")
    program("pause", store)
    command = [sys.executable, "-m", "tests.orchestrations.guide_program", "resume", store]

    both = [
        subprocess.Popen([*command, how], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for how in ("approve", "reject")
    ]
    ended = [(process.communicate(timeout=60), process.returncode) for process in both]

    assert sorted(code == 0 for _, code in ended) == [False, True], ended
    [(_, complaint)] = [said for said, code in ended if code != 0]
    last = complaint.strip().splitlines()[-1]
    # Whoever comes late finds the run taken, the request answered, or nothing pending any more.
    assert any(word in last for word in ("AlreadyAnswered", "RunBusy", "not enough values to unpack")), complaint


async def test_a_manager_of_ones_own_hears_the_feedback() -> None:
    from stepwell import Agent
    from stepwell.orchestrations import MagenticBuilder, MagenticContext
    from tests.orchestrations.test_magentic import Foreman

    class Listening(Foreman):
        heard = ""

        async def replan(self, magentic_context: MagenticContext) -> Any:
            self.heard = magentic_context.chat_history[-1].text
            return "- writer: As you wish."

    crew = reviewed()
    manager = Listening()
    agents = [Agent(crew.researcher, name="researcher"), Agent(crew.writer, name="writer")]
    workflow = MagenticBuilder(participants=agents, manager=manager, enable_plan_review=True).build()
    request = request_of(await workflow.run(TASK))

    second = request_of(await workflow.run(responses={request.request_id: request.revise("A haiku.")}))

    assert manager.heard.endswith("A haiku.")
    assert second.plan.text == "1. writer: As you wish."
