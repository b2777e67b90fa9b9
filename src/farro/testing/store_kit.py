"""What the Store suites ask of the store under test: a StoreKit, and the jobs that they submit to it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from farro.host.clock import ManualClock
from farro.jobs.outcomes import Report
from farro.jobs.retry import RetryPolicy
from farro.log.audit import Audit, Value
from farro.store.port import Agent, Claim, Store, StorePolicy, Submission

ROLES = ("Manager", "Runner", "CodeReviewer")
START = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)  # the time of the kit's clock when a test begins
RETRY = RetryPolicy()
POLICY = StorePolicy(retry=RETRY)


class StoreKit(Protocol):
    """A store under test with ROLES and POLICY, its clock, and the events that a test can cause.

    A "process" is one store object. Its uniform random numbers are the lowest possible (`lowest`), so that delays are
    known.
    """

    name: str
    clock: ManualClock  # starts at START; the store has no other
    store: Store
    logged: list[tuple[str, str, Mapping[str, Any]]]  # level, message, fields of every line of the log
    audited: list[dict[str, Any]]  # every event that the store audited (`kept_in`)

    def process(self) -> Store:
        """Open another process on the same jobs."""

    def die(self, agent: Agent, store: Store | None = None) -> None:
        """Kill the agent: drop its lease, clean up nothing."""

    def snapshot(self) -> object:
        """Capture everything that a refused call must leave unchanged."""

    def close(self) -> None: ...


def lowest(low: float, high: float) -> float:
    return low


def kept_in(events: list[dict[str, Any]]) -> Audit:
    """Return an audit log that appends to the list."""

    def audit(event: str, *, actor: str | None = None, **codes: Value) -> None:
        told = {"event": event, "actor": actor, **codes}
        events.append({name: value for name, value in told.items() if value is not None})

    return audit


def plan(number: int = 0, **more: Any) -> dict[str, Any]:
    return {"plan_id": f"p{number}", "steps": [{"step_number": 1, "tool": "unix", "command": "true"}], **more}


def submission(number: int = 0, *, role: str = "Runner", job_id: str | None = None, **more: Any) -> Submission:
    return Submission(role=role, prompt=plan(number, **more), job_id=job_id)


def report(claim: Claim, text: str = "done") -> Report:
    """A result that names its attempt, so that a check can tell whose result was accepted."""
    return Report(
        result={"job_id": claim.job_id, "attempt": claim.attempt, "agent": claim.agent.id, "success": True},
        markdown=f"{text} by {claim.agent.id} in attempt {claim.attempt}\n",
    )
