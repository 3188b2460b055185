"""Boxes in layers, arrows between them: a small layered layout for graphs of the usual sizes. Pure, no drawing.

The well-known four steps: turn arrows that lead back, put each box below what leads to it, order the layers so that few
arrows cross, and move boxes towards their neighbours. An arrow over several layers gets a place in each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Point = tuple[float, float]
Link = tuple[str, str]

GAP_X = 28.0
GAP_Y = 52.0
_SWEEPS = 8
_PLACE = "\0"
"""How the names of places begin that links pass through; no box is called that."""


@dataclass(frozen=True, slots=True)
class Size:
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Centres of boxes, and for each link its points from source to target, straight up or down at each."""

    centres: Mapping[str, Point]
    routes: tuple[tuple[Point, ...], ...]
    labels: Mapping[int, Point]
    """Centres of the links' labels."""
    size: Size


@dataclass(slots=True)
class _Layered:
    """The graph in layers. A stop is a place that a long link passes through, or a box."""

    layers: list[list[str]] = field(default_factory=list)
    below: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    above: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    stops: list[tuple[str, ...]] = field(default_factory=list)
    """For each link, where it passes, from top to bottom."""
    sizes: dict[str, Size] = field(default_factory=dict)
    """Of boxes, and of places where a label stands."""

    def width(self, name: str) -> float:
        return self.sizes[name].width if name in self.sizes else 0.0

    def heights(self) -> dict[str, float]:
        """How high the layer is that something is in."""
        found: dict[str, float] = {}
        for layer in self.layers:
            height = max((self.sizes[name].height for name in layer if name in self.sizes), default=0.0)
            found.update(dict.fromkeys(layer, height))
        return found


def arrange(
    sizes: Mapping[str, Size],
    links: Sequence[Link],
    *,
    labels: Mapping[int, Size] | None = None,
    pointed: Collection[str] = (),
    gap_y: float = GAP_Y,
) -> Layout:
    """Place the boxes; the first one comes at the top. Links from a box to itself get no route.

    `labels` are the sizes of what is written on links, by their number; `pointed` boxes are touched in one point only.
    """
    labels = {index: size for index, size in (labels or {}).items() if links[index][0] != links[index][1]}
    turned = _leading_back(list(sizes), links)
    layered = _in_layers(
        sizes, [(t, s) if back else (s, t) for (s, t), back in zip(links, turned, strict=True)], labels
    )
    _order(layered)
    across = _across(layered)
    _straighten(layered, across)
    tops, height = _down(layered, gap_y)
    centres = {name: (across[name], tops[name] + high / 2) for name, high in layered.heights().items()}
    sides = {name: 0.0 if name in pointed else size.width for name, size in sizes.items()}
    routes = _routes(layered, sides, turned, centres)
    written = {index: centres[_label_place(layered, index)] for index in labels}
    left, right = _extent(layered, centres, routes)
    return Layout(
        {name: (centres[name][0] - left, centres[name][1]) for name in sizes},
        tuple(tuple((x - left, y) for x, y in route) for route in routes),
        {index: (x - left, y) for index, (x, y) in written.items()},
        Size(right - left, height),
    )


def _label_place(layered: _Layered, index: int) -> str:
    """The place that a link passes through first: there the arms of a switch stand side by side."""
    return layered.stops[index][1]


def _extent(layered: _Layered, centres: Mapping[str, Point], routes: Sequence[Sequence[Point]]) -> tuple[float, float]:
    passed = [x for route in routes for x, _ in route]
    half = {name: layered.width(name) / 2 for name in centres}
    left = min([centres[name][0] - half[name] for name in centres] + passed, default=0.0)
    return left, max([centres[name][0] + half[name] for name in centres] + passed, default=0.0)


def _leading_back(names: Sequence[str], links: Sequence[Link]) -> list[bool]:
    """Which links close a circle, walking from the first box."""
    leaving: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for index, (source, target) in enumerate(links):
        leaving[source].append((index, target))
    back = [False] * len(links)
    done: set[str] = set()
    for root in names:
        if root in done:
            continue
        path, on_path = [(root, iter(leaving[root]))], {root}
        while path:
            name, rest = path[-1]
            for index, target in rest:
                if target in on_path:
                    back[index] = target != name
                elif target not in done:
                    path.append((target, iter(leaving[target])))
                    on_path.add(target)
                    break
            else:
                path.pop()
                on_path.discard(name)
                done.add(name)
    return back


def _in_layers(sizes: Mapping[str, Size], links: Sequence[Link], labels: Mapping[int, Size]) -> _Layered:
    rank = _ranks(list(sizes), links, labels)
    layered = _Layered([[] for _ in range(max(rank.values(), default=-1) + 1)])
    layered.sizes.update(sizes)
    for name in sizes:
        layered.layers[rank[name]].append(name)
    for index, (source, target) in enumerate(links):
        between = range(rank[source] + 1, rank[target]) if source != target else ()
        places = [f"{_PLACE}{index}:{number}" for number in between]
        for number, place in zip(between, places, strict=True):
            layered.layers[number].append(place)
        stops = (source, *places, target)
        layered.stops.append(stops)
        if index in labels:
            layered.sizes[places[0]] = labels[index]
        for upper, lower in pairwise(stops):
            if source != target:
                layered.below[upper].append(lower)
                layered.above[lower].append(upper)
    return layered


def _ranks(names: Sequence[str], links: Sequence[Link], labels: Collection[int]) -> dict[str, int]:
    """One more than the lowest of what leads here; a label takes a layer of its own."""
    before: dict[str, dict[str, int]] = {name: {} for name in names}
    for index, (source, target) in enumerate(links):
        if source != target:
            before[target][source] = max(before[target].get(source, 1), 2 if index in labels else 1)
    rank: dict[str, int] = {}
    while len(rank) < len(names):
        for name in [name for name in names if name not in rank and before[name].keys() <= rank.keys()]:
            rank[name] = max((rank[other] + length for other, length in before[name].items()), default=0)
    return rank


# --- order within layers ----------------------------------------------------------------------------------------------


def _order(layered: _Layered) -> None:
    """Sort each layer by where its neighbours are, down and up in turn; keep the order with the fewest crossings."""
    best, fewest = [list(layer) for layer in layered.layers], _crossings(layered)
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        layers = layered.layers if downwards else layered.layers[::-1]
        neighbours = layered.above if downwards else layered.below
        for fixed, free in pairwise(layers):
            place = {name: float(index) for index, name in enumerate(fixed)}
            current = {name: float(index) for index, name in enumerate(free)}
            free.sort(key=lambda name, p=place, c=current: _mean([p[n] for n in neighbours[name]], c[name]))  # type: ignore[misc]
        crossings = _crossings(layered)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layered.layers], crossings
    layered.layers[:] = best


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _crossings(layered: _Layered) -> int:
    total = 0
    for upper, lower in zip(layered.layers, layered.layers[1:], strict=False):
        place = {name: index for index, name in enumerate(lower)}
        ends = [place[name] for top in upper for name in sorted(layered.below[top], key=place.__getitem__)]
        total += sum(1 for index, one in enumerate(ends) for other in ends[index + 1 :] if other < one)
    return total


# --- coordinates ------------------------------------------------------------------------------------------------------


def _across(layered: _Layered) -> dict[str, float]:
    """Centres from left to right: each as near to its neighbours' as its layer allows."""
    across: dict[str, float] = {}
    for layer in layered.layers:
        across.update(_spread(layered, layer, [0.0] * len(layer)))
    for sweep in range(4 * _SWEEPS):
        downwards = sweep % 2 == 0
        first = layered.above if downwards else layered.below
        second = layered.below if downwards else layered.above
        for layer in layered.layers if downwards else layered.layers[::-1]:
            wanted = [_pull(name, first[name] or second[name], across) for name in layer]
            across.update(_spread(layered, layer, wanted))
    return across


def _pull(name: str, near: Sequence[str], across: Mapping[str, float]) -> float:
    """Where the neighbours want it. Places that a link passes through pull harder, which makes long links straight."""
    if not near:
        return across[name]
    weights = [1.0 + 3.0 * _is_place(name) + 3.0 * _is_place(other) for other in near]
    return sum(weight * across[other] for weight, other in zip(weights, near, strict=True)) / sum(weights)


def _is_place(name: str) -> bool:
    return name.startswith(_PLACE)


def _spread(layered: _Layered, layer: Sequence[str], wanted: Sequence[float]) -> dict[str, float]:
    """The places nearest to the wanted ones (least squares) at which no two boxes overlap; neighbours are pooled."""
    offsets = [0.0]
    for left, right in pairwise(layer):
        offsets.append(offsets[-1] + (layered.width(left) + layered.width(right)) / 2 + GAP_X)
    pools: list[tuple[float, float, int]] = []
    for name, place, offset in zip(layer, wanted, offsets, strict=False):
        weight = 4.0 if _is_place(name) else 1.0
        total, count = weight * (place - offset), 1
        while pools and pools[-1][0] / pools[-1][1] > total / weight:
            more, heavier, others = pools.pop()
            total, weight, count = total + more, weight + heavier, count + others
        pools.append((total, weight, count))
    bases = [total / weight for total, weight, count in pools for _ in range(count)]
    return {name: base + offset for name, base, offset in zip(layer, bases, offsets, strict=False)}


def _straighten(layered: _Layered, across: dict[str, float]) -> None:
    """Where there is room, let a long link pass all its layers at one place."""
    beside = {name: (layer, index) for layer in layered.layers for index, name in enumerate(layer)}
    for stops in layered.stops:
        places = stops[1:-1]
        if len(places) < 2:
            continue
        low, high = float("-inf"), float("inf")
        for place in places:
            layer, index = beside[place]
            room = layered.width(place) / 2 + GAP_X
            if index:
                low = max(low, across[layer[index - 1]] + layered.width(layer[index - 1]) / 2 + room)
            if index + 1 < len(layer):
                high = min(high, across[layer[index + 1]] - layered.width(layer[index + 1]) / 2 - room)
        if low <= high:
            middle = sum(across[place] for place in places) / len(places)
            across.update(dict.fromkeys(places, min(max(middle, low), high)))


def _down(layered: _Layered, gap_y: float) -> tuple[dict[str, float], float]:
    tops: dict[str, float] = {}
    heights = layered.heights()
    y = 0.0
    for layer in layered.layers:
        tops.update(dict.fromkeys(layer, y))
        y += heights[layer[0]] + gap_y
    return tops, max(0.0, y - gap_y)


# --- routes -----------------------------------------------------------------------------------------------------------


def _routes(
    layered: _Layered, sides: Mapping[str, float], turned: Sequence[bool], centres: Mapping[str, Point]
) -> list[tuple[Point, ...]]:
    lower = _ports(layered, sides, centres, at_bottom=True)
    upper = _ports(layered, sides, centres, at_bottom=False)
    heights = layered.heights()
    routes: list[tuple[Point, ...]] = []
    for index, stops in enumerate(layered.stops):
        if stops[0] == stops[-1]:
            routes.append(())
            continue
        # Straight down to the layer's edge first, so that it does not cut a higher neighbour's corner.
        (x, y), (_, middle) = lower[index], centres[stops[0]]
        points = [(x, y), (x, middle + heights[stops[0]] / 2)]
        for stop in stops[1:-1]:
            x, y = centres[stop]
            points += [(x, y - heights[stop] / 2), (x, y + heights[stop] / 2)]
        (x, y), (_, middle) = upper[index], centres[stops[-1]]
        points += [(x, middle - heights[stops[-1]] / 2), (x, y)]
        distinct = tuple(dict.fromkeys(points))
        routes.append(distinct[::-1] if turned[index] else distinct)
    return routes


def _ports(
    layered: _Layered, sides: Mapping[str, float], centres: Mapping[str, Point], *, at_bottom: bool
) -> dict[int, Point]:
    """Where links touch a box's lower or upper side: spread over it, in the order of where they come from."""
    touching: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for index, stops in enumerate(layered.stops):
        box, beside = (stops[0], stops[1]) if at_bottom else (stops[-1], stops[-2])
        if box != beside:
            touching[box].append((centres[beside][0], index))
    ports: dict[int, Point] = {}
    for box, ends in touching.items():
        x, y = centres[box]
        half = layered.sizes[box].height / 2
        step = min(26.0, 0.7 * sides[box] / len(ends))
        for number, (_, index) in enumerate(sorted(ends)):
            ports[index] = (x + (number - (len(ends) - 1) / 2) * step, y + half if at_bottom else y - half)
    return ports
