"""A request through an endpoint: query and body are read and checked, it runs in a thread, its answer is sent.

Who may ask is judged before (`access`). The store's calls block, so they run in a pool of threads of fixed size; when
too many wait for it, or one takes too long, the answer is 503 and nobody waits any longer.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from farro.documents import Document, parse_json, refusal, shapes
from farro.errors import FarroError
from farro.web import errors, query_parameters
from farro.web.endpoints import Asked, Bytes, Endpoint
from farro.web.errors import Wrong
from farro.web.state import House

THREADS = 8
SLOW_THREADS = 32  # of what waits for others: requests beyond these are refused
WAITING = 256  # requests that may wait for a thread
SLOW_PATIENCE_S = 300.0
PATIENCE_S = 30.0  # of one call; it is not stopped, but nobody waits for it any more
BODY_BYTES = 1 << 20
DISCARDED_BYTES = 16 << 20  # of a body that is too large: else its sender finds a closed connection, and no answer
PIECE_BYTES = 1 << 20  # of an answer that is sent at once
SLOW_S = 10.0  # in which a piece must have been taken
BODY_S = 10.0  # in which a body must have arrived


class Pool:
    """The threads that may block. `closing` lets go of them without waiting: a store that hangs must not keep us."""

    def __init__(self, threads: int = THREADS, waiting: int = WAITING) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="http")
        self._most = waiting
        self._waiting = 0

    async def run(self, call: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
        if self._waiting >= self._most:
            raise Wrong(503, "busy", "too many requests wait here already; ask again in a moment")
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, call)
        future.add_done_callback(self._done)
        try:
            async with asyncio.timeout(patience_s):
                return await asyncio.shield(future)
        except TimeoutError:
            raise Wrong(503, "slow", f"the store did not answer within {patience_s:g} s; ask again later") from None

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._waiting -= 1
        if not future.cancelled():
            future.exception()  # told to whoever waited; if nobody did, it is nobody's

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class Large(Response):
    """Much, sent bit by bit: whoever takes none of it for a while is left alone, or a few such hold all our memory."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for start in range(0, len(body), PIECE_BYTES):
            more = start + PIECE_BYTES < len(body)
            async with asyncio.timeout(SLOW_S):
                piece = bytes(body[start : start + PIECE_BYTES])
                await send({"type": "http.response.body", "body": piece, "more_body": more})


class Running:
    """How the endpoints of one house are run."""

    def __init__(self, house: House, pool: Pool, slow: Pool) -> None:
        self._house = house
        self._pool = pool
        self._slow = slow
        self._kept: dict[tuple[str, str], tuple[float, asyncio.Future[Response]]] = {}

    def route(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                if endpoint.keep_s:
                    return await self._shared(endpoint, request)
                return await self._answered(endpoint, request)
            except FarroError as error:
                return errors.response(error)
            except ClientDisconnect:
                return Response(status_code=400)
            except OSError as error:
                return errors.response(
                    Wrong(503, "storage_trouble", f"{error.filename or ''} {error.strerror}".strip())
                )
            except Exception as error:  # noqa: BLE001 - the edge: one request's fault must end no other's
                where = traceback.extract_tb(error.__traceback__)[-1]
                told = {"what": f"{type(error).__name__}: {error}", "where": f"{where.filename}:{where.lineno}"}
                self._house.log("error", "a request failed here", {"path": endpoint.path, **told})
                return errors.response(Wrong(500, "internal", "something is wrong here; the server's log says what"))

        return answer

    async def _answered(self, endpoint: Endpoint, request: Request) -> Response:
        asked = await self._read(endpoint, request)
        pool, patience_s = (self._slow, SLOW_PATIENCE_S) if endpoint.slow else (self._pool, PATIENCE_S)
        made = await pool.run(lambda: self._done(endpoint, asked), patience_s)
        assert isinstance(made, Response)
        return made

    def _done(self, endpoint: Endpoint, asked: Asked) -> Response:
        """In a thread, with the making of its text: that of a long list takes longer than the list."""
        told = endpoint.do(self._house, asked)
        if isinstance(told, Response):
            return told
        if isinstance(told, Bytes):
            kind = Response if len(told.data) <= PIECE_BYTES else Large
            return kind(told.data, status_code=told.status, media_type=told.kind, headers=dict(told.headers))
        return Response(errors.text(told), status_code=endpoint.status, media_type=errors.JSON)

    async def _shared(self, endpoint: Endpoint, request: Request) -> Response:
        """One answer for all who ask the same within a moment: a hundred pages cost what one does."""
        loop = asyncio.get_running_loop()
        key = (request.url.path, request.url.query)
        found = self._kept.get(key)
        if found is None or (found[1].done() and (found[0] < loop.time() or found[1].exception() is not None)):
            future: asyncio.Future[Response] = asyncio.ensure_future(self._answered(endpoint, request))
            if len(self._kept) >= 256:
                self._kept = {key: kept for key, kept in self._kept.items() if kept[0] >= loop.time()}
            found = (loop.time() + endpoint.keep_s, future)
            self._kept[key] = found
        made = await asyncio.shield(found[1])
        return Response(made.body, status_code=made.status_code, headers=dict(made.headers))

    async def _read(self, endpoint: Endpoint, request: Request) -> Asked:
        query = query_parameters.read(endpoint.query, request.query_params)
        body, document = None, None
        if endpoint.method == "POST":
            document = await _document(request)
            if self._house.read_only and not endpoint.harmless:
                why = "this server only shows (`web.read_only`); use the commands where farro runs"
                raise Wrong(403, "read_only", why)
            body = _checked(endpoint.body, document)
        return Asked(path=request.path_params, query=query, body=body, document=document)


async def _document(request: Request) -> Document:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told) > DISCARDED_BYTES:
        raise _too_large()
    text, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_S):
            async for block in request.stream():
                size += len(block)
                if size > DISCARDED_BYTES:
                    raise _too_large()
                if size <= BODY_BYTES:
                    text += block
    except TimeoutError:
        raise Wrong(408, "slow_body", f"the body did not arrive within {BODY_S:g} s") from None
    if size > BODY_BYTES:
        raise _too_large()
    if text and kind != "application/json":
        raise Wrong(415, "unsupported_media_type", "a body must be JSON: Content-Type: application/json")
    return parse_json(bytes(text) or b"{}", source="body")


def _too_large() -> Wrong:
    return Wrong(413, "too_large", f"a body may have {BODY_BYTES} bytes", {"Connection": "close"})


def _checked(shape: type | None, document: Document) -> Any:
    if shape is None:
        return None
    found: shapes.Checked[Any] = shapes.check(shape, document.data)
    if found.faults:
        problems = [document.problem(fault.path, fault.message, key=fault.key) for fault in found.faults]
        raise refusal(document.source, problems)
    return found.value
