"""Translate errors of the server and the connection into farro's own, with the address and what to do."""

from __future__ import annotations

from urllib.parse import urlsplit

from farro.errors import FarroError, InputError, NotPermitted, NotReplicated, StorageTrouble

# Errors that pass by themselves: the server starts, a script runs too long, a failover is under way, replicas are
# missing.
PASSING = ("LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "NOREPLICAS")


def missing() -> InputError:
    return InputError("the Redis store needs two more packages: pip install 'farro[redis]'")


def unreachable(address: str, why: str, tried_s: float, *, sent: bool) -> StorageTrouble:
    """`sent`: the request was sent at least once, so the server may have carried it out."""
    long = f", tried for {tried_s:.0f} s" if tried_s >= 1 else ""
    doubt = " Whether the last call was carried out is not known; what was acknowledged before is kept." if sent else ""
    return StorageTrouble(
        f"{address}: no answer from the Redis server ({why}{long}).{doubt} Check that the server runs and can be "
        f"reached from here (`{ping(address)}`), and `store` in agents-config; then try again"
    )


def ping(address: str) -> str:
    """Return the command with which a person can test the server. The address holds no password."""
    where = urlsplit(address)
    return f"redis-cli -s {where.path} PING" if where.scheme == "unix" else f"redis-cli -u {address} PING"


def refused(address: str, text: str) -> FarroError:
    """Translate an error reply of the server."""
    code = text.split(" ", 1)[0]
    if code in ("WRONGPASS", "NOAUTH") or "invalid username-password" in text or "AUTH" in text.split(" ")[:3]:
        return InputError(
            f"{address}: the Redis server does not accept this user and password. Set `redis.user` and "
            "`redis.password: ${NAME}` in agents-config, and the variable NAME in the environment"
        )
    if code == "NOPERM" or "user executing the script" in text:
        return NotPermitted(
            f"{address}: the Redis user may not do this ({_short(text)}). docs/redis.md has the ACL line with the "
            "rights that farro needs"
        )
    if code == "OOM":
        return StorageTrouble(
            f"{address}: the Redis server is full (maxmemory); nothing was changed. Remove finished jobs "
            "(`farro prune`), or raise maxmemory; its policy must be noeviction"
        )
    if code == "MISCONF":
        return StorageTrouble(
            f"{address}: the Redis server cannot write to its disk and takes nothing new; nothing was changed. "
            "Its log says why; free space there, then try again"
        )
    if code == "READONLY":
        return StorageTrouble(
            f"{address}: this Redis server is a replica and takes no writes; nothing was changed. Name the master in "
            "`store`, or wait until the failover is done"
        )
    if code in PASSING:
        return StorageTrouble(f"{address}: the Redis server is not ready ({_short(text)}); try again in a moment")
    return FarroError(f"{address}: the Redis server answered: {_short(text)}. `farro doctor` looks at the store")


def too_old(address: str, version: str) -> InputError:
    return InputError(
        f"{address}: this is Redis {version[:40]}; farro needs Redis 7 or later, or Valkey. "
        "Update the server, or name another in `store`"
    )


def too_few_replicas(address: str, wanted: int, got: int, wait_s: float) -> NotReplicated:
    return NotReplicated(
        f"{address}: done on the master, but only {got} of {wanted} replicas had it after {wait_s:g} s "
        "(redis.wait_replicas). It stands, and is lost only if the master is lost before they have it. Look at the "
        "replicas (INFO replication), or ask for fewer"
    )


def _short(text: str) -> str:
    return ascii(text)[1:-1][:200]
