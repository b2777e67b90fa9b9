"""A seat that one process of all machines has at a time: the manager's. A lease by the server's clock.

Who sits there, and what it does, lives in services.

    seat:<name>    hash  holder  who has it, or had it last
                         until   when its time is over, in ms of the server's clock; 0: it left
                         beat    when it last said that it lives
"""

from __future__ import annotations

from farro.store.fleet import LeaderStatus
from farro.store.redis.context import Ground

# KEYS[1]: seat:<name>. ARGV: who asks, for how many ms (0: it leaves). Answers 1 to whoever has it then. To ask again,
# also because an answer was lost, is to have it for longer.
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

_LOOK = """
local t = redis.call('TIME')
local seat = redis.call('HMGET', KEYS[1], 'holder', 'beat')
return {seat[1] or '', seat[2] and t[1] * 1000 + math.floor(t[2] / 1000) - seat[2] or 0}
"""


def take(ground: Ground, name: str, holder: str, lease_s: float) -> bool:
    """Whether `holder` has it now."""
    return bool(ground.server.call("EVAL", _TAKE, 1, _key(ground, name), holder, max(1, int(lease_s * 1000))) == 1)


def leave(ground: Ground, name: str, holder: str) -> None:
    ground.server.call("EVAL", _TAKE, 1, _key(ground, name), holder, 0)


def leader_status(ground: Ground, name: str) -> LeaderStatus | None:
    holder, silent_ms = ground.server.call("EVAL", _LOOK, 1, _key(ground, name))
    if not holder:
        return None
    return LeaderStatus(holder=holder.decode("utf-8", "replace"), silent_s=max(0.0, silent_ms / 1000))


def _key(ground: Ground, name: str) -> str:
    return f"{ground.keys.prefix}seat:{name}"
