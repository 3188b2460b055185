"""What a handler can do besides computing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from stepwell.checkpointing.callables import call_name
from stepwell.checkpointing.checkpoint import RESERVED_STATE_KEYS, PendingRequest
from stepwell.checkpointing.journal import (
    CallTicket,
    active_scope,
    call_function,
    enclosing_idempotency_key,
    escaped,
    idempotency_key,
)
from stepwell.errors import DuplicateRequest, InvalidRunArguments
from stepwell.workflows.deadlines import check_default, moment, now
from stepwell.workflows.events import WorkflowEvent
from stepwell.workflows.message import isolated
from stepwell.workflows.typing import is_text, type_name

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultingTypeVar

    OutT = DefaultingTypeVar("OutT", default=Any, contravariant=True)
    WorkflowOutT = DefaultingTypeVar("WorkflowOutT", default=Any, contravariant=True)

    class _Parametrised(Generic[OutT, WorkflowOutT]):
        pass
else:
    OutT = TypeVar("OutT")
    WorkflowOutT = TypeVar("WorkflowOutT")

    class _Parametrised:
        # `Generic` insists on all its parameters; handlers write `WorkflowContext[str]` as well.
        __class_getitem__ = classmethod(GenericAlias)


@dataclass(frozen=True, slots=True)
class RunKwargs:
    """What the caller of `run` passes through to tools and clients. It is never saved."""

    function_invocation: Mapping[str, Any] = field(default_factory=dict)
    client: Mapping[str, Any] = field(default_factory=dict)


NO_KWARGS = RunKwargs()

run_kwargs: ContextVar[RunKwargs] = ContextVar("stepwell_run_kwargs", default=NO_KWARGS)


class _Done(Awaitable[None]):
    """Awaitable and already over: effects are collected at once, so that sync functions can use them too."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


DONE = _Done()


@dataclass(slots=True)
class Effects:
    """What one delivery did, kept aside until the superstep ends; a failed attempt's are simply dropped."""

    sent: list[tuple[Any, str | None]] = field(default_factory=list)
    yielded: list[Any] = field(default_factory=list)
    # The others are made when they are needed, which is not often: there are as many of these as deliveries under way.
    shown: set[int] | None = None
    """Which of the yielded were shown live already, piece by piece."""
    requested: list[PendingRequest] | None = None
    state: dict[str, Any] | None = None
    events: list[WorkflowEvent] | None = None

    def show(self, output: Any) -> None:
        self.shown = self.shown or set()
        self.shown.add(len(self.yielded))
        self.yielded.append(output)

    def request(self, request: PendingRequest) -> None:
        self.requested = self.requested or []
        self.requested.append(request)

    def write(self, key: str, value: Any) -> None:
        self.state = self.state or {}
        self.state[key] = value

    def announce(self, event: WorkflowEvent) -> None:
        self.events = self.events or []
        self.events.append(event)


class DeliveryScene(NamedTuple):
    """Where and for what a handler is called. Shared by all deliveries of one executor in one superstep."""

    run_id: str
    executor_id: str
    superstep: int
    streaming: bool
    shared: Mapping[str, Any]
    used_request_ids: frozenset[str]
    leads_somewhere: bool = True
    is_silent: bool = False
    """Were outputs designated, and this executor's not among them?"""
    path: str = ""
    """For a workflow inside a workflow: the scope of the delivery it runs in, and a slash."""
    live: Callable[[str, Any, Mapping[str, Any] | None], None] | None = None
    """Announces a live event in this executor's name."""
    emit: Callable[[WorkflowEvent], None] | None = None
    """Announces somebody else's live event as it is."""


class WorkflowContext(_Parametrised[OutT, WorkflowOutT]):
    """A handler's way to the rest of the workflow.

    `WorkflowContext[Out, WorkflowOut]` declares what the handler sends and yields; both are optional, and sending
    something undeclared works. Whatever is done here becomes visible together, when the superstep ends.
    """

    __slots__ = ("_delivery", "_effects", "_scene", "_sources")

    def __init__(self, scene: DeliveryScene, effects: Effects, sources: tuple[str, ...], delivery: int) -> None:
        self._scene = scene
        self._effects = effects
        self._sources = sources
        self._delivery = delivery

    @property
    def run_id(self) -> str:
        return self._scene.run_id

    @property
    def executor_id(self) -> str:
        return self._scene.executor_id

    @property
    def superstep(self) -> int:
        """The number of this superstep within the run, from 1."""
        return self._scene.superstep

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt at this delivery; inside `ctx.call`, that call's own."""
        return enclosing_idempotency_key() or idempotency_key(self.run_id, self._scope)

    @property
    def _scope(self) -> str:
        return delivery_scope(self._scene, self._delivery)

    @property
    def scene(self) -> DeliveryScene:
        """Where this handler is called: for executors that run something inside themselves."""
        return self._scene

    @property
    def scope_id(self) -> str:
        """What the journal and request ids know this delivery by."""
        return self._scope

    def send_message(self, message: OutT, target_id: str | None = None) -> Awaitable[None]:
        """Send to the executors the edges lead to, or to the one of them named by `target_id`."""
        self._effects.sent.append((message, target_id))
        return DONE

    def yield_output(self, output: WorkflowOutT) -> Awaitable[None]:
        """Give something to the caller of the workflow."""
        self._effects.yielded.append(output)
        return DONE

    def yield_shown(self, output: WorkflowOutT) -> None:
        """Record an output whose pieces were announced live (`update`): it is not announced a second time."""
        self._effects.show(output)

    def add_event(self, event: WorkflowEvent) -> Awaitable[None]:
        """Announce an event of your own when the superstep's checkpoint is durable."""
        self._effects.announce(event)
        return DONE

    def request_info(
        self,
        request_data: Any,
        response_type: Any = str,
        *,
        request_id: str | None = None,
        deadline: datetime | timedelta | None = None,
        default: Any = None,
    ) -> Awaitable[None]:
        """Ask the outside. The answer arrives at the `@response_handler` for this request's type.

        After the `deadline` the `default` is delivered as the answer, by the next resume or between two supersteps of a
        run at work. None is a default too, if it fits the `response_type`; if not, the deadline only tells people.
        """
        ordinal = len(self._effects.requested or ())
        if request_id is not None:
            self._check_request_id(request_id)
        check_default(default, response_type, deadline)
        asked_at = now()
        self._effects.request(
            PendingRequest(
                request_id=request_id or derived_id("req", self.run_id, self._scope, str(ordinal)),
                source_executor_id=self.executor_id,
                data=isolated(request_data),
                request_type=type_name(type(request_data)),
                response_type=type_name(response_type),
                asked_at=asked_at.isoformat(),
                deadline=moment(deadline, asked_at),
                default=isolated(default),
                delivery=self._scope,
            )
        )
        return DONE

    def relay_request(self, request: PendingRequest) -> None:
        """Ask the outside what a workflow inside this executor asks; the answer comes back to this executor."""
        if self.is_request_id_taken(request.request_id):
            raise DuplicateRequest(request.request_id, self.executor_id)
        self._effects.request(replace(request, source_executor_id=self.executor_id))

    def _check_request_id(self, request_id: str) -> None:
        if not is_text(request_id):
            raise InvalidRunArguments(
                f"request_id={request_id!r} of executor {self.executor_id!r}: it has to be a text that is not empty, "
                "for example str(uuid4()); without one the engine makes one"
            )
        if self.is_request_id_taken(request_id):
            raise DuplicateRequest(request_id, self.executor_id)

    def is_request_id_taken(self, request_id: str) -> bool:
        return request_id in self._scene.used_request_ids or any(
            request_id == other.request_id for other in self._effects.requested or ()
        )

    def get_state(self, key: str, default: Any = None) -> Any:
        """A private copy of shared state: this delivery's own writes, else what earlier supersteps wrote."""
        written = self._effects.state
        if written is not None and key in written:
            return isolated(written[key])
        if key not in self._scene.shared:
            return default
        return isolated(self._scene.shared[key])

    def set_state(self, key: str, value: Any) -> None:
        """Write shared state; others see it from the next superstep on."""
        if key in RESERVED_STATE_KEYS:
            raise InvalidRunArguments(f"the state key {key!r} is reserved; choose another one")
        self._effects.write(key, isolated(value))

    def get_source_executor_id(self) -> str:
        """Who sent the message being handled; an error if several did (a fan-in)."""
        if len(self._sources) != 1:
            raise InvalidRunArguments(
                f"executor {self.executor_id!r} got messages from {', '.join(self._sources)}; use source_executor_ids"
            )
        return self._sources[0]

    @property
    def source_executor_ids(self) -> tuple[str, ...]:
        return self._sources

    def is_streaming(self) -> bool:
        return self._scene.streaming

    @property
    def leads_somewhere(self) -> bool:
        """Does any edge leave this executor?"""
        return self._scene.leads_somewhere

    def announce(self, event_type: str, data: Any = None, details: Mapping[str, Any] | None = None) -> None:
        """Emit a live event: it is seen at once and, if this attempt fails, was about nothing that lasted.

        An `update` is a piece of an output to come, and goes by what this executor's outputs are announced as.
        """
        if self._scene.live is not None:
            self._scene.live(event_type, data, details)

    async def call(
        self, fn: Callable[..., Any], *args: Any, key: str | None = None, at_most_once: bool = False, **kwargs: Any
    ) -> Any:
        """Call `fn` (sync or async) and record its result: after a crash the record answers, not `fn`.

        Without a `key` the call is known by the function's name and its arguments. `at_most_once` calls that are found
        cut off ask a person (`CallInDoubt`) instead of being made again.
        """
        scope = active_scope.get()
        if scope is None:
            return await call_function(fn, args, kwargs)

        async def make(_: CallTicket) -> Any:
            return await call_function(fn, args, kwargs)

        return await scope.call(
            call_name(fn), make, key=key, request=[list(args), kwargs], at_most_once=at_most_once, made_by=fn
        )


at_work: ContextVar[WorkflowContext[Any, Any] | None] = ContextVar("stepwell_at_work", default=None)
"""The delivery that is being handled: a workflow that is asked like an agent meanwhile runs inside it."""


def delivery_scope(scene: DeliveryScene, delivery: int) -> str:
    """The journal's name for one delivery: superstep, executor, which of its messages; after those it is nested in."""
    return f"{scene.path}{scene.superstep}/{escaped(scene.executor_id)}/{delivery}"


def derived_id(prefix: str, *parts: str) -> str:
    """An id that a replay arrives at again."""
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return f"{prefix}-{hashlib.blake2b(text, digest_size=10).hexdigest()}"


_DERIVED = re.compile(r"[a-z]+-[0-9a-f]{20}")


def is_derived(request_id: str) -> bool:
    """Such ids differ by themselves, so nobody has to remember them."""
    return _DERIVED.fullmatch(request_id) is not None
