"""Tell what an answer of the service, or the lack of one, means for the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from farro.agents.programs.limits import reset_time
from farro.agents.programs.output import at, number_at, one_line, text_at
from farro.agents.providers.port import ProviderTrouble, TroubleKind, Usage
from farro.agents.providers.refusals import (
    delay_in,
    is_charged,
    kind_of_status,
    kind_of_words,
    message_in,
    retry_after_s,
)

_SHOWN = 300  # characters of the service's message
_LATEST = timedelta(days=366)  # a later moment is not the reset of a limit
_RETRYABLE = ("limited", "overloaded", "cut", "timed_out", "failed")
_MEANING: Mapping[TroubleKind, str] = {
    "limited": "the account has reached a limit",
    "overloaded": "it cannot answer now",
    "refused": "the key or login was not accepted, or has no credit",
    "denied": "it would refuse the request again as it is",
}
_RESETS = "anthropic-ratelimit-unified-reset"


def trouble_of_status(status: int, headers: Mapping[str, str], body: bytes, now: datetime) -> ProviderTrouble:
    """Return what an answer means that is no success. `headers` have lower-case names."""
    if 300 <= status < 400:
        to = urlsplit(headers.get("location", ""))
        message = f"answered {status}, a redirect to {to.scheme}://{to.hostname}, which is not followed: set base_url"
        return _trouble(message, "denied")
    said = _json(body)
    words = message_in(said)
    kind = kind_of_status(status, _judged(said))
    message = f"answered {status}{_quoted(words)}: {_MEANING[kind]}"
    return _trouble(message, kind, charged=is_charged(status), headers=headers, said=said, now=now)


def trouble_in_stream(event: object, usage: Usage | None, now: datetime) -> ProviderTrouble:
    """Return what an error means that came in the middle of an answer."""
    response = at(event, "response")
    error = at(event, "error") or at(response, "error") or event
    said = {"error": error}
    kind = kind_of_words(_judged(said)) or "cut"
    message = f"broke off with an error{_quoted(message_in(said))}"
    return _trouble(message, kind, usage=usage, said=said, now=now)


def cut_off(usage: Usage | None) -> ProviderTrouble:
    return _trouble("was cut off in the middle of its answer", "cut", usage=usage)


def unanswered(error: Exception) -> ProviderTrouble:
    """Return what a connection means that ended before an answer began."""
    return _trouble(f"ended the connection without an answer: {_said(error)}", "cut")


def unreachable(error: Exception, address: str) -> ProviderTrouble:
    host = urlsplit(address).netloc.rpartition("@")[2]
    kind: TroubleKind = "timed_out" if isinstance(error, TimeoutError) else "failed"
    return _trouble(f"cannot be reached at {host}: {_said(error)}; check base_url and the network", kind, charged=False)


def unrecorded(error: Exception) -> ProviderTrouble:
    """Return what it means that the caller could not record a request."""
    return ProviderTrouble(f"a request cannot be recorded: {_said(error)}", kind="failed", retryable=True)


def _trouble(
    message: str,
    kind: TroubleKind,
    *,
    charged: bool = True,
    usage: Usage | None = None,
    headers: Mapping[str, str] | None = None,
    said: object = None,
    now: datetime | None = None,
) -> ProviderTrouble:
    until = wait_s = None
    if kind in ("limited", "overloaded") and now is not None:
        wait_s = retry_after_s(headers or {}, now)
        wait_s = delay_in(said) if wait_s is None else wait_s
        until = _reset(headers or {}, said, now) if kind == "limited" else None
    return ProviderTrouble(
        f"the service {message}",
        kind=kind,
        retryable=kind in _RETRYABLE,
        until=until,
        retry_after_s=wait_s,
        usage=usage,
        charged=charged,
    )


def _reset(headers: Mapping[str, str], said: object, now: datetime) -> datetime | None:
    """Return the moment at which a limit resets; None if the service names none."""
    named = number_at(said, "error", "resets_at")
    if headers.get(_RESETS, "").isdigit():
        named = float(headers[_RESETS])
    if named is not None:
        try:
            until = datetime.fromtimestamp(named, UTC)
        except (ValueError, OverflowError, OSError):
            return None
        return until if until - now <= _LATEST else None
    return reset_time(message_in(said)[:4000], now)


def _judged(said: object) -> str:
    """Return the words of an error that tell what it means: its codes and its message."""
    return " ".join((*(text_at(said, "error", name) for name in ("type", "code", "status")), message_in(said)))


def _json(body: bytes) -> object:
    try:
        found: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found[0] if isinstance(found, list) and found else found


def _quoted(words: str) -> str:
    return f" ({one_line(words, _SHOWN)})" if words else ""


def _said(error: Exception) -> str:
    return one_line(str(error) or type(error).__name__, _SHOWN)
