"""Executors: what user code does with a message."""

from __future__ import annotations

import asyncio
import inspect
import sys
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from stepwell.checkpointing.registry import annotations_of
from stepwell.errors import NoHandler, WorkflowValidationError
from stepwell.workflows.message import ResponseMessage
from stepwell.workflows.typing import fits, members, type_name, type_names

if TYPE_CHECKING:
    from stepwell.retry import RetryPolicy
    from stepwell.workflows.context import WorkflowContext
    from stepwell.workflows.graph import Graph

F = TypeVar("F", bound=Callable[..., Any])
_UNSET: Any = object()


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """One handler: what it takes, and what it declares to send and to yield."""

    name: str
    accepts: tuple[Any, ...]
    sends: tuple[Any, ...]
    yields: tuple[Any, ...]
    responds_to: tuple[Any, ...] = ()
    """For a response handler: the requests whose answers it takes."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """What the decorator leaves on a method until its class is complete."""

    is_response: bool
    hints: Mapping[str, Any] | None
    """Its annotations, if they could be resolved where it was defined; the names in scope there are not kept."""
    accepts: Any = _UNSET
    sends: Any = _UNSET
    yields: Any = _UNSET


@overload
def handler(function: F, /) -> F: ...


@overload
def handler(*, input: Any = ..., output: Any = ..., workflow_output: Any = ...) -> Callable[[F], F]: ...


def handler(
    function: Any = None,
    /,
    *,
    input: Any = _UNSET,
    output: Any = _UNSET,
    workflow_output: Any = _UNSET,
) -> Any:
    """Mark a method as the handler for the message type it is annotated with, or for `input`.

    `WorkflowContext[Out, WorkflowOut]`, or `output` and `workflow_output`, say what it sends to other executors and
    what it yields to the caller.
    """
    scope = _names_in_scope(2)

    def marked(method: F) -> F:
        mark = _Mark(False, _hints_now(method, scope), input, output, workflow_output)
        method.__stepwell_mark__ = mark  # type: ignore[attr-defined]
        return method

    return marked if function is None else marked(function)


def response_handler(
    function: Any = None,
    /,
    *,
    request: Any = _UNSET,
    response: Any = _UNSET,
    output: Any = _UNSET,
    workflow_output: Any = _UNSET,
) -> Any:
    """Mark a method `(self, original_request, response, ctx)` as the receiver of answers to `ctx.request_info`."""
    scope = _names_in_scope(2)

    def marked(method: F) -> F:
        accepts = _UNSET if request is _UNSET and response is _UNSET else (request, response)
        mark = _Mark(True, _hints_now(method, scope), accepts, output, workflow_output)
        method.__stepwell_mark__ = mark  # type: ignore[attr-defined]
        return method

    return marked if function is None else marked(function)


def _names_in_scope(depth: int) -> dict[str, Any]:
    """Names visible where a decorator is used: types defined inside a function are in no module."""
    frame: Any = sys._getframe(depth)
    names: dict[str, Any] = {}
    while frame is not None and frame.f_locals is not frame.f_globals:
        names = {**frame.f_locals, **names}
        frame = frame.f_back
        if len(names) > 500:
            break
    return names


def _hints_now(function: Any, local_names: Mapping[str, Any]) -> dict[str, Any] | None:
    """The annotations as far as everything they name exists by now; else they are looked at when they are needed."""
    try:
        return typing.get_type_hints(function, localns=dict(local_names))
    except (NameError, AttributeError):
        return None


def _hints(function: Any, found: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return annotations_of(function) if found is None else found


def _context_arguments(hint: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What `WorkflowContext[Out, WorkflowOut]` declares; nothing declared means nothing is checked."""
    arguments = typing.get_args(hint)
    sends = members(arguments[0]) if arguments else (Any,)
    yields = members(arguments[1]) if len(arguments) > 1 else (Any,)
    return sends, yields


def _declared(value: Any) -> tuple[Any, ...]:
    if isinstance(value, list | tuple):
        return tuple(member for item in value for member in members(item))
    return members(value)


class Executor:
    """A named step of a workflow. Subclass it and decorate its handlers.

    One object is at work for one run at a time and handles one message at a time. What it keeps between messages goes
    through `on_checkpoint_save` and `on_checkpoint_restore`; ids are stable strings that you choose, because they are
    how a checkpoint finds its executor again.
    """

    shareable: ClassVar[bool] = False
    """May one object serve several runs at once? Only if it keeps nothing."""

    _handlers: ClassVar[tuple[HandlerSpec, ...] | None] = None

    def __init__(self, id: str, *, retry: RetryPolicy | None = None, timeout: float | None = None) -> None:
        if not id or not isinstance(id, str):
            raise WorkflowValidationError(f"{type(self).__name__} needs an id: a stable, non-empty string, not {id!r}")
        if timeout is not None and timeout <= 0:
            raise WorkflowValidationError(f"executor {id!r}: timeout must be positive, not {timeout!r}")
        self.id = id
        self.retry = retry
        self.timeout = timeout

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """What this executor keeps, as savable values. Called when it has run in a superstep, and at entry."""
        return {}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Take back what `on_checkpoint_save` gave."""

    def onward(self, state: dict[str, Any]) -> Any:
        """For a start executor whose run has ended early, by a limit of its own that may be higher now: given what it
        keeps, the message that takes the run up again when it is resumed, or None. Asked of an executor at rest."""
        return None

    @classmethod
    def handler_specs(cls) -> tuple[HandlerSpec, ...]:
        """The handlers of this class, in the order of their definition, inherited ones last."""
        own = cls.__dict__.get("_handlers")
        if own is None:
            own = cls._handlers = tuple(_specs_of(cls))
        return own

    @property
    def specs(self) -> tuple[HandlerSpec, ...]:
        own = type(self).__dict__.get("_handlers")
        return own if own is not None else type(self).handler_specs()

    @property
    def input_types(self) -> tuple[Any, ...]:
        return tuple(hint for spec in self.specs if not spec.responds_to for hint in spec.accepts)

    @property
    def output_types(self) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(hint for spec in self.specs for hint in spec.sends))

    @property
    def workflow_output_types(self) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(hint for spec in self.specs for hint in spec.yields))

    @property
    def keeps_state(self) -> bool:
        """Is there anything to ask it for when a checkpoint is made?"""
        return type(self).on_checkpoint_save is not Executor.on_checkpoint_save

    @property
    def runs_in_thread(self) -> bool:
        """Does its work happen where a timeout can't stop it?"""
        return False

    @property
    def inner_graph(self) -> Graph | None:
        """The graph inside this executor, if it is a workflow."""
        return None

    @property
    def state_reads(self) -> tuple[str, ...]:
        """Keys of shared state that it can't do without; `build` looks whether anything before it writes them."""
        return ()

    @property
    def state_writes(self) -> tuple[str, ...] | None:
        """Keys of shared state that it writes; None if that can't be told, as for anybody's own handlers."""
        return None

    def for_run(self) -> Executor:
        """What a run works with: this very object, unless it knows how to make itself afresh for each."""
        return self

    def missing_for(self, kept: Any) -> Iterable[str]:
        """What the state it kept needs and this executor does not have any more, in words."""
        return ()

    def can_handle(self, data: Any) -> bool:
        return self._handler_for(data) is not None

    def execute(self, data: Any, ctx: WorkflowContext[Any, Any]) -> Coroutine[Any, Any, None]:
        """Hand a message to the handler for its type."""
        # Not a coroutine around the handler's own: all of them are resumed one by one whenever the handler is.
        if type(data) is ResponseMessage:
            return self._respond(data, ctx)
        spec = self._handler_for(data)
        if spec is None:
            raise NoHandler(self.id, type_name(type(data)), type_names(self.input_types))
        handling: Coroutine[Any, Any, None] = getattr(self, spec.name)(data, ctx)
        return handling

    def _handler_for(self, data: Any) -> HandlerSpec | None:
        for spec in self.specs:
            if type(data) in spec.accepts and not spec.responds_to:
                return spec
        for spec in self.specs:
            if not spec.responds_to and any(fits(data, hint) for hint in spec.accepts):
                return spec
        return None

    async def _respond(self, message: ResponseMessage, ctx: WorkflowContext[Any, Any]) -> None:
        request, response = message.request, message.response
        for spec in self.specs:
            if any(fits(request.data, hint) for hint in spec.responds_to) and any(
                fits(response, hint) for hint in spec.accepts
            ):
                await getattr(self, spec.name)(request.data, response, ctx)
                return
        takes = [
            f"({type_name(one)}, {type_name(other)})"
            for spec in self.specs
            for one in spec.responds_to
            for other in spec.accepts
        ]
        raise NoHandler(
            self.id,
            f"the answer {type_name(type(response))} to a {type_name(type(request.data))} (add a @response_handler)",
            tuple(takes),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"


def _specs_of(cls: type) -> Iterator[HandlerSpec]:
    seen: set[str] = set()
    for owner in cls.__mro__:
        for name, method in vars(owner).items():
            mark = getattr(method, "__stepwell_mark__", None)
            if name in seen or mark is None:
                continue
            seen.add(name)
            yield _spec(cls, name, method, mark)


def _spec(cls: type, name: str, method: Any, mark: _Mark) -> HandlerSpec:
    parameters = list(inspect.signature(method).parameters)[1:]
    expected = ("original_request", "response", "ctx") if mark.is_response else ("message", "ctx")
    if len(parameters) != len(expected):
        raise WorkflowValidationError(
            f"{cls.__qualname__}.{name} must take (self, {', '.join(expected)}), not {len(parameters)} arguments"
        )
    hints = _hints(method, mark.hints)
    sends, yields = _context_arguments(hints.get(parameters[-1]))
    sends = sends if mark.sends is _UNSET else _declared(mark.sends)
    yields = yields if mark.yields is _UNSET else _declared(mark.yields)
    explicit = mark.accepts
    if mark.is_response:
        request, response = explicit if explicit is not _UNSET else (_UNSET, _UNSET)
        request = hints.get(parameters[0], Any) if request is _UNSET else request
        response = hints.get(parameters[1], Any) if response is _UNSET else response
        return HandlerSpec(name, _declared(response), sends, yields, responds_to=_declared(request))
    if explicit is _UNSET and parameters[0] not in hints:
        raise WorkflowValidationError(
            f"{cls.__qualname__}.{name} has no readable annotation for {parameters[0]!r}; annotate the message's type, "
            "or use @handler(input=...)"
        )
    accepts = hints[parameters[0]] if explicit is _UNSET else explicit
    return HandlerSpec(name, _declared(accepts), sends, yields)


class FunctionExecutor(Executor):
    """An executor made from a function. It keeps nothing, so one serves any number of runs."""

    shareable = True

    def __init__(
        self,
        function: Callable[..., Any],
        id: str | None = None,
        *,
        input: Any = _UNSET,
        output: Any = _UNSET,
        workflow_output: Any = _UNSET,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        local_names: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(id or str(getattr(function, "__name__", "")), retry=retry, timeout=timeout)
        self.function = function
        self._is_async = inspect.iscoroutinefunction(function)
        parameters = list(inspect.signature(function).parameters)
        if len(parameters) not in (1, 2):
            raise WorkflowValidationError(
                f"executor {self.id!r}: the function must take (message) or (message, ctx), "
                f"not {len(parameters)} arguments"
            )
        self._takes_context = len(parameters) == 2
        hints = _hints(function, _hints_now(function, local_names or {}))
        sends, yields = _context_arguments(hints.get(parameters[1]) if self._takes_context else None)
        if not self._takes_context:
            sends = members(hints["return"]) if "return" in hints else (Any,)
        self._specs = (
            HandlerSpec(
                "function",
                _declared(hints.get(parameters[0], Any) if input is _UNSET else input),
                sends if output is _UNSET else _declared(output),
                yields if workflow_output is _UNSET else _declared(workflow_output),
            ),
        )

    @property
    def specs(self) -> tuple[HandlerSpec, ...]:
        return self._specs

    @property
    def runs_in_thread(self) -> bool:
        return not self._is_async

    async def execute(self, data: Any, ctx: WorkflowContext[Any, Any]) -> None:
        if not self.can_handle(data):
            raise NoHandler(self.id, type_name(type(data)), type_names(self.input_types))
        arguments = (data, ctx) if self._takes_context else (data,)
        if self._is_async:
            result = await self.function(*arguments)
        else:
            result = await asyncio.to_thread(self.function, *arguments)
            if isinstance(result, Awaitable):
                result = await result
        if not self._takes_context and result is not None:
            await ctx.send_message(result)


@overload
def executor(function: Callable[..., Any], /) -> FunctionExecutor: ...


@overload
def executor(
    *,
    id: str | None = ...,
    input: Any = ...,
    output: Any = ...,
    workflow_output: Any = ...,
    retry: RetryPolicy | None = ...,
    timeout: float | None = ...,
) -> Callable[[Callable[..., Any]], FunctionExecutor]: ...


def executor(
    function: Any = None,
    /,
    *,
    id: str | None = None,
    **options: Any,
) -> Any:
    """Make an executor from a function `(message, ctx)`, sync or async. Sync functions run in a thread.

    A function that takes only the message sends on what it returns.
    """
    scope = _names_in_scope(2)

    def make(wrapped: Callable[..., Any]) -> FunctionExecutor:
        return FunctionExecutor(wrapped, id, local_names=scope, **options)

    return make if function is None else make(function)
