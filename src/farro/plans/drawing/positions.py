"""Place the members of each layer as near to their neighbours as order and sizes allow, on one axis.

Each layer in turn wants every member at the mean of its neighbours; pooling adjacent violators finds the least-squares
positions that keep the order and the gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from farro.plans.drawing.layers import Layers

_SWEEPS = 4  # sweeps by one side, then as many by both
_STRAIGHT = 4.0  # weight of a waypoint against a step: a bend is worse than a box off its middle

Gap = Callable[[int, int], float]  # between two neighbours of a layer


def place(graph: Layers, sizes: Sequence[float], gap: Gap) -> list[float]:
    """Return the lower end of each spot on its layer's axis, none below 0; members keep their gaps."""
    at = [0.0] * len(sizes)
    for layer in graph.layers:
        for before, spot in pairwise(layer):
            at[spot] = at[before] + sizes[before] + gap(before, spot)
    above: list[list[int]] = [[] for _ in sizes]
    below: list[list[int]] = [[] for _ in sizes]
    for link in graph.links:
        above[link.lower].append(link.upper)
        below[link.upper].append(link.lower)
    both = [[*up, *down] for up, down in zip(above, below, strict=True)]
    for sweep in range(2 * _SWEEPS):
        downwards = sweep % 2 == 0
        neighbours = both if sweep >= _SWEEPS else above if downwards else below
        for layer in graph.layers if downwards else reversed(graph.layers):
            _settle(layer, at, sizes, gap, neighbours, graph)
    least = min(at)
    return [position - least for position in at]


def whole(graph: Layers, at: Sequence[float], sizes: Sequence[int], gap: Gap) -> list[int]:
    """Return the positions on an integer grid; whole sizes are subtracted before rounding, so gaps are kept."""
    found = [0] * len(at)
    for layer in graph.layers:
        offset = 0
        for place_in_layer, spot in enumerate(layer):
            if place_in_layer:
                before = layer[place_in_layer - 1]
                offset += sizes[before] + int(gap(before, spot))
            found[spot] = max(0, int(at[spot] - offset + 0.5 + 1e-9)) + offset
    return found


def _settle(
    layer: Sequence[int],
    at: list[float],
    sizes: Sequence[float],
    gap: Gap,
    neighbours: Sequence[Sequence[int]],
    graph: Layers,
) -> None:
    blocks: list[tuple[float, float, int]] = []  # mean wanted position, weight, number of members
    offsets: list[float] = []
    offset = 0.0
    for index, spot in enumerate(layer):
        if index:
            offset += sizes[layer[index - 1]] + gap(layer[index - 1], spot)
        offsets.append(offset)
        near = neighbours[spot]
        waypoint = graph.steps[spot] is None
        wish = _mean(near, at, sizes, graph if waypoint else None) - sizes[spot] / 2 if near else at[spot]
        weight = _STRAIGHT if waypoint else 1.0 if near else 0.1
        block = (wish - offset, weight, 1)
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
