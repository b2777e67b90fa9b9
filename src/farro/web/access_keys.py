"""The keys of the HTTP front: its token, and links that work once. Files of the root that only its owner can read.

Who is let in with them lives in fronts.http.access.

`jobs/.web/token` is made when the first server starts, and stays: programs and open pages survive a restart. A link's
code is a file named by its hash, so that any process of the root's owner makes one (`farro web --link`, `farro up`) and
the server uses it up by removing the file: of two who come with one code, one gets in.

`jobs/.web/servers/` has a file for each server of this root, with its address: a lease, which the kernel drops when the
server dies. So a link never leads to a server that is gone, or to another root's that has its port now.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator

from farro.host import fs, leases

FOLDER = "jobs/.web"
SERVERS = f"{FOLDER}/servers"
CODE_S = 3600.0  # a link that nobody opened for so long is worth nothing
_LIMIT = 4096
_WORD = 24  # bytes of randomness


def token(root: str, random_bytes: Callable[[int], bytes]) -> str:
    """The token of this root; made where there is none. A power cut may keep the name of the file and lose its bytes:
    nothing, or zeros, is no token, for everybody knows it."""
    home = f"{root}/{FOLDER}"
    path = f"{home}/token"
    _make(home)
    with contextlib.suppress(FileNotFoundError):
        kept = fs.read_bytes(path, _LIMIT).decode("utf-8", "replace").strip()
        if kept and kept.isprintable():
            return kept
        fs.unlink(path)
    made = random_bytes(_WORD).hex()
    whole = f"{home}/{fs.TEMPORARY}{made[:16]}"  # complete when it appears under its name
    fs.create_private(whole, made.encode() + b"\n")
    try:
        with contextlib.suppress(FileExistsError):
            fs.link(whole, path)
    finally:
        fs.unlink(whole)
    return fs.read_bytes(path, _LIMIT).decode().strip()


def code(root: str, random_bytes: Callable[[int], bytes]) -> str:
    """A new code for one sign-in."""
    home = f"{root}/{FOLDER}/codes"
    _make(f"{root}/{FOLDER}")
    _make(home)
    made = random_bytes(_WORD).hex()
    fs.create_private(f"{home}/{_name(made)}", b"")
    return made


def use(root: str, told: str, now_s: float) -> bool:
    """Whether that code is good: it is used up then. Old ones are swept away."""
    home = f"{root}/{FOLDER}/codes"
    good = False
    try:
        names = fs.listdir(home)
    except FileNotFoundError:
        return False
    wanted = _name(told)
    for name in names:
        path = f"{home}/{name}"
        with contextlib.suppress(FileNotFoundError):  # somebody else was first
            late = now_s - fs.lstat(path).st_mtime > CODE_S
            if late or name == wanted:
                fs.unlink(path)
                good = good or (name == wanted and not late)
    return good


def link(address: str, made: str) -> str:
    return f"{address}/login?code={made}"


def _name(made: str) -> str:
    return hashlib.sha256(made.encode("utf-8", "surrogateescape")).hexdigest()


def _make(folder: str) -> None:
    with contextlib.suppress(FileExistsError):
        fs.mkdir_private(folder)


def address(host: str, port: int) -> str:
    """As a browser wants it. A server that listens everywhere is reached here by loopback."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - it is compared, not bound
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@contextlib.contextmanager
def announced(root: str, url: str, time_ns: int) -> Iterator[None]:
    """A server of this root listens there: for links that another process makes."""
    home = f"{root}/{SERVERS}"
    _make(f"{root}/{FOLDER}")
    _make(home)
    path = f"{home}/{time_ns:020d}"
    whole = fs.temporary(home)  # locked before anyone can take it for a dead one's
    lease = leases.create(whole, url.encode() + b"\n")
    try:
        fs.replace(whole, path)
        living(root)  # … which sweeps away those that died
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(path)
        lease.drop()


def living(root: str) -> str | None:
    """Where the newest server of this root listens; None: none runs. Files of dead ones are swept away."""
    home = f"{root}/{SERVERS}"
    try:
        names = sorted((name for name in fs.listdir(home) if not name.startswith(fs.TEMPORARY)), reverse=True)
    except FileNotFoundError:
        return None
    found: str | None = None
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            lease = leases.take(f"{home}/{name}")
            if lease is None:
                found = found or fs.read_bytes(f"{home}/{name}", _LIMIT).decode("utf-8", "replace").strip() or None
            else:
                try:
                    fs.unlink(f"{home}/{name}")
                finally:
                    lease.drop()
    return found
