"""Probe what a store needs of its filesystem, in a scratch folder: renames, links, leases, inotify, syncs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator

from farro.doctor.checks import Check, Finding, failed, ok, quoted, warning
from farro.errors import SyncFailed
from farro.host import fs, inotify, leases, mounts, trees

_PATIENCE_S = 20.0
_NOTICE_S = 2.0
# Another process that tries to take a lease (exit code 3: held) and, with a second argument, kills itself with it.
_TRY = """
import fcntl, os, signal, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(3)
if sys.argv[2:]:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def checks(folder: str) -> list[Check]:
    """Return the probes. Each makes a scratch folder in `folder` and removes it again."""

    def probe(name: str, title: str, look: Callable[[str], Finding], *, quick: bool = True) -> Check:
        def run() -> Finding:
            with scratch(folder) as home:
                return look(home)

        return Check(id=name, title=title, look=run, quick=quick)

    return [
        probe("rename-exclusive", "renames that replace nothing", _rename),
        probe("link-exclusive", "exclusive links", _symlink),
        probe("lease", "leases between processes", _lease, quick=False),
        probe("inotify", "notices of changes", _inotify),
        probe("sync", "syncs", _sync),
    ]


@contextlib.contextmanager
def scratch(folder: str) -> Iterator[str]:
    home = fs.temporary(folder)
    fs.mkdir(home)
    try:
        yield home
    finally:
        with contextlib.suppress(OSError):
            trees.remove_tree(home)


def _elsewhere(home: str, what: str) -> Finding:
    mount = mounts.mount_of(home)
    return failed(
        f"{what} on {mount.kind or 'this filesystem'}",
        "without it two workers may take one job; make the root on another filesystem: ext4, xfs or btrfs",
        f"farro init --root {quoted('/var/lib/farro')}",
    )


def _rename(home: str) -> Finding:
    for name in ("one", "other"):
        fs.mkdir(f"{home}/{name}")
    try:
        fs.move(f"{home}/one", f"{home}/other")
    except FileExistsError:
        pass
    except OSError as error:
        return _elsewhere(home, f"a rename that replaces nothing fails ({error.strerror})")
    else:
        return _elsewhere(home, "a rename replaces an empty folder")
    fs.move(f"{home}/one", f"{home}/third")
    return ok("a rename never replaces a folder")


def _symlink(home: str) -> Finding:
    try:
        fs.symlink("first", f"{home}/lock")
        fs.symlink("second", f"{home}/lock")
    except FileExistsError:
        said = fs.readlink(f"{home}/lock")
        return ok("a link is made once, and whole") if said == "first" else _elsewhere(home, "a link was overwritten")
    except OSError as error:
        return _elsewhere(home, f"a link cannot be made ({error.strerror})")
    return _elsewhere(home, "a link is made twice")


def _lease(home: str) -> Finding:
    path = f"{home}/.lease"
    try:
        lease = leases.create(path, b"")
        try:
            held = _other(path) == 3
        finally:
            lease.drop()
    except OSError as error:
        return _elsewhere(home, f"a lease cannot be held ({error.strerror})")
    if not held:
        return _elsewhere(home, "a lease that is held can be taken by another process")
    if _other(path, "die") != -9 or _other(path) != 0:
        return _elsewhere(home, "a lease is not free after its holder was killed")
    return ok("held against other processes, free when its holder dies")


def _other(path: str, *how: str) -> int:
    done = subprocess.run([sys.executable, "-ISc", _TRY, path, *how], check=False, timeout=_PATIENCE_S)
    return done.returncode


def _inotify(home: str) -> Finding:
    cause = "workers look by themselves instead, every few seconds: jobs start later"
    raise_limit = "sudo sysctl fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=1048576"
    try:
        with inotify.Inotify() as watch:
            watch.watch(home, inotify.CREATE)
            fs.create(f"{home}/new", b"")
            told = watch.read(_NOTICE_S)
    except OSError as error:
        return warning(f"not to be had: {error.strerror or error}", cause, raise_limit)
    if not told:
        return warning("a new file was not told of", cause, f"farro init --root {quoted('/var/lib/farro')}")
    return ok("told of a new file")


def _sync(home: str) -> Finding:
    fs.create(f"{home}/file", b"x" * 4096)
    try:
        fs.sync_all([f"{home}/file", home])
    except (OSError, SyncFailed) as error:
        return failed(
            f"a sync failed: {error}",
            "the disk does not confirm what is written; nothing on it is safe",
            "dmesg --level err",
        )
    return ok("a file and a folder were synced")
