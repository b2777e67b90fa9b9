"""Read what a service or a program says when it refuses a request: whose fault it is, and how long to wait.

Light to import, unlike the libraries of the services.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from farro.agents.providers.port import TroubleKind

# Words of the programs and of the APIs behind them. The first group that matches decides. Compiled on use.
_NO_CREDIT = r"credit balance|credits are|insufficient[_ ](?:quota|funds)|out of (?:usage )?credits|payment required"
_LIMIT = r"(?:usage|rate|session|weekly|daily|spend|request)[ _-]?limit|hit your .{0,60}limit|quota|too many requests"
_KEY = r"api[ _-]?key|authenticat|unauthori[sz]ed|not logged in|\blog ?in\b|(?:invalid|expired) (?:\w+ )?token"
_OVERLOAD = r"overloaded|high demand|internal server error|at capacity|(?:service|temporarily) unavailable|bad gateway"
_CUT = r"stream (?:was )?(?:disconnected|closed|ended)|connection .{0,30}(?:reset|lost|error)|closed connection"
_NETWORK = r"network error|socket hang up|connection .{0,30}closed"

_KINDS: tuple[tuple[str, TroubleKind], ...] = (
    (_NO_CREDIT, "refused"),
    (_LIMIT, "limited"),
    (_KEY, "refused"),
    (_OVERLOAD, "overloaded"),
    (_CUT, "cut"),
    (_NETWORK, "cut"),
)

_NOTHING_DONE = (400, 401, 402, 403, 404, 405, 413, 415, 422, 429)  # sent before any token was generated


def kind_of_words(text: str) -> TroubleKind | None:
    return next((kind for words, kind in _KINDS if re.search(words, text, re.IGNORECASE)), None)


def kind_of_status(status: int, message: str) -> TroubleKind:
    """Tell the outcome of a request that was answered with this status, which is no success."""
    if status == 429:
        return "refused" if re.search(_NO_CREDIT, message, re.IGNORECASE) else "limited"
    if status in (408, 409) or status >= 500:
        return "overloaded"
    if status == 403 and re.search(r"moderat|flagged", message, re.IGNORECASE):
        return "denied"  # OpenRouter, about the prompt
    if status in (401, 402, 403):
        return "refused"
    # A wrong key, or no credit, may be called a bad request. So may a schema with a member `login`: that is no refusal.
    return "refused" if re.search(rf"{_NO_CREDIT}|api[ _-]?key", message, re.IGNORECASE) else "denied"


def is_charged(status: int) -> bool:
    """Tell whether a refusal with this status may have cost something."""
    return not (status < 400 or status in _NOTHING_DONE)


def message_in(body: Any) -> str:
    """Return the message of an error's body, however it is wrapped."""
    if isinstance(body, list) and body:  # Google wraps the error of a stream in a list
        body = body[0]
    if isinstance(body, dict):
        inner = body.get("error", body)
        words = inner.get("message") if isinstance(inner, dict) else inner
        return words if isinstance(words, str) else ""
    return ""


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return how long the server asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as a date."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            wait_s = float(headers.get(name, "")) * scale
        except ValueError:
            continue
        if 0 <= wait_s < float("inf"):
            return wait_s
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, OverflowError):  # OverflowError: a year out of range
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


def delay_in(body: Any) -> float | None:
    """Return the delay in the body: `resets_in_seconds` of OpenAI, or `{"@type": "…RetryInfo", "retryDelay": "37s"}` of
    Google."""
    if isinstance(body, list) and body:
        body = body[0]
    inner = body.get("error", body) if isinstance(body, dict) else None  # OpenAI's library gives the inner part alone
    if isinstance(inner, dict) and "resets_in_seconds" in inner:
        return retry_after_s({"retry-after": str(inner["resets_in_seconds"])})
    details = inner.get("details") if isinstance(inner, dict) else None
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and delay.endswith("s"):
            return retry_after_s({"retry-after": delay[:-1]})
    return None
