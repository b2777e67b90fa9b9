"""Talk to the Redis server: kept connections, one round trip per request, and all retries.

A call whose answer was lost is sent again with the last argument of its script set to 1. Each script's head says how it
handles that; none does its work twice. [test_a_call_with_a_lost_answer_is_repeated_safely]

hiredis packs and parses. redis-py is not used: its overhead per request is longer than the server's answer, and its
import takes longer than a whole farro command.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from farro.errors import FarroError, InputError
from farro.host import machine, waiting
from farro.host.clock import Clock
from farro.lazy_dataclass import dataclass, field
from farro.store.redis import errors
from farro.store.redis.scripts import LuaScript

try:
    import hiredis
except ImportError as error:  # installed without the `redis` extra
    raise errors.missing() from error

Arg = str | bytes | int | float
ReplyError = hiredis.ReplyError  # an error reply of the server, returned as a value
_CHUNK = 1 << 16
_PORT = 6379
_FULL = "ERR max number of clients"
_FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisAddress:
    """The address of the server, and how to connect to it."""

    url: str  # as in the config, without user and password
    user: str | None = None
    password: str | None = field(default=None, repr=False)  # hidden: a traceback may show this object
    timeout_s: float = 5.0  # for one request
    retry_s: float = 30.0  # how long a request is retried while the server is away
    wait_replicas: int = 0
    wait_s: float = 1.0


def pack(command: Sequence[Arg]) -> bytes:
    """Encode a request."""
    packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its stub knows one argument only
    return packed


def readable(sockets: Sequence[socket.socket], timeout_s: float) -> list[socket.socket]:
    """Return the sockets that are readable or broken; an empty list after `timeout_s`. Uses poll where it exists:
    select supports no descriptor above 1023. [test_a_process_with_many_descriptors_can_wait]"""
    ready = set(waiting.readable([each.fileno() for each in sockets], timeout_s))
    return [each for each in sockets if each.fileno() in ready]


class RedisConnection:
    """One connection, for one thread at a time. OSError: the server cannot be reached, or did not answer in time."""

    def __init__(self, address: RedisAddress, timeout_s: float) -> None:
        self.name: str | None = None  # that it has in the server
        self.socket, database = _open_socket(address)
        self._reader = hiredis.Reader()
        try:
            self._set_timeouts(timeout_s)
            self._log_in(address, database)
        except BaseException:
            self.close()
            raise

    def _set_timeouts(self, timeout_s: float) -> None:
        if type(self.socket) is not socket.socket:  # TLS
            self.socket.settimeout(timeout_s)
            return
        # The kernel's timeouts: with Python's own, every read and write first asks for the state of the socket.
        self.socket.settimeout(None)
        limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def _log_in(self, address: RedisAddress, database: int) -> None:
        if type(self.socket) is not socket.socket:
            # After the TLS handshake the server sends more than replies. Read it here, before this reply: a caller that
            # waits for the socket to become readable must not be woken by it.
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
        """Return the next reply. An error reply is returned, not raised."""
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
                raise ConnectionError(f"the server there is not Redis: {error}") from error
        if isinstance(answer, ReplyError) and str(answer).startswith(_FULL):
            raise ConnectionError(str(answer))  # the server closes now: treat it as unreachable for a while
        return answer

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()


def _open_socket(address: RedisAddress) -> tuple[socket.socket, int]:
    """Open a socket; return it with the database number. The address forms are those of every Redis client:
    redis://HOST:PORT/DB, rediss:// for TLS, unix:///PATH?db=DB."""
    parts = urlsplit(address.url)
    asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    try:
        where = asked.get("db") or (parts.path.strip("/") if parts.scheme != "unix" else "") or "0"
        database, port = int(where), parts.port or _PORT
    except ValueError as error:
        raise InputError(f"{address.url}: not an address such as redis://HOST:PORT/DB ({error})") from error
    if parts.scheme == "unix":
        sock = machine.unix_socket()
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
            return _start_tls(sock, host, asked, address), database
    except BaseException:
        sock.close()
        raise
    return sock, database


def _start_tls(sock: socket.socket, host: str, asked: dict[str, str], address: RedisAddress) -> socket.socket:
    """Start TLS. `?ssl_ca_certs=FILE` replaces the system's authorities; `ssl_certfile` and `ssl_keyfile` are the
    client's own certificate and key."""
    import ssl  # imported here: most servers are used without TLS, and OpenSSL loads slowly

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


class BothReplies(NamedTuple):
    """The replies of two scripts. The first has run and stands, whatever happened to the second and the replicas."""

    first: Any
    second: Any  # a FarroError if the server refused it
    shortfall: FarroError | None  # set if fewer replicas have it than the settings ask for


class RedisClient:
    """Safe for many threads: each request uses an idle connection or makes one."""

    def __init__(self, address: RedisAddress, prefix: str, clock: Clock) -> None:
        self.address = address
        self._prefix = prefix
        self._clock = clock
        self._idle: deque[RedisConnection] = deque()
        self._pid = os.getpid()
        self._name: str | None = None  # of new connections
        self._naming = threading.Lock()
        self._version_checked = False  # the server's version is known to be supported
        self._closed = False
        self.requests = 0  # round trips so far, for tests

    # --- requests ---

    def run(
        self,
        script: LuaScript,
        *args: Arg,
        waits: bool = False,
        patience_s: float | None = None,
        again: bool = False,
    ) -> Any:
        """Run a script in one round trip. `waits`: wait for as many replicas as the settings ask for. `patience_s`: how
        long to retry, instead of the configured time. `again`: `wait_and_run` may have run it already."""
        command = self._command(script, args, again=again)
        return self._ask([command], [script], waits=waits, patience_s=patience_s)[0]

    def run_both(self, first: tuple[LuaScript, Sequence[Arg]], second: tuple[LuaScript, Sequence[Arg]]) -> BothReplies:
        """Run two scripts in order in one round trip; this is not one transaction."""
        commands = [self._command(script, args) for script, args in (first, second)]
        wait = self.address.wait_replicas > 0
        answers = self._answers(commands, [first[0], second[0]], wait=wait)
        refusals = [
            errors.refused(self.address.url, str(answer)) if isinstance(answer, ReplyError) else None
            for answer in answers
        ]
        if refusals[0] is not None:
            raise refusals[0]
        return BothReplies(answers[0], refusals[1] or answers[1], self._shortfall(answers[-1]) if wait else None)

    def wait_and_run(
        self, blocking: Sequence[Arg], script: LuaScript, *args: Arg, wait_s: float, wakeup: socket.socket
    ) -> Any:
        """Send a blocking command and a script that the server runs right after it; return the script's reply. This
        takes one round trip. None: unknown whether the script ran, because the server is away or `wakeup` became
        readable. Then `run` it with `again`."""
        try:
            connection = self._take()
        except OSError:
            return None
        self.requests += 1
        try:
            connection.send(pack(blocking) + pack(self._command(script, args)))
            ready = readable([connection.socket, wakeup], wait_s + self.address.timeout_s)
            answers = [connection.receive(), connection.receive()] if connection.socket in ready else []
        except OSError:
            connection.close()
            return None
        except BaseException:
            connection.close()  # another request would read our reply
            raise
        if not answers:
            # Only now: a wake that came together with a reply stays for the next wait; otherwise it would be lost.
            with contextlib.suppress(OSError):
                wakeup.recv(4096)
            connection.close()  # closing cancels the blocking command
            return None
        self._give_back(connection)
        for answer in answers:
            if isinstance(answer, ReplyError):
                if not str(answer).startswith((*errors.PASSING, "NOSCRIPT", "UNBLOCKED")):
                    raise errors.refused(self.address.url, str(answer))
                return None
        return answers[1]

    def _command(self, script: LuaScript, args: Sequence[Arg], *, again: bool = False) -> tuple[Arg, ...]:
        return ("EVALSHA", script.sha, 1, self._prefix, *args, int(again))

    def call(self, *command: Arg) -> Any:
        return self._ask([command])[0]

    def calls(self, commands: Sequence[Sequence[Arg]]) -> list[Any]:
        """Send several commands in one round trip; this is not one transaction."""
        return self._ask(commands)

    def _ask(
        self,
        commands: Sequence[Sequence[Arg]],
        scripts: Sequence[LuaScript] = (),
        *,
        waits: bool = False,
        patience_s: float | None = None,
    ) -> list[Any]:
        wait = waits and self.address.wait_replicas > 0
        answers = self._answers(commands, scripts, wait=wait, patience_s=patience_s)
        for answer in answers[: len(commands)]:
            if isinstance(answer, ReplyError):
                raise errors.refused(self.address.url, str(answer))
        if wait and (shortfall := self._shortfall(answers[-1])) is not None:
            raise shortfall
        return answers

    def _answers(
        self,
        commands: Sequence[Sequence[Arg]],
        scripts: Sequence[LuaScript],
        *,
        wait: bool,
        patience_s: float | None = None,
    ) -> list[Any]:
        """Return the final replies. Retry passing errors until the time for that is over. A command that has its final
        reply is not sent again with the others: it has run."""
        patience_s = self.address.retry_s if patience_s is None else min(patience_s, self.address.retry_s)
        began_s: float | None = None
        # Retry at once the first time: the server may have closed a connection that was idle for long.
        pause_s = 0.0
        sent = False  # what is pending may have been carried out
        answers: dict[int, Any] = {}
        pending: Pending = dict(enumerate(commands))
        while True:
            why: Exception
            connection: RedisConnection | None = None
            try:
                connection = self._take()
                replies = self._exchange(connection, list(pending.values()), wait)
            except OSError as error:
                why, sent = error, sent or connection is not None
            else:
                answers.update(zip(pending, replies, strict=False))
                if wait:
                    answers[len(commands)] = _fewest(answers.get(len(commands)), replies[-1])
                pending, passing = _without_final_reply(pending, answers, scripts)
                if not pending:
                    return [answers[at] for at in sorted(answers)]
                if passing is None:
                    continue
                why = passing
            now_s = self._clock.monotonic_s()
            began_s = now_s if began_s is None else began_s
            if now_s - began_s >= patience_s or self._closed:
                text = str(why)
                if isinstance(why, ReplyError):
                    raise errors.refused(self.address.url, text) from why
                raise errors.unreachable(self.address.url, _reason(why), now_s - began_s, sent=sent) from why
            self._clock.sleep(min(pause_s, patience_s - (now_s - began_s)))
            pause_s = min(2 * pause_s or _FIRST_PAUSE_S, LONGEST_PAUSE_S)
            # Other idle connections may be broken as well, and after a failover the address may lead to another server.
            self.drop()
            if sent and scripts:
                pending = {at: (*command[:-1], 1) for at, command in pending.items()}

    def _exchange(self, connection: RedisConnection, commands: Sequence[Sequence[Arg]], wait: bool) -> list[Any]:
        self.requests += 1
        packed = pack(commands[0]) if len(commands) == 1 else b"".join(pack(each) for each in commands)
        if wait:
            packed += pack(("WAIT", self.address.wait_replicas, int(self.address.wait_s * 1000)))
        try:
            connection.send(packed)
            answers = [connection.receive() for _ in range(len(commands) + wait)]
        except BaseException:
            connection.close()  # another request would read our reply
            raise
        self._give_back(connection)
        return answers

    def _shortfall(self, got: Any) -> FarroError | None:
        """Return the error for a WAIT reply with too few replicas."""
        if isinstance(got, ReplyError):
            return errors.refused(self.address.url, str(got))
        if got < self.address.wait_replicas:
            return errors.too_few_replicas(self.address.url, self.address.wait_replicas, got, self.address.wait_s)
        return None

    # --- connections ---

    def connect(self, timeout_s: float | None = None) -> RedisConnection:
        """Open a connection for the caller alone. FarroError: a mistake of the user (wrong password, old server).
        OSError: may pass."""
        waits_s = self.address.wait_s if self.address.wait_replicas else 0.0
        connection = RedisConnection(self.address, timeout_s or self.address.timeout_s + waits_s)
        if not self._version_checked:
            try:
                self._check_version(connection)
            except BaseException:
                connection.close()
                raise
        connection.name = self._name
        if connection.name is not None:
            try:
                connection.send(pack(("CLIENT", "SETNAME", connection.name)))
                connection.receive()
            except BaseException:
                connection.close()
                raise
        return connection

    def _check_version(self, connection: RedisConnection) -> None:
        connection.send(pack(("INFO", "server")))
        answer = connection.receive()
        if isinstance(answer, ReplyError):
            text = str(answer)
            if text.startswith(errors.PASSING):
                raise ConnectionError(text)
            raise errors.refused(self.address.url, text)
        found = re.search(rb"^redis_version:(\S+)", answer, re.MULTILINE)
        version = found[1].decode("ascii", "replace") if found else "?"
        major = version.split(".")[0]
        if not major.isdigit() or int(major) < 7:
            raise errors.too_old(self.address.url, version)
        self._version_checked = True

    def _take(self) -> RedisConnection:
        if self._pid != os.getpid():  # a forked child must not use its parent's connections
            self._idle = deque()
            self._pid = os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self.connect()

    def _give_back(self, connection: RedisConnection) -> None:
        if self._closed or connection.name != self._name:  # it was in use when the others were named
            connection.close()
        else:
            self._idle.append(connection)

    def name_connections(self, name: str) -> str | None:
        """Give this process's connections a name, once, so that others can see whether it has any. Return the name;
        None: the server, or a proxy before it, refuses names."""
        with self._naming:
            if self._name is None:
                (answer,) = self._answers([("CLIENT", "SETNAME", name)], (), wait=False)
                if not isinstance(answer, ReplyError):
                    self._name = name
                self.drop()
            return self._name

    def drop(self) -> None:
        """Close all idle connections."""
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def close(self) -> None:
        self._closed = True
        self.drop()


Pending = dict[int, Sequence[Arg]]  # the commands of a request that have no final reply, by their position


def _without_final_reply(
    sent: Pending, answers: dict[int, Any], scripts: Sequence[LuaScript]
) -> tuple[Pending, ReplyError | None]:
    """Return the commands to send again, and a passing error among the replies. A script that the server does not know,
    because it was restarted or never saw it, is sent in full."""
    again: Pending = {}
    passing = None
    for at, command in sent.items():
        if not isinstance(answers[at], ReplyError):
            continue
        text = str(answers[at])
        if scripts and text.startswith("NOSCRIPT"):
            again[at] = ("EVAL", scripts[at].text, *command[2:])
        elif text.startswith(errors.PASSING):
            again[at] = command
            passing = answers[at]
    return again, passing


def _fewest(one: Any, other: Any) -> Any:
    """Return the worse of two replies to WAIT."""
    return other if one is None or isinstance(other, ReplyError) or (other < one) else one


def _reason(error: Exception) -> str:
    if isinstance(error, BlockingIOError | TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__
