"""policy.lock.json: the parameters, policies and schemas that a root's work is pinned to, in one reviewable file.

The file contains no times and no names of machines: the same root writes the same bytes, so that git shows a difference
if and only if a policy changed. SPEC-1's conformance profile pins some of the same parameters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from farro.config.settings import Settings
from farro.doctor.schemas import VERSION, schemas
from farro.errors import BadDocument, InputError
from farro.host import fs
from farro.jobs.envelope import SCHEMA_VERSION
from farro.jobs.retry import RetryPolicy
from farro.lazy_dataclass import dataclass
from farro.roles import policy
from farro.roles.provider_rules import CLI_TRIES, HTTP_TRIES

FILE = "policy.lock.json"
LOCK_VERSION = "1.0.0"
_LIMIT = 4 << 20


def lock(root: str, settings: Settings) -> dict[str, Any]:
    """Return what is in force in a root now."""
    return {
        "lock_version": LOCK_VERSION,
        "config_version": settings.version,
        "parameters": parameters(settings),
        "policies": policies(root, settings),
        "schemas": schema_files(root),
    }


def parameters(settings: Settings) -> dict[str, Any]:
    calls, jobs = RetryPolicy(), settings.retry  # the retries of provider calls are constants of the program
    return {
        "schemas": {name: _version_of(name) for name in schemas()},
        "backoff": {
            "base_ms": _whole(calls.base_s * 1000),
            "multiplier": calls.multiplier,
            "max_delay_ms": _whole(calls.max_delay_s * 1000),
            "attempts_http": HTTP_TRIES,
            "attempts_cli": CLI_TRIES,
        },
        "retry": {
            "base_ms": _whole(jobs.base_s * 1000),
            "multiplier": jobs.multiplier,
            "max_delay_ms": _whole(jobs.max_delay_s * 1000),
            "attempts": jobs.max_attempts,
        },
        "audit": {
            "mode": settings.audit.mode,
            "max_bytes": settings.audit.max_bytes,
            "files": settings.audit.keep,
            "daily_cut": True,
            "quota_bytes": settings.audit.quota_bytes,
        },
        "watchdog": {
            "stale_after_s": _whole(settings.watchdog.stale_after_s),
            "abandon_after_s": _whole(settings.watchdog.abandon_after_s),
        },
        "caps": {
            "role": settings.capacity.role_cap,
            "total": settings.capacity.total_cap,
            "roles": dict(sorted(settings.capacity.roles.items())),
        },
        "backpressure": {
            "pause_percent": _whole(settings.capacity.pause * 100),
            "resume_percent": _whole(settings.capacity.resume * 100),
        },
        "security": {
            "max_job_bytes": settings.security.max_job_bytes,
            "payload_allowlist": sorted(settings.security.payload_allowlist),
        },
        "gates": {
            "allow_cross_volume": settings.allow_cross_volume,
            "allow_absolute_paths": settings.security.allow_absolute_paths,
            "unknown_fields_rejected": settings.strict,
        },
    }


def _whole(value: float) -> int | float:
    """Return a whole number as int, so that 1800.0 and 1800 are written alike."""
    rounded = round(value, 6)
    return int(rounded) if rounded == int(rounded) else rounded


def _version_of(name: str) -> str:
    return SCHEMA_VERSION if name == "job.schema.json" else VERSION


def policies(root: str, settings: Settings) -> dict[str, Any]:
    """Return version and hash of AGENTS.md and of every role's policy; None for an absent one."""
    names = ["AGENTS.md", *(f"agents/{role}/AGENTS-ROLE.md" for role in sorted(settings.all_roles()))]
    return {name: _policy(f"{root}/{name}", name) for name in names}


def _policy(path: str, name: str) -> dict[str, Any] | None:
    try:
        text = fs.read_regular(path, policy.MAX_BYTES)
    except FileNotFoundError:
        return None
    try:
        version = policy.read(text.decode("utf-8", "replace"), name).version
    except BadDocument:
        version = None
    return {"version": version, "sha256": sha256(text).hexdigest()}


def schema_files(root: str) -> dict[str, str]:
    try:
        names = sorted(name for name in fs.listdir(f"{root}/schemas") if name.endswith(".json"))
    except FileNotFoundError:
        return {}
    return {name: sha256(fs.read_regular(f"{root}/schemas/{name}", _LIMIT)).hexdigest() for name in names}


def text_of(locked: Mapping[str, Any]) -> str:
    return json.dumps(locked, indent=2, ensure_ascii=False) + "\n"


def write(root: str, locked: Mapping[str, Any]) -> bool:
    """Write the lock; return whether the file changed."""
    path, text = f"{root}/{FILE}", text_of(locked).encode()
    if os.path.lexists(path) and fs.read_bytes(path, len(text)) == text:
        return False
    fs.write_atomic(path, text, sync=True)
    return True


def read(root: str) -> dict[str, Any] | None:
    """Return the lock as it was written, None if there is none. InputError: the file is not a lock."""
    path = f"{root}/{FILE}"
    try:
        data = json.loads(fs.read_regular(path, _LIMIT))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, OSError) as error:
        raise InputError(
            f"{path}: this is not a policy lock ({error}); write it again with: farro policy lock"
        ) from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: this is not a policy lock; write it again with: farro policy lock")
    return data


def compare(written: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Return where the present values differ from the locked ones."""
    return list(differences(written, json.loads(json.dumps(now))))


# --- SPEC-1's conformance profile, STRICT-MVP v1.0: the values that it pins, and its checklist ---

PROFILE = "STRICT-MVP v1.0"

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
