"""A workflow in the shape of an agent: asked with messages, answering with messages, remembered by a session."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepwell.agents.agent import AgentResponseStream, BaseAgent
from stepwell.agents.chat import AgentResponse, AgentResponseUpdate, AgentRunInputs, Message, as_messages
from stepwell.agents.content import Content, freeze
from stepwell.agents.session import AgentSession
from stepwell.agents.stream import AgentStream
from stepwell.checkpointing.checkpoint import new_id
from stepwell.checkpointing.codec import Codec
from stepwell.checkpointing.storage.memory import InMemoryCheckpointStorage
from stepwell.checkpointing.storage.protocol import CheckpointStorage
from stepwell.errors import AgentException, RunUnfinished, UnknownApproval
from stepwell.workflows.events import WorkflowEvent, WorkflowRunResult
from stepwell.workflows.opening import MISSING
from stepwell.workflows.typing import fits, type_names

if TYPE_CHECKING:
    from stepwell.workflows.workflow import Workflow

_STATE = "workflow_run"
REQUEST_INFO = "request_info"
"""The name of the function call that stands for a request which is no tool approval."""


@dataclass(frozen=True, slots=True)
class _Memory:
    """What a session remembers of the run behind it."""

    run_id: str
    settled: str | None = None
    """The checkpoint after the last turn that succeeded: where the next one starts if this one failed."""
    asked: tuple[tuple[str, str], ...] = ()
    """Contents that wait for an answer, and the requests they stand for."""

    def to_state(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "settled": self.settled, "asked": [list(pair) for pair in self.asked]}

    @classmethod
    def of(cls, session: AgentSession | None) -> _Memory | None:
        state = session.state.get(_STATE) if session is not None else None
        if state is None:
            return None
        asked = tuple((content_id, request_id) for content_id, request_id in state.get("asked", ()))
        return cls(state["run_id"], state.get("settled"), asked)


class WorkflowAgent(BaseAgent):
    """A workflow that is used like an agent.

    The session holds the run: each turn is a further turn of it, so only new messages are sent in. Requests that are
    pending come back as user-input contents; answer them in a later `run`, in this process or in another one that has
    the session and the storage. Without a storage runs are kept in memory, as long as this object lives.
    """

    def __init__(self, workflow: Workflow, *, name: str | None = None, description: str | None = None) -> None:
        super().__init__(name=name or workflow.name, description=description or workflow.description)
        self.workflow = workflow
        self._fallback = InMemoryCheckpointStorage()

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
        **kwargs: Any,
    ) -> Any:
        """Do a turn, resume one that was cut off, or answer what is pending."""
        turn = _Turn(
            self.workflow,
            self.name or self.id,
            checkpoint_storage or self.workflow.checkpoint_storage or self._fallback,
            session,
            as_messages(messages) if messages is not None else [],
            checkpoint_id,
            run_id,
            dict(responses or {}),
            kwargs,
        )
        if not stream:
            return turn.take(None)
        updates: AgentResponseStream = AgentStream(turn.take)
        return updates


@dataclass(slots=True)
class _Turn:
    """One `run` of a workflow agent."""

    workflow: Workflow
    author: str
    storage: CheckpointStorage
    session: AgentSession | None
    messages: list[Message]
    checkpoint_id: str | None
    run_id: str | None
    responses: dict[str, Any]
    kwargs: Mapping[str, Any]

    async def take(self, emit: Callable[[AgentResponseUpdate], None] | None) -> AgentResponse:
        memory = _Memory.of(self.session)
        said = self._take_answers(memory)
        arguments = self._arguments(memory, said)
        run_id = arguments.get("run_id")
        if run_id is not None:
            # Written down before anything runs, so that a turn that is cut off is found again.
            self._remember(_Memory(run_id, memory.settled if memory else None, memory.asked if memory else ()))
        try:
            result = await self._run(arguments, emit)
        except RunUnfinished:
            if memory is None or not said:
                raise
            result = await self._run_from_settled(memory, said, emit)
        return self._answer(result)

    def _arguments(self, memory: _Memory | None, said: Sequence[Message]) -> dict[str, Any]:
        if self.responses:
            arguments: dict[str, Any] = {"responses": self.responses}
            if self.checkpoint_id is not None:
                return {**arguments, "checkpoint_id": self.checkpoint_id}
            known = self.run_id or (memory.run_id if memory else None)
            return {**arguments, "run_id": known} if known else arguments
        if self.checkpoint_id is not None and not said:
            return {"checkpoint_id": self.checkpoint_id}
        run_id = self.run_id or (memory.run_id if memory else new_id())
        if not said:
            if memory is None and self.run_id is None:
                raise AgentException(f"{self.author!r} was asked nothing; pass messages, responses or a checkpoint_id")
            return {"run_id": run_id}
        return {"message": self._input(said), "run_id": run_id, "new_turn": True}

    async def _run(
        self, arguments: dict[str, Any], emit: Callable[[AgentResponseUpdate], None] | None
    ) -> WorkflowRunResult:
        message = arguments.pop("message", MISSING)
        if self.checkpoint_id is not None and message is not MISSING:
            # A message for a checkpoint: put the run back there first, then go on from it.
            restored = await self.workflow.run(checkpoint_id=self.checkpoint_id, checkpoint_storage=self.storage)
            arguments["run_id"] = restored.run_id
        if emit is None:
            result: WorkflowRunResult = await self.workflow.run(
                message, checkpoint_storage=self.storage, **arguments, **self.kwargs
            )
            return result
        stream = self.workflow.run(message, stream=True, checkpoint_storage=self.storage, **arguments, **self.kwargs)
        async with stream:
            async for event in stream:
                for update in self._updates(event):
                    emit(update)
            final: WorkflowRunResult = await stream.get_final_response()
            return final

    async def _run_from_settled(
        self, memory: _Memory, said: Sequence[Message], emit: Callable[[AgentResponseUpdate], None] | None
    ) -> WorkflowRunResult:
        """The turn before this one failed: go on from where the conversation was whole, as a branch of its run."""
        run_id = new_id()
        self._remember(_Memory(run_id, memory.settled))
        if memory.settled is not None:
            await self.workflow.run(
                checkpoint_id=memory.settled, branch=True, run_id=run_id, checkpoint_storage=self.storage
            )
        return await self._run({"message": self._input(said), "run_id": run_id, "new_turn": True}, emit)

    # --- what goes in ------------------------------------------------------------------------------------------------

    def _input(self, said: Sequence[Message]) -> Any:
        """The messages in the shape that the start executor takes."""
        start = self.workflow.get_start_executor()
        text = "\n".join(message.text for message in said)
        for candidate in ([*said], said[-1] if len(said) == 1 else None, text):
            if candidate is not None and start.can_handle(candidate):
                return candidate
        raise AgentException(
            f"workflow {self.workflow.name!r} can't be asked like an agent: its start executor {start.id!r} accepts "
            f"{', '.join(type_names(start.input_types))}; give it a handler for list[Message] or str"
        )

    def _take_answers(self, memory: _Memory | None) -> list[Message]:
        """Answers to pending requests become responses; what is left of the messages is what was said."""
        asked = dict(memory.asked) if memory is not None else {}
        said: list[Message] = []
        for message in self.messages:
            rest = [content for content in message.contents if not self._is_answer(content, asked)]
            if rest:
                said.append(message if len(rest) == len(message.contents) else message.with_contents(rest))
        if self.responses and said:
            raise AgentException(
                f"{self.author!r} got answers and further messages at once; answer first, then go on with another run"
            )
        return said

    def _is_answer(self, content: Content, asked: Mapping[str, str]) -> bool:
        if content.type == "function_approval_response":
            answer: Any = content
            key = content.id
        elif content.type == "function_result":
            answer, key = content.result, content.call_id
        else:
            return False
        if key is None or key not in asked:
            if content.type == "function_approval_response":
                raise UnknownApproval(str(key), tuple(asked))
            return False
        if content.type == "function_approval_response" and asked[key] == key:
            answer = content.approved  # It stands for a request that is no tool call: the yes or no is what counts.
        self.responses[asked[key]] = _from_json(answer)
        return True

    # --- what comes out ----------------------------------------------------------------------------------------------

    def _answer(self, result: WorkflowRunResult) -> AgentResponse:
        asked: list[tuple[str, str]] = []
        messages = [message for output in result.get_outputs() for message in self._said(output)]
        for event in result.get_request_info_events():
            content = request_content(event)
            asked.append((str(content.id or content.call_id), str(event.request_id)))
            messages.append(Message("assistant", [content], author_name=event.source_executor_id or self.author))
        checkpoints = [event.data.checkpoint_id for event in result if event.type == "checkpoint"]
        before = _Memory.of(self.session)
        settled = checkpoints[-1] if checkpoints and not asked else (before.settled if before else None)
        self._remember(_Memory(result.run_id, settled, tuple(asked)))
        usage = _token_counts(result)
        return AgentResponse(
            messages, usage_details=freeze(usage) if usage else None, agent_id=self.author, response_id=result.run_id
        )

    def _updates(self, event: WorkflowEvent) -> Iterator[AgentResponseUpdate]:
        if event.type == "request_info":
            content = request_content(event)
            yield AgentResponseUpdate((content,), "assistant", event.source_executor_id or self.author)
        elif event.type == "output" and isinstance(event.data, AgentResponseUpdate):
            yield event.data
        elif event.type == "output":
            for message in self._said(event.data):
                yield AgentResponseUpdate(message.contents, message.role, message.author_name)

    def _said(self, output: Any) -> list[Message]:
        if isinstance(output, AgentResponse):
            return list(output.messages)
        if isinstance(output, Message):
            return [output]
        if fits(output, list[Message]) and output:
            return list(output)
        text = output if isinstance(output, str) else Codec().encode_text(output, path="output")
        return [Message("assistant", text, author_name=self.author)]

    def _remember(self, memory: _Memory) -> None:
        if self.session is not None:
            self.session.state[_STATE] = memory.to_state()


def request_content(event: WorkflowEvent) -> Content:
    """A pending request as something a user of agents knows: the approval itself, or a call of `request_info`."""
    if isinstance(event.data, Content) and event.data.user_input_request:
        return event.data
    request_id = str(event.request_id)
    call = Content.from_function_call(
        request_id,
        REQUEST_INFO,
        arguments=Codec().encode_text({"request_id": request_id, "data": event.data}, path="request"),
    )
    return Content.from_function_approval_request(request_id, call)


def _from_json(answer: Any) -> Any:
    """Function results are texts; those that hold a JSON object are meant as one."""
    if not isinstance(answer, str) or not answer.lstrip().startswith("{"):
        return answer
    try:
        return json.loads(answer)
    except ValueError:
        return answer


def _token_counts(result: WorkflowRunResult) -> dict[str, int]:
    names = {
        "input_tokens": "input_token_count",
        "output_tokens": "output_token_count",
        "total_tokens": "total_token_count",
    }
    total = result.total_usage()
    return {name: int(total[key]) for key, name in names.items() if total.get(key)}
