"""Serve an HTTP proxy in the worker: through it a confined process reaches the hosts that its `network` lists only.

It knows CONNECT only, and resolves a name itself: the address that it judges is the one that it connects to, so a name
that suddenly means another address gains nothing. A redirect is a new request of the program, which is judged again.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence

from farro.sandbox.confinement import LocalService

_HEAD_BYTES = 8192
_HEAD_S = 10.0
_CONNECT_S = 15.0
_CONNECTIONS = 128  # at once
_PIECE = 1 << 16
_USER = "farro"
# Addresses of clouds at which a machine finds its own credentials; the others are not global.
_METADATA = frozenset({ipaddress.ip_address("168.63.129.16"), ipaddress.ip_address("192.0.0.192")})
_GLOBAL_IPV6 = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Host = tuple[str, int]
Resolve = Callable[[str, int], Sequence[str]]


def is_public(text: str) -> bool:
    """Return whether this address is one of the internet, not of this machine, its network or its cloud."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(address.packed[-4:])
        if inner is not None:
            return is_public(str(inner))
        if address not in _GLOBAL_IPV6:
            return False
    return address.is_global and not address.is_multicast and address not in _METADATA


def split_host(text: str) -> Host | None:
    """Return the host and port of `host:port` or `[address]:port`; None if it is neither."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]").removesuffix(".").lower()
    with contextlib.suppress(ValueError):
        host = str(ipaddress.ip_address(host))
    return (host, int(port)) if host and port.isascii() and port.isdigit() and 0 < int(port) < 65536 else None


def _resolve(host: str, port: int) -> Sequence[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class _Refused(Exception):
    """The answer to a request that is not served."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self._status = status

    def response(self) -> bytes:
        said = f"farro: {self}\n".encode("ascii", "replace")
        asks = f'Proxy-Authenticate: Basic realm="{_USER}"\r\n' if self._status.startswith("407") else ""
        head = f"HTTP/1.1 {self._status}\r\n{asks}Content-Length: {len(said)}\r\nConnection: close\r\n\r\n"
        return head.encode() + said


class HostProxy:
    """Serves until it is closed. Its clients know its token: others of this machine may not use it."""

    def __init__(self, hosts: Sequence[str], resolve: Resolve = _resolve) -> None:
        self._listed = frozenset(found for host in hosts if (found := split_host(host)) is not None)
        self._resolve = resolve
        self._token = secrets.token_urlsafe(24)
        self._credentials = b"Basic " + base64.b64encode(f"{_USER}:{self._token}".encode())
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()  # what `close` ends
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        self.serve(listener)

    @property
    def service(self) -> LocalService:
        return LocalService(self.port, self.serve)

    def variables(self) -> dict[str, str]:
        """Return the variables by which programs find it."""
        url = f"http://{_USER}:{self._token}@127.0.0.1:{self.port}"
        mine = {"HTTPS_PROXY": url, "HTTP_PROXY": url, "NO_PROXY": "127.0.0.1,localhost,::1"}
        return {**mine, **{name.lower(): value for name, value in mine.items()}, "NODE_USE_ENV_PROXY": "1"}

    def serve(self, listener: socket.socket) -> Callable[[], None]:
        """Serve on this listening socket, too; return what closes it."""
        self._keep(listener)
        threading.Thread(target=self._accept, args=(listener,), name="proxy", daemon=True).start()
        return lambda: _shut(listener)

    def close(self) -> None:
        """End all connections and listen no more."""
        with self._lock:
            ending, self._open = self._open, set()
        for each in ending:
            _shut(each)

    def _keep(self, opened: socket.socket) -> None:
        with self._lock:
            self._open.add(opened)

    def _accept(self, listener: socket.socket) -> None:
        with listener, contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                if self._free.acquire(blocking=False):
                    self._keep(client)
                    threading.Thread(target=self._talk, args=(client,), name="proxied", daemon=True).start()
                else:
                    client.close()
        with self._lock:
            self._open.discard(listener)

    def _talk(self, client: socket.socket) -> None:
        try:
            with client, contextlib.suppress(OSError):
                try:
                    head, rest = _head(client)
                    upstream = self._connected(head)
                except _Refused as refused:
                    client.sendall(refused.response())
                    return
                self._serve_through(client, upstream, rest)
        finally:
            with self._lock:
                self._open.discard(client)
            self._free.release()

    def _serve_through(self, client: socket.socket, upstream: socket.socket, first: bytes) -> None:
        with upstream:
            self._keep(upstream)
            try:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                upstream.sendall(first)
                _exchange(client, upstream)
            finally:
                with self._lock:
                    self._open.discard(upstream)

    def _connected(self, head: bytes) -> socket.socket:
        """Connect to the host of this request. Raises _Refused."""
        method, _, rest = head.split(b"\r\n", 1)[0].partition(b" ")
        if not self._admits(head):
            raise _Refused("407 Proxy Authentication Required", "the proxy's address in HTTPS_PROXY has a password")
        if method != b"CONNECT":
            raise _Refused("405 Method Not Allowed", "this proxy serves https only (CONNECT)")
        target = rest.split(b" ")[0].decode("ascii", "replace")
        host = split_host(target)
        if host is None or host not in self._listed:
            raise _Refused("403 Forbidden", f"{target} is not listed under `network`")
        try:
            found = self._resolve(*host)
        except (OSError, UnicodeError) as error:
            raise _Refused("502 Bad Gateway", f"{target} has no address: {error}") from error
        trouble = None
        for address in found:
            if not is_public(address) and split_host(f"[{address}]:{host[1]}") not in self._listed:
                trouble = trouble or _Refused("403 Forbidden", f"{target} is {address}, which is not of the internet")
                continue
            try:
                return socket.create_connection((address, host[1]), timeout=_CONNECT_S)
            except OSError as error:
                trouble = _Refused("502 Bad Gateway", f"{target} cannot be reached: {error}")
        raise trouble or _Refused("502 Bad Gateway", f"{target} has no address")

    def _admits(self, head: bytes) -> bool:
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"proxy-authorization":
                return secrets.compare_digest(value.strip(), self._credentials)
        return False


def _head(client: socket.socket) -> tuple[bytes, bytes]:
    """Return the head of the request, and what came after it."""
    data, until_s = b"", time.monotonic() + _HEAD_S
    while b"\r\n\r\n" not in data:
        client.settimeout(max(until_s - time.monotonic(), 0.001))
        piece = client.recv(_PIECE)
        if not piece or len(data) > _HEAD_BYTES:
            raise _Refused("400 Bad Request", "this is no request to a proxy")
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _exchange(client: socket.socket, upstream: socket.socket) -> None:
    """Pass everything on, in both directions, until both have ended."""
    for each in (client, upstream):
        each.settimeout(None)
    back = threading.Thread(target=_pass_on, args=(upstream, client), name="proxied", daemon=True)
    back.start()
    _pass_on(client, upstream)
    back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(_PIECE):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one of them has gone: the other direction ends, too
        _shut(source)
        _shut(target)


def _shut(opened: socket.socket) -> None:
    with contextlib.suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)
