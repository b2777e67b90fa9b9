"""Every endpoint that there is, in one table: the application and the OpenAPI document are made of it.

What each does lives in the module of its noun.
"""

from __future__ import annotations

from farro.fronts.http import (
    acting,
    keeping,
    looking,
    measures,
    openapi,
    output,
    overview,
    past,
    queues,
    shelf,
    swarms,
    tasks,
    trying,
)
from farro.fronts.http.endpoints import Asked, Endpoint, get
from farro.fronts.http.house import House

_NOUNS: tuple[Endpoint, ...] = (
    *overview.ENDPOINTS,
    *queues.ENDPOINTS,
    *measures.ENDPOINTS,
    *looking.ENDPOINTS,
    *output.ENDPOINTS,
    *acting.ENDPOINTS,
    *keeping.ENDPOINTS,
    *tasks.ENDPOINTS,
    *swarms.ENDPOINTS,
    *past.ENDPOINTS,
    *shelf.ENDPOINTS,
    *trying.ENDPOINTS,
)


def described(house: House, asked: Asked) -> object:
    return openapi.document(ENDPOINTS, version=house.version)


ENDPOINTS: tuple[Endpoint, ...] = (
    *_NOUNS,
    get("/api/openapi.json", described, "This document.", openapi.Document, keep_s=60.0, tag="overview"),
)
