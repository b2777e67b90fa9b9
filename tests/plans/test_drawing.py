"""Draw any plan: every step once, every edge, and nothing overlaps."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farro.plans.drawing import layout, markup, svg, terminal
from farro.plans.drawing.labels import MARKS, StepState, cut, width
from farro.plans.drawing.layout import edges, layered
from farro.plans.graph import ranks
from farro.plans.loading import load_data
from farro.plans.model import Plan

SVG = "{http://www.w3.org/2000/svg}"


def drawn_from(*steps: tuple[str, str], **more: Any) -> Plan:
    """Return a plan of (id, needs) pairs; a need that begins with = is the step's input."""
    made = []
    for step_id, needs in steps:
        words = needs.split()
        step: dict[str, Any] = {"id": step_id, "command": "run", "needs": [need for need in words if need[0] != "="]}
        step["input_from_step"] = next((need[1:] for need in words if need[0] == "="), None)
        made.append(step)
    return load_data({"steps": made, **more}, "p")


DIAMOND = drawn_from(("a", ""), ("b", "=a"), ("c", "a"), ("d", "b c"))


@st.composite
def plans(draw: st.DrawFn, most: int = 14) -> Plan:
    count = draw(st.integers(1, most))
    made = []
    for index in range(count):
        needs = draw(st.lists(st.integers(0, index - 1), max_size=4, unique=True)) if index else []
        step: dict[str, Any] = {"id": f"n{index}", "command": "x" * draw(st.integers(1, 40))}
        if needs and draw(st.booleans()):
            step["input_from_step"] = f"n{needs.pop()}"
        made.append({**step, "needs": [f"n{need}" for need in needs]})
    order = draw(st.permutations(range(count)))
    return load_data({"steps": [made[index] for index in order]}, "p")


# --- layers and places


@given(plans())
def test_every_step_stands_below_all_that_it_depends_on_and_every_link_spans_one_layer(plan: Plan) -> None:
    graph = layered(plan)
    level = {spot: at for at, layer in enumerate(graph.layers) for spot in layer}
    assert sorted(level) == list(range(len(graph.steps)))
    assert sorted(filter(None, graph.steps)) == sorted(step.id for step in plan.steps)
    for edge in edges(plan):
        path = graph.paths[edge]
        assert (graph.steps[path[0]], graph.steps[path[-1]]) == (edge.source, edge.target)
        assert all(graph.steps[spot] is None for spot in path[1:-1])
        assert all(level[lower] == level[upper] + 1 for upper, lower in pairwise(path))
        assert {(link.upper, link.lower) for link in graph.links} >= set(pairwise(path))


@given(plans(), st.integers(1, 9), st.integers(0, 4))
def test_members_of_a_layer_keep_their_order_and_their_gaps(plan: Plan, wide: int, gap: int) -> None:
    graph = layered(plan)
    sizes = [wide + 2 * (spot % 3) for spot in range(len(graph.steps))]
    at = layout.place(graph, sizes, gap)
    on_grid = layout.whole(graph, at, sizes, gap)
    for layer in graph.layers:
        for one, other in pairwise(layer):
            assert at[other] - at[one] >= sizes[one] + gap - 1e-6
            assert on_grid[other] - on_grid[one] >= sizes[one] + gap
    assert min(at) >= 0
    assert min(on_grid) >= 0


def test_a_graph_that_can_be_drawn_without_crossings_is() -> None:
    plan = drawn_from(("a", ""), ("b", ""), ("c", ""), ("x", "c"), ("y", "b"), ("z", "a"))
    graph = layered(plan)
    names = [[graph.steps[spot] for spot in layer] for layer in graph.layers]
    assert sorted(zip(*names, strict=True)) == [("a", "z"), ("b", "y"), ("c", "x")]


def test_a_step_without_needs_stands_right_above_the_first_that_needs_it() -> None:
    graph = layered(drawn_from(("a", ""), ("b", "a"), ("c", "b"), ("late", ""), ("d", "c late")))
    assert {graph.steps[spot] for spot in graph.layers[2]} == {"c", "late"}


# --- boxes


def read_back(picture: str) -> set[tuple[str, str, bool]]:
    """Follow every line of a downward or rightward picture from box to box: the edges that a reader sees."""
    grid = [list(line) for line in picture.split("\n")]

    def at(x: int, y: int) -> str:
        return grid[y][x] if 0 <= y < len(grid) and 0 <= x < len(grid[y]) else " "

    inside: dict[tuple[int, int], str] = {}
    for top, line in enumerate(grid):
        for left, char in enumerate(line):
            if char == "┌" and (found := _box_at(at, left, top)) is not None:
                right, bottom = found
                words = "".join(at(x, y) for y in range(top + 1, bottom) for x in range(left + 1, right)).split()
                inside.update({(x, y): words[0] for x in range(left, right + 1) for y in range(top, bottom + 1)})
    seen: set[tuple[str, str, bool]] = set()
    for (x, y), name in inside.items():
        start = {"┬": (0, 1), "┰": (0, 1), "├": (1, 0), "┝": (1, 0)}.get(at(x, y))
        if start is not None and (x + start[0], y + start[1]) not in inside:
            heavy = at(x, y) in "┰┝"
            for end in _follow(at, x + start[0], y + start[1], start, heavy, inside):
                seen.add((name, end, heavy))
    return seen


def _box_at(at: Any, left: int, top: int) -> tuple[int, int] | None:
    right, bottom = left + 1, top + 1
    while at(right, top) == "─":
        right += 1
    while at(left, bottom) == "│":
        bottom += 1
    return (right, bottom) if at(right, top) == "┐" and at(left, bottom) == "└" and right - left > 3 else None


_WAYS = {
    (0, 1): "│┌┐├┤┬┼ ┃┏┓┣┫┳╋",
    (0, -1): "│└┘├┤┴┼ ┃┗┛┣┫┻╋",
    (1, 0): "─┌└├┬┴┼ ━┏┗┣┳┻╋",
    (-1, 0): "─┐┘┤┬┴┼ ━┓┛┫┳┻╋",
}


def _follow(at: Any, x: int, y: int, way: tuple[int, int], heavy: bool, inside: Any) -> list[str]:
    """Return the boxes reached from here in direction `way`. A line passes under a line that crosses it."""
    ends: list[str] = []
    todo, seen = [(x, y, way)], set()
    while todo:
        x, y, way = todo.pop()
        if (x, y, way) in seen:
            continue
        seen.add((x, y, way))
        char = at(x, y)
        if char in "▼▶":
            ends.append(inside[x, y + 1] if char == "▼" else inside[x + 1, y])
            continue
        back = (-way[0], -way[1])
        own = char != " " and (char in "".join(_WAYS.values()).replace(" ", "")) and (char in "┃┏┓┣┫┳╋┗┛┻━") == heavy
        if own and char in _WAYS[back]:
            todo += [(x + dx, y + dy, (dx, dy)) for dx, dy in _WAYS if (dx, dy) != back and char in _WAYS[dx, dy]]
        else:
            assert char != " ", "a line ends outside of any box"
            todo.append((x + way[0], y + way[1], way))
    return ends


@settings(max_examples=150)
@given(plans(10))
def test_the_drawn_lines_are_exactly_the_edges(plan: Plan) -> None:
    picture = terminal.draw_boxes(plan, columns=400)
    if picture is None:
        return
    expected = {(edge.source, edge.target, edge.data) for edge in edges(plan)}
    assert read_back(picture) == expected, "\n" + picture


@given(plans(), st.integers(20, 160), st.booleans())
def test_every_step_is_drawn_once_and_within_the_width(plan: Plan, columns: int, ascii_only: bool) -> None:
    picture = terminal.draw_boxes(plan, columns=columns, glyphs=terminal.ASCII if ascii_only else terminal.UNICODE)
    if picture is None:
        return
    assert max(map(width, picture.split("\n"))) <= columns
    assert not ascii_only or picture.isascii()
    assert sorted(re.findall(r"\bn\d+\b", picture)) == sorted(step.id for step in plan.steps)


def test_a_diamond_is_drawn_from_left_to_right_where_that_is_shorter() -> None:
    assert terminal.draw_boxes(DIAMOND, columns=80) == (
        """\
          ┌─────┐
        ┏▶│  b  ├─┐
┌─────┐ ┃ │ run │ │ ┌─────┐
│  a  ┝━┛ └─────┘ └▶│  d  │
│ run ├─┐ ┌─────┐ ┌▶│ run │
└─────┘ └▶│  c  ├─┘ └─────┘
          │ run │
          └─────┘"""
    )
    assert "▼" in (terminal.draw_boxes(DIAMOND, columns=20) or "")


def test_a_plan_that_does_not_fit_is_not_drawn_as_boxes() -> None:
    assert terminal.draw_boxes(DIAMOND, columns=8) is None
    assert terminal.draw_boxes(drawn_from(*((f"s{n}", "") for n in range(100))), columns=4000) is None


def test_wide_characters_and_escapes_do_not_break_a_box() -> None:
    plan = load_data({"steps": [{"id": "a", "command": "打印", "args": ["\x1b[31m", "é", "ﬀ" * 40]}]}, "p")
    picture = terminal.draw_boxes(plan, columns=80)
    assert picture is not None
    assert "\x1b" not in picture
    assert len({width(line) for line in picture.split("\n")}) == 1


def test_marks_stand_before_the_ids() -> None:
    picture = terminal.draw_boxes(DIAMOND, columns=80, marks={"a": "✓", "b": "✗"}) or ""
    assert "✓ a" in picture
    assert "✗ b" in picture


@given(st.text(max_size=60), st.integers(0, 30))
def test_text_is_cut_by_its_width_in_columns(text: str, columns: int) -> None:
    short = cut(text, columns)
    assert width(short) <= columns
    assert "\n" not in short
    assert "\x1b" not in short


# --- levels, for plans that are too large


@given(plans(), st.integers(40, 120))
def test_the_list_of_levels_has_every_step_once_with_all_it_waits_for(plan: Plan, columns: int) -> None:
    text = terminal.draw_levels(plan, columns=columns)
    rank, level, step_id = ranks(plan), -1, ""
    needs: dict[str, set[str]] = {}
    for line in text.split("\n"):
        if line.startswith("level "):
            level += 1
        else:
            if not line.startswith("    "):
                step_id = line.split()[0]
                assert rank[step_id] == level
                assert step_id not in needs
                needs[step_id] = set()
                line = line.split(step_id, 1)[1]
            needs[step_id].update(re.findall(r"\bn\d+\b", line))
    assert needs == {step.id: set(step.depends_on) for step in plan.steps}


def test_a_hundred_steps_are_listed_by_levels() -> None:
    steps = [(f"s{n}", f"s{n - 1}" if n % 10 else "") for n in range(100)]
    text = terminal.draw_levels(drawn_from(*steps), columns=80)
    assert text.count("level ") == 10
    assert "level 1, 10 steps" in text
    assert terminal.draw_levels(DIAMOND, columns=80, ascii_only=True).isascii()


# --- SVG and Mermaid


@settings(max_examples=50)
@given(plans())
def test_an_svg_has_a_box_for_each_step_and_a_line_for_each_edge_and_no_boxes_overlap(plan: Plan) -> None:
    picture = ET.fromstring(svg.draw(plan))
    found = [
        tuple(float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        for rect in picture.iter(f"{SVG}rect")
        if rect.get("class") == "box"
    ]
    assert len(found) == len(plan.steps)
    for (x, y, wide, high), (other_x, other_y, other_wide, other_high) in combinations(found, 2):
        assert x + wide <= other_x or other_x + other_wide <= x or y + high <= other_y or other_y + other_high <= y
    wide, high = float(picture.attrib["width"]), float(picture.attrib["height"])
    assert all(x >= 0 and y >= 0 and x + w <= wide and y + h <= high for x, y, w, h in found)
    ends = [path.get("marker-end") for path in picture.iter(f"{SVG}path") if path.get("d", "").count("C")]
    expected = [f"url(#farro-plan-{'data' if edge.data else 'needs'})" for edge in edges(plan)]
    assert sorted(filter(None, ends)) == sorted(expected)


def test_an_svg_describes_its_content_in_words() -> None:
    picture = ET.fromstring(svg.draw(replace(DIAMOND, name="Release")))
    assert picture.get("role") == "img"
    assert [picture.findtext(f"{SVG}{name}") for name in ("title", "desc")] == [
        "Release",
        "A plan of 4 steps: a; b reads the output of a; c runs after a; d runs after b, c.",
    ]


def test_nothing_in_a_plan_becomes_markup_of_an_svg() -> None:
    evil = '</text><script>alert("1")</script>&\x00\x1b\ufffe'
    plan = load_data({"name": evil.replace("\0", ""), "steps": [{"id": "a", "command": evil.replace("\0", "")}]}, "p")
    text = svg.draw(plan)
    picture = ET.fromstring(text)
    assert "<script" not in text
    assert not list(picture.iter(f"{SVG}script"))
    assert "@import" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("state", list(StepState))
def test_a_state_is_shown_by_a_mark_and_words_not_by_colour_alone(state: StepState) -> None:
    picture = ET.fromstring(svg.draw(DIAMOND, {"a": state}))
    texts = ["".join(text.itertext()) for text in picture.iter(f"{SVG}text")]
    assert f"{MARKS[state]} a" in texts
    assert f"{MARKS[state]} {state}" in texts  # what the mark means
    assert f"a ({state})" in (picture.findtext(f"{SVG}desc") or "")


def test_an_svg_is_drawn_for_the_dark_as_well() -> None:
    assert "prefers-color-scheme:dark" in svg.draw(DIAMOND)


@given(plans())
def test_mermaid_has_a_line_for_each_step_and_each_edge(plan: Plan) -> None:
    text = markup.mermaid(plan)
    assert text.startswith("flowchart TD\n")
    assert len(re.findall(r'^    s\d+\["', text, re.MULTILINE)) == len(plan.steps)
    names = {step.id: f"s{index}" for index, step in enumerate(plan.steps)}
    expected = [f"{names[edge.source]} {'==>' if edge.data else '-->'} {names[edge.target]}" for edge in edges(plan)]
    assert re.findall(r"^    (s\d+ [=-]+> s\d+)$", text, re.MULTILINE) == expected


def test_nothing_in_a_plan_becomes_syntax_of_mermaid() -> None:
    plan = load_data({"steps": [{"id": "end", "command": 'x"]; click a "javascript:y" <b> `#`\n%%'}]}, "p")
    line = markup.mermaid(plan, {"end": StepState.FAILED}).split("\n")[1]
    assert re.fullmatch(r'    s0\["<b>[^"<>`]*</b><br/>[^"<>`]*"\]', line)


@settings(max_examples=50)
@given(plans())
def test_no_line_of_an_svg_runs_through_a_box(plan: Plan) -> None:
    picture = ET.fromstring(svg.draw(plan))
    found = [
        tuple(float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        for rect in picture.iter(f"{SVG}rect")
        if rect.get("class") == "box"
    ]
    for path in picture.iter(f"{SVG}path"):
        if "C" not in path.get("d", ""):
            continue
        numbers = [float(number) for number in re.findall(r"-?\d+\.?\d*", path.attrib["d"])]
        ends = [(numbers[0], numbers[1]), *zip(numbers[6::6], numbers[7::6], strict=True)]
        for (one_x, one_y), (other_x, other_y) in pairwise(ends):
            left, right = min(one_x, other_x), max(one_x, other_x)
            for x, y, wide, high in found:
                apart = right <= x or x + wide <= left or other_y <= y or y + high <= one_y
                assert apart, "a piece of the line and a box share space"
