"""Check and mint the names of jobs, roles, agents and tags.

Every name is checked against its pattern before a path is built from it (RELIABILITY, threats).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from farro.errors import BadName

JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
ROLE = re.compile(r"[A-Z][A-Za-z0-9]{0,31}")
AGENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
AGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}\.[0-9]{1,4}\.[0-9a-f]{16}")
PAYLOAD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")

# Device names that Windows opens in every folder: a root must survive being copied there.
_RESERVED = frozenset({"con", "prn", "aux", "nul", *(f"{kind}{n}" for kind in ("com", "lpt") for n in range(1, 10))})

_COUNTER_LIMIT = 1 << 16
_MINTED = "job-dddddddd-dddddd-dddxxxxxxxxxxxxxxxxxxxx"  # d: a digit, x: a hexadecimal one
_ALPHABETS = {"d": "0123456789", "x": "0123456789abcdef"}


def check_job_id(text: str) -> str:
    return _checked(text, JOB_ID, "a job id", "1 to 64 of A-Z a-z 0-9 _ -, the first a letter or digit")


def check_role(text: str) -> str:
    return _checked(text, ROLE, "a role", "a capital letter, then up to 31 letters or digits, such as Runner")


def check_agent_name(text: str) -> str:
    return _checked(text, AGENT_NAME, "an agent name", "1 to 32 of A-Z a-z 0-9 _ -, the first a letter or digit")


def check_tag(text: str) -> str:
    return _checked(text, TAG, "a tag", "1 to 64 of A-Z a-z 0-9 _ . : -, the first a letter or digit")


def check_job_name(text: str) -> str:
    return _checked(text, JOB_ID, "a job's name", "1 to 64 of A-Z a-z 0-9 _ -, the first a letter or digit")


def check_payload_name(text: str) -> str:
    if PAYLOAD_NAME.fullmatch(text) is None:
        raise BadName(f"{ascii(text)[:100]} is not a payload name: a plain file name of A-Z a-z 0-9 . _ -")
    return text


def is_job_id(text: str) -> bool:
    return JOB_ID.fullmatch(text) is not None and text.lower() not in _RESERVED


def is_agent(text: str) -> bool:
    return AGENT.fullmatch(text) is not None


def _checked(text: Any, pattern: re.Pattern[str], what: str, rule: str) -> str:
    if not isinstance(text, str) or pattern.fullmatch(text) is None:
        raise BadName(f"{repr(text)[:100]} is not {what}: {rule}")
    if text.lower() in _RESERVED:
        raise BadName(f"{text!r} is not {what}: Windows keeps that name for a device; add a letter")
    return str(text)


def agent_id(name: str, slot: int, random_bits: Callable[[int], int]) -> str:
    """Name one incarnation of a worker slot. 64 random bits are never reused: the name is a fencing token (R2)."""
    return f"{check_agent_name(name)}.{slot}.{random_bits(64):016x}"


def is_minted(text: str) -> bool:
    """Return whether `text` has the form of a complete minted id. No other minted id begins with it."""
    return len(text) == len(_MINTED) and may_begin_minted(text)


def may_begin_minted(text: str) -> bool:
    """Return whether a minted id may begin with `text`. Other ids were chosen by a caller, or belong to children."""
    if len(text) > len(_MINTED):
        return False
    return all(one in _ALPHABETS.get(kind, kind) for one, kind in zip(text, _MINTED, strict=False))


def child_id(job_id: str, attempt: int, index: int) -> str:
    """Derive the id of a child job: the same for every delivery of one attempt (RELIABILITY 13, 30)."""
    import hashlib  # imported late: loading OpenSSL takes longer than listing a queue

    digest = hashlib.sha256(f"{job_id}/{attempt}/{index}".encode()).hexdigest()[:16]
    return f"{job_id[:40]}-{digest}"


class IdMint:
    """Mint `job-YYYYMMDD-hhmmss-<rand>`, where `<rand>` is milliseconds, a counter and 64 random bits.

    Ids of one mint sort in the order of minting, also when the clock jumps back (RELIABILITY 18): then the time is
    kept and the counter grows. Invariant: (`_last_ms`, `_counter`) only grows.
    """

    def __init__(self, now: Callable[[], datetime], random_bits: Callable[[int], int]) -> None:
        self._now = now
        self._random_bits = random_bits
        self._last_ms = -1
        self._counter = 0
        self._second = (-1, "")  # the last second, as text

    def mint(self) -> str:
        now_ms = int(self._now().timestamp() * 1000)
        if now_ms > self._last_ms:
            self._last_ms, self._counter = now_ms, 0
        elif self._counter + 1 < _COUNTER_LIMIT:
            self._counter += 1
        else:
            self._last_ms, self._counter = self._last_ms + 1, 0
        seconds, ms = divmod(self._last_ms, 1000)
        if seconds != self._second[0]:
            self._second = (seconds, datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%d-%H%M%S"))
        return f"job-{self._second[1]}-{ms:03d}{self._counter:04x}{self._random_bits(64):016x}"
