"""A route as data: its method, path, what it takes and answers as dataclasses, and the function that does it.

The functions live in the modules of their nouns; how a request is read, run and answered lives in `running`; the
OpenAPI document is made of the same data in `openapi`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from farro.documents import Document
from farro.lazy_dataclass import dataclass, field
from farro.web.state import House

Method = Literal["GET", "POST"]


@dataclass(frozen=True, slots=True)
class Nothing:
    """A query or body without members."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A request, read and checked."""

    path: Mapping[str, str]
    query: Any
    body: Any
    document: Document | None = None  # the body with its places


@dataclass(frozen=True, kw_only=True, slots=True)
class Bytes:
    """An answer that is no JSON."""

    data: bytes
    kind: str
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    method: Method
    path: str  # with {names}; a name that ends in :path takes slashes
    do: Callable[[House, Asked], Any]
    summary: str
    answer: Any = None  # the dataclass of the answer; None: bytes of `kind`
    query: type = Nothing
    body: type | None = None
    status: int = 200
    kind: str = "application/json"
    keep_s: float = 0.0  # one answer serves all who ask within this time; a slow one is made once at a time
    tag: str = "jobs"
    harmless: bool = False  # a POST that changes nothing
    slow: bool = False  # it waits for others: in threads apart
    errors: tuple[int, ...] = ()  # beside those that every route has


def get(path: str, do: Callable[[House, Asked], Any], summary: str, answer: Any = None, **more: Any) -> Endpoint:
    return Endpoint(method="GET", path=path, do=do, summary=summary, answer=answer, **more)


def post(path: str, do: Callable[[House, Asked], Any], summary: str, answer: Any = None, **more: Any) -> Endpoint:
    return Endpoint(method="POST", path=path, do=do, summary=summary, answer=answer, **more)
