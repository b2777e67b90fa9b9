"""Talking to the server: connections, one request a round trip, and the only place that tries again.

What is sent lives in the parts of the store; what an error means in words lives in trouble.

redis-py connects (TLS, UNIX sockets, users); its own retries are off. A request then goes over that connection's socket
with hiredis alone: redis-py's way around it takes longer than the server's answer.

A call whose answer was lost is sent again, with the last argument of its script set to 1: each script says what it
makes of that, and none does its work twice. [test_a_lost_answer_is_asked_for_again]
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from farro.errors import FarroError
from farro.ports.clock import Clock
from farro.stores.redis import trouble
from farro.stores.redis.scripts import Script

try:
    import hiredis
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:  # pragma: no cover - an installation without the extra
    raise trouble.missing() from error

Arg = str | bytes | int | float
_CHUNK = 1 << 16
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
NOT_CONNECTED = (OSError, redis.ConnectionError, redis.TimeoutError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Where the server is, and how it is spoken to."""

    url: str  # as in the config: no user and no password in it
    user: str | None = None
    password: str | None = None
    timeout_s: float = 5.0  # of one request
    retry_s: float = 30.0  # how long a request is tried again while the server is away
    wait_replicas: int = 0
    wait_s: float = 1.0


def pack(command: Sequence[Arg]) -> bytes:
    """A request as it is sent."""
    packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its stub knows one argument only
    return packed


class Link:
    """One connection. Not safe from two threads at once."""

    def __init__(self, pool: Any, timeout_s: float) -> None:
        self._connection = pool.make_connection()
        self._connection.connect()
        self.socket: socket.socket = self._connection._sock
        self._reader = hiredis.Reader()
        if type(self.socket) is socket.socket:
            # The kernel's own timeouts: Python's ask for the state of the socket before every read and write.
            self.socket.settimeout(None)
            limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

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
            reader.feed(data)
            answer = reader.gets()
        return answer

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._connection.disconnect()


class Server:
    """Safe from many threads: each request takes a connection that nobody uses, or makes one."""

    def __init__(self, address: Address, prefix: str, clock: Clock) -> None:
        self.address = address
        self._prefix = prefix
        self._clock = clock
        self._pool = _pool(address)
        self._idle: deque[Link] = deque()
        self._pid = os.getpid()
        self._seen = False  # a server of a version that will do was met
        self._closed = False
        self.requests = 0  # round trips so far: what the tests count

    # --- asking ---

    def run(self, script: Script, *args: Arg, waits: bool = False, patience_s: float | None = None) -> Any:
        """One round trip. `waits`: it is acknowledged by as many replicas as the settings ask for. `patience_s`: how
        long it is tried again, instead of what the settings say."""
        command = ("EVALSHA", script.sha, 1, self._prefix, *args, 0)
        return self._ask([command], script, waits=waits, patience_s=patience_s)[0]

    def call(self, *command: Arg) -> Any:
        return self._ask([command])[0]

    def calls(self, commands: Sequence[Sequence[Arg]]) -> list[Any]:
        """Several commands in one round trip; not one transaction."""
        return self._ask(commands)

    def _ask(
        self,
        commands: Sequence[Sequence[Arg]],
        script: Script | None = None,
        *,
        waits: bool = False,
        patience_s: float | None = None,
    ) -> list[Any]:
        wait = waits and self.address.wait_replicas > 0
        try:
            link = self._take()
        except NOT_CONNECTED as error:
            answers, commands = self._ask_again(commands, script, wait, error, sent=False, patience_s=patience_s)
        else:
            try:
                answers = self._exchange(link, commands, wait)
            except OSError as error:
                answers, commands = self._ask_again(commands, script, wait, error, sent=True, patience_s=patience_s)
        return self._judged(answers, commands, script, wait)

    def _judged(
        self, answers: list[Any], commands: Sequence[Sequence[Arg]], script: Script | None, wait: bool
    ) -> list[Any]:
        for answer in answers[: len(commands)]:
            if isinstance(answer, hiredis.ReplyError):
                return self._told(answer, commands, script, wait)
        if wait:
            self._check_replicas(answers[-1])
        return answers

    def _exchange(self, link: Link, commands: Sequence[Sequence[Arg]], wait: bool) -> list[Any]:
        self.requests += 1
        packed = pack(commands[0]) if len(commands) == 1 else b"".join(pack(each) for each in commands)
        if wait:
            packed += pack(("WAIT", self.address.wait_replicas, int(self.address.wait_s * 1000)))
        try:
            link.send(packed)
            answers = [link.receive() for _ in range(len(commands) + wait)]
        except BaseException:
            link.close()  # somebody else would read our answer
            raise
        self._give_back(link)
        return answers

    def _told(
        self, error: Exception, commands: Sequence[Sequence[Arg]], script: Script | None, wait: bool
    ) -> list[Any]:
        """The server answered an error."""
        text = str(error)
        if text.startswith("NOSCRIPT") and script is not None:  # it was started anew, or never saw this script
            return self._ask([("EVAL", script.text, *commands[0][2:])], script, waits=wait)
        if text.startswith(trouble.PASSING):
            if text.startswith("READONLY"):
                self.drop()  # this master is none any more: the address may mean another by now
            answers, commands = self._ask_again(commands, script, wait, error, sent=False)
            return self._judged(answers, commands, script, wait)
        raise trouble.refused(self.address.url, text)

    def _ask_again(
        self,
        commands: Sequence[Sequence[Arg]],
        script: Script | None,
        wait: bool,
        why: Exception,
        *,
        sent: bool,
        patience_s: float | None = None,
    ) -> tuple[list[Any], Sequence[Sequence[Arg]]]:
        """Until the server answers, or the time for it is over. The answers, and what was asked at last."""
        # At once, the first time: a connection that nobody used for long may have been closed by the server.
        began, pause = self._clock.monotonic_s(), 0.0
        patience_s = self.address.retry_s if patience_s is None else min(patience_s, self.address.retry_s)
        while True:
            tried_s = self._clock.monotonic_s() - began
            if tried_s >= patience_s or self._closed:
                text = str(why)
                if text.startswith(trouble.PASSING):
                    raise trouble.refused(self.address.url, text) from why
                raise trouble.unreachable(self.address.url, _words(why), tried_s) from why
            self._clock.sleep(min(pause, patience_s - tried_s))
            pause = min(2 * pause or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            self.drop()  # the other connections are as old as the one that broke
            if sent and script is not None:
                commands = [(*commands[0][:-1], 1)]
            try:
                link = self._take()
            except NOT_CONNECTED as error:
                why = error
                continue
            try:
                answers = self._exchange(link, commands, wait)
            except OSError as error:
                why, sent = error, True
                continue
            text = str(answers[0]) if isinstance(answers[0], hiredis.ReplyError) else ""
            if text.startswith(trouble.PASSING):
                why = answers[0]
                continue
            return answers, commands

    def _check_replicas(self, got: Any) -> None:
        if isinstance(got, hiredis.ReplyError):
            raise trouble.refused(self.address.url, str(got))
        if got < self.address.wait_replicas:
            raise trouble.too_few_replicas(self.address.url, self.address.wait_replicas, got, self.address.wait_s)

    # --- connections ---

    def connect(self, timeout_s: float | None = None) -> Link:
        """A connection of the caller's own. An error of the user's (a wrong password, a server that is too old) is a
        FarroError; what may pass is redis-py's or the operating system's own."""
        try:
            waits_s = self.address.wait_s if self.address.wait_replicas else 0.0
            link = Link(self._pool, timeout_s or self.address.timeout_s + waits_s)
        except redis.AuthenticationError as error:
            raise trouble.refused(self.address.url, f"NOAUTH {error}") from error
        except redis.ResponseError as error:
            text = str(error)
            if text.startswith(trouble.PASSING):
                raise redis.ConnectionError(text) from error
            raise trouble.refused(self.address.url, text) from error
        if not self._seen:
            try:
                self._check_version(link)
            except BaseException:
                link.close()
                raise
        return link

    def _check_version(self, link: Link) -> None:
        link.send(pack(("INFO", "server")))
        answer = link.receive()
        if isinstance(answer, hiredis.ReplyError):
            text = str(answer)
            if text.startswith(trouble.PASSING):
                raise redis.ConnectionError(text)
            raise trouble.refused(self.address.url, text)
        found = re.search(rb"^redis_version:(\S+)", answer, re.MULTILINE)
        version = found[1].decode("ascii", "replace") if found else "?"
        major = version.split(".")[0]
        if not major.isdigit() or int(major) < 7:
            raise trouble.too_old(self.address.url, version)
        self._seen = True

    def _take(self) -> Link:
        if self._pid != os.getpid():  # a forked child: its parent's connections are not its own
            self._idle = deque()
            self._pid = os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self.connect()

    def _give_back(self, link: Link) -> None:
        if self._closed:
            link.close()
        else:
            self._idle.append(link)

    def drop(self) -> None:
        """Every connection that nobody uses."""
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def close(self) -> None:
        self._closed = True
        self.drop()


def _pool(address: Address) -> Any:
    try:
        return redis.ConnectionPool.from_url(
            address.url,
            username=address.user,
            password=address.password,
            protocol=2,
            socket_timeout=address.timeout_s,
            socket_connect_timeout=address.timeout_s,
            retry=Retry(NoBackoff(), 0),
            driver_info=None,
        )
    except ValueError as error:
        raise FarroError(f"{address.url}: {error}") from error


def _words(error: Exception) -> str:
    if isinstance(error, BlockingIOError | redis.TimeoutError | TimeoutError):
        return "no answer in time"
    return " ".join(str(error).split())[:200] or type(error).__name__
