"""What went wrong and what to do about it, in commands that can be copied: the library's own advice is for programs."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell import errors
from stepwell.cli.command_lines import command_line

ANY_TARGET = "TARGET"
"""Stands for a workflow that this command was not told."""
_LONGEST_ID = 128
_MENDED = "-mended"


class Unusable(Exception):
    """The command can't do what it was asked for; the text says why and what to do."""


@dataclass(slots=True)
class Advice:
    """What a command is about, as far as it is known, so that it can say how to go on."""

    command: str | None = None
    """Goes on with the run; there is none before there is something to go on with."""
    target: str = ANY_TARGET
    run_id: str | None = None
    """The run that is worked on, if it was there before."""
    store: str | None = None
    """As it was named on the command line."""

    def line(self, *words: str) -> str:
        """A command on the same store."""
        return command_line(*words, store=self.store)


def sentence(error: BaseException, advice: Advice) -> str:
    """What happened and what to do; errors are named too, because the texts of other people's may say nothing."""
    if isinstance(error, Unusable):
        return str(error)
    remedy = _remedy(error, advice)
    return f"{type(error).__name__}: {what_happened(error)}" + (f"; {remedy}" if remedy else "")


def what_happened(error: BaseException) -> str:
    """The error in words, without advice that only a program can follow."""
    match error:
        case errors.CheckpointDamaged():
            before = f"the newest good checkpoint before it is {error.good_ancestor}"
            none = "no good checkpoint before it was found"
            return f"record {error.record!r} is damaged ({error.problem}); {before if error.good_ancestor else none}"
        case errors.CheckpointNotFound():
            return f"checkpoint {error.checkpoint_id!r} is not in this store"
        case errors.AlreadyAnswered():
            answered = f"was answered at {error.answered_at} with {error.answer}"
            return f"request {error.request_id!r} of run {error.run_id!r} {answered}"
        case errors.GraphChanged():
            lacks = "; ".join(error.missing)
            return f"checkpoint {error.checkpoint_id!r} can't be resumed by this workflow: {lacks}"
        case errors.RunBusy():
            return f"run {error.run_id!r} is being run by {error.holder}"
        case errors.RunUnfinished():
            return f"run {error.run_id!r} is {error.state} and has not finished its message"
        case errors.ReplayDivergence():
            asks = f"was recorded as {error.recorded} but the program now asks {error.requested}"
            return f"call {error.call!r} {asks}; nothing was called"
        case errors.WorkflowConvergenceException():
            limit = f"max_iterations={error.max_iterations} supersteps"
            return f"run {error.run_id!r} did not finish within {limit}; nothing is lost"
        case SystemExit():
            return f"the program ended itself with sys.exit({'' if error.code is None else repr(error.code)})"
    return str(error) or "it gave no reason"


def _remedy(error: BaseException, advice: Advice) -> str:
    """What to do about it; empty if the error's own text says so."""
    match error:
        case errors.CheckpointDamaged() if error.good_ancestor:
            return f"start a new run from there with: {_branch(error.good_ancestor, advice)}"
        case errors.CheckpointDamaged():
            return f"all that is damaged is listed by: {advice.line('verify')}"
        case errors.CheckpointNotFound():
            return f"the checkpoints of a run are listed by: {advice.line('show', 'RUN_ID')}"
        case errors.AlreadyAnswered():
            where = f"a checkpoint of before ({advice.line('show', error.run_id)} lists them)"
            return f"to try another answer, start from {where}: {advice.line('branch', advice.target, 'CHECKPOINT_ID')}"
        case errors.ResponseTypeMismatch():
            fitting = advice.line("review", error.request_id, "--answer", "JSON", "--target", advice.target)
            return f"give an answer that fits with: {fitting}"
        case errors.GraphChanged():
            return "name the workflow that began this run, or start a new run"
        case errors.RunBusy():
            return "wait for it, or stop it"
        case errors.RunUnfinished():
            way = advice.line("resume", advice.target, error.run_id)
            return f"go on with it ({way}), or start another with another --run-id"
        case errors.ReplayDivergence():
            return "if the code was changed on purpose, these calls can be made anew"
        case errors.WorkflowConvergenceException():
            return "allow more, or look for executors that message each other forever"
        case errors.StepwellError() | OSError():
            return ""
    whose = "that is an error in the program, or a bug in stepwell"
    return f"{whose if advice.target != ANY_TARGET else 'that is a bug in stepwell'}; --traceback shows where"


def way_on(error: BaseException, advice: Advice) -> str | None:
    """How to go on afterwards; None where the same command would only fail again."""
    if advice.command is None:
        return None
    match error:
        case errors.CheckpointDamaged() | errors.GraphChanged() | errors.AlreadyAnswered():
            return None
        case errors.RunBusy():
            return f"then go on with: {advice.command}"
        case errors.ReplayDivergence():
            return f"make them anew and go on with: {advice.command} --recall"
        case errors.WorkflowConvergenceException():
            return f"go on with: {advice.command} --max-iterations {2 * error.max_iterations}"
        case errors.StepwellError() | OSError():
            return f"once that is mended, go on with: {advice.command}"
    return f"what was done before is saved; with the code corrected, go on with: {advice.command}"


def _branch(checkpoint_id: str, advice: Advice) -> str:
    name = f"{advice.run_id}{_MENDED}" if advice.run_id else ""
    named = ("--run-id", name) if 0 < len(name) <= _LONGEST_ID else ()
    return advice.line("branch", advice.target, checkpoint_id, *named)
