"""Taking messages out of a queue of the files bus: by a leased consumer, one rename each.

Publishing and declaring live in the package itself.

A consumer that dies at any instruction leaves its folder with what it had taken, and a lease that nobody holds: the
next consumer that looks takes the lease and moves each message back under a name that says so. Of two who look, the
lease decides; a crash in the middle leaves the rest to the next.
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
from farro.lazy_dataclass import dataclass, field
from farro.swarm.bus.files import layout
from farro.swarm.bus.files.layout import Layout
from farro.swarm.bus.port import Depth, Message

RECOVER_S = 5.0  # so often a waiting consumer looks for those who died
Do = Callable[[Callable[[], Any]], Awaitable[Any]]


def join(place: Layout, queue: str) -> tuple[str, leases.Lease]:
    """A consumer's own folder, which appears already leased."""
    staged = fs.temporary(place.staging)
    fs.mkdir(staged)
    lease = leases.create(f"{staged}/{layout.LEASE}", f"{os.getpid()}\n".encode())
    folder = f"{place.taken(queue)}/c{os.getpid()}-{os.urandom(8).hex()}"
    try:
        fs.move(staged, folder)
    except FileNotFoundError as error:
        lease.drop()
        trees.remove_tree(staged)
        raise InputError(f"there is no queue {queue}; declare it first") from error
    return folder, lease


def recover(place: Layout, queue: str) -> int:
    """Give back what dead consumers had taken; how many messages."""
    count = 0
    for name in fs.subdirectories(place.taken(queue)):
        folder = f"{place.taken(queue)}/{name}"
        try:
            lease = leases.take(f"{folder}/{layout.LEASE}")
        except FileNotFoundError:
            continue  # another has just seen to it
        if lease is None:
            continue
        try:
            count += give_back(place, queue, folder)
        finally:
            lease.drop()
    return count


def give_back(place: Layout, queue: str, folder: str) -> int:
    """Everything in a consumer's folder, which goes. The caller holds its lease."""
    names = [name for name in fs.listdir(folder) if layout.is_message(name)]
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            fs.move(f"{folder}/{name}", f"{place.ready(queue)}/{layout.given_again(name)}")
    with contextlib.suppress(OSError):
        fs.unlink(f"{folder}/{layout.LEASE}")
        fs.rmdir(folder)
    return len(names)


def depth(place: Layout, queue: str) -> Depth | None:
    try:
        ready = sum(1 for name in fs.listdir(place.ready(queue)) if layout.is_message(name))
        consumers = fs.subdirectories(place.taken(queue))
    except FileNotFoundError:
        return None
    taken = 0
    for name in consumers:
        with contextlib.suppress(FileNotFoundError):
            taken += sum(1 for each in fs.listdir(f"{place.taken(queue)}/{name}") if layout.is_message(each))
    return Depth(ready=ready, taken=taken, consumers=len(consumers))


@dataclass(kw_only=True)
class FilesDelivery:
    message: Message
    redelivered: bool
    name: str
    consumer: FilesConsumer = field(repr=False)
    _settled: bool = False

    async def ack(self) -> None:
        if not self._settled:
            self._settled = True
            await self.consumer.remove(self.name)

    def ack_soon(self) -> None:
        if not self._settled:
            self._settled = True
            self.consumer.remove_soon(self.name)

    async def reject(self, *, requeue: bool) -> None:
        if not self._settled:
            self._settled = True
            await self.consumer.send_back(self.name, requeue=requeue)


class FilesConsumer:
    """Invariant: what lies in `folder` is what it was given and has not settled, at most `prefetch` messages."""

    def __init__(self, place: Layout, queue: str, folder: str, lease: leases.Lease, *, prefetch: int, do: Do) -> None:
        self._place = place
        self._queue = queue
        self._folder = folder
        self._lease = lease
        self._prefetch = max(1, prefetch)
        self._do = do
        self._known: deque[str] = deque()  # names seen in ready/, in order; some may be gone by now
        self._taken: deque[tuple[str, Message]] = deque()  # moved into our folder, and not given yet
        self._taking: asyncio.Future[list[tuple[str, Message]]] | None = None
        self._done: deque[str] = deque()  # acknowledged, and still in our folder
        self._removing: asyncio.Future[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None  # of those that nobody waits for
        self._unwaited: list[str] = []
        self._held = 0
        self._woken = asyncio.Event()
        self._closed = False
        self._inotify = inotify.Inotify()

    async def open(self) -> None:
        self._inotify.watch(self._place.ready(self._queue), inotify.MOVED_TO | inotify.CREATE)
        asyncio.get_running_loop().add_reader(self._inotify.fileno(), self._hear)
        await self._do(lambda: recover(self._place, self._queue))

    @property
    def closed(self) -> bool:
        return self._closed

    def __aiter__(self) -> FilesConsumer:
        return self

    async def __anext__(self) -> FilesDelivery:
        late = False
        while not self._closed:
            if self._taken:
                name, message = self._taken.popleft()
                return FilesDelivery(message=message, redelivered=layout.given_before(name), name=name, consumer=self)
            self._woken.clear()  # before the look: what comes after it sets it again
            if self._held < self._prefetch:
                await self._take_some(recovering=late)
                if self._taken:
                    continue
            elif late:
                await self._do(lambda: recover(self._place, self._queue))
            late = False
            try:
                async with asyncio.timeout(RECOVER_S):  # not wait_for, which may swallow a cancellation on Python 3.11
                    await self._woken.wait()
            except TimeoutError:
                late = True
        raise StopAsyncIteration

    async def _take_some(self, *, recovering: bool) -> None:
        """Shielded: who waited may be cancelled, and what was taken meanwhile is for the next who asks."""
        if self._taking is None:
            room = self._prefetch - self._held
            self._taking = asyncio.ensure_future(self._do(lambda: self._take(room, recovering=recovering)))
            self._taking.add_done_callback(self._took)
        await asyncio.shield(self._taking)

    def _took(self, taking: asyncio.Future[list[tuple[str, Message]]]) -> None:
        self._taking = None
        if not taking.cancelled() and taking.exception() is None:
            self._held += len(taking.result())
            self._taken.extend(taking.result())

    def _take(self, room: int, *, recovering: bool) -> list[tuple[str, Message]]:
        """The next messages, moved into our folder: as many as there are now, and room is for. What the dead had taken
        is seen to on the same way: a turn of another thread is most of what an idle consumer costs."""
        if recovering:
            recover(self._place, self._queue)
        found: list[tuple[str, Message]] = []
        for looked in (False, True):
            if looked:
                names = fs.listdir(self._place.ready(self._queue)) if self._there() else []
                self._known = deque(sorted(name for name in names if layout.is_message(name)))
            if found:
                break
            while self._known and len(found) < room:
                name = self._known.popleft()
                try:
                    fs.move(f"{self._place.ready(self._queue)}/{name}", f"{self._folder}/{name}")
                except FileNotFoundError:
                    continue  # another was quicker
                message = self._read(name)
                if message is not None:
                    found.append((name, message))
        return found

    def _there(self) -> bool:
        return fs.exists(self._place.ready(self._queue))

    def _read(self, name: str) -> Message | None:
        path = f"{self._folder}/{name}"
        try:
            return layout.decode(fs.read_bytes(path, layout.MESSAGE_LIMIT), path)
        except Damaged:
            # Nobody can read it, now or later: kept for a person, out of the way of all others.
            fs.move(path, f"{self._place.queue(self._queue)}/damaged-{name}")
            return None

    def _hear(self) -> None:
        self._inotify.read(0)
        self._woken.set()

    async def remove(self, name: str) -> None:
        """Those that are acknowledged while others are removed go with the next."""
        self._done.append(name)
        await self._gone(name)
        self._let_go()

    async def _gone(self, name: str) -> None:
        while name in self._done:
            if self._removing is None or self._removing.done():
                self._removing = asyncio.ensure_future(self._do(self._remove))
            await asyncio.shield(self._removing)

    def remove_soon(self, name: str) -> None:
        """Nobody waits: those that come while others are removed go with the next."""
        self._done.append(name)
        self._unwaited.append(name)
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._sweep())

    async def _sweep(self) -> None:
        while self._unwaited:
            names, self._unwaited = self._unwaited, []
            await self._gone(names[-1])  # … and so are those before it
            self._let_go(len(names))

    def _remove(self) -> None:
        while self._done:
            with contextlib.suppress(FileNotFoundError):  # the queue was deleted, or somebody took it for dead
                fs.unlink(f"{self._folder}/{self._done[0]}")
            self._done.popleft()

    async def send_back(self, name: str, *, requeue: bool) -> None:
        target = self._queue if requeue else await self._do(self._dead_letters)
        if target is None:
            await self.remove(name)
            return
        again = layout.given_again(name)

        def move() -> None:
            with contextlib.suppress(FileNotFoundError):
                fs.move(f"{self._folder}/{name}", f"{self._place.ready(target)}/{again}")

        await self._do(move)
        self._let_go()

    def _dead_letters(self) -> str | None:
        """Where the queue's rejected messages go, when that is there."""
        told = json.loads(fs.read_bytes(self._place.about(self._queue), layout.ABOUT_LIMIT))
        name = told["dead_letters"]
        return name if isinstance(name, str) and fs.exists(self._place.ready(name)) else None

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
            give_back(self._place, self._queue, self._folder)
        self._lease.drop()
