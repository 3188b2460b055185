"""Dying at a chosen point, to see what a run makes of it.

Wrap the storage of your workflow and name the instant at which the process is to die:

    storage = CrashingStorage(SQLiteCheckpointStorage("runs.db"))
    await workflow.run("task", run_id="r1", checkpoint_storage=storage)

    STEPWELL_CRASH_AT="after call#3" python program.py     # killed with SIGKILL at the third record of a call
    python program.py                                       # the same line again goes on, and repeats none of the three

Within one process, a test can do the same with an exception that nothing catches:

    with pytest.raises(PowerLoss):
        await workflow.run("task", run_id="r1", checkpoint_storage=CrashingStorage(disk, at="before checkpoint#2"))
    await workflow.run("task", run_id="r1", checkpoint_storage=disk)

The points of a storage are in `CRASH_POINTS`. Programs add their own with `reached("my point")`.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, cast

from stepwell.checkpointing.checkpoint import WorkflowCheckpoint
from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.registry import TypeRegistry
from stepwell.checkpointing.storage.protocol import (
    BranchPoint,
    CheckpointDraft,
    CheckpointStorage,
    Decision,
    RunInfo,
    RunLog,
    RunStorage,
)

CRASH_VARIABLE: Final = "STEPWELL_CRASH_AT"
"""The environment variable that names the point to die at."""

CRASH_POINTS: Final = (
    "before open",
    "after open",
    "found call",
    "before start",
    "after start",
    "before call",
    "after call",
    "before checkpoint",
    "after checkpoint",
    "before last checkpoint",
    "after last checkpoint",
    "before release",
    "after release",
)
"""What a `CrashingStorage` passes through. *Before* is when nothing has been handed to the storage, *after* is when the
write is durable and whoever asked for it has not heard yet.

    open             a run is taken
    found call       one of the recorded calls that a resumed run starts with
    start            the row that an at-most-once call leaves before it is made
    call             the record of a finished call
    checkpoint       any checkpoint, the entry and the last included
    last checkpoint  the one that ends the run
    release          a run is given back other than by its last checkpoint
"""

Watcher = Callable[[str, str], None]
"""Told of each point, and of the call, checkpoint or run it is about."""


class PowerLoss(BaseException):
    """The process is gone, for a test that wants to go on.

    Not an `Exception`: no handler and no retry may survive it.
    """


def kill_this_process(point: str) -> NoReturn:
    """The end, with no chance to tidy up."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError(f"still alive at {point!r}")  # pragma: no cover - nobody is


def lose_power(point: str) -> NoReturn:
    """The end of this program, not of its process."""
    raise PowerLoss(point)


class Crash:
    """Dies when a point is reached for the n-th time: `"after call#3"`, or `"after call"` for the first.

    `die` must not return; None as the point never dies.
    """

    def __init__(self, at: str | None, *, die: Callable[[str], NoReturn] = kill_this_process) -> None:
        name, _, count = (at or "").partition("#")
        if count and not (count.isdigit() and int(count)):
            raise ValueError(f"{at!r} is no crash point; write for example 'after call#3'")
        self._name = name.strip()
        self._count = int(count or 1)
        self._reached: Counter[str] = Counter()
        self._die = die

    def __call__(self, point: str, subject: str = "") -> None:
        self._reached[point] += 1
        if point == self._name and self._reached[point] == self._count:
            self._die(point)


_ordered: Crash | None = None


def reached(point: str, subject: str = "") -> None:
    """Die here if the environment variable `STEPWELL_CRASH_AT` names this point and it is its turn."""
    global _ordered
    if _ordered is None:
        _ordered = Crash(os.environ.get(CRASH_VARIABLE))
    _ordered(point, subject)


class CrashingStorage:
    """A storage with journal and fence that passes through `CRASH_POINTS` on its way.

    With `at`, reaching that point raises `PowerLoss`: what was durable stays, nothing is written any more, and the
    run is free as if its process had ended. Without, the environment variable decides and the process is really killed.
    A `watcher` is told of each point just before; it may note it, or die in a way of its own.
    """

    def __init__(self, storage: CheckpointStorage, *, at: str | None = None, watcher: Watcher | None = None) -> None:
        if not hasattr(storage, "open_run"):
            raise TypeError(f"{storage!r} has no runs to crash; wrap one of the storages stepwell ships")
        _check(at)
        self._storage = cast(RunStorage, storage)
        self._crash: Watcher = reached if at is None else Crash(at, die=lose_power)
        self._watcher = watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def __repr__(self) -> str:
        return f"CrashingStorage({self._storage!r})"

    def reached(self, point: str, subject: str) -> None:
        """Pass through a point, if possible."""
        if self._watcher is not None:
            self._watcher(point, subject)
        self._crash(point, subject)

    async def open_run(
        self,
        run_id: str,
        *,
        workflow_name: str,
        registry: TypeRegistry,
        create: bool,
        branch_of: BranchPoint | None = None,
    ) -> RunLog | None:
        self.reached("before open", run_id)
        log = await self._storage.open_run(
            run_id, workflow_name=workflow_name, registry=registry, create=create, branch_of=branch_of
        )
        if log is None:
            return None
        watched = CrashingRun(log, self.reached)
        await watched.enter()
        return watched

    # --- the six methods, and what else a run needs, are the storage's own --------------------------------------------

    @property
    def identity(self) -> object:
        return self._storage.identity

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        return await self._storage.save(checkpoint)

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        return await self._storage.load(checkpoint_id)

    async def list_checkpoints(
        self, *, workflow_name: str | None = None, run_id: str | None = None
    ) -> list[WorkflowCheckpoint]:
        return await self._storage.list_checkpoints(workflow_name=workflow_name, run_id=run_id)

    async def list_checkpoint_ids(self, *, workflow_name: str | None = None, run_id: str | None = None) -> list[str]:
        return await self._storage.list_checkpoint_ids(workflow_name=workflow_name, run_id=run_id)

    async def get_latest(
        self, *, workflow_name: str | None = None, run_id: str | None = None
    ) -> WorkflowCheckpoint | None:
        return await self._storage.get_latest(workflow_name=workflow_name, run_id=run_id)

    async def delete(self, checkpoint_id: str) -> bool:
        return await self._storage.delete(checkpoint_id)


class CrashingRun:
    """The log of one run, on its way through the points."""

    def __init__(self, log: RunLog, reached: Watcher) -> None:
        self._log = log
        self._reached = reached
        self._lost: PowerLoss | None = None

    @property
    def run_id(self) -> str:
        return self._log.run_id

    @property
    def info(self) -> RunInfo | None:
        return self._log.info

    @property
    def calls(self) -> Sequence[CallRecord]:
        return self._log.calls

    @property
    def decisions(self) -> Mapping[str, Decision]:
        return self._log.decisions

    async def enter(self) -> None:
        """The run has been taken."""
        await self._pass("after open", self.run_id)
        for row in self._log.calls:
            await self._pass("found call", row.call_id)

    async def latest(self, registry: TypeRegistry) -> WorkflowCheckpoint | None:
        return await self._log.latest(registry)

    async def load(self, checkpoint_id: str, registry: TypeRegistry) -> WorkflowCheckpoint:
        return await self._log.load(checkpoint_id, registry)

    async def save(self, draft: CheckpointDraft) -> WorkflowCheckpoint:
        subject = f"{self.run_id} {draft.iteration_count}"
        kinds = ("checkpoint", "last checkpoint") if draft.final else ("checkpoint",)
        for kind in kinds:
            await self._pass(f"before {kind}", subject)
        checkpoint = await self._log.save(draft)
        for kind in kinds:
            await self._pass(f"after {kind}", subject)
        return checkpoint

    async def record_call(self, row: CallRecord, *, supersedes: Sequence[str]) -> None:
        kind = "call" if row.finished else "start"
        await self._pass(f"before {kind}", row.call_id)
        await self._log.record_call(row, supersedes=supersedes)
        await self._pass(f"after {kind}", row.call_id)

    async def drop_calls(self, call_ids: Sequence[str]) -> None:
        self._check_power()
        await self._log.drop_calls(call_ids)

    async def release(self, *, state: str | None = None, stopped_by: str | None = None) -> None:
        await self._pass("before release", self.run_id)
        await self._log.release(state=state, stopped_by=stopped_by)
        await self._pass("after release", self.run_id)

    async def _pass(self, point: str, subject: str) -> None:
        self._check_power()
        try:
            self._reached(point, subject)
        except PowerLoss as loss:
            self._lost = loss
            # What the end of a process does by itself: nobody holds the run, and how it stands stays as it was.
            await self._log.release()
            raise

    def _check_power(self) -> None:
        if self._lost is not None:
            raise PowerLoss(*self._lost.args)


def _check(at: str | None) -> None:
    name = (at or "").partition("#")[0].strip()
    if at is not None and name not in CRASH_POINTS:
        raise ValueError(f"a storage has no point {name!r}; its points are {', '.join(CRASH_POINTS)}")
