"""WorkflowBuilder: executors and edges into a workflow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

from stepwell.checkpointing.storage.protocol import CheckpointStorage
from stepwell.errors import WorkflowValidationError, listed
from stepwell.workflows.edges import (
    Case,
    Condition,
    Default,
    Edge,
    EdgeGroup,
    FanIn,
    FanOut,
    MultiSelection,
    Selection,
    SwitchArm,
    SwitchCase,
)
from stepwell.workflows.executor import Executor
from stepwell.workflows.graph import Graph, Slot, signature_of
from stepwell.workflows.typing import is_count, is_text
from stepwell.workflows.validation import validate
from stepwell.workflows.workflow import Workflow

Designation = Sequence[Any] | Literal["all", "all_other"] | None
"""Whose yields: executors or their ids, `"all"`, or `"all_other"` for those the other list leaves."""

DEFAULT_MAX_ITERATIONS = 100


class WorkflowBuilder:
    """Describes a workflow step by step; `build` checks it and makes it.

    Wherever an executor is expected you may pass an `Executor`, an agent, or a function without arguments that returns
    an executor. Agents are wrapped and such functions called for every run, so a workflow made of them runs any number
    of times at once. An executor *instance* is shared by all runs and by all workflows this builder builds: one run at
    a time, and its state carries over from run to run.
    """

    def __init__(
        self,
        *,
        start_executor: Any = None,
        name: str | None = None,
        description: str | None = None,
        max_iterations: int | None = DEFAULT_MAX_ITERATIONS,
        checkpoint_storage: CheckpointStorage | None = None,
        output_from: Designation = None,
        intermediate_output_from: Designation = None,
    ) -> None:
        if name is not None and not is_text(name):
            raise WorkflowValidationError(f"name must be a text that is not empty, not {name!r}")
        if max_iterations is not None and not is_count(max_iterations, 1):
            raise WorkflowValidationError(f"max_iterations must be at least 1 or None, not {max_iterations!r}")
        self._name = name
        self._description = description
        self._max_iterations = max_iterations
        self._storage = checkpoint_storage
        self._output_from = output_from
        self._intermediate_from = intermediate_output_from
        self._slots: dict[str, Slot] = {}
        self._slot_of: dict[int, tuple[Any, str]] = {}
        self._groups: list[EdgeGroup] = []
        self._start: str | None = None
        if start_executor is not None:
            self.set_start_executor(start_executor)

    def set_start_executor(self, executor: Any) -> WorkflowBuilder:
        """Say where messages from outside arrive."""
        self._start = self._place(executor)
        return self

    def with_checkpointing(self, checkpoint_storage: CheckpointStorage) -> WorkflowBuilder:
        """Save every superstep of every run to `checkpoint_storage`."""
        self._storage = checkpoint_storage
        return self

    def add_edge(self, source: Any, target: Any, condition: Condition | None = None) -> WorkflowBuilder:
        """Send what `source` sends to `target`, if `condition(message)` holds."""
        self._groups.append(Edge(self._place(source), self._place(target), condition))
        return self

    def add_fan_out_edges(self, source: Any, targets: Sequence[Any]) -> WorkflowBuilder:
        """Send what `source` sends to all of `targets` at once."""
        self._groups.append(FanOut(self._place(source), self._places(targets, "add_fan_out_edges")))
        return self

    def add_fan_in_edges(self, sources: Sequence[Any], target: Any) -> WorkflowBuilder:
        """Collect one message or more from each of `sources`, then send `target` the list of them."""
        self._groups.append(FanIn(self._places(sources, "add_fan_in_edges"), self._place(target)))
        return self

    def add_switch_case_edge_group(self, source: Any, cases: Sequence[SwitchArm[Any]]) -> WorkflowBuilder:
        """Send what `source` sends to the first target whose case holds, else to the default, which comes last."""
        arms = [arm for arm in cases[:-1] if isinstance(arm, Case)]
        last = cases[-1] if cases else None
        if not isinstance(last, Default) or not arms or len(arms) != len(cases) - 1:
            raise WorkflowValidationError(
                "add_switch_case_edge_group needs one Case or more and then exactly one Default: "
                "[Case(condition=…, target=…), Default(target=…)]"
            )
        placed = tuple((arm.condition, self._place(arm.target)) for arm in arms)
        self._groups.append(SwitchCase(self._place(source), placed, self._place(last.target)))
        return self

    def add_multi_selection_edge_group(
        self, source: Any, targets: Sequence[Any], selection_func: Selection
    ) -> WorkflowBuilder:
        """Send what `source` sends to those of `targets` whose ids `selection_func(message, target_ids)` returns."""
        if not callable(selection_func):
            raise WorkflowValidationError(f"selection_func must be callable, not {selection_func!r}")
        placed = self._places(targets, "add_multi_selection_edge_group")
        self._groups.append(MultiSelection(self._place(source), placed, selection_func))
        return self

    def add_chain(self, executors: Sequence[Any]) -> WorkflowBuilder:
        """Connect executors one after the other."""
        placed = self._places(executors, "add_chain")
        if len(placed) < 2:
            raise WorkflowValidationError(f"add_chain needs two executors or more, not {len(placed)}")
        self._groups.extend(Edge(one, other) for one, other in pairwise(placed))
        return self

    def build(self) -> Workflow:
        """Check the graph and make the workflow."""
        if self._start is None:
            raise WorkflowValidationError(
                "the workflow has no start executor; pass start_executor=… or call set_start_executor(…)"
            )
        output_from, intermediate_from = self._designations()
        graph = Graph(
            name=self._name or "",
            slots=dict(self._slots),
            groups=tuple(self._groups),
            start=self._start,
            max_iterations=self._max_iterations,
            storage=self._storage,
            description=self._description,
            output_from=output_from,
            intermediate_from=intermediate_from,
        )
        validate(graph)
        if not self._name:
            # Derived from the graph, so that a rebuilt workflow in a new process finds its own checkpoints.
            object.__setattr__(graph, "name", f"workflow-{signature_of(graph.shape, graph.start)[:16]}")
        _ = graph.registry  # The codec knows the graph's types from now on, also for reading without a run.
        _ = graph.signature, graph.order, graph.fan_ins, graph.unconditional  # So that no run has to be the first.
        return Workflow(graph)

    # --- placing executors -------------------------------------------------------------------------------------------

    def _places(self, things: Sequence[Any], where: str) -> tuple[str, ...]:
        if isinstance(things, str) or not isinstance(things, Sequence):
            raise WorkflowValidationError(f"{where} takes a list of executors, not {type(things).__name__}")
        return tuple(self._place(thing) for thing in things)

    def _place(self, thing: Any) -> str:
        known = self._slot_of.get(id(thing))
        if known is not None:
            return known[1]
        slot = _slot(thing)
        other = self._slots.get(slot.id)
        if other is not None:
            raise WorkflowValidationError(
                f"two executors have the id {slot.id!r} ({other.prototype!r} and {slot.prototype!r}); "
                "give each an id of its own, and pass the same object for the same executor"
            )
        self._slots[slot.id] = slot
        self._slot_of[id(thing)] = (thing, slot.id)
        return slot.id

    def _designations(self) -> tuple[frozenset[str] | None, frozenset[str]]:
        names = frozenset(self._slots)
        if self._output_from == "all_other" and self._intermediate_from == "all_other":
            raise WorkflowValidationError('output_from and intermediate_output_from can\'t both be "all_other"')
        outputs = self._designated(self._output_from, "output_from")
        intermediate = self._designated(self._intermediate_from, "intermediate_output_from") or frozenset()
        if self._output_from == "all_other":
            outputs = names - intermediate
        if self._intermediate_from == "all_other":
            intermediate = names - (outputs or frozenset())
        return outputs, intermediate

    def _designated(self, given: Designation, label: str) -> frozenset[str] | None:
        if given is None or given == "all_other":
            return None
        if given == "all":
            return frozenset(self._slots)
        if isinstance(given, str):
            raise WorkflowValidationError(f'{label} takes a list of executors, "all" or "all_other", not {given!r}')
        return frozenset(thing if isinstance(thing, str) else self._named(thing, label) for thing in given)

    def _named(self, thing: Any, label: str) -> str:
        known = self._slot_of.get(id(thing))
        if known is None:
            raise WorkflowValidationError(
                f"{label} names {thing!r}, which is not in the workflow; it has {listed(self._slots)}"
            )
        return known[1]


def _slot(thing: Any) -> Slot:
    """How runs get this executor."""
    if isinstance(thing, Executor):
        return Slot(_id_of(thing), thing.for_run, thing, exclusive=not thing.shareable)
    if hasattr(thing, "run") and hasattr(thing, "create_session"):
        from stepwell.agents.agent_executor import AgentExecutor

        make: Callable[[], Executor] = lambda: AgentExecutor(thing)  # noqa: E731
    elif isinstance(thing, type) and issubclass(thing, Executor):
        raise WorkflowValidationError(
            f"{thing.__name__} is a class; pass an instance, or a factory such as `lambda: {thing.__name__}('id')`"
        )
    elif callable(thing):
        make = thing
    else:
        hint = "; put it into a WorkflowExecutor(workflow, id=…)" if isinstance(thing, Workflow) else ""
        raise WorkflowValidationError(f"{thing!r} is neither an executor nor an agent nor a factory of executors{hint}")
    prototype: Any = make()
    if inspect.iscoroutine(prototype):
        prototype.close()
    if not isinstance(prototype, Executor):
        raise WorkflowValidationError(
            f"the factory {getattr(thing, '__name__', thing)!r} returned {type(prototype).__name__}, not an executor; "
            "to use a function as an executor, decorate it with @executor"
        )
    return Slot(_id_of(prototype), make, prototype, exclusive=False)


def _id_of(executor: Executor) -> str:
    executor_id = vars(executor).get("id") or getattr(executor, "id", None)
    if not executor_id:
        raise WorkflowValidationError(
            f"{type(executor).__name__} has no id; call super().__init__(id=…) in its __init__"
        )
    return str(executor_id)
