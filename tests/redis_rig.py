"""Helpers for tests of the Redis store: stores on a real server, and a proxy that loses requests or answers."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hiredis

from contracts.adapters import kept_in, low
from farro.host.clock import ManualClock, SystemClock
from farro.jobs.outcomes import Child, Succeeded
from farro.jobs.retry import RetryPolicy
from farro.store.port import StorePolicy, Submission
from farro.store.redis import RedisStore
from farro.store.redis.client import RedisAddress
from farro.store.redis.context import RedisContext
from farro.store.redis.workspace import LocalWorkspace
from one_job import claim_one, commit_one, release_one
from stage import EPOCH, ROLES, plan, report, submission

_NUMBERS = itertools.count()
RETRY = RetryPolicy(base_s=0.0, max_delay_s=0.0)


def fresh() -> str:
    """Return the name of an unused key space."""
    return f"r{os.getpid()}-{next(_NUMBERS)}"


class Rig:
    """Open stores, and close them at the end."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        (folder / "jobs").mkdir(parents=True, exist_ok=True)
        self.url = url
        self.name = fresh()
        self.clock = ManualClock(EPOCH)
        self.logged: list[tuple[str, str, Any]] = []
        self.audited: list[dict[str, Any]] = []
        self.stores: list[RedisStore] = []

    def store(self, **changes: Any) -> RedisStore:
        """Open a store on the manual clock, which also replaces the server's; `real=True`: on real clocks."""
        real = changes.pop("real", False)
        address = {
            name: changes.pop(name)
            for name in ("user", "password", "retry_s", "timeout_s", "wait_replicas", "wait_s")
            if name in changes
        }
        dice = random.Random(next(_NUMBERS) if "seed" not in changes else changes.pop("seed"))
        about: dict[str, Any] = {
            "root": str(self._folder),
            "name": self.name,
            "address": RedisAddress(url=changes.pop("url", self.url), **{"retry_s": 10.0, **address}),
            "roles": ROLES,
            "policy": changes.pop("policy", StorePolicy(retry=RETRY)),
            "clock": SystemClock() if real else self.clock,
            "own_time": not real,
            "workspace": LocalWorkspace(str(self._folder), name=self.name, clock=self.clock),
            "log": lambda level, message, fields: self.logged.append((level, message, fields)),
            "audit": kept_in(self.audited),
            "random_bits": dice.getrandbits,
            "uniform": low,
            **changes,
        }
        made = RedisStore(RedisContext(**about), on_close=about["workspace"].close)
        self.stores.append(made)
        return made

    def close(self) -> None:
        for store in self.stores:
            store.close()


def life(store: RedisStore) -> list[Any]:
    """Make every call that changes something once; return the answers."""
    answers: list[Any] = []
    worker = store.join("w", role="Runner")
    boss = store.join("b", role=None)
    answers.append(store.enqueue(submission(1, job_id="chosen")))
    store.enqueue(submission(2))
    answers.append(len(store.enqueue_many([submission(3, job_id="a"), submission(4, job_id="b")])))
    store.enqueue_named("nightly", submission(5, job_id="named"))
    store.enqueue(Submission(role="Runner", prompt=plan(6, metadata={"after": ["chosen"]}), job_id="after"))
    first = claim_one(store, worker)
    assert first is not None
    answers.append((first.job_id, first.attempt))
    child = Child(role="CodeReviewer", prompt=plan(7))
    answers.append(commit_one(store, first, Succeeded(report=report(first), children=(child,))).status)
    second = claim_one(store, worker)
    assert second is not None
    answers.append((second.attempt, release_one(store, second).status))
    answers.append(store.kill(boss, "a").status)
    mine = store.enqueue_claimed(worker, submission(8, job_id="mine"))
    assert mine is not None
    store.heartbeat(worker, mine)
    answers.append((mine.attempt, commit_one(store, mine, Succeeded(report=report(mine))).status))
    third = claim_one(store, worker)
    assert third is not None
    answers.append((third.job_id, third.attempt))
    store.leave(worker)
    answers.append([(done.job_id, done.what) for done in store.recover(boss) if done.job_id])
    settled = store.resolve_stale(boss, third.job_id)
    answers.append(settled and settled.status)
    ended = store.find("mine")
    assert ended is not None
    answers.append(store.remove([ended], by="boss").jobs)
    store.note("tested", actor=boss.id, turns=1)
    store.leave(boss)
    return answers


class Proxy:
    """A proxy between a store and the server. It loses the request numbered `cut`: before the server has it, or its
    answer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self.requests: list[bytes] = []  # the name of each command
        self.cut = -1
        self.after = False
        self.cuts = 0
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._start(self._accept)

    def _start(self, call: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=call, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", self._port)) as server:
            self._open |= {client, server}
            requests, answers = hiredis.Reader(), hiredis.Reader()
            while data := client.recv(1 << 16):
                requests.feed(data)
                while (request := requests.gets()) is not False:
                    number = len(self.requests)
                    self.requests.append(request[0])
                    lost = number == self.cut
                    self.cuts += lost
                    if lost and not self.after:
                        return
                    server.sendall(hiredis.pack_command(tuple(request)))
                    raw = self._answer(server, answers)
                    if lost:
                        return
                    client.sendall(raw)

    def _answer(self, server: socket.socket, answers: hiredis.Reader) -> bytes:
        raw = b""
        while True:
            data = server.recv(1 << 16)
            if not data:
                raise OSError("the server is gone")
            raw += data
            answers.feed(data)
            if answers.gets() is not False:
                return raw

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes a thread in accept, which a close would not
        self._listener.close()
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)


@contextlib.contextmanager
def proxied(port: int) -> Iterator[Proxy]:
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
