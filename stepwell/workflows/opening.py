"""Start or resume: from what `run` was asked for and what the storage holds to the state a run begins with.

Everything that can be refused is refused here, before anything has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from stepwell.checkpointing.checkpoint import (
    GRAPH_SHAPE,
    RESERVED_STATE_KEYS,
    PendingRequest,
    WorkflowCheckpoint,
    WorkflowMessage,
    checked_id,
    new_id,
)
from stepwell.checkpointing.codec import Codec
from stepwell.checkpointing.journal import CallInDoubt, CallRecord, OnDivergence, request_digest
from stepwell.checkpointing.storage.protocol import BranchPoint, Decision, RunLog, RunStorage
from stepwell.errors import (
    AlreadyAnswered,
    CodecError,
    GraphChanged,
    InvalidRunArguments,
    NoHandler,
    RequestError,
    RunBusy,
    RunUnfinished,
    UnknownRequest,
    UnknownRun,
    listed,
)
from stepwell.workflows.answers import checked_answer, get_ready
from stepwell.workflows.context import derived_id
from stepwell.workflows.deadlines import now
from stepwell.workflows.defaults import defaulted, overdue
from stepwell.workflows.executor import Executor
from stepwell.workflows.graph import Graph, GraphShape
from stepwell.workflows.message import INPUT, RESPONSES, ResponseMessage, isolated
from stepwell.workflows.runner import is_blocked
from stepwell.workflows.superstep import RunState, state_from
from stepwell.workflows.typing import is_count, is_text, type_name, type_names

MISSING: Any = type("Missing", (), {"__repr__": lambda _: "<no message>"})()
"""Told apart from None, which is a message like any other."""

JOURNAL = "__journal__"
"""Who asks about calls in doubt."""

LIMIT = "max_iterations"
"""`stopped_by` of a run that used up its supersteps."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What `Workflow.run` was asked for."""

    message: Any = MISSING
    run_id: str | None = None
    responses: Mapping[str, Any] | None = None
    checkpoint_id: str | None = None
    branch: bool = False
    new_turn: bool = False
    max_iterations: int | None = None
    on_divergence: OnDivergence = "error"
    strict_graph: bool = False
    state_edits: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_message(self) -> bool:
        return self.message is not MISSING

    def check(self) -> None:
        """Refuse what contradicts itself."""
        if self.run_id is not None:
            checked_id("run_id", self.run_id)
        if self.has_message and self.checkpoint_id is not None:
            raise InvalidRunArguments("message and checkpoint_id exclude each other: resume first, then send a message")
        if self.has_message and self.responses:
            raise InvalidRunArguments("message and responses exclude each other: answer first, then send a message")
        if self.responses is not None and not isinstance(self.responses, Mapping):
            raise InvalidRunArguments(f"responses maps request ids to answers; it is a {type(self.responses).__name__}")
        if strange := [key for key in self.responses or () if not is_text(key)]:
            raise InvalidRunArguments(f"responses has the key {strange[0]!r}; request ids are texts")
        if self.responses is not None and not self.responses:
            raise InvalidRunArguments("responses is empty; map request ids to answers, or leave it out")
        if self.branch and self.checkpoint_id is None:
            raise InvalidRunArguments("branch=True needs the checkpoint_id to branch from")
        if self.new_turn and not self.has_message:
            raise InvalidRunArguments("new_turn=True needs a message")
        if self.max_iterations is not None and not is_count(self.max_iterations, 1):
            raise InvalidRunArguments(f"max_iterations must be at least 1, not {self.max_iterations!r}")
        if self.on_divergence not in ("error", "recall"):
            raise InvalidRunArguments(f'on_divergence must be "error" or "recall", not {self.on_divergence!r}')
        if reserved := RESERVED_STATE_KEYS.intersection(self.state_edits):
            raise InvalidRunArguments(f"state= can't change {listed(sorted(reserved))}; it changes shared state only")
        if not (self.has_message or self.run_id or self.responses or self.checkpoint_id):
            raise InvalidRunArguments(
                "a message is needed to start a run (None counts, if passed explicitly); "
                "to resume, give run_id, checkpoint_id or responses"
            )


Action = Literal["enter", "continue", "deliver", "report"]


@dataclass(frozen=True, slots=True)
class Opening:
    """Where a run begins, and what is to be done first.

    `enter` writes the checkpoint of a new turn or branch, `deliver` the one that records answers, `continue` goes on as
    it is, `report` has nothing to run: outputs or requests are told again.
    """

    run_id: str
    state: RunState
    action: Action
    log: RunLog | None = None
    restore: bool = False
    decisions: tuple[Decision, ...] = ()
    verdicts: Mapping[str, Any] = field(default_factory=dict)
    """Answers to calls in doubt, by call id."""
    calls: Sequence[CallRecord] = ()
    newly_doubted: tuple[PendingRequest, ...] = ()
    warnings: tuple[str, ...] = ()
    delivers: tuple[str, ...] = ()
    """Requests whose answers were recorded without the program and reach it now."""
    is_new: bool = False
    entered_from: RunState | None = None
    """For a branch that is answered at once: the state its first checkpoint holds, before the answer."""


async def target_run(request: RunRequest, storage: RunStorage) -> tuple[str | None, BranchPoint | None]:
    """Which run is meant: an existing or named one, or a branch (then the id, if any, is the branch's)."""
    if request.checkpoint_id is not None:
        checkpoint = await storage.load(request.checkpoint_id)
        parent = checkpoint.run_id
        newest = await storage.newest_checkpoint_id(parent) if parent else None
        same_run = request.run_id in (None, parent)
        if parent and newest == request.checkpoint_id and same_run and not request.branch:
            return parent, None
        return request.run_id if not same_run else None, BranchPoint(request.checkpoint_id, parent or "")
    if request.run_id is None and request.responses:
        owners = {request_id: await storage.run_waiting_for(request_id) for request_id in request.responses}
        for request_id, owner in owners.items():
            if owner is None:
                raise UnknownRequest(request_id, ())
        if len(set(owners.values())) > 1:
            raise InvalidRunArguments(f"the responses belong to different runs ({owners}); answer one run at a time")
        return next(iter(owners.values())), None
    return request.run_id, None


class Opener:
    """Opens one run of one workflow on one storage."""

    def __init__(self, graph: Graph, request: RunRequest) -> None:
        self.graph = graph
        self.request = request
        self.codec = Codec(graph.registry)

    def check_message(self) -> None:
        """A message that the start executor can't take would only leave a failed run behind."""
        start = self.graph.slots[self.graph.start].prototype
        if self.request.has_message and not start.can_handle(self.request.message):
            raise NoHandler(start.id, type_name(type(self.request.message)), type_names(start.input_types))

    async def open(self, storage: RunStorage, run_id: str | None, branch: BranchPoint | None) -> Opening:
        """Take the run's lease and look at what is there; on any refusal the lease is given back."""
        if branch is not None:
            return await self._open_branch(storage, run_id or new_id(), branch)
        try:
            log = await storage.open_run(
                run_id or new_id(),
                workflow_name=self.graph.name,
                registry=self.graph.registry,
                create=self.request.has_message,
            )
        except RunBusy as busy:
            finished = await self._finished(storage, busy.run_id)
            if finished is None:
                raise
            return finished
        if log is None:
            assert run_id is not None
            raise UnknownRun(run_id, "pass a message to start it")
        try:
            return await self._opened(storage, log)
        except BaseException:
            await log.release()
            raise

    async def _finished(self, storage: RunStorage, run_id: str) -> Opening | None:
        """What a run came to can be read by any number of callers at once; that takes no lease."""
        if self.request.responses or self.request.new_turn:
            return None
        checkpoint = await storage.get_latest(run_id=run_id)
        state = state_from(checkpoint) if checkpoint is not None else None
        if state is None or state.inbox or state.pending:
            return None
        if self.request.has_message and not self._is_same_message(state):
            return None
        return Opening(run_id, state, "report")

    def start(self, run_id: str) -> Opening:
        """A run that is kept in memory only."""
        return Opening(run_id, self._entered(RunState()), "enter", is_new=True)

    def go_on(self, waiting: RunLog, state: RunState) -> Opening:
        """A run that waits in memory."""
        opening = Opening(waiting.run_id, state, "continue", waiting)
        if self.request.responses:
            return self._with_defaults(self._answered(opening, self.request.responses, typed=True))
        return self._with_defaults(self._resumed(opening))

    async def _opened(self, storage: RunStorage, log: RunLog) -> Opening:
        checkpoint = await log.latest(self.graph.registry)
        if checkpoint is None:
            if not self.request.has_message:
                raise UnknownRun(log.run_id, "it was cut off before its first checkpoint; pass its message again")
            return Opening(log.run_id, self._entered(RunState()), "enter", log, is_new=True)
        state = state_from(checkpoint)
        warnings = self._check_graph(checkpoint, state)
        opening = Opening(log.run_id, state, "continue", log, restore=True, warnings=warnings)
        opening = replace(opening, calls=_calls_of_superstep(log.calls, state.iteration + 1))
        if self.request.responses:
            await self._refuse_what_is_inherited(storage, state)
            return self._with_defaults(self._answered(opening, self.request.responses, typed=True))
        await get_ready({} for decision in log.decisions.values() if not decision.typed)
        return self._with_defaults(self._resumed(opening))

    def _resumed(self, opening: Opening) -> Opening:
        """The start-or-resume table, for a run that exists."""
        state, log = opening.state, opening.log
        assert log is not None
        runnable = bool(state.inbox) and not is_blocked(state)
        is_finished = not runnable and not state.pending
        is_other = self.request.has_message and (
            (self.request.new_turn and is_finished) or not self._is_same_message(state)
        )
        stopped_by_limit = log.info is not None and log.info.stopped_by == LIMIT
        if is_other:
            if (runnable and not stopped_by_limit) or state.pending:
                raise RunUnfinished(log.run_id, log.info.state if log.info else "unfinished")
            return replace(opening, state=self._entered(state), action="enter", calls=())
        recorded = {key: log.decisions[key] for key in state.pending if key in log.decisions}
        if recorded:
            values = {key: self.codec.decode_text(d.value, path=f"answer to {key}") for key, d in recorded.items()}
            return self._answered(opening, values, typed=False)
        if not runnable:
            return self._taken_up(opening)
        return self._with_doubts(opening)

    def _taken_up(self, opening: Opening) -> Opening:
        """An ended run reports what it came to, unless its start executor stopped early and need not any more."""
        state, start = opening.state, self.graph.start
        kept = state.executor_states.get(start)
        message = self.graph.slots[start].prototype.onward(kept) if kept and not state.pending else None
        if message is None:
            return replace(opening, action="report")
        inbox = (WorkflowMessage(message, INPUT, start),)
        state = state._replace(inbox=inbox, turn=state.turn + 1, turn_began=state.iteration)
        return replace(opening, state=state, action="enter", calls=())

    def _with_doubts(self, opening: Opening) -> Opening:
        """At-most-once calls that were cut off become requests, before anything runs."""
        doubtful = tuple(
            PendingRequest(
                # A call that is made again and cut off again is a new question, with an answer of its own.
                request_id=derived_id("call", opening.run_id, row.call_id, row.started_at),
                source_executor_id=JOURNAL,
                data=CallInDoubt(row.call_id, row.name, row.request_preview, row.started_at, row.error),
                request_type="CallInDoubt",
                response_type="CallVerdict",
                asked_at=now().isoformat(),
            )
            for row in opening.calls
            if row.in_doubt
        )
        if not doubtful:
            return opening
        pending = {**opening.state.pending, **{request.request_id: request for request in doubtful}}
        return replace(opening, state=opening.state._replace(pending=pending), newly_doubted=doubtful)

    def _answered(self, opening: Opening, answers: Mapping[str, Any], *, typed: bool) -> Opening:
        """Queue the answers for the executors that asked; all of them are good or nothing changes."""
        state, log = opening.state, opening.log
        assert log is not None
        decisions: list[Decision] = []
        messages: list[WorkflowMessage] = []
        verdicts: dict[str, Any] = {}
        for request_id, answer in answers.items():
            request = self._pending(request_id, state, log if typed else None)
            value = checked_answer(request, answer, self._source(request))
            if typed:
                text = self.codec.encode_text(value, path=f"answer to {request_id}")
                replaces = request_id in log.decisions
                decisions.append(Decision(request_id, text, now().isoformat(), replaces_unusable=replaces))
            if isinstance(request.data, CallInDoubt):
                verdicts[request.data.call_id] = value
            else:
                response = ResponseMessage(request, isolated(value))
                messages.append(WorkflowMessage(response, RESPONSES, request.source_executor_id))
        left = {key: request for key, request in state.pending.items() if key not in answers}
        # An answer is somebody at the other end: the count of supersteps starts anew, as it does with a message.
        state = state._replace(pending=left, inbox=(*state.inbox, *messages), turn_began=state.iteration)
        delivers = () if typed else tuple(answers)
        return replace(
            opening,
            state=state,
            action="deliver",
            decisions=tuple(decisions),
            verdicts=verdicts,
            delivers=delivers,
            entered_from=opening.state if opening.is_new else None,
        )

    def _with_defaults(self, opening: Opening) -> Opening:
        """Requests whose deadline has passed are decided by their defaults, unless they were answered just now."""
        if opening.action == "enter" or opening.newly_doubted or not opening.state.pending:
            return opening
        due = overdue(opening.state, self.graph)
        if not due:
            return opening
        done = defaulted(opening.state, due, self.graph)
        return replace(
            opening,
            state=done.state,
            action="deliver",
            decisions=(*opening.decisions, *done.decisions),
            warnings=(*opening.warnings, *done.notices),
        )

    def _pending(self, request_id: str, state: RunState, log: RunLog | None) -> PendingRequest:
        decision = log.decisions.get(request_id) if log is not None else None
        request = state.pending.get(request_id)
        if decision is not None and log is not None and (request is None or self._is_usable(decision, request)):
            raise already_answered(log.run_id, decision)
        if request is None:
            raise UnknownRequest(request_id, tuple(state.pending))
        if request_id in state.inherited:
            raise _inherited(request_id, state.inherited[request_id])
        return request

    def _is_usable(self, decision: Decision, request: PendingRequest) -> bool:
        """An answer recorded without the program may turn out to be of the wrong type; then it decides nothing."""
        if decision.typed:
            return True
        try:
            checked_answer(request, self.codec.decode_text(decision.value, path="answer"), self._source(request))
        except RequestError:
            return False
        return True

    def _source(self, request: PendingRequest) -> Executor | None:
        slot = self.graph.slots.get(request.source_executor_id)
        return slot.prototype if slot else None

    # --- branches ----------------------------------------------------------------------------------------------------

    async def _open_branch(self, storage: RunStorage, run_id: str, branch: BranchPoint) -> Opening:
        await self._refuse_answering_twice(storage, branch)
        log = await storage.open_run(
            run_id, workflow_name=self.graph.name, registry=self.graph.registry, create=True, branch_of=branch
        )
        assert log is not None
        try:
            if log.info is not None:
                raise InvalidRunArguments(f"run {run_id!r} exists already; give the branch another run_id")
            checkpoint = await log.load(branch.checkpoint_id, self.graph.registry)
            state = state_from(checkpoint)
            warnings = self._check_graph(checkpoint, state)
            state = self._edited(state._replace(pending=_without_doubts(state.pending)))
            state = state._replace(inherited=await self._inherited(storage, branch, state))
            opening = Opening(log.run_id, state, "enter", log, restore=True, warnings=warnings, is_new=True)
            if self.request.responses:
                return self._answered(opening, self.request.responses, typed=True)
            return opening
        except BaseException:
            await log.release()
            if log.info is None:
                await storage.delete_run(log.run_id)
            raise

    async def _refuse_answering_twice(self, storage: RunStorage, branch: BranchPoint) -> None:
        """A decision counts once, whichever checkpoint is named; only an explicit branch may decide differently."""
        if self.request.branch or not self.request.responses or not branch.run_id:
            return
        for request_id in self.request.responses:
            decision = await storage.decision(branch.run_id, request_id)
            if decision is not None:
                raise already_answered(branch.run_id, decision)
            if await storage.run_waiting_for(request_id) == branch.run_id:
                raise InvalidRunArguments(
                    f"checkpoint {branch.checkpoint_id!r} is not the newest of run {branch.run_id!r}, where request "
                    f"{request_id!r} still waits; answer it there (leave checkpoint_id out), or pass branch=True"
                )

    async def _inherited(
        self, storage: RunStorage, branch: BranchPoint, state: RunState
    ) -> Mapping[str, Sequence[str]]:
        """What a branch that was not asked for by name finds pending is decided where it was asked, now or later.

        Otherwise one question could be answered twice, and both answers acted on.
        """
        if self.request.branch or not branch.run_id:
            return {}
        found: dict[str, Sequence[str]] = {}
        for request_id in state.pending:
            owner = state.inherited.get(request_id, (branch.run_id,))[0]
            found[request_id] = _as_found(owner, await storage.decision(owner, request_id))
        return found

    async def _refuse_what_is_inherited(self, storage: RunStorage, state: RunState) -> None:
        """With what has been decided since the branch was made."""
        for request_id in self.request.responses or ():
            if request_id in state.pending and request_id in state.inherited:
                owner = state.inherited[request_id][0]
                raise _inherited(request_id, _as_found(owner, await storage.decision(owner, request_id)))

    def _edited(self, state: RunState) -> RunState:
        return state._replace(shared={**state.shared, **isolated(dict(self.request.state_edits))})

    # --- messages and graphs -----------------------------------------------------------------------------------------

    def _entered(self, state: RunState) -> RunState:
        """A message from outside begins a turn."""
        message = WorkflowMessage(isolated(self.request.message), INPUT, self.graph.start)
        is_first = state.iteration == 0 and not state.inbox
        return state._replace(
            inbox=(*state.inbox, message),
            turn=state.turn if is_first else state.turn + 1,
            turn_began=state.iteration,
            input_digest=self._digest(),
        )

    def _digest(self) -> str | None:
        try:
            return request_digest(self.codec, self.request.message)[0]
        except CodecError:
            # Without a storage anything may be a message. With one, saving it says what is wrong with it.
            return None

    def _is_same_message(self, state: RunState) -> bool:
        return state.input_digest is None or state.input_digest == self._digest()

    def _check_graph(self, checkpoint: WorkflowCheckpoint, state: RunState) -> tuple[str, ...]:
        if checkpoint.graph_signature_hash == self.graph.signature:
            return ()
        stored = checkpoint.state.get(GRAPH_SHAPE)
        before = stored if isinstance(stored, GraphShape) else self.graph.shape
        missing = tuple(missing_from(state, self.graph, before))
        differences = before.differences(self.graph.shape)
        if missing or self.request.strict_graph:
            raise GraphChanged(checkpoint.checkpoint_id, missing or differences or ("the start executor differs",))
        what = "; ".join(differences) or "the start executor differs"
        return (f"the graph has changed since checkpoint {checkpoint.checkpoint_id!r} was written: {what}",)


def missing_from(state: RunState, graph: Graph, before: GraphShape) -> list[str]:
    """What the checkpoint needs and the graph lacks."""
    needs: list[tuple[str, str]] = [(name, "its state is kept") for name, kept in state.executor_states.items() if kept]
    for message in state.inbox:
        kind = type_name(type(message.data))
        if message.target_id is not None:
            needs.append((message.target_id, f"a {kind} is queued for it"))
        elif message.source_id not in (INPUT, RESPONSES):
            needs.append((message.source_id, f"a {kind} it sent is queued"))
            needs.extend((name, f"a {kind} is queued for it") for name in before.targets_of(message.source_id))
    needs.extend((request.source_executor_id, "a request of it is pending") for request in state.pending.values())
    gone = [
        f"executor {name!r} is gone and {why}" for name, why in needs if name not in graph.slots and name != JOURNAL
    ]
    for name, kept in state.executor_states.items():
        if name in graph.slots:
            gone.extend(graph.slots[name].prototype.missing_for(kept))
    gone.extend(
        f"the fan-in {name} is gone and has collected messages"
        for name, by_source in state.collected.items()
        if by_source and name not in graph.fan_ins
    )
    return gone


def _calls_of_superstep(calls: Sequence[CallRecord], number: int) -> tuple[CallRecord, ...]:
    # With audit=True the rows of earlier supersteps stay in the journal too.
    return tuple(row for row in calls if row.scope.startswith(f"{number}/"))


def _without_doubts(pending: Mapping[str, PendingRequest]) -> dict[str, PendingRequest]:
    """A branch makes fresh calls, so it has none in doubt."""
    return {key: request for key, request in pending.items() if not isinstance(request.data, CallInDoubt)}


def _as_found(owner: str, decision: Decision | None) -> Sequence[str]:
    """A request of another run, as `RunState.inherited` keeps it."""
    return (owner, "", "") if decision is None else (owner, decision.answered_at, decision.value)


def _inherited(request_id: str, found: Sequence[str]) -> Exception:
    run_id, answered_at, value = found
    if answered_at:
        return already_answered(run_id, Decision(request_id, value, answered_at))
    return InvalidRunArguments(
        f"request {request_id!r} was asked by run {run_id!r}, of which this run is a branch, and waits there; "
        f"answer it there (run_id={run_id!r}), or answer it in a branch that is asked for by branch=True"
    )


def already_answered(run_id: str, decision: Decision) -> AlreadyAnswered:
    shown = decision.value if len(decision.value) <= 300 else decision.value[:299] + "…"
    return AlreadyAnswered(decision.request_id, run_id, decision.answered_at, shown)
