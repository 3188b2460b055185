"""Questions whose answer is recorded and not delivered yet: the program, and only it, can find that answer unusable."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from stepwell.cli.questions import Question, kind_of

if TYPE_CHECKING:
    from stepwell.checkpointing.checkpoint import PendingRequest
    from stepwell.checkpointing.storage.protocol import RunInfo
    from stepwell.checkpointing.storage.recording import RecordingStorage


async def undelivered_questions(storage: RecordingStorage, wanted: str) -> list[Question]:
    """Those of the run or with the request id that is wanted; none if something else of that name still waits."""
    runs = await storage.list_runs()
    if any(wanted in (run.run_id, request.request_id) for run in runs for request in run.pending_requests):
        return []
    found = [question for run in runs if run.undelivered_answers for question in await _of_run(storage, run)]
    return [question for question in found if wanted in (question.run_id, question.request_id)]


async def _of_run(storage: RecordingStorage, run: RunInfo) -> list[Question]:
    checkpoint = await storage.get_latest(run_id=run.run_id)
    if checkpoint is None:
        return []
    # Its content is read when it is first looked at, and that is not for the event loop to wait for.
    asked = await asyncio.to_thread(lambda: checkpoint.pending_request_info_events)
    waiting = {request.request_id for request in run.pending_requests}
    return [_question(run, request) for request_id, request in asked.items() if request_id not in waiting]


def _question(run: RunInfo, request: PendingRequest) -> Question:
    return Question(
        request_id=request.request_id,
        run_id=run.run_id,
        asked_by=request.source_executor_id,
        kind=kind_of(request.data),
        data=request.data,
        response_type=request.response_type,
        asked_at=request.asked_at,
        deadline=request.deadline,
        workflow=run.workflow_name,
    )
