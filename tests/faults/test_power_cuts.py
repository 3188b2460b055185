"""The power is cut after any change to the disk: what was acknowledged is there, and nothing half-done is to be seen.

Every change that a file storage makes is recorded while it works; then each state that a power cut could have left is
laid out (see `power.py`) and opened by a fresh storage. It has to show the store as it was after the last step that was
acknowledged, or after the one that was under way; to find nothing damaged; and to go on.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stepwell.checkpointing import LATEST_ONLY, Retention, keep_last
from stepwell.checkpointing.registry import known_types
from stepwell.checkpointing.retention import FULL_HISTORY
from stepwell.checkpointing.storage.file import FileCheckpointStorage
from stepwell.checkpointing.storage.file_operations import Buffer, served_by
from stepwell.checkpointing.storage.protocol import BranchPoint
from stepwell.testing.storage import Label, asked, call, checkpoint, draft, opened
from tests.faults.power import (
    AfterwardsDisk,
    RecordingDisk,
    Synced,
    Thing,
    Tree,
    changes,
    lay_out,
    states_after,
    tree_of,
)

Shown = dict[str, Any]
"""What there is to be seen in a store."""

Scenario = Callable[[FileCheckpointStorage], AsyncIterator[None]]


# --- what is done -----------------------------------------------------------------------------------------------------


def state(n: int) -> dict[str, Any]:
    return {"n": n, "history": [Label(f"{i} " + "x" * 300) for i in range(n)]}


async def a_run(storage: FileCheckpointStorage) -> AsyncIterator[None]:
    log = await opened(storage)
    for n in (1, 2, 3):
        for name in ("ask", "pay"):
            await log.record_call(call(f"{name} {n}"), supersedes=())
            yield
        await log.save(draft(n, state(n), final=n == 3))
        yield


async def questions_and_answers(storage: FileCheckpointStorage) -> AsyncIterator[None]:
    log = await opened(storage)
    await log.save(draft(1, state(1), pending=[asked("r1")], final=True))
    yield
    await storage.answer("r1", True)
    yield


async def replaced_by_hand(storage: FileCheckpointStorage) -> AsyncIterator[None]:
    await storage.save(checkpoint(1))
    yield
    await storage.save(checkpoint(1, state={"other": [Label("y" * 500)]}))
    yield
    await storage.delete("c1")
    yield


async def swept(storage: FileCheckpointStorage) -> AsyncIterator[None]:
    log = await opened(storage)
    for n in range(4):
        await log.save(draft(n, {"n": n, "long": [Label(f"{n} {i} " + "z" * 9000) for i in range(4)]}, final=n == 3))
        yield


async def removed(storage: FileCheckpointStorage) -> AsyncIterator[None]:
    log = await opened(storage, "trunk")
    first = await log.save(draft(1, state(4)))
    await log.save(draft(2, state(6), final=True))
    yield
    branch = await opened(storage, "branch", branch_of=BranchPoint(first.checkpoint_id, "trunk"))
    await branch.load(first.checkpoint_id, known_types)
    await branch.save(draft(2, state(5), final=True))
    yield
    await storage.delete(first.checkpoint_id)
    yield
    await storage.delete_run("trunk")
    yield
    await storage.delete_run("branch")
    yield


SCENARIOS: dict[str, tuple[Scenario, Retention, int]] = {
    "a run": (a_run, FULL_HISTORY, 0),
    "a run of which the last is kept": (a_run, LATEST_ONLY, 5),
    "a question": (questions_and_answers, FULL_HISTORY, 1),
    "a checkpoint saved again by hand": (replaced_by_hand, FULL_HISTORY, 1),
    "values that are swept": (swept, keep_last(1), 2),
    "runs that are removed": (removed, FULL_HISTORY, 1),
}
"""With the step from which on the power is cut: how a store is made is the same for all."""


# --- what is seen -----------------------------------------------------------------------------------------------------


async def seen(storage: FileCheckpointStorage) -> Shown:
    report = await storage.verify()
    assert report.ok, report.damaged
    shown: Shown = {}
    for each in await storage.list_checkpoints():
        loaded = await storage.load(each.checkpoint_id)
        shown.setdefault(each.run_id or "", {})[each.checkpoint_id] = loaded.state
    for info in await storage.list_runs():
        log = await opened(storage, info.run_id, create=False)
        if not log.calls and not info.latest_checkpoint_id:
            await log.release()
            continue  # opened and no more: there is nothing to lose
        answers = {name: decision.value for name, decision in log.decisions.items()}
        shown[f"{info.run_id} as a run"] = (sorted(row.name for row in log.calls), answers, info.pending_requests)
        await log.release()
    return shown


async def gone_on(storage: FileCheckpointStorage) -> None:
    """A store that was seen to be whole can also be written to."""
    for info in await storage.list_runs():
        log = await opened(storage, info.run_id, create=False)
        await log.latest(known_types)
        await log.record_call(call("one more"), supersedes=())
        await log.save(draft(9, state(3), final=True))
    await storage.save(checkpoint(99))
    latest = await storage.get_latest()
    assert latest is not None
    assert latest.checkpoint_id == "c99"
    report = await storage.verify()
    assert report.ok, report.damaged


@dataclass
class Bench:
    """Where states are laid out and looked at, each of them once."""

    folder: Path
    retention: Retention
    known: dict[object, Shown] = field(default_factory=dict)

    async def look(self, tree: Tree, boot: bytes = b"the-second-start") -> Shown:
        key = (boot, frozenset(tree.items()))
        if key not in self.known:
            place = self.folder / f"state-{len(self.known)}"
            lay_out(tree, place)
            with served_by(AfterwardsDisk(boot)):
                async with FileCheckpointStorage(place / "store", retention=self.retention) as storage:
                    self.known[key] = await seen(storage)
                    await gone_on(storage)
            shutil.rmtree(place)
        return self.known[key]


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """Hundreds of small stores are laid out: in memory, where there is such a place."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path, prefix="stepwell-") as folder:
        yield Path(folder)


# --- cutting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scenario", "retention", "first"), SCENARIOS.values(), ids=SCENARIOS.keys())
async def test_no_power_cut_loses_what_was_acknowledged_or_shows_what_was_not_finished(
    scratch: Path, scenario: Scenario, retention: Retention, first: int
) -> None:
    (root := scratch / "disk").mkdir()
    disk, acknowledged = RecordingDisk(root), [0]
    with served_by(disk):
        async with FileCheckpointStorage(root / "store", retention=retention) as storage:
            acknowledged += [len(disk.log) async for _ in scenario(storage)]

    bench = Bench(scratch, retention)
    steps = [await bench.look(tree_of(changes(disk.log[:end]))) for end in acknowledged]
    assert all(before != after for before, after in pairwise(steps)), "each step can be told from the one before it"
    for end in range(acknowledged[first], len(disk.log) + 1):
        done = sum(each <= end for each in acknowledged) - 1
        # The process alone died: the machine goes on, with everything that was written.
        killed = await bench.look(tree_of(changes(disk.log[:end])), disk.boot())
        assert killed in steps[done : done + 2], (end, disk.log[max(0, end - 3) : end])
        for tree in states_after(disk.log[:end]):
            shown = await bench.look(tree)
            assert shown in steps[done : done + 2], (end, disk.log[max(0, end - 3) : end])


class OvertakenDisk(RecordingDisk):
    """Before anything has become durable, something else is begun and written."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._written = threading.Semaphore(0)
        self.begin_another: Callable[[], bool] = lambda: False

    def write(self, descriptor: int, data: Buffer) -> int:
        written = super().write(descriptor, data)
        self._written.release()
        return written

    def linger(self, thing: Thing) -> None:
        while self._written.acquire(blocking=False):
            pass
        if self.begin_another():
            self._written.acquire()


async def test_no_power_cut_loses_a_call_that_was_acknowledged_while_others_were_being_written(scratch: Path) -> None:
    (root := scratch / "disk").mkdir()
    disk, acknowledged = OvertakenDisk(root), dict[str, int]()
    names, all_done = [f"call-{n}" for n in range(8)], asyncio.Event()
    with served_by(disk):
        async with FileCheckpointStorage(root / "store") as storage:
            log, loop = await opened(storage), asyncio.get_running_loop()
            left = iter(names)

            async def record(name: str) -> None:
                await log.record_call(call(name), supersedes=())
                acknowledged[name] = len(disk.log)
                if len(acknowledged) == len(names):
                    all_done.set()

            def begin_another() -> bool:
                name = next(left, None)
                if name is not None:
                    asyncio.run_coroutine_threadsafe(record(name), loop)
                return name is not None

            disk.begin_another, first = begin_another, len(disk.log)
            await record(next(left))
            await all_done.wait()

    overtaken = [entry for index, entry in enumerate(disk.log) if isinstance(entry, Synced) and entry.began < index]
    assert len(overtaken) >= 7, "a line was written while an earlier one was made durable"
    bench = Bench(scratch, FULL_HISTORY)
    for end in range(first, len(disk.log) + 1):
        promised = {name for name, since in acknowledged.items() if since <= end}
        for tree in states_after(disk.log[:end]):
            shown = await bench.look(tree)
            calls = set(shown["run-1 as a run"][0]) if shown else set()
            assert promised <= calls, (end, promised - calls)


async def test_no_power_cut_takes_back_what_a_resumer_found_after_its_writer_was_killed(scratch: Path) -> None:
    """Killed after any change, resumed, and then the power is cut: whoever resumed may have acted on what it saw."""
    (root := scratch / "disk").mkdir()
    disk, begun = RecordingDisk(root), 0
    with served_by(disk):
        async with FileCheckpointStorage(root / "store") as storage:
            log = await opened(storage)
            begun = len(disk.log)
            await log.record_call(call("ask"), supersedes=())
            await log.save(draft(1, state(1)))
            await log.record_call(call("pay"), supersedes=())
            await log.save(draft(2, state(2), final=True))

    bench = Bench(scratch, FULL_HISTORY)
    for end in range(begun - 2, len(disk.log) + 1):
        (place := scratch / f"killed-{end}").mkdir()
        resumed = RecordingDisk(place, disk.log[:end])
        with served_by(resumed):
            async with FileCheckpointStorage(place / "store") as storage:
                log = await opened(storage)
                latest = await log.latest(known_types)
                await log.record_call(call("one more"), supersedes=())
                names = sorted(["one more", *(row.name for row in log.calls)])
                found = (names, latest.state if latest else None)
                told = list(resumed.log)
        for tree in states_after(told):
            shown = await bench.look(tree)
            calls = shown["run-1 as a run"][0] if "run-1 as a run" in shown else []
            states = list(shown.get("run-1", {}).values())
            assert (calls, states[-1] if states else None) == found, (end, told[-4:])
        shutil.rmtree(place)
