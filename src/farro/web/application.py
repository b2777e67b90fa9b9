"""The application: routes, guards, the reader of changes, put together from a house and who may come in.

Serving it on a port is cli.web; which parts the house has is chosen in farro.app.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from farro.web import errors, events, static_files
from farro.web.access import Guard
from farro.web.errors import Wrong
from farro.web.events import Follower, Hub
from farro.web.output_streams import Followers
from farro.web.request_handling import SLOW_THREADS, Pool, Running
from farro.web.routes import ENDPOINTS
from farro.web.state import Access, House

Answers = Callable[[Request], Awaitable[Response]]


class Web:
    """One application and what it started. `app` is what a server runs; `hub` and `routes` are for whoever looks."""

    def __init__(self, house: House, access: Access, *, epoch: str) -> None:
        self._house = house
        self._epoch = epoch
        self._pool = Pool()
        self._slow = Pool(SLOW_THREADS, SLOW_THREADS)
        self._running = Running(house, self._pool, self._slow)
        self.hub: Hub | None = None
        self._followers: Followers | None = None
        self.routes = self._made()
        inner = Starlette(
            routes=self.routes,
            lifespan=self._life,
            exception_handlers={HTTPException: _refused, Exception: _broken},  # type: ignore[dict-item]
        )
        self.app: ASGIApp = Guard(inner, access)

    def _made(self) -> list[Route]:
        by_path: dict[str, dict[str, Answers]] = {}
        # Plain paths first: where two fit, theirs says which methods are allowed.
        for one in sorted(ENDPOINTS, key=lambda one: "{" in one.path):
            by_path.setdefault(one.path, {})[one.method] = self._running.route(one)
        found = [Route(path, _by_method(answers), methods=list(answers)) for path, answers in by_path.items()]
        return [
            Route("/", static_files.index, methods=["GET"]),
            Route("/page/{path:path}", static_files.file, methods=["GET"]),
            Route("/healthz", self._health, methods=["GET"]),
            Route("/api/events", self._events, methods=["GET"]),
            Route("/api/jobs/{job}/logs/stream", self._follow, methods=["GET"]),
            Route("/api/jobs/{job}/logs/whole", self._whole, methods=["GET"]),
            *found,
        ]

    @contextlib.asynccontextmanager
    async def _life(self, _: Starlette) -> AsyncIterator[None]:
        hub = self.hub = Hub(self._epoch)
        self._followers = Followers(self._house, self._pool, hub)
        follower = Follower(self._house, hub)
        follower.start()
        try:
            yield
        finally:
            self._house.stopping.set()
            hub.close()
            follower.stop()
            self._pool.close()
            self._slow.close()

    def stop(self) -> None:
        """Streams end, so that the server need not wait for them. In the loop's thread."""
        self._house.stopping.set()
        if self.hub is not None:
            self.hub.close()

    async def _health(self, request: Request) -> Response:
        try:
            await self._pool.run(self._house.store.roles, 5.0)
        except Exception:  # noqa: BLE001 - whatever it is, it is not well
            return Response(b'{"ok": false}', status_code=503, media_type=errors.JSON)
        return Response(b'{"ok": true}', media_type=errors.JSON)

    async def _events(self, request: Request) -> Response:
        assert self.hub is not None
        last = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
        return events.viewed(self._house, self.hub, last)

    async def _follow(self, request: Request) -> Response:
        assert self._followers is not None
        return await self._followers.follow(request)

    async def _whole(self, request: Request) -> Response:
        assert self._followers is not None
        return await self._followers.whole(request)


def _by_method(answers: Mapping[str, Answers]) -> Answers:
    """One route for a path: else a method that it does not take is told without the others that it does."""

    async def answer(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await answers[method](request)

    return answer


async def _refused(request: Request, error: HTTPException) -> Response:
    codes = {404: "not_found", 405: "method_not_allowed"}
    words = {
        404: "there is no such route; GET /api/openapi.json lists them",
        405: "this route does not take that method",
    }
    wrong = Wrong(
        error.status_code,
        codes.get(error.status_code, "bad_request"),
        words.get(error.status_code, str(error.detail)),
        dict(error.headers or {}),
    )
    return errors.response(wrong)


async def _broken(request: Request, error: Exception) -> Response:
    return errors.response(Wrong(500, "internal", "something is wrong here; the server's log says what"))
