"""What goes over the wire to a RESP queue and comes back: JSON read with care, and a client's troubles in words.

Which commands are sent lives in remote.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from farro.agx.client import JobTold
from farro.errors import FarroError, InputError, Refused, TryAgain
from farro.jobs.states import Status

_ENDED = frozenset({Status.SUCCEEDED, Status.KILLED})


def explained(name: str, call: Callable[[], Any]) -> Any:
    """What the client raises, in words: who, and what to do."""
    from redis import exceptions

    try:
        return call()
    except exceptions.AuthenticationError:
        raise Refused(f"{name} wants another key; set AGQ_KEY to the queue's `agq.key`") from None
    except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
        if "auth" in str(error).lower():
            raise Refused(f"{name} wants a key; set AGQ_KEY to the queue's `agq.key`") from None
        raise TryAgain(f"no queue answers at {name} ({_short(error)}); is `farro agq` running there?") from None
    except exceptions.ResponseError as error:
        text = _short(error)
        if text.startswith(("NOAUTH", "WRONGPASS")):
            raise Refused(f"{name} wants a key; set AGQ_KEY to the queue's `agq.key`") from None
        raise InputError(f"{name}: {text}") from None


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:500]


def job_told(line: Mapping[str, Any]) -> JobTold:
    error = line.get("error")
    error = error if isinstance(error, dict) else {}
    status = str(line.get("status"))
    attempt = line.get("attempt")
    return JobTold(
        job_id=str(line.get("job_id")),
        status=status,
        role=_optional(line, "role"),
        plan_id=_optional(line, "plan_id"),
        attempt=attempt if isinstance(attempt, int) else 0,
        created_at=_optional(line, "created_at"),
        ended_at=_optional(line, "finalized_at"),
        agent=_optional(line, "agent"),
        error=_optional(error, "message"),
        category=_optional(error, "category"),
        ended=status in _ENDED or (status == Status.FAILED and line.get("finalized_at") is not None),
    )


def _optional(line: Mapping[str, Any], name: str) -> str | None:
    value = line.get(name)
    return value if isinstance(value, str) else None


def word_list(line: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = line.get(name)
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def as_object(text: bytes | str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError, TypeError):
        data = None
    if not isinstance(data, dict):
        raise FarroError("the queue answered with something that is no JSON object; is it `farro agq`?")
    return data


def as_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def as_json(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
