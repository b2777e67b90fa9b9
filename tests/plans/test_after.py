"""Decide from the ends of its dependencies whether a job may run, and read the priority of a prompt."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.plans.after import Dependencies, DependencyState, dependencies, judge
from farro.plans.metadata import PRIORITIES, head_start_ns, priority

ENDS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(DependencyState), min_size=4)
NAMES = st.lists(st.sampled_from("abcd"), unique=True).map(tuple)
JUNK = st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3))


def test_only_ids_are_taken_from_a_prompt() -> None:
    prompt = {"metadata": {"after": ["a", 5, "../x", "a", "b"], "after_any": "c"}}
    assert dependencies(prompt) == Dependencies(after=("a", "b"))
    assert dependencies([]).all == dependencies({}).all == dependencies({"metadata": None}).all == ()


@given(JUNK, JUNK, JUNK)
def test_any_prompt_is_read_without_an_error(after: Any, after_any: Any, urgency: Any) -> None:
    prompt = {"metadata": {"after": after, "after_any": after_any, "priority": urgency}}
    assert all(isinstance(name, str) for name in dependencies(prompt).all)
    assert priority(prompt) in PRIORITIES


@given(ENDS, NAMES, NAMES, st.booleans())
def test_a_job_is_ready_hopeless_or_waits(
    ends: dict[str, DependencyState], after: tuple[str, ...], after_any: tuple[str, ...], gone_is_over: bool
) -> None:
    named = Dependencies(after=after, after_any=after_any)
    told = judge(named, lambda name: ends.get(name, DependencyState.OPEN), gone_is_over=gone_is_over)
    bad = {DependencyState.FAILED, DependencyState.GONE} if gone_is_over else {DependencyState.FAILED}
    over = bad | {DependencyState.SUCCEEDED}
    hopeless = any(ends.get(name) in bad for name in after)
    assert bool(told.hopeless) is hopeless
    ready = all(ends.get(name) is DependencyState.SUCCEEDED for name in after) and all(
        ends.get(name) in over for name in after_any
    )
    assert told.ready is (ready and not hopeless)


def test_priorities_are_in_order_and_p2_is_none() -> None:
    starts = [head_start_ns({"metadata": {"priority": name}}) for name in PRIORITIES]
    assert starts == sorted(starts, reverse=True)
    assert len(set(starts)) == 4
    assert head_start_ns({}) == head_start_ns(None) == starts[2] == 0


@pytest.mark.parametrize("junk", ["P9", "p0", "", 0, None, ["P0"], {"P0": 1}])
def test_an_invalid_priority_counts_as_none(junk: object) -> None:
    assert priority({"metadata": {"priority": junk}}) == "P2"
