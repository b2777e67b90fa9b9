"""Check a Redis server for `farro doctor`: version, persistence, memory, clock, rights.

docs/redis.md says what each setting costs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import urlsplit

from farro.doctor.checks import Check, Finding, edit, failed, ok, quoted, warning
from farro.errors import FarroError
from farro.host import fs

SKEW_S = 5.0  # delays and leases use the server's clock; people read this machine's
_KEY = "farro:{%s}:job:x"
# Every command that the scripts and the store use, with example arguments; docs/redis.md has the ACL line.
# [test_doctor_checks_every_right_of_the_documentation]
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "EVAL": ("return 1", "1", _KEY),
    "EVALSHA": ("0" * 40, "1", _KEY),
    "WAIT": ("0", "0"),
    "INFO": (),
    "PING": (),
    "SELECT": ("0",),
    "TIME": (),
    "DEL": (_KEY,),
    "EXISTS": (_KEY,),
    "INCRBY": (_KEY, "1"),
    "HSET": (_KEY, "field", "1"),
    "HSETNX": (_KEY, "field", "1"),
    "HGET": (_KEY, "field"),
    "HMGET": (_KEY, "field"),
    "HGETALL": (_KEY,),
    "HKEYS": (_KEY,),
    "HLEN": (_KEY,),
    "HDEL": (_KEY, "field"),
    "SADD": (_KEY, "x"),
    "SREM": (_KEY, "x"),
    "SMEMBERS": (_KEY,),
    "ZADD": (_KEY, "1", "x"),
    "ZREM": (_KEY, "x"),
    "ZSCORE": (_KEY, "x"),
    "ZCARD": (_KEY,),
    "ZRANGE": (_KEY, "0", "0"),
    "ZRANGEBYSCORE": (_KEY, "0", "1"),
    "ZRANGEBYLEX": (_KEY, "-", "+"),
    "BZPOPMIN": (_KEY, "1"),
    "XADD": (_KEY, "*", "field", "1"),
    "XREAD": ("STREAMS", _KEY, "0"),
    "XRANGE": (_KEY, "-", "+"),
    "XREVRANGE": (_KEY, "+", "-"),
}


class ServerCalls(Protocol):
    """The part of a client that the checks use."""

    def call(self, *command: str | bytes | int | float) -> Any: ...

    def close(self) -> None: ...


def checks(
    server: Callable[[], AbstractContextManager[ServerCalls]],
    *,
    address: str,
    name: str,
    config: str,
    shared: str | None,
    now: Callable[[], datetime],
) -> list[Check]:
    """Return the checks. Each opens `server` anew. `name` names the key space, because rights are granted by key."""

    def asked(look: Callable[[ServerCalls], Finding]) -> Callable[[], Finding]:
        def run() -> Finding:
            with server() as opened:
                return look(opened)

        return run

    return [
        Check(
            id="redis",
            title="Redis server",
            look=asked(lambda asks: _reachable(_info(asks.call("INFO", "server")), address, config)),
            quick=True,
        ),
        Check(
            id="redis-persistence",
            title="what survives its crash",
            look=asked(lambda asks: _persistence(asks, address, config)),
        ),
        Check(
            id="redis-memory",
            title="its memory",
            look=asked(lambda asks: _memory(_info(asks.call("INFO", "memory")), address)),
        ),
        Check(id="redis-clock", title="its clock", look=asked(lambda asks: _clock(asks, now))),
        Check(id="redis-rights", title="its rights", look=asked(lambda asks: _rights(asks, name, config)), quick=True),
        Check(id="redis-shared", title="the shared directory", look=lambda: _shared(shared, config)),
    ]


def _reachable(info: Mapping[str, str], address: str, config: str) -> Finding:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "?")
    if name == "Redis" and _number(version.split(".")[0]) < 7:
        cause = "farro needs Redis 7 or later, or Valkey; update the server, or name another in `store`"
        return failed(f"{address} is {name} {version}", cause, edit(config))
    return ok(f"{name} {version} answers at {address}")


def _persistence(server: ServerCalls, address: str, config: str) -> Finding:
    appends, syncs = _config(server, "appendonly"), _config(server, "appendfsync")
    if appends is None:
        return ok("unknown: this user may not read the server's config (CONFIG GET)")
    if appends != "yes":
        cause = (
            "what was acknowledged since the last snapshot is lost when the server crashes; "
            "switch it on here, and in the server's own config file"
        )
        return warning("appendonly is off", cause, set_there(address, "appendonly", "yes"))
    if syncs != "always":
        cause = (
            "a power cut of the server may lose the last second of what was acknowledged; "
            "`always` costs a sync for each round trip, and keeps every one"
        )
        repair = set_there(address, "appendfsync", "always")
        return warning(f"appendonly yes, appendfsync {syncs}", cause, repair, edit(config))
    return ok("appendonly yes, appendfsync always: what is acknowledged stays")


def _memory(info: Mapping[str, str], address: str) -> Finding:
    used, most = info.get("used_memory_human", "?"), info.get("maxmemory_human", "0B")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        cause = "when its memory is full the server throws jobs away; it must refuse instead"
        repair = set_there(address, "maxmemory-policy", "noeviction")
        return failed(f"maxmemory-policy is {policy}", cause, repair)
    limit, has = _number(info.get("maxmemory", "0")), _number(info.get("used_memory", "0"))
    if limit and has * 10 >= limit * 9:
        cause = "beyond it every enqueue and commit is refused; remove finished jobs, or raise maxmemory"
        return warning(f"{used} of {most} are used", cause, "farro prune --older-than 7d")
    return ok(f"{used} used{f' of {most}' if limit else ', no limit'}; nothing is evicted")


def set_there(address: str, name: str, value: str) -> str:
    """Return the redis-cli command that changes the config of exactly this server. Parts that may hold a password are
    left out: people paste the report into tickets."""
    where = urlsplit(address)
    bare = where._replace(netloc=where.netloc.rpartition("@")[2], query="", fragment="").geturl()
    there = f"-s {quoted(where.path)}" if where.scheme == "unix" else f"-u {quoted(bare)}"
    return f"redis-cli {there} CONFIG SET {name} {value}"


def _clock(server: ServerCalls, now: Callable[[], datetime]) -> Finding:
    before = now()
    seconds, micro = (int(part) for part in server.call("TIME"))
    after = now()
    theirs = datetime.fromtimestamp(seconds + micro / 1e6, UTC)
    skew_s = max((theirs - after).total_seconds(), (before - theirs).total_seconds(), 0.0)
    if skew_s > SKEW_S:
        cause = "delays and leases go by the server's clock: times that you give are meant by that; set both by NTP"
        return warning(f"differs from this machine's by {skew_s:.0f} s", cause, "timedatectl set-ntp true")
    return ok(f"agrees with this machine's to {skew_s:.1f} s")


def _rights(server: ServerCalls, name: str, config: str) -> Finding:
    missing = []
    try:
        who = _text(server.call("ACL", "WHOAMI"))
    except FarroError:
        return ok("unknown: this user may not ask (ACL WHOAMI)")
    for command, example in COMMANDS.items():
        try:
            answer = _text(server.call("ACL", "DRYRUN", who, command, *(word.replace("%s", name) for word in example)))
        except FarroError:
            return ok(f"user {who}; its rights are unknown (ACL DRYRUN)")
        if answer != "OK":
            missing.append(command)
    if missing:
        cause = "docs/redis.md has the ACL line with all rights that farro needs"
        return failed(f"user {who} may not: {', '.join(missing)}", cause, edit(config))
    return ok(f"user {who} may do all that farro does")


def _shared(shared: str | None, config: str) -> Finding:
    if shared is None:
        return ok("none: outputs beyond redis.inline_bytes are cut")
    if not os.path.isdir(shared):
        cause = "large outputs cannot be put there, so jobs that have some fail to commit; mount it, or take it out"
        return failed(f"{shared} is not there", cause, edit(config))
    probe = fs.temporary(shared)
    try:
        fs.create(probe, b"farro\n")
    except OSError as error:
        cause = "large outputs go there; give this user the right to write"
        return failed(f"{shared}: {error.strerror}", cause, f"ls -ld {shared}")
    finally:
        if fs.exists(probe):
            fs.unlink(probe)
    return ok(f"{shared} can be written")


def _config(server: ServerCalls, name: str) -> str | None:
    try:
        answer = server.call("CONFIG", "GET", name)
    except FarroError:
        return None
    return _text(answer[1]) if isinstance(answer, list) and len(answer) > 1 else None


def _info(answer: Any) -> dict[str, str]:
    pairs = (line.partition(":") for line in _text(answer).splitlines() if ":" in line)
    return {name: value.strip() for name, _, value in pairs}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
