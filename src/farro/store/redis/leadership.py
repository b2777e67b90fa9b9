"""Elect the manager among all machines that share a Redis store.

    seat:<name>    hash  holder  the process that holds the lease, or held it last
                         until   when the lease ends, in ms of the server's clock; 0: the holder left
                         beat    when the holder last renewed it

There is one holder at a time, by the server's clock: a leadership ends when its lease expires, even before another
process takes it. [test_one_manager_acts_across_machines]
"""

from __future__ import annotations

import contextlib
import random
import threading
from typing import Any, NamedTuple

from farro.errors import FarroError
from farro.host import process_identity
from farro.lazy_dataclass import dataclass, field
from farro.store.leadership import AWAY_S, BEAT_S, NAME
from farro.store.redis.context import RedisContext

# KEYS[1]: seat:<name>. ARGV: holder, lease in ms (0: leave). Returns 1 if the caller holds the lease afterwards.
# Repeating the call, for example after a lost answer, extends the lease.
_TAKE = """#!lua flags=allow-oom
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local seat = redis.call('HMGET', KEYS[1], 'holder', 'until')
local mine = seat[1] == ARGV[1]
if ARGV[2] == '0' then
  if mine then redis.call('HSET', KEYS[1], 'until', 0) end
  return 0
end
if not mine and seat[2] and tonumber(seat[2]) > now then return 0 end
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'until', now + ARGV[2], 'beat', now)
return 1
"""

_READ = """
local t = redis.call('TIME')
local seat = redis.call('HMGET', KEYS[1], 'holder', 'beat')
return {seat[1] or '', seat[2] and t[1] * 1000 + math.floor(t[2] / 1000) - seat[2] or 0}
"""


def _process() -> str:
    """Describe this process in a unique way."""
    here = process_identity.identity()
    return f"pid {here['pid']} on {here['host']} ({random.SystemRandom().getrandbits(32):08x})"


class _Leader(NamedTuple):
    """The present or last leader."""

    holder: str
    silent_s: float  # since its last renewal


@dataclass(kw_only=True)
class RedisLeadership:
    """Leadership across all machines that share a store.

    Its lease is longer than an agent's: a manager that slept through it has lost its agents, too, so nothing that it
    was about to do is accepted. Invariant: `_until_s` counts from before the request that granted it, so it ends here
    before it ends on the server.
    """

    context: RedisContext
    me: str = field(default_factory=_process)
    lease_s: float | None = None  # None: as long as a manager may be silent, and longer than an agent's
    _until_s: float = field(default=float("-inf"))
    _beat_s: float = field(default=float("-inf"))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> bool:
        with self._lock:
            now_s = self.context.clock.boottime_s()
            if now_s - self._beat_s < BEAT_S and now_s < self._until_s:
                return True
            lease_s = max(AWAY_S, self.context.lease_s) if self.lease_s is None else self.lease_s
            has = bool(self._ask(_TAKE, self.me, max(1, int(lease_s * 1000))) == 1)
            self._until_s = now_s + lease_s if has else float("-inf")
            self._beat_s = now_s if has else float("-inf")
            return has

    def stands(self) -> bool:
        return self.context.clock.boottime_s() < self._until_s

    def holder(self) -> str:
        leader = self._leader()
        return "another process" if leader is None else leader.holder

    def beat(self) -> None:
        if self.stands():
            self.take()

    def silent_s(self) -> float | None:
        leader = self._leader()
        return None if leader is None else leader.silent_s

    def drop(self) -> None:
        had, self._until_s, self._beat_s = self.stands(), float("-inf"), float("-inf")
        if had:
            with contextlib.suppress(FarroError):  # the server is away: the lease runs out by itself
                self._ask(_TAKE, self.me, 0)

    def _leader(self) -> _Leader | None:
        holder, silent_ms = self._ask(_READ)
        return _Leader(holder.decode("utf-8", "replace"), max(0.0, silent_ms / 1000)) if holder else None

    def _ask(self, script: str, *args: str | int) -> Any:
        return self.context.client.call("EVAL", script, 1, f"{self.context.keys.prefix}seat:{NAME}", *args)
