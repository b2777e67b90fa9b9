"""Draw a plan with boxes and lines of characters, top-down or left-to-right, whichever takes fewer lines.

A plan that does not fit is drawn by `levels`. Coordinates have two axes, along a layer (`cross`) and from layer to
layer (`main`), and are rotated at the end. Where two lines cross, one is interrupted; only lines of the same step and
kind join.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farro.lazy_dataclass import dataclass, field
from farro.plans.drawing import positions
from farro.plans.drawing.edges import Bundle, LineRouting, NoRoom, route
from farro.plans.drawing.labels import command_line
from farro.plans.drawing.layers import Layers, layered
from farro.plans.drawing.widths import char_width, cut, width
from farro.plans.model import Plan

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


def draw(plan: Plan, *, columns: int, glyphs: Glyphs = UNICODE, marks: Mapping[str, str] | None = None) -> str | None:
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


@dataclass(slots=True)
class _Cell:
    masks: dict[Bundle, int] = field(default_factory=dict)


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
        gap = self._gap
        self.at = positions.whole(graph, positions.place(graph, self.size, gap), self.size, gap)
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
        for (cross, main), cell in self._cells().items():
            x, y = (cross, main) if self.downwards else (main, cross)
            grid[y][x] = self._glyph(cell)
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

    def _gap(self, one: int, other: int) -> int:
        return 2 if self.downwards else 0

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

    def _cells(self) -> dict[tuple[int, int], _Cell]:
        cells: dict[tuple[int, int], _Cell] = {}

        def mark(bundle: Bundle, cross: int, main: int, mask: int) -> None:
            masks = cells.setdefault((cross, main), _Cell()).masks
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

    def _glyph(self, cell: _Cell) -> str:
        bundle, mask = max(cell.masks.items(), key=lambda one: one[1] & _STRAIGHT == _STRAIGHT)
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
