"""What each job means for the files: the fence, the checks, the lines to be written.

Everything here happens in the writer thread while the locks of the families involved are held. A job that may not be
done raises; what it wants written is a `Plan`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.lease import Fence, Holder
from stepwell.checkpointing.storage import file_journal as journal
from stepwell.checkpointing.storage.file_disk import Layout, closing, open_regular, remove_folder, sync_folder
from stepwell.checkpointing.storage.file_index import Entry
from stepwell.checkpointing.storage.file_json import checkpoint_bytes
from stepwell.checkpointing.storage.file_operations import sync, unlink
from stepwell.checkpointing.storage.file_plan import Append, Plan, Temporary, prepare_folder
from stepwell.checkpointing.storage.file_record import JOURNAL, RECORD, Birth, Note, RunRecord, Saved, value_line
from stepwell.checkpointing.storage.file_runs import Runs
from stepwell.checkpointing.storage.file_seats import Seats
from stepwell.checkpointing.storage.file_sweep import add_members
from stepwell.checkpointing.storage.protocol import Decision
from stepwell.checkpointing.storage.recording import decision_text, now
from stepwell.checkpointing.storage.records import (
    NODES_PER_RUN,
    CheckpointWrite,
    OpenedRun,
    OpenRequest,
    RequestRow,
    StaleMemory,
)
from stepwell.checkpointing.storage.sqlite_jobs import (
    AnswerRequest,
    CancelRun,
    DeleteCheckpoint,
    DropCalls,
    HeldRun,
    Job,
    OpenRun,
    RecordCall,
    ReleaseRun,
    SaveCheckpoint,
    Seat,
)
from stepwell.errors import AlreadyAnswered, RunTakenOver, UnknownRequest, UnknownRun

_SPARED_BYTES = 64 * 1024
"""A record may hold this much that is not needed any more, and as much as is, before it is worth writing it anew."""


class FirstRemove(Exception):
    """Another run keeps a checkpoint of this name, which has to go first."""

    def __init__(self, checkpoint_id: str) -> None:
        super().__init__(checkpoint_id)
        self.job = DeleteCheckpoint(checkpoint_id)


class Work:
    """Plans jobs."""

    def __init__(self, layout: Layout, runs: Runs, seats: Seats) -> None:
        self._layout = layout
        self._runs = runs
        self._seats = seats
        self._plans: dict[type, Callable[[Any], Plan]] = {
            OpenRun: self._open,
            SaveCheckpoint: self._save,
            RecordCall: self._record_call,
            DropCalls: self._drop_calls,
            ReleaseRun: self._release,
            AnswerRequest: self._answer,
            CancelRun: self._cancel,
        }

    def plan(self, job: Job) -> Plan:
        return self._plans[type(job)](job)

    # --- opening and giving back -------------------------------------------------------------------------------------

    def _open(self, job: OpenRun) -> Plan:
        record = self._runs.get(job.run_id)
        if record is None:
            if not job.request.create:
                raise KeyError(job.run_id)
            return self._create(job)
        record.check()
        left_over = job.request.reclaim and record.row.holder == str(job.seat.holder)
        if not left_over and (busy := self._seats.busy(record.row)) is not None:
            raise busy
        calls, end = journal.read_journal(record)
        self._make_durable(record, has_calls=end > 0)
        self._seats.announce(job.seat)
        row_now = {"epoch": record.row.epoch + 1, "holder": str(job.seat.holder)}
        plan = self._noted(record, Note(row=row_now, journal=end or None))
        row = replace(record.row, epoch=record.row.epoch + 1, holder=str(job.seat.holder))
        newest = record.newest
        plan.outcome = OpenedRun(
            row=row,
            created=False,
            next_node=record.next_node,
            latest=newest.stored(record.key) if newest else None,
            calls=calls,
            requests=tuple(record.requests.values()),
        )
        self._hold(plan, job.seat, record, end, has_calls=end > 0)
        return plan

    def _make_durable(self, record: RunRecord, *, has_calls: bool) -> None:
        """See that no power cut takes back what is relied on from now on: who wrote it may have died before that."""
        if record.newest is None:
            sync_folder(self._layout.runs)  # the run's very name may not be durable yet
        if has_calls:
            with closing(open_regular(record.path.with_name(JOURNAL), os.O_RDONLY)) as descriptor:
                sync(descriptor)

    def _create(self, job: OpenRun) -> Plan:
        birth = self._birth(job.request)
        row = replace(birth.row, epoch=1, holder=str(job.seat.holder), updated_at=now())
        self._seats.announce(job.seat)
        note = Note(row={"epoch": row.epoch, "holder": row.holder, "updated_at": row.updated_at})
        folder = self._layout.new / f"{birth.key:012x}"
        plan = Plan(OpenedRun(row=row, created=True, next_node=birth.key * NODES_PER_RUN + 1, latest=None))
        plan.on_failure.append(partial(remove_folder, folder))
        if birth.ancestors:
            own = (birth.key, birth.run_id)
            add_members(self._layout, birth.origin, [*birth.ancestors, own])
        plan.prepared = prepare_folder(folder, RECORD, birth.line() + note.line(1, birth), empty=JOURNAL)
        # Two who create the same run at once: the second rename finds a folder with something in it, and fails.
        plan.folder = (folder, self._layout.run(birth.run_id))
        plan.then(partial(self._hold_new, job.seat, birth.run_id))
        return plan

    def _birth(self, request: OpenRequest) -> Birth:
        key = (
            secrets.randbits(47) + 1
        )  # 2^47 possibilities and never 0; the name of the new folder shows if it is taken
        parent = self._parent(request)
        branch = request.branch_of
        return Birth(
            key=key,
            run_id=request.run_id,
            workflow_name=request.workflow_name,
            origin=parent.birth.origin if parent else f"{key:012x}",
            ancestors=(*parent.birth.ancestors, (parent.key, parent.run_id)) if parent else (),
            parent_checkpoint_id=branch.checkpoint_id if branch else None,
            parent_run_id=branch.run_id if branch else None,
        )

    def _parent(self, request: OpenRequest) -> RunRecord | None:
        """The run that keeps the checkpoint where this one branches off."""
        if request.branch_of is None:
            return None
        return self._runs.keeping(request.branch_of.checkpoint_id)

    def _hold(self, plan: Plan, seat: Seat, record: RunRecord, journal_end: int, *, has_calls: bool) -> None:
        plan.then(partial(seat.held.__setitem__, record.key, HeldRun(0, 0, has_calls)))
        plan.then(partial(self._runs.hold, record, journal_end))

    def _hold_new(self, seat: Seat, run_id: str) -> None:
        record = self._runs.peek(run_id)
        if record is not None:
            seat.held[record.key] = HeldRun(0, 0, has_calls=False)
            self._runs.hold(record, 0)

    def _release(self, job: ReleaseRun) -> Plan:
        record = self._runs.get(job.run_id)
        if record is None or not self.holds(record, job.seat, job.fence):
            return Plan()
        row: dict[str, Any] = {"holder": None}
        row |= {"state": job.state} if job.state else {}
        row |= {"stopped_by": job.stopped_by} if job.stopped_by else {}
        plan = self._noted(record, Note(row=row, journal=self._runs.journal_end.get(record.run_id) or None))
        plan.then(partial(self._give_back, job.seat, record))
        return plan

    def _give_back(self, seat: Seat, record: RunRecord) -> None:
        seat.held.pop(record.key, None)
        self._runs.forget(record.run_id)

    # --- the fence ---------------------------------------------------------------------------------------------------

    def holds(self, record: RunRecord, seat: Seat, fence: Fence) -> bool:
        row = record.row
        return (
            (record.key, row.epoch) == (fence.run_key, fence.epoch)
            and seat.holder is not None
            and row.holder == str(seat.holder)
        )

    def fenced(self, seat: Seat, fence: Fence) -> RunRecord:
        record = self._runs.get(fence.run_id)
        if record is None or record.key != fence.run_key:
            raise RunTakenOver(fence.run_id, "nobody: it was deleted")
        if self.holds(record, seat, fence):
            record.check()
            return record
        holder = record.row.holder
        by = "nobody: it was given back" if holder is None else self._seats.described(Holder.parse(holder))
        raise RunTakenOver(fence.run_id, by)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _save(self, job: SaveCheckpoint) -> Plan:
        write = job.write
        record = self.fenced(job.seat, write.fence)
        if record.row.sweeps != write.expected_sweeps:
            raise StaleMemory
        for decision in write.decisions:
            refuse_second_answer(record.requests.get(decision.request_id), decision, record)
        self._make_room(record, write.stored.checkpoint_id)
        note = self._note(record, write)
        (saved,) = note.saved
        values = b"".join(value_line(node, record.birth) for node in write.nodes)
        plan = self._noted(record, note, values)
        plan.temporaries.append(
            Temporary(
                self._layout.temporary(saved.checkpoint_id),
                self._layout.checkpoint(saved.checkpoint_id),
                checkpoint_bytes(write.stored, record.run_id),
            )
        )
        plan.entry = Entry(saved.n, record.key, record.run_id, record.birth.workflow_name, saved.checkpoint_id)
        self._after_save(plan, job, record, note)
        return plan

    def _note(self, record: RunRecord, write: CheckpointWrite) -> Note:
        stored = write.stored
        saved = Saved(
            stored.checkpoint_id, stored.root.digest, stored.root.refs, stored.header, self._runs.next_n(record)
        )
        row: dict[str, Any] = {
            "state": write.state,
            "sequence": write.sequence,
            "supersteps": write.supersteps,
            "usage": write.usage,
            "updated_at": write.updated_at,
            "stopped_by": None,
        }
        return Note(
            row=row | ({"holder": None} if write.final else {}),
            saved=[saved],
            gone=_surplus(record, stored.checkpoint_id, write.keep),
            asked=[asked for asked in write.requests if asked.request_id not in record.requests],
            decided=write.decisions,
            delivered=write.delivers,
            calls=record.calls + 1 if write.forget_calls else None,
            journal=None if write.forget_calls else self._runs.journal_end.get(record.run_id) or None,
        )

    def _make_room(self, record: RunRecord, checkpoint_id: str) -> None:
        """A checkpoint saved by hand may have the name of another run's."""
        if checkpoint_id in record.saved or not self._layout.checkpoint(checkpoint_id).exists():
            return
        if (other := self._runs.keeping(checkpoint_id)) is not None and other.key != record.key:
            raise FirstRemove(checkpoint_id)

    def _after_save(self, plan: Plan, job: SaveCheckpoint, record: RunRecord, note: Note) -> None:
        held = job.seat.held.get(record.key)
        if job.write.forget_calls and (held is None or held.has_calls):
            plan.then(partial(self._empty_journal, record, held))
        for gone in note.gone:
            plan.then(partial(unlink, self._layout.checkpoint(gone)))
        if job.write.keep is not None and record.end + len(plan.appends[0].data) > 2 * record.base + _SPARED_BYTES:
            plan.then(partial(self._runs.sweep_later, record.run_id))
        if job.write.final:
            plan.then(partial(self._give_back, job.seat, record))

    def _empty_journal(self, record: RunRecord, held: HeldRun | None) -> None:
        journal.empty(record)
        self._runs.journal_end[record.run_id] = 0
        if held is not None:
            held.has_calls = False

    def _noted(self, record: RunRecord, note: Note, values: bytes = b"") -> Plan:
        """A plan to add a note; once it is durable, the run is remembered as it is then."""
        append = Append(record.path, record.end, values + note.line(record.serial + 1, record.birth))
        plan = Plan(appends=[append])
        plan.then(lambda: record.add(append.data, append.descriptor))
        plan.then(partial(setattr, record, "sure", record.serial + 1))
        plan.then(partial(setattr, record, "last_saved", None))
        plan.on_failure.append(partial(self._runs.doubt, record.run_id))
        return plan

    # --- the journal -------------------------------------------------------------------------------------------------

    def _record_call(self, job: RecordCall) -> Plan:
        return self._journalled(job, job.row, job.supersedes)

    def _drop_calls(self, job: DropCalls) -> Plan:
        return self._journalled(job, None, job.call_ids)

    def _journalled(self, job: RecordCall | DropCalls, row: CallRecord | None, dropped: Sequence[str]) -> Plan:
        record = self.fenced(job.seat, job.fence)
        end = self._runs.journal_end[record.run_id]
        line = journal.call_line(record, end, row, dropped)
        append = Append(record.path.with_name(JOURNAL), end, line)
        plan = Plan(appends=[append])
        # Calls of one run that are recorded together follow each other, so the next one begins where this one ends.
        self._runs.journal_end[record.run_id] = end + len(line)
        plan.on_failure.append(partial(self._runs.cut_journal, record.run_id, end))
        held = job.seat.held.get(record.key)
        if held is not None:
            held.has_calls = True
        return plan

    # --- people ------------------------------------------------------------------------------------------------------

    def _answer(self, job: AnswerRequest) -> Plan:
        record = self._existing(job.run_id)
        asked = record.requests.get(job.decision.request_id)
        if asked is None:
            raise UnknownRequest(job.decision.request_id, record.waiting)
        refuse_second_answer(asked, job.decision, record)
        return self._noted(record, Note(decided=[job.decision]))

    def _cancel(self, job: CancelRun) -> Plan:
        record = self._existing(job.run_id)
        if (busy := self._seats.busy(record.row)) is not None:
            raise busy
        epoch = record.row.epoch + 1
        row = {"state": "CANCELLED", "stopped_by": "cancel_run", "epoch": epoch, "holder": None}
        return self._noted(record, Note(row=row))

    def _existing(self, run_id: str) -> RunRecord:
        record = self._runs.get(run_id)
        if record is None:
            raise UnknownRun(run_id, "list_runs() shows the runs there are")
        record.check()
        return record


def _surplus(record: RunRecord, checkpoint_id: str, keep: int | None) -> Sequence[str]:
    if keep is None:
        return ()
    kept = [saved for saved in record.saved if saved != checkpoint_id]
    return kept[: max(0, len(kept) + 1 - keep)]


def refuse_second_answer(row: RequestRow | None, decision: Decision, record: RunRecord) -> None:
    if row is None:
        raise UnknownRequest(decision.request_id, record.waiting)
    given = row.decision
    if given is not None and (given.typed or not decision.replaces_unusable):
        raise AlreadyAnswered(decision.request_id, row.run_id, given.answered_at, decision_text(given))
