"""Every error stepwell raises, in one tree.

    StepwellError
    ├── WorkflowException                    any error of a run
    │   ├── WorkflowValidationError          the graph, refused by build()
    │   │   ├── EdgeDuplicationError
    │   │   ├── GraphConnectivityError
    │   │   └── TypeCompatibilityError
    │   ├── InvalidRunArguments              run() was asked for something contradictory
    │   ├── UnknownRun                       no such run, and nothing to start one with
    │   ├── RunUnfinished                    another message for a run that is not done
    │   ├── WorkflowBusy                     executor instances serve one run at a time
    │   ├── RequestError                     answers to requests
    │   │   ├── UnknownRequest
    │   │   ├── AlreadyAnswered
    │   │   ├── DuplicateRequest
    │   │   └── ResponseTypeMismatch
    │   ├── ExecutorTimeout                  a handler took longer than its executor allows
    │   ├── AwaitedCancelled                 a handler waited for something that was cancelled
    │   ├── NoHandler                        a message reached an executor that can't take it
    │   ├── MissingState                     an executor reads shared state that nobody has written
    │   ├── WorkflowConvergenceException     the superstep limit
    │   └── WorkflowCheckpointException      storage, codec, journal, lease
    │       ├── CheckpointNotFound
    │       ├── CheckpointDamaged
    │       ├── FormatTooNew
    │       ├── InvalidId
    │       ├── GraphChanged
    │       ├── StorageError                 the medium failed: disk full, I/O error, database gone
    │       │   └── StorageClosed
    │       ├── CodecError
    │       │   ├── NotSavable
    │       │   │   └── SecretRefused
    │       │   ├── LimitExceeded
    │       │   ├── UnknownType
    │       │   └── Undecodable
    │       ├── JournalError
    │       │   ├── ReplayDivergence
    │       │   ├── DuplicateCallKey
    │       │   ├── CallFailed               a person answered that a call in doubt failed
    │       │   └── CallUndecided            an at-most-once call in doubt was reached again
    │       └── LeaseError
    │           ├── RunBusy
    │           └── RunTakenOver
    ├── AgentException                       an agent could not do its turn
    │   ├── UnknownApproval                  an answer names a tool call that waits for none
    │   ├── OutputInvalid                    the reply never fitted the output_type
    │   ├── LedgerUnreadable                 a manager's progress ledger; its team replans
    │   ├── ManagerCannotAsk                 a team's manager asked for a person's approval
    │   ├── TeamsTooDeep                     teams inside teams, past the limit
    │   └── ToolError                        raised by a tool: it failed for certain, tell the model
    │       └── InvalidArguments
    └── ChatClientException                  the model could not be asked, or its answer not be used
        ├── MissingConfiguration             no key, no model name
        ├── RealModelForbidden               a test reached for a real model
        └── ModelCallFailed                  the server said no, or nothing that makes sense
            ├── InvalidCredentials
            ├── ModelNotFound
            ├── ContextTooLong
            ├── ContentFiltered
            ├── QuotaExhausted
            ├── RequestRejected              any other 4xx
            └── TransientModelError          worth trying again, and has been
                ├── RateLimited
                ├── ModelUnavailable         408, 409, 5xx
                ├── ModelUnreachable         no connection
                ├── ModelTimeout
                └── MalformedReply           HTML, bad JSON, no choices
                    └── StreamInterrupted    a stream that ended before its end

The first arguments are what programs need (ids, paths), `str()` is what people need: what happened, to which id, what
to do next. All of them survive pickling.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "AgentException",
    "AlreadyAnswered",
    "AwaitedCancelled",
    "CallFailed",
    "CallUndecided",
    "ChatClientException",
    "CheckpointDamaged",
    "CheckpointNotFound",
    "CodecError",
    "ContentFiltered",
    "ContextTooLong",
    "DuplicateCallKey",
    "DuplicateRequest",
    "EdgeDuplicationError",
    "ExecutorTimeout",
    "FormatTooNew",
    "GraphChanged",
    "GraphConnectivityError",
    "InvalidArguments",
    "InvalidCredentials",
    "InvalidId",
    "InvalidRunArguments",
    "JournalError",
    "LeaseError",
    "LedgerUnreadable",
    "LimitExceeded",
    "MalformedReply",
    "ManagerCannotAsk",
    "MissingConfiguration",
    "MissingState",
    "ModelCallFailed",
    "ModelNotFound",
    "ModelTimeout",
    "ModelUnavailable",
    "ModelUnreachable",
    "NoHandler",
    "NotSavable",
    "OutputInvalid",
    "QuotaExhausted",
    "RateLimited",
    "RealModelForbidden",
    "ReplayDivergence",
    "RequestError",
    "RequestRejected",
    "ResponseTypeMismatch",
    "RunBusy",
    "RunTakenOver",
    "RunUnfinished",
    "SecretRefused",
    "StepwellError",
    "StorageClosed",
    "StorageError",
    "StreamInterrupted",
    "TeamsTooDeep",
    "ToolError",
    "TransientModelError",
    "TypeCompatibilityError",
    "Undecodable",
    "UnknownApproval",
    "UnknownRequest",
    "UnknownRun",
    "UnknownType",
    "WorkflowBusy",
    "WorkflowCheckpointException",
    "WorkflowConvergenceException",
    "WorkflowException",
    "WorkflowValidationError",
]


class StepwellError(Exception):
    """The root of everything stepwell raises on purpose."""


class WorkflowException(StepwellError):
    """Any error of a workflow or of one of its runs."""


# --- building ---------------------------------------------------------------------------------------------------------


class WorkflowValidationError(WorkflowException):
    """The graph does not make sense; the message names the executors and the fix."""


class EdgeDuplicationError(WorkflowValidationError):
    """The same edge was added twice."""

    def __init__(self, source: str, target: str) -> None:
        super().__init__(source, target)
        self.source = source
        self.target = target

    def __str__(self) -> str:
        return f"the edge {self.source!r} -> {self.target!r} was added twice; remove one of them"


class GraphConnectivityError(WorkflowValidationError):
    """Some executors can't be reached from the start."""


class TypeCompatibilityError(WorkflowValidationError):
    """What one executor sends is nothing the next one accepts."""

    def __init__(self, source: str, target: str, sends: tuple[str, ...], accepts: tuple[str, ...]) -> None:
        super().__init__(source, target, sends, accepts)
        self.source = source
        self.target = target
        self.sends = sends
        self.accepts = accepts

    def __str__(self) -> str:
        return (
            f"{self.source!r} sends {', '.join(self.sends)} but {self.target!r} accepts {', '.join(self.accepts)}; "
            f"add a handler for it to {self.target!r} or correct the annotation of {self.source!r}'s context"
        )


# --- running ----------------------------------------------------------------------------------------------------------


class InvalidRunArguments(WorkflowException, ValueError):
    """`run` was asked for something contradictory, or for nothing at all."""


class UnknownRun(WorkflowException):
    """There is no such run, and nothing to start it with."""

    def __init__(self, run_id: str, advice: str) -> None:
        super().__init__(run_id, advice)
        self.run_id = run_id
        self.advice = advice

    def __str__(self) -> str:
        return f"there is no run {self.run_id!r}; {self.advice}"


class RunUnfinished(WorkflowException):
    """A run that is not done was given another message."""

    def __init__(self, run_id: str, state: str) -> None:
        super().__init__(run_id, state)
        self.run_id = run_id
        self.state = state

    def __str__(self) -> str:
        return (
            f"run {self.run_id!r} is {self.state} and has not finished its message; resume it with the same message "
            "(or none), answer its requests, or start another run_id"
        )


class WorkflowBusy(WorkflowException):
    """Executor instances are shared, so they serve one run at a time."""

    def __init__(self, workflow_name: str, executor_ids: tuple[str, ...]) -> None:
        super().__init__(workflow_name, executor_ids)
        self.workflow_name = workflow_name
        self.executor_ids = executor_ids

    def __str__(self) -> str:
        names = ", ".join(repr(name) for name in self.executor_ids)
        return (
            f"workflow {self.workflow_name!r} is already running and {names} are executor instances, which hold one "
            "run's state at a time; pass factories (for example `lambda: MyExecutor('id')`) to run it concurrently"
        )


class RequestError(WorkflowException):
    """Something is wrong with an answer to a request."""


class UnknownRequest(RequestError):
    """An answer names a request that is not pending."""

    def __init__(self, request_id: str, pending: tuple[str, ...]) -> None:
        super().__init__(request_id, pending)
        self.request_id = request_id
        self.pending = pending

    def __str__(self) -> str:
        known = ", ".join(repr(name) for name in self.pending) or "nothing"
        return f"no request {self.request_id!r} is waiting for an answer; waiting: {known}"


class AlreadyAnswered(RequestError):
    """A decision counts once."""

    def __init__(self, request_id: str, run_id: str, answered_at: str, answer: str) -> None:
        super().__init__(request_id, run_id, answered_at, answer)
        self.request_id = request_id
        self.run_id = run_id
        self.answered_at = answered_at
        self.answer = answer

    def __str__(self) -> str:
        return (
            f"request {self.request_id!r} of run {self.run_id!r} was answered at {self.answered_at} "
            f"with {self.answer}; to try another answer, pass the checkpoint_id and branch=True"
        )


class DuplicateRequest(RequestError):
    """A request id chosen by the program was used before in this run."""

    def __init__(self, request_id: str, executor_id: str) -> None:
        super().__init__(request_id, executor_id)
        self.request_id = request_id
        self.executor_id = executor_id

    def __str__(self) -> str:
        return (
            f"executor {self.executor_id!r} asked with request_id={self.request_id!r}, which this run has used before; "
            "leave request_id out to get a fresh one"
        )


class ResponseTypeMismatch(RequestError):
    """An answer is not of the type that was asked for."""

    def __init__(self, request_id: str, expected: str, problem: str) -> None:
        super().__init__(request_id, expected, problem)
        self.request_id = request_id
        self.expected = expected
        self.problem = problem

    def __str__(self) -> str:
        return f"the answer to request {self.request_id!r} must be {self.expected}: {self.problem}; nothing was changed"


class NoHandler(WorkflowException):
    """A message reached an executor that has no handler for it."""

    def __init__(self, executor_id: str, message_type: str, accepts: tuple[str, ...]) -> None:
        super().__init__(executor_id, message_type, accepts)
        self.executor_id = executor_id
        self.message_type = message_type
        self.accepts = accepts

    def __str__(self) -> str:
        return (
            f"executor {self.executor_id!r} has no handler for {self.message_type}; it accepts "
            f"{', '.join(self.accepts) or 'nothing'}"
        )


class MissingState(WorkflowException):
    """An executor reads shared state that nobody has written."""

    def __init__(self, executor_id: str, key: str) -> None:
        super().__init__(executor_id, key)
        self.executor_id = executor_id
        self.key = key

    def __str__(self) -> str:
        return (
            f"executor {self.executor_id!r} reads the state {self.key!r}, which nobody wrote in this run; have it "
            f"run after an executor with output_key={self.key!r}, or after one that calls set_state({self.key!r}, …)"
        )


class ExecutorTimeout(WorkflowException, TimeoutError):
    """A handler took longer than its executor allows."""

    def __init__(self, executor_id: str, seconds: float) -> None:
        super().__init__(executor_id, seconds)
        self.executor_id = executor_id
        self.seconds = seconds

    def __str__(self) -> str:
        return (
            f"executor {self.executor_id!r} did not finish within its timeout of {self.seconds:g} s; "
            "raise timeout=…, or give it retry=RetryPolicy(…)"
        )


class AwaitedCancelled(WorkflowException):
    """A handler waited for something that was cancelled, while nobody cancelled the run."""

    def __init__(self, executor_id: str) -> None:
        super().__init__(executor_id)
        self.executor_id = executor_id

    def __str__(self) -> str:
        return (
            f"executor {self.executor_id!r} waited for a task or future that somebody else cancelled; "
            "catch asyncio.CancelledError around it if that is to be expected, then resume the run"
        )


class WorkflowConvergenceException(WorkflowException):
    """The run used up its supersteps with messages still queued."""

    def __init__(self, run_id: str, max_iterations: int) -> None:
        super().__init__(run_id, max_iterations)
        self.run_id = run_id
        self.max_iterations = max_iterations

    def __str__(self) -> str:
        return (
            f"run {self.run_id!r} did not finish within max_iterations={self.max_iterations} supersteps; "
            "nothing is lost: resume it with a higher max_iterations, or look for executors that message each other "
            "forever"
        )


# --- checkpointing ----------------------------------------------------------------------------------------------------


class WorkflowCheckpointException(WorkflowException):
    """Storage, codec, journal or lease."""


class CheckpointNotFound(WorkflowCheckpointException):
    """No checkpoint has this id."""

    def __init__(self, checkpoint_id: str, where: str = "this storage") -> None:
        super().__init__(checkpoint_id, where)
        self.checkpoint_id = checkpoint_id
        self.where = where

    def __str__(self) -> str:
        return f"checkpoint {self.checkpoint_id!r} is not in {self.where}; list_checkpoint_ids() shows what is"


class CheckpointDamaged(WorkflowCheckpointException):
    """A record's content does not match its digest, or can't be read at all."""

    def __init__(self, record: str, problem: str, good_ancestor: str | None = None) -> None:
        super().__init__(record, problem, good_ancestor)
        self.record = record
        self.problem = problem
        self.good_ancestor = good_ancestor

    def __str__(self) -> str:
        remedy = (
            f"the newest good ancestor is {self.good_ancestor!r}: resume it by that checkpoint_id"
            if self.good_ancestor
            else "no good ancestor was found"
        )
        return f"record {self.record!r} is damaged ({self.problem}); {remedy}"


class FormatTooNew(WorkflowCheckpointException):
    """The record was written by a later stepwell."""

    def __init__(self, record: str, version: str, supported: str) -> None:
        super().__init__(record, version, supported)
        self.record = record
        self.version = version
        self.supported = supported

    def __str__(self) -> str:
        return (
            f"record {self.record!r} has format {self.version}, this stepwell reads up to {self.supported}; "
            "upgrade stepwell to read it"
        )


class InvalidId(WorkflowCheckpointException, ValueError):
    """An id that may not reach a path or a query."""

    def __init__(self, kind: str, value: str) -> None:
        super().__init__(kind, value)
        self.kind = kind
        self.value = value

    def __str__(self) -> str:
        return f"{self.kind} {self.value[:200]!r} is not a valid id; use 1 to 128 of A-Z a-z 0-9 _ . -"


class GraphChanged(WorkflowCheckpointException):
    """The workflow lacks something that its checkpoint needs."""

    def __init__(self, checkpoint_id: str, missing: tuple[str, ...]) -> None:
        super().__init__(checkpoint_id, missing)
        self.checkpoint_id = checkpoint_id
        self.missing = missing

    def __str__(self) -> str:
        return (
            f"checkpoint {self.checkpoint_id!r} can't be resumed by this workflow: {'; '.join(self.missing)}; "
            "resume with the original graph or start a new run"
        )


class StorageError(WorkflowCheckpointException):
    """The medium failed: disk full, I/O error, database gone."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}; nothing more was recorded, resume the run when that is mended"


class StorageClosed(StorageError):
    """The storage was closed before it was used."""

    def __init__(self, where: str, problem: str = "the storage is closed") -> None:
        super().__init__(where, problem)


class CodecError(WorkflowCheckpointException):
    """A value can't be written or read."""


class NotSavable(CodecError):
    """A value has no place in a checkpoint."""

    def __init__(self, path: str, type_name: str, fix: str) -> None:
        super().__init__(path, type_name, fix)
        self.path = path
        self.type_name = type_name
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.path} is a {self.type_name}, which can't be saved; {self.fix}"


class SecretRefused(NotSavable):
    """Secrets never reach a checkpoint."""

    def __init__(
        self,
        path: str,
        type_name: str,
        fix: str = "secrets are never saved: keep it outside of messages and state, and read it again on restore",
    ) -> None:
        super().__init__(path, type_name, fix)


class LimitExceeded(CodecError):
    """A value is too deep or too large."""

    def __init__(self, what: str, limit: int, path: str) -> None:
        super().__init__(what, limit, path)
        self.what = what
        self.limit = limit
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} exceeds the {self.what} limit of {self.limit}; keep large data outside and refer to it"


class UnknownType(CodecError):
    """Resuming needs a type that this process does not know."""

    def __init__(self, type_name: str, path: str) -> None:
        super().__init__(type_name, path)
        self.type_name = type_name
        self.path = path

    def __str__(self) -> str:
        return (
            f"{self.path} is a {self.type_name}, which this process does not know; "
            "import the module that defines it and call stepwell.register_type(...) before resuming"
        )


class Undecodable(CodecError):
    """Well-formed JSON that is not a value of ours."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path} can't be decoded: {self.problem}"


class JournalError(WorkflowCheckpointException):
    """A recorded call and the program disagree."""


class ReplayDivergence(JournalError):
    """The program no longer makes the calls that were recorded for it."""

    def __init__(self, call: str, recorded: str, requested: str) -> None:
        super().__init__(call, recorded, requested)
        self.call = call
        self.recorded = recorded
        self.requested = requested

    def __str__(self) -> str:
        return (
            f"call {self.call!r} was recorded as {self.recorded} but the program now asks {self.requested}; "
            'nothing was called. If the code was changed on purpose, resume with on_divergence="recall" to drop the '
            "recorded calls of this delivery and make them anew"
        )


class DuplicateCallKey(JournalError):
    """One key names one call of a delivery."""

    def __init__(self, key: str, executor_id: str) -> None:
        super().__init__(key, executor_id)
        self.key = key
        self.executor_id = executor_id

    def __str__(self) -> str:
        return (
            f"executor {self.executor_id!r} made two calls with key={self.key!r} for one message; "
            "give each call a key of its own or leave the key out"
        )


class CallFailed(JournalError):
    """A person answered that a call in doubt has failed."""

    def __init__(self, call: str, reason: str) -> None:
        super().__init__(call, reason)
        self.call = call
        self.reason = reason

    def __str__(self) -> str:
        return f"call {self.call!r} was declared failed by a person: {self.reason}"


class CallUndecided(JournalError):
    """An at-most-once call was started before and nobody knows how it ended."""

    def __init__(self, call: str, run_id: str) -> None:
        super().__init__(call, run_id)
        self.call = call
        self.run_id = run_id

    def __str__(self) -> str:
        return (
            f"at-most-once call {self.call!r} of run {self.run_id!r} was started before and its end is unknown; "
            "resume the run and answer the CallInDoubt request it emits"
        )


class LeaseError(WorkflowCheckpointException):
    """Who may write to a run."""


class RunBusy(LeaseError):
    """Another runner holds this run."""

    def __init__(self, run_id: str, holder: str) -> None:
        super().__init__(run_id, holder)
        self.run_id = run_id
        self.holder = holder

    def __str__(self) -> str:
        return f"run {self.run_id!r} is being run by {self.holder}; wait for it, or stop it and try again"


class RunTakenOver(LeaseError):
    """This runner lost its run to another and may not write any more."""

    def __init__(self, run_id: str, holder: str) -> None:
        super().__init__(run_id, holder)
        self.run_id = run_id
        self.holder = holder

    def __str__(self) -> str:
        return f"run {self.run_id!r} was taken over by {self.holder}; this runner's write was refused and it must stop"


# --- agents -----------------------------------------------------------------------------------------------------------


class AgentException(StepwellError):
    """An agent could not do its turn."""


class UnknownApproval(AgentException):
    """An approval names a tool call that is not waiting for one."""

    def __init__(self, request_id: str, pending: tuple[str, ...]) -> None:
        super().__init__(request_id, pending)
        self.request_id = request_id
        self.pending = pending

    def __str__(self) -> str:
        return (
            f"no tool call waits for approval {self.request_id!r}; waiting: {listed(self.pending) or 'nothing'}. "
            "Nothing was run. Answer in the session that asked, or pass the assistant message with the request along"
        )


class OutputInvalid(AgentException):
    """An agent's reply did not fit its output_type, however often it was asked."""

    def __init__(self, agent: str, type_name: str, problem: str, attempts: int) -> None:
        super().__init__(agent, type_name, problem, attempts)
        self.agent = agent
        self.type_name = type_name
        self.problem = problem
        self.attempts = attempts

    def __str__(self) -> str:
        return (
            f"agent {self.agent!r} was asked {self.attempts} time(s) for a {self.type_name} and its last reply was not "
            f"one: {self.problem}; simplify the type, say more in the instructions, or raise max_tokens"
        )


class LedgerUnreadable(AgentException):
    """A manager gave no usable progress ledger, however often it was asked. Its team replans."""

    def __init__(self, agent: str, problem: str, attempts: int) -> None:
        super().__init__(agent, problem, attempts)
        self.agent = agent
        self.problem = problem
        self.attempts = attempts

    def __str__(self) -> str:
        return (
            f"manager {self.agent!r} was asked {self.attempts} time(s) for a progress ledger and its last reply was "
            f"not usable: {self.problem} Try a larger model, or one that keeps to JSON schemas"
        )


class ManagerCannotAsk(AgentException):
    """A team's manager came back with a question to a person where its judgement was needed."""

    def __init__(self, manager: str, purpose: str, asked: tuple[str, ...]) -> None:
        super().__init__(manager, purpose, asked)
        self.manager = manager
        self.purpose = purpose
        self.asked = asked

    def __str__(self) -> str:
        return (
            f"manager {self.manager!r} was asked for the {self.purpose} and asks a person instead "
            f"({', '.join(self.asked)}); nobody can answer a manager: give tools that need approval, and teams that "
            "ask people, to a participant, or review plans with enable_plan_review=True"
        )


class TeamsTooDeep(AgentException):
    """Workflows are used as agents inside one another, further down than allowed."""

    def __init__(self, names: tuple[str, ...], limit: int) -> None:
        super().__init__(names, limit)
        self.names = names
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"teams are nested {len(self.names)} deep, more than {self.limit}: {' > '.join(self.names)}; "
            "does one of them contain itself? If not, make one workflow of some of them"
        )


class ToolError(AgentException):
    """Raise it in a tool to say: this failed for certain and had no effect. The model is told its text."""


class InvalidArguments(ToolError, ValueError):
    """What a model sent does not fit the tool's parameters; the text is for the model."""


class ChatClientException(StepwellError):
    """The model could not be asked, or its answer could not be used."""


class MissingConfiguration(ChatClientException, ValueError):
    """A setting that the client can't do without was given nowhere."""

    def __init__(self, setting: str, variable: str) -> None:
        super().__init__(setting, variable)
        self.setting = setting
        self.variable = variable

    def __str__(self) -> str:
        return f"no {self.setting} was given; pass {self.setting}=… or set the environment variable {self.variable}"


class RealModelForbidden(ChatClientException):
    """Real model requests are switched off, as they should be in tests."""

    def __init__(self, client: str) -> None:
        super().__init__(client)
        self.client = client

    def __str__(self) -> str:
        return (
            f"{self.client} was about to ask a real model while that is forbidden; use a ScriptedChatClient, or allow "
            "it with stepwell.testing.real_models_allowed()"
        )


class ModelCallFailed(ChatClientException):
    """A model call that did not lead to a reply. `detail` is what the server said, without any key in it."""

    advice = "look at `detail` and the server's logs"

    def __init__(
        self,
        model: str,
        detail: str,
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(model, detail, status, code, request_id, retry_after)
        self.model = model
        self.detail = detail
        self.status = status
        self.code = code
        self.request_id = request_id
        self.retry_after = retry_after
        self.attempts = 1

    def __str__(self) -> str:
        status = f" (HTTP {self.status})" if self.status else ""
        tried = f" after {self.attempts} attempts" if self.attempts > 1 else ""
        request = f"; request id {self.request_id}" if self.request_id else ""
        return f"model {self.model!r} could not be used{tried}{status}: {self.detail}; {self.advice}{request}"


class InvalidCredentials(ModelCallFailed):
    """The server does not accept the key, or the key may not use this model."""

    advice = "check api_key= or OPENAI_API_KEY, and that the key may use this model"


class ModelNotFound(ModelCallFailed):
    """The server knows no such model, or no such path."""

    advice = "check model= or OPENAI_MODEL, and that base_url ends where the server's API begins (often /v1)"


class ContextTooLong(ModelCallFailed):
    """The conversation does not fit into the model's context."""

    advice = "shorten the conversation (a history provider can), lower max_tokens, or use a model with a larger context"


class ContentFiltered(ModelCallFailed):
    """The provider's content filter refused the request."""

    advice = "rephrase the conversation; asking again unchanged will not help"


class QuotaExhausted(ModelCallFailed):
    """The account has no credit left; waiting will not help."""

    advice = "check the plan and billing of the account that the key belongs to"


class RequestRejected(ModelCallFailed):
    """The server does not accept this request."""

    advice = "change the options named there; asking again unchanged will not help"


class TransientModelError(ModelCallFailed):
    """Something that passes. The client has waited and tried again, as its RetryPolicy says, before raising this."""

    advice = "try again later, or allow more with retry=RetryPolicy(...)"


class RateLimited(TransientModelError):
    """Too many requests or tokens for the account."""

    advice = "lower max_concurrency, or allow more waiting with retry=RetryPolicy(max_seconds=...)"


class ModelUnavailable(TransientModelError):
    """The server failed or is overloaded."""


class ModelUnreachable(TransientModelError):
    """There was no connection, or it broke."""

    advice = "check base_url= or OPENAI_BASE_URL and that the server is up"


class ModelTimeout(TransientModelError):
    """The server did not answer in time, or a stream stalled."""

    advice = "allow more with timeout=..., or use a faster model"


class MalformedReply(TransientModelError):
    """A 200 whose body is no chat completion."""

    advice = "check that base_url is an OpenAI-compatible API and not a proxy's error page"


class StreamInterrupted(MalformedReply):
    """A stream ended without saying why; what came of it is not a complete reply."""

    advice = "the connection or the server broke off; run it again"


def listed(names: Iterable[object]) -> str:
    """Names for a sentence: quoted, separated by commas."""
    return ", ".join(repr(str(name)) for name in names)
