"""Facts about this machine, this user and this process, its randomness, and hooks that not every platform has.

Modules that only some platforms have, or that are slow to import, are imported inside the functions.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


def platform_name() -> str:
    """Return the platform as Python names it: linux, darwin, win32."""
    return sys.platform


def node_name() -> str:
    """Return the name of this machine in its network; may be empty."""
    if hasattr(os, "uname"):
        return os.uname().nodename
    import platform  # slow to import

    return platform.node()


def description() -> str:
    """Describe the operating system for people and models: `Linux on x86_64, Debian GNU/Linux 12`."""
    import platform

    system = f"{platform.system()} on {platform.machine()}"
    try:
        return f"{system}, {platform.freedesktop_os_release().get('PRETTY_NAME', '')}".rstrip(", ")
    except OSError:
        return system


def random_bits(count: int) -> int:
    """Return so many random bits of the operating system, as `random.SystemRandom` does, which is slow to import."""
    size = (count + 7) // 8
    return int.from_bytes(os.urandom(size), "big") >> (size * 8 - count)


def uniform(low: float, high: float) -> float:
    """Return a random number between two, from the operating system's randomness."""
    import random

    return random.SystemRandom().uniform(low, high)


def current_user() -> str:
    """Return the name of the user that this process runs as, from the kernel: a caller can set LOGNAME to any name."""
    try:
        import pwd
    except ImportError:  # Windows
        import getpass

        return getpass.getuser()
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def umask() -> int | None:
    """Return the umask without setting it, which would affect other threads; None where the system does not say."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            return next((int(line.split()[1], 8) for line in file if line.startswith("Umask:")), None)
    except OSError:
        return None


def path_of_descriptor(fd: int) -> str | None:
    """Return the real path of an open file, links resolved; None where the system does not say."""
    path = f"/proc/self/fd/{fd}"
    return os.path.realpath(path) if os.path.lexists(path) else None


def run_after_fork(function: Callable[[], None]) -> None:
    """Call `function` in each child that this process forks, before the child does anything else."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def unix_socket() -> socket.socket:
    """Return a new stream socket for a path; OSError where the platform has none."""
    import socket

    family = getattr(socket, "AF_UNIX", None)
    if family is None:
        raise OSError(f"sockets with a path are not available on {sys.platform}; use a host and a port")
    return socket.socket(family)
