"""The storage contract: what a storage promises, as tests that yours can inherit.

A storage of your own with the six public methods:

    class TestMyStorage(CheckpointStorageContract):
        @pytest.fixture
        def storage(self):
            return MyStorage()

A storage with journal and fence inherits `RunStorageContract` as well. If it outlives its instance, its `reopen`
fixture closes the storage it is given and opens the same store again; every promise is then checked across that gap.

The tests are plain async methods: run them with `asyncio_mode = "auto"` of pytest-asyncio, or mark your class.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest

from stepwell.checkpointing.checkpoint import (
    CheckpointContent,
    PendingRequest,
    RecordedOutput,
    WorkflowCheckpoint,
    WorkflowMessage,
)
from stepwell.checkpointing.codec import OpaqueValue
from stepwell.checkpointing.journal import CallRecord
from stepwell.checkpointing.registry import TypeRegistry, known_types, register_type
from stepwell.checkpointing.storage.protocol import (
    BranchPoint,
    CheckpointDraft,
    CheckpointStorage,
    Decision,
    PendingSummary,
    RunLog,
    RunStorage,
)
from stepwell.errors import (
    AlreadyAnswered,
    CheckpointNotFound,
    InvalidId,
    NotSavable,
    RunBusy,
    RunTakenOver,
    SecretRefused,
    UnknownRequest,
    UnknownRun,
    UnknownType,
)

__all__ = ["CheckpointStorageContract", "Reopen", "RunStorageContract"]

Reopen = Callable[[Any], Awaitable[Any]]
"""Closes a storage and opens the same store again."""

WORKFLOW = "delivery"


# --- what the tests keep ----------------------------------------------------------------------------------------------


@register_type
class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@register_type
@dataclass(frozen=True)
class Label:
    """Deeply immutable, so stored once."""

    text: str
    size: Size = Size.SMALL


@register_type
@dataclass
class Parcel:
    labels: list[Label]
    weight: Decimal


@dataclass(frozen=True)
class Stranger:
    """A type that only some registries know."""

    name: str


VALUES: dict[str, Any] = {
    "none": None,
    "truth": True,
    "one": 1,
    "one point zero": 1.0,
    "not finite": [float("inf"), float("-inf")],
    "long": 7**5000,
    "text": "naïve ☃ 😀",
    "torn": "half of a pair: \ud83d",
    "bytes": b"\x00\xff",
    "mutable bytes": bytearray(b"\x00\xff"),
    "tuple": (1, (2, [3])),
    "set": {1, 2, 3},
    "frozen": frozenset({"a", "b"}),
    "int keys": {1: "one", 2: {"3": 3}},
    "odd keys": {(1, 2): "pair", None: "none", "$": "dollar"},
    "deque": deque([1, 2], maxlen=5),
    "counter": Counter("abracadabra"),
    "moment": datetime(2026, 10, 25, 2, 30, tzinfo=UTC),
    "day": date(2026, 2, 28),
    "span": timedelta(days=-1, microseconds=1),
    "amount": Decimal("1.10"),
    "id": UUID(int=7),
    "path": PurePosixPath("a/b"),
    "enum": Size.LARGE,
    "frozen record": Label("fragile", Size.LARGE),
    "record": Parcel([Label("up"), Label("down")], Decimal("2.5")),
}


def checkpoint(
    number: int = 1, *, workflow: str = WORKFLOW, run: str | None = "run-1", **more: Any
) -> WorkflowCheckpoint:
    header: dict[str, Any] = {
        "checkpoint_id": f"c{number}",
        "run_id": run,
        "sequence": number,
        "iteration_count": number,
        "state": {"number": number},
    }
    return WorkflowCheckpoint(workflow, "graph", **(header | more))


def exact(value: Any) -> Any:
    """The value with its type, all the way down: equal only for values that nothing can tell apart."""
    match value:
        case Mapping():
            parts: Any = [(exact(key), exact(item)) for key, item in value.items()]
        case list() | tuple() | deque():
            parts = [exact(item) for item in value]
        case set() | frozenset():
            parts = sorted(map(exact, value), key=repr)
        case datetime() | time():
            parts = (value.isoformat(), getattr(value.tzinfo, "key", None), value.fold)
        case Enum():
            parts = (value.name, value.value)
        case int():
            parts = hex(value)
        case _ if is_dataclass(value):
            unset = [field.name for field in fields(value) if not hasattr(value, field.name)]
            named = {f.name: getattr(value, f.name) for f in fields(value) if f.name not in unset}
            parts = (exact(named | getattr(value, "__dict__", {})), unset)
        case _ if hasattr(value, "__pydantic_fields_set__"):
            hidden = (value.__pydantic_extra__, value.__pydantic_private__)
            parts = (exact(vars(value)), sorted(value.__pydantic_fields_set__), exact(hidden))
        case _:
            parts = repr(value)
    options = getattr(value, "maxlen", None), getattr(value, "default_factory", None)
    return f"{type(value).__module__}.{type(value).__qualname__}", options, parts


# --- the six methods --------------------------------------------------------------------------------------------------


class CheckpointStorageContract:
    """What every `CheckpointStorage` promises. Supply a fixture `storage` that gives an empty one."""

    # saving and loading

    async def test_saving_returns_the_id(self, storage: CheckpointStorage) -> None:
        assert await storage.save(checkpoint(7)) == "c7"

    async def test_a_checkpoint_comes_back_as_it_was(self, storage: CheckpointStorage) -> None:
        saved = checkpoint(
            2,
            previous_checkpoint_id="c1",
            metadata={"by": "hand", "n": 3},
            messages={"desk": [WorkflowMessage(Label("x"), "desk", "van")]},
            outputs=[RecordedOutput("van", "output", "delivered", "e1", 2)],
        )
        await storage.save(saved)
        assert await storage.load("c2") == saved

    @pytest.mark.parametrize("name", VALUES)
    async def test_values_keep_their_types(self, storage: CheckpointStorage, name: str) -> None:
        await storage.save(checkpoint(state={"value": VALUES[name]}))
        assert exact((await storage.load("c1")).state["value"]) == exact(VALUES[name])

    async def test_pending_requests_survive(self, storage: CheckpointStorage) -> None:
        asked = PendingRequest("r1", "desk", Label("ok?"), "Label", "bool", "2026-01-01T00:00:00+00:00")
        await storage.save(checkpoint(pending_request_info_events={"r1": asked}))
        assert (await storage.load("c1")).pending_request_info_events["r1"] == asked

    async def test_a_state_of_a_megabyte_is_kept(self, storage: CheckpointStorage) -> None:
        state = {"text": "x" * 500_000, "numbers": list(range(60_000)), "named": {str(n): n for n in range(5000)}}
        await storage.save(checkpoint(state=state))
        assert (await storage.load("c1")).state == state

    async def test_saving_an_id_again_replaces_it(self, storage: CheckpointStorage) -> None:
        await storage.save(checkpoint(1, state={"try": 1}))
        await storage.save(checkpoint(1, state={"try": 2}))
        assert (await storage.load("c1")).state == {"try": 2}
        assert await storage.list_checkpoint_ids() == ["c1"]

    async def test_an_unknown_id_is_said_to_be_missing(self, storage: CheckpointStorage) -> None:
        with pytest.raises(CheckpointNotFound) as caught:
            await storage.load("nowhere")
        assert caught.value.checkpoint_id == "nowhere"

    async def test_a_checkpoint_without_a_run_is_kept(self, storage: CheckpointStorage) -> None:
        await storage.save(checkpoint(1, run=None))
        assert (await storage.load("c1")).run_id is None

    # isolation

    async def test_changing_what_was_handed_in_changes_nothing_stored(self, storage: CheckpointStorage) -> None:
        state: dict[str, Any] = {"list": [1], "nested": {"deep": [1]}}
        await storage.save(checkpoint(state=state))
        state["list"].append(2)
        state["nested"]["deep"].append(2)
        assert (await storage.load("c1")).state == {"list": [1], "nested": {"deep": [1]}}

    async def test_changing_what_was_handed_out_changes_nothing_stored(self, storage: CheckpointStorage) -> None:
        await storage.save(checkpoint(state={"list": [1]}, metadata={"tags": ["a"]}))
        loaded = await storage.load("c1")
        loaded.state["list"].append(2)
        loaded.metadata["tags"].append("b")
        again = await storage.load("c1")
        assert again.state == {"list": [1]}
        assert again.metadata == {"tags": ["a"]}

    # order and selection

    async def test_the_latest_is_the_one_saved_last_whatever_its_clock_says(self, storage: CheckpointStorage) -> None:
        await storage.save(checkpoint(1, timestamp="2030-01-01T00:00:00+00:00"))
        await storage.save(checkpoint(2, timestamp="2020-01-01T00:00:00+00:00"))
        latest = await storage.get_latest()
        assert latest is not None
        assert latest.checkpoint_id == "c2"

    async def test_the_latest_comes_with_its_content(self, storage: CheckpointStorage) -> None:
        await storage.save(checkpoint(1, state={"value": VALUES["record"]}))
        latest = await storage.get_latest(run_id="run-1")
        assert latest is not None
        assert exact(latest.state["value"]) == exact(VALUES["record"])

    async def test_an_empty_storage_has_no_latest(self, storage: CheckpointStorage) -> None:
        assert await storage.get_latest() is None
        assert await storage.list_checkpoints() == []
        assert await storage.list_checkpoint_ids() == []

    async def test_lists_are_oldest_first(self, storage: CheckpointStorage) -> None:
        for number in (3, 1, 2):
            await storage.save(checkpoint(number))
        assert await storage.list_checkpoint_ids() == ["c3", "c1", "c2"]
        assert [kept.checkpoint_id for kept in await storage.list_checkpoints()] == ["c3", "c1", "c2"]

    async def test_what_is_listed_shows_its_content_when_asked(self, storage: CheckpointStorage) -> None:
        await storage.save(checkpoint(1, state={"a": (1, 2)}))
        [listed] = await storage.list_checkpoints()
        assert await asyncio.to_thread(lambda: listed.state) == {"a": (1, 2)}

    @pytest.mark.parametrize(
        ("workflow", "run", "expected"),
        [
            pytest.param(None, None, ["c1", "c2", "c3"], id="everything"),
            pytest.param("delivery", None, ["c1", "c3"], id="by workflow"),
            pytest.param(None, "run-2", ["c2"], id="by run"),
            pytest.param("delivery", "run-3", ["c3"], id="by both"),
            pytest.param("returns", "run-1", [], id="by both, which disagree"),
            pytest.param("nobody", None, [], id="unknown workflow"),
            pytest.param(None, "nobody", [], id="unknown run"),
        ],
    )
    async def test_lists_and_latest_can_be_narrowed(
        self, storage: CheckpointStorage, workflow: str | None, run: str | None, expected: list[str]
    ) -> None:
        await storage.save(checkpoint(1, run="run-1"))
        await storage.save(checkpoint(2, run="run-2", workflow="returns"))
        await storage.save(checkpoint(3, run="run-3"))

        listed = await storage.list_checkpoints(workflow_name=workflow, run_id=run)
        latest = await storage.get_latest(workflow_name=workflow, run_id=run)

        assert await storage.list_checkpoint_ids(workflow_name=workflow, run_id=run) == expected
        assert [kept.checkpoint_id for kept in listed] == expected
        assert (latest and latest.checkpoint_id) == (expected[-1] if expected else None)

    # deleting

    async def test_deleting_says_whether_it_was_there(self, storage: CheckpointStorage) -> None:
        await storage.save(checkpoint(1))
        assert await storage.delete("c1") is True
        assert await storage.delete("c1") is False

    async def test_what_was_deleted_is_gone(self, storage: CheckpointStorage) -> None:
        await storage.save(checkpoint(1))
        await storage.delete("c1")
        with pytest.raises(CheckpointNotFound):
            await storage.load("c1")
        assert await storage.get_latest() is None

    async def test_deleting_the_latest_makes_the_one_before_it_the_latest(self, storage: CheckpointStorage) -> None:
        for number in (1, 2, 3):
            await storage.save(checkpoint(number))
        await storage.delete("c3")
        latest = await storage.get_latest(run_id="run-1")
        assert latest is not None
        assert latest.checkpoint_id == "c2"

    @pytest.mark.parametrize("doomed", [1, 2, 3])
    async def test_deleting_one_harms_no_other(self, storage: CheckpointStorage, doomed: int) -> None:
        history: list[Label] = []
        expected = {}
        for number in (1, 2, 3):
            history += [Label(f"{number}.{n} " + "x" * 200) for n in range(20)]
            expected[f"c{number}"] = {"history": list(history), "number": number}
            await storage.save(checkpoint(number, state=expected[f"c{number}"]))

        await storage.delete(f"c{doomed}")

        del expected[f"c{doomed}"]
        assert {kept: (await storage.load(kept)).state for kept in expected} == expected

    # failing

    @pytest.mark.parametrize("value", [object(), lambda: None], ids=["an object", "a function"])
    async def test_a_refused_save_leaves_the_latest_as_it_was(self, storage: CheckpointStorage, value: Any) -> None:
        await storage.save(checkpoint(1))
        with pytest.raises(NotSavable):
            await storage.save(checkpoint(2, state={"bad": value}))
        latest = await storage.get_latest()
        assert latest == checkpoint(1, timestamp=latest.timestamp if latest else None)
        assert await storage.list_checkpoint_ids() == ["c1"]

    async def test_a_refused_save_says_where_the_value_sits(self, storage: CheckpointStorage) -> None:
        with pytest.raises(NotSavable) as caught:
            await storage.save(checkpoint(1, state={"desk": {"callback": [print]}}))
        assert caught.value.path.endswith("['state']['desk']['callback'][0]")

    async def test_secrets_are_refused(self, storage: CheckpointStorage) -> None:
        from pydantic import SecretStr

        with pytest.raises(SecretRefused):
            await storage.save(checkpoint(1, state={"key": SecretStr("hunter2")}))

    async def test_a_cancelled_save_leaves_everything_readable(self, storage: CheckpointStorage) -> None:
        await storage.save(checkpoint(1))
        task = asyncio.create_task(storage.save(checkpoint(2)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

        latest = await storage.get_latest(run_id="run-1")

        assert latest is not None
        assert latest.state["number"] in (1, 2)
        assert (await storage.load("c1")).state == {"number": 1}

    async def test_saves_made_at_once_are_all_kept(self, storage: CheckpointStorage) -> None:
        await asyncio.gather(*(storage.save(checkpoint(n, run=f"run-{n}")) for n in range(20)))
        for number in range(20):
            latest = await storage.get_latest(run_id=f"run-{number}")
            assert latest is not None
            assert latest.state == {"number": number}


# --- runs -------------------------------------------------------------------------------------------------------------


def draft(iteration: int = 0, state: Mapping[str, Any] | None = None, **more: Any) -> CheckpointDraft:
    content = CheckpointContent(state=state or {"iteration": iteration})
    return CheckpointDraft("graph", iteration, content, {}, "IN_PROGRESS")._replace(**more)


def call(name: str, result: str | None = '"done"', *, scope: str = "1/desk/0") -> CallRecord:
    return CallRecord(f"{scope}/{name}", scope, name, "hash", f"{name}()", "2026-01-01T00:00:00+00:00", result)


def asked(request_id: str) -> PendingSummary:
    return PendingSummary(request_id, "desk", "Label", "bool", "2026-01-01T00:00:00+00:00", '"ok?"')


def decided(request_id: str, value: str = "true") -> Decision:
    return Decision(request_id, value, "2026-01-02T00:00:00+00:00")


async def opened(storage: RunStorage, run_id: str = "run-1", **more: Any) -> RunLog:
    options: dict[str, Any] = {"workflow_name": WORKFLOW, "registry": known_types, "create": True}
    log = await storage.open_run(run_id, **(options | more))
    assert log is not None
    return log


async def finished_run(storage: RunStorage, run_id: str, **more: Any) -> None:
    usual: dict[str, Any] = {"final": True, "run_state": "IDLE"}
    await (await opened(storage, run_id)).save(draft(1, **(usual | more)))


async def branched(storage: RunStorage) -> tuple[WorkflowCheckpoint, WorkflowCheckpoint]:
    """A run named `trunk` and one named `branch` that left it, both with a history of 40 entries."""
    history = [Label(f"{n} " + "x" * 200) for n in range(40)]
    log = await opened(storage, "trunk")
    trunk = await log.save(draft(1, state={"history": history}, final=True))
    log = await opened(storage, "branch", branch_of=BranchPoint(trunk.checkpoint_id, "trunk"))
    parent = await log.load(trunk.checkpoint_id, known_types)
    return trunk, await log.save(draft(1, state=parent.state, final=True))


class RunStorageContract:
    """What a storage with journal and fence promises. Supply `storage`, and `reopen` if it outlives its instance."""

    @pytest.fixture
    def reopen(self) -> Reopen:
        async def the_same(storage: Any) -> Any:
            return storage

        return the_same

    # opening

    async def test_an_absent_run_is_not_created_unless_asked(self, storage: RunStorage) -> None:
        assert await storage.open_run("run-1", workflow_name=WORKFLOW, registry=known_types, create=False) is None
        assert await storage.list_runs() == []

    async def test_a_new_run_has_nothing_to_go_on_from(self, storage: RunStorage) -> None:
        log = await opened(storage)
        assert (log.run_id, log.info, list(log.calls), dict(log.decisions)) == ("run-1", None, [], {})
        assert await log.latest(known_types) is None
        await log.release()

    async def test_a_run_goes_on_from_its_last_checkpoint(self, storage: RunStorage, reopen: Reopen) -> None:
        log = await opened(storage)
        for iteration in range(3):
            await log.save(draft(iteration))
        await log.release(state="CANCELLED")

        log = await opened(await reopen(storage), create=False)

        latest = await log.latest(known_types)
        assert latest is not None
        assert (latest.iteration_count, latest.state) == (2, {"iteration": 2})
        assert log.info is not None
        assert log.info.state == "CANCELLED"
        await log.release()

    async def test_checkpoints_of_a_run_are_numbered_and_name_the_one_before(
        self, storage: RunStorage, reopen: Reopen
    ) -> None:
        log = await opened(storage)
        saved = [await log.save(draft(n)) for n in range(2)]
        await log.release()
        storage = await reopen(storage)
        log = await opened(storage)
        saved.append(await log.save(draft(2, final=True)))

        assert [kept.sequence for kept in saved] == [1, 2, 3]
        assert [kept.previous_checkpoint_id for kept in saved] == [None, *(kept.checkpoint_id for kept in saved[:-1])]
        assert await storage.list_checkpoint_ids(run_id="run-1") == [kept.checkpoint_id for kept in saved]
        assert await storage.newest_checkpoint_id("run-1") == saved[-1].checkpoint_id

    async def test_what_a_save_returns_shows_its_content_when_asked(self, storage: RunStorage) -> None:
        log = await opened(storage)
        saved = await log.save(draft(1, state={"a": (1,)}, final=True))
        assert await asyncio.to_thread(lambda: saved.state) == {"a": (1,)}

    @pytest.mark.parametrize("name", VALUES)
    async def test_values_keep_their_types_across_a_resume(
        self, storage: RunStorage, reopen: Reopen, name: str
    ) -> None:
        log = await opened(storage)
        await log.save(draft(1, state={"value": VALUES[name]}, final=True))
        log = await opened(await reopen(storage))
        latest = await log.latest(known_types)
        assert latest is not None
        assert exact(latest.state["value"]) == exact(VALUES[name])
        await log.release()

    async def test_a_growing_history_comes_back_whole_from_every_checkpoint(
        self, storage: RunStorage, reopen: Reopen
    ) -> None:
        history: list[Label] = []
        expected = {}
        for _ in range(4):
            log = await opened(storage)
            await log.latest(known_types)
            for _ in range(15):
                history.append(Label(f"entry {len(history)} " + "x" * 200))
                saved = await log.save(draft(len(history), state={"history": list(history), "last": history[-1]}))
                expected[saved.checkpoint_id] = list(history)
            await log.release()
            storage = await reopen(storage)
        for checkpoint_id, entries in expected.items():
            assert (await storage.load(checkpoint_id)).state == {"history": entries, "last": entries[-1]}

    # the fence

    async def test_a_run_that_is_held_is_busy(self, storage: RunStorage) -> None:
        log = await opened(storage)
        with pytest.raises(RunBusy) as caught:
            await opened(storage)
        assert caught.value.run_id == "run-1"
        assert str(os.getpid()) in caught.value.holder
        await log.release()

    async def test_of_many_who_open_at_once_one_gets_the_run(self, storage: RunStorage) -> None:
        attempts = await asyncio.gather(*(opened(storage) for _ in range(8)), return_exceptions=True)
        holders = [attempt for attempt in attempts if not isinstance(attempt, BaseException)]
        assert len(holders) == 1
        assert all(isinstance(attempt, RunBusy) for attempt in attempts if isinstance(attempt, BaseException))
        await holders[0].release()

    async def test_a_run_given_back_can_be_taken(self, storage: RunStorage) -> None:
        await (await opened(storage)).release()
        log = await opened(storage)
        assert (await log.save(draft(1))).run_id == "run-1"
        await log.release()
        [run] = await storage.list_runs()
        assert run.holder is None

    async def test_giving_back_twice_does_nothing(self, storage: RunStorage) -> None:
        first = await opened(storage)
        await first.release()
        second = await opened(storage)
        await first.release()
        with pytest.raises(RunBusy):
            await opened(storage)
        await second.release()

    async def test_a_final_checkpoint_gives_the_run_back(self, storage: RunStorage) -> None:
        await (await opened(storage)).save(draft(1, final=True, run_state="IDLE"))
        log = await opened(storage)
        assert log.info is not None
        assert log.info.state == "IDLE"
        await log.release()

    @pytest.mark.parametrize("write", ["checkpoint", "call", "drop"])
    async def test_a_runner_that_lost_its_run_can_not_write(self, storage: RunStorage, write: str) -> None:
        former = await opened(storage)
        await former.save(draft(0))
        await former.release()
        holder = await opened(storage)
        attempts: dict[str, Callable[[], Awaitable[object]]] = {
            "checkpoint": lambda: former.save(draft(1)),
            "call": lambda: former.record_call(call("late"), supersedes=()),
            "drop": lambda: former.drop_calls(["x"]),
        }

        with pytest.raises(RunTakenOver) as caught:
            await attempts[write]()

        assert caught.value.run_id == "run-1"
        assert len(await storage.list_checkpoint_ids(run_id="run-1")) == 1
        await holder.release()

    # the journal

    async def test_recorded_calls_are_found_again(self, storage: RunStorage, reopen: Reopen) -> None:
        rows = [
            replace(call("model"), usage={"writer": {"input_tokens": 3.0}}),
            replace(call("torn \ud83d", None), error="boom", verdict="retry"),
        ]
        log = await opened(storage)
        for row in rows:
            await log.record_call(row, supersedes=())
        await log.release()

        log = await opened(await reopen(storage))

        assert sorted(log.calls, key=lambda row: row.call_id) == sorted(rows, key=lambda row: row.call_id)
        await log.release()

    async def test_a_call_recorded_again_replaces_its_row(self, storage: RunStorage, reopen: Reopen) -> None:
        log = await opened(storage)
        await log.record_call(call("pay", None), supersedes=())
        await log.record_call(call("pay", "1"), supersedes=())
        await log.release()
        log = await opened(await reopen(storage))
        assert list(log.calls) == [call("pay", "1")]
        await log.release()

    async def test_a_call_takes_the_place_of_those_made_inside_it(self, storage: RunStorage, reopen: Reopen) -> None:
        log = await opened(storage)
        await log.record_call(call("outer/inner"), supersedes=())
        await log.record_call(call("other"), supersedes=())
        await log.record_call(call("outer"), supersedes=[call("outer/inner").call_id])
        await log.release()
        log = await opened(await reopen(storage))
        assert {row.name for row in log.calls} == {"outer", "other"}
        await log.release()

    async def test_dropped_calls_are_gone(self, storage: RunStorage, reopen: Reopen) -> None:
        log = await opened(storage)
        await log.record_call(call("a"), supersedes=())
        await log.record_call(call("b"), supersedes=())
        await log.drop_calls([call("a").call_id, "never recorded"])
        await log.release()
        log = await opened(await reopen(storage))
        assert list(log.calls) == [call("b")]
        await log.release()

    async def test_a_checkpoint_forgets_the_calls_before_it(self, storage: RunStorage, reopen: Reopen) -> None:
        log = await opened(storage)
        await log.record_call(call("a"), supersedes=())
        await log.save(draft(1))
        await log.record_call(call("b"), supersedes=())
        await log.release()
        log = await opened(await reopen(storage))
        assert list(log.calls) == [call("b")]
        await log.release()

    async def test_a_checkpoint_within_a_superstep_keeps_its_calls(self, storage: RunStorage, reopen: Reopen) -> None:
        log = await opened(storage)
        await log.record_call(call("a"), supersedes=())
        await log.save(draft(1, keep_calls=True, final=True))
        log = await opened(await reopen(storage))
        assert list(log.calls) == [call("a")]
        await log.release()

    async def test_runs_at_once_keep_their_own_calls_and_checkpoints(self, storage: RunStorage, reopen: Reopen) -> None:
        async def work(number: int) -> None:
            log = await opened(storage, f"run-{number}")
            for step in range(3):
                await log.save(draft(step, state={"run": number, "step": step}))
            await log.record_call(call("ask", str(number)), supersedes=())
            await log.release()

        await asyncio.gather(*map(work, range(25)))
        storage = await reopen(storage)

        for number in range(25):
            log = await opened(storage, f"run-{number}")
            latest = await log.latest(known_types)
            assert latest is not None
            assert latest.state == {"run": number, "step": 2}
            assert [row.result for row in log.calls] == [str(number)]
            await log.release()

    # refused drafts

    async def test_a_refused_checkpoint_leaves_no_trace(self, storage: RunStorage, reopen: Reopen) -> None:
        log = await opened(storage)
        history = [Label(f"{n} " + "x" * 200) for n in range(20)]
        await log.save(draft(1, state={"history": history}))
        await log.record_call(call("a"), supersedes=())
        more = [*history, *(Label(f"{n} " + "y" * 200) for n in range(20))]
        with pytest.raises(NotSavable):
            await log.save(draft(2, state={"history": more, "bad": object()}))
        await log.save(draft(3, state={"history": more}, keep_calls=True))
        await log.release()

        storage = await reopen(storage)
        kept = await storage.list_checkpoints(run_id="run-1")
        latest = await storage.get_latest(run_id="run-1")

        assert [(item.sequence, item.iteration_count) for item in kept] == [(1, 1), (2, 3)]
        assert latest is not None
        assert latest.state == {"history": more}
        log = await opened(storage)
        assert list(log.calls) == [call("a")]
        await log.release()

    # requests and decisions

    async def test_a_request_waits_until_it_is_answered(self, storage: RunStorage, reopen: Reopen) -> None:
        await finished_run(storage, "run-1", pending=[asked("r1")])
        storage = await reopen(storage)
        assert await storage.run_waiting_for("r1") == "run-1"
        assert (await storage.list_runs())[0].pending_requests == (asked("r1"),)
        assert await storage.decision("run-1", "r1") is None

    async def test_a_decision_is_kept_with_the_checkpoint_that_delivers_it(
        self, storage: RunStorage, reopen: Reopen
    ) -> None:
        await finished_run(storage, "run-1", pending=[asked("r1")])
        await finished_run(storage, "run-1", decisions=[decided("r1")])
        storage = await reopen(storage)
        log = await opened(storage)
        assert dict(log.decisions) == {"r1": decided("r1")}
        assert log.info is not None
        assert log.info.pending_requests == ()
        await log.release()

    async def test_a_decision_counts_once(self, storage: RunStorage, reopen: Reopen) -> None:
        await finished_run(storage, "run-1", pending=[asked("r1")])
        await finished_run(storage, "run-1", decisions=[decided("r1")])
        storage = await reopen(storage)
        before = await storage.list_checkpoint_ids()
        log = await opened(storage)
        with pytest.raises(AlreadyAnswered) as caught:
            await log.save(draft(9, decisions=[decided("r1", "false")]))
        await log.release()
        assert (caught.value.request_id, caught.value.run_id, caught.value.answer) == ("r1", "run-1", "true")
        assert await storage.list_checkpoint_ids() == before

    async def test_a_decision_about_nothing_is_refused(self, storage: RunStorage) -> None:
        log = await opened(storage)
        with pytest.raises(UnknownRequest):
            await log.save(draft(1, decisions=[decided("r1")]))
        await log.release()
        assert await storage.list_checkpoint_ids() == []

    async def test_an_answer_can_be_recorded_without_the_program(self, storage: RunStorage, reopen: Reopen) -> None:
        await finished_run(storage, "run-1", pending=[asked("r1")])
        await storage.answer("r1", {"approved": True})
        storage = await reopen(storage)

        [run] = await storage.list_runs()
        log = await opened(storage)

        assert (run.pending_requests, run.undelivered_answers) == ((), 1)
        assert (log.decisions["r1"].value, log.decisions["r1"].typed) == ('{"approved":true}', False)
        await log.release()

    async def test_an_answer_counts_as_delivered_once_a_checkpoint_says_so(self, storage: RunStorage) -> None:
        await finished_run(storage, "run-1", pending=[asked("r1")])
        await storage.answer("r1", True)
        await finished_run(storage, "run-1", delivers=["r1"])
        [run] = await storage.list_runs()
        assert run.undelivered_answers == 0

    async def test_an_answer_counts_once(self, storage: RunStorage) -> None:
        await finished_run(storage, "run-1", pending=[asked("r1")])
        await storage.answer("r1", True)
        with pytest.raises(AlreadyAnswered) as caught:
            await storage.answer("r1", False)
        assert caught.value.answer == "true"

    async def test_of_many_answers_at_once_one_counts(self, storage: RunStorage) -> None:
        await finished_run(storage, "run-1", pending=[asked("r1")])
        results = await asyncio.gather(*(storage.answer("r1", n) for n in range(8)), return_exceptions=True)
        assert results.count(None) == 1
        assert sum(isinstance(result, AlreadyAnswered) for result in results) == 7

    async def test_an_answer_recorded_outside_beats_the_program_that_comes_later(self, storage: RunStorage) -> None:
        await finished_run(storage, "run-1", pending=[asked("r1")])
        await storage.answer("r1", True)
        log = await opened(storage)
        with pytest.raises(AlreadyAnswered):
            await log.save(draft(2, decisions=[decided("r1")]))
        await log.release()

    async def test_an_answer_to_nothing_is_refused(self, storage: RunStorage) -> None:
        await finished_run(storage, "run-1", pending=[asked("r1")])
        with pytest.raises(UnknownRequest):
            await storage.answer("r2", True)
        with pytest.raises(UnknownRequest) as caught:
            await storage.answer("r2", True, run_id="run-1")
        assert caught.value.pending == ("r1",)
        with pytest.raises(UnknownRun):
            await storage.answer("r1", True, run_id="run-2")

    async def test_an_answer_may_name_the_run_it_means(self, storage: RunStorage) -> None:
        for run_id in ("run-1", "run-2"):
            await finished_run(storage, run_id, pending=[asked("r1")])
        await storage.answer("r1", True, run_id="run-2")
        assert await storage.run_waiting_for("r1") == "run-1"
        answer = await storage.decision("run-2", "r1")
        assert answer is not None
        assert answer.value == "true"

    # runs

    async def test_a_run_tells_how_it_stands(self, storage: RunStorage, reopen: Reopen) -> None:
        log = await opened(storage)
        saved = await log.save(draft(4, usage={"writer": {"calls": 2}}, pending=[asked("r1")]))
        await log.release(state="FAILED", stopped_by="ValueError: no")
        storage = await reopen(storage)

        [run] = await storage.list_runs()

        assert (run.run_id, run.workflow_name, run.state, run.supersteps) == ("run-1", WORKFLOW, "FAILED", 4)
        assert (run.usage, run.stopped_by) == ({"writer": {"calls": 2}}, "ValueError: no")
        assert (run.latest_checkpoint_id, run.holder) == (saved.checkpoint_id, None)
        assert datetime.fromisoformat(run.updated_at).tzinfo is not None

    async def test_a_run_under_way_names_its_holder(self, storage: RunStorage) -> None:
        log = await opened(storage)
        await log.save(draft(1))
        [run] = await storage.list_runs()
        assert run.holder is not None
        await log.release()

    async def test_going_on_clears_why_a_run_stopped(self, storage: RunStorage) -> None:
        await (await opened(storage)).release(state="FAILED", stopped_by="ValueError: no")
        await finished_run(storage, "run-1")
        [run] = await storage.list_runs()
        assert (run.state, run.stopped_by) == ("IDLE", None)

    async def test_runs_are_listed_most_recently_saved_first(self, storage: RunStorage, reopen: Reopen) -> None:
        for run_id in ("a", "b", "c", "a"):
            await finished_run(storage, run_id)
        storage = await reopen(storage)
        assert [run.run_id for run in await storage.list_runs()] == ["a", "c", "b"]

    async def test_runs_can_be_narrowed_by_workflow_and_state(self, storage: RunStorage) -> None:
        await finished_run(storage, "a")
        await (await opened(storage, "b", workflow_name="returns")).save(draft(1, final=True, run_state="FAILED"))
        assert [run.run_id for run in await storage.list_runs(workflow_name="returns")] == ["b"]
        assert [run.run_id for run in await storage.list_runs(state="IDLE")] == ["a"]
        assert await storage.list_runs(workflow_name="returns", state="IDLE") == []

    async def test_a_checkpoint_saved_by_hand_is_no_run(self, storage: RunStorage) -> None:
        await storage.save(checkpoint(1, run=None))
        await storage.save(checkpoint(2, run="copied"))
        assert await storage.list_runs() == []

    async def test_a_refused_save_by_hand_leaves_no_run_behind(self, storage: RunStorage) -> None:
        for run in (None, "run-1"):
            with pytest.raises(NotSavable):
                await storage.save(checkpoint(1, run=run, state={"bad": object()}))
        assert await storage.list_runs() == []
        assert await storage.open_run("run-1", workflow_name=WORKFLOW, registry=known_types, create=False) is None

    async def test_a_checkpoint_saved_by_hand_leaves_journal_usage_and_order_of_its_run_alone(
        self, storage: RunStorage
    ) -> None:
        log = await opened(storage)
        for iteration in range(3):
            await log.save(draft(iteration, usage={"writer": {"calls": 2}}))
        await log.record_call(call("a"), supersedes=())
        await log.release()

        await storage.save(checkpoint(1, run="run-1"))

        log = await opened(storage)
        assert list(log.calls) == [call("a")]
        assert log.info is not None
        assert log.info.usage == {"writer": {"calls": 2}}
        assert (await log.save(draft(3, final=True))).sequence == 4

    async def test_a_cancelled_run_can_be_resumed(self, storage: RunStorage, reopen: Reopen) -> None:
        log = await opened(storage)
        await log.save(draft(1))
        await log.release()
        await storage.cancel_run("run-1")
        storage = await reopen(storage)
        assert [run.state for run in await storage.list_runs()] == ["CANCELLED"]
        log = await opened(storage)
        assert await log.latest(known_types) is not None
        await log.release()

    async def test_only_a_run_that_exists_can_be_cancelled(self, storage: RunStorage) -> None:
        with pytest.raises(UnknownRun):
            await storage.cancel_run("nobody")

    async def test_a_run_under_way_can_be_neither_cancelled_nor_deleted(self, storage: RunStorage) -> None:
        log = await opened(storage)
        await log.save(draft(1))
        with pytest.raises(RunBusy):
            await storage.cancel_run("run-1")
        with pytest.raises(RunBusy):
            await storage.delete_run("run-1")
        await log.save(draft(2, final=True))

    async def test_a_deleted_run_is_gone_with_everything(self, storage: RunStorage, reopen: Reopen) -> None:
        await finished_run(storage, "run-1", pending=[asked("r1")])
        await finished_run(storage, "run-2")
        assert await storage.delete_run("run-1") is True
        assert await storage.delete_run("run-1") is False
        storage = await reopen(storage)
        assert [run.run_id for run in await storage.list_runs()] == ["run-2"]
        assert await storage.list_checkpoint_ids(run_id="run-1") == []
        assert await storage.run_waiting_for("r1") is None
        log = await opened(storage)
        assert (log.info, list(log.calls), await log.latest(known_types)) == (None, [], None)
        await log.release()

    # branches

    async def test_a_branch_remembers_where_it_left(self, storage: RunStorage, reopen: Reopen) -> None:
        trunk, branch = await branched(storage)
        storage = await reopen(storage)
        [run] = [run for run in await storage.list_runs() if run.run_id == "branch"]
        assert (run.parent_run_id, run.parent_checkpoint_id) == ("trunk", trunk.checkpoint_id)
        assert branch.previous_checkpoint_id == trunk.checkpoint_id

    async def test_a_branch_outlives_the_run_it_left(self, storage: RunStorage, reopen: Reopen) -> None:
        _, branch = await branched(storage)
        await finished_run(storage, "bystander", state={"text": "z" * 10_000})

        await storage.delete_run("trunk")
        # Deleting elsewhere must not sweep what only the branch refers to now.
        await storage.delete_run("bystander")
        await storage.save(checkpoint(1, run=None))
        await storage.delete("c1")
        storage = await reopen(storage)

        assert len((await storage.load(branch.checkpoint_id)).state["history"]) == 40
        log = await opened(storage, "branch")
        assert await log.latest(known_types) is not None
        await log.save(draft(9, state={"more": 1}, final=True))

    async def test_a_run_outlives_its_branches(self, storage: RunStorage) -> None:
        trunk, _ = await branched(storage)
        await storage.delete_run("branch")
        assert len((await storage.load(trunk.checkpoint_id)).state["history"]) == 40

    # deleting under a runner's feet

    async def test_deleting_a_checkpoint_of_a_run_under_way_harms_none_of_its_later_ones(
        self, storage: RunStorage, reopen: Reopen
    ) -> None:
        history = [Label(f"{n} " + "x" * 200) for n in range(40)]
        log = await opened(storage)
        first = await log.save(draft(1, state={"history": history}))
        await log.save(draft(2, state={}))
        await storage.delete(first.checkpoint_id)
        saved = await log.save(draft(3, state={"history": history}, final=True))
        storage = await reopen(storage)
        assert (await storage.load(saved.checkpoint_id)).state == {"history": history}

    # types

    async def test_types_unknown_here_are_opaque_to_readers_and_refused_to_runners(
        self, storage: RunStorage, reopen: Reopen
    ) -> None:
        theirs = TypeRegistry(known_types)
        theirs.register(Stranger, name="elsewhere:Stranger")
        log = await opened(storage, registry=theirs)
        saved = await log.save(draft(1, state={"who": Stranger("Ann")}, final=True))
        storage = await reopen(storage)

        seen = (await storage.load(saved.checkpoint_id)).state["who"]
        log = await opened(storage)

        assert seen == OpaqueValue("elsewhere:Stranger", {"name": "Ann"})
        with pytest.raises(UnknownType, match="elsewhere:Stranger"):
            await log.latest(known_types)
        latest = await log.latest(theirs)
        assert latest is not None
        assert latest.state["who"] == Stranger("Ann")
        await log.release()

    # ids

    @pytest.mark.parametrize(
        "bad",
        ["", ".", "..", "../up", "a/b", "a\\b", "a\0b", "a b", "a'; --", "é", "a\n", "x" * 129],
        ids=["empty", "dot", "dots", "up", "slash", "backslash", "nul", "space", "sql", "accent", "newline", "long"],
    )
    async def test_ids_that_could_reach_a_path_or_a_query_are_refused(self, storage: RunStorage, bad: str) -> None:
        attempts: list[Callable[[], Awaitable[object]]] = [
            lambda: storage.load(bad),
            lambda: storage.delete(bad),
            lambda: opened(storage, bad),
            lambda: storage.cancel_run(bad),
            lambda: storage.delete_run(bad),
        ]
        if bad:
            attempts += [
                lambda: storage.save(checkpoint(1, checkpoint_id=bad)),
                lambda: storage.save(checkpoint(1, run=bad)),
            ]
        for attempt in attempts:
            with pytest.raises(InvalidId):
                await attempt()

    async def test_the_longest_id_works(self, storage: RunStorage) -> None:
        name = "x" * 128
        await storage.save(checkpoint(1, checkpoint_id=name, run=None))
        assert (await storage.load(name)).checkpoint_id == name
        await finished_run(storage, name)
        assert [run.run_id for run in await storage.list_runs()] == [name]
