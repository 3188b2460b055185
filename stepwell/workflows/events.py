"""What a run tells of itself."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from stepwell.checkpointing.journal import Usage, add_usage


class WorkflowRunState(StrEnum):
    """How a run stands. The last one of a run is computed from what is really pending."""

    STARTED = "STARTED"
    IN_PROGRESS = "IN_PROGRESS"
    IN_PROGRESS_PENDING_REQUESTS = "IN_PROGRESS_PENDING_REQUESTS"
    IDLE = "IDLE"
    IDLE_WITH_PENDING_REQUESTS = "IDLE_WITH_PENDING_REQUESTS"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    """Interrupted, and resumable."""


@dataclass(frozen=True, slots=True)
class WorkflowErrorDetails:
    """An exception, told in a way that can be logged and sent elsewhere."""

    error_type: str
    message: str
    traceback: str | None = None
    executor_id: str | None = None

    @classmethod
    def of(cls, error: BaseException, executor_id: str | None = None) -> WorkflowErrorDetails:
        text = "".join(traceback.format_exception(error))
        return cls(type(error).__name__, str(error), text, executor_id)


class WorkflowEvent:
    """Something that happened in a run.

    `output`, `intermediate`, `request_info` and `checkpoint` are announced once the checkpoint of their superstep is
    durable; `executor_*`, `call_*` and `warning` are live. What does not apply to a type of event is None.
    """

    # A plain class with slots, and not a frozen dataclass: several are made in every superstep.
    __slots__ = (
        "_event_id",
        "data",
        "details",
        "executor_id",
        "iteration",
        "ordinal",
        "provisional",
        "request_id",
        "request_type",
        "response_type",
        "run_id",
        "source_executor_id",
        "state",
        "type",
    )

    def __init__(
        self,
        type: str,
        data: Any = None,
        # Positional too, because names cost as much as all the rest of making one.
        executor_id: str | None = None,
        iteration: int | None = None,
        run_id: str | None = None,
        ordinal: int = 0,
        *,
        state: WorkflowRunState | None = None,
        details: Any = None,
        provisional: bool = False,
        request_id: str | None = None,
        source_executor_id: str | None = None,
        request_type: Any = None,
        response_type: Any = None,
        event_id: str | None = None,
    ) -> None:
        self.type = type
        self.data = data
        self.executor_id = executor_id
        self.iteration = iteration
        self.state = state
        self.details = details
        self.run_id = run_id
        self.ordinal = ordinal
        self.provisional = provisional
        # A string on `request_info` events and None on others. Programs look at `type` before they use it as the key of
        # their answer, which a type checker can't follow.
        self.request_id: Any = request_id
        self.source_executor_id = source_executor_id
        self.request_type = request_type
        self.response_type = response_type
        self._event_id = event_id

    @property
    def event_id(self) -> str:
        """The same when a replay announces it again, so that receivers can drop what they have seen."""
        if self._event_id is None:
            self._event_id = f"{self.run_id}:{self.iteration}:{self.executor_id or ''}:{self.type}:{self.ordinal}"
        return self._event_id

    def keep_id(self, event_id: str) -> None:
        """Give it an id that stays when it is announced elsewhere; one that it has stays."""
        self._event_id = self._event_id or event_id

    def __repr__(self) -> str:
        shown = {
            name: getattr(self, name)
            for name in ("executor_id", "iteration", "state", "data", "details", "request_id")
            if getattr(self, name) is not None
        }
        return f"WorkflowEvent({self.type!r}, {', '.join(f'{k}={v!r}' for k, v in shown.items())})"


class WorkflowRunResult(list[WorkflowEvent]):
    """The events of one `run`, and what people ask of them."""

    def __init__(
        self, events: list[WorkflowEvent], *, run_id: str, state: WorkflowRunState, outputs: list[Any], usage: Usage
    ) -> None:
        super().__init__(events)
        self.run_id = run_id
        self.usage = usage
        self._state = state
        self._outputs = outputs

    def get_outputs(self) -> list[Any]:
        """What was yielded as output in this turn, streamed updates not included."""
        return list(self._outputs)

    def get_intermediate_outputs(self) -> list[Any]:
        return [event.data for event in self._of("intermediate")]

    def get_request_info_events(self) -> list[WorkflowEvent]:
        """The questions that wait for an answer."""
        return list(self._of("request_info"))

    def get_final_state(self) -> WorkflowRunState:
        return self._state

    def status_timeline(self) -> list[WorkflowEvent]:
        return list(self._of("status"))

    def total_usage(self) -> Mapping[str, float]:
        """Usage of all agents together."""
        total = add_usage({}, ({"all": counts} for counts in self.usage.values()))
        return total.get("all", {})

    def _of(self, event_type: str) -> Iterator[WorkflowEvent]:
        return (event for event in self if event.type == event_type and not event.provisional)
