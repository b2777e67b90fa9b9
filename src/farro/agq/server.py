"""Run the RESP server on one port: connections, threads for the store, and timers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from farro.agq import memo_jobs
from farro.agq.batcher import Batcher
from farro.agq.blocking_pops import RoleQueue
from farro.agq.changes import Channels, FeedThread, OwnPushes
from farro.agq.connection import Connection
from farro.agq.handlers import TABLE
from farro.agq.memo_jobs import PushRequest
from farro.agq.resp import Parser
from farro.agq.workers import RemoteWorker, RemoteWorkers
from farro.errors import FarroError
from farro.lazy_dataclass import dataclass
from farro.log.structured import Log
from farro.queue.submit import ANYTHING, SubmitPolicy
from farro.store.library import Library
from farro.store.port import Changes, Store, Submitted

THREADS = 16  # parallel calls of the store, besides those of the batchers
QUERY_THREADS = 4  # … that read many jobs
IN_FLIGHT = 256 << 20  # bytes of large commands and of those between MULTI and EXEC, on all connections together
AUTH_S = 10.0  # until the key must be sent
COMMAND_S = 60.0  # until a command that has begun must be complete
READ_S = 60.0  # until a client must read its replies
SWEEP_S = 0.5
STOP_S = 8.0  # until everything is handed back; a watchdog recovers the rest
ROLES_S = 5.0
LENGTH_S = 1.0  # how long a counted queue length is used


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    host: str = "127.0.0.1"
    port: int = 6380
    key: str | None = None
    max_connections: int = 1000
    worker_ttl_s: float = 30.0
    beat_s: float = 5.0
    remote_store: bool = True  # calls of the store wait for a network; otherwise they are mostly CPU work
    max_job_bytes: int = 25 << 20  # of a job's input
    version: str = ""


class StoreThreads:
    """Call the store in threads: batched claims and pushes, other calls, queries that read many jobs, and heartbeats,
    each in its own pool. So pops, results and leases go on, however many clients read however many jobs."""

    def __init__(self) -> None:
        self._calls = ThreadPoolExecutor(THREADS, thread_name_prefix="agq")
        self._queries = ThreadPoolExecutor(QUERY_THREADS, thread_name_prefix="agq-look")
        self._heartbeats = ThreadPoolExecutor(1, thread_name_prefix="agq-heart")
        self._claims = ThreadPoolExecutor(1, thread_name_prefix="agq-work")
        self._pushes = ThreadPoolExecutor(1, thread_name_prefix="agq-push")
        self._running: set[Future[Any]] = set()

    async def call(self, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Call the store."""
        return await self._in(self._calls, function, *args, **more)

    async def query(self, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Call a function that reads many jobs."""
        return await self._in(self._queries, function, *args, **more)

    async def heartbeat(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self._in(self._heartbeats, function, *args)

    async def claim(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self._in(self._claims, function, *args)

    async def push(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self._in(self._pushes, function, *args)

    async def _in(self, pool: ThreadPoolExecutor, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        running = pool.submit(function, *args, **more)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return await asyncio.wrap_future(running, loop=asyncio.get_running_loop())

    @property
    def busy(self) -> bool:
        """Return whether a call has not returned."""
        return any(call.running() for call in list(self._running))

    def shutdown(self) -> None:
        """Start no further call; calls that run are left alone."""
        for pool in (self._calls, self._queries, self._heartbeats, self._claims, self._pushes):
            pool.shutdown(wait=False, cancel_futures=True)


class AgqServer:
    """Invariant: everything except calls of the store runs in the event loop of `start`."""

    def __init__(
        self,
        *,
        store: Store,
        library: Library,
        options: ServerOptions,
        log: Log,
        mint: Callable[[], str],
        policy: SubmitPolicy = ANYTHING,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.library = library
        self.options = options
        self.key = options.key
        self.log = log
        self.mint = mint
        self.policy = policy
        self.now_s = now_s
        self.commands = TABLE
        self.connections: dict[int, Connection] = {}
        self._threads = StoreThreads()
        self.call = self._threads.call
        self.query = self._threads.query
        if options.remote_store:  # pushes go on while claims wait for the store
            claims, self._pushes = Batcher(self.spawn, self._threads.claim), Batcher(self.spawn, self._threads.push)
        else:
            claims = self._pushes = Batcher(self.spawn)
        self.judgements = Batcher(self.spawn, self._threads.query)  # of who has connected
        self.workers = RemoteWorkers(
            store=store,
            call=self.call,
            call_heartbeat=self._threads.heartbeat,
            batcher=claims,
            spawn=self.spawn,
            now_s=now_s,
            ttl_s=options.worker_ttl_s,
            log=log,
        )
        self.started_s = now_s()
        self.served = 0  # connections so far
        self.port = options.port
        self._tasks: set[asyncio.Task[Any]] = set()
        self._background: set[asyncio.Task[Any]] = set()
        self._queues: dict[str, RoleQueue] = {}
        self._feeds: dict[str | None, FeedThread] = {}
        self._own_pushes = OwnPushes()
        self._lengths: dict[str, tuple[float, int]] = {}
        self._roles: tuple[float, list[str]] = (-ROLES_S - 1 + self.started_s, [])
        self._in_flight = 0
        self.stopping = False
        self._ended: asyncio.Event | None = None
        self._listener: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.channels: Channels

    # --- start and stop ---

    async def start(self) -> tuple[str, int]:
        """Listen; return host and port. OSError: it cannot listen."""
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self.channels = Channels(self.store, self._loop)
        self._listener = await self._loop.create_server(
            lambda: Connection(self), self.options.host, self.options.port, backlog=512
        )
        self._background = {self.spawn(self._sweep()), self.spawn(self._beat())}
        host, self.port = self._listener.sockets[0].getsockname()[:2]
        return host, self.port

    def stop(self) -> None:
        """Make `ended` return soon. May be called from any thread or signal handler, and repeatedly."""
        if self._loop is not None and self._ended is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ended.set)

    async def ended(self) -> None:
        """Wait for `stop`, then hand all jobs back."""
        assert self._ended is not None
        assert self._listener is not None
        await self._ended.wait()
        self.stopping = True
        self._listener.close()
        for connection in list(self.connections.values()):
            if connection.waiter is not None:
                connection.waiter.leave()
            if not connection.busy:
                connection.close_after_writes()
        for feed in self._feeds.values():
            feed.stop()
        try:
            async with asyncio.timeout(STOP_S):
                await self._idle()  # accept and answer results that were sent
                for connection in list(self.connections.values()):
                    connection.close_after_writes()
                await self.workers.close("farro agq is stopping")
                await self._idle()  # let the agents leave
        except TimeoutError:
            self.log("error", "not everything was handed back in time; a watchdog recovers it", {})
        for connection in list(self.connections.values()):
            connection.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(asyncio.to_thread(feed.join) for feed in self._feeds.values()))
        self._threads.shutdown()

    async def _idle(self) -> None:
        """Wait until no task is running."""
        while under_way := self._tasks - self._background:
            await asyncio.wait(under_way)

    # --- connections ---

    def admit(self, connection: Connection) -> bool:
        if self.stopping or len(self.connections) >= self.options.max_connections:
            return False
        self.served += 1
        connection.id = self.served
        self.connections[connection.id] = connection
        return True

    def forget(self, connection: Connection) -> None:
        self.connections.pop(connection.id, None)
        self.channels.forget(connection)
        worker = self.workers.disconnect(connection, said_bye=connection.info.get("bye") == "yes")
        if worker is not None and not self.stopping:
            self.spawn(self._end(worker, "the connection of its worker is closed"))

    async def _end(self, worker: RemoteWorker, why: str) -> None:
        roles = {held.role for held in worker.held.values()}
        await self.workers.end(worker, why)
        for role in roles:
            self._lengths.pop(role, None)

    def reserve(self, size: int) -> bool:
        if self._in_flight + size > IN_FLIGHT:
            return False
        self._in_flight += size
        return True

    def release(self, size: int) -> None:
        self._in_flight -= size

    def return_budget(self, parser: Parser) -> None:
        """Release the bytes that the last command reserved."""
        self.release(parser.reserved)
        parser.reserved = 0

    # --- tasks and threads ---

    def spawn(self, running: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task, and keep a reference to it until it ends."""
        task = asyncio.get_running_loop().create_task(running)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log("error", "something broke", {"error": f"{type(error).__name__}: {error}"})

    @property
    def stuck(self) -> bool:
        """Return whether a call of the store has not returned: waiting for its thread would take as long."""
        return self._threads.busy

    async def push(self, request: PushRequest) -> None:
        """Queue jobs, batched with those of other clients."""
        await self._pushes.call(self._push_all, request, size=request.size)
        self.adjust_length(request.role, len(request.texts))
        queue = self._queues.get(request.role)
        if queue is not None:
            queue.look()  # the store's feed reports it later

    def _push_all(self, requests: list[PushRequest]) -> list[list[Submitted] | FarroError]:
        watched = any(request.role in self._feeds for request in requests)
        expect = self._own_pushes.expect if watched else None
        return memo_jobs.push_all(self.store, requests, self.policy, expect)

    def queue(self, role: str) -> RoleQueue:
        """Return the queue of waiting clients for a role, and start to watch the role."""
        queue = self._queues.get(role)
        if queue is None:
            queue = self._queues[role] = RoleQueue(role, self.spawn, self._next_due_s)
        if role not in self._feeds and self._loop is not None:
            loop, look = self._loop, queue.look

            def on_changes(changes: Changes) -> None:
                loop.call_soon_threadsafe(look)

            self._feeds[role] = FeedThread(
                store=self.store, role=role, on_changes=on_changes, log=self.log, own=self._own_pushes
            )
        return queue

    async def _next_due_s(self, role: str) -> float | None:
        try:
            due = await self.call(self.store.next_due, role)
        except (FarroError, OSError) as error:
            self.log("error", "the next delayed job is not known", {"role": role, "error": str(error)})
            return None
        return None if due is None else (due - datetime.now(UTC)).total_seconds()

    def watch_all_changes(self) -> None:
        """Start to publish `job:updates`."""
        if None not in self._feeds and self._loop is not None:
            self._feeds[None] = FeedThread(store=self.store, role=None, on_changes=self.channels.changed, log=self.log)

    async def roles(self) -> list[str]:
        """Return the store's roles; they are cached for some seconds, because people create them rarely."""
        asked_s, known = self._roles
        if self.now_s() - asked_s > ROLES_S:
            known = list(await self.call(self.store.roles))
            self._roles = (self.now_s(), known)
        return known

    def waiting(self) -> dict[str, int]:
        """Count the clients in blocking pops, by role."""
        return {role: len(queue.waiters) for role, queue in self._queues.items()}

    # --- queue lengths ---

    async def length(self, role: str, *, exactly: bool = False) -> int:
        """Return how many jobs wait in a queue. They are counted at most once a second; own pushes and pops are added
        in between."""
        counted_s, known = self._lengths.get(role, (float("-inf"), 0))
        if exactly or self.now_s() - counted_s > LENGTH_S:
            known = await self.call(self._count, role)
            self._lengths[role] = (self.now_s(), known)
        return known

    def adjust_length(self, role: str, more: int) -> None:
        known = self._lengths.get(role)
        if known is not None:
            self._lengths[role] = (known[0], max(0, known[1] + more))

    def _count(self, role: str) -> int:
        running = sum(len(agent.jobs) for agent in self.store.agents() if agent.role == role)
        return max(0, self.store.load(role) - running)

    # --- timers ---

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = self.now_s()
            for connection in list(self.connections.values()):
                late = (
                    (not connection.authenticated and now_s - connection.since_s > AUTH_S)
                    or (connection.partial_since_s is not None and now_s - connection.partial_since_s > COMMAND_S)
                    or (connection.unread_since_s is not None and now_s - connection.unread_since_s > READ_S)
                    # the end of its wait would not be noticed either
                    or (connection.waiter is not None and connection.read_paused)
                )
                if late:
                    connection.abort()
            for worker in self.workers.overdue():
                self.spawn(self._end(worker, f"worker {worker.id} said nothing for {worker.ttl_s:g} s"))
            self.spawn(self.workers.record_slow_claims())
            for held in self.workers.unconfirmed():
                self.spawn(self.workers.hand_back(held, f"worker {held.worker.id} is back and knows nothing of it"))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.options.beat_s)
            try:
                await self.workers.heartbeat()
            except (FarroError, OSError) as error:
                self.log("error", "heartbeats failed", {"error": str(error)})
