"""A workflow in the shape of an agent: asked with messages, answering with messages, remembered by a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from stepwell.agents.agent import AgentResponseStream, BaseAgent
from stepwell.agents.chat import AgentResponse, AgentResponseUpdate, AgentRunInputs, as_messages
from stepwell.agents.content import Content
from stepwell.agents.inner_turn import InnerTurn
from stepwell.agents.session import AgentSession
from stepwell.agents.stream import AgentStream
from stepwell.agents.workflow_contents import request_data
from stepwell.agents.workflow_memory import InnerMemory, OwnRun
from stepwell.agents.workflow_turn import OwnTurn
from stepwell.checkpointing.storage.memory import InMemoryCheckpointStorage
from stepwell.checkpointing.storage.protocol import CheckpointStorage
from stepwell.errors import AgentException, TeamsTooDeep
from stepwell.workflows.context import RunKwargs, at_work, run_kwargs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepwell.workflows.workflow import Workflow

MAX_DEPTH = 10
"""How many workflows may be at work as agents inside one another."""

Emit: TypeAlias = Callable[[AgentResponseUpdate], None]

_names: ContextVar[tuple[str, ...]] = ContextVar("stepwell_teams_at_work", default=())


class WorkflowAgent(BaseAgent):
    """A workflow that is used like an agent.

    The session holds the run: each turn is a further turn of it, so only new messages are sent in. Requests that are
    pending come back as user-input contents; answer them in a later `run`, in this process or in another one that has
    the session and the storage. Without a storage runs are kept in memory, as long as this object lives.

    Asked by an executor, a participant or a tool of another run, it runs inside that run: its calls are recorded there,
    its state is in the session (which an `AgentExecutor` saves), and what it asks a person reaches whoever started the
    outermost run. A storage of its own is not used then.
    """

    def __init__(self, workflow: Workflow, *, name: str | None = None, description: str | None = None) -> None:
        super().__init__(name=name or workflow.name, description=description or workflow.description)
        self.workflow = workflow
        self._fallback = InMemoryCheckpointStorage()
        self._pristine: dict[str, Any] = {}

    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: Literal[False] = False,
        session: AgentSession | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        run_id: str | None = None,
        responses: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Awaitable[AgentResponse]: ...
    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: Literal[True],
        session: AgentSession | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        run_id: str | None = None,
        responses: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AgentResponseStream: ...
    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        run_id: str | None = None,
        responses: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Awaitable[AgentResponse] | AgentResponseStream: ...
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        run_id: str | None = None,
        responses: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Awaitable[AgentResponse] | AgentResponseStream:
        """Do a turn, resume one that was cut off, or answer what is pending.

        `checkpoint_id` goes on from that checkpoint; `run_id` names the run, which else the session does. `responses`
        answers requests in their own types, by request id. What else `Workflow.run` takes can be given too.
        """
        given = {"checkpoint_id": checkpoint_id, "checkpoint_storage": checkpoint_storage, "run_id": run_id}
        said, answers = as_messages(messages), dict(responses or {})

        async def take(emit: Emit | None) -> AgentResponse:
            with _one_deeper(self.name or self.id):
                # Whoever names a storage or a run means a run of its own, wherever this is asked.
                if at_work.get() is not None and not any(given.values()):
                    return await self._inside(said, session, answers, emit, options)
                turn = OwnTurn(
                    self.workflow,
                    self.name or self.id,
                    checkpoint_storage or self.workflow.checkpoint_storage or self._fallback,
                    session,
                    said,
                    answers,
                    checkpoint_id,
                    run_id,
                    options,
                    emit,
                )
                return await self._alone(turn)

        if not stream:
            return take(None)
        updates: AgentResponseStream = AgentStream(take)
        return updates

    def request_data(self, content: Content) -> Any:
        """What one of its user-input contents asks, in its own type: a `MagenticPlanReviewRequest`, say.

        A tool approval is what it is: the content itself.
        """
        return request_data(content)

    async def _alone(self, turn: OwnTurn) -> AgentResponse:
        if InnerMemory.of(turn.session) is not None:
            raise AgentException(
                f"this session of {turn.author!r} belongs to a run around it, which holds its state; go on with that "
                "run, or make another session"
            )
        return await turn.take()

    async def _inside(
        self,
        messages: list[Any],
        session: AgentSession | None,
        responses: dict[str, Any],
        emit: Emit | None,
        options: Mapping[str, Any],
    ) -> AgentResponse:
        ctx = at_work.get()
        assert ctx is not None
        if OwnRun.of(session) is not None:
            raise AgentException(
                f"this session of {self.name!r} has a run of its own, which can't become part of run {ctx.run_id!r}; "
                "pass a new session, or checkpoint_storage=… to go on with its own run"
            )
        turn = InnerTurn(self.workflow, self.name or self.id, ctx, session, messages, responses, self._pristine, emit)
        token = run_kwargs.set(_merged(run_kwargs.get(), **options))
        try:
            return await turn.take()
        finally:
            run_kwargs.reset(token)


def _merged(
    around: RunKwargs,
    *,
    function_invocation_kwargs: Mapping[str, Any] | None = None,
    client_kwargs: Mapping[str, Any] | None = None,
) -> RunKwargs:
    """What the run around passes to tools and clients, and what was given here; inside a run there is nothing else."""
    return RunKwargs(
        {**around.function_invocation, **(function_invocation_kwargs or {})},
        {**around.client, **(client_kwargs or {})},
    )


@contextmanager
def _one_deeper(name: str) -> Iterator[None]:
    """Teams inside teams: a limit, because one that contains itself has no end."""
    names = (*_names.get(), name)
    if len(names) > MAX_DEPTH:
        raise TeamsTooDeep(names, MAX_DEPTH)
    token = _names.set(names)
    try:
        yield
    finally:
        _names.reset(token)
