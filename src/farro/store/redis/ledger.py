"""The ledger in Redis: what the agents of all machines spend, and the budgets that they share.

calls:<day>          hash  name of a record (call_days) → the record
calls-of:<job>       set   the days on which that job made calls
call-days            set   the days that have calls
calls-made           int   grows with each record; read by INCRBY 0, because a user of its own may not call GET

A budget is checked here, against all records; the script then adds the call only if no other record came meanwhile.
So the money is decimal, and two machines that check a budget at the same time never exceed it together.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from farro.errors import Damaged, TryAgain
from farro.host.clock import Clock
from farro.store import call_days
from farro.store import ledger as limits
from farro.store.call_days import CALL, DAY, SETTLED, DayLedger, decoded, encoded, place_of
from farro.store.ledger import Budgets, CallEnd, Charge, Usage
from farro.store.redis.client import RedisClient
from farro.store.redis.records import from_ms
from farro.store.redis.scripts import RedisKeys

_TRIES = 1000  # each lost try means that another call was recorded
_SOME = 1000  # records that are read by one command: the server does nothing else meanwhile

# KEYS[1]: the prefix. ARGV: day, name, record, job, what calls-made must be or ''. Returns 0 if another record came.
# Repeated after a lost answer it finds its own record and returns 1.
_RESERVE = """
local P, day = KEYS[1], ARGV[1]
if redis.call('HGET', P .. 'calls:' .. day, ARGV[2]) then return 1 end
if ARGV[5] ~= '' and redis.call('INCRBY', P .. 'calls-made', 0) ~= tonumber(ARGV[5]) then return 0 end
redis.call('HSET', P .. 'calls:' .. day, ARGV[2], ARGV[3])
redis.call('SADD', P .. 'calls-of:' .. ARGV[4], day)
redis.call('SADD', P .. 'call-days', day)
redis.call('INCRBY', P .. 'calls-made', 1)
return 1
"""

# KEYS[1]: the prefix. ARGV: day, name, record. The first record of a name stays.
_SETTLE = """
if redis.call('HSETNX', KEYS[1] .. 'calls:' .. ARGV[1], ARGV[2], ARGV[3]) == 1 then
  redis.call('INCRBY', KEYS[1] .. 'calls-made', 1)
end
return 1
"""


class RedisLedger(DayLedger):
    """The Ledger port for all machines of the fleet. Safe from many threads and processes."""

    def __init__(
        self,
        server: RedisClient,
        name: str,
        clock: Clock,
        *,
        random_bits: Callable[[int], int] = call_days.random_bits,
        own_time: bool = False,
    ) -> None:
        self._server = server
        self._prefix = RedisKeys(name).prefix
        self._clock = clock
        self._own_time = own_time  # for tests: use `clock` instead of the server's clock
        self.prepare(random_bits)
        weakref.finalize(self, server.close)  # its connections stay open between calls

    def reserve(self, charge: Charge, budgets: Budgets) -> str:
        limits.check_price(charge, budgets)
        for _ in range(_TRIES):
            now, made = self._now_and_made()
            day, name, call = self.new_call(charge, now)
            self.check(charge, budgets, day)
            unchanged = "" if budgets == Budgets() else made
            args = (day, f"{name}{CALL}", encoded(call), charge.job_id, unchanged)
            if self._server.call("EVAL", _RESERVE, 1, self._prefix, *args) == 1:
                return call.id
        raise TryAgain("the ledger is written by others again and again; try again in a moment")

    def _now_and_made(self) -> tuple[datetime, int]:
        """Return the server's time, because the clocks of machines differ, and how many records there are."""
        (seconds, micros), made = self._server.calls([("TIME",), ("INCRBY", f"{self._prefix}calls-made", 0)])
        now = self._clock.now() if self._own_time else from_ms(int(seconds) * 1000 + int(micros) // 1000)
        return now, int(made)

    def settle(self, call_id: str, *, end: CallEnd, usage: Usage | None, cost_usd: Decimal | None) -> None:
        day, name = place_of(call_id)
        text = self._server.call("HGET", self._key(day), f"{name}{CALL}")
        if text is None:
            raise Damaged(f"no call {call_id} in the ledger")
        try:
            call = dataclasses.replace(decoded(text), end=end, usage=usage, cost_usd=cost_usd)
        except Damaged as error:
            raise Damaged(f"{self._key(day)} {name}: {error}; it counts as unknown") from error
        self._server.call("EVAL", _SETTLE, 1, self._prefix, day, f"{name}{SETTLED}", encoded(call))

    def days(self) -> list[str]:
        return sorted(day for day in self._members("call-days") if DAY.fullmatch(day))

    def days_of_job(self, job_id: str) -> Iterable[str]:
        return self._members(f"calls-of:{job_id}")

    def _members(self, key: str) -> list[str]:
        return [member.decode("utf-8", "replace") for member in self._server.call("SMEMBERS", f"{self._prefix}{key}")]

    def records(self, day: str) -> _DayHash:
        return _DayHash(self._server, self._key(day))

    def _key(self, day: str) -> str:
        return f"{self._prefix}calls:{day}"


class _DayHash:
    """The records of one day, in a hash (port: DayRecords)."""

    def __init__(self, server: RedisClient, key: str) -> None:
        self._server = server
        self._key = key

    def names(self) -> list[str]:
        return [name.decode("utf-8", "replace") for name in self._server.call("HKEYS", self._key)]

    def texts(self, names: Sequence[str]) -> list[bytes | None]:
        found: list[Any] = []
        for start in range(0, len(names), _SOME):
            found += self._server.call("HMGET", self._key, *names[start : start + _SOME])
        return found
