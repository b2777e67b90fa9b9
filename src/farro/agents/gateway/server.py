"""The HTTP server of the gateway: it finds the run of each request, and forwards what that run may ask.

Imported by the first admission only, because aiohttp takes 0.2 s.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Sequence
from urllib.parse import unquote_plus

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from farro.agents.gateway.admission import Close, OpenAdmission
from farro.agents.gateway.dialects import read_model_request, route_of
from farro.agents.gateway.forwarding import CREDENTIALS, Forwarding, ProgramRequest, error_answer, stop_answer
from farro.agents.gateway.port import GatewayRun

_LARGEST = 32 << 20  # bytes of a request
_MOST = 128 << 20  # bytes of the requests of one run at once
_HEADER = 32 << 10  # bytes of a header: a login may be long
_KEY = "key="  # of a query, as Google's programs may send it
_GRACE_S = 1.0  # for connections to end
_CONNECT_S = 10.0  # a service that accepts no connection within this time will not answer either


class GatewayServer:
    """Answers on a port of loopback, and on the sockets of single runs. Used by the loop's thread alone."""

    def __init__(self) -> None:
        self._admissions: set[OpenAdmission] = set()
        self._client = ClientSession(
            connector=TCPConnector(limit=0),
            timeout=ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=DummyCookieJar(),  # nothing of one run reaches another
            auto_decompress=False,
            max_field_size=_HEADER,
        )
        self._port = 0
        self._close_port: Close | None = None

    async def open(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self._port = listener.getsockname()[1]
        self._close_port = await self._listen(listener, None)

    async def admit(self, run: GatewayRun) -> OpenAdmission:
        admission = OpenAdmission(run, self._port, self._listen)
        admission.on_close = functools.partial(self._admissions.discard, admission)
        self._admissions.add(admission)
        return admission

    async def close(self) -> None:
        for admission in tuple(self._admissions):
            admission.closed.set()
            await admission.end_requests()
        if self._close_port is not None:
            await self._close_port()
        await self._client.close()

    async def _listen(self, listener: socket.socket, only: OpenAdmission | None) -> Close:
        loop = asyncio.get_running_loop()
        server = web.Server(
            functools.partial(self._answer, only),
            request_factory=_large_request,
            handler_cancellation=True,
            access_log=None,
            max_line_size=_HEADER,
            max_field_size=_HEADER,
        )
        site = await loop.create_server(server, sock=listener)

        async def close() -> None:
            site.close()
            server.pre_shutdown()
            await server.shutdown(_GRACE_S)

        return close

    async def _answer(self, only: OpenAdmission | None, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request. `only`: the run whose socket it came to."""
        path, _, query = request.raw_path.partition("?")
        parts = [part for part in query.split("&") if part]
        admission = self._admission_of(request, path, parts, only)
        passes_login = admission is not None and admission.run.upstream.passes_login
        if passes_login:
            path = path[path.index("/", 1) :]
        else:
            parts = [part for part in parts if not part.startswith(_KEY)]
        route = route_of(request.method, path, request.headers)
        dialect = "chat" if route is None else route.dialect
        if admission is None:
            return error_answer(dialect, 401, "this is not the token of a run in progress")
        if route is None:
            return error_answer(dialect, 404, "the gateway forwards requests to models only")
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        async with admission.reading:
            body = await request.read()
        if admission.held_bytes + len(body) > _MOST:
            return error_answer(dialect, 413, "the requests in progress are too large")
        asked = read_model_request(dialect, path, body) if route.metered else None
        if route.metered and asked is None:
            return error_answer(dialect, 400, "the request is no JSON object")
        if admission.closed.is_set():  # while the body came
            return error_answer(dialect, 401, "the run has ended")
        if admission.stopped_by is not None:
            return stop_answer(dialect)
        login = next(iter(_credentials(request)), "") if passes_login else ""
        program = ProgramRequest(route=route, path=path, query="&".join(parts), login=login, body=body, asked=asked)
        return await Forwarding(admission, self._client, request, program).answer()

    def _admission_of(
        self, request: web.BaseRequest, path: str, query: Sequence[str], only: OpenAdmission | None
    ) -> OpenAdmission | None:
        """Return the run whose token came with a request."""
        keys = (unquote_plus(part.removeprefix(_KEY)) for part in query if part.startswith(_KEY))
        tokens = (*_credentials(request), *keys)
        first = path.split("/")[1] if path.count("/") > 1 else ""
        for each in self._admissions if only is None else (only,):
            if any(each.admits(token) for token in ((first,) if each.run.upstream.passes_login else tokens)):
                return each
        return None


def _credentials(request: web.BaseRequest) -> list[str]:
    """Return the keys and logins in the headers of a request."""
    return [request.headers[name].removeprefix("Bearer ") for name in CREDENTIALS if name in request.headers]


def _large_request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=_LARGEST)
