"""A run that a command works on: started or resumed, watched, reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from stepwell.cli import asking, consoles, results
from stepwell.cli.command_lines import command_line
from stepwell.cli.following import Answering, Outcome, watch
from stepwell.cli.json_texts import parsed_json
from stepwell.cli.live_recall import recall
from stepwell.cli.remedies import Advice, Unusable
from stepwell.cli.sessions import Session
from stepwell.cli.viewing import view_for
from stepwell.errors import WorkflowCheckpointException
from stepwell.orchestrations.orchestrator import MagenticOrchestrator
from stepwell.workflows.stream import ResponseStream
from stepwell.workflows.typing import fits, type_name
from stepwell.workflows.workflow import Workflow


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one workflow in one store."""

    session: Session
    workflow: Workflow
    run_id: str
    target: str
    named_store: str | None
    """The store as it was named on the command line, so that advice names it too."""

    def watch(self, start: Callable[[], ResponseStream] | Outcome, *, answering: Answering, as_json: bool) -> Outcome:
        """Follow the run to where it stops, in front of whoever is there."""
        console = consoles.err() if as_json else consoles.watching()
        is_asked = isinstance(answering, asking.Person) and _has_its_plans_reviewed(self.workflow)
        view = view_for(console, self.workflow, first_plan_is_asked_about=is_asked)
        storage = self.session.storage
        self.session.run(recall(view.state, storage, self.run_id))
        return watch(self.session.loop, self.workflow, start, view=view, answering=answering, storage=storage)

    def report(self, outcome: Outcome, *, as_json: bool) -> int:
        if as_json:
            results.print_json(results.outcome_json(outcome))
            return results.exit_code(outcome)
        answer_with = command_line("review", outcome.run_id, store=self.named_store)
        return results.print_outcome(outcome, answer_with=answer_with, resume_with=self._resume_with)

    @contextmanager
    def advising(self, advice: Advice) -> Iterator[None]:
        """If it is cut short, say how to go on, provided that there is something to go on with."""
        try:
            yield
        except BaseException:
            if self._is_recorded():
                advice.command, advice.run_id = self._resume_with, self.run_id
            raise

    @property
    def _resume_with(self) -> str:
        return command_line("resume", self.target, self.run_id, store=self.named_store)

    def _is_recorded(self) -> bool:
        try:
            return self.session.run(self.session.storage.newest_checkpoint_id(self.run_id)) is not None
        except WorkflowCheckpointException:
            return False  # The store is what went wrong, and the error says so.


def _has_its_plans_reviewed(workflow: Workflow) -> bool:
    orchestrators = (each for each in workflow.get_executors_list() if isinstance(each, MagenticOrchestrator))
    return any(orchestrator.review.plans for orchestrator in orchestrators)


def answering_at_hand(*, yes: bool) -> Answering:
    """Who answers what the run asks."""
    if yes:
        return asking.approving
    return asking.Person(consoles.watching()) if consoles.somebody_is_there() else asking.nobody


def new_run_id() -> str:
    """A name that sorts by time and can be typed."""
    return f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{uuid4().hex[:4]}"


def message_for(workflow: Workflow, text: str, *, is_json: bool) -> Any:
    """The message as the workflow takes it: a text, or what the JSON says in the type that is expected."""
    hints = workflow.input_types
    if not is_json:
        if hints and not any(fits(text, hint) for hint in hints):
            names = " or ".join(type_name(hint) for hint in hints)
            raise Unusable(f"this workflow takes {names}, not a text; give MESSAGE as JSON with --json-message")
        return text
    try:
        data = parsed_json(text)
    except ValueError as error:
        raise Unusable(f"MESSAGE is no JSON: {error}") from error
    return _typed(data, hints)


def _typed(data: Any, hints: tuple[Any, ...]) -> Any:
    if not hints or any(fits(data, hint) for hint in hints):
        return data
    from pydantic import TypeAdapter, ValidationError

    problems = []
    for hint in hints:
        try:
            return TypeAdapter(hint).validate_python(data)
        except ValidationError as error:
            first = error.errors()[0]
            problems.append(f"{type_name(hint)}: {'.'.join(map(str, first['loc'])) or 'value'}: {first['msg']}")
    raise Unusable(f"MESSAGE is not what this workflow takes ({'; '.join(problems)})")
