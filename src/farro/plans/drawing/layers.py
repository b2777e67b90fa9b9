"""Arrange a plan's graph in layers: each step below its dependencies, long edges through waypoints, few crossings.

The method of Sugiyama, Tagawa and Toda: longest path, waypoints, barycentre sweeps; the best order seen is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from farro.lazy_dataclass import dataclass
from farro.plans.graph import order
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


def ranks(plan: Plan) -> dict[str, int]:
    """Return the length of the longest dependency chain of each step."""
    found: dict[str, int] = {}
    for step in order(plan):
        found[step.id] = max((found[need] + 1 for need in step.depends_on), default=0)
    return found


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
    tree = [0] * (len(lower) + 1)  # a Fenwick tree of counts
    total = 0
    for seen, end in enumerate(ends):
        index, smaller = end + 1, 0
        while index > 0:
            smaller += tree[index]
            index &= index - 1
        total += seen - smaller
        index = end + 1
        while index < len(tree):
            tree[index] += 1
            index += index & -index
    return total
