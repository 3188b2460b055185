"""A state as a small root over values stored once.

A checkpoint's content is cut into *nodes*: immutable records such as chat messages, long texts, large items, and blocks
of long lists and dicts. A node is written the first time it is seen and referred to afterwards, so appending to a
conversation of any length adds the new message and a small root.

A node's text refers to other nodes by their position in its own list of references. Its digest covers the text and the
digests of what it refers to, so it says nothing about where anything is stored, and equal content has an equal digest.

Whether something changed is decided without trusting mutable objects: identity counts only for deeply immutable values;
plain data is compared by its `marshal` image, which takes a fraction of the time that encoding it would.

An image does not tell `bytes` from other buffers, so those of data with bytes in it are never remembered. What is
remembered has no bytes in it, and then neither has anything else with the same image.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice, pairwise
from operator import is_
from typing import Any, NamedTuple, TypeAlias

from stepwell.checkpointing.codec import (
    MAX_DEPTH,
    MAX_TEXT,
    TAG,
    TreeDecoder,
    TreeEncoder,
    _Refused,
    checked_size,
    dump_tree,
    has_plain_keys,
    locate,
)
from stepwell.checkpointing.registry import IMMUTABLE_SCALARS, TypeEntry, TypeRegistry
from stepwell.errors import CheckpointDamaged, LimitExceeded, StepwellError, Undecodable

BLOCK = 8
"""Items per block of a long list or dict, and blocks per block of blocks: a root holds less than one of each level."""

APART = 512
"""Encoded size from which an item is worth a node of its own."""

LONG_TEXT = 4096
REMEMBERED_IMAGE = 16 * 1024
"""Larger images of plain data are not remembered: their parts are."""

VERY_LONG = 128
"""Items from which a list is worth looking for before an image is made of what it may be in."""

TRUNKS_KEPT = 16
"""Saves after which a long list that was not seen again is let go of."""

DIGEST_SIZE = 16

_TINY = frozenset({str, int, type(None)})
_LARGE = 1 << 62
_CONTAINERS = frozenset({tuple, list, dict})
_WITH_IMAGE = _CONTAINERS | {type(None), bool, int, float, complex, str, bytes, set, frozenset}

Items: TypeAlias = "list[Any]"
Rows: TypeAlias = "list[list[int]]"
"""Node ids of all the whole blocks of a list, of all the whole blocks of those blocks, and so on."""

MAX_CONTENT = 4 * MAX_TEXT
"""What the nodes of one checkpoint may add up to when each is counted wherever it is referred to."""


class Node(NamedTuple):
    """A piece of content under its id in the storage."""

    id: int
    text: str
    refs: tuple[int, ...]
    digest: bytes


class NodeLines(NamedTuple):
    """Nodes as a storage reads many of them at once: a line for the text of each."""

    ids: Sequence[int]
    refs: Sequence[tuple[int, ...]]
    digests: Sequence[bytes]
    raw: bytes
    text: str
    """The same as `raw`."""
    wanted: Container[int]
    """The others are there because it was cheaper to read them than not to."""

    def cut(self) -> Iterator[tuple[int, tuple[int, ...], bytes, int, int, memoryview]]:
        """Id, references and digest of those that are wanted, where the text begins and ends, and its bytes."""
        text, raw, wanted = self.text, self.raw, self.wanted
        view, is_ascii = memoryview(raw), text.isascii()
        start = raw_start = 0
        for node_id, refs, digest in zip(self.ids, self.refs, self.digests, strict=True):
            end = text.find("\n", start)
            raw_end = end if is_ascii else raw.find(b"\n", raw_start)
            if end < 0:
                end, raw_end = len(text), len(raw)
            if node_id in wanted:
                yield node_id, refs, digest, start, end, view[raw_start:raw_end]
            start, raw_start = end + 1, raw_end + 1

    def apart(self) -> Iterator[Node]:
        for node_id, refs, digest, start, end, _ in self.cut():
            yield Node(node_id, self.text[start:end], refs, digest)


class Root(NamedTuple):
    """The content of one checkpoint: its text and the nodes the text refers to. The digest covers the header too."""

    text: str
    refs: tuple[int, ...]
    digest: bytes


def digest_of(text: str, children: Iterable[bytes]) -> bytes:
    # Ours is always valid UTF-8; damaged text may not be, and gets a digest that does not match.
    raw = text.encode("utf-8", "surrogatepass")
    return blake2b(b"%b\0%b" % (raw, b"".join(children)), digest_size=DIGEST_SIZE).digest()


def _leaf_digest(text: memoryview) -> bytes:
    """`digest_of` a text that refers to nothing."""
    hasher = blake2b(text, digest_size=DIGEST_SIZE)
    hasher.update(b"\0")
    return hasher.digest()


@dataclass(slots=True)
class _Trunk:
    """A list of immutable items and the nodes of its blocks, for it, for what begins like it and for its beginnings.

    Conversations are long and sent around whole, so nothing here may cost a step of Python for each item.
    """

    equality_is_exact: bool
    items: list[Any]
    rows: Rows
    used: int = 0
    """The save that needed it last."""

    def agrees_with(self, items: list[Any]) -> bool:
        """Is one of the two lists the beginning of the other?"""
        known = len(self.items)
        shared = min(known, len(items))
        if items[shared - 1] is not self.items[shared - 1]:
            return False
        if not self.equality_is_exact or shared < known:
            return self._same(self.items[:shared], items)
        # Made equally long rather than cut: comparing identities touches no item, a slice touches them all.
        self.items += items[known:]
        try:
            return self.items == items
        finally:
            del self.items[known:]

    def fork(self, items: list[Any], *, equality_is_exact: bool) -> _Trunk:
        """A trunk of what both lists begin with, or of a little less."""
        low, high = 0, min(len(self.items), len(items))
        while high - low > BLOCK:
            middle = (low + high) // 2
            if self._same(self.items[low:middle], items[low:middle]):
                low = middle
            else:
                high = middle
        whole, rows = low, []
        for row in self.rows:
            whole //= BLOCK
            rows.append(row[:whole])
        return _Trunk(equality_is_exact, self.items[:low], rows)

    def _same(self, mine: list[Any], items: list[Any]) -> bool:
        if self.equality_is_exact:
            # Compares by identity first, in C, which is ten times faster than asking for each pair.
            return mine == items[: len(mine)]
        # Not `==`: types that call different values equal are common, 1 and True the least of them.
        return all(map(is_, mine, items))


class ValueMemory:
    """What a run is known to have stored: nodes by digest, by identity, by image.

    Forgetting any of it costs time or a second copy, never correctness.
    """

    def __init__(self, next_id: int) -> None:
        self.next_id = next_id
        self.digests: dict[int, bytes] = {}
        self.by_digest: dict[bytes, int] = {}
        self.by_identity: dict[int, tuple[Any, int]] = {}
        self.small: dict[int, tuple[Any, Any]] = {}
        """Immutable values too small for a node, with what they are encoded as."""
        self.by_image: dict[bytes, int] = {}
        self.by_children: dict[tuple[int, ...], int] = {}
        self.trunks: dict[int, list[_Trunk]] = {}
        """By the identity of their first item."""
        self.saves = 0
        self._limit = 4096

    def add(self, node_id: int, digest: bytes) -> None:
        self.digests[node_id] = digest
        self.by_digest[digest] = node_id

    def learn(self, digests: Mapping[int, bytes], immutable: Mapping[int, Any]) -> None:
        """These are stored, and these objects are what some of them stand for."""
        self.digests |= digests
        self.by_digest.update(zip(digests.values(), digests, strict=True))
        self.by_identity |= {id(value): (value, node_id) for node_id, value in immutable.items()}

    def retain(self, stored: set[int]) -> None:
        """Forget the nodes that are no longer stored."""
        self.digests = {key: value for key, value in self.digests.items() if key in stored}
        self.by_digest = {value: key for key, value in self.digests.items()}
        self._forget_shortcuts()

    def forget(self, nodes: Iterable[Node]) -> None:
        """These were never written."""
        self.retain(self.digests.keys() - {node.id for node in nodes})

    def tidy(self) -> None:
        """Let go of values that may have left the state long ago."""
        self.saves += 1
        if not self.saves % TRUNKS_KEPT:
            self._drop_unused_trunks()
        if len(self.by_identity) + len(self.small) + len(self.by_image) > self._limit:
            self._forget_shortcuts()
            self._limit = 4096 + 2 * len(self.digests)

    def _drop_unused_trunks(self) -> None:
        # Every list of the state is looked at in every save, so what was not is gone.
        recent = {
            first: [trunk for trunk in trunks if trunk.used > self.saves - TRUNKS_KEPT]
            for first, trunks in self.trunks.items()
        }
        self.trunks = {first: trunks for first, trunks in recent.items() if trunks}

    def _forget_shortcuts(self) -> None:
        self.by_identity.clear()
        self.small.clear()
        self.by_image.clear()
        self.by_children.clear()
        self.trunks.clear()


class ValueEncoder(TreeEncoder):
    """Encodes a run's checkpoints, one after the other; `new_nodes` are those the run has not stored yet."""

    def __init__(self, registry: TypeRegistry, memory: ValueMemory) -> None:
        super().__init__(registry)
        self.memory = memory
        self.new_nodes: list[Node] = []
        self._refs: dict[int, int] = {}
        self._buffers = 0
        self._inside_record = 0
        self._immutable_records: set[type] = set()
        self._met_long_list = False

    def root(self, content: Mapping[str, Any], path: str) -> tuple[str, tuple[int, ...]]:
        """Encode `content` into a text and its references; the error for a value that refuses says where it sits."""
        self.new_nodes, self._refs, self.depth, self._inside_record = [], {}, 0, 0
        try:
            text = checked_size(dump_tree({key: self.encode(value) for key, value in content.items()}), path)
        except (_Refused, RecursionError):
            raise locate(TreeEncoder(self.registry), content, path) from None
        return text, tuple(self._refs)

    def sealed(self, header: str, text: str, refs: tuple[int, ...]) -> Root:
        return Root(text, refs, digest_of(header + text, map(self.memory.digests.__getitem__, refs)))

    # --- what is kept apart ------------------------------------------------------------------------------------------

    def record_encoder(self, entry: TypeEntry) -> Callable[[Any, Any], Any]:
        encode = super().record_encoder(entry)
        if not entry.immutable:
            return encode

        def keep(encoder: ValueEncoder, value: Any) -> Any:
            known = encoder.memory.by_identity.get(id(value))
            if known is None:
                return encoder._immutable(value, encode)
            return {TAG: encoder._refs.setdefault(known[1], len(encoder._refs))}

        return keep

    def _text(self, value: str) -> Any:
        return value if len(value) < LONG_TEXT or self._inside_record else self._immutable(value, _as_it_is)

    def _immutable(self, value: Any, encode: Callable[[Any, Any], Any]) -> Any:
        memory = self.memory
        known = memory.by_identity.get(id(value))
        if known is not None:
            return {TAG: self._refer(known[1])}
        small = memory.small.get(id(value))
        if small is not None:
            return small[1]
        # What is stored once anyway need not be cut up; only immutable records inside it are shared.
        self._inside_record += 1
        text, refs, tree = self._framed(encode, value)
        self._inside_record -= 1
        if not refs and len(text) < 96:
            memory.small[id(value)] = (value, tree)
            return tree
        node_id = self._store(text, refs)
        memory.by_identity[id(value)] = (value, node_id)
        return {TAG: self._refer(node_id)}

    def _buffer(self, value: bytes | bytearray) -> Any:
        self._buffers += 1
        return super()._buffer(value)

    def list(self, value: Any) -> Any:
        if not value:
            return []
        if len(value) > BLOCK:
            return self._long_list(value)
        kinds = set(map(type, value))
        if _TINY.issuperset(kinds) and _is_small(value):
            return list(value)
        if self._inside_record or not _WITH_IMAGE.issuperset(kinds):
            return self._items(value)
        return self._short(value, kinds, ValueEncoder._items)

    def dict(self, value: Any) -> Any:
        if not value:
            return {}
        if len(value) > 2 * BLOCK:
            return self._long_dict(value)
        kinds = set(map(type, value.values()))
        plain_keys = has_plain_keys(value)
        if plain_keys and _TINY.issuperset(kinds) and _is_small(value.values()):
            return dict(value)
        encode = ValueEncoder._values if plain_keys else ValueEncoder._keyed
        if self._inside_record or not _WITH_IMAGE.issuperset(kinds):
            return encode(self, value)
        return self._short(value, kinds, encode)

    def _short(self, value: Any, kinds: set[type], encode: Callable[[Any, Any], Any]) -> Any:
        # Records have no image; looking for one first spares the attempt, which goes through all there is.
        promising = _CONTAINERS.isdisjoint(kinds) or _begins_plain(value)
        if promising and self._met_long_list:
            promising = not _has_no_image(value)
        image = _image(value) if promising else None
        if image is None or not APART <= len(image) <= REMEMBERED_IMAGE:
            return encode(self, value)
        return {TAG: self._refer(self._imaged(image, value, encode))}

    def _imaged(self, image: bytes, value: Any, encode: Callable[[Any, Any], Any]) -> int:
        node_id = self.memory.by_image.get(image)
        if node_id is None:
            buffers = self._buffers
            text, refs, _ = self._framed(encode, value)
            node_id = self._store(text, refs)
            if self._buffers == buffers:
                self.memory.by_image[image] = node_id
        return node_id

    def members(self, value: Any) -> Any:
        # By their plain text: positions of nodes depend on who was encoded first.
        plain = TreeEncoder(self.registry)
        return self._items(sorted(value, key=lambda item: dump_tree(plain.encode(item), sort_keys=True)))

    # --- long lists and dicts ----------------------------------------------------------------------------------------

    def _long_list(self, value: Any) -> Any:
        items = value if type(value) is list else list(value)
        self._met_long_list |= len(items) > VERY_LONG
        rows = self._rows_of_immutables(items) or self._rows_of_anything(items)
        tail = items[len(items) - len(items) % BLOCK :]
        return {TAG: "list", "b": self._refer_to(rows, len(items)), "v": self._items(tail)}

    def _rows_of_immutables(self, items: Items) -> Rows | None:
        first = type(items[0])
        if self._inside_record and first in IMMUTABLE_SCALARS:
            return None  # Long texts are cut differently there.
        trunk = self._known_trunk(items) or self._new_trunk(items)
        if trunk is None:
            return None
        trunk.used = self.memory.saves + 1
        added = items[len(trunk.items) :]
        if added:
            kinds = set(map(type, added))
            if not self._trusted(kinds, like=first):
                return None
            trunk.equality_is_exact = trunk.equality_is_exact and all(map(_equality_is_exact, kinds))
            self._grow(trunk, added)
        return trunk.rows

    def _known_trunk(self, items: Items) -> _Trunk | None:
        longest = None
        for trunk in self.memory.trunks.get(id(items[0]), ()):
            if (longest is None or len(trunk.items) > len(longest.items)) and trunk.agrees_with(items):
                longest = trunk
        return longest

    def _new_trunk(self, items: Items) -> _Trunk | None:
        kinds = set(map(type, items))
        if not self._trusted(kinds, like=type(items[0])):
            return None
        known = self.memory.trunks.setdefault(id(items[0]), [])
        trunk = _Trunk(all(map(_equality_is_exact, kinds)), [], [[]])
        for other in reversed(known[-BLOCK:]):
            fork = other.fork(items, equality_is_exact=trunk.equality_is_exact)
            trunk = max(trunk, fork, key=lambda one: len(one.items))
            if len(trunk.items) >= len(items) - 2 * BLOCK:
                break
        known.append(trunk)
        return trunk

    def _trusted(self, kinds: set[type], *, like: type) -> bool:
        """Are these all scalars or all immutable records? Only of what never changes does identity say anything."""
        if like in IMMUTABLE_SCALARS:
            return IMMUTABLE_SCALARS.issuperset(kinds)
        if not self._immutable_records.issuperset(kinds):
            entries = map(self.registry.entry_for, kinds)
            self._immutable_records.update(entry.cls for entry in entries if entry is not None and entry.immutable)
        return self._immutable_records.issuperset(kinds)

    def _grow(self, trunk: _Trunk, added: Items) -> None:
        trunk.items += added
        blocks = trunk.rows[0]
        begun = range(len(blocks) * BLOCK, len(trunk.items) - BLOCK + 1, BLOCK)
        if begun:
            blocks.extend(self._block_of_immutables(trunk.items[start : start + BLOCK]) for start in begun)
            self._pile_up(trunk.rows)

    def _rows_of_anything(self, items: Items) -> Rows:
        rows = [[self._block(items[start : start + BLOCK]) for start in range(0, len(items) - BLOCK + 1, BLOCK)]]
        self._pile_up(rows)
        return rows

    def _long_dict(self, value: Any) -> Any:
        entries = iter(value.items())
        rows = [[self._block(dict(islice(entries, BLOCK))) for _ in range(len(value) // BLOCK)]]
        self._pile_up(rows)
        return {TAG: "map", "b": self._refer_to(rows, len(value)), "v": TreeEncoder.dict(self, dict(entries))}

    def _block_of_immutables(self, items: Items) -> int:
        known = map(self.memory.by_identity.get, map(id, items))
        nodes = tuple({found[1]: None for found in known if found is not None})
        # If each is a node of its own the block says nothing but that; there is nothing to encode.
        return self._store(_BLOCKS[BLOCK], nodes) if len(nodes) == BLOCK else self._block(items)

    def _block(self, items: Any) -> int:
        encode: Callable[[Any, Any], Any] = ValueEncoder._items if type(items) is list else TreeEncoder.dict
        image = _image(items) if _begins_plain(items) else None
        if image is not None and len(image) <= REMEMBERED_IMAGE:
            return self._imaged(image, items, encode)
        text, refs, _ = self._framed(encode, items)
        return self._store(text, refs)

    def _pile_up(self, rows: Rows) -> None:
        """Make one block of every eight of a row, in the row above, so that the root stays small."""
        level = 0
        while len(rows[level]) >= BLOCK:
            if len(rows) == level + 1:
                rows.append([])
            row, above = rows[level], rows[level + 1]
            begun = range(len(above) * BLOCK, len(row) - BLOCK + 1, BLOCK)
            above.extend(self._joined(tuple(row[start : start + BLOCK])) for start in begun)
            level += 1

    def _joined(self, children: tuple[int, ...]) -> int:
        node_id = self.memory.by_children.get(children)
        if node_id is None:
            node_id = self.memory.by_children[children] = self._store(_JOIN, children)
        return node_id

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _framed(self, encode: Callable[[Any, Any], Any], value: Any) -> tuple[str, tuple[int, ...], Any]:
        outer, self._refs = self._refs, {}
        tree = encode(self, value)
        refs, self._refs = self._refs, outer
        return dump_tree(tree), tuple(refs), tree

    def _refer(self, node_id: int) -> int:
        return self._refs.setdefault(node_id, len(self._refs))

    def _refer_to(self, rows: Rows, length: int) -> Sequence[int]:
        """The fewest blocks that make up this many items, the largest first."""
        blocks: list[int] = []
        for row in rows:
            length //= BLOCK
            blocks = row[length - length % BLOCK : length] + blocks
        refs = self._refs
        return [refs.setdefault(node_id, len(refs)) for node_id in blocks]

    def _store(self, text: str, refs: tuple[int, ...]) -> int:
        digest = digest_of(text, map(self.memory.digests.__getitem__, refs))
        node_id = self.memory.by_digest.get(digest)
        if node_id is None:
            node_id = self.memory.next_id
            self.memory.next_id += 1
            self.memory.add(node_id, digest)
            self.new_nodes.append(Node(node_id, text, refs, digest))
        return node_id


def _as_it_is(_: ValueEncoder, value: Any) -> Any:
    return value


def _begins_plain(value: Any) -> bool:
    """Is the innermost first item plain? Most containers of records begin with one."""
    for _ in range(MAX_DEPTH):  # it may contain itself
        if not value or type(value) not in _CONTAINERS:
            break
        value = next(iter(value.values())) if type(value) is dict else value[0]
    return type(value) in _WITH_IMAGE


def _has_no_image(value: Any) -> bool:
    """Does a look around find a record, or more text than is remembered? Finding neither means nothing."""
    waiting, size = [value], 0
    for container in islice(waiting, 24):  # it grows meanwhile
        items = container.values() if type(container) is dict else container
        if len(container) > 2 * BLOCK:
            items = list(islice(items, 4 * BLOCK))
        kinds = set(map(type, items))
        if not _WITH_IMAGE.issuperset(kinds):
            return True
        if str in kinds:
            size += sum(len(item) for item in items if type(item) is str)
        if not _CONTAINERS.isdisjoint(kinds):
            waiting += [item for item in items if type(item) in _CONTAINERS]
    return size > REMEMBERED_IMAGE


def _is_small(items: Iterable[Any]) -> bool:
    """Are these all short enough to stand in the root as they are?"""
    for item in items:
        if item is not None and (not -_LARGE < item < _LARGE if type(item) is int else len(item) > 63):
            return False
    return True


def _equality_is_exact(cls: type) -> bool:
    """Does the type promise that equal instances are the same in every detail, types included?"""
    return getattr(cls, "equality_is_exact", False) is True


def _image(value: Any) -> bytes | None:
    """The value's exact image if it is made of plain built-in types; equal images mean equal values and types.

    Buffers are the exception: `bytes`, `bytearray`, `memoryview` and others look the same.
    """
    try:
        return marshal.dumps(value, 2)
    except ValueError:
        return None


class ValueDecoder(TreeDecoder):
    """Puts a checkpoint's content together again from its root and its nodes, checking every digest.

    The nodes are given first, in any order: to the constructor, or as they are read. A resumed run may have many
    thousands of them, nearly all of them messages and blocks of messages, so those take short ways.
    """

    def __init__(
        self,
        registry: TypeRegistry,
        nodes: Mapping[int, Node] | None = None,
        *,
        strict: bool,
        path: str,
        memory: ValueMemory | None = None,
    ) -> None:
        super().__init__(registry, strict=strict, path=path)
        self._memory = memory
        self._nodes: dict[int, Node] = {}
        self._digests: dict[int, bytes] = {}
        self._shared: dict[int, Any] = {}
        self._failed: dict[int, StepwellError] = {}
        self._shareable: dict[type, bool] = {}
        self._refs: tuple[int, ...] = ()
        self._size = 0
        self._open: set[int] = set()
        self.add((nodes or {}).values())

    # --- nodes, as they are read -------------------------------------------------------------------------------------

    def add(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self._nodes[node.id] = node
            self._digests[node.id] = node.digest

    def add_lines(self, lines: NodeLines) -> None:
        """Records are decoded right where they stand, which spares copies: memory costs more than parsing."""
        text, scan, shared, shareable = lines.text, self._scan, self._shared, self._shareable
        decoded = 0
        for node_id, refs, digest, start, end, raw in lines.cut():
            self._digests[node_id] = digest
            if refs or not text.startswith(_RECORD, start):
                self._nodes[node_id] = Node(node_id, text[start:end], refs, digest)
                continue
            if _leaf_digest(raw) != digest:
                raise _altered(f"value {node_id}")
            try:
                value, stopped = scan(text, start)
            except Exception:  # somebody else's code; what is wrong is found out below
                value, stopped = None, -1
            if stopped == end and end - start <= MAX_TEXT and shareable.get(type(value)):
                shared[node_id] = value
                decoded += end - start
            else:
                self._add_carefully(Node(node_id, text[start:end], (), digest))
        self._count(decoded)

    def _add_carefully(self, node: Node) -> None:
        try:
            value = self.decode(node.text)
        except StepwellError as error:
            # Told when it is used. If what refers to it is damaged, that is the error, and this may be any record.
            self._failed[node.id] = error
            return
        if self._is_shareable(type(value)):
            self._shared[node.id] = value
            self._count(len(node.text))
        else:
            self._nodes[node.id] = node

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > MAX_CONTENT:
            # A few nodes that each refer twice to the next would otherwise fill any memory.
            raise LimitExceeded("content size", MAX_CONTENT, self.path)

    # --- the content -------------------------------------------------------------------------------------------------

    def root(self, header: str, root: Root) -> Any:
        self._check(header + root.text, root.refs, root.digest, self.path)
        for node in self._nodes.values():
            self._check(node.text, node.refs, node.digest, f"value {node.id}")
        self._refs = root.refs
        value = self.decode(root.text)
        if self._memory is not None:
            self._memory.learn(self._digests, self._shared)
        return value

    def hook(self, tree: dict[str, Any]) -> Any:
        tag = tree.get(TAG)
        if tag == "custom":  # a `Message`, nearly always
            return self._named(tag, tree)
        if tag in ("list", "map"):
            parts = [*map(self.reference, tree["b"]), tree["v"]]
            whole = self._join(parts)
            if self._memory is not None and tag == "list" and whole:
                self._recognise(whole, parts[:-1], [self._refs[index] for index in tree["b"]])
            return whole
        if tag == "join":
            return self._join(list(map(self._value, self._refs)))
        return super().hook(tree)

    def reference(self, index: int) -> Any:
        if type(index) is not int or not 0 <= index < len(self._refs):
            raise Undecodable(self.path, f"refers to value {index!r} of {len(self._refs)}")
        return self._value(self._refs[index])

    def _value(self, node_id: int) -> Any:
        """What a node stands for. It is there and it is whole: all of them were checked first."""
        if node_id in self._shared:
            return self._shared[node_id]
        if node_id in self._failed:
            raise self._failed[node_id]
        node = self._nodes[node_id]
        self._count(len(node.text))
        outer, self._refs = self._refs, node.refs
        value = self._nested(node) if node.refs else self.decode(node.text)
        self._refs = outer
        if self._is_shareable(type(value)):
            self._shared[node_id] = value
        return value

    def _nested(self, node: Node) -> Any:
        if node.id in self._open:
            raise CheckpointDamaged(self.path, f"value {node.id} contains itself")
        self._open.add(node.id)
        # A block of nodes says nothing but their positions; there is nothing to parse.
        is_block = node.text == _BLOCKS.get(len(node.refs))
        value = list(map(self._value, node.refs)) if is_block else self.decode(node.text)
        self._open.discard(node.id)
        return value

    def _recognise(self, items: list[Any], blocks: list[Any], node_ids: list[int]) -> None:
        """Remember how this list is stored, so that the run's next checkpoint need not find out again."""
        assert self._memory is not None
        sizes = list(map(len, blocks))
        if sizes != sorted(sizes, reverse=True) or sum(sizes) != len(items) - len(items) % BLOCK:
            return  # Not cut the way it is cut here.
        kinds = set(map(type, items))
        if len(items) <= BLOCK or str in kinds or not all(map(self._is_shareable, kinds)):
            return
        rows = self._rows(blocks, node_ids)
        if rows is not None:
            trunk = _Trunk(all(map(_equality_is_exact, kinds)), list(items), rows)
            self._memory.trunks.setdefault(id(items[0]), []).append(trunk)

    def _rows(self, blocks: list[Any], node_ids: list[int]) -> Rows | None:
        """The blocks and what they are made of, if that is what would be made of them here."""
        rows: Rows = [[]]
        for size in (BLOCK**level for level in range(12, 0, -1)):
            joins = [self._nodes[node_id] for node_id in rows[0]]
            if any(join.text != _JOIN or len(join.refs) != BLOCK for join in joins):
                return None
            inner = chain.from_iterable(join.refs for join in joins)
            rows.insert(0, [*inner, *(n for block, n in zip(blocks, node_ids, strict=True) if len(block) == size)])
        if sum(map(len, blocks)) != BLOCK * len(rows[0]):
            return None
        return rows if all(len(above) == len(row) // BLOCK for row, above in pairwise(rows)) else None

    def _is_shareable(self, cls: type) -> bool:
        if cls not in self._shareable:
            entry = self.registry.entry_for(cls)
            self._shareable[cls] = cls is str or (entry is not None and entry.immutable)
        return self._shareable[cls]

    def _join(self, parts: list[Any]) -> Any:
        if all(type(part) is list for part in parts):
            return [item for part in parts for item in part]
        if all(type(part) is dict for part in parts):
            return {key: value for part in parts for key, value in part.items()}
        raise Undecodable(self.path, "its blocks are neither all lists nor all dicts")

    def _check(self, text: str, refs: tuple[int, ...], digest: bytes, record: str) -> None:
        try:
            children = [self._digests[ref] for ref in refs]
        except KeyError as missing:
            raise CheckpointDamaged(record, f"the value {missing} it refers to is missing") from None
        if digest_of(text, children) != digest:
            raise _altered(record)


def _altered(record: str) -> CheckpointDamaged:
    return CheckpointDamaged(record, "its content does not match its digest")


_RECORD = f'{{"{TAG}":'
"""How the text of a record begins. Plain data begins differently, and is decoded anew for each who refers to it."""

_JOIN = f'{{"{TAG}":"join"}}'
"""The text of a block of blocks."""

_BLOCKS = {length: dump_tree([{TAG: place} for place in range(length)]) for length in range(1, BLOCK + 1)}
"""The text of a block whose items are all nodes of their own, by how many they are."""
