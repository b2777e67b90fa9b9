"""One connection to the server: reaching it, saying who we are, sending requests and reading answers.

Which connection, and what is tried again, lives in server.

hiredis alone packs and parses. The client library redis-py is not used here: around a request it takes longer than the
server's answer, and to import it longer than a whole command of farro.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from farro.errors import InputError
from farro.lazy_dataclass import dataclass, field
from farro.store.redis import errors

try:
    import hiredis
except ImportError as error:  # an installation without the extra
    raise errors.missing() from error

Arg = str | bytes | int | float
ReplyError = hiredis.ReplyError  # what the server answered, as an answer
_CHUNK = 1 << 16
_PORT = 6379
_FULL = "ERR max number of clients"


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Where the server is, and how it is spoken to."""

    url: str  # as in the config: no user and no password in it
    user: str | None = None
    password: str | None = field(default=None, repr=False)  # a traceback may show this object
    timeout_s: float = 5.0  # of one request
    retry_s: float = 30.0  # how long a request is tried again while the server is away
    wait_replicas: int = 0
    wait_s: float = 1.0


def pack(command: Sequence[Arg]) -> bytes:
    """A request as it is sent."""
    packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its stub knows one argument only
    return packed


def readable(sockets: Sequence[socket.socket], timeout_s: float) -> list[socket.socket]:
    """Those of which something can be read, or that are broken; none when the time is over. By poll, where there is
    one: select knows no descriptor above 1023. [test_a_process_with_many_descriptors_waits_too]"""
    if not hasattr(select, "poll"):
        return select.select(sockets, [], [], timeout_s)[0]
    poll = select.poll()
    for each in sockets:
        poll.register(each, select.POLLIN)
    ready = {fd for fd, _ in poll.poll(math.ceil(timeout_s * 1000))}
    return [each for each in sockets if each.fileno() in ready]


class Link:
    """Not safe from two threads at once. OSError: the server cannot be reached, or does not answer in time."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.socket, database = _reached(address)
        self._reader = hiredis.Reader()
        try:
            self._limit(timeout_s)
            self._greet(address, database)
        except BaseException:
            self.close()
            raise

    def _limit(self, timeout_s: float) -> None:
        if type(self.socket) is not socket.socket:  # TLS
            self.socket.settimeout(timeout_s)
            return
        # The kernel's own timeouts: Python's ask for the state of the socket before every read and write.
        self.socket.settimeout(None)
        limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def _greet(self, address: Address, database: int) -> None:
        if type(self.socket) is not socket.socket:
            # TLS tells more than answers after a handshake. Who waits for the socket to be readable and then for an
            # answer must not be called by that: it comes before this answer.
            self.send(pack(("PING",)))
            self.receive()
        if address.password is not None or address.user is not None:
            who = () if address.user is None else (address.user,)
            self.send(pack(("AUTH", *who, address.password or "")))
            answer = self.receive()
            if isinstance(answer, ReplyError):
                raise errors.refused(address.url, f"WRONGPASS {answer}")
        if database:
            self.send(pack(("SELECT", database)))
            answer = self.receive()
            if isinstance(answer, ReplyError):
                raise errors.refused(address.url, str(answer))

    def send(self, packed: bytes) -> None:
        self.socket.sendall(packed)

    def receive(self) -> Any:
        """The next answer. An error that the server answered is answered too, as what it is."""
        reader = self._reader
        answer = reader.gets()
        while answer is False:
            data = self.socket.recv(_CHUNK)
            if not data:
                raise ConnectionError("the server closed the connection")
            try:
                reader.feed(data)
                answer = reader.gets()
            except hiredis.ProtocolError as error:
                raise ConnectionError(f"what answers there is no Redis server: {error}") from error
        if isinstance(answer, ReplyError) and str(answer).startswith(_FULL):
            raise ConnectionError(str(answer))  # and closes: as if it could not be reached, for a while
        return answer

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()


def _reached(address: Address) -> tuple[socket.socket, int]:
    """A socket, and the number of the database. The forms are those of every Redis client: redis://HOST:PORT/DB,
    rediss:// for TLS, unix:///PATH?db=DB."""
    parts = urlsplit(address.url)
    asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    try:
        where = asked.get("db") or (parts.path.strip("/") if parts.scheme != "unix" else "") or "0"
        database, port = int(where), parts.port or _PORT
    except ValueError as error:
        raise InputError(f"{address.url}: not an address such as redis://HOST:PORT/DB ({error})") from error
    if parts.scheme == "unix":
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(address.timeout_s)
            sock.connect(unquote(parts.path))
        except BaseException:
            sock.close()
            raise
        return sock, database
    host = parts.hostname or "localhost"
    sock = socket.create_connection((host, port), address.timeout_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if parts.scheme == "rediss":
            return _secured(sock, host, asked, address), database
    except BaseException:
        sock.close()
        raise
    return sock, database


def _secured(sock: socket.socket, host: str, asked: dict[str, str], address: Address) -> socket.socket:
    """TLS. `?ssl_ca_certs=FILE` names who is trusted, instead of the system's own; `ssl_certfile` and `ssl_keyfile` are
    ours, where the server wants to know."""
    import ssl  # here: most servers are reached without, and OpenSSL takes long to load

    try:
        context = ssl.create_default_context(cafile=asked.get("ssl_ca_certs"))
        if "ssl_certfile" in asked:
            context.load_cert_chain(asked["ssl_certfile"], asked.get("ssl_keyfile"))
    except OSError as error:
        files = ", ".join(value for name, value in asked.items() if name.startswith("ssl_"))
        raise InputError(f"{address.url}: the certificates ({files}) cannot be read: {error}") from error
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise InputError(
            f"{address.url}: the server's certificate is not trusted: {error.verify_message}. Name its authority with "
            "?ssl_ca_certs=FILE, or let the server have a certificate for this name"
        ) from error
