"""Collect what a process with a closed list may read (`Confinement.reads`): the system, its own program, what is named.

A program is found through links and `#!` lines. Its installation is what it needs to start, and no more: the folder
above a `bin` may be somebody's home. A place that the process itself may write is not followed: a link that an
earlier step left there would open what it leads to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from farro.host.processes import Launch
from farro.host.programs import which
from farro.sandbox.confinement import Confinement, within

# What every program needs. Of /etc only files without secrets: root may read others there, such as /etc/shadow.
SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"),
    *("/proc", "/sys/fs/cgroup", "/sys/devices/system/cpu"),
    *(
        f"/etc/{name}"
        for name in (
            *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "os-release", "localtime", "timezone"),
            *("passwd", "group", "nsswitch.conf", "hosts", "resolv.conf", "host.conf", "gai.conf", "services"),
            *("protocols", "ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf", "ca-certificates", "pki/tls/certs"),
            *("pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust", "crypto-policies", "gitconfig", "profile"),
            *("profile.d", "bash.bashrc", "bashrc", "inputrc", "locale.alias", "mime.types", "fonts", "terminfo"),
        )
    ),
)
_LINKS = 40  # on one way
_INTERPRETERS = 4  # of interpreters
_LINE = 512  # bytes of a `#!` line
_LIBRARIES = ("lib", "lib32", "lib64", "libexec")


def closed_list(launch: Launch, confinement: Confinement) -> tuple[str, ...]:
    """Return everything that the process may read besides what it may write: real paths, and the links that lead to
    them from the paths that were named."""
    own = (*confinement.writable, *(() if confinement.tmp is None else (confinement.tmp,)))
    found: dict[str, None] = {}
    assert launch.executable is not None
    named = (*SYSTEM, *(confinement.reads or ()), *installation(launch.executable, launch.env.get("PATH"), own))
    for path in named:
        found.update(dict.fromkeys(hops(path, own)))
    found.pop("/", None)  # it would open everything
    return tuple(found)


def hops(path: str, own: Sequence[str] = ()) -> Iterator[str]:
    """Yield each link on the way to `path`, then what it leads to, if that exists. Nothing inside `own`, which the
    process may read anyway, nor where a link in there leads."""
    place, rest, links = "/", path.split("/"), 0
    while rest:
        name = rest.pop(0)
        if name == "..":
            place = os.path.dirname(place)
        elif name not in ("", "."):
            step = f"{place.rstrip('/')}/{name}"
            if any(within(step, folder) for folder in own):
                return
            if os.path.islink(step):
                yield step
                links += 1
                if links > _LINKS:
                    return
                target = os.readlink(step)
                place = "/" if target.startswith("/") else place
                rest = [*target.split("/"), *rest]
            else:
                place = step
    if os.path.exists(place):
        yield place


def installation(file: str, path: str | None, own: Sequence[str] = ()) -> Iterator[str]:
    """Yield what a program needs of its own: its file, its libraries, its interpreter. `path`: where those are searched
    that a `#!` line names through `env`."""
    for _ in range(_INTERPRETERS):
        yield file
        ways = list(hops(file, own))
        for place in ways:
            yield from _around(place)
        if not ways or not os.access(ways[-1], os.X_OK):
            return
        interpreter = _interpreter(ways[-1], path)
        if interpreter is None:
            return
        file = interpreter


def _around(file: str) -> Iterator[str]:
    folder = os.path.dirname(file)
    above, name = os.path.split(folder)
    head, modules, _ = file.partition("/node_modules/")
    if modules:
        yield f"{head}/node_modules"
        yield f"{head}/package.json"
    elif name == "shims":  # pyenv, asdf: a script that looks for the program among the versions there
        yield above
    elif name in ("bin", "sbin"):
        if os.path.isfile(f"{above}/pyvenv.cfg"):
            yield above
        yield from (f"{above}/{library}" for library in _LIBRARIES)


def _interpreter(file: str, path: str | None) -> str | None:
    """Return the program of a `#!` line."""
    try:
        with open(file, "rb") as script:
            line = script.read(_LINE).split(b"\n", 1)[0]
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    words = os.fsdecode(line[2:]).split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    found = which(words[0], path, "/") if words else None
    return found if found is not None and found.startswith("/") else None
