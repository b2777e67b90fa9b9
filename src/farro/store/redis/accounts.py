"""The pauses of accounts in Redis, where every machine of the fleet sees them.

accounts    hash  account → its record
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from farro.host.clock import Clock
from farro.jobs.retry import Uniform
from farro.store.accounts import StoredAccounts, this_boot
from farro.store.redis.client import Arg, RedisClient
from farro.store.redis.records import from_ms
from farro.store.redis.scripts import RedisKeys

# KEYS[1]: accounts. ARGV: account, the record that it must have, the new one; an empty text stands for none.
# Repeated after a lost answer it finds the new record and returns 1.
_SWAP = """
local there = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if there ~= ARGV[2] and there ~= ARGV[3] then return 0 end
if ARGV[3] == '' then redis.call('HDEL', KEYS[1], ARGV[1]) else redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end
return 1
"""


class RedisAccounts(StoredAccounts):
    """The Accounts port. It is used rarely, so no connection is kept between calls."""

    def __init__(
        self, server: RedisClient, name: str, clock: Clock, *, uniform: Uniform, boot_id: str | None = None
    ) -> None:
        self.clock = clock
        self.uniform = uniform
        self.boot_id = this_boot() if boot_id is None else boot_id
        self._server = server
        self._key = f"{RedisKeys(name).prefix}accounts"
        self._ahead = timedelta(0)  # of the server's clock

    def now(self) -> datetime:
        """Return the server's time, because the clocks of machines differ."""
        return self.clock.now() + self._ahead

    def load(self) -> Mapping[str, str]:
        (seconds, micros), found = self._ask(("TIME",), ("HGETALL", self._key))
        self._ahead = from_ms(int(seconds) * 1000 + int(micros) // 1000) - self.clock.now()
        texts = [text.decode("utf-8", "replace") for text in found]
        return dict(zip(texts[::2], texts[1::2], strict=True))

    def swap(self, account: str, before: str | None, after: str | None) -> bool:
        return bool(self._ask(("EVAL", _SWAP, 1, self._key, account, before or "", after or ""))[0] == 1)

    def _ask(self, *commands: tuple[Arg, ...]) -> list[Any]:
        try:
            return self._server.calls(commands)
        finally:
            self._server.drop()
