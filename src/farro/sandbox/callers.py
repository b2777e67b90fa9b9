"""Tell who has connected to a server without a key that listens on loopback: its own user may, others may not, and no
process of a sandbox, whose job may have been given a network.

The kernel says which user opened a connection, and /proc which processes hold it. A socket of a sandboxed process never
gets into one outside, so a connection that a process outside holds is its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from farro.host.process_table import LINUX
from farro.sandbox import leftovers

_ESTABLISHED = "01"
_MAPPED = "0000000000000000FFFF0000"  # IPv4 in IPv6, as /proc writes it

Address = tuple[str, int]
Connection = tuple[Address, Address]  # peer, local


class SocketOwner(NamedTuple):
    user: int
    inode: int


def refusals(connections: Sequence[Connection]) -> list[str | None]:
    """Return for each connection, from `peer` to our socket at `local`, why it is not served; None if it is. One look
    at all processes is for all of them."""
    if not LINUX:
        return [None] * len(connections)
    tables = _tables()
    owners = [_owner(tables, *connection) for connection in connections]
    holders = _holders({owner.inode for owner in owners if owner is not None})
    return [_refusal(owner, holders) for owner in owners]


def _refusal(owner: SocketOwner | None, holders: Mapping[int, int]) -> str | None:
    if owner is None:
        return "the connection is gone"
    if owner.user != os.geteuid():
        return "it comes from another user of this machine"
    holder = holders.get(owner.inode)
    if holder is not None:
        return "it comes from a sandbox" if leftovers.confined(holder) else None
    if any(leftovers.confined(pid) for pid in _processes_of(owner.user)):
        return "it may come from a sandbox: no process outside is seen to have it"
    return None


def _tables() -> list[str]:
    """Return the kernel's tables of TCP sockets."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as file:
            found.append(file.read())
    return found


def _owner(tables: Sequence[str], peer: Address, local: Address) -> SocketOwner | None:
    """Return who owns the peer's socket."""
    one, other = _spelled(*peer), _spelled(*local)
    ways = (f" {one} {other} {_ESTABLISHED} ", f" {_MAPPED}{one} {_MAPPED}{other} {_ESTABLISHED} ")
    for rows in tables:
        for way in ways:
            if (at := rows.find(way)) >= 0:
                _, _, _, user, _, inode, *_ = rows[at + len(way) :].split(maxsplit=6)
                return SocketOwner(int(user), int(inode))
    return None


def _holders(inodes: set[int]) -> dict[int, int]:
    """Return for each socket a process that has it open, if one lets us look."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, int] = {}
    for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc"))), reverse=True):  # a client is often new
        if len(found) == len(wanted):
            break
        for link in _open_files(pid):
            if link in wanted:
                found.setdefault(wanted[link], pid)
    return found


def _processes_of(user: int) -> Iterator[int]:
    for name in filter(str.isdigit, os.listdir("/proc")):
        if leftovers.status(name).get("Uid", "").split("\t")[0] == str(user):
            yield int(name)


def _spelled(host: str, port: int) -> str:
    """Return an address as /proc writes it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    packed = socket.inet_pton(family, host.partition("%")[0])
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"


def _open_files(pid: int) -> Iterator[str]:
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                yield os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue  # closed meanwhile
    except OSError:
        return  # gone, or not ours to look at
