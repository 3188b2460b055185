"""MagenticBuilder: a manager and its participants into a workflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stepwell.agents.agent import SupportsAgentRun
from stepwell.agents.agent_executor import AgentExecutor
from stepwell.checkpointing.storage.protocol import CheckpointStorage
from stepwell.errors import WorkflowValidationError, listed
from stepwell.orchestrations.decision import Limits
from stepwell.orchestrations.manager import MagenticManagerBase, StandardMagenticManager
from stepwell.orchestrations.orchestrator import ORCHESTRATOR_ID, MagenticOrchestrator, ReviewPolicy
from stepwell.orchestrations.participants import AgentParticipant, GroupChatRequestMessage
from stepwell.workflows.builder import Designation, WorkflowBuilder
from stepwell.workflows.executor import Executor
from stepwell.workflows.typing import is_count
from stepwell.workflows.workflow import Workflow

Participant = SupportsAgentRun | Executor | Callable[[], Any]
"""An agent, an executor that speaks the group chat messages, or a function without arguments that makes one of them."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A participant's place in the team."""

    name: str
    description: str
    node: Any
    """What the workflow builder gets: a factory, or the executor itself."""
    is_agent: bool


class MagenticBuilder:
    """A team: a manager plans, participants work, a person may look at the plan.

    Agents are wrapped and factories called for every run, so one workflow serves any number of runs at once. With an
    executor or a `manager` *instance* it serves one run at a time.
    """

    def __init__(
        self,
        *,
        participants: Sequence[Participant],
        manager_agent: SupportsAgentRun | None = None,
        manager: MagenticManagerBase | Callable[[], MagenticManagerBase] | None = None,
        manager_agent_factory: Callable[[], SupportsAgentRun] | None = None,
        manager_factory: Callable[[], MagenticManagerBase] | None = None,
        name: str | None = None,
        description: str | None = None,
        enable_plan_review: bool = False,
        review_replans: bool = True,
        review_stalls: bool = False,
        checkpoint_storage: CheckpointStorage | None = None,
        max_round_count: int | None = None,
        max_stall_count: int | None = None,
        max_reset_count: int | None = None,
        max_plan_reviews: int | None = None,
        max_iterations: int | None = None,
        task_ledger_facts_prompt: str | None = None,
        task_ledger_plan_prompt: str | None = None,
        task_ledger_full_prompt: str | None = None,
        task_ledger_facts_update_prompt: str | None = None,
        task_ledger_plan_update_prompt: str | None = None,
        task_ledger_plan_revision_prompt: str | None = None,
        progress_ledger_prompt: str | None = None,
        final_answer_prompt: str | None = None,
        progress_ledger_retry_count: int | None = None,
        output_from: Designation = None,
        intermediate_output_from: Designation = None,
    ) -> None:
        self._places = _placed(participants)
        self._name = name
        self._description = description
        self._review = ReviewPolicy(plans=enable_plan_review, replans=review_replans, stalls=review_stalls)
        self._storage = checkpoint_storage
        self._max_iterations = max_iterations
        self._output_from = output_from
        self._intermediate_from = intermediate_output_from
        standard = {
            "task_ledger_facts_prompt": task_ledger_facts_prompt,
            "task_ledger_plan_prompt": task_ledger_plan_prompt,
            "task_ledger_full_prompt": task_ledger_full_prompt,
            "task_ledger_facts_update_prompt": task_ledger_facts_update_prompt,
            "task_ledger_plan_update_prompt": task_ledger_plan_update_prompt,
            "task_ledger_plan_revision_prompt": task_ledger_plan_revision_prompt,
            "progress_ledger_prompt": progress_ledger_prompt,
            "final_answer_prompt": final_answer_prompt,
            "progress_ledger_retry_count": progress_ledger_retry_count,
        }
        given = {
            "manager_agent": manager_agent,
            "manager_agent_factory": manager_agent_factory,
            "manager": manager,
            "manager_factory": manager_factory,
        }
        self._manager = _manager(_the_only(given), {k: v for k, v in standard.items() if v is not None})
        # A manager made by hand has limits of its own; those given here count more.
        own = self._manager if isinstance(self._manager, MagenticManagerBase) else self._manager()
        self._limits = _limits(
            max_stall_count=own.max_stall_count if max_stall_count is None else max_stall_count,
            max_round_count=own.max_round_count if max_round_count is None else max_round_count,
            max_reset_count=own.max_reset_count if max_reset_count is None else max_reset_count,
            max_plan_reviews=max_plan_reviews,
        )

    def with_plan_review(self, enable: bool = True) -> MagenticBuilder:
        """Show each plan to a person before it is carried out."""
        review = self._review
        self._review = ReviewPolicy(plans=enable, replans=review.replans, stalls=review.stalls)
        return self

    def with_checkpointing(self, checkpoint_storage: CheckpointStorage) -> MagenticBuilder:
        """Save every superstep of every run to `checkpoint_storage`."""
        self._storage = checkpoint_storage
        return self

    def build(self) -> Workflow:
        """Check the team and make the workflow."""
        orchestrator = self._orchestrator()
        builder = WorkflowBuilder(
            start_executor=orchestrator,
            name=self._name,
            description=self._description,
            max_iterations=self._max_iterations,
            checkpoint_storage=self._storage,
            output_from=[ORCHESTRATOR_ID] if self._output_from is None else self._named(self._output_from),
            intermediate_output_from=self._intermediate(),
        )
        for place in self._places:
            builder.add_edge(orchestrator, place.node).add_edge(place.node, orchestrator)
        return builder.build()

    def _orchestrator(self) -> MagenticOrchestrator | Callable[[], MagenticOrchestrator]:
        manager = self._manager

        def make() -> MagenticOrchestrator:
            return MagenticOrchestrator(
                manager if isinstance(manager, MagenticManagerBase) else manager(),
                {place.name: place.description for place in self._places},
                limits=self._limits,
                review=self._review,
                told_at_once=[place.name for place in self._places if not place.is_agent],
            )

        return make() if isinstance(manager, MagenticManagerBase) else make

    def _intermediate(self) -> Designation:
        if self._intermediate_from is not None:
            return self._named(self._intermediate_from)
        return "all_other" if self._output_from is None else None

    def _named(self, designation: Designation) -> Designation:
        """Participants may be designated by the agents that were given."""
        if designation is None or isinstance(designation, str):
            return designation
        return [thing if isinstance(thing, str) else _name_of(thing) for thing in designation]


def _limits(
    *, max_stall_count: int, max_round_count: int | None, max_reset_count: int | None, max_plan_reviews: int | None
) -> Limits:
    least = {"max_stall_count": 0, "max_round_count": 1, "max_reset_count": 0, "max_plan_reviews": 1}
    given = {
        "max_stall_count": max_stall_count,
        "max_round_count": max_round_count,
        "max_reset_count": max_reset_count,
        "max_plan_reviews": max_plan_reviews,
    }
    for label, value in given.items():
        if value is not None and not is_count(value, least[label]):
            raise WorkflowValidationError(f"{label} must be at least {least[label]}, not {value!r}")
    return Limits(max_stall_count, max_round_count, max_reset_count, max_plan_reviews)


def _the_only(given: dict[str, Any]) -> tuple[str, Any]:
    """Which of the ways to name a manager was taken, and what was given."""
    taken = [(label, value) for label, value in given.items() if value is not None]
    if len(taken) != 1:
        problem = f"has two managers, {taken[0][0]} and {taken[1][0]}" if taken else "has no manager"
        raise WorkflowValidationError(f"the team {problem}; give either manager_agent=… or manager=…")
    return taken[0]


def _manager(
    given: tuple[str, Any], options: dict[str, Any]
) -> MagenticManagerBase | Callable[[], MagenticManagerBase]:
    """The manager, or how each run gets one of its own."""
    label, value = given
    if label == "manager_agent":
        if not hasattr(value, "run"):
            raise WorkflowValidationError(f"manager_agent must be an agent, not {value!r}")
        return lambda: StandardMagenticManager(value, **options)
    if not isinstance(value, MagenticManagerBase) and not callable(value):
        raise WorkflowValidationError(f"{label} must be a MagenticManagerBase or a factory, not {value!r}")
    if label == "manager_agent_factory":
        return lambda: StandardMagenticManager(value(), **options)
    if options:
        raise WorkflowValidationError(
            f"{listed(sorted(options))} can't be given with {label}=…; pass them to that manager instead"
        )
    made: MagenticManagerBase | Callable[[], MagenticManagerBase] = value
    return made


# --- participants -----------------------------------------------------------------------------------------------------


def _placed(participants: Sequence[Participant]) -> tuple[_Place, ...]:
    if not isinstance(participants, list | tuple) or not participants:
        raise WorkflowValidationError("participants must be a list of one agent or executor, or more")
    places = tuple(_place(participant) for participant in participants)
    names = [place.name for place in places]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise WorkflowValidationError(f"{listed(twice)} is the name of several participants; give each its own")
    if ORCHESTRATOR_ID in names:
        raise WorkflowValidationError(f"{ORCHESTRATOR_ID!r} is the orchestrator's name; call the participant otherwise")
    return places


def _place(thing: Any) -> _Place:
    is_factory = not isinstance(thing, Executor) and not hasattr(thing, "run") and callable(thing)
    sample = thing() if is_factory else thing
    name = _name_of(sample)
    description = getattr(sample, "description", None) or ""
    if isinstance(sample, Executor) and not isinstance(sample, AgentExecutor):
        _check_executor(sample)
        return _Place(name, description, thing, is_agent=False)
    if is_factory:
        return _Place(name, description, lambda: _wrapped(thing(), name), is_agent=True)
    return _Place(name, description, lambda: _wrapped(thing, name), is_agent=True)


def _wrapped(agent: Any, name: str) -> AgentParticipant:
    return AgentParticipant(agent.agent if isinstance(agent, AgentExecutor) else agent, id=name)


def _name_of(thing: Any) -> str:
    if isinstance(thing, Executor):
        return thing.id
    if not hasattr(thing, "run") or not hasattr(thing, "create_session"):
        raise WorkflowValidationError(f"{thing!r} can't be a participant; pass an agent or an executor")
    if not getattr(thing, "name", None):
        raise WorkflowValidationError(f"{thing!r} has no name; the manager calls participants by name, so give it one")
    return str(thing.name)


def _check_executor(executor: Executor) -> None:
    if not executor.can_handle(GroupChatRequestMessage()):
        raise WorkflowValidationError(
            f"executor {executor.id!r} can't be asked to speak; give it a @handler for GroupChatRequestMessage that "
            "sends a GroupChatResponseMessage"
        )
