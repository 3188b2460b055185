"""Tool calls that wait for a person. Pure: what was asked, what was decided, what the conversation looks like then.

What is run after an approval is what was stored when it was asked for, never what the answer carries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepwell.agents.chat import Message, all_plain
from stepwell.agents.content import Content
from stepwell.checkpointing.registry import register_type
from stepwell.errors import UnknownApproval

REJECTED = "The user did not approve this call. It was not made."
UNANSWERED = "This call was not made: nobody approved it."
UNFINISHED = "This call was not finished: it waited for an answer that nobody gave."


@dataclass(frozen=True, slots=True)
class PausedCall:
    """A call that is under way: the agent or team behind the tool waits for a person."""

    call_id: str
    requests: tuple[Content, ...]
    """What it asks, under ids that are told apart from those of other calls."""
    inner_ids: tuple[str, ...]
    """What these requests are called in its own conversation."""

    @classmethod
    def of(cls, call_id: str, asked: Sequence[Content]) -> PausedCall:
        shown = tuple(
            Content.from_function_approval_request(f"{call_id}/{request.id}", request.function_call)
            for request in asked
            if request.function_call is not None
        )
        return cls(call_id, shown, tuple(str(request.id) for request in asked))

    def answers_in(self, contents: Iterable[Content]) -> tuple[Content, ...]:
        """The answers to this call's requests, under the ids that its own conversation knows."""
        inner = {str(request.id): name for request, name in zip(self.requests, self.inner_ids, strict=True)}
        return tuple(
            Content.from_function_approval_response(
                bool(content.approved), inner[str(content.id)], content.function_call
            )
            for content in contents
            if content.id in inner
        )


@dataclass(frozen=True, slots=True)
class PendingApprovals:
    """A reply whose tool calls are not all done, because some of them wait for a person.

    It stays out of the history until it is settled, so that the history is always one a model accepts.
    """

    reply: Message
    requests: tuple[Content, ...]
    results: tuple[Content, ...] = ()
    """Of the calls in the same reply that needed no approval."""
    decisions: tuple[tuple[str, bool], ...] = ()
    paused: tuple[PausedCall, ...] = ()
    """Calls of this reply that are under way and wait for a person themselves."""

    @property
    def decided(self) -> dict[str, bool]:
        return dict(self.decisions)

    @property
    def undecided(self) -> tuple[Content, ...]:
        decided = self.decided
        open_requests = [request for request in self.requests if request.id not in decided]
        return (*open_requests, *(request for call in self.paused for request in call.requests))

    def decide(self, responses: Iterable[Content]) -> PendingApprovals:
        """These answers taken in; the first answer to a request counts, one to anything else is refused."""
        decided = self.decided
        waiting = {request.id for request in self.requests if request.id not in decided}
        for response in responses:
            if response.id not in waiting:
                raise UnknownApproval(str(response.id), tuple(sorted(str(name) for name in waiting)))
            waiting.discard(response.id)
            decided[str(response.id)] = bool(response.approved)
        return replace(self, decisions=tuple(decided.items()))

    def approved_calls(self) -> tuple[Content, ...]:
        """Calls that may be made now and have not been yet."""
        decided = self.decided
        begun = {result.call_id for result in self.results} | {call.call_id for call in self.paused}
        calls = (request.function_call for request in self.requests if request.id and decided.get(request.id))
        return tuple(call for call in calls if call is not None and call.call_id not in begun)

    def with_outcomes(self, results: Iterable[Content], paused: Iterable[PausedCall]) -> PendingApprovals:
        """After calls were made or taken up again: what they came to, and which of them wait (again)."""
        results, paused = tuple(results), tuple(paused)
        touched = {result.call_id for result in results} | {call.call_id for call in paused}
        others = tuple(call for call in self.paused if call.call_id not in touched)
        return replace(self, results=(*self.results, *results), paused=(*others, *paused))

    def settled(self) -> Message:
        """The tool message that answers every call of the reply, in the reply's order."""
        results = {result.call_id: result for result in self.results}
        for paused in self.paused:
            results[paused.call_id] = Content.from_function_result(paused.call_id, result=UNFINISHED)
        decided = self.decided
        for request in self.requests:
            call = request.function_call
            if call is not None and call.call_id is not None and call.call_id not in results:
                text = UNANSWERED if request.id not in decided else REJECTED
                results[call.call_id] = Content.from_function_result(call.call_id, result=text)
        order = [content.call_id for content in self.reply.contents if content.type == "function_call"]
        return Message("tool", [results[call_id] for call_id in order if call_id in results])

    def to_dict(self) -> dict[str, Any]:
        return {
            "reply": self.reply.to_dict(),
            "requests": [request.to_dict() for request in self.requests],
            "results": [result.to_dict() for result in self.results],
            "decisions": [[name, approved] for name, approved in self.decisions],
            "paused": [
                {
                    "call_id": call.call_id,
                    "requests": [request.to_dict() for request in call.requests],
                    "inner_ids": list(call.inner_ids),
                }
                for call in self.paused
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PendingApprovals:
        return cls(
            Message.from_dict(data["reply"]),
            tuple(Content.from_dict(request) for request in data["requests"]),
            tuple(Content.from_dict(result) for result in data["results"]),
            tuple((name, approved) for name, approved in data["decisions"]),
            tuple(
                PausedCall(
                    call["call_id"],
                    tuple(Content.from_dict(request) for request in call["requests"]),
                    tuple(call["inner_ids"]),
                )
                for call in data.get("paused", ())
            ),
        )


def take_responses(messages: Sequence[Message]) -> tuple[list[Content], list[Message]]:
    """The approval answers among these messages, and the messages without them."""
    responses = [c for message in messages for c in message.contents if c.type == "function_approval_response"]
    if not responses:
        return [], list(messages)
    return responses, _without(messages, lambda content: content.type == "function_approval_response")


def without_echo(messages: Sequence[Message], pending: PendingApprovals) -> list[Message]:
    """What is new to a session: callers may send its own requests and calls back along with their answers."""
    known = {content.call_id for content in pending.reply.contents if content.type == "function_call"}
    return _without(messages, lambda content: content.user_input_request or bool(content.call_id in known))


def _without(messages: Sequence[Message], unwanted: Callable[[Content], bool]) -> list[Message]:
    result = []
    for message in messages:
        kept = [content for content in message.contents if not unwanted(content)]
        if len(kept) == len(message.contents):
            result.append(message)
        elif kept:
            result.append(message.with_contents(kept))
    return result


def pending_in(messages: Sequence[Message]) -> tuple[list[Message], PendingApprovals | None, list[Message]]:
    """A conversation without a session, taken apart where it was interrupted: before, the open calls, after.

    The request must be in the conversation, in the assistant's message: an answer alone proves nothing.
    """
    if all_plain(messages):
        return list(messages), None, []
    asked = [i for i, m in enumerate(messages) if any(c.user_input_request for c in m.contents)]
    if not asked:
        return list(messages), None, []
    first = asked[0]
    wanted = {c.function_call.call_id for i in asked for c in messages[i].contents if c.function_call is not None}
    while first and any(c.type == "function_call" and c.call_id in wanted for c in messages[first - 1].contents):
        first -= 1
    involved = [message for message in messages[first:] if message.role in ("assistant", "tool")]
    after = [message for message in messages[first:] if message.role not in ("assistant", "tool")]
    return list(messages[:first]), _reconstructed(involved), after


def _reconstructed(messages: Sequence[Message]) -> PendingApprovals:
    contents = [content for message in messages for content in message.contents]
    requests = {c.id: c for c in contents if c.user_input_request}
    calls = {c.call_id: c for c in contents if c.type == "function_call"}
    for request in requests.values():
        if request.function_call is not None:
            calls.setdefault(request.function_call.call_id, request.function_call)
    said = [c for c in contents if c.type == "text"]
    author = next((m.author_name for m in messages if m.role == "assistant"), None)
    reply = Message("assistant", [*said, *calls.values()], author_name=author)
    results = tuple(c for c in contents if c.type == "function_result")
    return PendingApprovals(reply, tuple(requests.values()), results)


def closed(messages: Sequence[Message]) -> list[Message]:
    """The conversation as models require it: an answer to every tool call, and no answer without its call.

    Calls nobody answered were not made; answers whose call is gone are what a shortened history begins with.
    """
    if all_plain(messages):
        return list(messages)
    result: list[Message] = []
    waiting: list[str] = []

    def close() -> None:
        if waiting:
            result.append(Message("tool", [Content.from_function_result(c, result=UNANSWERED) for c in waiting]))

    for message in messages:
        if message.role == "tool":
            kept = [c for c in message.contents if c.type != "function_result" or c.call_id in waiting]
            if kept:
                result.append(message if len(kept) == len(message.contents) else message.with_contents(kept))
            answered = {content.call_id for content in kept}
            waiting = [call_id for call_id in waiting if call_id not in answered]
            continue
        close()
        result.append(message)
        if message.role == "assistant":
            waiting = [c.call_id for c in message.contents if c.type == "function_call" and c.call_id is not None]
        else:
            waiting = []
    close()
    return result


register_type(PausedCall, name="stepwell.PausedCall", immutable=True)
register_type(PendingApprovals, name="stepwell.PendingApprovals", immutable=True)
