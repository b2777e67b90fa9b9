"""Route the lines between two layers on a grid: the column by which each enters a box, and the track it turns on.

Two lines share a cell only where they cross straight: every edge enters by its own column, which no other edge uses to
leave the layer above, and the spans of lines on one track do not overlap. So a reader can follow every line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from farro.lazy_dataclass import dataclass

_FAR = 1 << 30
_DETOUR = 8  # columns that a line may be moved to become straight


class Bundle(NamedTuple):
    """The edges of one step and one kind; they leave it as one line."""

    spot: int
    data: bool


class NoRoom(Exception):
    """The lines cannot be kept apart in this space."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LineRouting:
    """The columns and tracks of all lines; a straight line has no track."""

    leaves: Mapping[Bundle, int]  # column
    enters: Mapping[tuple[Bundle, int], int]  # bundle and lower spot → column
    track: Mapping[Bundle, int | None]
    tracks: int


def route(
    leaves: Mapping[Bundle, int], targets: Mapping[Bundle, Sequence[int]], inside: Mapping[int, tuple[int, int]]
) -> LineRouting:
    """Route the lines. `inside` holds the first and last entry column of each lower spot. Raise NoRoom if too few."""
    coming: dict[int, list[Bundle]] = {}
    for bundle, spots in targets.items():
        for spot in spots:
            coming.setdefault(spot, []).append(bundle)
    enters: dict[tuple[Bundle, int], int] = {}
    columns = set(leaves.values())
    for spot, bundles in coming.items():
        bundles.sort(key=lambda bundle: leaves[bundle])
        for bundle, column in zip(bundles, _ports(bundles, leaves, columns, *inside[spot]), strict=True):
            enters[bundle, spot] = column
    spans = {
        bundle: (min(leaves[bundle], *ends), max(leaves[bundle], *ends))
        for bundle, spots in targets.items()
        if (ends := [enters[bundle, spot] for spot in spots]) and any(end != leaves[bundle] for end in ends)
    }
    track, tracks = _best_tracks(spans, leaves, enters)
    return LineRouting(
        leaves=leaves,
        enters=enters,
        track={bundle: track.get(bundle) for bundle in targets},
        tracks=tracks,
    )


def _ports(
    bundles: Sequence[Bundle], leaves: Mapping[Bundle, int], taken: Collection[int], first: int, last: int
) -> list[int]:
    """Assign an entry column to each line from left to right, straight where possible."""
    count = last - first + 1
    cost = [0] * (count + 1)  # column → cost of the lines so far
    choices: list[list[int]] = []
    for index, bundle in enumerate(bundles):
        own = leaves[bundle]
        ideal = first + round((2 * index + 1) * count / (2 * len(bundles)) - 0.5)
        best, chosen = [_FAR] * (count + 1), [-1] * (count + 1)
        for place in range(count):
            column = first + place
            best[place + 1], chosen[place + 1] = best[place], chosen[place]
            if column == own:
                price = cost[place] + abs(column - ideal) - _DETOUR
            elif column in taken:
                continue
            else:
                price = cost[place] + abs(column - ideal)
            if price < best[place + 1]:
                best[place + 1], chosen[place + 1] = price, place
        choices.append(chosen)
        cost = best
    if cost[count] >= _FAR // 2:
        raise NoRoom
    found: list[int] = []
    end = count
    for chosen in reversed(choices):
        end = chosen[end]
        found.append(first + end)
    return found[::-1]


def _best_tracks(
    spans: Mapping[Bundle, tuple[int, int]],
    leaves: Mapping[Bundle, int],
    enters: Mapping[tuple[Bundle, int], int],
) -> tuple[dict[Bundle, int], int]:
    """Return the order with the fewest tracks and crossings, of a few tried."""
    orders = (
        sorted(spans, key=lambda bundle: leaves[bundle]),
        sorted(spans, key=lambda bundle: -leaves[bundle]),
        sorted(spans, key=lambda bundle: spans[bundle][1] - spans[bundle][0]),
        sorted(spans, key=lambda bundle: spans[bundle][0] - spans[bundle][1]),
    )
    found = [_tracks(order, spans) for order in orders]
    ends: dict[Bundle, list[int]] = {}
    for (bundle, _), column in enters.items():
        ends.setdefault(bundle, []).append(column)

    def cost(tracks: dict[Bundle, int]) -> tuple[int, int]:
        crossings = 0
        for bundle, (start, end) in spans.items():
            row = tracks[bundle]
            for other, other_row in tracks.items():
                crossed = ends[other] if other_row < row else [leaves[other]] if other_row > row else ()
                crossings += sum(start <= column <= end for column in crossed) if other != bundle else 0
        return crossings, max(tracks.values(), default=-1)

    best = min(found, key=cost)
    return best, max(best.values(), default=-1) + 1


def _tracks(order: Iterable[Bundle], spans: Mapping[Bundle, tuple[int, int]]) -> dict[Bundle, int]:
    """Put each line on the first track where its span does not overlap another."""
    used: list[list[tuple[int, int]]] = []
    found: dict[Bundle, int] = {}
    for bundle in order:
        start, end = spans[bundle]
        row = next(
            (row for row, there in enumerate(used) if all(end < left or right < start for left, right in there)),
            len(used),
        )
        if row == len(used):
            used.append([])
        used[row].append((start, end))
        found[bundle] = row
    return found
