"""Keep the web server's token, sign-in codes and address in files that only the owner of the farro root can read.

`jobs/.web/token` is created when the first server starts, and stays, so that programs and open pages survive a
restart. A sign-in code is a file named by the code's hash: any process of the root's owner can make one (`farro web
--link`, `farro up`), and the server consumes it by removing the file, so that only one of two requests with the same
code gets in.

`jobs/.web/servers/` has one file per server of this root, with its address. The file is a lease, which the kernel
releases when the server dies: a link never leads to a dead server, nor to another root's server on the same port.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator

from farro.host import fs, leases

FOLDER = "jobs/.web"
SERVERS = f"{FOLDER}/servers"
CODE_S = 3600.0  # how long an unused sign-in code is valid
_MAX_BYTES = 4096
_RANDOM_BYTES = 24


def token(root: str, random_bytes: Callable[[int], bytes]) -> str:
    """Return the token of this root; create it unless there is one.

    A power cut may keep the file's name and lose its bytes. An empty or zero-filled file is therefore no token: anyone
    could guess it.
    """
    folder = f"{root}/{FOLDER}"
    path = f"{folder}/token"
    _make_folder(folder)
    with contextlib.suppress(FileNotFoundError):
        stored = fs.read_bytes(path, _MAX_BYTES).decode("utf-8", "replace").strip()
        if stored and stored.isprintable():
            return stored
        fs.unlink(path)
    new = random_bytes(_RANDOM_BYTES).hex()
    temporary = f"{folder}/{fs.TEMPORARY}{new[:16]}"  # linked below, so that the token appears complete
    fs.create_private(temporary, new.encode() + b"\n")
    try:
        with contextlib.suppress(FileExistsError):
            fs.link(temporary, path)
    finally:
        fs.unlink(temporary)
    return fs.read_bytes(path, _MAX_BYTES).decode().strip()


def new_code(root: str, random_bytes: Callable[[int], bytes]) -> str:
    """Create a code that signs in one browser once."""
    folder = f"{root}/{FOLDER}/codes"
    _make_folder(f"{root}/{FOLDER}")
    _make_folder(folder)
    code = random_bytes(_RANDOM_BYTES).hex()
    fs.create_private(f"{folder}/{_file_name(code)}", b"")
    return code


def use_code(root: str, code: str, now_s: float) -> bool:
    """Consume the code; return whether it was valid. Remove expired codes on the way."""
    folder = f"{root}/{FOLDER}/codes"
    valid = False
    try:
        names = fs.listdir(folder)
    except FileNotFoundError:
        return False
    wanted = _file_name(code)
    for name in names:
        path = f"{folder}/{name}"
        with contextlib.suppress(FileNotFoundError):  # another request removed it first
            expired = now_s - fs.lstat(path).st_mtime > CODE_S
            if expired or name == wanted:
                fs.unlink(path)
                valid = valid or (name == wanted and not expired)
    return valid


def link(address: str, code: str) -> str:
    return f"{address}/login?code={code}"


def _file_name(code: str) -> str:
    return hashlib.sha256(code.encode("utf-8", "surrogateescape")).hexdigest()


def _make_folder(folder: str) -> None:
    with contextlib.suppress(FileExistsError):
        fs.mkdir_private(folder)


def address(host: str, port: int) -> str:
    """Return the URL for a browser on this host. A server that listens on all addresses is reached by loopback."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - it is compared, not bound
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@contextlib.contextmanager
def announce(root: str, url: str, time_ns: int) -> Iterator[None]:
    """Publish the address of a server of this root, so that other processes can print links to it."""
    folder = f"{root}/{SERVERS}"
    _make_folder(f"{root}/{FOLDER}")
    _make_folder(folder)
    path = f"{folder}/{time_ns:020d}"
    temporary = fs.temporary(folder)  # locked before the rename: no process can take it for a dead server's file
    lease = leases.create(temporary, url.encode() + b"\n")
    try:
        fs.replace(temporary, path)
        live_server(root)  # removes the files of dead servers
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(path)
        lease.drop()


def live_server(root: str) -> str | None:
    """Return the address of the newest running server of this root, if any. Remove the files of dead servers."""
    folder = f"{root}/{SERVERS}"
    try:
        names = sorted((name for name in fs.listdir(folder) if not name.startswith(fs.TEMPORARY)), reverse=True)
    except FileNotFoundError:
        return None
    found: str | None = None
    for name in names:
        path = f"{folder}/{name}"
        with contextlib.suppress(FileNotFoundError):
            lease = leases.take(path)
            if lease is None:
                found = found or fs.read_bytes(path, _MAX_BYTES).decode("utf-8", "replace").strip() or None
            else:
                try:
                    fs.unlink(path)
                finally:
                    lease.drop()
    return found
