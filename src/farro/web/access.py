"""Guard every request: check Host and Origin on all routes, and the token or session on all but two.

A foreign page can make this browser send requests here. With DNS rebinding it can point a name of its own to loopback,
but then the Host header holds that name. It cannot send our cookie (SameSite=Strict), and it can change nothing
without an Origin header, which the browser sets and which is not ours. The checks run in this order, before the
request is parsed. The guard also adds the headers that restrict what a browser may do with a response.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Mapping

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from farro.lazy_dataclass import dataclass, field
from farro.web import errors
from farro.web.errors import HttpError

COOKIE = "farro_session"
SESSION_S = 7 * 86_400
WITHOUT_TOKEN = ("/healthz", "/login")
SESSION_LEFT = (
    "farro.session_s"  # key in a request's scope: seconds left of its session; a stream ends with the session
)
_MAX_SIGNED_OUT = 10_000  # newest signed-out sessions to remember
_SAFE = ("GET", "HEAD", "OPTIONS")

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

_STYLE = """:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; }
main { max-width: 34rem; margin: 12vh auto 0; padding: 0 1rem; }
h1 { font-size: 1.25rem; }
pre { padding: 0.75rem 1rem; border: 1px solid; border-radius: 0.375rem; overflow-x: auto; }
small { opacity: 0.8; }"""
_SIGN_IN = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>farro: sign in</title><style>{style}</style></head>
<body><main><h1>farro: sign in</h1>
<p>{what}</p>
<p>Run this command in farro's root, and open the link that it prints:</p>
<pre>farro web --link</pre>
<p><small>Each link signs in one browser, once, and is good for an hour. Programs send
<code>Authorization: Bearer TOKEN</code> instead.</small></p></main></body></html>
"""
_NO_SESSION = "This browser is not signed in: it never was, it signed out, or its seven days are over."
_NO_LINK = "This link does not work any more: it was used already, or it is more than an hour old."


def sign_in_page(reason: str, headers: Mapping[str, str] | None = None) -> Response:
    """Build the page for a browser that is not signed in.

    Its style is inline, because the dashboard's files need a session.
    """
    allowed = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{allowed}'; base-uri 'none'; frame-ancestors 'none'"
    text = _SIGN_IN.format(style=_STYLE, what=reason)
    all_headers = {**(headers or {}), "Content-Security-Policy": policy}
    return Response(text, status_code=401, media_type="text/html", headers=all_headers)


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The credentials and host names that the guard accepts."""

    token: str
    key: bytes  # signs sessions
    use_code: Callable[[str], bool]  # consumes a sign-in code; False: it is unknown or too old
    hosts: frozenset[str] = frozenset()  # names accepted besides localhost and loopback addresses
    beyond: bool = False  # the server listens beyond loopback
    secure: bool = False  # the cookie is for https only
    now_s: Callable[[], float] = field(default=lambda: 0.0)


class AccessGuard:
    """Wrap an ASGI application and answer the requests that are not permitted itself."""

    def __init__(self, app: ASGIApp, access: AccessRules) -> None:
        self._app = app
        self._access = access
        self._cookie = cookie_name(access.key)
        self._signed_out: dict[str, None] = {}  # signatures of sessions that were signed out

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # no websockets: the server closes a connection that the application does not accept
        guarded = _with_headers(send)
        try:
            self._check(scope)
        except HttpError as error:
            if error.status == 401 and _wants_page(scope):
                answer = sign_in_page(_NO_SESSION, error.headers)
            else:
                answer = errors.response(error)
            await answer(scope, receive, guarded)
            return
        if scope["path"] == "/login":
            await self._login(scope)(scope, receive, guarded)
        elif scope["path"] == "/logout" and scope["method"] == "POST":
            self._sign_out(Headers(scope=scope))
            answer = Response(status_code=204)
            answer.delete_cookie(self._cookie, httponly=True, samesite="strict", secure=self._access.secure)
            await answer(scope, receive, guarded)
        else:
            await self._app(scope, receive, guarded)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._host_is_ours(hosts[0], scope):
            raise HttpError(
                403,
                "forbidden_host",
                "this server does not answer to that Host; use its address, or name the host in `web.hosts`",
            )
        origins = headers.getlist("origin")
        if origins and not all(self._origin_is_ours(origin, hosts[0]) for origin in origins):
            raise HttpError(403, "forbidden_origin", "requests from pages of another origin are refused")
        if scope["path"] in WITHOUT_TOKEN:
            return
        if self._has_token(headers):
            return
        left_s = self._session_s(headers)
        if left_s <= 0:
            raise HttpError(
                401,
                "unauthorized",
                "a token is needed: Authorization: Bearer TOKEN, or the link that `farro web --link` prints",
                {"WWW-Authenticate": 'Bearer realm="farro"'},
            )
        if scope["method"] not in _SAFE and not origins:
            raise HttpError(403, "forbidden_origin", "a change by cookie needs the Origin of this server's own page")
        scope[SESSION_LEFT] = left_s

    # --- Host and Origin ---

    def _host_is_ours(self, host: str, scope: Scope) -> bool:
        """Accept configured names only, but any loopback address: DNS rebinding cannot change what an address means."""
        name = _without_port(host)
        if name is None:
            return False
        if name in self._access.hosts or name == "localhost":
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self._access.beyond

    def _origin_is_ours(self, origin: str, host: str) -> bool:
        return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")

    # --- token and session ---

    def _has_token(self, headers: Headers) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and bool(self._access.token) and _equal(token.strip(), self._access.token)

    def _session_s(self, headers: Headers) -> float:
        """Return how many seconds the session still lasts; 0 or less: there is none, or it is over."""
        until, _, signature = self._session_cookie(headers).partition(".")
        if not until.isdecimal() or not until.isascii() or len(until) > 12:
            return 0.0
        if not _equal(signature, sign(self._access.key, until)) or signature in self._signed_out:
            return 0.0
        return int(until) - self._access.now_s()

    def _session_cookie(self, headers: Headers) -> str:
        """Read our cookie among those of other programs on this host, which may be malformed."""
        return cookie_parser("; ".join(headers.getlist("cookie"))).get(self._cookie, "")

    def _sign_out(self, headers: Headers) -> None:
        if self._session_s(headers) > 0:
            self._signed_out[self._session_cookie(headers).partition(".")[2]] = None
            if len(self._signed_out) > _MAX_SIGNED_OUT:
                del self._signed_out[next(iter(self._signed_out))]

    def _login(self, scope: Scope) -> Response:
        code = QueryParams(scope["query_string"]).get("code", "")
        if scope["method"] != "GET" or not code or not self._access.use_code(code):
            if scope["method"] == "GET" and self._session_s(Headers(scope=scope)) > 0:
                return RedirectResponse(
                    "/", status_code=303
                )  # a used link, opened again in the browser that it signed in
            return sign_in_page(_NO_LINK if code else _NO_SESSION)
        until = str(int(self._access.now_s()) + SESSION_S)
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(
            self._cookie,
            f"{until}.{sign(self._access.key, until)}",
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=self._access.secure,
        )
        return answer


def cookie_name(key: bytes) -> str:
    """Name the cookie after the key: a browser sends cookies to every port of a host; servers must not share one."""
    return f"{COOKIE}_{hashlib.sha256(key).hexdigest()[:8]}"


def sign(key: bytes, text: str) -> str:
    """Sign the end of a session."""
    return hmac.new(key, f"session {text}".encode(), hashlib.sha256).hexdigest()


def _equal(one: str, other: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(one.encode("utf-8", "surrogateescape"), other.encode())


def _without_port(host: str) -> str | None:
    host = host.lower()
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        return name if bracket and (not port or (port[0] == ":" and port[1:].isdecimal())) else None
    name, colon, port = host.partition(":")
    return name if name and (not colon or port.isdecimal()) else None


def _wants_page(scope: Scope) -> bool:
    return bool(scope["path"] == "/" and scope["method"] == "GET")


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            for name, value in HEADERS.items():
                headers.setdefault(name, value)  # a job's file has a stricter policy of its own
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return guarded
