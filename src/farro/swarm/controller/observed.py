"""Observe the components of a controller, and detect those that live and hang.

- They are observed by the runtime, their status messages, and health polls.
- Silence counts only while the controller observed (docs/decisions/silence-counts-only-while-observed.md).
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Iterable
from datetime import datetime

from farro.jobs.times import parse_timestamp
from farro.lazy_dataclass import replace
from farro.swarm.lifecycle import TTL_S, ComponentState, Observation
from farro.swarm.plan import Bee, Timeouts
from farro.swarm.wire import messages
from farro.worker.process_runtime import last_words
from farro.worker.restarts import STEADY_S, describe_exit
from farro.worker.runtime import ProcessView, Runtime

POLL_TIMEOUT_S = 3.0
REMEMBERED = 10_000  # results of config updates
LATE_S = 120.0  # a dead process's messages may arrive this late
_ANSWER_LIMIT = 64 << 10


class ComponentObserver:
    """Invariant: `seen` has an entry for every component that was launched here and not deprovisioned since."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.seen: dict[str, Observation] = {}
        self.reports: dict[str, messages.StatusReport] = {}  # the last status message of each
        self.updates: OrderedDict[str, messages.StatusReport] = OrderedDict()  # correlation id → who reported its end
        self._urls: dict[str, str] = {}
        self._launched_at: dict[str, datetime] = {}
        self._polling: set[str] = set()

    def of(self, instance: str) -> Observation:
        return self.seen.get(instance, Observation())

    def put(self, instance: str, seen: Observation) -> None:
        self.seen[instance] = seen

    def forget(self, instance: str) -> None:
        """Drop everything about a component that was ended."""
        for known in (self.seen, self.reports, self._urls, self._launched_at):
            known.pop(instance, None)

    def launching(self, instance: str, at: str) -> None:
        """Note a new process: messages of the one before it, which may still arrive, do not count.
        [test_the_last_status_of_a_dead_process_does_not_count_for_the_next]"""
        self._launched_at[instance] = parse_timestamp(at)
        self.reports.pop(instance, None)
        self._urls.pop(instance, None)

    def _is_of_earlier_process(self, status: messages.StatusReport) -> bool:
        """Return whether a status is older than its process. A difference of hours is a clock that was set."""
        launched = self._launched_at.get(status.instance)
        return launched is not None and 0 < (launched - parse_timestamp(status.timestamp)).total_seconds() < LATE_S

    def look(self, instances: Iterable[str], now_s: float) -> None:
        """Update the observations from the runtime. Components that an earlier controller launched are adopted."""
        for name in instances:
            found, known = self._runtime.look(name), self.of(name)
            if found is None:
                if known.launched:
                    self.put(name, replace(known, launched=False, alive=False, healthy=None, enabled=None))
            elif not (known.launched and known.alive and found.alive and known.starts):  # else nothing is new
                began = known.launched_s if known.launched_s is not None else now_s
                starts = max(1, known.starts)
                seen = replace(known, launched=True, alive=found.alive, launched_s=began, starts=starts)
                seen = replace(seen, launches=found.launches)
                if found.alive:
                    seen = replace(seen, ended_s=None, exit_code=None)
                else:
                    seen = self._dead(seen, known, found, now_s)
                self.put(name, seen)

    @staticmethod
    def _dead(seen: Observation, known: Observation, found: ProcessView, now_s: float) -> Observation:
        ended_s = now_s if known.ended_s is None else known.ended_s
        seen = replace(seen, healthy=None, enabled=None, switching=False, reported_s=None)
        seen = replace(seen, ended_s=ended_s, exit_code=found.exit_code)
        log = known.end_log if known.ended_s is not None else last_words(found)
        how = describe_exit(found.exit_code) if known.hung is None else f"by force: it {known.hung}"
        how = known.end if known.end is not None and known.ended_s is not None else how  # noted at an earlier look
        return replace(seen, end=how, end_s=ended_s, end_log=log, hung=None)

    def hear(self, status: messages.StatusReport, now_s: float) -> bool:
        """Take a status message, which counts as a heartbeat. Return whether it says anything new."""
        if self._is_of_earlier_process(status):
            return False
        known = self.of(status.instance)
        before = self.reports.get(status.instance)
        self.reports[status.instance] = status
        self._hear_update(status)
        url = status.data.get("healthUrl")
        if isinstance(url, str) and url.startswith("http://"):
            self._urls[status.instance] = url
        if not known.launched:
            return False
        healthy = status.data.get("health", "UP") == "UP"
        switching = status.state in (ComponentState.STARTING, ComponentState.STOPPING)
        steady = known.launched_s is not None and now_s - known.launched_s > STEADY_S
        self.put(
            status.instance,
            replace(
                known,
                reported_s=now_s,
                healthy=healthy,
                enabled=status.enabled,
                switching=switching,
                asked_s=None if known.asked_s is not None and status.enabled != known.enabled else known.asked_s,
                alive=True,
                starts=1 if steady else known.starts,
                hung=None,
            ),
        )
        was = (known.alive, known.healthy, known.enabled, known.switching)
        new = was != (True, healthy, status.enabled, switching) or known.reported_s is None
        return new or before is None or before.data.get("update") != status.data.get("update")

    def _hear_update(self, status: messages.StatusReport) -> None:
        """Remember the reported result of a config update. The next report may be about the next update."""
        update = status.data.get("update")
        if isinstance(update, dict) and isinstance(correlation_id := update.get("correlationId"), str):
            self.updates[correlation_id] = status
            if len(self.updates) > REMEMBERED:
                self.updates.popitem(last=False)

    async def poll(self, instance: str, now_s: float) -> None:
        """Ask a component's health endpoint, unless its URL is unknown or a poll is under way."""
        url = self._urls.get(instance)
        if url is None or instance in self._polling:
            return
        self._polling.add(instance)
        try:
            up, enabled = await asyncio.to_thread(_poll, url, instance)
        finally:
            self._polling.discard(instance)
        known = self.of(instance)
        if up is not None and known.launched:
            enabled = known.enabled if enabled is None else enabled
            self.put(instance, replace(known, reported_s=now_s, healthy=up, enabled=enabled))


def _poll(url: str, instance: str) -> tuple[bool | None, bool | None]:
    """Return whether a component is up and enabled; None if no process answers, or another one got its port."""
    try:
        with urllib.request.urlopen(url, timeout=POLL_TIMEOUT_S) as answer:  # noqa: S310 - http only, see `hear`
            data = json.loads(answer.read(_ANSWER_LIMIT))
    except urllib.error.HTTPError as error:
        error.close()
        return False, None
    except (OSError, ValueError):
        return None, None
    if isinstance(data, dict) and data.get("instance", instance) != instance:
        return None, None
    enabled = data.get("enabled") if isinstance(data, dict) else None
    return isinstance(data, dict) and data.get("status") == "UP", enabled if isinstance(enabled, bool) else None


# --- components that hang ---

LAPSE_S = 10.0  # a longer time between two turns means that the controller did not observe


class HangDetector:
    """Detect components that live but report nothing.

    `since_s` is the time since which the controller has observed without a gap. After a gap (a suspended machine, a
    stopped controller, an unreachable bus) the silence of components does not count.
    [test_time_without_an_observing_controller_is_no_silence]
    """

    def __init__(self) -> None:
        self._turned_s = self.since_s = time.monotonic()

    def turn(self, now_s: float, limits: Timeouts) -> None:
        """Note a turn of the controller; a long time since the last one was a gap."""
        if now_s - self._turned_s > min(LAPSE_S, limits.silent / 2):
            self.since_s = now_s
        self._turned_s = now_s

    def bus_failed(self) -> None:
        """Note that the bus did not carry a message: observation starts again."""
        self.since_s = time.monotonic()

    def needs_poll(self, seen: Observation, limits: Timeouts, now_s: float) -> bool:
        """Return whether the last report is so old that the component's health endpoint is asked."""
        return not seen.fresh(now_s, min(TTL_S, limits.silent / 2))

    def hangs(self, seen: Observation, bee: Bee, limits: Timeouts, now_s: float) -> bool:
        """Return whether a component hangs. One that never reported also has the time to come up."""
        if bee.restart == "never" or seen.hung is not None:
            return False
        limit_s = limits.silent if seen.reported_s is not None else max(limits.silent, limits.provision)
        return seen.silence_s(now_s, self.since_s) >= limit_s
