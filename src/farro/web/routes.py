"""List all endpoints: the application and the OpenAPI document are built from this table."""

from __future__ import annotations

from farro.web import (
    job_commands,
    job_queries,
    long_requests,
    metrics,
    openapi,
    output,
    overview,
    plans,
    swarms,
    tasks,
    time_travel,
)
from farro.web.endpoints import ApiRequest, Endpoint, get
from farro.web.state import WebState

_API: tuple[Endpoint, ...] = (
    *overview.ENDPOINTS,
    *metrics.ENDPOINTS,
    *job_queries.ENDPOINTS,
    *output.ENDPOINTS,
    *job_commands.ENDPOINTS,
    *tasks.ENDPOINTS,
    *swarms.ENDPOINTS,
    *time_travel.ENDPOINTS,
    *plans.ENDPOINTS,
    *long_requests.ENDPOINTS,
)


def show_openapi(state: WebState, request: ApiRequest) -> object:
    return openapi.document(ENDPOINTS, version=state.version)


ENDPOINTS: tuple[Endpoint, ...] = (
    *_API,
    get("/api/openapi.json", show_openapi, "This document.", openapi.OpenApiDocument, cache_s=60.0, tag="overview"),
)
