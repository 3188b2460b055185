"""Calls are written to their journals at once, and acknowledged once they are durable.

    writer thread     lock, fence, write            lock, fence, write            …
    journal thread                      fsync, tell                   fsync, tell …

The one thread never waits for the other's fsync, so a call that ends while earlier ones are being made durable is
written meanwhile. Each line is acknowledged after an fsync that began when the line was written. If that fails, all
lines of the run that were written since the last good one are taken back, in the writer thread and under the lock, and
everybody who waits for one of them is told.

Whoever opens a run makes the journal durable that it found: there may be lines in it that a killed process has written
and not synced.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from stepwell.checkpointing.storage.file_disk import Layout, failure
from stepwell.checkpointing.storage.file_journal import call_line
from stepwell.checkpointing.storage.file_pens import NotAtOnce, Pen, Pens
from stepwell.checkpointing.storage.file_plan import Syncing
from stepwell.checkpointing.storage.file_record import RunRecord
from stepwell.checkpointing.storage.file_runs import Moved, Runs
from stepwell.checkpointing.storage.file_seats import Seats
from stepwell.checkpointing.storage.file_work import Work
from stepwell.checkpointing.storage.sqlite_jobs import DeleteRun, RecordCall
from stepwell.checkpointing.storage.writer import GroupWriter, Ticket, settle
from stepwell.errors import WorkflowCheckpointException

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Entrusted:
    """A call to be recorded. Its ticket is settled here, and not by the writer thread when its group is done."""

    ticket: Ticket

    @property
    def job(self) -> RecordCall:
        job: RecordCall = self.ticket.job
        return job

    @property
    def run_id(self) -> str:
        return self.job.run_id


@dataclass(frozen=True, slots=True)
class MakeGood:
    """Something that was written could not be made durable: the writer thread has to take it back."""

    run_id: None = None


@dataclass(frozen=True, slots=True)
class _Written:
    """Lines of one run that are in its journal, from `start` on."""

    pen: Pen
    start: int
    calls: Sequence[Entrusted]


def tell(calls: Sequence[Entrusted], outcome: Any) -> None:
    """All of these have come to the same."""
    settle([each.ticket for each in calls], [outcome] * len(calls))


class _Durability:
    """The `Medium` of the journal thread: lines go in written, and come out durable or as failures."""

    def __init__(self, on_failure: Callable[[_Written, Exception], None]) -> None:
        self._on_failure = on_failure
        self._syncing = Syncing()

    def commit(self, jobs: Sequence[_Written | threading.Event]) -> Sequence[None]:
        written = [job for job in jobs if isinstance(job, _Written)]
        pens = list({id(each.pen): each.pen for each in written}.values())
        errors = dict(zip(map(id, pens), self._synced(pens), strict=True))
        durable: list[Entrusted] = []
        for each in written:
            error = errors[id(each.pen)]
            if error is None and not each.pen.is_broken:
                durable += each.calls
            else:
                each.pen.is_broken = True
                self._on_failure(each, error or OSError("lines before it could not be made durable"))
            each.pen.done += 1
        tell(durable, None)
        for job in jobs:
            if isinstance(job, threading.Event):
                job.set()
        return [None] * len(jobs)

    def _synced(self, pens: Sequence[Pen]) -> Sequence[Exception | None]:
        try:
            return self._syncing.journals([pen.journal for pen in pens])
        except Exception as error:  # whatever it is, those who wait have to hear of it
            return [error] * len(pens)

    def pause(self) -> float | None:
        return None

    def tick(self) -> None:
        return

    def close(self) -> None:
        self._syncing.close()


class Scribe:
    """Writes calls down, in the writer thread."""

    def __init__(
        self, layout: Layout, runs: Runs, seats: Seats, work: Work, locked: Callable[..., AbstractContextManager[None]]
    ) -> None:
        self._layout = layout
        self._runs = runs
        self._seats = seats
        self._work = work
        self._locked = locked
        self._pens = Pens(layout)
        self._failed: deque[tuple[_Written, Exception]] = deque()
        self._journal_thread: GroupWriter | None = None
        self.wake: Callable[[], None] = lambda: None
        """Have the writer thread come round to `make_good`."""

    # --- writing -----------------------------------------------------------------------------------------------------

    def take(self, jobs: Sequence[Any]) -> list[Any]:
        """Write the calls among these that can be written at once; what is left is to be done the long way."""
        self.make_good()
        taken: set[int] = set()
        for run_id, calls in _first_calls(jobs).items():
            try:
                self._seats.renew()
                self._write(run_id, calls)
            except NotAtOnce:
                continue
            except OSError as error:
                tell(calls, failure(error, self._layout.root))
            except Exception as error:  # whatever it is, those who wait have to hear of it
                tell(calls, error)
            taken.update(map(id, calls))
        return [job for job in jobs if id(job) not in taken and type(job) is not MakeGood]

    def _write(self, run_id: str, calls: Sequence[Entrusted]) -> None:
        pen = self._pen(run_id)
        refused: list[tuple[Entrusted, Exception]] = []
        with pen.locked():
            self._runs.locked = {pen.origin}
            try:
                start, lines = self._lines(calls, refused)
                self._add(pen, start, b"".join(lines.values()))
            finally:
                self._runs.locked = None
            if lines:
                self._runs.journal_end[run_id] = start + sum(map(len, lines.values()))
        if lines:
            self._hand_over(_Written(pen, start, list(lines)))
        for call, error in refused:
            tell([call], error)
        if refused:
            self._runs.tidy()

    def _pen(self, run_id: str) -> Pen:
        pen = self._pens.known(run_id)
        if pen is not None and pen.is_broken:
            raise NotAtOnce
        if pen is None:
            record = self._runs.held(run_id)
            if record is None:
                raise NotAtOnce
            pen = self._pens.of(record)
        self._pens.use(pen)
        return pen

    def _lines(
        self, calls: Sequence[Entrusted], refused: list[tuple[Entrusted, Exception]]
    ) -> tuple[int, dict[Entrusted, bytes]]:
        """Where they begin, and the line of each call that may be recorded."""
        start = end = 0
        lines: dict[Entrusted, bytes] = {}
        for call in calls:
            job = call.job
            try:
                record = self._work.fenced(job.seat, job.fence)
                if not lines:
                    start = end = self._runs.journal_end[record.run_id]
                lines[call] = call_line(record, end, job.row, job.supersedes)
            except (OSError, Moved):
                raise NotAtOnce from None
            except Exception as error:  # a refusal is this call's outcome and nobody else's
                refused.append((call, error))
            else:
                end += len(lines[call])
                self._note_calls(job, record)
        return start, lines

    def _note_calls(self, job: RecordCall, record: RunRecord) -> None:
        held = job.seat.held.get(record.key)
        if held is not None:
            held.has_calls = True

    def _add(self, pen: Pen, start: int, data: bytes) -> None:
        if not data:
            return
        try:
            pen.write(start, data)
        except OSError:
            # An fsync reports an error once. The one that takes this back must not hear what is meant for another.
            self._wait()
            self._cut(pen, start)
            raise

    def _cut(self, pen: Pen, end: int) -> None:
        try:
            pen.cut(end)
        except OSError as problem:
            # The next one to write looks at the file again, and finds out what is there.
            logger.warning("a failed write could not be undone altogether: %s", problem)

    # --- making durable ----------------------------------------------------------------------------------------------

    def _hand_over(self, written: _Written) -> None:
        if self._journal_thread is None:
            name = f"stepwell-journal {self._layout.root.name}"
            self._journal_thread = GroupWriter(_Durability(self._fail_later), name=name)
        written.pen.handed += 1
        self._journal_thread.leave(written)

    def _fail_later(self, written: _Written, error: Exception) -> None:
        self._failed.append((written, error))
        self.wake()

    def _wait(self) -> None:
        """Until everything that was handed over is decided."""
        if self._journal_thread is not None:
            decided = threading.Event()
            self._journal_thread.leave(decided)
            decided.wait()

    def make_good(self) -> None:
        """Take back what could not be made durable, and tell those who wait for it."""
        while self._failed:
            written, error = self._failed.popleft()
            self._take_back(written)
            tell(written.calls, failure(error, self._layout.root) if isinstance(error, OSError) else error)

    def _take_back(self, written: _Written) -> None:
        pen = written.pen
        if pen.is_closed:
            return  # it was cut off together with the lines before it
        try:
            with self._locked([pen.origin]):
                record, job = self._runs.get(pen.run_id), written.calls[0].job
                if record is not None and self._work.holds(record, job.seat, job.fence):
                    self._cut(pen, written.start)
        except (OSError, WorkflowCheckpointException, Moved) as problem:
            logger.warning("a failed write could not be undone: %s", problem)
        finally:
            self._runs.cut_journal(pen.run_id, written.start)
            self._pens.put_down(pen)

    # --- beside the other jobs ---------------------------------------------------------------------------------------

    def make_way(self, jobs: Sequence[Any]) -> None:
        """Before anything else is done to a run, what was written for it is durable or taken back."""
        pens = [self._pens.known(job.run_id) for job in jobs if job.run_id is not None]
        if any(pen is not None and pen.is_waited_for for pen in pens):
            self._wait()
        self.make_good()

    def look_round(self, jobs: Sequence[Any]) -> None:
        """After these jobs: runs that are not held any more need no pen."""
        for job in jobs:
            pen = self._pens.known(job.run_id) if job.run_id is not None else None
            if pen is not None and self._runs.held(pen.run_id) is None:
                self._pens.put_down(pen)

    def close(self) -> None:
        self._wait()
        self.make_good()
        if self._journal_thread is not None:
            self._journal_thread.stop_soon()
            self._journal_thread = None
        self._pens.close()


def _first_calls(jobs: Sequence[Any]) -> dict[str, list[Entrusted]]:
    """The calls that nothing else of their run comes before, by run."""
    calls: dict[str, list[Entrusted]] = {}
    others: set[str] = set()
    for job in jobs:
        if type(job) is Entrusted:
            if job.run_id not in others:
                calls.setdefault(job.run_id, []).append(job)
        elif type(job) is MakeGood:
            continue
        elif type(job) is DeleteRun or job.run_id is None:
            break  # it is done before whatever follows it
        else:
            others.add(job.run_id)
    return calls
