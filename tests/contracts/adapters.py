"""The adapters of the Store port for the contract suites, and what a test may do to each from outside.

A "process" is one store object; the memory store has only one, which stands for all.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlite_store import SqliteStore

from farro.host.clock import ManualClock
from farro.store.files import FilesStore
from farro.store.files.context import FilesContext
from farro.store.memory import MemoryStore
from farro.store.port import Agent, Store, StoreContext, StorePolicy
from farro.store.redis import RedisStore
from farro.store.redis.client import RedisAddress
from farro.store.redis.context import RedisContext
from farro.store.redis.workspace import LocalWorkspace
from farro.testing.store_kit import RETRY as RETRY
from farro.testing.store_kit import ROLES, START
from farro.testing.store_kit import StoreKit as Adapter
from farro.testing.store_kit import kept_in as kept_in
from farro.testing.store_kit import lowest as low
from servers import RedisServer
from stage import make, read, small_journal


@dataclass
class Memory:
    policy: StorePolicy
    name: str = "memory"
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))
    logged: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)
    audited: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = MemoryStore(
            roles=ROLES,
            policy=self.policy,
            clock=self.clock,
            random_bits=random.Random(0).getrandbits,
            uniform=low,
            audit=kept_in(self.audited),
        )

    def process(self) -> MemoryStore:
        return self.store

    def die(self, agent: Agent, store: Store | None = None) -> None:
        agents = self.store.state.all_agents
        agents[agent.id] = replace(agents[agent.id], alive=False)

    def snapshot(self) -> object:
        jobs = self.store.state.all_jobs.items()
        return {job_id: (job.lifecycle, job.owner, job.attempts, job.entered) for job_id, job in jobs}

    def close(self) -> None:
        self.store.close()


@dataclass
class Files:
    policy: StorePolicy
    root: str
    name: str = "files"
    journal: bool = False  # from the first call on
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))
    logged: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)
    audited: list[dict[str, Any]] = field(default_factory=list)
    reaped: list[list[str]] = field(default_factory=list)
    hung: list[Mapping[str, Any]] = field(default_factory=list)
    when_hung: Callable[[Mapping[str, Any]], bool] = lambda identity: False
    stores: list[FilesStore] = field(default_factory=list)

    def __post_init__(self) -> None:
        make(self.root)
        self.store = self.process()

    def process(self) -> FilesStore:
        dice = random.Random(len(self.stores))
        store = FilesStore(
            FilesContext(
                root=self.root,
                policy=self.policy,
                clock=self.clock,
                reap=lambda markers, identity: self.reaped.append(markers),
                kill_hung=self._kill_hung,
                identity=lambda: {"host": "stage", "boot_id": "0", "pid": 1, "start": 0},
                log=lambda level, message, fields: self.logged.append((level, message, fields)),
                audit=kept_in(self.audited),
                random_bits=dice.getrandbits,
                uniform=low,
                journal=small_journal(self.root, "0", dice.getrandbits) if self.journal else None,
            )
        )
        self.stores.append(store)
        return store

    def _kill_hung(self, identity: Mapping[str, Any]) -> bool:
        self.hung.append(identity)
        return self.when_hung(identity)

    def die(self, agent: Agent, store: Store | None = None) -> None:
        context = (store or self.store)._context  # type: ignore[attr-defined]
        context.local_agents.pop(agent.id).lease.drop()

    def snapshot(self) -> object:
        found: dict[str, bytes | str | None] = {}
        for folder, names, files in os.walk(self.root):
            for name in (*names, *files):
                path = os.path.join(folder, name)
                if os.path.islink(path):
                    found[path] = os.readlink(path)
                elif name in names:
                    found[path] = None
                elif name != ".lease":  # its time is a heartbeat, its content the same
                    found[path] = read(path)
        return found

    def close(self) -> None:
        for store in self.stores:
            store.close()


@dataclass
class Redis:
    """The manual clock stands for the server's: advancing it ages leases and delays."""

    policy: StorePolicy
    root: str
    server: RedisServer
    name: str = "redis"
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))
    logged: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)
    audited: list[dict[str, Any]] = field(default_factory=list)
    stores: list[RedisStore] = field(default_factory=list)

    def __post_init__(self) -> None:
        os.makedirs(f"{self.root}/jobs", exist_ok=True)
        self.space = f"t{os.getpid()}-{next(_SPACES)}"  # a key space of its own in the server that all tests share
        self.store = self.process()

    def process(self) -> RedisStore:
        dice = random.Random(len(self.stores))
        workspace = LocalWorkspace(self.root, name=self.space, clock=self.clock)
        store = RedisStore(
            RedisContext(
                root=self.root,
                name=self.space,
                address=RedisAddress(url=self.server.url, retry_s=5.0),
                roles=ROLES,
                policy=self.policy,
                clock=self.clock,
                own_time=True,
                workspace=workspace,
                lease_s=self.policy.stale_after_s,
                beat_s=0.0,
                log=lambda level, message, fields: self.logged.append((level, message, fields)),
                audit=kept_in(self.audited),
                random_bits=dice.getrandbits,
                uniform=low,
            ),
            on_close=workspace.close,
        )
        self.stores.append(store)
        return store

    def die(self, agent: Agent, store: Store | None = None) -> None:
        self.store._context.client.call("ZADD", f"{self.store._context.keys.prefix}leases", 0, agent.id)
        for each in self.stores:
            each._context.last_heard_s.pop(agent.id, None)

    def snapshot(self) -> object:
        """Every key but the leases: their time is a heartbeat."""
        ask, prefix = self.store._context.client.call, self.store._context.keys.prefix
        found, cursor = [], b"0"
        while True:
            cursor, some = ask("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", 10_000)
            found += some
            if cursor == b"0":
                break
        reads: dict[bytes, Callable[[bytes], object]] = {
            b"hash": lambda key: sorted(zip(*[iter(ask("HGETALL", key))] * 2, strict=True)),
            b"zset": lambda key: ask("ZRANGE", key, 0, -1, "WITHSCORES"),
            b"set": lambda key: sorted(ask("SMEMBERS", key)),
            b"stream": lambda key: ask("XRANGE", key, "-", "+"),
            b"string": lambda key: ask("GET", key),
        }
        return {key: reads[ask("TYPE", key)](key) for key in found if not key.endswith(b":leases")}

    def close(self) -> None:
        for store in self.stores:
            store.close()


@dataclass
class Sqlite:
    """The example of a store of another package: examples/sqlite_store."""

    policy: StorePolicy
    root: str
    name: str = "sqlite"
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))
    logged: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)
    audited: list[dict[str, Any]] = field(default_factory=list)
    stores: list[SqliteStore] = field(default_factory=list)

    def __post_init__(self) -> None:
        os.makedirs(f"{self.root}/jobs", exist_ok=True)
        self.store = self.process()

    def process(self) -> SqliteStore:
        context = StoreContext(
            root=self.root,
            roles=ROLES,
            policy=self.policy,
            clock=self.clock,
            audit=kept_in(self.audited),
            log=lambda level, message, fields: self.logged.append((level, message, fields)),
            identity=lambda: {"host": "stage", "pid": 1},
            reap=lambda markers, identity: None,
            on_close=lambda: None,
        )
        store = SqliteStore(context, random_bits=random.Random(len(self.stores)).getrandbits, uniform=low)
        self.stores.append(store)
        return store

    def die(self, agent: Agent, store: Store | None = None) -> None:
        assert store is None or isinstance(store, SqliteStore)
        (store or self.store).leases.pop(agent.id).drop()

    def snapshot(self) -> object:
        """Every row but the agents': their time is a heartbeat."""
        tables = ("jobs", "names", "pauses", "files", "changes")
        return {table: self.store._db.execute(f"SELECT * FROM {table}").fetchall() for table in tables}

    def close(self) -> None:
        for store in self.stores:
            store.close()


_SPACES = itertools.count()


def make_adapter(kind: str, root: str, server: RedisServer | None = None, **changes: Any) -> Adapter:
    policy = StorePolicy(**{"durable": kind != "process", "retry": RETRY, **changes})
    if kind == "redis":
        assert server is not None
        return Redis(policy, root, server)
    if kind == "sqlite":
        return Sqlite(policy, root)
    return Memory(policy) if kind == "memory" else Files(policy, root, f"files[{kind}]", kind == "journal")
