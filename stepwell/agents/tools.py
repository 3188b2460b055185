"""Tools: Python functions that a model may call.

The schema comes from the signature, descriptions from the docstring, arguments are validated before anything runs, and
whatever comes back is turned into text for the model.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args, get_origin, overload

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from stepwell.agents.client import ToolSpec
from stepwell.agents.content import NOTHING, freeze
from stepwell.agents.schema import docstring_parts, parameters_model, schema_of
from stepwell.checkpointing.journal import CallTicket, call_function
from stepwell.checkpointing.registry import annotations_of, register_type
from stepwell.errors import InvalidArguments, TeamsTooDeep, ToolError, WorkflowCheckpointException

if TYPE_CHECKING:
    from stepwell.agents.content import Content
    from stepwell.agents.session import AgentSession

logger = logging.getLogger(__name__)

ApprovalMode: TypeAlias = Literal["always", "never", "always_require", "never_require"]
OnError: TypeAlias = Literal["result", "raise"]
ToolLike: TypeAlias = "FunctionTool | Callable[..., Any]"

run_tool_kwargs: ContextVar[Mapping[str, Any]] = ContextVar("stepwell_tool_kwargs", default=NOTHING)
"""`function_invocation_kwargs` of the run; tools get them through `ToolContext` or `**kwargs`. Never persisted."""


@dataclass(frozen=True, slots=True)
class ResumedCall:
    """A call that is taken up again: the conversation behind it, and what it was answered."""

    session: AgentSession
    answers: tuple[Content, ...] = ()
    responses: Mapping[str, Any] = NOTHING
    """Answers in their own types, by request id."""


class CallPaused(Exception):
    """Not a failure: the agent behind a tool asks a person, and its turn goes on with the answer."""

    def __init__(self, session: AgentSession, requests: Sequence[Content]) -> None:
        super().__init__(session, requests)
        self.session = session
        self.requests = tuple(requests)


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may know of its call. Annotate a parameter with it; the model does not see that parameter.

    Pass `idempotency_key` on to the system you call: it is the same for every attempt at this call, also after a crash.
    """

    run_id: str | None = None
    idempotency_key: str = ""
    call_id: str = ""
    agent_name: str | None = None
    session: AgentSession | None = None
    kwargs: Mapping[str, Any] = NOTHING
    resumed: ResumedCall | None = None
    """For an agent behind the tool that has paused: its conversation, and the answers it waited for."""


FunctionInvocationContext = ToolContext
"""The name that programs moving over know it by."""


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """A call that failed, as it is recorded: a replay tells the model the same again."""

    text: str


register_type(ToolFailure, name="stepwell.ToolFailure", immutable=True)


class FunctionTool:
    """A function that a model may call; made by `@tool`. Calling it calls the function."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        approval_mode: ApprovalMode = "never",
        at_most_once: bool = False,
        timeout: float | None = None,
        on_error: OnError | None = None,
    ) -> None:
        if approval_mode not in get_args(ApprovalMode):
            raise ValueError(f"approval_mode={approval_mode!r} is none of {', '.join(get_args(ApprovalMode))}")
        self.fn = fn
        self.name: str = name or str(getattr(fn, "__name__", type(fn).__name__))
        self.description = description if description is not None else docstring_parts(fn)[0]
        self.needs_approval = approval_mode in ("always", "always_require")
        self.at_most_once = at_most_once
        self.timeout = timeout
        # After an error nobody knows whether an at-most-once call took effect: a person is asked, not the model.
        self.on_error: OnError = on_error or ("raise" if at_most_once else "result")
        functools.update_wrapper(self, fn, updated=())

    @property
    def approval_mode(self) -> Literal["always", "never"]:
        return "always" if self.needs_approval else "never"

    @functools.cached_property
    def parameters_model(self) -> type[BaseModel]:
        return parameters_model(self.fn, hidden=_is_injected)

    @functools.cached_property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        schema = schema_of(self.parameters_model)
        schema.setdefault("properties", {})
        return ToolSpec(self.name, self.description, freeze(schema, path=self.name))

    def validate(self, arguments: str | Mapping[str, Any] | None) -> BaseModel:
        """The arguments, checked and converted; InvalidArguments says what is wrong in words a model can use."""
        try:
            given = json.loads(arguments) if isinstance(arguments, str) and arguments.strip() else arguments or {}
        except ValueError as error:
            raise InvalidArguments(f"The arguments are not valid JSON: {error}") from error
        try:
            return self.parameters_model.model_validate(given)
        except ValidationError as error:
            problems = "; ".join(_problem(item) for item in error.errors(include_url=False, include_context=False))
            raise InvalidArguments(f"The arguments do not fit {self.name}: {problems}") from error

    async def invoke(
        self, arguments: BaseModel | Mapping[str, Any] | str | None = None, *, context: ToolContext | None = None
    ) -> Any:
        """Validate and call; returns what the function returned, raises what it raised."""
        model = arguments if isinstance(arguments, BaseModel) else self.validate(arguments)
        context = context or ToolContext(kwargs=run_tool_kwargs.get())
        values = {str(field.alias): getattr(model, name) for name, field in type(model).model_fields.items()}
        call = call_function(self.fn, (), values | self._injected(values, context))
        if self.timeout is None:
            return await call
        async with asyncio.timeout(self.timeout):
            return await call

    async def outcome(self, arguments: BaseModel, *, context: ToolContext) -> str | ToolFailure:
        """The text a model is told. Errors become a `ToolFailure` unless `on_error="raise"`."""
        try:
            return result_text(await self.invoke(arguments, context=context))
        except (WorkflowCheckpointException, TeamsTooDeep, CallPaused):
            raise  # the journal of a call made inside the tool, say: nothing a model could do about it
        except ToolError as error:
            return ToolFailure(f"Error: {error}")
        except Exception as error:
            if self.on_error == "raise":
                raise
            logger.debug("tool %r raised %s", self.name, type(error).__name__, exc_info=True)
            return ToolFailure(_failure_text(self, error))

    def _injected(self, values: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        injected: dict[str, Any] = {}
        hints = annotations_of(self.fn)
        for parameter in inspect.signature(self.fn).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                injected |= {name: value for name, value in context.kwargs.items() if name not in values}
            elif _is_injected(parameter, hints.get(parameter.name, parameter.annotation)):
                injected[parameter.name] = context
        return injected

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> FunctionTool:
        """A tool that is a method: bound to its object like any other method."""
        if instance is None:
            return self
        return FunctionTool(
            self.fn.__get__(instance, owner),
            name=self.name,
            description=self.description,
            approval_mode=self.approval_mode,
            at_most_once=self.at_most_once,
            timeout=self.timeout,
            on_error=self.on_error,
        )

    def __repr__(self) -> str:
        return f"FunctionTool({self.name!r})"


@overload
def tool(fn: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    approval_mode: ApprovalMode = "never",
    at_most_once: bool = False,
    timeout: float | None = None,
    on_error: OnError | None = None,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    fn: Callable[..., Any] | None = None, /, **options: Any
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a tool of a sync or async function.

    `approval_mode="always"`: a person sees the final arguments and approves each call. `at_most_once`: inside a
    workflow a call cut by a crash is never repeated silently, a person is asked. `timeout` in seconds (a sync function
    runs in a thread, which goes on after a timeout: nobody waits for it any more). `on_error`: `"result"` tells the
    model what was raised, `"raise"` ends the turn with it; the default is `"result"`, for `at_most_once` tools
    `"raise"`. A `ToolError` is always told to the model.
    """
    if fn is not None:
        return FunctionTool(fn, **options)
    return lambda function: FunctionTool(function, **options)


def as_tools(given: ToolLike | Sequence[ToolLike] | None) -> tuple[FunctionTool, ...]:
    """Tools from functions, tools or a mixture; two of one name are refused."""
    if given is None:
        return ()
    items = given if isinstance(given, Sequence) else [given]
    tools = tuple(item if isinstance(item, FunctionTool) else FunctionTool(item) for item in items)
    names = [item.name for item in tools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two tools are called {', '.join(twice)}; give one of them another name=")
    return tools


def result_text(value: Any) -> str:
    """What a model is told a tool returned. What is not JSON-able is told by its `str`: the call has been made."""
    if isinstance(value, str):
        return value
    return to_json(value, fallback=str, bytes_mode="base64", inf_nan_mode="strings").decode()


def ticketed(context: ToolContext, ticket: CallTicket) -> ToolContext:
    return replace(context, run_id=ticket.run_id, idempotency_key=ticket.idempotency_key)


def _failure_text(tool: FunctionTool, error: Exception) -> str:
    if isinstance(error, TimeoutError) and tool.timeout is not None:
        return f"Error: {tool.name} did not finish within {tool.timeout:g} seconds"
    return f"Error: {type(error).__name__}: {error}"


def _problem(item: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in item["loc"])
    return f"{where}: {item['msg']}" if where else str(item["msg"])


def _is_injected(parameter: inspect.Parameter, hint: Any) -> bool:
    """Is this the parameter through which the tool gets its `ToolContext`?"""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint is ToolContext or ToolContext in get_args(hint)
