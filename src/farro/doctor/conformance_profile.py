"""SPEC-1's conformance profile, STRICT-MVP v1.0: the values that it pins, and its checklist. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from farro.lazy_dataclass import dataclass

NAME = "STRICT-MVP v1.0"

PINNED: Mapping[str, Any] = {
    "schemas": {"prompt.schema.json": "1.0.0", "agents-config.schema.json": "1.0.0"},
    "backoff": {
        "base_ms": 250,
        "multiplier": 1.5,
        "max_delay_ms": 10_000,
        "attempts_http": 4,
        "attempts_cli": 2,
    },
    "audit": {"max_bytes": 50 << 20, "files": 10, "daily_cut": True, "quota_bytes": 512 << 20},
    "watchdog": {"stale_after_s": 1800, "abandon_after_s": 7200},
    "caps": {"role": 200, "total": 1000},
    "backpressure": {"pause_percent": 80, "resume_percent": 60},
    "gates": {"allow_cross_volume": False, "allow_absolute_paths": False, "unknown_fields_rejected": True},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    path: str  # "watchdog.stale_after_s"
    wanted: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.path}: {_said(self.found)}, not {_said(self.wanted)}"


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()


def _said(value: Any) -> str:
    import json

    return repr(value) if value is ABSENT else json.dumps(value, ensure_ascii=False)


def differences(wanted: Any, found: Any, path: str = "", *, more: bool = True) -> Iterator[Difference]:
    """Yield where the two differ, by path. Without `more`, members that only `found` has do not count."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for name in (*wanted, *(name for name in found if more and name not in wanted)):
            inner = f"{path}.{name}" if path else str(name)
            yield from differences(wanted.get(name, ABSENT), found.get(name, ABSENT), inner, more=more)
    elif wanted is ABSENT or found is ABSENT or wanted != found or isinstance(wanted, bool) != isinstance(found, bool):
        yield Difference(path=path, wanted=wanted, found=found)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChecklistItem:
    """One line of the checklist, and the checks that prove it; none means all of them."""

    words: str
    checks: tuple[str, ...]


CHECKLIST = (
    ChecklistItem(words="doctor passes in strict mode", checks=()),
    ChecklistItem(
        words="Schemas validate and enum/required checks enforced",
        checks=("config", "config-strict", "schemas", "tasks", "schedules", "agents-contract", "profile-schemas"),
    ),
    ChecklistItem(
        words="Same-volume verified; cross-volume forbidden",
        checks=("same-device", "rename-exclusive", "profile-gates"),
    ),
    ChecklistItem(words="Backoff parameters match pinned values", checks=("backoff", "profile-backoff")),
    ChecklistItem(
        words="Log durability/rotation verified by probe write",
        checks=("audit-probe", "audit-rotation", "audit-tail", "profile-audit"),
    ),
    ChecklistItem(
        words="Watchdog thresholds present; heartbeat healthy",
        checks=("watchdog-thresholds", "manager-heartbeat", "profile-watchdog"),
    ),
    ChecklistItem(words="Example job executes end-to-end and lands in completed/", checks=("example-job",)),
)
