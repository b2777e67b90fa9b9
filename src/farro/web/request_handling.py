"""Describe a route as data, and run a request through it: parse and check, call its handler in a thread, respond.

A route is an `Endpoint`: method, path, the dataclasses that it takes and returns, and its handler. The application and
the OpenAPI document are both built from these. The store's calls block, so handlers run in thread pools of fixed size.
When too many requests wait for a thread, or a call takes too long, the response is 503.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
import typing
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import UnionType
from typing import Any, Literal

from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from farro.config.settings import Settings
from farro.doctor.report import Examination
from farro.documents import Document, parse_json, refusal, shapes
from farro.errors import BadDocument, FarroError, Problem
from farro.host.clock import Clock
from farro.lazy_dataclass import dataclass, field
from farro.log.structured import Log
from farro.queue import find_job
from farro.queue.admission import Gate
from farro.queue.agent_rules import contract_of
from farro.queue.catalog.catalog import Catalog
from farro.queue.plan_check import PlanContext
from farro.queue.submit import SubmitPolicy
from farro.queue.time_travel import QueueHistory
from farro.store.ledger import Ledger
from farro.store.library import Library
from farro.store.port import Store
from farro.web import errors
from farro.web.errors import HttpError

THREADS = 8
SLOW_THREADS = 32  # for endpoints that wait for other processes; requests beyond these are refused
MAX_WAITING = 256  # requests that may wait for a thread
CALL_TIMEOUT_S = 30.0  # the call goes on after it, but its client gets an error
SLOW_CALL_TIMEOUT_S = 300.0
BODY_BYTES = 1 << 20
DISCARDED_BYTES = 16 << 20  # read and dropped of a body that is too large: else the client sees a reset, not the error
PIECE_BYTES = 1 << 20  # of a response that is sent in one piece
SEND_TIMEOUT_S = 10.0  # for the client to accept a piece
BODY_TIMEOUT_S = 10.0  # for a body to arrive
MAX_CACHED = 256  # responses

_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


Method = Literal["GET", "POST"]


@dataclass(frozen=True, kw_only=True)
class WebState:
    """The state that all requests of one server share."""

    store: Store
    settings: Settings
    catalog: Catalog
    clock: Clock
    ledger: Ledger
    log: Log
    version: str
    person: str  # the actor's agent name, written into hops[]
    user: str  # the actor's user name, which the caps count
    gate: Callable[[bool], Gate]  # takes `force`
    library: Callable[[], Library]  # the stored plans
    plan_context: Callable[[], PlanContext]  # what plans are checked against
    examine: Callable[[], Examination]  # runs the checks of `farro doctor`
    ensure_orchestrator: Callable[[], None]  # starts an orchestrator unless one runs
    settings_of: Callable[[str], Settings]  # reads the settings of a root; a job's snapshot is such a root
    policy_lock: Callable[[], Mapping[str, Any]]  # the current content for policy.lock.json
    test_provider: Callable[[str | None, str | None, str], Mapping[str, Any]]  # takes role, provider, prompt
    queue_history: QueueHistory
    store_name: str = "files"
    started_at: str = ""
    read_only: bool = False
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def root(self) -> str:
        return self.store.root

    @property
    def policy(self) -> SubmitPolicy:
        """The rules for what a request submits."""
        return SubmitPolicy(gate=self.gate(False), contract=contract_of(self.root, self.settings), clock=self.clock)

    def resolve_job(self, text: str, *, shortest: int = 1) -> str:
        """Return the id of the job that `text` names: an id, a job's name, or the beginning of an id.

        Once the catalog is loaded, the ids come from memory instead of the store.
        """
        known = self.catalog.ids if self.catalog.ready else None
        return find_job.resolve(self.store, text, shortest=shortest, known=known)


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


Handler = Callable[[WebState, ApiRequest], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """A route. Its handler runs in a thread and returns data to encode as JSON, or a Response."""

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
    tag: str
    changes_nothing: bool = False  # a POST that a read-only server accepts
    slow: bool = False  # it waits for other processes: run it in a thread pool of its own


class Routes:
    """The endpoints of one module: `get` and `post` are decorators of their handlers."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self.endpoints: list[Endpoint] = []

    def get(self, path: str, summary: str, response: Any = None, **more: Any) -> Callable[[Handler], Handler]:
        return self._endpoint("GET", path, summary=summary, response=response, **more)

    def post(self, path: str, summary: str, response: Any = None, **more: Any) -> Callable[[Handler], Handler]:
        return self._endpoint("POST", path, summary=summary, response=response, **more)

    def _endpoint(self, method: Method, path: str, **more: Any) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            self.endpoints.append(Endpoint(method=method, path=path, handler=handler, **{"tag": self._tag, **more}))
            return handler

        return add


# --- running them -----------------------------------------------------------------------------------------------------


class ThreadPool:
    """The threads that may block."""

    def __init__(self, threads: int = THREADS, waiting: int = MAX_WAITING) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="http")
        self._max_waiting = waiting
        self._waiting = 0

    async def run(self, call: Callable[[], Any], timeout_s: float = CALL_TIMEOUT_S) -> Any:
        if self._waiting >= self._max_waiting:
            raise HttpError(503, "busy", "too many requests wait here already; ask again in a moment")
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, call)
        future.add_done_callback(self._done)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(future)
        except TimeoutError:
            message = f"the store did not answer within {timeout_s:g} s; ask again later"
            raise HttpError(503, "slow", message) from None

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._waiting -= 1
        if not future.cancelled():
            future.exception()  # mark it as retrieved: after a timeout no task awaits the future

    def close(self) -> None:
        """Drop the threads without waiting for them: a store that hangs must not block the shutdown."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class ChunkedResponse(Response):
    """Send a large body in pieces, and give up when the client accepts none for a while.

    Without this a few clients that do not read would hold all memory.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for start in range(0, max(1, len(body)), PIECE_BYTES):
            more = start + PIECE_BYTES < len(body)
            async with asyncio.timeout(SEND_TIMEOUT_S):
                piece = bytes(body[start : start + PIECE_BYTES])
                await send({"type": "http.response.body", "body": piece, "more_body": more})


class EndpointRunner:
    """Run endpoints on the shared state, and cache the responses of those that permit it."""

    def __init__(self, state: WebState, pool: ThreadPool, slow: ThreadPool) -> None:
        self._state = state
        self._pool = pool
        self._slow = slow
        self._cached: dict[tuple[str, str], tuple[float, asyncio.Future[Response]]] = {}  # with the end of its validity

    def handler(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            try:
                if endpoint.cache_s:
                    return await self._shared_response(endpoint, request)
                return await self._response(endpoint, request)
            except FarroError as error:
                return errors.response(error)
            except ClientDisconnect:
                return Response(status_code=400)
            except OSError as error:
                message = f"{error.filename or ''} {error.strerror}".strip()
                return errors.response(HttpError(503, "storage_trouble", message))
            except Exception as error:  # noqa: BLE001 - a defect in one request must not end others
                self._log_defect(endpoint, error)
                message = "something is wrong here; the server's log says what"
                return errors.response(HttpError(500, "internal", message))

        return handle

    def _log_defect(self, endpoint: Endpoint, error: Exception) -> None:
        where = traceback.extract_tb(error.__traceback__)[-1]
        fields = {
            "path": endpoint.path,
            "what": f"{type(error).__name__}: {error}",
            "where": f"{where.filename}:{where.lineno}",
        }
        self._state.log("error", "a request failed here", fields)

    async def _response(self, endpoint: Endpoint, request: Request) -> Response:
        api_request = await self._read_request(endpoint, request)
        pool, timeout_s = (self._slow, SLOW_CALL_TIMEOUT_S) if endpoint.slow else (self._pool, CALL_TIMEOUT_S)
        response = await pool.run(lambda: self._call(endpoint, api_request), timeout_s)
        assert isinstance(response, Response)
        return response

    def _call(self, endpoint: Endpoint, api_request: ApiRequest) -> Response:
        """Call the handler and encode its result. Both run in a thread: encoding a long list takes longest."""
        result = endpoint.handler(self._state, api_request)
        if isinstance(result, Response):
            return result
        return Response(errors.json_text(result), status_code=endpoint.status, media_type=errors.JSON)

    async def _shared_response(self, endpoint: Endpoint, request: Request) -> Response:
        """Compute one response for all equal requests within `cache_s`: a hundred pages cost as much as one."""
        loop = asyncio.get_running_loop()
        key = (request.url.path, request.url.query)
        found = self._cached.get(key)
        if found is None or (found[1].done() and (found[0] < loop.time() or found[1].exception() is not None)):
            future: asyncio.Future[Response] = asyncio.ensure_future(self._response(endpoint, request))
            if len(self._cached) >= MAX_CACHED:
                self._cached = {key: entry for key, entry in self._cached.items() if entry[0] >= loop.time()}
            found = (loop.time() + endpoint.cache_s, future)
            self._cached[key] = found
        response = await asyncio.shield(found[1])
        return Response(response.body, status_code=response.status_code, headers=dict(response.headers))

    async def _read_request(self, endpoint: Endpoint, request: Request) -> ApiRequest:
        query = read_query(endpoint.query, request.query_params)
        body, document = None, None
        if endpoint.method == "POST":
            document = await _read_body(request)
            if self._state.read_only and not endpoint.changes_nothing:
                why = "this server only shows (`web.read_only`); use the commands where farro runs"
                raise HttpError(403, "read_only", why)
            body = _check_body(endpoint.body, document)
        return ApiRequest(path=request.path_params, query=query, body=body, document=document)


# --- bodies ----------------------------------------------------------------------------------------------------------


async def _read_body(request: Request) -> Document:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > DISCARDED_BYTES:
        raise _too_large()
    text, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for block in request.stream():
                size += len(block)
                if size > DISCARDED_BYTES:
                    raise _too_large()
                if size <= BODY_BYTES:
                    text += block
    except TimeoutError:
        raise HttpError(408, "slow_body", f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from None
    if size > BODY_BYTES:
        raise _too_large()
    if text and media_type != "application/json":
        raise HttpError(415, "unsupported_media_type", "a body must be JSON: Content-Type: application/json")
    return parse_json(bytes(text) or b"{}", source="body")


def _too_large() -> HttpError:
    return HttpError(413, "too_large", f"a body may have {BODY_BYTES} bytes", {"Connection": "close"})


def _check_body(shape: type | None, document: Document) -> Any:
    if shape is None:
        return None
    checked: shapes.Checked[Any] = shapes.check(shape, document.data)
    if checked.faults:
        problems = [document.problem(fault.path, fault.message, key=fault.key) for fault in checked.faults]
        raise refusal(document.source, problems)
    return checked.value


# --- query parameters ------------------------------------------------------------------------------------------------


def read_query(shape: type, parameters: QueryParams) -> Any:
    """Convert query parameters to a dataclass by its annotations, and check them as documents are checked.

    Raises BadDocument with all problems. Unknown names are refused: a misspelled filter must not list everything.
    """
    kinds = _kinds(shape)
    data: dict[str, Any] = {}
    problems: list[Problem] = []
    for name in dict.fromkeys(parameters.keys()):
        values = parameters.getlist(name)
        kind = kinds.get(name)
        if kind is None:
            known = ", ".join(kinds) or "none"
            problems.append(Problem(path=name, message=f"is not a known parameter; known: {known}"))
        elif kind is tuple:
            data[name] = values
        elif len(values) > 1:
            problems.append(Problem(path=name, message="is given more than once"))
        else:
            data[name] = _parse_value(kind, values[0])
    checked: shapes.Checked[Any] = shapes.check(shape, data)
    problems += [Problem(path=str(fault.path[0]), message=fault.message) for fault in checked.faults]
    if problems:
        raise BadDocument("query", problems)
    return checked.value


@cache
def _kinds(shape: type) -> dict[str, type]:
    hints = typing.get_type_hints(shape)
    return {name: _kind(hint) for name, hint in hints.items()}


def _kind(hint: Any) -> type:
    if typing.get_origin(hint) in (typing.Union, UnionType):
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    if typing.get_origin(hint) is tuple:
        return tuple
    return hint if hint in (int, float, bool) else str


def _parse_value(kind: type, text: str) -> Any:
    """Parse a number or boolean. Other text stays text, so that the check reports it."""
    try:
        if kind is int:
            return int(text) if text.isascii() and len(text) < 20 else text
        if kind is float:
            return float(text) if text.isascii() and "_" not in text else text
    except ValueError:
        return text
    return _BOOLEANS.get(text.lower(), text) if kind is bool else text
