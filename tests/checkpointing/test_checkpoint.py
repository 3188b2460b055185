"""A checkpoint is a header that is always there and a content that is read when asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepwell.checkpointing import PendingRequest, RecordedOutput, WorkflowCheckpoint, WorkflowMessage
from stepwell.checkpointing.checkpoint import FORMAT, CheckpointContent, check_format, checked_id
from stepwell.errors import CheckpointNotFound, CodecError, FormatTooNew, InvalidId, NotSavable, Undecodable
from stepwell.testing.storage import VALUES, exact


def full() -> WorkflowCheckpoint:
    return WorkflowCheckpoint(
        "delivery",
        "graph",
        checkpoint_id="c2",
        previous_checkpoint_id="c1",
        run_id="run-1",
        sequence=2,
        iteration_count=1,
        messages={"desk": [WorkflowMessage({"x": (1,)}, "desk", "van"), WorkflowMessage(None, "desk")]},
        state={"_executor_state": {"desk": {1: "int key"}}, "shared": {1, 2}},
        pending_request_info_events={"r1": PendingRequest("r1", "desk", "ok?", "str", "bool", "now", default=False)},
        outputs=[RecordedOutput("van", "output", b"done", "e1", 1)],
        metadata={"by": "test"},
    )


# --- to_dict and from_dict --------------------------------------------------------------------------------------------


def test_a_checkpoint_survives_as_plain_json() -> None:
    text = json.dumps(full().to_dict())
    again = WorkflowCheckpoint.from_dict(json.loads(text))
    assert again.to_dict() == full().to_dict() | {"timestamp": again.timestamp}
    assert exact(again.content) == exact(full().content)


@pytest.mark.parametrize("name", VALUES)
def test_its_values_keep_their_types(name: str) -> None:
    checkpoint = WorkflowCheckpoint("w", "g", state={"value": VALUES[name]})
    again = WorkflowCheckpoint.from_dict(json.loads(json.dumps(checkpoint.to_dict())))
    assert exact(again.state["value"]) == exact(VALUES[name])


def test_a_checkpoint_equals_its_copy_and_no_other() -> None:
    one = full()
    copy = WorkflowCheckpoint.from_dict(one.to_dict())
    assert one == copy
    assert hash(one) == hash(copy)
    copy.metadata["by"] = "someone else"
    assert one != copy
    assert one != "c2"


def test_what_can_not_be_saved_is_refused_by_its_path() -> None:
    with pytest.raises(NotSavable, match=r"checkpoint c9\['state'\]\['hook'\]"):
        WorkflowCheckpoint("w", "g", checkpoint_id="c9", state={"hook": print}).to_dict()


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in full().to_dict().items() if key != name}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({}, id="nothing"),
        pytest.param(without("content"), id="no content"),
        pytest.param(without("workflow_name"), id="no workflow"),
        pytest.param(without("checkpoint_id"), id="no id"),
        pytest.param(without("version"), id="no version"),
        pytest.param(full().to_dict() | {"content": "{"}, id="content is no json"),
        pytest.param(full().to_dict() | {"content": "[1]"}, id="content is a list"),
        pytest.param(full().to_dict() | {"content": {"state": {}}}, id="content is no text"),
        pytest.param(full().to_dict() | {"version": "one"}, id="version is no number"),
        pytest.param(full().to_dict() | {"version": None}, id="version is nothing"),
        pytest.param(full().to_dict() | {"version": "1.0; drop"}, id="version and more"),
    ],
)
def test_what_is_no_checkpoint_is_refused_with_an_error_of_ours(data: dict[str, Any]) -> None:
    with pytest.raises(CodecError):
        WorkflowCheckpoint.from_dict(data)


# --- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.1", "0.9", FORMAT, "1.7"])
def test_old_formats_and_small_additions_are_readable(version: str) -> None:
    again = WorkflowCheckpoint.from_dict(full().to_dict() | {"version": version})
    assert again.version == version


@pytest.mark.parametrize("version", ["2.0", "10.0", "999999.0"])
def test_newer_formats_are_refused_by_name(version: str) -> None:
    with pytest.raises(FormatTooNew) as caught:
        WorkflowCheckpoint.from_dict(full().to_dict() | {"version": version})
    assert (caught.value.record, caught.value.version, caught.value.supported) == ("c2", version, FORMAT)


def test_a_format_with_endless_digits_is_no_format() -> None:
    with pytest.raises(Undecodable):
        check_format("c1", "1" * 5000 + ".0")


def test_what_an_older_writer_did_not_store_is_empty() -> None:
    assert CheckpointContent.of({"state": {"a": 1}}) == CheckpointContent(state={"a": 1})


# --- lazy content -----------------------------------------------------------------------------------------------------


class Shelf:
    """Counts how often somebody fetches the content."""

    def __init__(self) -> None:
        self.fetched = 0

    def fetch(self, checkpoint_id: str) -> CheckpointContent:
        self.fetched += 1
        return CheckpointContent(state={"a": 1})


def test_the_header_is_there_without_the_content() -> None:
    shelf = Shelf()
    checkpoint = WorkflowCheckpoint("w", "g", checkpoint_id="c1", sequence=3, read=shelf.fetch)
    assert (checkpoint.checkpoint_id, checkpoint.sequence, "sequence=3" in repr(checkpoint)) == ("c1", 3, True)
    assert shelf.fetched == 0


def test_the_content_is_fetched_once() -> None:
    shelf = Shelf()
    checkpoint = WorkflowCheckpoint("w", "g", read=shelf.fetch)
    assert (checkpoint.state, checkpoint.messages, checkpoint.outputs) == ({"a": 1}, {}, ())
    assert shelf.fetched == 1


def test_content_that_could_not_be_fetched_is_fetched_again() -> None:
    shelf, closed = Shelf(), [True]

    def fetch(checkpoint_id: str) -> CheckpointContent:
        if closed.pop():
            raise CheckpointNotFound("c1")
        return shelf.fetch(checkpoint_id)

    checkpoint = WorkflowCheckpoint("w", "g", read=fetch)
    with pytest.raises(CheckpointNotFound):
        _ = checkpoint.state
    closed.append(False)
    assert checkpoint.state == {"a": 1}


# --- ids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("good", ["a", "A-b_c.9", "x" * 128, "...", ".hidden"])
def test_a_good_id_passes(good: str) -> None:
    assert checked_id("run_id", good) == good


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "a\\b", "a b", "é", "a\n", "x" * 129, "a:b", "\ud83d", None, 7])
def test_a_bad_id_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidId):
        checked_id("run_id", bad)


def test_ids_are_made_up_unless_given() -> None:
    one, other = WorkflowCheckpoint("w", "g"), WorkflowCheckpoint("w", "g")
    assert checked_id("checkpoint_id", one.checkpoint_id) != other.checkpoint_id


def test_what_to_dict_gives_and_from_dict_takes_is_not_the_checkpoints_own() -> None:
    checkpoint = full()
    data = checkpoint.to_dict()
    again = WorkflowCheckpoint.from_dict(data)

    data["metadata"]["changed"] = True

    assert "changed" not in checkpoint.metadata
    assert "changed" not in again.metadata
