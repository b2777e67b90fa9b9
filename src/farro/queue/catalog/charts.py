"""Count jobs enqueued and ended in each ten seconds of the last day, and their durations, for charts.

Memory is bounded: for each ten seconds, a few hundred durations are kept, however many jobs ended.
"""

from __future__ import annotations

from collections.abc import Collection

from farro.lazy_dataclass import dataclass, field
from farro.queue.stats import TOTAL, percentile

SLOT_S = 10
KEPT_S = 86_400
SAMPLES = 256  # durations that a slot keeps per role


@dataclass(slots=True)
class ChartSlot:
    """The counts and durations of one role's jobs within ten seconds."""

    enqueued: int = 0
    succeeded: int = 0
    failed: int = 0
    killed: int = 0
    latencies: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Chart data: one number for every point, oldest first."""

    enqueued: tuple[int, ...]
    succeeded: tuple[int, ...]
    failed: tuple[int, ...]
    killed: tuple[int, ...]
    latency_p50_s: tuple[float | None, ...]
    latency_p95_s: tuple[float | None, ...]
    wait_p50_s: tuple[float | None, ...]
    wait_p95_s: tuple[float | None, ...]


@dataclass(slots=True)
class EndedTotals:
    """Totals since the start; they only grow."""

    ended: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    waited: float = 0.0


class JobCharts:
    """Chart data of all roles. Not locked: a caller with several threads must lock."""

    def __init__(self) -> None:
        self.sums: dict[str, EndedTotals] = {}
        self._slots: dict[int, dict[str, ChartSlot]] = {}  # slot number → role → slot

    def enqueued(self, role: str, at_ms: int) -> None:
        self._slot(role, at_ms).enqueued += 1

    def ended(self, role: str, status: str, at_ms: int, latency_s: float | None, wait_s: float | None) -> None:
        sums = self.sums.get(role)
        if sums is None:
            sums = self.sums[role] = EndedTotals()
        sums.ended[status] = sums.ended.get(status, 0) + 1
        sums.seconds += latency_s or 0.0
        sums.waited += wait_s or 0.0
        slot = self._slot(role, at_ms)
        setattr(slot, status, getattr(slot, status) + 1)
        _keep(slot.latencies, latency_s, slot.succeeded + slot.failed)
        _keep(slot.waits, wait_s, slot.succeeded + slot.failed)

    def _slot(self, role: str, at_ms: int) -> ChartSlot:
        roles = self._slots.setdefault(at_ms // (SLOT_S * 1000), {})
        found = roles.get(role)
        if found is None:
            found = roles[role] = ChartSlot()
        return found

    def forget(self, now_ms: int) -> None:
        """Drop what is older than a day."""
        oldest = (now_ms - KEPT_S * 1000) // (SLOT_S * 1000)
        for number in [number for number in self._slots if number < oldest]:
            del self._slots[number]

    def drawn(self, end_ms: int, step_s: int, points: int, roles: Collection[str] = ()) -> dict[str, Curve]:
        """Return the curves of each role with data, and of all roles together. The last point ends at `end_ms`."""
        step_ms = step_s * 1000
        start_ms = end_ms - step_ms * points
        gathered: dict[str, list[ChartSlot]] = {TOTAL: [ChartSlot() for _ in range(points)]}
        for number in sorted(self._slots):
            at_ms = number * SLOT_S * 1000
            if not start_ms <= at_ms < end_ms:
                continue
            point = (at_ms - start_ms) // step_ms
            for role, slot in self._slots[number].items():
                if not roles or role in roles:
                    own = gathered.setdefault(role, [])
                    own.extend(ChartSlot() for _ in range(points - len(own)))
                    _add(own[point], slot)
                    _add(gathered[TOTAL][point], slot)
        return {role: _curve(slots) for role, slots in gathered.items()}


def _keep(durations: list[float], one: float | None, seen: int) -> None:
    """Keep all durations of a few jobs; of many, later ones replace earlier ones in turn."""
    if one is None:
        return
    if len(durations) < SAMPLES:
        durations.append(one)
    else:
        durations[seen % SAMPLES] = one


def _add(to: ChartSlot, slot: ChartSlot) -> None:
    to.enqueued += slot.enqueued
    to.succeeded += slot.succeeded
    to.failed += slot.failed
    to.killed += slot.killed
    to.latencies += slot.latencies
    to.waits += slot.waits


def _curve(slots: list[ChartSlot]) -> Curve:
    return Curve(
        enqueued=tuple(slot.enqueued for slot in slots),
        succeeded=tuple(slot.succeeded for slot in slots),
        failed=tuple(slot.failed for slot in slots),
        killed=tuple(slot.killed for slot in slots),
        latency_p50_s=tuple(_rounded(slot.latencies, 0.5) for slot in slots),
        latency_p95_s=tuple(_rounded(slot.latencies, 0.95) for slot in slots),
        wait_p50_s=tuple(_rounded(slot.waits, 0.5) for slot in slots),
        wait_p95_s=tuple(_rounded(slot.waits, 0.95) for slot in slots),
    )


def _rounded(values: list[float], share: float) -> float | None:
    found = percentile(values, share)
    return None if found is None else round(found, 3)
