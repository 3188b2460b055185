"""A state is a small root over values stored once: it grows by what is new; no change and no damage goes unnoticed."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections import deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from stepwell.checkpointing import values as values_module
from stepwell.checkpointing.codec import MAX_DEPTH, dump_tree
from stepwell.checkpointing.registry import TypeRegistry
from stepwell.checkpointing.values import (
    BLOCK,
    VERY_LONG,
    Node,
    NodeLines,
    Root,
    ValueDecoder,
    ValueEncoder,
    ValueMemory,
    digest_of,
)
from stepwell.errors import (
    CheckpointDamaged,
    LimitExceeded,
    NotSavable,
    Undecodable,
    UnknownType,
    WorkflowCheckpointException,
)
from stepwell.testing.storage import exact

HEADER = '{"id":"c1"}'


# --- a store, and what goes into it -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Note:
    """Deeply immutable by declaration; nothing stops `n` from being True, though."""

    text: str
    n: int = 0


@dataclass
class Page:
    """Mutable."""

    lines: list[Any]


class Loose:
    """Immutable, and all too willing to call itself equal."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loose)

    def __hash__(self) -> int:
        return 1

    def __repr__(self) -> str:
        return f"Loose({self.text!r})"

    def __deepcopy__(self, _: Any) -> Loose:
        return self


class Said:
    """Immutable, and equal only to what is the same in every detail."""

    equality_is_exact = True

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return type(other) is Said and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Said({self.text!r})"

    def __deepcopy__(self, _: Any) -> Said:
        return self


class EqualToAnything:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


@dataclass(frozen=True)
class Bundle:
    notes: tuple[Note, ...]


@dataclass(frozen=True)
class Folder:
    texts: tuple[str, ...]


RECORD = f"{Note.__module__}:{Note.__qualname__}"


def known() -> TypeRegistry:
    registry = TypeRegistry()
    for cls in (Note, Page, Bundle, Folder):
        registry.register(cls)
    registry.register(Loose, encode=lambda x: {"text": x.text}, decode=lambda v: Loose(v["text"]), immutable=True)
    registry.register(Said, encode=lambda x: {"text": x.text}, decode=lambda v: Said(v["text"]), immutable=True)
    return registry


class Store:
    """What a storage does with roots and nodes, without the storage."""

    def __init__(self, first_id: int = 1) -> None:
        self.registry = known()
        self.memory = ValueMemory(first_id)
        self.encoder = ValueEncoder(self.registry, self.memory)
        self.nodes: dict[int, Node] = {}
        self.added: list[Node] = []

    def save(self, state: Any) -> Root:
        try:
            text, refs = self.encoder.root({"state": state}, "checkpoint")
        except BaseException:
            self.memory.forget(self.encoder.new_nodes)
            raise
        self.added = list(self.encoder.new_nodes)
        self.nodes.update((node.id, node) for node in self.added)
        return self.encoder.sealed(HEADER, text, refs)

    def load(self, root: Root, memory: ValueMemory | None = None) -> Any:
        """Nodes may be given one by one or as lines of one text: both ways have to come to the same."""
        decoder = ValueDecoder(self.registry, self.nodes, strict=True, path="checkpoint c1")
        try:
            loaded = decoder.root(HEADER, root)["state"]
        except WorkflowCheckpointException as error:
            if not self._has_line_breaks:
                with pytest.raises(type(error)):
                    self.load_lines(root)
            raise
        if self._has_line_breaks:
            return loaded
        from_lines = self.load_lines(root, memory)
        assert exact(from_lines) == exact(loaded)
        return from_lines

    def load_lines(self, root: Root, memory: ValueMemory | None = None) -> Any:
        decoder = ValueDecoder(self.registry, strict=True, path="checkpoint c1", memory=memory)
        decoder.add_lines(lines_of(self.nodes.values(), wanted=self.nodes))
        return decoder.root(HEADER, root)["state"]

    @property
    def _has_line_breaks(self) -> bool:
        """Only what is damaged has: JSON escapes them. A storage does not read such texts as lines."""
        return any("\n" in node.text for node in self.nodes.values())

    def bytes_added_by(self, state: Any) -> int:
        root = self.save(state)
        return len(root.text) + 8 * len(root.refs) + sum(len(node.text) + 8 * len(node.refs) for node in self.added)

    def resumed(self, root: Root) -> tuple[Store, Any]:
        """The same store in the next process: it knows what it read, and nothing else."""
        again = Store(first_id=max(self.nodes, default=0) + 1)
        again.nodes = dict(self.nodes)
        return again, again.load(root, again.memory)


def lines_of(nodes: Iterable[Node], *, wanted: Container[int]) -> NodeLines:
    ids, texts, refs, digests = zip(*nodes, strict=True) if nodes else ((), (), (), ())
    text = "\n".join(texts)
    return NodeLines(ids, refs, digests, text.encode("utf-8", "surrogatepass"), text, wanted)


def note(number: int) -> Note:
    return Note(f"{number:06} " + "x" * 300, number)


def said(number: int) -> Said:
    return Said(f"{number:06} " + "x" * 300)


KINDS: dict[str, Any] = {
    "records": note,
    "helped types": lambda number: Loose(f"{number} " + "x" * 300),
    "exact types": said,
    "texts": lambda number: f"{number:06} " + "x" * 300,
}


# --- growth -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["records", "helped types", "exact types"])
def test_a_conversation_of_any_length_grows_by_its_new_message(kind: str) -> None:
    store, history, sizes = Store(), [], []
    for number in range(1200):
        history.append(KINDS[kind](number))
        sizes.append(store.bytes_added_by({"history": history}))
    early, late = sizes[200:300], sizes[1100:1200]
    assert sum(late) < 1.25 * sum(early)
    assert sum(sizes) < 3 * 350 * 1200


def test_a_conversation_goes_on_growing_by_its_new_message_after_a_resume() -> None:
    store, history = Store(), [note(n) for n in range(500)]
    root = store.save({"history": history})
    store, state = store.resumed(root)
    state["history"].append(note(500))
    assert store.bytes_added_by(state) < 4000


def test_a_conversation_copied_every_time_grows_by_its_new_message() -> None:
    store, history = Store(), [note(n) for n in range(500)]
    store.save({"history": list(history)})
    history.append(note(500))
    assert store.bytes_added_by({"history": list(history)}) < 4000


def test_a_long_plain_list_grows_by_its_tail() -> None:
    store = Store()
    rows = [{"n": n, "text": "x" * 100} for n in range(1000)]
    store.save(rows)
    rows.append({"n": 1000, "text": "x" * 100})
    assert store.bytes_added_by(rows) < 4000


def test_a_long_dict_grows_by_its_tail() -> None:
    store = Store()
    table = {f"key {n}": "x" * 100 for n in range(1000)}
    store.save(table)
    table["one more"] = "x" * 100
    assert store.bytes_added_by(table) < 4000


def test_an_unchanged_state_adds_a_small_root() -> None:
    store = Store()
    state = {"history": [note(n) for n in range(500)], "plain": [list(range(100)) for _ in range(50)], "t": "x" * 9000}
    store.save(state)
    assert store.bytes_added_by(state) < 2500
    assert store.added == []


def test_a_message_is_stored_once_wherever_it_appears() -> None:
    store, message = Store(), note(1)
    store.save(
        {"a": [message], "b": {"c": message}, "d": (message, [message]), "e": Page([message]), "f": {1: message}}
    )
    assert sum(node.text.count(message.text) for node in store.nodes.values()) == 1


def test_equal_messages_are_stored_once() -> None:
    store = Store()
    store.save([note(1), [note(1)]])
    assert len(store.nodes) == 1


def test_a_message_inside_another_is_stored_once() -> None:
    store = Store()
    store.save([note(1), Bundle((note(1), note(2))), note(2)])
    assert sum(node.text.count("000001") for node in store.nodes.values()) == 1


def test_a_conversation_in_two_places_is_stored_once() -> None:
    store, history = Store(), [note(n) for n in range(100)]
    store.save({"history": history})
    before = len(store.nodes)
    store.save({"history": history, "session": list(history), "tuple": tuple(history)})
    assert len(store.nodes) == before


def test_branches_of_a_conversation_share_what_they_have_in_common() -> None:
    store, trunk = Store(), [note(n) for n in range(100)]
    left, right = [*trunk, note(1001)], [*trunk, note(1002)]
    store.save(trunk)
    assert store.bytes_added_by({"left": left, "right": right}) < 8000


CARRIERS: dict[str, Any] = {
    "a copy": list,
    "a tuple": tuple,
    "a record": lambda history: Page(list(history)),
    "a dict that begins with something else": lambda history: {"n": 1, "history": list(history)},
    "dicts in dicts": lambda history: {"a": {"b": {"n": 1, "history": list(history)}, "c": [1, 2]}},
    "a message in flight": lambda history: {"source": [["source", None, list(history)]]},
    "copies of different ages": lambda history: {f"{age}": history[: len(history) - age] for age in range(12)},
    "lists that begin alike": lambda history: {f"{n}": [history[0], *history[n + 1 :]] for n in range(12)},
    "a list with an end of its own": lambda history: [*history, history[len(history) // 2]],
}


def steps_of(store: Store, state: Any) -> int:
    """How many of the interpreter's instructions a save takes; unlike seconds they can be relied on."""
    steps = 0

    def count(frame: Any, event: str, _: Any) -> Any:
        nonlocal steps
        steps += event == "opcode"
        frame.f_trace_opcodes = True
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        store.save(state)
    finally:
        sys.settrace(before)
    store.memory.tidy()
    return steps


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_message_more_takes_no_more_steps_in_a_longer_conversation(carrier: str, make: Any) -> None:
    spent = []
    for length in (20 * BLOCK + 1, 120 * BLOCK + 1):
        store, history = Store(), [make(n) for n in range(length + 3)]
        for known in (length, length + 1, length + 2):
            store.save(CARRIERS[carrier](history[:known]))
        spent.append(steps_of(store, CARRIERS[carrier](history)))
    assert spent[1] < 1.4 * spent[0]  # six times as long, and so one level of blocks more


def test_lists_that_have_left_the_state_are_let_go_of() -> None:
    store = Store()
    for number in range(100):
        store.save([note(number * 100 + n) for n in range(20)])
        store.memory.tidy()
    assert sum(map(len, store.memory.trunks.values())) < 40


# --- what goes in comes out -------------------------------------------------------------------------------------------

LENGTHS = [
    0,
    1,
    BLOCK - 1,
    BLOCK,
    BLOCK + 1,
    2 * BLOCK,
    2 * BLOCK + 1,
    BLOCK**2 - 1,
    BLOCK**2,
    BLOCK**2 + 1,
    BLOCK**2 * 2 + 3,
]


@pytest.mark.parametrize("length", LENGTHS)
def test_lists_and_dicts_of_any_length_come_back(length: int) -> None:
    store = Store()
    numbers = list(range(length))
    state = {
        "plain": numbers,
        "tuple": tuple(numbers),
        "deque": deque(numbers, maxlen=length + 1),
        "notes": [note(n) for n in numbers],
        "texts": {str(n): n for n in numbers},
        "int keys": {n: str(n) for n in numbers},
        "mixed keys": {(n if n % 3 else str(n)): n for n in numbers},
        "dollars": {"$" * (n + 1): n for n in numbers[:40]},
        "set": set(numbers),
        "rows": [{"n": n, "pad": "x" * 600} for n in numbers[:40]],
        "the same again": [1] * length,
    }
    assert exact(store.load(store.save(state))) == exact(state)


def test_every_length_on_the_way_comes_back() -> None:
    store, history, roots = Store(), [], []
    for number in range(3 * BLOCK + 2):
        history.append(note(number))
        roots.append(store.save(history))
    assert [len(store.load(root)) for root in roots] == list(range(1, 3 * BLOCK + 3))
    assert store.load(roots[-1]) == history


def test_lists_that_share_a_beginning_and_part_ways_stay_apart() -> None:
    store, trunk = Store(), [note(n) for n in range(BLOCK + 5)]
    expected = []
    for step in range(40):
        left, right = [*trunk, note(1000 + step)], [*trunk, note(2000 + step), note(3000 + step)]
        state = {"left": left, "right": right, "trunk": list(trunk)}
        expected.append((store.save(state), copy.deepcopy(state)))
        trunk = left if step % 2 else right
    for root, state in expected:
        assert store.load(root) == state


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_every_beginning_of_a_known_conversation_comes_back_and_adds_no_block(make: Any) -> None:
    store, history = Store(), [make(n) for n in range(BLOCK**2 + 2 * BLOCK + 3)]
    store.save(history)
    for length in range(len(history)):
        root = store.save(history[:length])
        assert exact(store.load(root)) == exact(history[:length])
        assert root.digest == Store().save(history[:length]).digest
        assert len(store.added) <= (0 if length > BLOCK else BLOCK)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_conversation_that_was_read_goes_on_from_any_of_its_beginnings(make: Any) -> None:
    store, history = Store(), [make(n) for n in range(BLOCK**2 + 3 * BLOCK + 3)]
    root = store.save(history)
    for length in (BLOCK - 1, BLOCK + 1, 2 * BLOCK, BLOCK**2 - 1, BLOCK**2, BLOCK**2 + 1, len(history) - 1):
        again, read = store.resumed(root)
        for state in (read[:length], [*read[:length], make(1000)], [*read, make(1001)], read):
            saved = again.save(state)
            assert exact(again.load(saved)) == exact(state)
            assert saved.digest == Store().save(state).digest


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_an_item_replaced_anywhere_in_a_long_list_is_noticed(make: Any) -> None:
    store, history = Store(), [make(n) for n in range(BLOCK**2 + BLOCK + 3)]
    store.save(history)
    for place in range(len(history)):
        state = [*history[:place], make(1000 + place), *history[place + 1 :]]
        root = store.save(state)
        assert exact(store.load(root)) == exact(state)
        assert root.digest == Store().save(state).digest


@pytest.mark.parametrize("mutable", [Page, list, lambda items: {"k": items}], ids=["record", "list", "dict"])
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_what_can_change_is_looked_at_every_time_among_what_can_not(make: Any, mutable: Any) -> None:
    items: list[Any] = [1]
    for place in (1, BLOCK + 1, 3 * BLOCK - 1):
        store, history = Store(), [make(n) for n in range(3 * BLOCK)]
        store.save(history[:place])
        history[place] = mutable(items)
        for number in range(3):
            items.append(number)
            assert exact(store.load(store.save(history))) == exact(history)


def test_an_item_added_to_exact_ones_is_not_taken_for_one_that_calls_itself_equal() -> None:
    store, history = Store(), [said(n) for n in range(2 * BLOCK)]
    store.save(history)
    for text in ("one", "other"):
        state = [*history, Loose(text * 100), *history]
        assert exact(store.load(store.save(state))) == exact(state)


def test_something_that_calls_itself_equal_to_a_message_is_refused_in_its_place() -> None:
    store, history = Store(), [said(n) for n in range(3 * BLOCK)]
    store.save(history)
    with pytest.raises(NotSavable):
        store.save([*history[:5], EqualToAnything(), *history[6:]])


def test_a_text_replaced_by_an_equal_one_of_another_type_is_noticed() -> None:
    class Shout(str):
        """Equal to its plain text, and not savable."""

    store, lines = Store(), [f"line {n}" for n in range(3 * BLOCK)]
    store.save(lines)
    with pytest.raises(NotSavable):
        store.save([*lines[:5], Shout(lines[5]), *lines[6:]])


def test_long_texts_are_cut_the_same_way_whoever_was_encoded_first() -> None:
    texts = [f"{n} " + "x" * 5000 for n in range(2 * BLOCK)]
    inside, outside = Folder(tuple(texts)), list(texts)
    used = Store()
    used.save({"outside": outside})
    used.save({"inside": inside})
    state = {"inside": inside, "outside": outside}
    assert used.save(state).digest == Store().save(state).digest


def test_plain_data_is_cut_the_same_way_before_and_after_a_very_long_list() -> None:
    plain = {"n": 1, "rows": [{"text": PAD, "more": [1, 2, {"deep": "x" * 300}]}], "list": list(range(20))}
    state = {"first": plain, "second": {"inner": plain, "texts": [PAD] * 40}}
    used = Store()
    used.save([note(n) for n in range(2 * VERY_LONG)])
    assert used.save(state).digest == Store().save(state).digest


def test_blocks_that_another_writer_cut_differently_come_back_and_are_saved_anew() -> None:
    """Nine blocks side by side, of which eight would be one here."""
    notes = [note(n) for n in range(9 * BLOCK)]
    records = [(dump_tree({"$": "object", "t": RECORD, "v": dataclasses.asdict(item)}), ()) for item in notes]
    one_by_one = "[" + ",".join(f'{{"$":{n}}}' for n in range(BLOCK)) + "]"
    blocks = [(one_by_one, tuple(range(start + 1, start + BLOCK + 1))) for start in range(0, len(notes), BLOCK)]
    first = len(notes) + 1
    root = ('{"state":{"$":"list","b":[0,1,2,3,4,5,6,7,8],"v":[]}}', tuple(range(first, first + 9)))
    store, again = store_of(*records, *blocks, root)
    store, read = store.resumed(again)
    assert read == notes
    assert store.load(store.save(read)) == notes


def test_a_list_cut_short_and_grown_differently_comes_back() -> None:
    store, history = Store(), [note(n) for n in range(3 * BLOCK)]
    store.save(history)
    del history[BLOCK + 3 :]
    short = store.save(history)
    history += [note(n) for n in range(500, 540)]
    assert len(store.load(short)) == BLOCK + 3
    assert store.load(store.save(history)) == history


@pytest.mark.parametrize("make", [KINDS["records"], KINDS["helped types"]], ids=["records", "helped types"])
def test_an_item_replaced_by_one_that_calls_itself_equal_is_noticed(make: Any) -> None:
    store, history = Store(), [make(n) for n in range(2 * BLOCK)]
    store.save(history)
    history[5] = Loose("another") if isinstance(history[5], Loose) else dataclasses.replace(history[5], n=5.0)
    assert exact(store.load(store.save(history))) == exact(history)


LOOKALIKES: dict[str, tuple[Any, Any]] = {
    "one and true": (1, True),
    "one and one point zero": (1, 1.0),
    "zero and minus zero": (0.0, -0.0),
    "zero and false": (0, False),
    "bytes and bytearray": (b"abc", bytearray(b"abc")),
    "bytearray and bytes": (bytearray(b"abc"), b"abc"),
    "list and tuple": ([1, 2], (1, 2)),
    "set and frozenset": ({1}, frozenset({1})),
    "text and bytes": ("abc", b"abc"),
    "text and number": ("1", 1),
    "order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "keys one and true": ({1: "x"}, {True: "x"}),
    "nothing and false": (None, False),
}
PAD = "x" * 600


@pytest.mark.parametrize("size", [0, 1, BLOCK + 1, 3 * BLOCK], ids=["inline", "apart", "in a block", "in many blocks"])
@pytest.mark.parametrize("name", LOOKALIKES)
def test_a_lookalike_of_another_type_is_noticed(name: str, size: int) -> None:
    one, other = LOOKALIKES[name]
    store = Store()
    for value in (one, other):
        state = {"list": [value] + [PAD] * size, "dict": {"k": value, **{f"{n}": PAD for n in range(size)}}}
        assert exact(store.load(store.save(state))) == exact(state)


def test_a_view_of_bytes_is_refused_even_if_equal_bytes_are_known() -> None:
    store = Store()
    store.save([b"x" * 1000, 1])
    with pytest.raises(NotSavable):
        store.save([memoryview(b"x" * 1000), 1])


def test_what_is_loaded_shares_no_list_with_another_place() -> None:
    store, rows = Store(), [{"n": n, "pad": PAD} for n in range(5)]
    loaded = store.load(store.save({"left": rows, "right": rows}))
    loaded["left"][0]["n"] = "changed"
    assert loaded["right"] == rows


def test_messages_that_are_loaded_are_one_object_wherever_they_appear() -> None:
    store, message = Store(), note(1)
    loaded = store.load(store.save([message, message]))
    assert loaded[0] is loaded[1]


# --- any change at all ------------------------------------------------------------------------------------------------

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, 1.0, 0.0, -0.0, True, False, 2**80, "1", b"1", bytearray(b"1"), float("inf")]),
    st.integers(),
    st.text(max_size=5),
    st.sampled_from(["y" * 700, "z" * 5000, b"w" * 700, "\ud83d\ude00", "$"]),
    st.integers(0, 50).map(note),
    st.integers(0, 50).map(said),
    st.sampled_from([Note("a" * 200, 1), Note("a" * 200, True), Note("b"), Loose("c" * 200), Loose("d" * 200)]),
)
SPROUTS = st.one_of(
    ATOMS,
    st.lists(ATOMS, max_size=4),
    st.lists(ATOMS, max_size=3).map(tuple),
    st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 9), st.just("$")), ATOMS, max_size=4),
    st.lists(ATOMS, max_size=3).map(Page),
    st.binary(max_size=700).map(bytearray),
    st.sets(st.integers(0, 99), max_size=5),
    st.lists(st.integers(0, 200).map(note), min_size=15, max_size=40),
    st.lists(st.integers(0, 200).map(said), min_size=15, max_size=40),
    st.lists(st.integers(), min_size=15, max_size=300),
    st.integers(30, 60).map(lambda n: {f"k{i}": i for i in range(n)}),
)


def containers_in(value: Any) -> Iterator[Any]:
    if isinstance(value, Page):
        value = value.lines
    if isinstance(value, list | dict | bytearray | set):
        yield value
    if isinstance(value, list | tuple | dict):
        for child in value.values() if isinstance(value, dict) else value:
            yield from containers_in(child)


def lookalike(value: Any) -> Any:
    for one, other in [*LOOKALIKES.values(), *((b, a) for a, b in LOOKALIKES.values())]:
        if exact(one) == exact(value):
            return copy.deepcopy(other)
    match value:
        case bytes():
            return bytearray(value)
        case bytearray():
            return bytes(value)
        case list():
            return tuple(value)
        case Note():
            return Note(value.text, cast(int, float(value.n)))
        case Loose():
            return Loose(value.text + "!")
    return value


class StateThatChanges(RuleBasedStateMachine):
    """Changes a nested state in every way plain data can change, and saves it after each change."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.state: dict[str, Any] = {"history": [note(n) for n in range(20)], "list": [], "dict": {}}
        self.saved: list[tuple[Root, Any]] = []

    @initialize()
    def begin(self) -> None:
        self.save()

    def save(self) -> None:
        self.saved.append((self.store.save(self.state), exact(self.state)))

    def pick(self, data: st.DataObject, *kinds: type) -> Any:
        found = [item for item in containers_in(self.state) if isinstance(item, kinds or object)]
        return data.draw(st.sampled_from(found), label="container") if found else None

    def place(self, data: st.DataObject, value: Any) -> None:
        """Put `value` somewhere."""
        match self.pick(data, list, dict):
            case list() as target:
                index = data.draw(st.integers(0, len(target)), label="index")
                target.insert(index, value)
            case dict() as target:
                target[data.draw(st.sampled_from(["a", "b", 1, "$"]), label="key")] = value

    @rule(data=st.data(), value=SPROUTS)
    def insert(self, data: st.DataObject, value: Any) -> None:
        self.place(data, copy.deepcopy(value))
        self.save()

    @rule(data=st.data(), value=SPROUTS)
    def append(self, data: st.DataObject, value: Any) -> None:
        self.pick(data, list).append(copy.deepcopy(value))
        self.save()

    @rule(count=st.integers(1, 20))
    def talk(self, count: int) -> None:
        if isinstance(self.state.get("history"), list):
            self.state["history"] += [note(n) for n in range(count)]
        self.save()

    @rule(data=st.data(), length=st.integers(0, 40), more=st.integers(0, 3))
    def remember(self, data: st.DataObject, length: int, more: int) -> None:
        """Keep how a list began, and go on from there in another way."""
        self.state["remembered"] = self.pick(data, list)[:length] + [note(900 + n) for n in range(more)]
        self.save()

    @rule(data=st.data())
    def replace_with_a_lookalike(self, data: st.DataObject) -> None:
        target = self.pick(data, list, dict)
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        if keys and target is not self.state:
            key = data.draw(st.sampled_from(keys), label="key")
            target[key] = lookalike(target[key])
        self.save()

    @rule(data=st.data(), value=SPROUTS)
    def replace_item(self, data: st.DataObject, value: Any) -> None:
        target = self.pick(data, list)
        if target:
            target[data.draw(st.integers(0, len(target) - 1), label="index")] = copy.deepcopy(value)
        self.save()

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        match self.pick(data):
            case list() | bytearray() as target if target:
                del target[data.draw(st.integers(0, len(target) - 1), label="index")]
            case dict() as target if target and target is not self.state:
                del target[data.draw(st.sampled_from(list(target)), label="key")]
            case set() as target if target:
                target.pop()
        self.save()

    @rule(data=st.data(), cut=st.integers(0, 40))
    def cut_short(self, data: st.DataObject, cut: int) -> None:
        del self.pick(data, list)[cut:]
        self.save()

    @rule(data=st.data())
    def turn_round(self, data: st.DataObject) -> None:
        self.pick(data, list).reverse()
        self.save()

    @rule(data=st.data())
    def change_bytes(self, data: st.DataObject) -> None:
        target = self.pick(data, bytearray)
        if target:
            target[0] ^= 1
        self.save()

    @rule(data=st.data())
    def alias(self, data: st.DataObject) -> None:
        """Put one object into a second place, so that a later change shows in both."""
        source = self.pick(data)
        target = self.pick(data, list)
        size = sum(1 for _ in containers_in(self.state))
        if size < 200 and not any(inner is target for inner in containers_in(source)):
            target.append(source)
        self.save()

    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        """A save that is refused leaves nothing behind that a later one could stumble over."""
        target = self.pick(data, list)
        target.append(object())
        with pytest.raises(NotSavable):
            self.store.save(self.state)
        target.pop()
        self.save()

    @rule()
    def forget(self) -> None:
        self.store.memory.tidy()
        self.store.memory.retain(set(self.store.nodes))
        self.save()

    @rule()
    def resume(self) -> None:
        """The next process goes on from the last save."""
        root, image = self.saved[-1]
        self.store, self.state = self.store.resumed(root)
        assert exact(self.state) == image
        self.save()

    def teardown(self) -> None:
        if self.saved:
            assert self.saved[-1][0].digest == Store().save(self.state).digest
        for root, image in self.saved:
            assert exact(self.store.load(root)) == image


TestAnyChangeIsNoticed = StateThatChanges.TestCase
TestAnyChangeIsNoticed.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


# --- digests ----------------------------------------------------------------------------------------------------------

RICH: dict[str, Any] = {
    "history": [note(n) for n in range(40)],
    "bundle": Bundle((note(1), note(2))),
    "plain": [{"n": n, "pad": "p" * 100} for n in range(20)],
    "table": {f"k{n}": n for n in range(40)},
    "texts": {"l" * 5000, "m" * 5000, "n" * 5000},
    "torn": ["\ud83d", "x" * 600],
}


def test_the_digest_of_a_root_depends_on_its_content_only() -> None:
    fresh, used = Store(), Store(first_id=1 << 40)
    used.save([note(n) for n in range(7, 90)])
    used.save({"unrelated": "x" * 9000})
    assert fresh.save(copy.deepcopy(RICH)).digest == used.save(copy.deepcopy(RICH)).digest


def test_the_digest_of_a_root_covers_its_header() -> None:
    store = Store()
    root = store.save(RICH)
    decoder = ValueDecoder(store.registry, store.nodes, strict=True, path="checkpoint c1")
    with pytest.raises(CheckpointDamaged):
        decoder.root(HEADER.replace("c1", "c2"), root)


def flips_of(text: str) -> Iterator[str]:
    """Every text that differs in one bit of one character, for characters spread over all of it."""
    for index in {*range(min(len(text), 24)), *range(0, len(text), 37), len(text) - 1}:
        for bit in range(8):
            yield text[:index] + chr(ord(text[index]) ^ (1 << bit)) + text[index + 1 :]


def flips_in(record: Any) -> Iterator[Any]:
    for text in flips_of(record.text):
        yield record._replace(text=text)
    for index, ref in enumerate(record.refs):
        for bit in range(12):
            refs = (*record.refs[:index], ref ^ (1 << bit), *record.refs[index + 1 :])
            yield record._replace(refs=refs)
    for bit in range(8 * len(record.digest)):
        flipped = (int.from_bytes(record.digest) ^ (1 << bit)).to_bytes(len(record.digest))
        yield record._replace(digest=flipped)
    yield record._replace(text=record.text[:-1])
    yield record._replace(text="")
    if record.refs:
        yield record._replace(refs=record.refs[:-1])


def test_any_flipped_bit_of_a_root_is_noticed() -> None:
    store = Store()
    root = store.save(RICH)
    for damaged in flips_in(root):
        with pytest.raises(CheckpointDamaged):
            store.load(damaged)


def test_any_flipped_bit_of_a_node_is_noticed() -> None:
    store = Store()
    root = store.save(RICH)
    for node in list(store.nodes.values()):
        for damaged in flips_in(node):
            store.nodes[node.id] = damaged
            with pytest.raises(CheckpointDamaged):
                store.load(root)
        store.nodes[node.id] = node
    store.load(root)


def test_a_missing_node_is_noticed() -> None:
    store = Store()
    root = store.save(RICH)
    for node_id in list(store.nodes):
        node = store.nodes.pop(node_id)
        with pytest.raises(CheckpointDamaged, match="missing"):
            store.load(root)
        store.nodes[node_id] = node


def test_damage_is_told_by_the_record_it_sits_in() -> None:
    store = Store()
    root = store.save([note(1)])
    [node] = store.nodes.values()
    store.nodes[node.id] = node._replace(text=node.text.replace("x", "y", 1))
    with pytest.raises(CheckpointDamaged) as caught:
        store.load(root)
    assert caught.value.record == f"value {node.id}"


def test_texts_of_any_script_come_back_from_lines() -> None:
    store = Store()
    notes = [Note(letter * 300, n) for n, letter in enumerate("aä水🙂\n\u2028")]
    root = store.save(notes)
    assert exact(store.load_lines(root)) == exact(notes)


def test_lines_that_are_not_wanted_are_passed_over() -> None:
    store = Store()
    root = store.save([note(1), note(2)])
    others = [Node(50, '{"$":"custom","t":"nobody knows","v":1}', (), b"not its digest"), Node(51, "{", (7,), b"")]
    first, second = store.nodes.values()
    decoder = ValueDecoder(store.registry, strict=True, path="checkpoint c1")
    decoder.add_lines(lines_of([others[0], first, others[1], second], wanted=store.nodes))
    assert decoder.root(HEADER, root)["state"] == [note(1), note(2)]


def test_a_record_that_goes_on_in_the_next_line_is_refused() -> None:
    first, second = '{"$":"tuple","v":[1', ",2]}"
    store, root = store_of((first, ()), (second, ()), ('{"state":{"$":0}}', (1, 2)))
    with pytest.raises(Undecodable):
        store.load_lines(root)


def test_damage_of_what_refers_to_a_record_is_told_before_what_is_wrong_with_the_record() -> None:
    unknown = '{"$":"custom","t":"nobody knows","v":1}'
    store, root = store_of((unknown, ()), ('{"state":{"$":0}}', (1,)))
    with pytest.raises(UnknownType):
        store.load_lines(root)
    with pytest.raises(CheckpointDamaged):
        store.load_lines(root._replace(digest=bytes(16)))


# --- hostile stores ---------------------------------------------------------------------------------------------------


def store_of(*texts: tuple[str, tuple[int, ...]]) -> tuple[Store, Root]:
    """A store that somebody wrote with correct digests; the last text is the root."""
    store = Store()
    for node_id, (text, refs) in enumerate(texts[:-1], start=1):
        digest = digest_of(text, (store.nodes[ref].digest for ref in refs))
        store.nodes[node_id] = Node(node_id, text, refs, digest)
    text, refs = texts[-1]
    return store, Root(text, refs, digest_of(HEADER + text, (store.nodes[ref].digest for ref in refs)))


HOSTILE: dict[str, list[tuple[str, tuple[int, ...]]]] = {
    "a reference beyond the list": [('{"state":{"$":1}}', ())],
    "a reference below the list": [("1", ()), ('{"state":{"$":-1}}', (1,))],
    "blocks that are a number": [('{"state":{"$":"list","b":5,"v":[]}}', ())],
    "blocks that are text": [('{"state":{"$":"list","b":"ab","v":[]}}', ())],
    "a block that is true": [("[1]", ()), ("[2]", ()), ('{"state":{"$":"list","b":[true],"v":[]}}', (1, 2))],
    "a block that is a number": [("7", ()), ('{"state":{"$":"list","b":[0],"v":[]}}', (1,))],
    "a block that is text": [('"abc"', ()), ('{"state":{"$":"list","b":[0],"v":[]}}', (1,))],
    "a tail that is missing": [('{"state":{"$":"list","b":[]}}', ())],
    "a tail that is text": [('{"state":{"$":"list","b":[],"v":"abc"}}', ())],
    "a dict among lists": [("{}", ()), ('{"state":{"$":"list","b":[0],"v":[]}}', (1,))],
    "a list among dicts": [("[]", ()), ('{"state":{"$":"map","b":[0],"v":{}}}', (1,))],
    "a join of a list and a dict": [("[1]", ()), ("{}", ()), ('{"$":"join"}', (1, 2)), ('{"state":{"$":0}}', (3,))],
    "no blocks at all": [('{"state":{"$":"map","v":{}}}', ())],
    "a node that is no json": [("{", ()), ('{"state":{"$":0}}', (1,))],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_content_is_refused_with_an_error_of_ours(name: str) -> None:
    store, root = store_of(*HOSTILE[name])
    with pytest.raises(Undecodable):
        store.load(root)


def test_a_node_that_contains_itself_is_refused() -> None:
    store, root = store_of(("[1]", ()), ('{"state":{"$":0}}', (1,)))
    store.nodes[1] = Node(1, '[{"$":0}]', (1,), store.nodes[1].digest)
    with pytest.raises(CheckpointDamaged):
        store.load(root)


def test_a_few_nodes_can_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values_module, "MAX_CONTENT", 10_000)
    doubling = [('[{"$":0},{"$":0}]', (n,)) for n in range(1, 40)]
    store, root = store_of(("[1]", ()), *doubling, ('{"state":{"$":0}}', (40,)))
    with pytest.raises(LimitExceeded, match="content size"):
        store.load(root)


def test_a_long_chain_of_nodes_is_refused() -> None:
    chain = [('[{"$":0}]', (n,)) for n in range(1, 2000)]
    store, root = store_of(("[1]", ()), *chain, ('{"state":{"$":0}}', (2000,)))
    with pytest.raises(LimitExceeded):
        store.load(root)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_refusal_says_where_the_value_sits() -> None:
    with pytest.raises(NotSavable) as caught:
        Store().save({"pages": [Page([{"hook": print}])] * 40})
    assert caught.value.path == "checkpoint['state']['pages'][0].lines[0]['hook']"


def test_a_refused_save_does_not_spoil_the_next() -> None:
    store, history = Store(), [note(n) for n in range(BLOCK)]
    first = store.save(history)
    more = [*history, *(note(n) for n in range(100, 150))]
    with pytest.raises(NotSavable):
        store.save({"history": more, "bad": object()})
    assert store.load(store.save(more)) == more
    assert store.load(first) == history


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: [x],
        lambda x: {"a": x},
        lambda x: {1: x},
        lambda x: [x] + [1] * 20,
        lambda x: Page([x]),
        lambda x: (x, PAD),
    ],
    ids=["lists", "dicts", "int keys", "long lists", "records", "large tuples"],
)
def test_what_can_be_saved_at_some_depth_can_be_loaded_again(wrap: Any) -> None:
    store, value, saved = Store(), note(1), 0
    for _ in range(MAX_DEPTH + 10):
        value = wrap(value)
        try:
            root = store.save(value)
        except LimitExceeded:
            break
        assert exact(store.load(root)) == exact(value)
        saved += 1
    assert MAX_DEPTH // 2 - 3 <= saved <= MAX_DEPTH + 2
