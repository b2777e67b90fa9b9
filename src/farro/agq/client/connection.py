"""Connect one worker to `farro agq` under its id, reconnect after failures, and translate errors.

- The id is announced with every connection (CLIENT SETNAME, tags and tools): a worker that was cut off is the same one
  when it is back, and keeps its jobs.
- redis-py repeats nothing here: a pop that was sent twice would take two jobs. The caller says what may be repeated.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from farro.errors import ClaimLost, FarroError, InputError, StorageTrouble
from farro.host.clock import Clock
from farro.lazy_dataclass import dataclass, field

T = TypeVar("T")

FACT_BYTES = 4096  # of the tools or tags that a worker announces
PAUSE_S = 0.2  # between two tries


@dataclass(frozen=True, kw_only=True, slots=True)
class AgqAddress:
    host: str
    port: int
    key: str | None = field(repr=False)  # sent with AUTH

    def __str__(self) -> str:
        return f"agq://{self.host}:{self.port}"

    @classmethod
    def of(cls, url: str, key: str | None) -> AgqAddress:
        if "@" in url:  # the address is not shown: it contains a key
            raise InputError(
                "an address of `farro agq` holds no key: write agq://HOST:PORT, and set AGQ_KEY to the key"
            )
        host, _, port = url.removeprefix("agq://").rstrip("/").rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise InputError(
                f"{url} is not an address of `farro agq`; write agq://HOST:PORT, such as agq://127.0.0.1:6380"
            )
        return cls(host=host.strip("[]"), port=int(port), key=key)


@dataclass(frozen=True, kw_only=True, slots=True)
class Announcement:
    worker_id: str
    tags: frozenset[str] = frozenset()
    tools: tuple[str, ...] = ()


class RespClient:
    """One connection of redis-py, without its pool: a worker is one connection, and QUIT on it ends the worker."""

    __slots__ = ("_connection", "_error")

    def __init__(self, connection: Any, error: type[Exception]) -> None:
        self._connection = connection
        self._error = error  # the exception that redis-py raises for an error reply

    def send(self, *words: str | bytes | int) -> Any:
        connection = self._connection
        connection.send_packed_command(connection.pack_command(*words))
        return connection.read_response()

    def send_all(self, *commands: tuple[str | bytes | int, ...]) -> list[Any]:
        """Send all commands in one round trip. Raise the first error when all replies are there."""
        connection = self._connection
        connection.send_packed_command(connection.pack_commands(commands))
        answers: list[Any] = []
        trouble: Exception | None = None
        for _ in commands:
            try:
                answers.append(connection.read_response())
            except self._error as error:
                trouble = trouble or error
        if trouble is not None:
            raise trouble
        return answers

    def close(self) -> None:
        self._connection.disconnect()


class WorkerConnection:
    """Used by one thread at a time."""

    def __init__(self, address: AgqAddress, announcement: Announcement, clock: Clock, *, timeout_s: float) -> None:
        self.address = address
        self.alive_s = 30.0  # how long the server waits for a worker without a connection; the server says so
        self._announcement = announcement
        self._clock = clock
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._client: RespClient | None = None

    def call(self, send: Callable[[RespClient], T], *, repeat: bool) -> T:
        """Return what `send` makes of the client. `repeat`: it may be repeated after a broken connection, for as long
        as the server waits for this worker. StorageTrouble: no reply came, and it is unknown whether the call was
        carried out."""
        redis = _redis()
        until_s = self._clock.monotonic_s() + (self.alive_s if repeat else 0.0)
        with self._lock:
            while True:
                try:
                    return send(self._connected(redis))
                except redis.exceptions.AuthenticationError as error:
                    self.drop()
                    raise refused(self.address, str(error)) from None
                except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
                    self.drop()
                    if self._clock.monotonic_s() + PAUSE_S > until_s:
                        raise _unreachable(self.address, error) from None
                    self._clock.sleep(PAUSE_S)
                except redis.exceptions.ResponseError as error:
                    if not (repeat and "ask again" in str(error) and self._clock.monotonic_s() + PAUSE_S <= until_s):
                        raise refused(self.address, str(error)) from None
                    self._clock.sleep(PAUSE_S)

    def quit(self) -> None:
        """Leave: the server hands the worker's jobs back at once. Without a reply it does so later."""
        if self._lock.acquire(timeout=self._timeout_s):
            try:
                with contextlib.suppress(FarroError):
                    self.call(lambda client: client.send("QUIT"), repeat=False)
                self.drop()
            finally:
                self._lock.release()

    def drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # the socket is broken already
                client.close()

    def _connected(self, redis: Any) -> RespClient:
        if self._client is None:
            made = redis.Connection(
                host=self.address.host,
                port=self.address.port,
                password=self.address.key,
                client_name=self._announcement.worker_id,
                protocol=2,
                socket_timeout=self._timeout_s,
                socket_connect_timeout=self._timeout_s,
                socket_keepalive=True,
                retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
            )
            try:
                made.connect()
                client = RespClient(made, redis.exceptions.ResponseError)
                worker = f"worker:{self._announcement.worker_id}"
                answers = client.send_all(
                    ("SET", f"{worker}:alive", "1"),
                    ("PTTL", f"{worker}:alive"),
                    ("SET", f"{worker}:tags", ",".join(sorted(self._announcement.tags))[:FACT_BYTES]),
                    ("SET", f"{worker}:tools", _fitting(self._announcement.tools)),
                )
                if answers[1] > 0:
                    self.alive_s = answers[1] / 1000
            except BaseException:
                made.disconnect()
                raise
            self._client = client
        return self._client


def _fitting(names: tuple[str, ...]) -> str:
    """Join as many names as fit, none of them cut."""
    text = ",".join(names)
    return text if len(text) <= FACT_BYTES else text[:FACT_BYTES].rpartition(",")[0]


def _redis() -> Any:
    try:
        import redis
        import redis.backoff
        import redis.retry
    except ImportError:
        raise InputError("working over agq needs two more packages: pip install 'farro[redis]'") from None
    return redis


def _unreachable(address: AgqAddress, error: BaseException) -> StorageTrouble:
    why = ascii(str(error) or type(error).__name__)[1:-1][:200]
    return StorageTrouble(
        f"{address}: no answer ({why}). Check that `farro agq` runs there and can be reached from here "
        f"(redis-cli -h {address.host} -p {address.port} PING); then try again"
    )


def refused(address: AgqAddress, text: str) -> FarroError:
    said = ascii(text)[1:-1][:300]
    if text.startswith("claim lost"):
        return ClaimLost(said)
    if "NOAUTH" in text or "WRONGPASS" in text or "invalid username-password" in text or "uthenticat" in text:
        return InputError(
            f"{address}: the key is missing or wrong. Set the variable AGQ_KEY, or `agq.key: ${{NAME}}` in "
            "agents-config and the variable NAME, to what `farro agq` was started with"
        )
    if "this server has no key" in text:
        return InputError(f"{address}: a key was sent, but this `farro agq` has none: leave AGQ_KEY and agq.key out")
    if "unknown command" in text:
        return InputError(f"{address}: that `farro agq` is older than this worker ({said}); update it first")
    if "no queue here" in text:
        return InputError(f"{address}: {said}")
    return FarroError(f"{address} answered: {said}")
