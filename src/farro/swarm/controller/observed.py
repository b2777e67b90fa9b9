"""What a controller knows of its components: what the runtime has, what they say, and what their health endpoints say.

What is done about it lives in swarm.reconcile and the controller.
"""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from farro.host import signals
from farro.jobs.times import parse_timestamp
from farro.swarm import restarts
from farro.swarm.logs import last_line
from farro.swarm.status import Seen
from farro.swarm.wire import messages
from farro.worker.runtime import Runtime
from farro.worker.runtime import Seen as Found

POLL_TIMEOUT_S = 3.0
STEADY_S = 60.0  # who lived so long is not one that dies again and again
LATE_S = 120.0  # so old may be what a process that died had said
WORDS = 300  # characters of what a component said last
_KILLED = (-signals.KILL, -signal.SIGTERM, -signal.SIGINT)
_ANSWER_LIMIT = 64 << 10


class Watch:
    """Invariant: `seen` has an entry for every component that was ever launched here and not deprovisioned."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.seen: dict[str, Seen] = {}
        self.said: dict[str, messages.Status] = {}  # the last status of each
        self._urls: dict[str, str] = {}
        self._born: dict[str, datetime] = {}  # when it was last launched by us
        self._polling: set[str] = set()

    def of(self, instance: str) -> Seen:
        return self.seen.get(instance, Seen())

    def put(self, instance: str, seen: Seen) -> None:
        self.seen[instance] = seen

    def forget(self, instance: str) -> None:
        """It was ended: what it said counts for nothing any more."""
        for known in (self.seen, self.said, self._urls, self._born):
            known.pop(instance, None)

    def launching(self, instance: str, at: str) -> None:
        """A new process: what the one before it said, and may still be on its way, is not its word.
        [test_the_last_words_of_a_dead_process_are_not_those_of_the_next]"""
        self._born[instance] = parse_timestamp(at)
        self.said.pop(instance, None)
        self._urls.pop(instance, None)

    def _of_another(self, status: messages.Status) -> bool:
        """Said before its process was launched. Not by hours: then somebody set a clock."""
        born = self._born.get(status.instance)
        return born is not None and 0 < (born - parse_timestamp(status.timestamp)).total_seconds() < LATE_S

    def look(self, instances: Iterable[str], now_s: float) -> None:
        """What the runtime has of them. One that was launched before this controller began is adopted."""
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
                    ended = now_s if known.ended_s is None else known.ended_s
                    seen = replace(seen, healthy=None, enabled=None, word_s=None)
                    seen = replace(seen, ended_s=ended, exit_code=found.exit_code)
                    words = known.end_words if known.ended_s is not None else _words(found)
                    how = restarts.told(found.exit_code) if known.hung is None else f"by force: it {known.hung}"
                    how = known.end if known.end is not None and known.ended_s is not None else how  # told already
                    seen = replace(seen, end=how, end_s=ended, end_words=words, hung=None)
                self.put(name, seen)

    def hear(self, status: messages.Status, now_s: float) -> bool:
        """A component's own word: as good as a heartbeat. Whether it says anything new."""
        if self._of_another(status):
            return False
        known = self.of(status.instance)
        before = self.said.get(status.instance)
        self.said[status.instance] = status
        url = status.data.get("healthUrl")
        if isinstance(url, str) and url.startswith("http://"):
            self._urls[status.instance] = url
        asked = None if known.asked_s is not None and status.enabled != known.enabled else known.asked_s
        healthy = status.data.get("health", "UP") == "UP"
        if known.launched:
            was = (known.alive, known.healthy, known.enabled)
            long = known.launched_s is not None and now_s - known.launched_s > STEADY_S
            self.put(
                status.instance,
                replace(
                    known,
                    word_s=now_s,
                    healthy=healthy,
                    enabled=status.enabled,
                    asked_s=asked,
                    alive=True,
                    starts=1 if long else known.starts,
                    hung=None,
                ),
            )
            new = was != (True, healthy, status.enabled) or known.word_s is None
            return new or before is None or before.data.get("update") != status.data.get("update")
        return False

    async def poll(self, instance: str, now_s: float) -> None:
        """Ask its health endpoint; nothing when it has told none yet, or is being asked."""
        url = self._urls.get(instance)
        if url is None or instance in self._polling:
            return
        self._polling.add(instance)
        try:
            up, enabled = await asyncio.to_thread(_asked, url, instance)
        finally:
            self._polling.discard(instance)
        known = self.of(instance)
        if up is not None and known.launched:
            told = known.enabled if enabled is None else enabled
            self.put(instance, replace(known, word_s=now_s, healthy=up, enabled=told))


def _words(dead: Found) -> str:
    """The last line of its log, where that may tell why it ended. One that was killed did not know that it would be."""
    if dead.exit_code in _KILLED:
        return ""
    return last_line(dead.log)[0][:WORDS]


def _asked(url: str, instance: str) -> tuple[bool | None, bool | None]:
    """Whether it is up and enabled; None: nobody answers, or somebody else who got its port."""
    try:
        with urllib.request.urlopen(url, timeout=POLL_TIMEOUT_S) as answer:  # noqa: S310 - http only, see `hear`
            told = json.loads(answer.read(_ANSWER_LIMIT))
    except urllib.error.HTTPError as error:
        error.close()
        return False, None
    except (OSError, ValueError):
        return None, None
    if isinstance(told, dict) and told.get("instance", instance) != instance:
        return None, None
    enabled = told.get("enabled") if isinstance(told, dict) else None
    return isinstance(told, dict) and told.get("status") == "UP", enabled if isinstance(enabled, bool) else None
