"""What goes into and comes out of a workflow that is asked like an agent: messages, requests and answers."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepwell.agents.chat import AgentResponse, AgentResponseUpdate, Message
from stepwell.agents.content import Content, FrozenDict, freeze
from stepwell.checkpointing.checkpoint import PendingRequest
from stepwell.checkpointing.codec import Codec
from stepwell.errors import AgentException, UnknownApproval
from stepwell.workflows.typing import fits, type_names

if TYPE_CHECKING:
    from stepwell.workflows.workflow import Workflow

REQUEST_INFO = "request_info"
"""The name of the function call that stands for a request which is no tool approval."""

Asked = tuple[tuple[str, str], ...]
"""Contents that wait for an answer, and the requests they stand for."""


# --- what goes in -----------------------------------------------------------------------------------------------------


def workflow_input(said: Sequence[Message], workflow: Workflow) -> Any:
    """The messages in the shape that the start executor takes."""
    start = workflow.get_start_executor()
    text = "\n".join(message.text for message in said)
    for candidate in ([*said], said[-1] if len(said) == 1 else None, text):
        if candidate is not None and start.can_handle(candidate):
            return candidate
    raise AgentException(
        f"workflow {workflow.name!r} can't be asked like an agent: its start executor {start.id!r} accepts "
        f"{', '.join(type_names(start.input_types))}; give it a handler for list[Message] or str"
    )


def take_answers(messages: Iterable[Message], asked: Mapping[str, str]) -> tuple[dict[str, Content], list[Message]]:
    """The answers among these messages by request id, and what is left of the messages: what was said.

    Callers may send the requests back along with their answers; those are no news.
    """
    answers: dict[str, Content] = {}
    said: list[Message] = []
    for message in messages:
        rest: list[Content] = []
        for content in message.contents:
            request_id = _answered_by(content, asked)
            if request_id is not None:
                answers[request_id] = content
            elif not _is_echo(content, asked):
                rest.append(content)
        if rest or not message.contents:
            said.append(message if len(rest) == len(message.contents) else message.with_contents(rest))
    return answers, said


def _answered_by(content: Content, asked: Mapping[str, str]) -> str | None:
    if content.type == "function_result":
        return asked.get(content.call_id or "")
    if content.type != "function_approval_response":
        return None
    found = asked.get(content.id or "")
    if found is None and content.function_call is not None and content.function_call.name == REQUEST_INFO:
        return content.id  # Its id is the request's, so it is found without a session that remembers it.
    if found is None:
        raise UnknownApproval(str(content.id), tuple(asked))
    return found


def _is_echo(content: Content, asked: Mapping[str, str]) -> bool:
    return (content.user_input_request and content.id in asked) or (
        content.type == "function_call" and content.call_id in asked and content.name == REQUEST_INFO
    )


def typed_answer(content: Content, request: PendingRequest | None) -> Any:
    """What the executor that asked is answered, as far as a content can say it.

    An approval of something that knows how to be approved (a plan, say) is that; of anything else it is yes or no.
    """
    if content.type == "function_result":
        return _from_json(content.result, request)
    data = request.data if request is not None else None
    if isinstance(data, Content):
        return content
    decide = getattr(data, "approve" if content.approved else "reject", None)
    if request is not None and request.response_type != "bool" and callable(decide):
        return decide()
    return bool(content.approved)


def _from_json(answer: Any, request: PendingRequest | None) -> Any:
    """Function results are texts; those that hold a JSON object are meant as one, unless a text was asked for."""
    wants_text = request is not None and request.response_type == "str"
    if not isinstance(answer, str) or wants_text or not answer.lstrip().startswith("{"):
        return answer
    try:
        return json.loads(answer)
    except ValueError:
        return answer


# --- what comes out ---------------------------------------------------------------------------------------------------


def said_in(output: Any, author: str) -> list[Message]:
    """An output of the workflow as messages."""
    if isinstance(output, AgentResponse):
        return list(output.messages)
    if isinstance(output, Message):
        return [output]
    if fits(output, list[Message]) and output:
        return list(output)
    text = output if isinstance(output, str) else Codec().encode_text(output, path="output")
    return [Message("assistant", text, author_name=author)]


def value_of(outputs: Sequence[Any]) -> Any:
    """The one thing that the turn came to, if it is more than words."""
    if len(outputs) != 1:
        return None
    [output] = outputs
    if isinstance(output, AgentResponse):
        return output.value
    is_text = isinstance(output, str | Message) or fits(output, list[Message])
    return None if is_text else output


def requests_shown(requests: Iterable[tuple[str, str, Any]]) -> tuple[list[Message], Asked]:
    """Pending requests (id, who asks, data) as messages with user-input contents, and which content is which."""
    messages: list[Message] = []
    asked: dict[str, str] = {}
    for request_id, who, data in requests:
        contents = request_contents(request_id, data, taken=asked)
        asked[str(contents[-1].id)] = request_id
        messages.append(Message("assistant", contents, author_name=who))
    return messages, tuple(asked.items())


def request_contents(request_id: str, data: Any, *, taken: Container[object] = ()) -> tuple[Content, ...]:
    """A pending request as something a user of agents knows: the approval itself, or a call of `request_info`."""
    if isinstance(data, Content) and data.user_input_request and data.function_call is not None:
        # Two agents at work side by side may number their calls alike.
        is_taken = data.id in taken
        return (Content.from_function_approval_request(request_id, data.function_call) if is_taken else data,)
    text = Codec().encode_text({"request_id": request_id, "data": data}, path="request")
    call = Content.from_function_call(request_id, REQUEST_INFO, arguments=text)
    return call, Content.from_function_approval_request(request_id, call)


def request_data(content: Content) -> Any:
    """What was asked, in its own type: the reverse of `request_contents`."""
    call = content.function_call if content.type == "function_approval_request" else content
    if call is None or call.name != REQUEST_INFO or not isinstance(call.arguments, str):
        return content
    return Codec().decode_text(call.arguments, path="request")["data"]


def signed(update: AgentResponseUpdate, author: str, response_id: str) -> AgentResponseUpdate | None:
    """An update of somebody in the team, as the team's: with an author, and without requests, which come by
    themselves. None if nothing is left of it."""
    contents = tuple(content for content in update.contents if not content.user_input_request)
    if not contents and not update.finish_reason:
        return None
    name = update.author_name or (author if update.role == "assistant" else None)
    return replace(update, contents=contents, author_name=name, response_id=response_id)


def updates_of(messages: Iterable[Message], response_id: str) -> Iterator[AgentResponseUpdate]:
    """Whole messages as updates."""
    for message in messages:
        yield AgentResponseUpdate(
            message.contents,
            message.role,
            message.author_name,
            response_id=response_id,
            message_id=message.message_id,
        )


_TOKENS = {
    "input_tokens": "input_token_count",
    "output_tokens": "output_token_count",
    "total_tokens": "total_token_count",
}


def token_counts(total: Mapping[str, float], spent: Mapping[str, int]) -> FrozenDict[int] | None:
    """What was used since `spent`, in the words of `usage_details`; None if nothing was."""
    counts = {name: int(total.get(key, 0)) - spent.get(name, 0) for key, name in _TOKENS.items()}
    frozen: FrozenDict[int] = freeze({name: count for name, count in counts.items() if count > 0})
    return frozen or None


def all_tokens(total: Mapping[str, float]) -> dict[str, int]:
    return {name: int(total[key]) for key, name in _TOKENS.items() if total.get(key)}
