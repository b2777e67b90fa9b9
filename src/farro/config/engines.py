"""What can be configured of engines and fronts: the Redis store, buses, RESP, HTTP, the MCP server.

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
    """`files`, or where the Redis server is."""

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
    """`files`, a folder, or where RabbitMQ is."""

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
    """Where jobs lie in a Redis or Valkey server, for roots of many machines: `store` says which. docs/redis.md."""

    name: Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", "letters, digits, _ and -")] = "farro"
    user: FilledText | None = None
    password: Secret | None = None  # ${NAME}, never the password itself
    # An agent that is silent for so long is dead. Not less than two: one at work says something every second.
    lease_s: Annotated[float, Bounds(at_least=2, at_most=3600)] = 30.0
    wait_replicas: Annotated[int, Bounds(at_least=0, at_most=100)] = 0  # that have what is acknowledged (WAIT)
    wait_s: Positive = 1.0  # … and how long that may take
    shared: FilledText | None = None  # a folder that every machine has: where large outputs go
    inline_bytes: Annotated[int, Bounds(at_least=1024, at_most=16 << 20)] = 256 << 10  # of one file of a result
    timeout_s: Positive = 5.0  # of one request to the server
    retry_s: Positive = 30.0  # how long a request is tried again while the server is away
    keep_changes: Count = 65536  # entries of the change feed
    keep_audit: Count = 1_000_000  # lines of the common audit log


@dataclass(frozen=True, kw_only=True)
class AmqpSettings:
    """The RabbitMQ that carries what swarms say, where `bus` is amqp://…. docs/swarms.md."""

    user: FilledText | None = None
    password: Secret | None = None  # ${NAME}, never the password itself
    quorum: bool = False  # queues are replicated (quorum queues): for a broker of several nodes


@dataclass(frozen=True, kw_only=True)
class AgqSettings:
    """The RESP front, `farro agq`. docs/agq.md."""

    bind: HostPort = "127.0.0.1:6380"
    key: Secret | None = None  # ${NAME}: what clients say with AUTH; needed beyond loopback
    max_connections: Annotated[int, Bounds(at_least=1, at_most=100_000)] = 1000
    worker_ttl_s: Positive = 30.0  # a worker that says nothing for so long, and has no connection, is gone


Allowed = Literal["write", "approve"]  # what an MCP server may do beside looking


@dataclass(frozen=True, kw_only=True)
class McpSettings:
    """The MCP server, `farro mcp`. docs/mcp.md."""

    allow: tuple[Allowed, ...] = ()  # write: queue, retry, requeue, kill; approve: answer in a person's name


@dataclass(frozen=True, kw_only=True)
class WebSettings:
    """The HTTP front, `farro web`. docs/http.md."""

    bind: HostPort = "127.0.0.1:8420"
    token: Secret | None = (
        None  # ${NAME}: what programs say; needed beyond loopback. None: one is made, jobs/.web/token
    )
    hosts: tuple[FilledText, ...] = ()  # names by which it is reached, beside addresses and localhost
    read_only: bool = False  # it shows, and changes nothing
    secure_cookie: bool = False  # behind a proxy that speaks https: browsers send the session by it alone
