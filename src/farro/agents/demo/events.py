"""Report what happens to the demo's job as it happens: which role works, its answer, the manager's decision, the cost.

Everything is read from the job's own folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from farro.errors import FarroError
from farro.host import fs
from farro.host.clock import Clock
from farro.jobs.envelope import Hop, Lifecycle
from farro.jobs.states import Reason, Status
from farro.lazy_dataclass import dataclass
from farro.roles.workflow import MANAGER
from farro.store.port import JobView, Store

PATIENCE_S = 180.0
_LOOK_S = 0.25  # the longest wait for changes; the feed wakes sooner
_RESTART_S = 1.0
_LIMIT = 4 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoEvent:
    """One event, `at_s` seconds after the start."""

    at_s: float
    role: str
    what: str  # works, said, decided, lost, ended
    text: str
    attempt: int
    usd: Decimal | None = None  # cost of that attempt's calls


@dataclass
class JobObserver:
    """Finds what is new about one job. No event is reported twice."""

    store: Store
    job_id: str
    clock: Clock

    def __post_init__(self) -> None:
        self._began_s = self.clock.monotonic_s()
        self._hops = 0
        self._working = 0  # the highest attempt whose start was reported

    def news(self) -> tuple[list[DemoEvent], Lifecycle | None]:
        """Return the events since the last call, and the job's lifecycle; None if the job moved meanwhile."""
        view = self.store.find(self.job_id)
        if view is None:
            return [], None
        life = view.lifecycle
        news: list[DemoEvent] = []
        for hop in life.hops[self._hops :]:
            event = self._of_hop(view, hop)
            if event is None:  # its files moved: try again with the next call
                return news, None
            if hop.role != MANAGER and hop.attempt > self._working:
                news.append(self._works(hop.role, hop.attempt))
            self._hops += 1
            news.append(event)
        # For a moment a claimed job still shows its last attempt, which is over.
        over = max(self._working, life.hops[-1].attempt if life.hops else 0)
        if life.status is Status.IN_PROGRESS and life.role != MANAGER and life.attempt > over:
            news.append(self._works(life.role, life.attempt))
        return news, life

    def _works(self, role: str, attempt: int) -> DemoEvent:
        self._working = attempt
        return self.event(role, "works", "works", attempt)

    def _of_hop(self, view: JobView, hop: Hop) -> DemoEvent | None:
        if hop.reason is Reason.AGENT_DIED:
            return self.event(hop.role, "lost", "its worker died; the job is recovered", hop.attempt)
        if hop.role == MANAGER or hop.reason is not Reason.ROUTED:
            what = "ended" if hop.reason is Reason.COMMITTED else "decided"
            return self.event(hop.by.split(".")[0].capitalize(), what, first_line(hop), hop.attempt)
        result = _result(self.store.folder(view), hop.attempt)
        if result is None:
            return None
        agent = result.get("agent") or {}
        return self.event(hop.role, "said", summary(agent.get("answer") or {}), hop.attempt, cost(agent, hop.attempt))

    def event(self, role: str, what: str, text: str, attempt: int, usd: Decimal | None = None) -> DemoEvent:
        at_s = self.clock.monotonic_s() - self._began_s
        return DemoEvent(at_s=at_s, role=role, what=what, text=text, attempt=attempt, usd=usd)


def follow(
    observer: JobObserver, *, restarted: Callable[[], list[str]], patience_s: float = PATIENCE_S
) -> Iterator[DemoEvent]:
    """Yield events until the job has ended.

    `restarted` returns the services that died meanwhile and were restarted: killing a worker is part of the demo.
    """
    clock, store = observer.clock, observer.store
    cursor = store.changes(None).cursor
    until_s = clock.monotonic_s() + patience_s
    checked_s = clock.monotonic_s()
    while clock.monotonic_s() < until_s:
        news, life = observer.news()
        yield from news
        if life is not None and life.terminal:
            return
        if clock.monotonic_s() - checked_s >= _RESTART_S:
            checked_s = clock.monotonic_s()
            for name in restarted():
                yield observer.event(name, "lost", "died, and was started again", 0)
        cursor = store.changes(cursor, timeout_s=_LOOK_S).cursor
    raise FarroError(
        f"the demo's task has not ended in {patience_s:g} s; this machine may be very busy. Run it again with --keep, "
        f"and ask `farro explain {observer.job_id}`"
    )


def first_line(hop: Hop) -> str:
    """Return why the job moved, without the findings of a review that follow."""
    return (hop.note or str(hop.reason)).splitlines()[0].rstrip(":")


def summary(answer: Mapping[str, Any]) -> str:
    """Summarise a role's answer."""
    if isinstance(answer.get("verdict"), str):
        found = [
            f"{one.get('path')}:{one.get('line')}: {one.get('message')}" for one in answer.get("findings") or () if one
        ]
        return "; ".join(
            [answer["verdict"].replace("_", " "), *found, *([answer["summary"]] if answer.get("summary") else [])]
        )
    texts = [answer.get(name) for name in ("analysis", "summary", "tests", "text")]
    documents = [str(one.get("path")) for one in answer.get("documents") or ()]
    return " ".join(str(text) for text in [*texts, *documents] if text)


def cost(agent: Mapping[str, Any], attempt: int) -> Decimal | None:
    """Sum the costs of that attempt's own calls."""
    try:
        amounts = [
            Decimal(str(call["cost_usd"])) for call in agent.get("calls") or () if call.get("attempt") == attempt
        ]
    except (KeyError, InvalidOperation):
        return None
    return sum(amounts, Decimal(0)) if amounts else None


def _result(folder: str, attempt: int) -> dict[str, Any] | None:
    try:
        result = json.loads(fs.read_bytes(f"{folder}/attempts/{attempt:04d}/result.json", _LIMIT))
    except (OSError, ValueError):
        return None
    return result if isinstance(result, dict) else None


def files(root: str, view: JobView) -> list[tuple[str, str]]:
    """List files that a person may want to open, relative to the root, each with a description."""
    job = f"{view.place}/{view.lifecycle.job_id}"
    worked = [hop for hop in view.lifecycle.hops if hop.reason is Reason.ROUTED and hop.role != MANAGER]
    found = [
        ("tasks/discount.json", "the task: roles in order, each with its rubric"),
        ("agents-config.json", "who answers for which role"),
        ("programs/agents.py", "the four programs"),
        (f"{job}/job.json", "the job: status, hops, every decision"),
        *((f"{job}/attempts/{hop.attempt:04d}/result.md", f"what {hop.role} answered") for hop in worked),
        (f"{job}/.snapshot/", "config, policies and task, as they were at the claim"),
        ("logs/audit.log", "every transition, a line each"),
    ]
    return [(path, what) for path, what in found if os.path.exists(f"{root}/{path}")]
