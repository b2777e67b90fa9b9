"""Draw a plan with characters: boxes and lines, or a list of levels where a graph is too large for boxes.

Boxes go top-down or left-to-right, whichever takes fewer lines. Coordinates have two axes, along a layer (`cross`) and
from layer to layer (`main`), and are rotated at the end. Where two lines cross, one is interrupted; only lines of the
same step and kind join.

Between two layers each edge enters its box by its own column, which no other edge uses to leave the layer above, and
the spans of lines on one track do not overlap. So two lines share a cell only where they cross straight, and a reader
can follow every line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from farro.lazy_dataclass import dataclass
from farro.plans.drawing import layout
from farro.plans.drawing.labels import char_width, command_line, cut, width
from farro.plans.drawing.layout import Layers, layered
from farro.plans.graph import ranks
from farro.plans.model import Plan, Step

_WIDEST = 30  # columns of a box's text
_MOST = 60  # steps: beyond that, lines cannot be followed
_MOST_LINKS = 400
_TALLEST = 120

_BEFORE, _AFTER, _LEFT, _RIGHT = 1, 2, 4, 8  # main -, main +, cross -, cross +
_STRAIGHT = _BEFORE | _AFTER
_TURNED = {_BEFORE: _LEFT, _AFTER: _RIGHT, _LEFT: _BEFORE, _RIGHT: _AFTER}
#                 before and after alone do not occur ↓
_LIGHT = " │││─┘┐┤─└┌├─┴┬┼"
_HEAVY = " ┃┃┃━┛┓┫━┗┏┣━┻┳╋"
_PLAIN = " |||-+++-+++-+++"
_PLAIN_HEAVY = " ###=###=###=###"


@dataclass(frozen=True, kw_only=True, slots=True)
class Glyphs:
    light: str
    heavy: str
    border: str  # corners and sides: ┌ ┐ └ ┘ ─ │
    down: str
    right: str
    leaves: tuple[str, str, str, str]  # down light, down heavy, right light, right heavy
    ellipsis: str


UNICODE = Glyphs(
    light=_LIGHT, heavy=_HEAVY, border="┌┐└┘─│", down="▼", right="▶", leaves=("┬", "┰", "├", "┝"), ellipsis="…"
)
ASCII = Glyphs(
    light=_PLAIN, heavy=_PLAIN_HEAVY, border="++++-|", down="v", right=">", leaves=("+", "#", "+", "#"), ellipsis=".."
)


def draw_boxes(
    plan: Plan, *, columns: int, glyphs: Glyphs = UNICODE, marks: Mapping[str, str] | None = None
) -> str | None:
    """Return the picture; None when the plan is too large for that width. `marks` precede the step ids."""
    if len(plan.steps) > _MOST:
        return None
    graph = layered(plan)
    if len(graph.links) > _MOST_LINKS:
        return None
    for depth in (2, 1):  # with each step's command, or with ids alone
        texts = _texts(plan, depth, glyphs, marks or {})
        drawn = [_drawn(graph, texts, glyphs, downwards, columns) for downwards in (True, False)]
        fitting = [(len(lines), lines) for lines in drawn if lines is not None and len(lines) <= _TALLEST]
        if fitting:
            return "\n".join(min(fitting)[1])
    return None


def _texts(plan: Plan, depth: int, glyphs: Glyphs, marks: Mapping[str, str]) -> dict[str, list[str]]:
    texts = {}
    for step in plan.steps:
        mark = marks.get(step.id)
        lines = [f"{mark} {step.id}" if mark else step.id, command_line(step)][:depth]
        texts[step.id] = [cut(line, _WIDEST, glyphs.ellipsis) for line in lines]
    return texts


def _drawn(
    graph: Layers, texts: Mapping[str, Sequence[str]], glyphs: Glyphs, downwards: bool, columns: int
) -> list[str] | None:
    try:
        sheet = _Sheet(graph, texts, glyphs, downwards)
    except NoRoom:
        return None
    return sheet.lines() if sheet.columns <= columns else None


class _Sheet:
    """One layout on one grid."""

    def __init__(self, graph: Layers, texts: Mapping[str, Sequence[str]], glyphs: Glyphs, downwards: bool) -> None:
        self.graph, self.texts, self.glyphs, self.downwards = graph, texts, glyphs, downwards
        self.targets: dict[Bundle, list[int]] = {}
        for link in graph.links:
            self.targets.setdefault(Bundle(link.upper, link.data), []).append(link.lower)
        self.bundles: dict[int, list[Bundle]] = {}
        for bundle in sorted(self.targets):
            self.bundles.setdefault(bundle.spot, []).append(bundle)
        self.size = self._sizes()
        gap = 2 if downwards else 0
        self.at = layout.whole(graph, layout.place(graph, self.size, gap), self.size, gap)
        for bundles in self.bundles.values():  # lines leave a box in the order of their targets
            bundles.sort(key=self._aim)
        self.deep = [self._depth(layer) for layer in graph.layers]
        self.passes: dict[int, int] = {}  # waypoint → its column
        self.channels = [self._channel(upper) for upper in graph.layers[:-1]]
        self.start: list[int] = []  # of each layer on the main axis
        main = 0
        for index, depth in enumerate(self.deep):
            self.start.append(main)
            main += depth + (self._channel_depth(self.channels[index]) if index < len(self.channels) else 0)
        across = max(self.at[spot] + self.size[spot] for spot in range(len(self.size)))
        self.columns, self.rows = (across, main) if downwards else (main, across)

    def lines(self) -> list[str]:
        grid = [[" "] * self.columns for _ in range(self.rows)]
        for (cross, main), masks in self._cells().items():
            x, y = (cross, main) if self.downwards else (main, cross)
            grid[y][x] = self._glyph(masks)
        for index, layer in enumerate(self.graph.layers):
            for spot in layer:
                if self.graph.steps[spot] is not None:
                    self._box(grid, spot, index)
        for index, channel in enumerate(self.channels):
            end = self.start[index + 1] - 1
            for (_, spot), cross in channel.enters.items():
                if self.graph.steps[spot] is not None:
                    x, y = (cross, end) if self.downwards else (end, cross)
                    grid[y][x] = self.glyphs.down if self.downwards else self.glyphs.right
        lines = ["".join(row).rstrip() for row in grid]
        while not lines[-1]:  # room for a waypoint to move aside
            lines.pop()
        return lines

    def _sizes(self) -> list[int]:
        coming: dict[int, int] = {}
        for spots in self.targets.values():
            for spot in spots:
                coming[spot] = coming.get(spot, 0) + 1
        return [self._across(spot, coming.get(spot, 0)) for spot in range(len(self.graph.steps))]

    def _across(self, spot: int, coming: int) -> int:
        """Return the size along the layer, including the border."""
        step = self.graph.steps[spot]
        if step is None:
            return 3  # a line, and room to move aside
        leaving = len(self.bundles.get(spot, ()))
        if not self.downwards:
            return max(len(self.texts[step]), coming, leaving) + 2
        return (max(max(map(width, self.texts[step])) + 2, 2 * coming + 1 if coming > 1 else 1, 3) + 2) | 1

    def _aim(self, bundle: Bundle) -> float:
        spots = self.targets[bundle]
        return sum(self.at[spot] + self.size[spot] / 2 for spot in spots) / len(spots)

    def _depth(self, layer: Sequence[int]) -> int:
        """Return the size on the main axis: boxes of one layer are equally deep."""
        texts = [self.texts[step] for spot in layer if (step := self.graph.steps[spot]) is not None]
        if self.downwards:
            return max((len(lines) for lines in texts), default=-1) + 2
        return max((max(map(width, lines)) for lines in texts), default=-3) + 4

    def _channel_depth(self, channel: LineRouting) -> int:
        return channel.tracks + (1 if self.downwards else 2)

    def _channel(self, upper: Sequence[int]) -> LineRouting:
        leaves = {}
        for spot in upper:
            for index, bundle in enumerate(self.bundles.get(spot, ())):
                leaves[bundle] = self._leaves(spot, index)
        targets = {bundle: self.targets[bundle] for bundle in leaves}
        inside = {}
        for spots in targets.values():
            for spot in spots:
                room = 0 if self.graph.steps[spot] is None else 1
                inside[spot] = (self.at[spot] + room, self.at[spot] + self.size[spot] - 1 - room)
        channel = route(leaves, targets, inside)
        for (_, spot), column in channel.enters.items():
            if self.graph.steps[spot] is None:
                self.passes[spot] = column
        return channel

    def _leaves(self, spot: int, index: int) -> int:
        if self.graph.steps[spot] is None:
            return self.passes[spot]
        middle = self.at[spot] + (self.size[spot] - 1) // 2
        if len(self.bundles[spot]) == 1:
            return middle
        return middle + (2 * index - 1 if self.downwards and self.size[spot] >= 5 else index)

    def _cells(self) -> dict[tuple[int, int], dict[Bundle, int]]:
        """Return the directions of each line in each cell."""
        cells: dict[tuple[int, int], dict[Bundle, int]] = {}

        def mark(bundle: Bundle, cross: int, main: int, mask: int) -> None:
            masks = cells.setdefault((cross, main), {})
            masks[bundle] = masks.get(bundle, 0) | mask

        for index, channel in enumerate(self.channels):
            begin, end = self.start[index] + self.deep[index], self.start[index + 1]
            for bundle, leaves in channel.leaves.items():
                enters = [channel.enters[bundle, spot] for spot in self.targets[bundle]]
                track = channel.track[bundle]
                if track is None:
                    for main in range(begin, end):
                        mark(bundle, leaves, main, _STRAIGHT)
                    continue
                row = begin + track + (0 if self.downwards else 1)
                for main in range(begin, row):
                    mark(bundle, leaves, main, _STRAIGHT)
                mark(bundle, leaves, row, _BEFORE)
                first, last = min(leaves, *enters), max(leaves, *enters)
                for cross in range(first, last + 1):
                    mark(bundle, cross, row, (_LEFT if cross > first else 0) | (_RIGHT if cross < last else 0))
                for column in enters:
                    mark(bundle, column, row, _AFTER)
                    for main in range(row + 1, end):
                        mark(bundle, column, main, _STRAIGHT)
            for spot in self.graph.layers[index + 1]:
                if self.graph.steps[spot] is None:
                    for main in range(end, end + self.deep[index + 1]):
                        mark(self.bundles[spot][0], self.passes[spot], main, _STRAIGHT)
        return cells

    def _glyph(self, masks: Mapping[Bundle, int]) -> str:
        bundle, mask = max(masks.items(), key=lambda one: one[1] & _STRAIGHT == _STRAIGHT)
        if not self.downwards:
            mask = sum(turned for bit, turned in _TURNED.items() if mask & bit)
        return (self.glyphs.heavy if bundle.data else self.glyphs.light)[mask]

    def _box(self, grid: list[list[str]], spot: int, layer: int) -> None:
        step = self.graph.steps[spot]
        assert step is not None
        cross, main, across, deep = self.at[spot], self.start[layer], self.size[spot], self.deep[layer]
        x, y, wide, high = (cross, main, across, deep) if self.downwards else (main, cross, deep, across)
        top_left, top_right, bottom_left, bottom_right, flat, upright = tuple(self.glyphs.border)
        grid[y][x : x + wide] = [top_left, *flat * (wide - 2), top_right]
        grid[y + high - 1][x : x + wide] = [bottom_left, *flat * (wide - 2), bottom_right]
        for row in range(y + 1, y + high - 1):
            grid[row][x : x + wide] = [upright, *" " * (wide - 2), upright]
        lines = self.texts[step]
        top = y + 1 + (high - 2 - len(lines)) // 2
        for index, line in enumerate(lines):
            _write(grid[top + index], x + 1 + (wide - 2 - width(line)) // 2, line)
        if layer < len(self.channels):
            for bundle in self.bundles.get(spot, ()):
                glyph = self.glyphs.leaves[(0 if self.downwards else 2) + bundle.data]
                out = self.channels[layer].leaves[bundle]
                if self.downwards:
                    grid[y + high - 1][out] = glyph
                else:
                    grid[out][x + wide - 1] = glyph


def _write(row: list[str], x: int, text: str) -> None:
    """Write text into cells. A wide character takes two cells; a zero-width one joins the cell before it."""
    for char in text:
        taken = char_width(char)
        if taken == 0:
            row[x - 1] += char
            continue
        row[x] = char
        if taken == 2:
            row[x + 1] = ""
        x += taken


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


_WIDEST_ID = 40
_LEAST_COMMAND = 12


def draw_levels(plan: Plan, *, columns: int, ascii_only: bool = False, marks: Mapping[str, str] | None = None) -> str:
    """Return lines of at most `columns` where names allow it; no step is left out.

    The level of a step is the length of its longest dependency chain: steps of one level never wait for each other.
    """
    rank = ranks(plan)
    marks = marks or {}
    ellipsis = ".." if ascii_only else "…"
    names = {step.id: f"{marks[step.id]} {step.id}" if step.id in marks else step.id for step in plan.steps}
    wide = min(max(map(width, names.values())), _WIDEST_ID)
    room = max(_LEAST_COMMAND, min(columns - wide - 30, 40))
    room = min(room, max(width(command_line(step)) for step in plan.steps))
    lines: list[str] = []
    for level in range(max(rank.values()) + 1):
        members = [step for step in plan.steps if rank[step.id] == level]
        lines.append(f"level {level + 1}" + (f", {len(members)} steps" if len(members) > 1 else ""))
        for step in members:
            command = cut(command_line(step), room, ellipsis)
            head = f"  {_padded(names[step.id], wide)}  {_padded(command, room)}"
            lines += _with_needs(head, step, columns, ascii_only)
    return "\n".join(lines)


def _with_needs(head: str, step: Step, columns: int, ascii_only: bool) -> Iterator[str]:
    """Return the lines of a step and its needs."""
    data, after = ("<=", "<-") if ascii_only else ("⇐", "←")
    words = [] if step.input_from_step is None else [f"{data} {step.input_from_step}"]
    plain = [need for need in step.depends_on if need != step.input_from_step]
    words += [f"{after} {need}" if index == 0 else need for index, need in enumerate(plain)]
    line, begun = head + " ", False
    for index, word in enumerate(words):
        comma = "," if index + 1 < len(words) and not words[index + 1].startswith((data, after)) else ""
        if begun and width(line) + 1 + width(word + comma) > columns:
            yield line.rstrip()
            line = " " * (width(head) + 1 + width(after) + 1)
        line += f" {word}{comma}"
        begun = True
    yield line.rstrip()


def _padded(text: str, columns: int) -> str:
    return text + " " * (columns - width(text))
