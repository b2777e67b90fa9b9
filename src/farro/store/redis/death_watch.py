"""Detect killed workers before their leases are over.

The connections of a killed process are closed at once, and its heartbeats stop. A server that was restarted or replaced
looks just like this for a moment: no worker is connected, and none was heard. So only a process with a connection that
has answered without a gap for a whole lease may declare a worker dead early; a living worker of that server has been
heard in this time. A living worker may also lose its connection, and takes a moment to connect again: so several looks
in a row must find none. A worker that is cut off or stopped (its connections stay open) is dead when its lease is over.
[test_a_restarted_server_makes_no_early_verdict, RELIABILITY 34]
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from farro.errors import FarroError
from farro.store.redis.agents import LOOK_S
from farro.store.redis.client import LONGEST_PAUSE_S, RedisConnection, ReplyError, pack
from farro.store.redis.context import RedisContext
from farro.store.redis.records import json_object

LATE_S = 2 * LOOK_S  # two heartbeats of an agent that holds a job
SUSPECT_S = LOOK_S + 0.1  # from then on its connection is looked at: the verdict comes at most 3 s after a kill
GONE_S, GONE_LOOKS = LONGEST_PAUSE_S + 0.1, 3  # for so long it has had no connection, in so many looks in a row
EVERY_S, SOON_S = 0.5, 0.25  # between looks; while a connection is missed


def is_dead(*, connected: bool, silent_s: float, answered_s: float, lease_s: float) -> bool:
    """Return whether an agent that holds jobs is dead, though its lease is not over.

    `connected`: its process has a connection to the server, or had one a moment ago. `silent_s`: since its last
    heartbeat, by the server's clock. `answered_s`: how long the server has answered the observer without a gap.
    """
    return not connected and silent_s >= LATE_S and answered_s >= lease_s


class DeathDetector:
    """Asks the server over a connection of its own. A new connection, or an answer that took long, is a gap."""

    def __init__(self, context: RedisContext) -> None:
        self._context = context
        self._connection: RedisConnection | None = None
        self._since_s = self._last_s = 0.0  # the first answer after the last gap, and the last answer
        self._looked: int | str = ""  # how far the last look came in the leases
        # agent that was late in the last look → in how many looks in a row it had no connection, and since when
        self._late: dict[bytes, tuple[int, float]] = {}
        self._stale_count, self._stale = 0, set[bytes]()

    def look(self) -> bool:
        """Add dead agents to `context.early_dead`; return whether there are any, or jobs that have become stale. An
        unreachable server and missing rights are no error: then recovery waits for the leases."""
        try:
            return self._look()
        except (OSError, FarroError):
            self.close()
            return False

    def pause_s(self) -> float:
        """Return how long to wait before the next look."""
        return SOON_S if any(looks for looks, _ in self._late.values()) else EVERY_S

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _look(self) -> bool:
        context, clock = self._context, self._context.clock
        if self._connection is None:
            self._connection = context.client.connect()
            self._since_s = clock.monotonic_s()
            # Who is late now has renewed or lost its lease before the first verdict.
            self._looked, self._late = "", {}
        args = (context.script_time(), int(SUSPECT_S * 1000), self._looked, len(context.roles), *context.roles)
        self._looked, late, count, sample = self._ask(
            "EVAL", context.scripts.late.text, 1, context.keys.prefix, *args, *self._late, 0
        )
        connected = self._ask("CLIENT", "LIST") if late else b""
        now_s = clock.monotonic_s()
        if now_s - self._last_s > LATE_S:
            self._since_s = now_s
        self._last_s = now_s
        before, self._late = self._late, {}
        for agent, about, till, silent_ms in late:
            name = json_object(about).get("connection")
            if name is None:
                continue
            looks, since_s = before.get(agent, (0, now_s))
            gone = f" name={name} ".encode() not in connected
            looks, since_s = (looks + 1, since_s if looks else now_s) if gone else (0, now_s)
            self._late[agent] = looks, since_s
            if is_dead(
                connected=looks < GONE_LOOKS or now_s - since_s < GONE_S,
                silent_s=silent_ms / 1000,
                answered_s=now_s - self._since_s,
                lease_s=context.lease_s,
            ):
                context.early_dead[agent.decode()] = till.decode()
        stale_before, self._stale = self._stale, set(sample)
        count_before, self._stale_count = self._stale_count, count
        return bool(context.early_dead or count > count_before or self._stale - stale_before)

    def _ask(self, *command: str | bytes | int) -> Any:
        assert self._connection is not None
        self._connection.send(pack(command))
        answer = self._connection.receive()
        if isinstance(answer, ReplyError):
            raise ConnectionError(str(answer))
        return answer


class RedisDeathWatch:
    """A DeathWatch: a thread that asks a detector twice a second, and more often while a connection is missed."""

    def __init__(self, context: RedisContext) -> None:
        self._detector = DeathDetector(context)
        self._readable, self._sender = socket.socketpair()
        for end in (self._readable, self._sender):
            end.setblocking(False)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="redis-deaths", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._readable.fileno()

    def read(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            return bool(self._readable.recv(4096))
        return False

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._readable.close()
        self._sender.close()

    def _run(self) -> None:
        while not self._closed.wait(self._detector.pause_s()):
            if self._detector.look():
                with contextlib.suppress(BlockingIOError):  # nobody has read the last one yet
                    self._sender.send(b"!")
        self._detector.close()
