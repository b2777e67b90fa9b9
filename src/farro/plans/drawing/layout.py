"""Arrange a plan's graph in layers, each step below its dependencies, and place the members of each layer.

The method of Sugiyama, Tagawa and Toda: longest path, waypoints for long edges, barycentre sweeps; the order with the
fewest crossings is kept. Then each layer in turn wants every member at the mean of its neighbours; pooling adjacent
violators finds the least-squares positions that keep the order and the gaps.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from farro.lazy_dataclass import dataclass
from farro.plans.graph import ranks
from farro.plans.model import Plan

_SWEEPS = 8
_MANY = 3000  # links beyond which counting crossings takes noticeable time


class Edge(NamedTuple):
    """`target` runs after `source`; with `data` it also reads the output of the source."""

    source: str
    target: str
    data: bool


class LayerLink(NamedTuple):
    """A part of an edge, from one layer to the next; `data` and the source are those of the edge."""

    upper: int
    lower: int
    data: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers:
    """Spots are steps or waypoints: points where the edges of one step and one kind pass a layer.

    Invariant: every link leads from a layer to the next one; every spot is in one layer, once.
    """

    steps: tuple[str | None, ...]  # of each spot; None is a waypoint
    layers: tuple[tuple[int, ...], ...]  # spots, from left to right
    links: tuple[LayerLink, ...]
    paths: dict[Edge, tuple[int, ...]]  # the spots that an edge passes, its ends included


def edges(plan: Plan) -> tuple[Edge, ...]:
    """Return every dependency once, in plan order."""
    return tuple(Edge(need, step.id, need == step.input_from_step) for step in plan.steps for need in step.depends_on)


def layered(plan: Plan) -> Layers:
    all_edges = edges(plan)
    rank = _pulled_down(plan, all_edges)
    steps: list[str | None] = [step.id for step in plan.steps]
    spot_of = {step.id: spot for spot, step in enumerate(plan.steps)}
    level = [rank[step.id] for step in plan.steps]
    waypoints: dict[tuple[str, bool, int], int] = {}
    links: dict[LayerLink, None] = {}
    paths: dict[Edge, tuple[int, ...]] = {}
    for edge in all_edges:
        path = [spot_of[edge.source]]
        for at in range(rank[edge.source] + 1, rank[edge.target]):
            key = (edge.source, edge.data, at)
            if key not in waypoints:
                waypoints[key] = len(steps)
                steps.append(None)
                level.append(at)
            path.append(waypoints[key])
        path.append(spot_of[edge.target])
        paths[edge] = tuple(path)
        links.update((LayerLink(upper, lower, edge.data), None) for upper, lower in pairwise(path))
    members: list[list[int]] = [[] for _ in range(max(level) + 1)]
    for spot, at in enumerate(level):
        members[at].append(spot)
    return Layers(steps=tuple(steps), layers=_ordered(members, tuple(links), level), links=tuple(links), paths=paths)


def _pulled_down(plan: Plan, all_edges: Sequence[Edge]) -> dict[str, int]:
    """Move a step without dependencies right above the first step that needs it, so that its edge crosses nothing."""
    rank = ranks(plan)
    first: dict[str, int] = {}
    for edge in all_edges:
        first[edge.source] = min(rank[edge.target], first.get(edge.source, rank[edge.target]))
    return {
        step.id: first[step.id] - 1 if not step.depends_on and step.id in first else rank[step.id]
        for step in plan.steps
    }


def _ordered(members: list[list[int]], links: Sequence[LayerLink], level: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    above: dict[int, list[int]] = {}
    below: dict[int, list[int]] = {}
    for link in links:
        above.setdefault(link.lower, []).append(link.upper)
        below.setdefault(link.upper, []).append(link.lower)
    by_layer: list[list[LayerLink]] = [[] for _ in members]
    for link in links:
        by_layer[level[link.upper]].append(link)
    best, fewest = [list(layer) for layer in members], -1
    for sweep in range(1 if len(links) > _MANY else _SWEEPS):
        downwards = sweep % 2 == 0
        for at in range(1, len(members)) if downwards else range(len(members) - 2, -1, -1):
            fixed = {spot: place for place, spot in enumerate(members[at - 1 if downwards else at + 1])}
            _sort(members[at], above if downwards else below, fixed)
        crossings = sum(_crossings(members, at, by_layer[at]) for at in range(len(members) - 1))
        if fewest < 0 or crossings < fewest:
            best, fewest = [list(layer) for layer in members], crossings
        if fewest == 0:
            break
    return tuple(tuple(layer) for layer in best)


def _sort(layer: list[int], neighbours: dict[int, list[int]], fixed: dict[int, int]) -> None:
    """Sort by the mean position of the neighbours; a member without neighbours roughly keeps its place."""
    scale = max(1, len(fixed) - 1) / max(1, len(layer) - 1)
    wanted: dict[int, float] = {}
    for place, spot in enumerate(layer):
        near = neighbours.get(spot)
        wanted[spot] = sum(fixed[other] for other in near) / len(near) if near else place * scale
    layer.sort(key=wanted.__getitem__)


def _crossings(members: Sequence[Sequence[int]], at: int, links: Iterable[LayerLink]) -> int:
    """Count the pairs of links that cross between this layer and the next, as inversions."""
    upper = {spot: place for place, spot in enumerate(members[at])}
    lower = {spot: place for place, spot in enumerate(members[at + 1])}
    ends = [end for _, end in sorted((upper[link.upper], lower[link.lower]) for link in links)]
    seen: list[int] = []
    total = 0
    for end in ends:
        total += len(seen) - bisect_right(seen, end)
        insort(seen, end)
    return total


_PLACE_SWEEPS = 4  # sweeps by one side, then as many by both
_STRAIGHT = 4.0  # weight of a waypoint against a step: a bend is worse than a box off its middle


def place(graph: Layers, sizes: Sequence[float], gap: float) -> list[float]:
    """Return the lower end of each spot on its layer's axis, none below 0; members keep the gap."""
    at = [0.0] * len(sizes)
    for layer in graph.layers:
        for before, spot in pairwise(layer):
            at[spot] = at[before] + sizes[before] + gap
    above: list[list[int]] = [[] for _ in sizes]
    below: list[list[int]] = [[] for _ in sizes]
    for link in graph.links:
        above[link.lower].append(link.upper)
        below[link.upper].append(link.lower)
    both = [[*up, *down] for up, down in zip(above, below, strict=True)]
    for sweep in range(2 * _PLACE_SWEEPS):
        downwards = sweep % 2 == 0
        neighbours = both if sweep >= _PLACE_SWEEPS else above if downwards else below
        for layer in graph.layers if downwards else reversed(graph.layers):
            _settle(layer, at, sizes, gap, neighbours, graph)
    least = min(at)
    return [position - least for position in at]


def whole(graph: Layers, at: Sequence[float], sizes: Sequence[int], gap: int) -> list[int]:
    """Return the positions on an integer grid; whole sizes are subtracted before rounding, so the gap is kept."""
    found = [0] * len(at)
    for layer in graph.layers:
        offset = 0
        for spot in layer:
            found[spot] = max(0, int(at[spot] - offset + 0.5 + 1e-9)) + offset
            offset += sizes[spot] + gap
    return found


def _settle(
    layer: Sequence[int],
    at: list[float],
    sizes: Sequence[float],
    gap: float,
    neighbours: Sequence[Sequence[int]],
    graph: Layers,
) -> None:
    blocks: list[tuple[float, float, int]] = []  # mean wanted position, weight, number of members
    offsets: list[float] = []
    offset = 0.0
    for spot in layer:
        offsets.append(offset)
        near = neighbours[spot]
        waypoint = graph.steps[spot] is None
        wish = _mean(near, at, sizes, graph if waypoint else None) - sizes[spot] / 2 if near else at[spot]
        weight = _STRAIGHT if waypoint else 1.0 if near else 0.1
        block = (wish - offset, weight, 1)
        offset += sizes[spot] + gap
        while blocks and blocks[-1][0] > block[0]:  # they would overlap: from now on they move together
            mean, heavy, count = blocks.pop()
            total = heavy + block[1]
            block = ((mean * heavy + block[0] * block[1]) / total, total, count + block[2])
        blocks.append(block)
    index = 0
    for mean, _, count in blocks:
        for _ in range(count):
            at[layer[index]] = mean + offsets[index]
            index += 1


def _mean(near: Sequence[int], at: Sequence[float], sizes: Sequence[float], graph: Layers | None) -> float:
    """Return the mean of the neighbours; for a waypoint other waypoints count most."""
    weights = [_STRAIGHT if graph is not None and graph.steps[other] is None else 1.0 for other in near]
    middles = (weight * (at[other] + sizes[other] / 2) for weight, other in zip(weights, near, strict=True))
    return sum(middles) / sum(weights)
