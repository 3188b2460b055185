"""Calls recorded inside a superstep, so that finished work is not done again.

Identity is local: a call is named by its *scope* (superstep, executor path, delivery, enclosing calls) and by its key,
or by function, request and occurrence among equal requests. There is no counter shared between concurrent calls, so two
participants can't be handed each other's results.

This room knows nothing of models or agents. Whoever makes a call that costs money goes through `durable_call`.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar
from uuid import uuid4

from stepwell.checkpointing.callables import brought_along
from stepwell.checkpointing.codec import Codec
from stepwell.checkpointing.json_text import json_writer
from stepwell.checkpointing.registry import register_type
from stepwell.errors import CallFailed, CallUndecided, CodecError, DuplicateCallKey, NotSavable, ReplayDivergence

if TYPE_CHECKING:
    from stepwell.checkpointing.storage.protocol import RunLog

T = TypeVar("T")

OnDivergence = Literal["error", "recall"]
Usage = Mapping[str, Mapping[str, float]]
"""Who used how much of what: `{"researcher": {"input_tokens": 310, "calls": 2}}`."""

Live = Callable[[str, Any, Mapping[str, Any] | None], None]
"""Announces a live event at once: its type, data and details."""

_PREVIEW = 200
_CAPTURED = "~"
"""Separates the hash of what a function brought along from that of its arguments."""


@dataclass(frozen=True, slots=True)
class CallTicket:
    """What a call may know of itself while it is being made."""

    run_id: str | None
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One row of the journal. `result` is encoded; a row without one was started and not finished."""

    call_id: str
    scope: str
    name: str
    request_hash: str
    request_preview: str
    started_at: str
    result: str | None = None
    usage: Usage | None = None
    error: str | None = None
    """Why an at-most-once call raised, or why a person declared it failed."""
    at_most_once: bool = False
    verdict: Literal["retry", "fail"] | None = None
    """What a person decided about a call in doubt; `done` is simply a result."""

    @property
    def finished(self) -> bool:
        return self.result is not None or self.verdict == "fail"

    @property
    def in_doubt(self) -> bool:
        return self.result is None and self.verdict is None


@dataclass(frozen=True, slots=True)
class CallVerdict:
    """A person's word on a call in doubt; made by the methods of `CallInDoubt`."""

    kind: Literal["done", "retry", "fail"]
    result: Any = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CallInDoubt:
    """An at-most-once call was started, and the process died before its end was recorded.

    Look whether it took effect, then answer with one of the three methods.
    """

    call_id: str
    name: str
    request_preview: str
    started_at: str
    error: str | None = None

    def done(self, result: Any = None) -> CallVerdict:
        """It took effect and returned `result`, which the program gets without calling again."""
        return CallVerdict("done", result=result)

    def retry(self) -> CallVerdict:
        """It had no effect: make the call again."""
        return CallVerdict("retry")

    def fail(self, reason: str) -> CallVerdict:
        """It failed: the program gets a `CallFailed` with this reason."""
        return CallVerdict("fail", reason=reason)


register_type(CallInDoubt, name="stepwell:CallInDoubt")
register_type(CallVerdict, name="stepwell:CallVerdict", immutable=False)


class CallScope(Protocol):
    """Where the calls of one delivery are recorded and replayed."""

    @property
    def run_id(self) -> str: ...

    @property
    def records(self) -> bool:
        """Are calls recorded, so that they need names and requests that a replay arrives at again?"""
        ...

    async def call(
        self,
        name: str,
        fn: Callable[[CallTicket], Awaitable[T]],
        *,
        key: str | None,
        request: Any,
        at_most_once: bool = False,
        usage: Callable[[T], Usage | None] | None = None,
        made_by: Callable[..., Any] | None = None,
    ) -> T:
        """Make the call, or answer it from the journal; its record is durable before the result is returned."""
        ...

    def announce(self, event_type: str, details: Mapping[str, Any]) -> None:
        """Emit a live event (for example `call_retrying`) in the name of the executor at work."""
        ...


active_scope: ContextVar[CallScope | None] = ContextVar("stepwell_call_scope", default=None)
_enclosing: ContextVar[tuple[str, str] | None] = ContextVar("stepwell_enclosing_call", default=None)


class entered:  # used like a function
    """Make a scope the one that calls are recorded in.

    A call that surrounds it (a workflow run by a tool, say) belongs to another scope and is no part of these calls'
    names: with it, two executors' calls inside would have one name.
    """

    __slots__ = ("_scope", "_tokens")

    def __init__(self, scope: CallScope | None) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        # Hardly ever is there anything to hide, and this is done for every delivery.
        hidden = _enclosing.set(None) if _enclosing.get() is not None else None
        self._tokens = active_scope.set(self._scope), hidden

    def __exit__(self, *_: object) -> None:
        scope_token, enclosing_token = self._tokens
        if enclosing_token is not None:
            _enclosing.reset(enclosing_token)
        active_scope.reset(scope_token)


async def durable_call(
    name: str,
    fn: Callable[[CallTicket], Awaitable[T]],
    *,
    key: str | None,
    request: Any,
    at_most_once: bool = False,
    usage: Callable[[T], Usage | None] | None = None,
) -> T:
    """Make a call that is recorded when it happens inside a run, and simply made when it does not.

    `request` is what goes on the wire, without message ids, clocks, credentials or idempotency keys: its hash must be
    the same when the superstep is replayed. `usage` reads tokens and the like off the result.
    """
    scope = active_scope.get()
    if scope is None:
        return await fn(CallTicket(run_id=None, idempotency_key=uuid4().hex))
    return await scope.call(name, fn, key=key, request=request, at_most_once=at_most_once, usage=usage)


def is_recording() -> bool:
    """Does a call made here and now go into a journal?"""
    scope = active_scope.get()
    return scope is not None and scope.records


class PassingScope:
    """The calls of one delivery in a run without storage: simply made, and counted."""

    __slots__ = ("_live", "count", "run_id")

    # Written out, and not a dataclass: there is one for every delivery, and such runs are meant to be light.
    def __init__(self, run_id: str, live: Live, count: Callable[[Usage], None]) -> None:
        self.run_id = run_id
        self._live = live
        self.count = count

    @property
    def records(self) -> bool:
        return False

    def announce(self, event_type: str, details: Mapping[str, Any]) -> None:
        self._live(event_type, None, details)

    def counted_by(self, count: Callable[[Usage], None]) -> PassingScope:
        """The same scope, telling somebody else what is used."""
        return PassingScope(self.run_id, self._live, count)

    async def call(
        self,
        name: str,
        fn: Callable[[CallTicket], Awaitable[T]],
        *,
        key: str | None,
        request: Any,
        at_most_once: bool = False,
        usage: Callable[[T], Usage | None] | None = None,
        made_by: Callable[..., Any] | None = None,
    ) -> T:
        result = await fn(CallTicket(self.run_id, uuid4().hex))
        used = usage(result) if usage is not None else None
        if used:
            self.count(used)
        return result


def enclosing_idempotency_key() -> str | None:
    """The key of the call being made right now, None outside of calls."""
    enclosing = _enclosing.get()
    return None if enclosing is None else enclosing[1]


def idempotency_key(run_id: str, call_id: str) -> str:
    """The same for every attempt at one call, and different for every other call of any run."""
    return hashlib.blake2b(f"{run_id}\0{call_id}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def request_digest(codec: Codec, request: Any) -> tuple[str, str]:
    """The request's hash, and the beginning of it for people."""
    text = codec.encode_text(request, path="request", sort_keys=True)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return digest, text if len(text) <= _PREVIEW else text[: _PREVIEW - 1] + "…"


def escaped(component: str) -> str:
    """A component of a call id: it can't contain the separator, nor look like an unkeyed call."""
    return component.replace("%", "%25").replace("/", "%2F").replace("@", "%40")


@dataclass(slots=True)
class Journal:
    """The calls recorded for the superstep at hand: those found on resume, and those made since."""

    log: RunLog
    codec: Codec
    on_divergence: OnDivergence = "error"
    rows: dict[str, CallRecord] = field(default_factory=dict)
    _around: set[str] = field(default_factory=set)
    """Ids that rows are inside of, or were: a handler may make thousands of calls, and hardly one has others inside."""

    captured: dict[str, list[str]] = field(default_factory=dict)
    """Calls found on resume whose functions brought something along, by the hash of what they asked for."""

    def __post_init__(self) -> None:
        for call_id, row in self.rows.items():
            self._note_around(call_id)
            if _CAPTURED in row.request_hash:
                self.captured.setdefault(row.request_hash, []).append(call_id)

    @property
    def run_id(self) -> str:
        return self.log.run_id

    def usage(self) -> list[Usage]:
        return [row.usage for row in self.rows.values() if row.usage is not None]

    def in_doubt(self) -> list[CallRecord]:
        return [row for row in self.rows.values() if row.in_doubt]

    def scope(self, scope_id: str, live: Live) -> DeliveryScope:
        around = active_scope.get()
        if isinstance(around, DeliveryScope) and around.journal is self:
            around.enclose(scope_id)
        return DeliveryScope(self, scope_id, live)

    async def record(self, row: CallRecord) -> None:
        """Make `row` durable. It answers for the calls made inside it from now on: their rows go, their usage stays."""
        nested = self.inside(row.call_id)
        if used := [other.usage for other in nested if other.usage is not None]:
            row = replace(row, usage=add_usage(row.usage or {}, used))
        await self.log.record_call(row, supersedes=[other.call_id for other in nested])
        for other in nested:
            self.rows.pop(other.call_id, None)
        self._keep(row)

    async def start(self, row: CallRecord) -> None:
        await self.log.record_call(row, supersedes=())
        self._keep(row)

    def inside(self, call_id: str) -> list[CallRecord]:
        """The rows of calls made inside this one, at any depth."""
        if call_id not in self._around:
            return []
        return [row for row in self.rows.values() if row.call_id.startswith(call_id + "/")]

    def clear(self) -> None:
        """The superstep is over."""
        self.rows.clear()
        self._around.clear()
        self.captured.clear()

    def _keep(self, row: CallRecord) -> None:
        self.rows[row.call_id] = row
        self._note_around(row.call_id)

    def _note_around(self, call_id: str) -> None:
        # What is around one that is noted already is noted too.
        while (end := call_id.rfind("/")) > 0 and (call_id := call_id[:end]) not in self._around:
            self._around.add(call_id)

    async def drop(self, call_ids: Iterable[str]) -> None:
        doomed = [call_id for call_id in call_ids if call_id in self.rows]
        if doomed:
            await self.log.drop_calls(doomed)
            for call_id in doomed:
                self.rows.pop(call_id, None)

    async def decide(self, call_id: str, verdict: CallVerdict) -> None:
        """Write a person's verdict on a call in doubt into the journal, where the replay finds it."""
        # An earlier answer may have come as far as the journal and no further: nothing of it may show through.
        found = self.rows[call_id]
        row = replace(found, result=None, verdict=None, error=verdict.reason or found.error)
        match verdict.kind:
            case "done":
                result = self.codec.encode_text(verdict.result, path="verdict.result")
                await self.record(replace(row, result=result))
            case "fail":
                await self.record(replace(row, verdict="fail"))
            case "retry":
                # It is made again, and the calls recorded inside it answer then.
                await self.start(replace(row, verdict="retry"))


@dataclass(slots=True)
class DeliveryScope:
    """The calls one executor makes for one message; the engine's implementation of `CallScope`."""

    journal: Journal
    scope_id: str
    live: Live
    _claimed: set[str] = field(default_factory=set)
    _occurrences: dict[str, int] = field(default_factory=dict)
    _owners: dict[str, object] | None = None

    @property
    def records(self) -> bool:
        return True

    @property
    def run_id(self) -> str:
        return self.journal.run_id

    def announce(self, event_type: str, details: Mapping[str, Any]) -> None:
        self.live(event_type, None, details)

    async def call(
        self,
        name: str,
        fn: Callable[[CallTicket], Awaitable[T]],
        *,
        key: str | None,
        request: Any,
        at_most_once: bool = False,
        usage: Callable[[T], Usage | None] | None = None,
        made_by: Callable[..., Any] | None = None,
    ) -> T:
        digest, preview = self._digest(request, name, key)
        if key is not None:
            call_id = self._keyed(key)
        else:
            base = f"{self._parent()}/@{escaped(name)}({digest})"
            digest, preview = self._with_captured(digest, preview, made_by)
            call_id = self._unkeyed(base, digest)
            self._mention_owners(base, name, made_by)
        self._claimed.add(call_id)
        found = await self._find(call_id, digest, preview)
        if found is not None:
            recorded: T = self._replay(found)
            return recorded
        row = CallRecord(
            call_id=call_id,
            scope=self.scope_id,
            name=name,
            request_hash=digest,
            request_preview=preview,
            started_at=datetime.now(UTC).isoformat(),
            at_most_once=at_most_once,
        )
        if at_most_once:
            await self.journal.start(row)
        result = await self._make(row, fn, at_most_once=at_most_once)
        encoded = self.journal.codec.encode_text(result, path=f"the result of {name}")
        used = usage(result) if usage is not None else None
        self._mention_leftovers(row)
        await self.journal.record(replace(row, result=encoded, usage=used))
        return result

    def nested_scope(self, name: str) -> str:
        """What a run inside this delivery goes by, within the call being made if there is one; equals are numbered."""
        enclosing = _enclosing.get()
        base = f"{self.scope_id if enclosing is None else enclosing[0]}/{name}"
        number = self._numbered(base)
        return f"{base}~{number}" if number else base

    def _numbered(self, base: str) -> int:
        """Which one of its equals this is."""
        number = self._occurrences.get(base, 0)
        self._occurrences[base] = number + 1
        return number

    def usage_within(self, scope_id: str) -> dict[str, dict[str, float]]:
        """What the calls recorded under a nested scope have used so far."""
        return add_usage({}, [row.usage for row in self.journal.inside(scope_id) if row.usage is not None])

    def enclose(self, scope_id: str) -> None:
        """A delivery of a workflow inside this one begins; it answers for its calls itself."""
        self._claimed.add(scope_id)

    async def finish(self) -> None:
        """The handler has ended: whatever was recorded for it and not asked for again is a divergence."""
        mine = [row for row in self.journal.rows.values() if self._is_mine(row)]
        left = [row for row in mine if row.finished and not self._is_claimed(row.call_id)]
        if left:
            await self._diverge(left[0], "nothing: the handler ended without making this call")

    def _mention_leftovers(self, outer: CallRecord) -> None:
        """Calls recorded inside `outer` that it did not ask for when it was made again.

        It has been made, so an error now would only have it made once more.
        """
        inside = [row.call_id for row in self.journal.inside(outer.call_id)]
        left = [call_id for call_id in inside if not self._is_claimed(call_id, within=outer.call_id)]
        if left:
            message = (
                f"{outer.name} no longer makes {len(left)} call(s) that were recorded inside it; they were dropped"
            )
            self.announce("warning", {"message": message, "call_ids": left})

    def _digest(self, request: Any, name: str, key: str | None) -> tuple[str, str]:
        try:
            return request_digest(self.journal.codec, request)
        except CodecError as error:
            if key is not None:
                return "", f"{name}(…)"
            raise NotSavable(
                getattr(error, "path", "request"),
                getattr(error, "type_name", "value"),
                f"pass key=… to name this call of {name} yourself",
            ) from error

    def _parent(self) -> str:
        enclosing = _enclosing.get()
        return self.scope_id if enclosing is None else enclosing[0]

    def _keyed(self, key: str) -> str:
        call_id = f"{self._parent()}/{escaped(key)}"
        if call_id in self._claimed:
            raise DuplicateCallKey(key, self.scope_id)
        return call_id

    def _with_captured(self, digest: str, preview: str, made_by: Callable[..., Any] | None) -> tuple[str, str]:
        """The request with what a function brings along, as far as that can be saved."""
        brought = brought_along(made_by) if made_by is not None else []
        if not brought:
            return digest, preview
        try:
            more, text = request_digest(self.journal.codec, brought)
        except CodecError:
            return digest, preview
        return f"{digest}{_CAPTURED}{more}", f"{preview} with {text}"[:_PREVIEW]

    def _unkeyed(self, base: str, digest: str) -> str:
        """The call that asked for exactly this, or else the next one of its name and arguments."""
        for call_id in self.journal.captured.get(digest, ()):
            if call_id in self.journal.rows and self._is_free(call_id, base):
                return call_id
        while (call_id := f"{base}#{self._numbered(base)}") in self._claimed:
            pass
        return call_id

    def _is_free(self, call_id: str, base: str) -> bool:
        return call_id.startswith(f"{base}#") and "/" not in call_id[len(base) :] and call_id not in self._claimed

    def _mention_owners(self, base: str, name: str, made_by: Callable[..., Any] | None) -> None:
        """Methods of two objects, asked for the same, are told apart by their order alone: that has to be known."""
        owner = getattr(made_by, "__self__", None if isinstance(made_by, FunctionType | partial) else made_by)
        if owner is None:
            return
        if self._owners is None:
            self._owners = {}
        if self._owners.setdefault(base, owner) is owner:
            return
        message = f"unkeyed calls of {name} on different objects are told apart by their order alone; give each a key="
        self.announce("warning", {"message": message, "call_ids": [f"{base}#0"]})

    async def _find(self, call_id: str, digest: str, preview: str) -> CallRecord | None:
        row = self.journal.rows.get(call_id)
        if row is None or row.verdict == "retry":
            return None
        if row.in_doubt:
            raise CallUndecided(call_id, self.run_id)
        if row.request_hash and digest and row.request_hash != digest:
            if row.request_hash.partition(_CAPTURED)[0] != digest.partition(_CAPTURED)[0]:
                await self._diverge(row, preview)
                return None
            if _CAPTURED in row.request_hash:
                self._mention_captured(row, preview)
        return row

    def _mention_captured(self, row: CallRecord, requested: str) -> None:
        """What a function captured may be a clock or a flag that asks for nothing, so it decides only between calls."""
        message = (
            f"a recorded call of {row.name} answers one that captured other values (recorded: {row.request_preview}, "
            f"now: {requested}); if these are calls of their own, give each a key="
        )
        self.announce("warning", {"message": message, "call_ids": [row.call_id]})

    def _replay(self, row: CallRecord) -> Any:
        self.announce("call_replayed", {"call_id": row.call_id, "name": row.name})
        if row.result is None:
            raise CallFailed(row.call_id, row.error or "no reason was given")
        return self.journal.codec.decode_text(row.result, path=f"the recorded result of {row.name}", strict=True)

    async def _make(self, row: CallRecord, fn: Callable[[CallTicket], Awaitable[T]], *, at_most_once: bool) -> T:
        key = idempotency_key(self.run_id, row.call_id)
        token = _enclosing.set((row.call_id, key))
        try:
            return await fn(CallTicket(self.run_id, key))
        except Exception as error:
            if at_most_once:
                # It stays in doubt: an error is no proof that nothing happened at the other end.
                await self.journal.start(replace(row, error=f"{type(error).__name__}: {error}"[:1000]))
            raise
        finally:
            _enclosing.reset(token)

    def _is_claimed(self, call_id: str, *, within: str | None = None) -> bool:
        # A call inside a claimed one is the claimed one's business: it was answered without being asked again.
        shortest = len(within or self.scope_id) + 1
        while len(call_id) >= shortest:
            if call_id in self._claimed:
                return True
            call_id = call_id[: call_id.rfind("/")]
        return False

    def _is_mine(self, row: CallRecord) -> bool:
        return row.scope == self.scope_id or row.scope.startswith(self.scope_id + "/")

    async def _diverge(self, row: CallRecord, requested: str) -> None:
        # An at-most-once call that was made, or decided by a person, is never made anew: only its code can be mended.
        if self.journal.on_divergence == "error" or row.at_most_once:
            raise ReplayDivergence(row.call_id, row.request_preview, requested)
        stale = [
            other.call_id
            for other in self.journal.rows.values()
            if self._is_mine(other) and not other.at_most_once and (other is row or not self._is_claimed(other.call_id))
        ]
        await self.journal.drop(stale)
        self.announce(
            "warning",
            {
                "message": f"{len(stale)} recorded call(s) of {self.scope_id!r} no longer match the program and were "
                f"dropped; they are made anew (on_divergence='recall')",
                "call_ids": stale,
            },
        )


async def call_function(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a sync function in a thread, an async one here."""
    if inspect.iscoroutinefunction(fn):
        return await fn(*args, **kwargs)
    result = await asyncio.to_thread(fn, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def add_usage(total: Usage, more: Iterable[Usage]) -> dict[str, dict[str, float]]:
    """Totals per name; pure, neither argument changes."""
    result = {who: dict(counts) for who, counts in total.items()}
    for usage in more:
        for who, counts in usage.items():
            mine = result.setdefault(who, {})
            for what, amount in counts.items():
                mine[what] = mine.get(what, 0) + amount
    return result


_json = json_writer()


def usage_text(usage: Usage) -> str:
    return _json(usage) if usage else "{}"
