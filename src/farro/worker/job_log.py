"""Log what a slot does with its jobs."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from farro.errors import AgentLost, FarroError, Lost
from farro.host.clock import Clock
from farro.jobs.envelope import Lifecycle
from farro.jobs.times import timestamp
from farro.log.structured import Log, LogEvent, together
from farro.store.port import Claim

CHANGED = "job status changed"  # the message for each committed job


class JobLog:
    """The log of one slot. Claims are logged together with what happens next: a write for each would cost as much as
    the claim of a small job."""

    def __init__(self, log: Log, role: str, clock: Clock) -> None:
        self._log = together(log)
        self._role = role
        self._clock = clock
        self._deferred: list[LogEvent] = []

    def claimed(self, claims: Sequence[Claim]) -> None:
        if claims:
            event = {"type": "state_transition", "from": "queued", "to": "in_progress"}
            then = {"timestamp": timestamp(self._clock.now())}
            self._deferred += [self._line(claim, "info", "job claimed", event, then) for claim in claims]

    def handed_back(self, claims: Iterable[Claim]) -> None:
        event = {"type": "state_transition", "from": "in_progress", "to": "queued"}
        self.flush(*(self._line(claim, "info", "job handed back, not begun", event) for claim in claims))

    def committed(self, answers: Iterable[tuple[Claim, Lifecycle | FarroError]]) -> None:
        """Log accepted commits and lost claims. The slot reports other errors as its own trouble."""
        self.flush(*(self._end(claim, answer) for claim, answer in answers if isinstance(answer, Lifecycle | Lost)))

    def agent_lost(self, lost: AgentLost) -> None:
        self.flush(("warning", str(lost), {"event": {"type": "agent_lost"}}))

    def trouble(self, error: Exception) -> None:
        """Log an error that interrupted a turn; a bug with its traceback."""
        known = isinstance(error, FarroError | OSError)
        more = {} if known else {"traceback": "".join(traceback.format_exception(error))}
        self.flush(("error", f"{type(error).__name__}: {error}", {"event": {"type": "slot_trouble"}, **more}))

    def flush(self, *events: LogEvent) -> None:
        """Write the deferred events, then these."""
        deferred, self._deferred = self._deferred, []
        self._log.many([*deferred, *events])

    def _end(self, claim: Claim, answer: Lifecycle | Lost) -> LogEvent:
        if isinstance(answer, Lost):
            return self._line(claim, "warning", str(answer), {"type": "claim_lost"})
        event = {"type": "state_transition", "from": "in_progress", "to": str(answer.status)}
        extra = {"error": answer.error["category"]} if answer.error else {}
        return self._line(claim, "info", CHANGED, {**event, **extra})

    def _line(
        self, claim: Claim, level: str, message: str, event: Mapping[str, Any], more: Mapping[str, Any] | None = None
    ) -> LogEvent:
        lifecycle = claim.envelope.lifecycle
        fields = {
            "job_id": lifecycle.job_id,
            "role": self._role,
            "attempt": claim.attempt,
            "agent": claim.agent.id,
            "correlation_id": lifecycle.correlation_id,
            "event": event,
            **(more or {}),
        }
        return level, message, fields
