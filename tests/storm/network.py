"""Simulate machines on one switch, each in its own network namespace, with links that can be cut in one direction.

The switch has a namespace too: the host's own network stays untouched, and removing the namespaces removes everything.
Needs root and CAP_NET_ADMIN.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

from support import need

NET = "10.77.0"


class Network:
    """A network of `names`, in the order of their addresses. The first is the server; cuts affect links to it."""

    def __init__(self, names: Sequence[str]) -> None:
        self.mark = f"farro-{os.getpid():x}-{os.urandom(2).hex()}"
        self.names = list(names)

    def address(self, name: str) -> str:
        return f"{NET}.{self.names.index(name) + 1}"

    def inside(self, name: str) -> list[str]:
        """Return the command prefix that runs a command on that machine. Only its network differs from the host's."""
        return ["nsenter", f"--net=/run/netns/{self.mark}-{name}", "--"]

    def make(self) -> None:
        ip("netns", "add", f"{self.mark}-switch")
        ip("-n", f"{self.mark}-switch", "link", "add", "bridge", "type", "bridge")
        ip("-n", f"{self.mark}-switch", "link", "set", "bridge", "up")
        for name in self.names:
            space, port = f"{self.mark}-{name}", self._port(name)
            ip("netns", "add", space)
            ip(
                *("-n", f"{self.mark}-switch", "link", "add", port, "type", "veth"),
                *("peer", "name", "eth0", "netns", space),
            )
            ip("-n", f"{self.mark}-switch", "link", "set", port, "master", "bridge", "up")
            ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "link", "set", "eth0", "up")

    # --- partitions ---

    def cut(self, name: str) -> None:
        """Drop all packets from and to that machine."""
        ip("-n", f"{self.mark}-switch", "link", "set", self._port(name), "down")

    def mute(self, name: str) -> None:
        """Drop packets from that machine to the server; the other direction works."""
        self._drop(at=name, to=self.names[0])

    def deafen(self, name: str) -> None:
        """Drop packets from the server to that machine: the server executes requests, but its replies are lost."""
        self._drop(at=self.names[0], to=name)

    def mend(self, name: str) -> None:
        ip("-n", f"{self.mark}-switch", "link", "set", self._port(name), "up")
        for at, to in ((name, self.names[0]), (self.names[0], name)):
            with contextlib.suppress(subprocess.CalledProcessError):  # there was no such route
                ip("-n", f"{self.mark}-{at}", "route", "del", "blackhole", f"{self.address(to)}/32")

    def _drop(self, *, at: str, to: str) -> None:
        """Add a blackhole route, which overrides the route to the whole net: packets are dropped silently."""
        ip("-n", f"{self.mark}-{at}", "route", "replace", "blackhole", f"{self.address(to)}/32")

    def _port(self, name: str) -> str:
        return f"port{self.names.index(name)}"


def remove(mark: str) -> None:
    """Remove the namespaces with that mark and everything in them. Their processes must have ended."""
    told = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    for line in told.splitlines():
        name = line.split()[0]
        if name.startswith(f"{mark}-"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


def needed() -> None:
    """Skip the test without the right to create namespaces; in CI this is a failure."""
    need(sys.platform == "linux", "network namespaces are Linux's")
    need("ip", "iproute2 makes the network namespaces of the storm")
    need("nsenter", "util-linux enters them")
    need("redis-server", "the storm is about a real server")
    need(_permitted(), "network namespaces need root and CAP_NET_ADMIN")


def _permitted() -> bool:
    trial = Network(["a"])
    try:
        trial.make()
    except subprocess.CalledProcessError:
        return False
    finally:
        remove(trial.mark)
    return True


@contextlib.contextmanager
def network(names: Sequence[str]) -> Iterator[Network]:
    made = Network(names)
    try:
        made.make()
        yield made
    finally:
        remove(made.mark)
