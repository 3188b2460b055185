"""Digests of rows, so that no column that decides anything can change unnoticed.

What checkpoints, values and calls contain has digests of its own. A seal covers the columns around it: whose a row is,
how a run stands, what a person was shown and has answered. The server makes and compares seals within the statements
that write and read the rows, so they cost no round trip and no row leaves the server to be sealed.

Left out is what may change without harm: who holds a run since which epoch (the fence refuses whoever does not fit),
counters of sweeps (a wrong one makes a log look again), and the order numbers of calls and requests. That a run's
newest checkpoint is missing is told by `newest` in the run's row.
"""

from __future__ import annotations


class Seal:
    """A digest over these columns of a row; those named in `binary` are byte strings."""

    def __init__(self, *columns: str, binary: tuple[str, ...] = ()) -> None:
        self._columns = columns
        self._binary = binary

    def of(self, row: str, **changed: str) -> str:
        """SQL for the seal of `row`, an alias, with other expressions in place of some columns."""
        plain = [changed.get(column, f"{row}.{column}") for column in self._columns]
        # As hexadecimal digits: how byte strings look as text depends on a setting of the session.
        binary = [f"encode({changed.get(column, f'{row}.{column}')}, 'hex')" for column in self._binary]
        return f"sha256(convert_to(ROW({', '.join(plain + binary)})::text, 'UTF8'))"

    def holds(self, row: str) -> str:
        """SQL for: is this row what was written?"""
        return f"({row}.seal = {self.of(row)})"

    def renewed(self, row: str, **changed: str) -> str:
        """SQL for the seal of a row that is being changed; one that was broken before stays so."""
        return f"CASE WHEN {self.holds(row)} THEN {self.of(row, **changed)} ELSE {row}.seal END"


RUN = Seal(
    "run_id",
    "workflow",
    "origin",
    "next_node",
    "sequence",
    "supersteps",
    "state",
    "updated_at",
    "usage",
    "parent_checkpoint_id",
    "parent_run_id",
    "stopped_by",
    "newest",
    binary=("workflow_key",),
)
CHECKPOINT = Seal("id", "checkpoint_id", "run_key", binary=("workflow_key", "digest"))
CALL = Seal("run_key", "call_id", binary=("call_key", "digest"))
REQUEST = Seal(
    "run_key",
    "request_id",
    "source",
    "request_type",
    "response_type",
    "asked_at",
    "deadline",
    "answered_at",
    "typed",
    "shown",
    "answer",
    binary=("request_key",),
)
