"""Settings of the Redis store, buses, RESP front, HTTP front and MCP server.

Keys of the rest live in the package itself.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from farro.config.fields import Count, FilledText, Positive, Secret
from farro.documents.constraints import Bounds, Matching
from farro.lazy_dataclass import dataclass

AGQ = "agq://"  # HOST:PORT of a `farro agq`: for workers and agx, never in a config


@dataclass(frozen=True, eq=False)
class StoreAddress:
    """`files`, or the address of a Redis server."""

    def fault(self, value: str, /) -> str | None:
        if value == "files" or re.fullmatch(r"rediss?://[^\s@]+|unix://[^\s@]+", value):
            return None
        if "@" in value:
            return "must hold no user and no password: they belong under `redis` (user, password: ${NAME})"
        return 'must be "files", or the address of a Redis server: redis://HOST:PORT/DB, rediss://…, unix:///PATH'

    def schema(self) -> dict[str, Any]:
        return {"pattern": r"^(files|rediss?://[^\s@]+|unix://[^\s@]+)$"}


Address = Annotated[str, StoreAddress()]


@dataclass(frozen=True, eq=False)
class BusAddressForm:
    """`files`, a folder, or the address of RabbitMQ."""

    def fault(self, value: str, /) -> str | None:
        if value == "files" or re.fullmatch(r"files:.+|amqps?://[^\s@]+", value):
            return None
        if "@" in value:
            return "must hold no user and no password: they belong under `amqp` (user, password: ${NAME})"
        return 'must be "files", files:FOLDER, or the address of a RabbitMQ: amqp://HOST:PORT/VHOST, amqps://…'

    def schema(self) -> dict[str, Any]:
        return {"pattern": r"^(files|files:.+|amqps?://[^\s@]+)$"}


BusAddress = Annotated[str, BusAddressForm()]
HostPort = Annotated[
    str, Matching(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}", "an address such as 127.0.0.1:6380")
]


@dataclass(frozen=True, kw_only=True)
class RedisSettings:
    """The Redis store, for many machines; `store` holds its address. docs/redis.md."""

    name: Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", "letters, digits, _ and -")] = "farro"
    user: FilledText | None = None
    password: Secret | None = None  # ${NAME}, never the password itself
    # An agent without a heartbeat for this long is dead. At least two seconds: the heartbeat is every second.
    lease_s: Annotated[float, Bounds(at_least=2, at_most=3600)] = 30.0
    wait_replicas: Annotated[int, Bounds(at_least=0, at_most=100)] = 0  # that acknowledge a write (WAIT)
    wait_s: Positive = 1.0  # the longest wait for them
    shared: FilledText | None = None  # a folder that all machines share, for large outputs
    inline_bytes: Annotated[int, Bounds(at_least=1024, at_most=16 << 20)] = 256 << 10  # of one file of a result
    timeout_s: Positive = 5.0  # of one request to the server
    retry_s: Positive = 30.0  # how long a request is retried while the server is away
    keep_changes: Count = 65536  # entries of the change feed
    keep_audit: Count = 1_000_000  # lines of the common audit log


@dataclass(frozen=True, kw_only=True)
class AmqpSettings:
    """RabbitMQ as the bus of swarms; `bus` holds its address. docs/swarms.md."""

    user: FilledText | None = None
    password: Secret | None = None  # ${NAME}, never the password itself
    quorum: bool = False  # use quorum queues, for a broker with several nodes


@dataclass(frozen=True, kw_only=True)
class AgqSettings:
    """The RESP front, `farro agq`. docs/agq.md."""

    bind: HostPort = "127.0.0.1:6380"
    key: Secret | None = None  # ${NAME}: the key that clients send with AUTH; required beyond loopback
    max_connections: Annotated[int, Bounds(at_least=1, at_most=100_000)] = 1000
    worker_ttl_s: Positive = 30.0  # a worker without connection and heartbeat for this long is gone


Allowed = Literal["write", "approve"]  # what an MCP server may do beyond reading


@dataclass(frozen=True, kw_only=True)
class McpSettings:
    """The MCP server, `farro mcp`. docs/mcp.md."""

    allow: tuple[Allowed, ...] = ()  # write: queue, retry, requeue, kill; approve: answer for a person


@dataclass(frozen=True, kw_only=True)
class WebSettings:
    """The HTTP front, `farro web`. docs/http.md."""

    bind: HostPort = "127.0.0.1:8420"
    token: Secret | None = (
        None  # ${NAME}: the token of programs; required beyond loopback. None: jobs/.web/token is generated
    )
    hosts: tuple[FilledText, ...] = ()  # host names that it answers to, besides addresses and localhost
    read_only: bool = False  # refuse every change
    secure_cookie: bool = False  # behind an https proxy: browsers send the session cookie over https only
