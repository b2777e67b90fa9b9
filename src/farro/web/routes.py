"""Every endpoint that there is, in one table: the application and the OpenAPI document are made of it.

What each does lives in the module of its noun.
"""

from __future__ import annotations

from farro.web import (
    job_commands,
    job_queries,
    long_requests,
    metrics,
    named_jobs,
    openapi,
    output,
    overview,
    queues,
    roles_and_plans,
    swarms,
    tasks,
    time_travel,
)
from farro.web.endpoints import Asked, Endpoint, get
from farro.web.state import House

_NOUNS: tuple[Endpoint, ...] = (
    *overview.ENDPOINTS,
    *queues.ENDPOINTS,
    *metrics.ENDPOINTS,
    *job_queries.ENDPOINTS,
    *output.ENDPOINTS,
    *job_commands.ENDPOINTS,
    *named_jobs.ENDPOINTS,
    *tasks.ENDPOINTS,
    *swarms.ENDPOINTS,
    *time_travel.ENDPOINTS,
    *roles_and_plans.ENDPOINTS,
    *long_requests.ENDPOINTS,
)


def described(house: House, asked: Asked) -> object:
    return openapi.document(ENDPOINTS, version=house.version)


ENDPOINTS: tuple[Endpoint, ...] = (
    *_NOUNS,
    get("/api/openapi.json", described, "This document.", openapi.Document, keep_s=60.0, tag="overview"),
)
