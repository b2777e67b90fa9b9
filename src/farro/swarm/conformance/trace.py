"""A trace by what it is about: signals, their ends, status, plans. Each message once, however often it was sent.

The rules over it live in commands, speaking and walking.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from farro.documents import Document
from farro.errors import FarroError
from farro.lazy_dataclass import dataclass, field
from farro.swarm import plan
from farro.swarm.conformance.messages import Heard, Violation
from farro.swarm.plan import SwarmPlan
from farro.swarm.wire.messages import ControlSignal, Duplicate, Error, Ready, Status
from farro.swarm.wire.names import Signal

CONTROLLER_ORIGIN = "controller"  # of signals that a controller sends to its own components: it confirms none of them


@dataclass(kw_only=True)
class Known:
    """The trace by what it is about. Each message once, however often it was sent."""

    signals: dict[str, Heard] = field(default_factory=dict)  # correlation id → the first that carried it
    repeated: list[Heard] = field(default_factory=list)  # signals that carry another's correlation id
    ends: dict[str, list[Heard]] = field(default_factory=lambda: defaultdict(list))  # correlation id → confirmations
    duplicates: list[Heard] = field(default_factory=list)
    statuses: dict[str, list[Heard]] = field(default_factory=lambda: defaultdict(list))  # instance → its own
    answers: dict[str, list[Heard]] = field(default_factory=lambda: defaultdict(list))  # correlation id → status-full
    asks: dict[str, list[Heard]] = field(default_factory=lambda: defaultdict(list))  # instance → of its controller
    plans: dict[str, list[tuple[float, SwarmPlan]]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, heard: Sequence[Heard]) -> Known:
        known, seen = cls(), set[str]()
        for one in heard:
            if one.message_id not in seen:
                seen.add(one.message_id)
                known._note(one)
        return known

    def _note(self, one: Heard) -> None:
        body = one.body
        if isinstance(body, ControlSignal):
            if body.correlation_id in self.signals:
                self.repeated.append(one)
                return
            self.signals[body.correlation_id] = one
            if one.key.signal is Signal.TEMPLATE and body.swarm_id is not None:
                self._plan(one, body)
            if one.key.signal is Signal.CONFIG and body.origin == CONTROLLER_ORIGIN:
                self.asks[str(body.instance)].append(one)
        elif isinstance(body, Ready | Error):
            self.ends[body.correlation_id].append(one)
        elif isinstance(body, Duplicate):
            self.duplicates.append(one)
        elif isinstance(body, Status) and one.key.kind == "status":
            self.statuses[body.instance].append(one)
            about = body.data.get("correlationId")
            if isinstance(about, str) and body.kind == "status-full":
                self.answers[about].append(one)

    def _plan(self, one: Heard, body: ControlSignal) -> None:
        data: Any = (body.args or {}).get("plan", body.args)
        with contextlib.suppress(FarroError):  # a controller refuses it; whether it did is another rule's
            self.plans[str(body.swarm_id)].append((one.at_s, plan.load(Document(data, one.name))))

    def commands(self) -> Iterator[tuple[Heard, ControlSignal]]:
        """Signals that somebody waits for."""
        for one in self.signals.values():
            assert isinstance(one.body, ControlSignal)
            if one.body.origin != CONTROLLER_ORIGIN:
                yield one, one.body


def told(rule: str, one: Heard, why: str) -> Violation:
    return Violation(rule=rule, key=one.name, why=why)
