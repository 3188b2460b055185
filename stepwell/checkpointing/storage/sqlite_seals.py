"""Digests of rows, so that no column that decides anything can change unnoticed.

What checkpoints, values and calls contain has digests of its own. A seal covers the columns around it: how a run
stands, what a person was shown and has answered, whose a call is. Seals are made by the writer from values that it
has anyway, so they cost no statement; whoever reads a row compares.

A checkpoint needs no seal: its header, which its digest covers, names its run and the one before it, and `newest` in
the run's row tells if the last one is lost.

Left out is what may change without harm: who holds a run since which epoch (the fence refuses whoever does not fit),
until when holders count as alive (one taken over too early is refused likewise), counters of sweeps (a wrong one makes
a log look again), when to sweep next, and the order numbers of calls and requests. A run's key is not sealed because
its rows, which have it too, are looked for and would be missed. Which of two runs was saved last is told by the order
numbers of their checkpoints alone.
"""

from __future__ import annotations

import hashlib

from stepwell.checkpointing.storage.protocol import Decision, PendingSummary
from stepwell.checkpointing.storage.records import RunRow

_SIZE = 16


class RunSeal:
    """Seals the row of one run; what never changes of it is taken in once."""

    __slots__ = ("_begun", "constant", "next_node")

    def __init__(self, row: RunRow, workflow: int, next_node: int) -> None:
        self.constant = (row.run_id, workflow, row.origin, row.parent_checkpoint_id, row.parent_run_id)
        """Columns as they have to be found by whoever changes the others."""
        self.next_node = next_node
        """Grows as soon as nodes are about to be written: to pass over some that never were does no harm."""
        named = (row.run_id, row.workflow_name, row.origin, row.parent_checkpoint_id, row.parent_run_id)
        self._begun = hashlib.blake2b(_joined(named), digest_size=_SIZE)

    def of(
        self,
        sequence: int,
        supersteps: int,
        state: str,
        updated_at: str,
        usage: str,
        newest: str | None,
        stopped_by: str | None = None,
    ) -> bytes:
        """The seal of the row with these values and `next_node`."""
        # Made for every checkpoint, so without `_joined`; the lengths tell what is whose all the same.
        text = (
            f"{self.next_node} {sequence} {supersteps} {len(state)} {len(updated_at)} {len(usage)} "
            f"{-1 if newest is None else len(newest)} {state}{updated_at}{usage}{newest}"
        )
        if stopped_by is not None:
            text += f" {stopped_by}"
        seal = self._begun.copy()
        seal.update(text.encode("utf-8", "surrogatepass"))
        return seal.digest()


def run_seal(row: RunRow, next_node: int, newest: str | None) -> bytes:
    """The seal of a run's row as it is; `TypeError` if there is something in it that nobody has written."""
    return RunSeal(row, 0, next_node).of(
        row.sequence, row.supersteps, row.state, row.updated_at, row.usage, newest, row.stopped_by
    )


def request_seal(run_id: str, asked: PendingSummary, given: Decision | None) -> bytes:
    """The seal of a request's row with this answer."""
    question = (
        asked.request_id,
        asked.source_executor_id,
        asked.request_type,
        asked.response_type,
        asked.asked_at,
        asked.shown,
        asked.deadline,
    )
    answer = () if given is None else (given.value, given.answered_at, "typed" if given.typed else "untyped")
    return hashlib.blake2b(_joined((run_id, *question, *answer)), digest_size=_SIZE).digest()


def owned_call_digest(run_id: str, text: str) -> bytes:
    """The digest of a call of this run."""
    return hashlib.blake2b(_joined((run_id, text)), digest_size=_SIZE).digest()


def _joined(values: tuple[str | None, ...]) -> bytes:
    """Texts in a row, so that none can be taken for a part of its neighbour."""
    lengths = " ".join("-" if value is None else str(len(value)) for value in values)
    return "\0".join([lengths, *(value for value in values if value is not None)]).encode("utf-8", "surrogatepass")
