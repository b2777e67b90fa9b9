"""Take messages out of a queue of the files bus: a leased consumer, one rename per message.

A consumer that dies at any instruction leaves its folder with what it had taken, and a lease that no process holds. The
next consumer takes the lease and moves each message back under a name that marks it as redelivered. Of two consumers
the lease admits one; after a crash in the middle the next one does the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from farro.errors import Damaged, InputError
from farro.host import fs, inotify, leases, trees
from farro.swarm.bus.files import layout
from farro.swarm.bus.files.layout import Layout
from farro.swarm.bus.port import BusMessage, BusQueueDepth, Delivery

RECOVER_S = 5.0  # between two looks of a waiting consumer for dead ones
RunInThread = Callable[[Callable[[], Any]], Awaitable[Any]]


def join(paths: Layout, queue: str) -> tuple[str, leases.Lease]:
    """Make a consumer's folder, which appears already leased."""
    staged = fs.temporary(paths.staging)
    fs.mkdir(staged)
    lease = leases.create(f"{staged}/{layout.LEASE}", f"{os.getpid()}\n".encode())
    folder = f"{paths.taken(queue)}/c{os.getpid()}-{os.urandom(8).hex()}"
    try:
        fs.move(staged, folder)
    except FileNotFoundError as error:
        lease.drop()
        trees.remove_tree(staged)
        raise InputError(f"there is no queue {queue}; declare it first") from error
    return folder, lease


def recover(paths: Layout, queue: str) -> int:
    """Give back what dead consumers had taken; return the number of messages."""
    count = 0
    for name in fs.subdirectories(paths.taken(queue)):
        folder = f"{paths.taken(queue)}/{name}"
        try:
            lease = leases.take(f"{folder}/{layout.LEASE}")
        except FileNotFoundError:
            continue  # another consumer has just recovered it
        if lease is None:
            continue
        try:
            count += give_back(paths, queue, folder)
        finally:
            lease.drop()
    return count


def give_back(paths: Layout, queue: str, folder: str) -> int:
    """Move all messages of a consumer's folder back, and remove it. The caller holds its lease."""
    names = [name for name in fs.listdir(folder) if layout.is_message(name)]
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            fs.move(f"{folder}/{name}", f"{paths.ready(queue)}/{layout.given_again(name)}")
    with contextlib.suppress(OSError):
        fs.unlink(f"{folder}/{layout.LEASE}")
        fs.rmdir(folder)
    return len(names)


def depth(paths: Layout, queue: str) -> BusQueueDepth | None:
    try:
        ready = sum(1 for name in fs.listdir(paths.ready(queue)) if layout.is_message(name))
        consumers = fs.subdirectories(paths.taken(queue))
    except FileNotFoundError:
        return None
    taken = 0
    for name in consumers:
        with contextlib.suppress(FileNotFoundError):
            taken += sum(1 for each in fs.listdir(f"{paths.taken(queue)}/{name}") if layout.is_message(each))
    return BusQueueDepth(ready=ready, taken=taken, consumers=len(consumers))


class FilesConsumer:
    """Invariant: `folder` holds what was taken and is not settled, at most `prefetch` messages."""

    def __init__(
        self, paths: Layout, queue: str, folder: str, lease: leases.Lease, *, prefetch: int, do: RunInThread
    ) -> None:
        self._paths = paths
        self._queue = queue
        self._folder = folder
        self._lease = lease
        self._prefetch = max(1, prefetch)
        self._do = do
        self._cached: deque[str] = deque()  # names seen in ready/, in order; some may be gone by now
        self._taken: deque[tuple[str, BusMessage]] = deque()  # moved into our folder, not yet delivered
        self._taking: asyncio.Future[list[tuple[str, BusMessage]]] | None = None
        self._done: deque[str] = deque()  # acknowledged, and still in our folder
        self._removing: asyncio.Future[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None  # removes acknowledged messages that no caller waits for
        self._unwaited: list[str] = []
        self._held = 0
        self._woken = asyncio.Event()
        self._closed = False
        self._inotify = inotify.Inotify()

    async def open(self) -> None:
        self._inotify.watch(self._paths.ready(self._queue), inotify.MOVED_TO | inotify.CREATE)
        asyncio.get_running_loop().add_reader(self._inotify.fileno(), self._hear)
        await self._do(lambda: recover(self._paths, self._queue))

    @property
    def closed(self) -> bool:
        return self._closed

    def __aiter__(self) -> FilesConsumer:
        return self

    async def __anext__(self) -> Delivery:
        late = False
        while not self._closed:
            if self._taken:
                name, message = self._taken.popleft()
                return Delivery(message=message, redelivered=layout.given_before(name), tag=name, settler=self)
            self._woken.clear()  # before the look: messages that arrive later set it again
            if self._held < self._prefetch:
                await self._take_some(recovering=late)
                if self._taken:
                    continue
            elif late:
                await self._do(lambda: recover(self._paths, self._queue))
            late = False
            try:
                async with asyncio.timeout(RECOVER_S):  # not wait_for, which may swallow a cancellation on Python 3.11
                    await self._woken.wait()
            except TimeoutError:
                late = True
        raise StopAsyncIteration

    async def _take_some(self, *, recovering: bool) -> None:
        """Take messages, shielded: if the caller is cancelled, its next call returns the messages."""
        if self._taking is None:
            room = self._prefetch - self._held
            self._taking = asyncio.ensure_future(self._do(lambda: self._take(room, recovering=recovering)))
            self._taking.add_done_callback(self._took)
        await asyncio.shield(self._taking)

    def _took(self, taking: asyncio.Future[list[tuple[str, BusMessage]]]) -> None:
        self._taking = None
        if not taking.cancelled() and taking.exception() is None:
            self._held += len(taking.result())
            self._taken.extend(taking.result())

    def _take(self, room: int, *, recovering: bool) -> list[tuple[str, BusMessage]]:
        """Move the next messages into our folder, at most `room`. If `recovering`, take back those of dead consumers on
        the same thread call: switching threads is most of what an idle consumer costs."""
        if recovering:
            recover(self._paths, self._queue)
        found: list[tuple[str, BusMessage]] = []
        for looked in (False, True):
            if looked:
                names = fs.listdir(self._paths.ready(self._queue)) if self._exists() else []
                self._cached = deque(sorted(name for name in names if layout.is_message(name)))
            if found:
                break
            while self._cached and len(found) < room:
                name = self._cached.popleft()
                try:
                    fs.move(f"{self._paths.ready(self._queue)}/{name}", f"{self._folder}/{name}")
                except FileNotFoundError:
                    continue  # another consumer was quicker
                message = self._read(name)
                if message is not None:
                    found.append((name, message))
        return found

    def _exists(self) -> bool:
        return fs.exists(self._paths.ready(self._queue))

    def _read(self, name: str) -> BusMessage | None:
        path = f"{self._folder}/{name}"
        try:
            return layout.decode(fs.read_bytes(path, layout.MESSAGE_LIMIT), path)
        except Damaged:
            # It will never be readable: keep it for a person, out of the way.
            fs.move(path, f"{self._paths.queue(self._queue)}/damaged-{name}")
            return None

    def _hear(self) -> None:
        self._inotify.read(0)
        self._woken.set()

    async def ack(self, name: str) -> None:
        """Remove an acknowledged message; those acknowledged meanwhile go together."""
        self._done.append(name)
        await self._gone(name)
        self._let_go()

    async def _gone(self, name: str) -> None:
        while name in self._done:
            if self._removing is None or self._removing.done():
                self._removing = asyncio.ensure_future(self._do(self._remove))
            await asyncio.shield(self._removing)

    def ack_soon(self, name: str) -> None:
        """Remove a message without waiting; those that come meanwhile go together."""
        self._done.append(name)
        self._unwaited.append(name)
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._sweep())

    async def _sweep(self) -> None:
        while self._unwaited:
            names, self._unwaited = self._unwaited, []
            await self._gone(names[-1])  # and with it all before it
            self._let_go(len(names))

    def _remove(self) -> None:
        while self._done:
            with contextlib.suppress(
                FileNotFoundError
            ):  # the queue was deleted, or another consumer took this one for dead
                fs.unlink(f"{self._folder}/{self._done[0]}")
            self._done.popleft()

    async def reject(self, name: str, *, requeue: bool) -> None:
        target = self._queue if requeue else await self._do(self._dead_letters)
        if target is None:
            await self.ack(name)
            return
        again = layout.given_again(name)

        def move() -> None:
            with contextlib.suppress(FileNotFoundError):
                fs.move(f"{self._folder}/{name}", f"{self._paths.ready(target)}/{again}")

        await self._do(move)
        self._let_go()

    def _dead_letters(self) -> str | None:
        """Return the queue for rejected messages, if it exists."""
        data = json.loads(fs.read_bytes(self._paths.about(self._queue), layout.ABOUT_LIMIT))
        name = data["dead_letters"]
        return name if isinstance(name, str) and fs.exists(self._paths.ready(name)) else None

    def _let_go(self, count: int = 1) -> None:
        self._held -= count
        self._woken.set()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._woken.set()
        asyncio.get_running_loop().remove_reader(self._inotify.fileno())
        self._inotify.close()
        if self._sweeping is not None:
            await self._sweeping
        await self._do(self._leave)

    def _leave(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            give_back(self._paths, self._queue, self._folder)
        self._lease.drop()
