"""Explain why a job is not running: each set of facts has one finding and a command that helps."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.jobs.explain_rules import Dependency, Facts, SlotFact, diagnose
from farro.jobs.states import Status
from farro.jobs.times import in_words

NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
QUEUED = Facts(job_id="j", status=Status.QUEUED, role="Runner", now=NOW)
RUNNING = replace(QUEUED, status=Status.IN_PROGRESS, agent="w.0.aa", agent_alive=True, attempt=1, since_s=75.0)
FREE = SlotFact(agent="w.0.aa", alive=True, busy=False)
BUSY = SlotFact(agent="w.1.bb", alive=True, busy=True)
DEAD = SlotFact(agent="w.2.cc", alive=False, busy=True)
WORKER = "farro worker --role Runner"
GPU = replace(BUSY, tags=frozenset({"gpu"}))

CASES = [
    # facts, reason, part of the message, the fix
    (
        replace(QUEUED, status=Status.SUCCEEDED, terminal=True),
        "finished",
        "succeeded, and that is final",
        "farro show j",
    ),
    (
        replace(QUEUED, status=Status.FAILED, terminal=True, error="step_failed: exit code 3"),
        "finished",
        "failed, and that is final: step_failed: exit code 3; `farro logs j` has what it said",
        "farro retry j",
    ),
    (
        replace(QUEUED, status=Status.KILLED, terminal=True, error="killed: killed by an operator"),
        "finished",
        "killed, and that is final: killed: killed by an operator",
        "farro show j",
    ),
    (
        replace(QUEUED, status=Status.FAILED),
        "failed_not_final",
        "has not made this final yet",
        "farro requeue j",
    ),
    (replace(QUEUED, waits=True, question="Ship it?\nReally?"), "human", "a person: Ship it?", "farro approve j"),
    (
        replace(QUEUED, status=Status.STALE, place="agents/Runner/in-progress/w.0.aa", error="manager_away: gone"),
        "unroutable",
        "no manager took it (manager_away: gone)",
        "farro watchdog --once && farro manager --once",
    ),
    (replace(QUEUED, quarantined="two of that id", place="jobs/quarantine"), "quarantined", "two of", "farro show j"),
    (replace(QUEUED, foreign="'9'"), "unknown_schema", "'9'", "python3 -m pip install --upgrade farro"),
    (replace(QUEUED, foreign=""), "unknown_schema", "has no schema_version", '"${EDITOR:-vi}" job.json'),
    (replace(QUEUED, contradicting="succeeded"), "contradictory", "says succeeded, and its place", "farro kill j"),
    (
        replace(QUEUED, contradicting="queued", status=Status.SUCCEEDED),
        "contradictory",
        "says queued, and its place",
        "farro doctor",
    ),
    (
        replace(RUNNING, step="build"),
        "running",
        "for 1m15s in step build: attempt 1 by w.0.aa",
        "farro logs j --follow",
    ),
    (
        replace(RUNNING, agent_alive=False),
        "agent_dead",
        "w.0.aa died in attempt 1",
        "farro watchdog --once && farro manager --once",
    ),
    (replace(RUNNING, agent_alive=None), "in_hand", "moved or edited", "farro watchdog --once"),
    (replace(QUEUED, status=Status.STALE), "stale", "no manager runs", "farro manager --once"),
    (
        replace(QUEUED, status=Status.STALE, manager_silent_s=90.0),
        "stale",
        "the manager has been away for 1m30s",
        "farro manager --once",
    ),
    (replace(QUEUED, status=Status.STALE, manager_silent_s=3.0), "stale", "within seconds", None),
    (replace(QUEUED, not_before=NOW + timedelta(hours=2)), "delayed", "it starts in 2h", None),
    (replace(QUEUED, not_before=NOW - timedelta(hours=2), workers=(FREE,)), "next", "in a moment", None),
    (replace(QUEUED, damaged="no job.json"), "damaged", "no job.json", "farro show j"),
    (
        replace(QUEUED, role="Manager"),
        "for_manager",
        "the manager's queue, and no manager runs",
        "farro manager --once",
    ),
    (QUEUED, "no_worker", "no worker of role Runner runs", "farro worker --role Runner"),
    (replace(QUEUED, workers=(DEAD,)), "no_worker", "are dead", "farro worker --role Runner"),
    (
        replace(QUEUED, tags=frozenset({"gpu", "big"}), workers=(FREE, GPU)),
        "tags",
        "no worker offers big",
        "farro worker --role Runner --tag big --tag gpu",
    ),
    (
        replace(QUEUED, tags=frozenset({"gpu", "big"}), workers=(replace(FREE, tags=frozenset({"big"})), GPU)),
        "tags",
        "no single worker offers them all",
        "farro worker --role Runner --tag big --tag gpu",
    ),
    (
        replace(QUEUED, tags=frozenset({"gpu"}), workers=(FREE, GPU)),
        "workers_busy",
        "the one slot",
        f"{WORKER} --tag gpu",
    ),
    (replace(QUEUED, workers=(BUSY, DEAD), before=1), "workers_busy", "busy, and 1 job is before it", WORKER),
    (replace(QUEUED, workers=(BUSY, BUSY), before=7), "workers_busy", "all 2 slots that may take it are busy", WORKER),
    (replace(QUEUED, workers=(FREE,), lock="w.9.dd"), "dead_lock", "which is dead", "farro watchdog --once"),
    (replace(QUEUED, workers=(FREE,), lock="w.0.aa", lock_alive=True), "locked", "about to claim it", None),
    (
        replace(QUEUED, waits=True, after=(Dependency(job_id="a", status=Status.QUEUED),)),
        "dependency",
        "it waits for a to succeed (queued)",
        "farro explain a",
    ),
    (
        replace(QUEUED, waits=True, after=(Dependency(job_id="a", status=Status.KILLED, terminal=True),)),
        "dependency",
        "a to succeed (killed, so it never will)",
        "farro kill j",
    ),
    (
        replace(QUEUED, waits=True, after=(Dependency(job_id="a", status=None),)),
        "dependency",
        "a to succeed (no such job, so it never will)",
        "farro kill j",
    ),
    (
        replace(QUEUED, waits=True, after_any=(Dependency(job_id="b", status=Status.IN_PROGRESS),)),
        "dependency",
        "it waits for b to end (in_progress)",
        "farro explain b",
    ),
    (
        replace(QUEUED, waits=True, after=(Dependency(job_id="a", status=Status.SUCCEEDED, terminal=True),)),
        "waiting",
        "the jobs it waited for have ended",
        "farro watchdog --once",
    ),
    (replace(QUEUED, waits=True), "waiting", "the manager, or for a person", "farro manager --once"),
]


@pytest.mark.parametrize(("facts", "reason", "message", "fix"), CASES, ids=[f"{case[1]}: {case[2]}" for case in CASES])
def test_each_set_of_facts_has_its_finding(facts: Facts, reason: str, message: str, fix: str | None) -> None:
    told = diagnose(facts)
    assert told.reason == reason
    assert message in told.message
    assert told.fix == fix


@given(
    st.builds(
        Facts,
        job_id=st.just("j"),
        status=st.sampled_from(Status),
        role=st.sampled_from(["Runner", "Manager"]),
        now=st.just(NOW),
        terminal=st.booleans(),
        agent_alive=st.sampled_from([None, True, False]),
        not_before=st.sampled_from([None, NOW, NOW + timedelta(days=1)]),
        waits=st.booleans(),
        after=st.lists(
            st.builds(
                Dependency,
                job_id=st.just("a"),
                status=st.sampled_from([None, *Status]),
                terminal=st.booleans(),
            ),
            max_size=2,
        ).map(tuple),
        workers=st.lists(st.sampled_from([FREE, BUSY, DEAD, GPU]), max_size=3).map(tuple),
        tags=st.sampled_from([frozenset(), frozenset({"gpu"})]),
        lock=st.sampled_from([None, "w.0.aa"]),
    )
)
def test_every_combination_of_facts_has_a_finding(facts: Facts) -> None:
    assert diagnose(facts).message


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.9, "59s"), (60, "1m"), (90, "1m30s"), (7200, "2h"), (90061, "1d1h"), (-5, "0s")],
)
def test_a_duration_is_said_in_two_units(seconds: float, text: str) -> None:
    assert in_words(seconds) == text
