"""Draw a plan as one SVG: no scripts, nothing loaded, readable in light and dark mode and by screen readers.

States are shown by a mark and a border as well as by a colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

from farro.plans.drawing import layout
from farro.plans.drawing.labels import MARKS, StepState, command_line, cut, plain, width
from farro.plans.drawing.layout import Edge, Layers, layered
from farro.plans.model import Plan, Step

_MARGIN = 16.0
_LETTER = 7.9  # of the id, in monospace at 13 px; a fallback font may be a little wider
_SMALL = 6.7
_HEIGHT = 46.0
_NARROWEST = 84.0
_BETWEEN_LAYERS = 52.0
_BETWEEN_BOXES = 26.0
_WAYPOINT = 10.0
_LONGEST = 34  # columns of text in a box
_KEY_HEIGHT = 26.0

_STYLE = """
.farro-plan{--ink:#1f2328;--soft:#59636e;--box:#ffffff;--edge:#818b98;--line:#59636e;--data:#0550ae;--page:#f6f8fa;
--running:#0969da;--succeeded:#1a7f37;--failed:#cf222e;font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,
"DejaVu Sans Mono",monospace;font-size:13px}
@media (prefers-color-scheme:dark){.farro-plan{--ink:#e6edf3;--soft:#9198a1;--box:#161b22;--edge:#656c76;
--line:#9198a1;--data:#79c0ff;--page:#0d1117;--running:#58a6ff;--succeeded:#3fb950;--failed:#ff7b72}}
.farro-plan .page{fill:var(--page)}
.farro-plan .box{fill:var(--box);stroke:var(--edge);stroke-width:1.2}
.farro-plan text{fill:var(--ink);text-anchor:middle}
.farro-plan .id{font-weight:600}
.farro-plan .command,.farro-plan .key{fill:var(--soft);font-size:11px}
.farro-plan .key{text-anchor:start}
.farro-plan .needs{fill:none;stroke:var(--line);stroke-width:1.3;stroke-dasharray:4 3}
.farro-plan .data{fill:none;stroke:var(--data);stroke-width:2.4}
.farro-plan .needs-head{fill:var(--line)}
.farro-plan .data-head{fill:var(--data)}
.farro-plan .waiting .box{stroke-dasharray:6 4}
.farro-plan .running .box{stroke:var(--running);stroke-width:3}
.farro-plan .succeeded .box{stroke:var(--succeeded);stroke-width:2}
.farro-plan .failed .box{stroke:var(--failed);stroke-width:3}
.farro-plan .skipped .box{stroke-dasharray:1.5 4}
.farro-plan .running .id{fill:var(--running)}
.farro-plan .succeeded .id{fill:var(--succeeded)}
.farro-plan .failed .id{fill:var(--failed)}
.farro-plan .skipped text{fill:var(--soft)}
""".replace("\n", "")


def draw(plan: Plan, states: Mapping[str, StepState] | None = None) -> str:
    """Return the picture. `states` holds the states of steps; a step without one has no mark."""
    graph = layered(plan)
    states = states or {}
    sizes = [_WAYPOINT] * len(graph.steps)  # steps come first, in plan order
    sizes[: len(plan.steps)] = [_wide(step, states) for step in plan.steps]
    x = layout.place(graph, sizes, _BETWEEN_BOXES)
    y = [0.0] * len(sizes)
    for level, layer in enumerate(graph.layers):
        for spot in layer:
            y[spot] = _MARGIN + level * (_HEIGHT + _BETWEEN_LAYERS)
    key = _key(graph, states)
    right = max(at + size for at, size in zip(x, sizes, strict=True))
    room = max(right, sum(length for _, _, length in key))
    x = [_MARGIN + (room - right) / 2 + at for at in x]
    high = max(y) + _HEIGHT + _MARGIN + (_KEY_HEIGHT if key else 0.0)
    size = f'width="{room + 2 * _MARGIN:.0f}" height="{high:.0f}" viewBox="0 0 {room + 2 * _MARGIN:.0f} {high:.0f}"'
    boxes = [_box(step, states.get(step.id), x[spot], y[spot], sizes[spot]) for spot, step in enumerate(plan.steps)]
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" class="farro-plan" role="img" '
            f'aria-labelledby="farro-plan-title farro-plan-desc" {size}>',
            f'<title id="farro-plan-title">{_text(plan.name or plan.plan_id or plan.id or "Plan")}</title>',
            f'<desc id="farro-plan-desc">{_text(describe(plan, states))}</desc>',
            f"<style>{_STYLE}</style>",
            f"<defs>{_arrowhead('needs', 9)}{_arrowhead('data', 12)}</defs>",
            '<rect class="page" width="100%" height="100%" rx="6"/>',
            *_lines(graph, x, y, sizes),
            *boxes,
            *_drawn_key(key, high - _KEY_HEIGHT / 2 - 4),
            "</svg>\n",
        ]
    )


def _arrowhead(kind: str, size: int) -> str:
    return (
        f'<marker id="farro-plan-{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerUnits="userSpaceOnUse" '
        f'markerWidth="{size}" markerHeight="{size}" orient="auto"><path class="{kind}-head" '
        'd="M0 0L8 4L0 8z"/></marker>'
    )


def describe(plan: Plan, states: Mapping[str, StepState] | None = None) -> str:
    """Describe the picture in words."""
    said = []
    for step in plan.steps:
        state = (states or {}).get(step.id)
        after = [need for need in step.depends_on if need != step.input_from_step]
        waits = [f"reads the output of {step.input_from_step}"] if step.input_from_step else []
        waits += [f"runs after {', '.join(after)}"] if after else []
        said.append(f"{step.id}{f' ({state})' if state else ''}{' ' if waits else ''}{' and '.join(waits)}")
    return f"A plan of {len(plan.steps)} step{'s' if len(plan.steps) != 1 else ''}: " + "; ".join(said) + "."


def _wide(step: Step, states: Mapping[str, StepState]) -> float:
    head = cut(step.id, _LONGEST)
    mark = 2 if step.id in states else 0
    return max(_NARROWEST, (width(head) + mark) * _LETTER + 24, width(cut(command_line(step), _LONGEST)) * _SMALL + 24)


def _box(step: Step, state: StepState | None, x: float, y: float, wide: float) -> str:
    head, middle = cut(step.id, _LONGEST), x + wide / 2
    mark = f"{MARKS[state]} " if state else ""
    told = f"{step.id}{f', {state}' if state else ''}: {command_line(step)}"
    return (
        f'<g class="step{f" {state}" if state else ""}"><title>{_text(told)}</title>'
        f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{_HEIGHT:.0f}" rx="7"/>'
        f'<text class="id" x="{middle:.1f}" y="{y + 19:.1f}">{_text(mark + head)}</text>'
        f'<text class="command" x="{middle:.1f}" y="{y + 35:.1f}">{_text(cut(command_line(step), _LONGEST))}</text></g>'
    )


def _lines(graph: Layers, x: Sequence[float], y: Sequence[float], sizes: Sequence[float]) -> list[str]:
    """Draw a curve for each edge; edges into one box enter side by side."""
    coming: dict[str, list[tuple[float, Edge]]] = {}
    for edge, path in graph.paths.items():
        before = path[-2]
        coming.setdefault(edge.target, []).append((x[before] + sizes[before] / 2, edge))
    place: dict[Edge, float] = {}
    for edges in coming.values():
        edges.sort()
        for index, (_, edge) in enumerate(edges):
            place[edge] = (index + 0.5) / len(edges) - 0.5
    drawn = []
    for edge, path in sorted(graph.paths.items(), key=lambda item: item[0].data):
        # Straight past the boxes of a layer, bent only between layers: no line runs through a box.
        middles = {spot: x[spot] + sizes[spot] / 2 for spot in path}
        points = [(middles[path[0]], y[path[0]] + _HEIGHT)]
        points += [(middles[spot], at) for spot in path[1:-1] for at in (y[spot], y[spot] + _HEIGHT)]
        last, spread = path[-1], min(sizes[path[-1]] * 0.7, 22.0 * len(coming[edge.target]))
        points.append((middles[last] + place[edge] * spread, y[last] - 1.5))
        kind = "data" if edge.data else "needs"
        drawn.append(f'<path class="{kind}" d="{_curve(points)}" marker-end="url(#farro-plan-{kind})"/>')
    return drawn


def _curve(points: Sequence[tuple[float, float]]) -> str:
    d = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (from_x, from_y), (to_x, to_y) in pairwise(points):
        bend = (to_y - from_y) * 0.45
        d += f"C{from_x:.1f} {from_y + bend:.1f} {to_x:.1f} {to_y - bend:.1f} {to_x:.1f} {to_y:.1f}"
    return d


def _key(graph: Layers, states: Mapping[str, StepState]) -> list[tuple[str, str, float]]:
    """Return the legend: kind, text, length."""
    kinds = {edge.data for edge in graph.paths}
    items = [("data", "output becomes input")] if True in kinds else []
    items += [("needs", "runs after")] if False in kinds else []
    found = set(states.values())
    items += [("state", f"{MARKS[state]} {state}") for state in StepState if state in found]
    return [(kind, words, len(words) * _SMALL + (52 if kind != "state" else 20)) for kind, words in items]


def _drawn_key(key: Sequence[tuple[str, str, float]], y: float) -> list[str]:
    drawn = []
    x = _MARGIN
    for kind, words, length in key:
        start = x
        if kind != "state":
            drawn.append(
                f'<path class="{kind}" d="M{x:.1f} {y:.1f}H{x + 26:.1f}" marker-end="url(#farro-plan-{kind})"/>'
            )
            start = x + 32
        drawn.append(f'<text class="key" x="{start:.1f}" y="{y + 4:.1f}">{_text(words)}</text>')
        x += length
    return drawn


def _text(text: str) -> str:
    return escape(plain(text).translate(_NOT_XML), quote=True)


_NOT_XML = dict.fromkeys((*range(0xD800, 0xE000), 0xFFFE, 0xFFFF), 0xFFFD)
