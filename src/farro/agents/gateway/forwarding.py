"""Forward one request: reserve it, send it, pass the answer on as it comes, settle it, keep it.

The program may go away and the run may end at any time. That interrupts the forwarding only: what was reserved is
settled in every case, once, before the program sees the end of the answer. A program that has its answer may ask again
at once, and the budget must then count what the answer cost, not what it was estimated to cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.request import getproxies_environment, proxy_bypass

from aiohttp import ClientConnectorError, ClientError, ClientResponse, ClientSession, ConnectionTimeoutError, web
from multidict import CIMultiDict
from yarl import URL

from farro.agents.gateway import troubles
from farro.agents.gateway.admission import OpenAdmission, in_thread
from farro.agents.gateway.dialects import (
    ACCOUNT_HEADER,
    ModelRequest,
    Route,
    account_of,
    address_of,
    error_body,
    key_header,
    stop_status,
)
from farro.agents.gateway.port import DialectName, ModelExchange
from farro.agents.gateway.wire_usage import WireReader
from farro.agents.providers.port import ProviderTrouble
from farro.errors import BudgetExceeded
from farro.lazy_dataclass import dataclass, field
from farro.store.ledger import CallEnd

_KEPT = 8 << 20  # bytes of a request, and of an answer, that are kept
_REFUSAL = 1 << 20  # bytes of a refusal that are read
CREDENTIALS = ("x-api-key", "x-goog-api-key", "authorization")
_OF_THE_CONNECTION = (
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
    *("transfer-encoding", "upgrade", "host", "expect", "content-length"),
)
_NOT_SENT = (*_OF_THE_CONNECTION, "accept-encoding", "content-encoding", "cookie")  # the body was unpacked
_NOT_PASSED_ON = (*_OF_THE_CONNECTION, "set-cookie", "location")


class _Broken(Exception):
    """The service ended the connection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramRequest:
    """A request of a program, as it came, without the token."""

    route: Route
    path: str
    query: str  # without a key
    login: str = field(repr=False)  # that came with it
    body: bytes = field(repr=False)
    asked: ModelRequest | None = field(repr=False)  # None: it is not metered


class Forwarding:
    """One request in progress (port: OpenRequest)."""

    def __init__(
        self, admission: OpenAdmission, client: ClientSession, request: web.BaseRequest, program: ProgramRequest
    ) -> None:
        self._admission = admission
        self._client = client
        self._request = request
        self._program = program
        self._dialect = program.route.dialect
        self._redactor = admission.redactor(program.login)
        self._stopped = False
        self._forward_task: asyncio.Task[web.StreamResponse] | None = None
        self._settle_task: asyncio.Task[None] | None = None
        # What became of it:
        self._call_id: str | None = None
        self._number = 0
        self._end: CallEnd = "not_charged"
        self._trouble: ProviderTrouble | None = None
        self._reader = WireReader(self._dialect, streamed=False)
        self._status = 0
        self._content_type = ""
        self._answer = bytearray()
        self._whole = len(program.body) <= _KEPT
        self.size = len(program.body)
        admission.open_requests.add(self)
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._over)

    async def answer(self) -> web.StreamResponse:
        """Return the answer, which has been sent. Cancel this when the program goes away."""
        try:
            return await asyncio.shield(self._task)
        finally:
            self.stop()

    def stop(self) -> None:
        self._stopped = True
        if self._forward_task is not None:
            self._forward_task.cancel()

    async def ended(self) -> None:
        await asyncio.wait([self._task])

    def _over(self, task: asyncio.Task[web.StreamResponse]) -> None:
        self._admission.open_requests.discard(self)
        if not task.cancelled():
            task.exception()  # it was raised in `answer`, too, if anyone waits there

    async def _run(self) -> web.StreamResponse:
        asked, meter = self._program.asked, self._admission.run.meter
        if asked is not None:
            try:
                self._call_id = await in_thread(meter.reserve, asked.model, len(asked.body), asked.max_output_tokens)
            except BudgetExceeded as exceeded:
                self._admission.exceed(exceeded)
                return stop_answer(self._dialect)
            except Exception as error:  # noqa: BLE001 - what cannot be recorded is not sent
                trouble = troubles.unrecorded(error)
                self._admission.meet(trouble, ends_run=True)
                return stop_answer(self._dialect)
        self._forward_task = asyncio.get_running_loop().create_task(self._forward())
        if self._stopped:
            self._forward_task.cancel()
        try:
            return await self._forward_task
        finally:
            await self._settle()
            await self._keep()

    # --- to the service and back ---

    async def _forward(self) -> web.StreamResponse:
        program, upstream = self._program, self._admission.run.upstream
        address = address_of(upstream.base_url, self._dialect, program.path)
        body = program.body
        if program.asked is not None:
            self._number, body = self._admission.count_request(), program.asked.body
        self._end = "failed"  # it may have cost something, until it is known that it did not
        try:
            response = await self._client.request(
                self._request.method,
                URL(f"{address}?{program.query}" if program.query else address, encoded=True),
                headers=self._headers(),
                data=io.BytesIO(body) if body else None,  # in pieces: a large one must not hold up other runs
                allow_redirects=False,
                proxy=_proxy(address),
            )
        except (ClientConnectorError, ConnectionTimeoutError) as error:
            return await self._refuse(troubles.unreachable(error, address))
        except (ClientError, OSError, ValueError) as error:
            return await self._refuse(troubles.unanswered(error))
        async with response:
            self._status, self._content_type = response.status, response.headers.get("Content-Type", "")
            return await (self._pass_on(response) if response.status < 300 else self._refused(response))

    def _headers(self) -> CIMultiDict[str]:
        upstream = self._admission.run.upstream
        left_out = {*_NOT_SENT, *self._request.headers.get("Connection", "").lower().replace(",", " ").split()}
        if not upstream.passes_login:
            left_out.update(CREDENTIALS)
        headers = CIMultiDict((n, v) for n, v in self._request.headers.items() if n.lower() not in left_out)
        headers["Accept-Encoding"] = "identity"  # what it costs must be read from the answer
        if upstream.login is not None:
            headers["Authorization"] = f"Bearer {upstream.login}"
            if (account := account_of(upstream.login)) is not None and ACCOUNT_HEADER in headers:
                headers[ACCOUNT_HEADER] = account  # codex took another one from the dummy that it holds
        elif upstream.key is not None:
            name, value = key_header(self._dialect, upstream.key)
            headers[name] = value
        return headers

    async def _pass_on(self, response: ClientResponse) -> web.StreamResponse:
        """Pass on an answer as it comes."""
        streamed = "event-stream" in self._content_type
        self._reader = WireReader(self._dialect, streamed=streamed)
        passed = web.StreamResponse(status=response.status, headers=_passed_on(response.headers))
        passed.content_length = response.content_length
        await passed.prepare(self._request)
        held = b""  # the last piece of an answer that is no stream: it is settled before the program has all of it
        try:
            while piece := await _next_piece(response):
                self._reader.feed(piece)
                self._note(piece)
                if streamed and (self._reader.ended or self._reader.error is not None):
                    await self._settle()
                await passed.write(piece if streamed else held)
                held = b"" if streamed else piece
        except _Broken:
            self._reader.end()
            self._reader.finished = False
            await self._settle()
            await passed.write(held)
            self._request.protocol.force_close()  # the program must not take it for the end
            return passed
        self._reader.end()
        await self._settle()
        await passed.write(held)
        await passed.write_eof()
        return passed

    async def _refused(self, response: ClientResponse) -> web.StreamResponse:
        """Answer a request that the service did not do."""
        read = bytearray()
        with contextlib.suppress(_Broken):
            while len(read) < _REFUSAL and (piece := await _next_piece(response)):
                read += piece
        body = self._redactor.data(bytes(read))  # services repeat a key that they do not accept
        self._note(body)
        headers = {name.lower(): value for name, value in response.headers.items()}
        trouble = troubles.trouble_of_status(response.status, headers, body, datetime.now(UTC))
        # What is not metered may be refused for reasons of its own. But a login that cannot begin is refused.
        if self._program.asked is not None or (self._dialect == "code_assist" and response.status == 401):
            if trouble.kind != "denied" or response.status < 400:
                return await self._refuse(trouble)
            await self._settle_with(trouble)
        return web.Response(status=response.status, headers=_passed_on(response.headers), body=body)

    async def _refuse(self, trouble: ProviderTrouble) -> web.StreamResponse:
        await self._settle_with(trouble)
        return stop_answer(self._dialect)

    # --- what it cost ---

    async def _settle_with(self, trouble: ProviderTrouble) -> None:
        self._trouble = trouble
        if not trouble.charged:
            self._end = "not_charged"
        if self._program.asked is None:
            self._admission.meet(trouble)
        await self._settle()

    async def _settle(self) -> None:
        if self._settle_task is None and self._program.asked is not None:
            self._settle_task = asyncio.get_running_loop().create_task(self._settle_once())
        if self._settle_task is not None:
            await asyncio.shield(self._settle_task)

    async def _settle_once(self) -> None:
        reader, gone = self._reader, self._stopped
        if self._trouble is None and self._status:
            if reader.error is not None:
                event = json.loads(self._redactor.text(json.dumps(reader.error)))
                self._trouble = troubles.trouble_in_stream(event, reader.usage, datetime.now(UTC))
            elif reader.finished:
                self._end = "answered"
            elif not gone:
                self._trouble = troubles.cut_off(reader.usage)
        self._admission.meet(self._trouble)
        assert self._call_id is not None
        await self._admission.settle(self._call_id, self._end, reader.usage, self._model)

    @property
    def _model(self) -> str | None:
        return self._reader.model or (None if self._program.asked is None else self._program.asked.model)

    # --- what is kept of it ---

    def _note(self, piece: bytes) -> None:
        room = _KEPT - len(self._answer)
        self._answer += piece[:room]
        self._whole = self._whole and len(piece) <= room

    async def _keep(self) -> None:
        if not self._number:  # it was not sent, or is not metered
            return
        program = self._program
        path = f"{program.path}?{program.query}" if program.query else program.path
        answered = self._end == "answered" or self._status >= 300
        exchange = ModelExchange(
            number=self._number,
            dialect=self._dialect,
            path=self._redactor.text(path),
            status=self._status,
            content_type=self._content_type,
            request=self._redactor.data(program.body)[:_KEPT],
            response=self._redactor.data(bytes(self._answer)),
            whole=self._whole and answered,
            model=self._model,
            usage=self._reader.usage,
        )
        try:
            await in_thread(self._admission.run.keep, exchange)
        except Exception as error:  # noqa: BLE001 - whatever it is: the run must not go on without its records
            self._admission.meet(troubles.unrecorded(error), ends_run=True)


def stop_answer(dialect: DialectName) -> web.Response:
    """Return the answer that makes a program stop at once.

    It does not say why: opencode and aider try for a minute again when they read of a limit, whatever the status.
    """
    return error_answer(dialect, stop_status(dialect), "farro stopped this run")


def error_answer(dialect: DialectName, status: int, message: str) -> web.Response:
    return web.Response(
        status=status,
        body=error_body(dialect, status, message),
        content_type="application/json",
        headers={"x-should-retry": "false"},
    )


def _passed_on(headers: Mapping[str, str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _NOT_PASSED_ON)


def _proxy(address: str) -> str | None:
    """Return the proxy that the worker's environment names. aiohttp would also add logins from ~/.netrc."""
    url = URL(address)
    found = getproxies_environment().get(url.scheme)
    return None if found is None or proxy_bypass(url.authority) else found


async def _next_piece(response: ClientResponse) -> bytes:
    try:
        return await response.content.readany()
    except (ClientError, OSError) as error:
        raise _Broken from error
