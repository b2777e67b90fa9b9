"""What a component heard and did not obey: broken, forged, of another swarm, or said before. Counted, told, logged.

What a signal must be is checked in swarm.messages; what is obeyed lives in running.

A line a refusal on stderr, which is the component's log; the count and the last of them in its status, where its
controller finds them for the swarm's audit. Nothing of a body is repeated. [test_forged_signals_are_ignored_and_told]
"""

from __future__ import annotations

import sys
from collections import deque
from datetime import UTC, datetime
from typing import Any

from farro.log.structured import lines

REMEMBERED = 1000  # signals: a replay of an older one is taken for new
_KEY_LIMIT = 200


class Refusals:
    def __init__(self, instance: str) -> None:
        self.count = 0
        self._last: dict[str, str] = {}
        self._known: deque[str] = deque(maxlen=REMEMBERED)
        self._set: set[str] = set()
        self._log = lines(instance, lambda: datetime.now(UTC), sys.stderr)

    def first(self, correlation_id: str) -> bool:
        """Whether a signal with that id was not heard before."""
        if correlation_id in self._set:
            return False
        if len(self._known) == REMEMBERED:
            self._set.discard(self._known[0])
        self._known.append(correlation_id)
        self._set.add(correlation_id)
        return True

    def note(self, key: str, why: str) -> None:
        self.count += 1
        self._last = {"lastKey": ascii(key)[1:-1][:_KEY_LIMIT], "lastReason": why[:500]}
        self._log("warning", "ignored", {"key": self._last["lastKey"], "why": self._last["lastReason"]})

    def told(self) -> dict[str, Any]:
        """For the status."""
        return {"refused": {"count": self.count, **self._last}} if self.count else {}
