"""Assemble the ASGI application: endpoints, the dashboard's files, access guard, event hub, and the thread that follows
changes."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import lru_cache
from importlib import resources

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from farro.web import (
    accounts,
    errors,
    events,
    job_commands,
    job_queries,
    long_requests,
    openapi,
    output,
    overview,
    plans,
    swarms,
    tasks,
    time_travel,
)
from farro.web.access import AccessGuard, AccessRules
from farro.web.errors import HttpError
from farro.web.events import ChangeFollower, EventHub
from farro.web.output import OutputStreams
from farro.web.request_handling import SLOW_THREADS, ApiRequest, EndpointRunner, Routes, ThreadPool, WebState

RequestHandler = Callable[[Request], Awaitable[Response]]

routes = Routes("overview")


@routes.get("/api/openapi.json", "This document.", openapi.OpenApiDocument, cache_s=60.0)
def show_openapi(state: WebState, request: ApiRequest) -> object:
    return openapi.document(ENDPOINTS, version=state.version)


_MODULES = (overview, accounts, job_queries, output, job_commands, tasks, swarms, time_travel, plans, long_requests)
ENDPOINTS = tuple(endpoint for each in (*(module.routes for module in _MODULES), routes) for endpoint in each.endpoints)

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
    "json": "application/json",
    "webmanifest": "application/manifest+json",
    "txt": "text/plain; charset=utf-8",
}
_FILE_BYTES = 4 << 20
_NO_PAGE = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>farro</title></head>
<body><h1>farro</h1><p>This installation has no page. The API is at <a href="/api">/api</a>.</p></body></html>
"""


class WebApplication:
    """The ASGI application `app`, and what it runs beside the requests.

    `hub` exists while the application runs.
    """

    def __init__(self, state: WebState, access: AccessRules, *, epoch: str) -> None:
        self._state = state
        self._epoch = epoch
        self._pool = ThreadPool()
        self._slow = ThreadPool(SLOW_THREADS, SLOW_THREADS)
        self._runner = EndpointRunner(state, self._pool, self._slow)
        self.hub: EventHub | None = None
        self._output_streams: OutputStreams | None = None
        self.routes = self._routes()
        inner = Starlette(
            routes=self.routes,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: _http_error, Exception: _internal_error},  # type: ignore[dict-item]
        )
        self.app: ASGIApp = AccessGuard(inner, access)

    def _routes(self) -> list[Route]:
        by_path: dict[str, dict[str, RequestHandler]] = {}
        # Paths without parameters first: where two routes match, the first one decides which methods are allowed.
        for endpoint in sorted(ENDPOINTS, key=lambda endpoint: "{" in endpoint.path):
            by_path.setdefault(endpoint.path, {})[endpoint.method] = self._runner.handler(endpoint)
        found = [Route(path, _by_method(handlers), methods=list(handlers)) for path, handlers in by_path.items()]
        return [
            Route("/", _index, methods=["GET"]),
            Route("/page/{path:path}", _file, methods=["GET"]),
            Route("/healthz", self._health, methods=["GET"]),
            Route("/api/events", self._events, methods=["GET"]),
            Route("/api/jobs/{job}/logs/stream", self._follow, methods=["GET"]),
            Route("/api/jobs/{job}/logs/whole", self._download, methods=["GET"]),
            *found,
        ]

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        hub = self.hub = EventHub(self._epoch)
        self._output_streams = OutputStreams(self._state, self._pool, hub)
        follower = ChangeFollower(self._state, hub)
        follower.start()
        try:
            yield
        finally:
            self._state.stopping.set()
            hub.close()
            follower.stop()
            self._pool.close()
            self._slow.close()

    def stop(self) -> None:
        """End the streams, so that the server need not wait for them. Call this in the loop's thread."""
        self._state.stopping.set()
        if self.hub is not None:
            self.hub.close()

    async def _health(self, request: Request) -> Response:
        try:
            await self._pool.run(self._state.store.roles, 5.0)
        except Exception:  # noqa: BLE001 - any failure means that the store is not healthy
            return Response(b'{"ok": false}', status_code=503, media_type=errors.JSON)
        return Response(b'{"ok": true}', media_type=errors.JSON)

    async def _events(self, request: Request) -> Response:
        assert self.hub is not None
        last = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
        return events.open_event_stream(self._state, self.hub, last)

    async def _follow(self, request: Request) -> Response:
        assert self._output_streams is not None
        return await self._output_streams.follow(request)

    async def _download(self, request: Request) -> Response:
        assert self._output_streams is not None
        return await self._output_streams.download(request)


def _by_method(handlers: Mapping[str, RequestHandler]) -> RequestHandler:
    """Serve all methods of a path by one route: only then does a 405 list all methods that the path allows."""

    async def answer(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await handlers[method](request)

    return answer


async def _http_error(request: Request, error: HTTPException) -> Response:
    codes = {404: "not_found", 405: "method_not_allowed"}
    words = {
        404: "there is no such route; GET /api/openapi.json lists them",
        405: "this route does not take that method",
    }
    refusal = HttpError(
        error.status_code,
        codes.get(error.status_code, "bad_request"),
        words.get(error.status_code, str(error.detail)),
        dict(error.headers or {}),
    )
    return errors.response(refusal)


async def _internal_error(request: Request, error: Exception) -> Response:
    return errors.response(HttpError(500, "internal", "something is wrong here; the server's log says what"))


def _index(request: Request) -> Response:
    return _static_file(request, "index.html")


def _file(request: Request) -> Response:
    return _static_file(request, request.path_params["path"])


def _static_file(request: Request, name: str) -> Response:
    ending = name.rsplit(".", 1)[-1].lower()
    found = _read_file(name) if ending in MEDIA_TYPES else None
    if found is None:
        if name == "index.html":
            return Response(_NO_PAGE, media_type=MEDIA_TYPES["html"])
        return errors.response(HttpError(404, "not_found", "no such page"))
    data, tag = found
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=MEDIA_TYPES[ending], headers=headers)


def _read_file(name: str) -> tuple[bytes, str] | None:
    home = str(resources.files("farro.web").joinpath("page"))
    path = os.path.normpath(os.path.join(home, name))
    if not path.startswith(f"{home}{os.sep}") or "\0" in name:
        return None
    try:
        status = os.stat(path)
        return _content(path, status.st_mtime_ns, status.st_size)
    except OSError:
        return None


@lru_cache(maxsize=256)
def _content(path: str, changed_ns: int, size: int) -> tuple[bytes, str]:
    """Read a file once per version of it."""
    if size > _FILE_BYTES:
        raise OSError(f"{path} exceeds the size limit for files of the page")
    with open(path, "rb") as file:
        data = file.read()
    return data, f'"{hashlib.sha256(data).hexdigest()[:32]}"'
