"""What happens on the stage, told as it happens: who works, what they said, what the manager decided, what it cost.

Told from the job's own folder, as everybody may read it; drawing it lives in cli.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from farro.errors import FarroError
from farro.host import fs
from farro.host.clock_port import Clock
from farro.jobs.envelope import Hop, Lifecycle
from farro.jobs.states import Reason, Status
from farro.lazy_dataclass import dataclass
from farro.roles.workflow import MANAGER
from farro.store.port import JobView, Store

PATIENCE_S = 180.0
_LOOK_S = 0.25  # for changes; the feed wakes sooner
_MEND_S = 1.0
_LIMIT = 4 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoEvent:
    """One thing that happened, `at_s` seconds after the beginning."""

    at_s: float
    role: str
    what: str  # works, said, decided, lost, ended
    text: str
    attempt: int
    usd: Decimal | None = None  # what that attempt's calls cost


@dataclass
class JobObserver:
    """Tells what is new about one job. One look after the other; nothing is told twice."""

    store: Store
    root: str
    job_id: str
    clock: Clock

    def __post_init__(self) -> None:
        self._began_s = self.clock.monotonic_s()
        self._hops = 0
        self._working = 0  # the highest attempt whose beginning was told

    def news(self) -> tuple[list[DemoEvent], Lifecycle | None]:
        """What happened since the last look, and how the job stands; None: it moved while it was looked at."""
        view = self.store.find(self.job_id)
        if view is None:
            return [], None
        life = view.lifecycle
        told: list[DemoEvent] = []
        for hop in life.hops[self._hops :]:
            event = self._of_hop(view, hop)
            if event is None:  # its files moved on: again, with the next look
                return told, None
            if hop.role != MANAGER and hop.attempt > self._working:
                told.append(self._works(hop.role, hop.attempt))
            self._hops += 1
            told.append(event)
        # A job that was just claimed says for a moment what its last attempt was: that one is over.
        over = max(self._working, life.hops[-1].attempt if life.hops else 0)
        if life.status is Status.IN_PROGRESS and life.role != MANAGER and life.attempt > over:
            told.append(self._works(life.role, life.attempt))
        return told, life

    def _works(self, role: str, attempt: int) -> DemoEvent:
        self._working = attempt
        return self._event(role, "works", "works", attempt)

    def _of_hop(self, view: JobView, hop: Hop) -> DemoEvent | None:
        if hop.reason is Reason.AGENT_DIED:
            return self._event(hop.role, "lost", "its worker died; the job is recovered", hop.attempt)
        if hop.role == MANAGER or hop.reason is not Reason.ROUTED:
            what = "ended" if hop.reason is Reason.COMMITTED else "decided"
            return self._event(hop.by.split(".")[0].capitalize(), what, first_line(hop), hop.attempt)
        result = _result(self.store.folder(view), hop.attempt)
        if result is None:
            return None
        agent = result.get("agent") or {}
        return self._event(hop.role, "said", words(agent.get("answer") or {}), hop.attempt, cost(agent, hop.attempt))

    def _event(self, role: str, what: str, text: str, attempt: int, usd: Decimal | None = None) -> DemoEvent:
        at_s = self.clock.monotonic_s() - self._began_s
        return DemoEvent(at_s=at_s, role=role, what=what, text=text, attempt=attempt, usd=usd)


def events(hand: JobObserver, *, mend: Callable[[], list[str]], patience_s: float = PATIENCE_S) -> Iterator[DemoEvent]:
    """Until the job has ended. `mend` starts again what died meanwhile, and answers its names: a worker that is killed
    in the middle is a part of the play."""
    clock, store = hand.clock, hand.store
    cursor = store.changes(None).cursor
    until_s = clock.monotonic_s() + patience_s
    mended_s = clock.monotonic_s()
    while clock.monotonic_s() < until_s:
        told, life = hand.news()
        yield from told
        if life is not None and life.terminal:
            return
        if clock.monotonic_s() - mended_s >= _MEND_S:
            mended_s = clock.monotonic_s()
            for name in mend():
                yield hand._event(name, "lost", "died, and was started again", 0)
        cursor = store.changes(cursor, timeout_s=_LOOK_S).cursor
    raise FarroError(
        f"the demo's task has not ended in {patience_s:g} s; this machine may be very busy. Run it again with --keep, "
        f"and ask `farro explain {hand.job_id}`"
    )


def first_line(hop: Hop) -> str:
    """Why, in short: the findings of a review stand below it, and are the reviewer's own words."""
    return (hop.note or str(hop.reason)).splitlines()[0].rstrip(":")


def words(answer: Mapping[str, Any]) -> str:
    """The short of a role's answer."""
    if isinstance(answer.get("verdict"), str):
        found = [
            f"{one.get('path')}:{one.get('line')}: {one.get('message')}" for one in answer.get("findings") or () if one
        ]
        return "; ".join(
            [answer["verdict"].replace("_", " "), *found, *([answer["summary"]] if answer.get("summary") else [])]
        )
    told = [answer.get(name) for name in ("analysis", "summary", "tests", "text")]
    documents = [str(one.get("path")) for one in answer.get("documents") or ()]
    return " ".join(str(text) for text in [*told, *documents] if text)


def cost(agent: Mapping[str, Any], attempt: int) -> Decimal | None:
    """Of that attempt's own calls."""
    try:
        amounts = [
            Decimal(str(call["cost_usd"])) for call in agent.get("calls") or () if call.get("attempt") == attempt
        ]
    except (KeyError, InvalidOperation):
        return None
    return sum(amounts, Decimal(0)) if amounts else None


def _result(folder: str, attempt: int) -> dict[str, Any] | None:
    try:
        told = json.loads(fs.read_bytes(f"{folder}/attempts/{attempt:04d}/result.json", _LIMIT))
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def files(root: str, view: JobView) -> list[tuple[str, str]]:
    """What a person may want to open, and what it is; relative to the root."""
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
