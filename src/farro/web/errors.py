"""Turn errors into HTTP responses with a status, a code and a message; encode data as JSON."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, is_dataclass
from typing import Any

from starlette.responses import Response

from farro import errors
from farro.documents.json_text import encoder

JSON = "application/json"
_STATUSES: tuple[tuple[type[errors.FarroError], int], ...] = (
    (errors.UnknownJob, 404),
    (errors.NoTask, 404),
    (errors.BadDocument, 422),
    (errors.BadName, 422),
    (errors.UnknownRole, 422),
    (errors.IdConflict, 409),
    (errors.NameTaken, 409),
    (errors.InputError, 400),
    (errors.CapacityReached, 429),
    (errors.NotPermitted, 403),
    (errors.BudgetExceeded, 403),
    (errors.Refused, 409),
    (errors.Lost, 409),
    (errors.TryAgain, 503),
    (errors.NotReplicated, 503),
)
_encode = encoder(ensure_ascii=True, default=lambda value: _plain(value))


class HttpError(errors.FarroError):
    """An error that only HTTP has, with its status and code."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        self.status = status
        self.code = code
        self.headers = headers or {}
        super().__init__(message)


def error_data(error: errors.FarroError) -> dict[str, Any]:
    """Build the `error` member of an error response."""
    own = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()
    data: dict[str, Any] = {"code": error.code if isinstance(error, HttpError) else own, "message": str(error)}
    if isinstance(error, errors.BadDocument):
        data["problems"] = [asdict(problem) for problem in error.problems]
    return data


def response(error: errors.FarroError) -> Response:
    if isinstance(error, HttpError):
        status, headers = error.status, dict(error.headers)
    else:
        status, headers = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500), {}
    if status == 503:
        headers.setdefault("Retry-After", "2")
    return Response(json_text({"error": error_data(error)}), status_code=status, media_type=JSON, headers=headers)


def json_text(data: Any) -> bytes:
    """Encode as JSON in ASCII, so that any client can decode it, even where a job's output has a lone surrogate."""
    try:
        return _encode(data).encode()
    except ValueError:  # a prompt holds a number that JSON lacks, such as NaN
        return json.dumps(_finite(data), default=_plain).encode()


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, tuple):
        return list(value)
    return str(value)


def _finite(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(name): _finite(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(member) for member in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
