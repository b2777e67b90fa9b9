"""Find jobs that have run for too long: SPEC-1's `abandon_after`, counted from the first claim.

Time in which a job waited for a person, for room (auto-plan) or for its start time does not count. Command plans are
exempt: their steps have their own timeouts, and a build may take a day.
"""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

from farro.host.clock import Clock
from farro.jobs.diagnosis import in_words
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import waits_for_person
from farro.jobs.states import Status
from farro.jobs.times import parse_timestamp
from farro.lazy_dataclass import dataclass
from farro.roles.names import RUNNER
from farro.roles.workflow import RouteCode
from farro.store.port import Store

_WAITS = frozenset({RouteCode.HUMAN, RouteCode.PAUSED})
LOOK_S = 30.0
OPEN = (Status.QUEUED, Status.IN_PROGRESS, Status.STALE)


def age_s(life: Lifecycle, now: datetime) -> float | None:
    """Return how long the job has been worked on; None if its time does not count now."""
    if life.routing is None or life.first_claimed_at is None or waits_for_person(life):
        return None
    if life.not_before is not None and parse_timestamp(life.not_before) > now:
        return None
    waited_s = 0.0
    for hop, following in pairwise(life.hops):
        if (hop.route or {}).get("code") in _WAITS:
            waited_s += (parse_timestamp(following.at) - parse_timestamp(hop.at)).total_seconds()
    return (now - parse_timestamp(life.first_claimed_at)).total_seconds() - waited_s


@dataclass(kw_only=True)
class AbandonedJobs:
    """Finds jobs to abandon, at most every LOOK_S seconds."""

    clock: Clock
    after_s: float
    _looked_s: float = float("-inf")

    def turn(self, store: Store) -> list[tuple[str, str]]:
        """Return the jobs to abandon, each with the reason."""
        now_s = self.clock.monotonic_s()
        if now_s - self._looked_s < LOOK_S:
            return []
        self._looked_s = now_s
        roles = [role for role in store.roles() if role != RUNNER]
        found = []
        for view in store.list(roles=roles, statuses=OPEN):
            age = age_s(view.lifecycle, self.clock.now())
            if age is not None and age >= self.after_s:
                longest = f"watchdog.abandon_after_s, {in_words(self.after_s)}"
                found.append((view.job_id, f"abandoned: it has run for {in_words(age)}, longer than {longest}"))
        return found
