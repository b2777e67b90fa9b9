"""When a component that ended is started again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.swarm.lifecycle import ComponentState, Observation, aggregate
from farro.worker import restarts
from farro.worker.restarts import RESTARTS, Policy, decide

CODES = st.one_of(st.none(), st.integers(-31, 255))


@pytest.mark.parametrize(
    ("policy", "code", "what"),
    [
        ("never", 3, "failed"),
        ("never", 0, "finished"),
        ("never", None, "failed"),
        ("on-failure", 0, "finished"),
        ("on-failure", 3, "launch"),
        ("on-failure", -9, "launch"),
        ("on-failure", None, "launch"),  # its end was not observed: restarted to be safe
        ("always", 0, "launch"),
        ("always", 3, "launch"),
    ],
)
def test_the_restart_policy_decides(policy: Policy, code: int | None, what: str) -> None:
    assert decide(policy, starts=1, exit_code=code, ended_s=5.0, now_s=5.0).what == what


def test_pauses_grow_until_a_component_counts_as_failed() -> None:
    assert [restarts.pause_s(starts) for starts in (1, 2, 3, 4, 5)] == [0, 1, 2, 4, 8]
    assert restarts.pause_s(1000) == restarts.LONGEST_S
    for starts in range(1, RESTARTS + 1):
        due = 100 + restarts.pause_s(starts)
        assert decide("always", starts=starts, exit_code=1, ended_s=100, now_s=due).what == "launch"
        if starts > 1:
            assert decide("always", starts=starts, exit_code=1, ended_s=100, now_s=due - 0.01).what == "wait"
    over = decide("on-failure", starts=RESTARTS + 1, exit_code=-11, ended_s=0, now_s=1e9)
    assert (over.what, over.why) == ("failed", "ended by signal 11, and was started 6 times in a row")


@given(st.sampled_from(["always", "on-failure"]), st.integers(1, RESTARTS), CODES, st.floats(0, 1e6))
def test_a_waiting_component_is_launched_when_its_pause_is_over(
    policy: Policy, starts: int, code: int | None, ended_s: float
) -> None:
    soon = decide(policy, starts=starts, exit_code=code, ended_s=ended_s, now_s=ended_s)
    late = decide(policy, starts=starts, exit_code=code, ended_s=ended_s, now_s=ended_s + restarts.LONGEST_S + 1)
    assert soon.what in ("launch", "wait", "finished")
    assert late.what == ("finished" if soon.what == "finished" else "launch")


def test_a_finished_component_is_stopped_and_the_swarm_healthy() -> None:
    well = Observation(launched=True, alive=True, reported_s=9.0, healthy=True, enabled=True)
    done = Observation(
        launched=True, alive=False, exit_code=0, finished="ended with exit code 0, and restarts on failure only"
    )
    assert done.state() is ComponentState.STOPPED
    assert aggregate(["a", "b"], {"a": well, "b": done}, 10.0).health == "Healthy"
