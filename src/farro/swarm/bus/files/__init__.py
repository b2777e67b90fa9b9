"""The bus in files: a queue is a folder, a message is a file, taking one is a rename. No server, one machine.

- A message is staged, synced, and linked into every queue with a matching binding: each has it whole or not at all.
- A consumer is a leased folder (flock, as agents of the file store). The next consumer that looks puts what a dead one
  held back into the queue. A taken message is in its consumer's folder; acknowledging removes it.
- Messages published, taken or acknowledged while the thread is busy are handled together: they share their syncs.
- Waiting is inotify on the queue's folder. The event loop never waits for the disk: calls run on one thread, which also
  keeps the order of what one process publishes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from farro.errors import InputError
from farro.host import fs, leases, trees
from farro.swarm.bus.files import queues
from farro.swarm.bus.files.queues import FilesConsumer, Layout
from farro.swarm.bus.port import Binding, BusMessage, BusQueueDepth
from farro.swarm.wire.names import matches

T = TypeVar("T")
_KEYS = 10_000  # cached routing keys
CROWD = 10_000  # messages in a queue, above which no message is added that need not last
LOOK_AFTER = 100  # how many such messages are published between two counts of a queue
_TOGETHER = 100  # messages written at once


class FilesBus:
    """The Bus port in files. `folder` is created if missing; `durable` syncs what is published."""

    def __init__(self, folder: str, *, durable: bool = True) -> None:
        self._layout = Layout(folder)
        self._durable = durable
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bus")
        self._cached: dict[str, tuple[int, tuple[Binding, ...]]] = {}  # queue → inode of its file, and its bindings
        self._consumers: list[FilesConsumer] = []
        self._swept = False
        self._generation: str | None = None
        self._names: list[str] = []  # queues at that generation
        self._bound = functools.lru_cache(_KEYS)(self._find_bound)  # cleared when the generation changes
        self._looks: dict[str, int] = {}  # queue → messages until the next count
        self._waiting: list[tuple[str, BusMessage, asyncio.Future[None]]] = []
        self._publishing: asyncio.Task[None] | None = None
        self._layout.make()

    async def declare(self, queue: str, bindings: Sequence[Binding] = (), *, dead_letters: str | None = None) -> None:
        await self._do(lambda: self._declare(queues.check(queue), tuple(bindings), dead_letters))

    def _declare(self, queue: str, bindings: tuple[Binding, ...], dead_letters: str | None) -> None:
        for binding in bindings:
            queues.check(binding.exchange)
        if dead_letters is not None:
            queues.check(dead_letters)
        data = {
            "bindings": [[binding.exchange, binding.key] for binding in bindings],
            "dead_letters": dead_letters,
            "exclusive": False,
        }
        with leases.exclusively(self._layout.lock):
            if not fs.exists(self._layout.queue(queue)):
                with self._layout.changing():
                    self._build(queue, data)
            else:
                self._declare_again(queue, data)

    def _build(self, queue: str, data: Mapping[str, Any]) -> None:
        """Build a queue in staging and rename it: it appears with its bindings."""
        staged = fs.temporary(self._layout.staging)
        fs.mkdir(staged)
        for name in (queues.READY, queues.TAKEN):
            fs.mkdir(f"{staged}/{name}")
        fs.create(f"{staged}/{queues.ABOUT}", json.dumps(data).encode() + b"\n")
        if self._durable:
            fs.sync_all([f"{staged}/{queues.ABOUT}", staged])
        fs.move(staged, self._layout.queue(queue))
        if self._durable:
            fs.sync_all([self._layout.queues])

    def _declare_again(self, queue: str, data: Mapping[str, Any]) -> None:
        path = self._layout.about(queue)
        before = json.loads(fs.read_bytes(path, queues.ABOUT_LIMIT))
        if before["dead_letters"] != data["dead_letters"]:
            raise InputError(f"the queue {queue} exists already with other dead letters")
        more = [pair for pair in data["bindings"] if pair not in before["bindings"]]
        if more:
            with self._layout.changing():
                self._write(queue, {**before, "bindings": [*before["bindings"], *more]})

    def _write(self, queue: str, data: Mapping[str, Any]) -> None:
        fs.write_atomic(self._layout.about(queue), json.dumps(data).encode() + b"\n", sync=self._durable)

    async def unbind(self, queue: str, binding: Binding) -> None:
        await self._do(lambda: self._unbind(queues.check(queue), [binding.exchange, binding.key]))

    def _unbind(self, queue: str, pair: list[str]) -> None:
        with leases.exclusively(self._layout.lock):
            try:
                before = json.loads(fs.read_bytes(self._layout.about(queue), queues.ABOUT_LIMIT))
            except FileNotFoundError:
                return
            left = [other for other in before["bindings"] if other != pair]
            if left != before["bindings"]:
                with self._layout.changing():
                    self._write(queue, {**before, "bindings": left})

    async def delete(self, queue: str) -> None:
        await self._do(lambda: self._delete(queues.check(queue)))

    def _delete(self, queue: str) -> None:
        with leases.exclusively(self._layout.lock), self._layout.changing():
            self._layout.remove(queue)

    async def publish(self, exchange: str, message: BusMessage) -> None:
        accepted = asyncio.get_running_loop().create_future()
        self._waiting.append((queues.check(exchange), message, accepted))
        if self._publishing is None or self._publishing.done():
            self._publishing = asyncio.create_task(self._publish_waiting())
        await accepted

    async def _publish_waiting(self) -> None:
        """Publish in order; messages that arrive while others are written go together."""
        while self._waiting:
            batch, self._waiting = self._waiting[:_TOGETHER], self._waiting[_TOGETHER:]
            error: BaseException | None = None
            try:
                pairs = [(exchange, message) for exchange, message, _ in batch]
                await self._do(lambda pairs=pairs: self._publish(pairs))  # type: ignore[misc]
            except BaseException as raised:  # noqa: BLE001 - every publisher gets the error, whatever it is
                error = raised
            for _, _, accepted in batch:
                if accepted.done():
                    continue  # its publisher was cancelled
                accepted.set_result(None) if error is None else accepted.set_exception(error)

    def _publish(self, batch: Sequence[tuple[str, BusMessage]]) -> None:
        """Stage, sync, link, sync: each step for the whole batch."""
        staged: list[tuple[str, str, list[str]]] = []
        lasting: list[str] = []
        ready: dict[str, None] = {}  # folders of queues that got a lasting message
        self._refresh()
        try:
            for exchange, message in batch:
                bound = self._bound(exchange, message.key)
                if not message.lasting:
                    bound = [queue for queue in bound if not self._crowded(queue)]
                if bound:
                    name = self._layout.new_name()
                    path = f"{self._layout.staging}/{name}"
                    staged.append((name, path, bound))
                    fs.create(path, queues.encode(message))
                    if self._durable and message.lasting:
                        lasting.append(path)
                        ready |= dict.fromkeys(map(self._layout.ready, bound))
            if lasting:
                fs.sync_all(lasting)
            for name, path, bound in staged:
                for queue in bound:
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        fs.link(path, f"{self._layout.ready(queue)}/{name}")
            if ready:
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    fs.sync_all(ready)
        finally:
            for _, path, _ in staged:
                with contextlib.suppress(OSError):
                    fs.unlink(path)

    def _crowded(self, queue: str) -> bool:
        """Return whether a queue without a reader is so long that messages which need not last are dropped. Else a
        reader that is gone for days would fill the disk.
        [test_a_queue_without_a_consumer_does_not_fill_with_transient_messages]"""
        left = self._looks.get(queue, 0)
        if left > 0:
            self._looks[queue] = left - 1
            return False
        try:
            crowded = len(fs.listdir(self._layout.ready(queue))) >= CROWD
        except FileNotFoundError:
            return False
        self._looks[queue] = 0 if crowded else LOOK_AFTER
        return crowded

    def _refresh(self) -> None:
        """Read the queues again if a binding changed; unchanged ones stay cached, however many queues there are."""
        at = self._layout.generation()
        if at is None or at != self._generation:
            self._names, self._generation = self._layout.names(), at
            self._bound.cache_clear()

    def _find_bound(self, exchange: str, key: str) -> list[str]:
        """Return the queues that get a message."""
        return [
            queue
            for queue in self._names
            if any(binding.exchange == exchange and matches(binding.key, key) for binding in self._bindings(queue))
        ]

    def _bindings(self, queue: str) -> tuple[Binding, ...]:
        """Return the bindings of a queue. Its file is replaced as a whole, so its inode shows a change."""
        path = self._layout.about(queue)
        try:
            inode = fs.lstat(path).st_ino
            known = self._cached.get(queue)
            if known is not None and known[0] == inode:
                return known[1]
            data = json.loads(fs.read_bytes(path, queues.ABOUT_LIMIT))
        except FileNotFoundError:
            self._cached.pop(queue, None)
            return ()
        found = tuple(Binding(exchange, key) for exchange, key in data["bindings"])
        self._cached[queue] = (inode, found)
        return found

    async def consume(self, queue: str, *, prefetch: int = 1) -> FilesConsumer:
        queues.check(queue)
        if not self._swept:  # a process that replaces a killed one begins with consuming
            self._swept = True
            await self._do(lambda: sweep(self._layout.folder))
        folder = await self._do(lambda: queues.join(self._layout, queue))
        consumer = FilesConsumer(self._layout, queue, *folder, prefetch=prefetch, do=self._do)
        self._consumers = [one for one in self._consumers if not one.closed] + [consumer]
        await consumer.open()
        return consumer

    async def depth(self, queue: str) -> BusQueueDepth | None:
        return await self._do(lambda: queues.depth(self._layout, queues.check(queue)))

    async def close(self) -> None:
        for consumer in self._consumers:
            await consumer.close()
        if self._publishing is not None:
            await asyncio.gather(self._publishing, return_exceptions=True)
        self._thread.shutdown(wait=True)

    async def _do(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def sweep(folder: str) -> list[str]:
    """Remove the messages and queues that dead processes left staged. Consumers take back what they had taken.
    [test_the_next_consumer_sweeps_leftovers_of_killed_publishers]"""
    paths = Layout(folder)
    gone = []
    for name in fs.listdir(paths.staging):
        path = f"{paths.staging}/{name}"
        with contextlib.suppress(FileNotFoundError):
            if paths.old(path):
                trees.remove_tree(path) if os.path.isdir(path) else fs.unlink(path)
                gone.append(name)
    return gone
