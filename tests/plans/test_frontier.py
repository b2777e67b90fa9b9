"""Which step may start next: property tests against the plain definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farro.plans.frontier import Frontier
from farro.plans.graph import order
from farro.plans.loading import load_data
from farro.plans.model import Plan


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(1, 12))
    names = draw(st.permutations([f"s{place}" for place in range(count)]))
    steps = [
        {
            "id": name,
            "command": "true",
            "needs": draw(st.lists(st.sampled_from(names[:place]), unique=True, max_size=3)) if place else [],
        }
        for place, name in enumerate(names)
    ]
    return load_data({"steps": draw(st.permutations(steps))}, "test")


@given(plans())
def test_steps_taken_one_at_a_time_follow_the_order_of_the_graph(plan: Plan) -> None:
    frontier, taken = Frontier(plan.steps), []
    while (step := frontier.take()) is not None:
        taken.append(step)
        frontier.succeeded(step.id)
    assert tuple(taken) == order(plan)
    assert frontier.waiting == 0


@given(plans(), st.data())
def test_a_step_is_ready_exactly_when_all_that_it_needs_succeeded(plan: Plan, data: st.DataObject) -> None:
    own = data.draw(st.integers(0, len(plan.steps)))
    first = {step.id for step in plan.steps[:own]}
    known = [step for step in plan.steps[:own] if first.issuperset(step.depends_on)]
    later = [step for step in plan.steps if step not in known]
    frontier = Frontier(known)
    running: list[str] = []
    over: set[str] = set()
    frontier.add(later)
    while True:
        while (step := frontier.take()) is not None:
            assert over.issuperset(step.depends_on)
            running.append(step.id)
        ready = {step.id for step in plan.steps if over.issuperset(step.depends_on)}
        assert ready == over | set(running)
        if not running:
            break
        ended = running.pop(data.draw(st.integers(0, len(running) - 1)))
        over.add(ended)
        frontier.succeeded(ended)
    assert len(over) == len(plan.steps)


@given(plans(), st.data())
def test_skipped_steps_are_never_taken(plan: Plan, data: st.DataObject) -> None:
    ordered = order(plan)
    skipped = [step.id for step in ordered[: data.draw(st.integers(0, len(ordered)))]]
    frontier = Frontier(plan.steps)
    for name in skipped:
        frontier.skip(name)
    taken = []
    while (step := frontier.take()) is not None:
        taken.append(step.id)
        frontier.succeeded(step.id)
    assert [*skipped, *taken] == [step.id for step in ordered]
    assert frontier.waiting == 0
