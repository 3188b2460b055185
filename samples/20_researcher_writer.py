"""A researcher, a writer and their manager: `make demo`.

The manager plans, you approve, the researcher reads the notes in `samples/notes/` with real tools, the writer writes.
Every call is recorded: kill this program at any instant and start it again, and it goes on where it was.

    python samples/20_researcher_writer.py           # asks for your approval
    python samples/20_researcher_writer.py --yes     # approves by itself; so does YES=1

The models are scripted and nothing leaves this machine, unless OPENAI_API_KEY or OPENAI_BASE_URL is set. Runs are kept
in .stepwell/demo.db, or in the file that STEPWELL_STORE names.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import brief_script

from stepwell import (
    Agent,
    AgentResponseUpdate,
    ChatClient,
    OpenAIChatClient,
    SQLiteCheckpointStorage,
    StepwellError,
    Workflow,
    WorkflowEvent,
    tool,
)
from stepwell.orchestrations import (
    GroupChatRequestSentEvent,
    MagenticBuilder,
    MagenticPlanReviewRequest,
    MagenticPlanReviewResponse,
)
from stepwell.testing import Delayed, ScriptedChatClient

NOTES = Path(__file__).with_name("notes")
TASK = "Write a one-page brief on stepwells for a city council that thinks about restoring one. Use the notes."
NO_ANSWER = 3
"""The exit status when a plan waits and nobody is there to answer."""


# --- the team ---------------------------------------------------------------------------------------------------------


def titles() -> list[str]:
    return [path.stem for path in sorted(NOTES.glob("*.md"))]


@tool
def search_notes(query: str) -> str:
    """Find the notes that mention a word. Returns their titles as a JSON list."""
    found = [title for title in titles() if query.lower() in (NOTES / f"{title}.md").read_text("utf-8").lower()]
    return json.dumps(found or titles())


@tool
def read_note(title: str) -> str:
    """Read one note, by a title that search_notes gave."""
    if title not in titles():
        return f"There is no note {title!r}. The titles are: {', '.join(titles())}"
    return (NOTES / f"{title}.md").read_text("utf-8")


def uses_a_real_model() -> bool:
    return bool(os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL"))


def scripted(script: Callable[[Any], Any]) -> ScriptedChatClient:
    """A scripted model that takes its time when somebody is watching, so that there is a chance to kill it."""
    seconds = float(os.environ.get("DEMO_DELAY", "0.4" if sys.stdout.isatty() else "0"))
    return ScriptedChatClient(lambda messages: Delayed(seconds, script(messages)))


def models() -> dict[str, ChatClient]:
    names = ("manager", "researcher", "writer")
    if not uses_a_real_model():
        return {name: scripted(getattr(brief_script, name)) for name in names}
    # Servers on this machine take any key and any model name, but want to see one.
    os.environ.setdefault("OPENAI_API_KEY", "none-needed")
    client = OpenAIChatClient(model=os.environ.get("OPENAI_MODEL", "gpt-5-mini"), timeout=600)
    return dict.fromkeys(names, client)


def build(storage: SQLiteCheckpointStorage) -> Workflow:
    model = models()
    researcher = Agent(
        model["researcher"],
        "You are a researcher. Look things up in the notes with your tools before you answer. Report only what they "
        "say, as a list of facts with figures.",
        name="researcher",
        description="Searches and reads the notes; knows nothing that is not in them.",
        tools=[search_notes, read_note],
        max_tool_rounds=6,
        default_options={"max_tokens": 1500},
    )
    writer = Agent(
        model["writer"],
        "You are a writer. Write plainly and briefly, from what the researcher found.",
        name="writer",
        description="Writes texts from facts that others have found.",
        default_options={"max_tokens": 1500},  # small models may not find an end
    )
    manager = Agent(
        model["manager"], "You manage a small team. Be brief.", name="manager", default_options={"max_tokens": 1000}
    )
    return MagenticBuilder(
        participants=[researcher, writer],
        manager_agent=manager,
        name="researcher-writer",
        enable_plan_review=True,
        review_replans=False,
        checkpoint_storage=storage,
        max_round_count=8,
        max_reset_count=2,
    ).build()


# --- what is shown ----------------------------------------------------------------------------------------------------


class Screen:
    """Tells of a run as it goes: who is asked, who speaks, what is saved, what was replayed."""

    def __init__(self) -> None:
        self.replayed = 0
        self.answer = ""
        self.requests: list[MagenticPlanReviewRequest] = []
        self._speaker: str | None = None

    def show(self, event: WorkflowEvent) -> None:
        match event.type, event.data:
            case "group_chat", GroupChatRequestSentEvent() as asked:
                self._line(f"\nmanager to {asked.participant_name}: {asked.instruction}")
            case "intermediate", AgentResponseUpdate() as update:
                self._spoken(str(event.executor_id), update)
            case "magentic_orchestrator", data if data.event_type.name in ("STALLED", "REPLANNED", "LIMIT_REACHED"):
                self._line(f"[{data.event_type.value}] {data.content.text.strip()}")
            case "checkpoint", checkpoint:
                self._line(f"  (saved: checkpoint {checkpoint.sequence} of run {event.run_id})")
            case "call_replayed", _:
                self.replayed += 1
            case "request_info", MagenticPlanReviewRequest() as request:
                self.requests.append(request)
            case "output", response:
                self.answer = response.text

    def _spoken(self, who: str, update: AgentResponseUpdate) -> None:
        for content in update.contents:
            if content.type == "function_call":
                self._line(f"  {who} uses {content.name}({content.arguments})")
        if update.text:
            if self._speaker != who:
                self._line(f"{who}:")
                self._speaker = who
            print(update.text, end="", flush=True)

    def _line(self, text: str) -> None:
        if self._speaker is not None:
            print()
        self._speaker = None
        print(text, flush=True)


# --- the person -------------------------------------------------------------------------------------------------------


def approves_by_itself() -> bool:
    return "--yes" in sys.argv[1:] or os.environ.get("YES", "") not in ("", "0")


async def decide(request: MagenticPlanReviewRequest) -> MagenticPlanReviewResponse | None:
    """The person's word on the plan; None if there is no person."""
    print(f"\nThe plan:\n\n{request.plan.text}\n")
    if approves_by_itself():
        print("Approved, because you said yes beforehand.")
        return request.approve()
    if not sys.stdin.isatty():
        return None
    while True:
        try:
            word = await asyncio.to_thread(input, "Approve? [y]es, [n]o, or say what should be different: ")
        except EOFError:
            return None
        match word.strip():
            case "y" | "yes" | "Y":
                return request.approve()
            case "n" | "no" | "N":
                return request.reject("you said no")
            case "":
                continue
            case wish:
                return request.revise(wish)


# --- the run ----------------------------------------------------------------------------------------------------------


async def choose_run(storage: SQLiteCheckpointStorage) -> tuple[str, bool]:
    """The run that was cut off or waits, or a new one. Scripted runs and real ones are not mixed."""
    prefix = "model" if uses_a_real_model() else "demo"
    runs = [run for run in await storage.list_runs(workflow_name="researcher-writer") if run.run_id.startswith(prefix)]
    for run in runs:
        if run.state != "IDLE":
            return run.run_id, True
    return f"{prefix}-{len(runs) + 1}", False


async def main() -> int:
    store = Path(os.environ.get("STEPWELL_STORE") or ".stepwell/demo.db")
    store.parent.mkdir(parents=True, exist_ok=True)
    real = f"a real one, at {os.environ.get('OPENAI_BASE_URL') or 'OpenAI'}"
    print(f"model: {real if uses_a_real_model() else 'scripted (no key, no network)'}; store: {store}")
    async with SQLiteCheckpointStorage(store) as storage:
        workflow = build(storage)
        run_id, goes_on = await choose_run(storage)
        print(f"{'going on with' if goes_on else 'starting'} run {run_id}: {TASK}")
        return await work(workflow, run_id, goes_on=goes_on)


async def work(workflow: Workflow, run_id: str, *, goes_on: bool) -> int:
    screen = Screen()
    stream = workflow.run(TASK, run_id=run_id, stream=True)
    while True:
        async for event in stream:
            screen.show(event)
        if not screen.requests:
            break
        request = screen.requests.pop()
        answer = await decide(request)
        if answer is None:
            print("It waits for your approval, and there is no terminal to ask at. To answer:")
            print(f"  make demo YES=1      (or: python {sys.argv[0]} --yes)")
            return NO_ANSWER
        stream = workflow.run(run_id=run_id, responses={request.request_id: answer}, stream=True)
    result = await stream.get_final_response()
    print(f"\n{'-' * 80}\n{screen.answer}\n{'-' * 80}")
    for name, used in result.usage.items():
        print(f"{name}: {used.get('calls', 0):.0f} model calls, {used.get('total_tokens', 0):.0f} tokens")
    if goes_on:
        print(f"{screen.replayed} call(s) were replayed from the record; none of them was made again.")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except StepwellError as error:
        print(f"\n{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("\nInterrupted. Run it again and it goes on.")
        sys.exit(130)
