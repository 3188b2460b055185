"""`show`: a run told from its first message to where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepwell.checkpointing.journal import CallRecord
from stepwell.cli import consoles
from stepwell.cli.asking import summary_lines
from stepwell.cli.holders import at_work_on
from stepwell.cli.plurals import number_of
from stepwell.cli.questions import questions_of_run
from stepwell.cli.results import total
from stepwell.cli.runs_by_id import run_named
from stepwell.cli.runs_table import run_json, standing
from stepwell.cli.safe_text import one_line, safe
from stepwell.cli.timeline import Moment, call_json, moment_json, timeline
from stepwell.cli.values import counted, text_of

if TYPE_CHECKING:
    from stepwell.checkpointing.storage.protocol import RunInfo
    from stepwell.checkpointing.storage.recording import RecordingStorage

_SHORT = 100
_LEDGER = {
    "is_request_satisfied": "satisfied",
    "is_in_loop": "in a loop",
    "is_progress_being_made": "progress",
    "next_speaker": "next",
    "instruction_or_question": "told",
}


@dataclass(frozen=True, slots=True)
class Story:
    """Everything that is shown of a run."""

    run: RunInfo
    moments: list[Moment]
    left_out: int
    calls: list[CallRecord]
    """None if the storage can't list them."""


async def read_story(storage: RecordingStorage, run_id: str, *, last: int | None) -> Story:
    run = await run_named(storage, run_id)
    moments, left_out = await timeline(storage, run_id, last=last)
    return Story(run, moments, left_out, await storage.list_calls(run_id))


def story_json(story: Story) -> dict[str, Any]:
    return {
        "run": run_json(story.run),
        "timeline": [moment_json(moment) for moment in story.moments],
        "left_out": story.left_out,
        "calls": [call_json(call) for call in story.calls],
    }


def print_story(story: Story, *, full: bool) -> None:
    from rich.text import Text

    console = consoles.out()
    for text, style in _lines(story, full=full):
        console.print(Text(safe(text), style=style), soft_wrap=True)


Line = tuple[str, str]
"""A line, and its style."""


def _lines(story: Story, *, full: bool) -> Iterator[Line]:
    yield from _head(story.run)
    if story.left_out:
        yield f"… {number_of(story.left_out, 'earlier checkpoint')}; --all shows everything", "dim"
    for moment in story.moments:
        yield from _moment_lines(moment, full=full)
    if story.calls:
        yield "", ""
        yield "calls on record", "bold"
        for call in story.calls:
            yield _call_line(call, full=full), ""
    yield from _foot(story.run)


def _head(run: RunInfo) -> Iterator[Line]:
    yield f"run {run.run_id} of {run.workflow_name}: {standing(run)}", "bold"
    if run.parent_run_id:
        yield f"a branch of run {run.parent_run_id}, from checkpoint {run.parent_checkpoint_id}", ""
    if run.stopped_by and run.state != "IDLE":
        yield f"{'what is wrong:' if run.state == 'DAMAGED' else 'stopped by'} {run.stopped_by}", "red"
    if holder := at_work_on(run):
        yield f"held by {holder}", ""


def _moment_lines(moment: Moment, *, full: bool) -> Iterator[Line]:
    yield "", ""
    came_in = {"message": "a message came in", "answers": "answers came in"}
    title = came_in.get(moment.kind, f"superstep {moment.superstep}")
    yield f"{title}  ({moment.at[:19].replace('T', ' ')}, {size(moment.bytes)})  {moment.checkpoint_id}", "cyan"
    if moment.problem:
        yield f"  can't be read: {moment.problem}", "red"
    for decided in moment.decisions:
        yield (
            f"  decided at {decided.answered_at[:19].replace('T', ' ')}: {_cut(text_of(decided.answer), full)}",
            "green",
        )
    if moment.plan:
        yield "  plan:", ""
        yield from ((f"    {line}", "") for line in moment.plan.splitlines())
    if moment.ledger:
        yield from _ledger_lines(moment.ledger, full=full)
    for said in moment.messages if not moment.decisions else ():
        yield f"  {said.source} → {said.target or 'all'}: {_cut(said.text, full)}", ""
    for output in moment.outputs:
        yield f"  {output.target} of {output.source}: {_cut(output.text, full)}", "bold"
    for asked in moment.asked:
        yield f"  {asked.source} asks ({asked.target}): {_cut(asked.text, full)}", "yellow"
    for who, counts in moment.used.items():
        if used := counted(counts):
            yield f"  {who} used {used}", "dim"


def _ledger_lines(ledger: Mapping[str, Any], *, full: bool) -> Iterator[Line]:
    yield "  ledger:", ""
    for key, word in _LEDGER.items():
        item = ledger.get(key)
        if isinstance(item, Mapping):
            answer = {"True": "yes", "False": "no"}.get(str(item.get("answer")), item.get("answer"))
            reason = f" ({_cut(item['reason'], full)})" if item.get("reason") else ""
            yield f"    {word}: {_cut(str(answer), full)}{reason}", ""


def _call_line(call: CallRecord, *, full: bool) -> str:
    end = "finished" if call.finished else "in doubt" if call.at_most_once else "not finished"
    return f"  {call.name} {_cut(call.request_preview, full)}: {end}{' (at most once)' if call.at_most_once else ''}"


def _foot(run: RunInfo) -> Iterator[Line]:
    if run.usage:
        yield "", ""
        yield f"used in all: {total(run.usage)}", "bold"
        for who, counts in run.usage.items():
            yield f"  {who}: {counted(counts)}", ""
    for question in questions_of_run(run):
        yield "", ""
        yield f"waits for an answer to {question.request_id}:", "yellow"
        yield from ((f"  {line}", "") for line in summary_lines(question))
    if run.undelivered_answers:
        yield "", ""
        yield f"{number_of(run.undelivered_answers, 'answer')} recorded, to be delivered by the next resume", "green"


def _cut(text: str, full: bool) -> str:
    if not full:
        return one_line(text, _SHORT)
    return safe(text).replace("\n", "\n    ")


def size(count: int) -> str:
    """Bytes for people."""
    for unit in ("B", "KB", "MB"):
        if count < 1024 or unit == "MB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count = count / 1024  # type: ignore[assignment]
    raise AssertionError("unreachable")
