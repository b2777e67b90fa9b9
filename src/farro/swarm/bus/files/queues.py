"""The queues of the files bus: their layout, the encoding of a message, and consumers.

    bus/.lock                               one declaration at a time
    bus/.bindings                           changes with each declaration; empty while one is in progress
    bus/.staging/                           messages and queues that are being made
    bus/queues/<queue>/queue.json           its bindings, its dead letters
    bus/queues/<queue>/ready/<message>      waiting, in the order of the names
    bus/queues/<queue>/taken/<consumer>/    a consumer's folder with its .lease, and what it has taken

A message is one line of JSON and then its body. Its name begins with the time of sending, and ends in ~N after it was
given to N consumers.

A consumer that dies at any instruction leaves its folder with what it had taken, and a lease that no process holds. The
next consumer takes the lease and moves each message back under a name that marks it as redelivered. Of two consumers
the lease admits one; after a crash in the middle the next one does the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from farro.errors import BadName, Damaged, InputError
from farro.host import fs, inotify, leases, trees
from farro.swarm.bus.port import BusMessage, BusQueueDepth, Delivery

READY, TAKEN, ABOUT, LEASE = "ready", "taken", "queue.json", ".lease"
ABOUT_LIMIT = 1 << 20
MESSAGE_LIMIT = 64 << 20
KEEP_S = 3600.0  # no process stages for an hour

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,199}")
_MESSAGE = re.compile(r"[0-9]{20}\.[0-9]{10}\.[0-9a-f]{16}(?:~([0-9]{1,6}))?")


def check(name: str) -> str:
    """Return a valid name of a queue or an exchange, or raise BadName: names become paths."""
    if _NAME.fullmatch(name) is None or ".." in name:
        raise BadName(f"{ascii(name)[:100]} is not a valid name of a queue or an exchange")
    return name


def is_message(name: str) -> bool:
    return _MESSAGE.fullmatch(name) is not None


def given_before(name: str) -> bool:
    return "~" in name


def given_again(name: str) -> str:
    """Return the name of a message that goes back: it keeps its place in the order."""
    found = _MESSAGE.fullmatch(name)
    assert found is not None, name
    return f"{name.partition('~')[0]}~{int(found[1] or 0) + 1}"


def encode(message: BusMessage) -> bytes:
    head = {"key": message.key, "message_id": message.message_id, "headers": dict(message.headers)}
    return json.dumps(head).encode() + b"\n" + message.body


def decode(data: bytes, path: str) -> BusMessage:
    head, _, body = data.partition(b"\n")
    try:
        fields = json.loads(head)
        return BusMessage(
            key=str(fields["key"]), message_id=str(fields["message_id"]), headers=dict(fields["headers"]), body=body
        )
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise Damaged(f"{path} is not a valid message: {error}") from error


class Layout:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.staging = f"{folder}/.staging"
        self.queues = f"{folder}/queues"
        self.lock = f"{folder}/.lock"
        self._generation_file = f"{folder}/.bindings"
        self._numbers = itertools.count()

    def make(self) -> None:
        with contextlib.suppress(FileExistsError):
            fs.mkdir_private(self.folder)  # messages may hold secrets, such as the `env` of plans
        for path in (self.staging, self.queues):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(path)

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Change queues or bindings inside, under the lock. Publishers read the bindings each time meanwhile, and once
        after it. If a process dies inside, they go on reading them each time."""
        fs.write_atomic(self._generation_file, b"", sync=False)
        yield
        fs.write_atomic(self._generation_file, os.urandom(8).hex().encode(), sync=False)

    def generation(self) -> str | None:
        """Return a value that changes with any queue or binding; None means: read them each time. Read it before
        them."""
        try:
            return fs.read_bytes(self._generation_file, 64).decode() or None
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        return [name for name in fs.subdirectories(self.queues) if _NAME.fullmatch(name)]

    def queue(self, queue: str) -> str:
        return f"{self.queues}/{queue}"

    def about(self, queue: str) -> str:
        return f"{self.queues}/{queue}/{ABOUT}"

    def ready(self, queue: str) -> str:
        return f"{self.queues}/{queue}/{READY}"

    def taken(self, queue: str) -> str:
        return f"{self.queues}/{queue}/{TAKEN}"

    def new_name(self) -> str:
        return f"{time.time_ns():020d}.{next(self._numbers):010d}.{os.urandom(8).hex()}"

    def old(self, path: str) -> bool:
        return time.time() - fs.lstat(path).st_mtime > KEEP_S

    def remove(self, queue: str) -> None:
        """Remove a queue: moved away first, then deleted, so that a publisher sees all of it or nothing."""
        aside = fs.temporary(self.staging)
        try:
            fs.move(self.queue(queue), aside)
        except FileNotFoundError:
            return
        trees.remove_tree(aside)


# --- consumers ---

RECOVER_S = 5.0  # between two looks of a waiting consumer for dead ones
RunInThread = Callable[[Callable[[], Any]], Awaitable[Any]]


def join(paths: Layout, queue: str) -> tuple[str, leases.Lease]:
    """Make a consumer's folder, which appears already leased."""
    staged = fs.temporary(paths.staging)
    fs.mkdir(staged)
    lease = leases.create(f"{staged}/{LEASE}", f"{os.getpid()}\n".encode())
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
            lease = leases.take(f"{folder}/{LEASE}")
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
    names = [name for name in fs.listdir(folder) if is_message(name)]
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            fs.move(f"{folder}/{name}", f"{paths.ready(queue)}/{given_again(name)}")
    with contextlib.suppress(OSError):
        fs.unlink(f"{folder}/{LEASE}")
        fs.rmdir(folder)
    return len(names)


def depth(paths: Layout, queue: str) -> BusQueueDepth | None:
    try:
        ready = sum(1 for name in fs.listdir(paths.ready(queue)) if is_message(name))
        consumers = fs.subdirectories(paths.taken(queue))
    except FileNotFoundError:
        return None
    taken = 0
    for name in consumers:
        with contextlib.suppress(FileNotFoundError):
            taken += sum(1 for each in fs.listdir(f"{paths.taken(queue)}/{name}") if is_message(each))
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
                return Delivery(message=message, redelivered=given_before(name), tag=name, settler=self)
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
                self._cached = deque(sorted(name for name in names if is_message(name)))
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
            return decode(fs.read_bytes(path, MESSAGE_LIMIT), path)
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
        again = given_again(name)

        def move() -> None:
            with contextlib.suppress(FileNotFoundError):
                fs.move(f"{self._folder}/{name}", f"{self._paths.ready(target)}/{again}")

        await self._do(move)
        self._let_go()

    def _dead_letters(self) -> str | None:
        """Return the queue for rejected messages, if it exists."""
        data = json.loads(fs.read_bytes(self._paths.about(self._queue), ABOUT_LIMIT))
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
