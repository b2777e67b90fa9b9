"""Describe a route as data: method, path, the dataclasses that it takes and returns, and its handler.

The application and the OpenAPI document are both built from these descriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from farro.documents import Document
from farro.lazy_dataclass import dataclass, field
from farro.web.state import WebState

Method = Literal["GET", "POST"]


@dataclass(frozen=True, slots=True)
class NoFields:
    """A query or body without members."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiRequest:
    """A request whose query and body were parsed and checked."""

    path: Mapping[str, str]
    query: Any
    body: Any
    document: Document | None = None  # the body with the positions of its members


@dataclass(frozen=True, kw_only=True, slots=True)
class RawResponse:
    """A response that is not JSON."""

    data: bytes
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200


Handler = Callable[[WebState, ApiRequest], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """A route. Its handler runs in a thread and returns data to encode as JSON, or a RawResponse."""

    method: Method
    path: str  # with {names}; a name that ends in :path matches slashes
    handler: Handler
    summary: str
    response: Any = None  # the dataclass of the response; None: bytes of `media_type`
    query: type = NoFields
    body: type | None = None
    status: int = 200
    media_type: str = "application/json"
    cache_s: float = 0.0  # requests within this time share one response, which is computed once
    tag: str = "jobs"
    changes_nothing: bool = False  # a POST that a read-only server accepts
    slow: bool = False  # it waits for other processes: run it in a thread pool of its own


def get(path: str, handler: Handler, summary: str, response: Any = None, **more: Any) -> Endpoint:
    return Endpoint(method="GET", path=path, handler=handler, summary=summary, response=response, **more)


def post(path: str, handler: Handler, summary: str, response: Any = None, **more: Any) -> Endpoint:
    return Endpoint(method="POST", path=path, handler=handler, summary=summary, response=response, **more)
