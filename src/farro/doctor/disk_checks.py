"""Check what a root is stored on: filesystem, devices, free space, permissions, clock; and probe, in a scratch folder,
what a store needs of its filesystem: renames, links, leases, inotify, syncs."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from farro.doctor.checks import EXAMPLES, Check, Finding, counted, edit, failed, ok, own, quoted, warning
from farro.errors import SyncFailed
from farro.host import fs, inotify, leases, machine, mounts, trees
from farro.host.mounts import Mount

JOURNALLED = ("ext4", "ext3")
PROMISED = (*JOURNALLED, "xfs", "btrfs")  # DESIGN §4: durability `power`
VOLATILE = ("tmpfs", "ramfs", "devtmpfs")
NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gfs2", "ocfs2", "glusterfs"),
        *("beegfs", "ncpfs", "coda", "vboxsf", "prl_fs", "virtiofs", "drvfs"),
    )
)
_NO_BARRIER = frozenset({"nobarrier", "barrier=0"})
_FEW_INODES = 1_000
_OWN_INODES = 10_000
_LEAST_PYTHON = (3, 11)
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


def checks(
    root: str,
    *,
    folders: Sequence[str],
    apart: Callable[[], Sequence[str]],
    config: str,
    durable: bool,
    allow_cross_volume: bool,
    min_free_bytes: int,
    now: Callable[[], datetime],
) -> list[Check]:
    """Return the checks. `folders`: those between which jobs are moved, relative to the root; `apart` returns those of
    them that a rename cannot reach; `config`: the path of the config, for repairs."""
    return [
        Check(id="python", title="Python", look=_python, quick=True),
        Check(
            id="filesystem-kind",
            title="kind of filesystem",
            look=lambda: _kind(root, folders, config, durable),
            quick=True,
        ),
        same_device(root, config, apart, allow_cross_volume=allow_cross_volume),
        permissions(root, folders),
        Check(id="disk-space", title="room on the disk", look=lambda: _space(root, min_free_bytes), quick=True),
        Check(id="inodes", title="room for files", look=lambda: _inodes(root), quick=True),
        Check(id="clock", title="clock", look=lambda: _clock(root, folders, now()), quick=True),
    ]


def same_device(root: str, config: str, apart: Callable[[], Sequence[str]], *, allow_cross_volume: bool) -> Check:
    return Check(
        id="same-device",
        title="queues on one device",
        look=lambda: _same_device(root, config, apart(), allow_cross_volume),
        quick=True,
    )


def permissions(root: str, folders: Sequence[str]) -> Check:
    return Check(id="permissions", title="permissions", look=lambda: _permissions(root, folders), quick=True)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _LEAST_PYTHON:
        least = ".".join(map(str, _LEAST_PYTHON))
        return failed(f"Python {version}", f"farro needs {least} or newer", f"python{least} -m pip install farro")
    return ok(f"Python {version}, {machine.platform_name()}")


# --- the filesystem ---


def _kind(root: str, folders: Sequence[str], config: str, durable: bool) -> Finding:
    mount = mounts.mount_of(root)
    below = mounts.in_lower_layer(mount, root, folders) if mount.kind == "overlay" else []
    if below:
        copy = quoted(f"{root}.upper")
        return failed(
            f"overlay at {mount.point}: {below[0]} is in a lower layer",
            "a folder of a lower layer cannot be renamed, so nobody can work that job; in a copy of the root it can be",
            f"cp -a {quoted(root)} {copy}",
            f"rm -r {quoted(root)}",
            f"mv {copy} {quoted(root)}",
            details=tuple(below[:EXAMPLES]),
        )
    return judge(mount, root, config, durable, mounts.has_journal)


def judge(mount: Mount, root: str, config: str, durable: bool, has_journal: Callable[[Mount], bool | None]) -> Finding:
    """Judge whether a root may be on this mount."""
    kind, where = mount.kind, f"{mount.kind or 'an unknown filesystem'} at {mount.point}"
    if kind in NETWORK or kind.startswith("fuse"):
        return failed(
            f"{where}: over the network or through another program",
            "exclusive links, locks and renames are not promised there, and two machines may not share a root; "
            "make one on a local disk",
            f"farro init --root {quoted(_elsewhere(root))}",
        )
    if not durable:
        gone = ", gone after a restart of the machine" if kind in VOLATILE else ""
        if kind not in (*PROMISED, *VOLATILE):
            return _not_promised(where, "farro was not tried on it", root)
        return ok(f"{where}{gone}; durability process")
    if kind in VOLATILE:
        return warning(
            f"{where}: in memory",
            "a restart of the machine loses every job, whatever `durability` says; set it to process if that is meant, "
            "or make the root on a disk",
            edit(config),
        )
    if kind == "overlay":
        return _not_promised(where, "folders of a lower layer cannot be renamed, and power cuts are not promised", root)
    if kind not in PROMISED:
        return _not_promised(where, "durability power is promised on ext4 with a journal, xfs and btrfs", root)
    return _power_cuts(mount, where, config, has_journal)


def _power_cuts(mount: Mount, where: str, config: str, has_journal: Callable[[Mount], bool | None]) -> Finding:
    """Judge whether acknowledged jobs survive a power cut on this mount."""
    kind = mount.kind
    if barriers := sorted(_NO_BARRIER & mount.options):
        return warning(
            f"{where}, mounted with {barriers[0]}",
            "the disk may keep what was synced in its cache; a power cut then loses acknowledged jobs",
            f"mount -o remount,barrier=1 {quoted(mount.point)}",
        )
    journal = has_journal(mount) if kind in JOURNALLED else True
    if journal is False and mount.point == "/":
        return warning(
            f"{where} without a journal",
            "after a power cut a folder may lie in two places or nowhere; make the root on another disk, or set "
            "`durability` to process",
            edit(config),
        )
    if journal is False:
        return warning(
            f"{where} without a journal",
            "after a power cut a folder may lie in two places or nowhere; add a journal (not while it is mounted), or "
            "set `durability` to process",
            f"umount {quoted(mount.point)}",
            f"tune2fs -O has_journal {quoted(mount.source)}",
            f"mount {quoted(mount.source)} {quoted(mount.point)}",
        )
    said = "" if kind not in JOURNALLED else " with a journal" if journal else ", its journal cannot be seen from here"
    return ok(f"{where}{said}; durability power")


def _not_promised(where: str, cause: str, root: str) -> Finding:
    return warning(
        where, f"{cause}; use another disk where it matters", f"farro init --root {quoted(_elsewhere(root))}"
    )


def _elsewhere(root: str) -> str:
    return f"/var/lib/{os.path.basename(root.rstrip('/')) or 'farro'}"


# --- devices ---


def _same_device(root: str, config: str, apart: Sequence[str], allowed: bool) -> Finding:
    away = list(apart)
    vain = "allow_cross_volume is not kept by this farro: a claim is a rename, and a copy is none"
    if not away:
        found = f"all on device {os.stat(root).st_dev:#x}"
        return (
            warning(f"{found}; allow_cross_volume is set", f"{vain}; remove it", edit(config)) if allowed else ok(found)
        )
    found = f"{away[0]} is on another device or mount than the root" + (
        f", and {len(away) - 1} more" if len(away) > 1 else ""
    )
    cause = vain if allowed else "a job is handed on by a rename, which does not reach across devices or mounts"
    commands = [f"umount {quoted(f'{root}/{name}')}" for name in outermost(away)]
    return failed(found, f"{cause}; unmount what is mounted there", *commands, details=tuple(away[:EXAMPLES]))


def outermost(names: Sequence[str]) -> list[str]:
    """Return the names that are not inside another of them."""
    return [name for name in names if not any(name.startswith(f"{other}/") for other in names)]


# --- room, rights, time ---


def _permissions(root: str, folders: Sequence[str]) -> Finding:
    needed = [root, f"{root}/agents", f"{root}/jobs", f"{root}/logs"]
    read_only = [path for path in needed if os.path.isdir(path) and mounts.disk_space(path).read_only]
    if read_only:
        point = mounts.mount_of(read_only[0]).point
        return failed(
            f"{point} is mounted read-only",
            "nothing can be queued, worked or told here; mount it for writing. dmesg says whether the kernel made it "
            "so after an error of the disk",
            f"sudo mount -o remount,rw {quoted(point)}",
        )
    shut = [path for path in needed if os.path.isdir(path) and not os.access(path, os.W_OK | os.X_OK)]
    if shut:
        return failed(
            f"{shut[0]} may not be written by this user",
            "daemons move jobs in these folders; give them to the user who runs the daemons",
            own(root),
        )
    places = [root, *(f"{root}/{name}" for name in (*folders, "logs", "tasks", "schemas", "schedules"))]
    places += [f"{root}/{name}" for name in ("agents-config.json", "agents-config.yaml", "AGENTS.md")]
    loose = []
    for path in places:
        try:
            if stat.S_IMODE(os.stat(path).st_mode) & stat.S_IWOTH:
                loose.append(path)
        except FileNotFoundError:
            continue
    if loose:
        return warning(
            f"{counted(len(loose), 'place')} that every user may write, such as {loose[0]}",
            "a user who can write there can queue work that runs with your rights",
            f"chmod o-w {' '.join(map(quoted, loose))}",
            details=tuple(loose[:EXAMPLES]),
        )
    if locks := [path for path in _locks(root) if os.stat(path).st_mode & stat.S_IROTH]:
        return warning(
            f"{counted(len(locks), 'lock')} that every user may open, such as {locks[0]}: made by an older farro",
            "a user who can read a lock can hold it, and every process of farro waits",
            f"chmod o= {' '.join(map(quoted, locks))}",
            details=tuple(locks[:EXAMPLES]),
        )
    mask = machine.umask()
    if mask is not None and not mask & 0o002:
        return warning(
            f"umask {mask:03o}: every user may write what is created here",
            "new jobs could be changed by any user of this machine",
            "umask 022",
        )
    return ok("writable by you, not by everybody")


def _locks(root: str) -> list[str]:
    """Return the lock files that farro waits for (leases.exclusively)."""
    found = [f"{root}/logs/.audit.lock"]
    with contextlib.suppress(FileNotFoundError):
        found += sorted(f"{root}/jobs/{name}/.lock" for name in fs.listdir(f"{root}/jobs"))
    return [path for path in found if os.path.isfile(path)]


def _space(root: str, least: int) -> Finding:
    free = mounts.disk_space(root).free_bytes
    found = f"{free >> 20} MiB free"
    remove = "farro prune --older-than 7d"
    if free < least:
        return failed(found, f"steps are ended below {least >> 20} MiB (security.min_free_bytes)", remove)
    if free < 4 * least:
        return warning(found, f"steps are ended below {least >> 20} MiB, which is near; finished jobs can go", remove)
    return ok(found)


def _inodes(root: str) -> Finding:
    space = mounts.disk_space(root)
    if space.files == 0:
        return ok("as many as there is room for")  # btrfs
    found = f"{space.free_files} files may be made yet"
    remove = "farro prune --older-than 7d"
    if space.free_files < _FEW_INODES:
        return failed(found, "a job needs about ten; finished jobs can go", remove)
    if space.free_files < _OWN_INODES:
        return warning(found, "a job needs about ten, so this is soon full; finished jobs can go", remove)
    return ok(found)


def _clock(root: str, folders: Sequence[str], now: datetime) -> Finding:
    """Check that the clock is not before the last write: a clock at 1970 delays jobs for ever and prunes none."""
    newest = max((_modified(f"{root}/{name}") for name in ("", *folders)), default=0.0)
    behind = newest - now.timestamp()
    if behind > 60:
        return failed(
            f"{now:%Y-%m-%d %H:%M:%SZ}, {int(behind)} s before a folder of this root was last changed",
            "the clock was set back, or was wrong then; delayed jobs and schedules wait for a time that has passed",
            "timedatectl set-ntp true",
        )
    return ok(f"{now:%Y-%m-%d %H:%M:%SZ}, not before the newest job")


def _modified(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


# --- probes ---


def probes(folder: str) -> list[Check]:
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


def _unsafe(home: str, what: str) -> Finding:
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
        return _unsafe(home, f"a rename that replaces nothing fails ({error.strerror})")
    else:
        return _unsafe(home, "a rename replaces an empty folder")
    fs.move(f"{home}/one", f"{home}/third")
    return ok("a rename never replaces a folder")


def _symlink(home: str) -> Finding:
    try:
        fs.symlink("first", f"{home}/lock")
        fs.symlink("second", f"{home}/lock")
    except FileExistsError:
        said = fs.readlink(f"{home}/lock")
        return ok("a link is made once, and whole") if said == "first" else _unsafe(home, "a link was overwritten")
    except OSError as error:
        return _unsafe(home, f"a link cannot be made ({error.strerror})")
    return _unsafe(home, "a link is made twice")


def _lease(home: str) -> Finding:
    path = f"{home}/.lease"
    try:
        lease = leases.create(path, b"")
        try:
            held = _other(path) == 3
        finally:
            lease.drop()
    except OSError as error:
        return _unsafe(home, f"a lease cannot be held ({error.strerror})")
    if not held:
        return _unsafe(home, "a lease that is held can be taken by another process")
    if _other(path, "die") != -9 or _other(path) != 0:
        return _unsafe(home, "a lease is not free after its holder was killed")
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
