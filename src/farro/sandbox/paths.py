"""Resolve the paths that a job may write, as they are on the disk now.

A link may have been put in the place of a path since the job was queued, and a step may do so while the plan runs. So
paths are resolved when the plan begins, and before every step each is opened and compared with what it was (`pin`).

A missing path is made, because a sandbox can only open existing ones: with a slash at its end as a folder, else as an
empty file, which is removed after the job if it is still empty.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from farro.host import fs
from farro.lazy_dataclass import dataclass
from farro.roles.paths import GIT, PROTECTED_FILES, PROTECTED_FOLDERS
from farro.sandbox import syscalls
from farro.sandbox.confinement import within

# farro's own entries at the top of a root: a process that can write them decides what runs next, and as which user.
OWN = frozenset({*PROTECTED_FOLDERS, *PROTECTED_FILES})
_OWN_LOWER = frozenset(name.lower() for name in OWN)
# Lock files that farro waits for: a process that can open one can hold it and block all others.
LOCKS = (
    "logs/.audit.lock",
    *(f"jobs/{folder}/.lock" for folder in (".ledger", ".names", ".journal", ".schedules", ".components")),
)
# A process that can read the first can run anything here, over HTTP and without a sandbox. Plans of swarms may contain
# passwords; and a process that can open the locks of the bus and of swarms can hold them.
WEB = "jobs/.web"
KEYS = (WEB, "bus", "swarms")


class PathRefused(Exception):
    """Report an allowed path that leads to a place that may not be allowed; the message says which and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WritablePaths:
    """The resolved paths that a job may write."""

    writable: tuple[str, ...]  # physical paths
    protected: tuple[str, ...]  # inside of them, but not writable
    made: tuple[str, ...] = ()  # files that were missing


def allowed(root: str, wanted: tuple[str, ...], *, absolute: bool = False) -> WritablePaths:
    """Resolve the paths that a job asked for; make missing ones. Raises PathRefused, or OSError of the disk.

    The root itself stands for each of its entries except farro's own: nothing new can be made directly in it.
    """
    root = os.path.realpath(root)
    writable: list[str] = []
    made: list[str] = []
    for path in wanted:
        place, is_new = _resolved(root, path, absolute)
        if is_new:
            made.append(place)
        if place == root:
            names = sorted(name for name in fs.listdir(root) if not is_own(name) and name != GIT)
            writable += [entry for name in names if _is_plain(entry := f"{root}/{name}")]
        else:
            _check(root, path, place)
            writable.append(place)
    writable = list(dict.fromkeys(writable))
    return WritablePaths(writable=tuple(writable), protected=tuple(_repositories(writable)), made=tuple(made))


def is_own(name: str) -> bool:
    """Return whether a name at the top of a root is farro's. Ignores case: on some disks AGENTS.MD is AGENTS.md."""
    return name.lower() in _OWN_LOWER or name.lower().startswith("agents-config.")


def pin(path: str) -> int:
    """Return a descriptor of exactly what `path` was when it was resolved; the caller closes it. PathRefused: a link
    was put on the way since."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)  # noqa: TID251 - opens nothing: it can only be named
    except OSError as error:
        raise PathRefused(f"allowed path {path}: {error.strerror}") from error
    try:
        now = os.readlink(f"/proc/self/fd/{fd}")
        if now != path:
            raise PathRefused(f"{path} leads to {now} now: somebody put a link on the way")
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            raise PathRefused(f"{path} is a link now")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _resolved(root: str, path: str, absolute: bool) -> tuple[str, bool]:
    """Return the physical path, and whether an empty file was made there."""
    if "\0" in path or not path.strip("/ "):
        raise PathRefused(f"allowed path {path!r} names nothing")
    if path.startswith("/"):
        if not absolute:
            raise PathRefused(f"allowed path {path} is absolute, and security.allow_absolute_paths is off")
        base, rest = "/", os.path.realpath(path).lstrip("/")
        rest += "/" if path.endswith("/") else ""
    else:
        base, rest = root, path
    try:
        return beneath(base, rest), False
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _leads_out(path, error) from error
    is_file = not rest.endswith("/")
    place = base.rstrip("/")
    parts = [part for part in rest.split("/") if part not in ("", ".")]
    for number, part in enumerate(parts):
        folder, place = place or "/", f"{place}/{part}"
        _check(root, path, place)
        _make(folder, part, is_file=is_file and number == len(parts) - 1)
        try:
            place = beneath(base, os.path.relpath(place, base))
        except OSError as error:
            raise _leads_out(path, error) from error
    return place, is_file


def _make(folder: str, name: str, *, is_file: bool) -> None:
    """Make the entry in exactly the folder that was checked: another job may replace the folder by a link meanwhile."""
    fd = pin(folder) if hasattr(os, "O_PATH") else None
    place = f"{folder}/{name}" if fd is None else f"/proc/self/fd/{fd}/{name}"
    try:
        with contextlib.suppress(FileExistsError):
            if is_file:
                os.close(fs.create_file(place))
            else:
                fs.mkdir(place)
    finally:
        if fd is not None:
            os.close(fd)


def beneath(base: str, path: str) -> str:
    """Return the physical path of `path` below `base`; OSError EXDEV or ELOOP if it leads elsewhere."""
    if not hasattr(os, "O_PATH"):  # not Linux
        return _beneath_by_name(base, path)
    folder = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # noqa: TID251 - opens nothing
    try:
        fd = syscalls.open_beneath(folder, path.rstrip("/") or ".", os.O_PATH)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        return _beneath_by_name(base, path)
    finally:
        os.close(folder)
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def open_file(base: str, path: str) -> int:
    """Open `path` below `base` for reading; OSError as in `beneath`. The caller closes it and checks what kind it is.

    It is resolved and opened in one call: between two calls, a running step could put a link into the path.
    """
    if not hasattr(os, "O_PATH"):  # not Linux
        return fs.open_read(_beneath_by_name(base, path))
    folder = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # noqa: TID251 - opens nothing
    try:
        return syscalls.open_beneath(folder, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        return fs.open_read(_beneath_by_name(base, path))
    finally:
        os.close(folder)


def _beneath_by_name(base: str, path: str) -> str:
    """Resolve a path by name, on systems that cannot resolve and open it in one call.

    `pin` later refuses a link that was put there since.
    """
    place = os.path.realpath(os.path.join(base, path))
    if not within(place, base):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    os.lstat(place)
    return place


def _leads_out(path: str, error: OSError) -> PathRefused:
    if error.errno in (errno.EXDEV, errno.ELOOP):
        return PathRefused(f"allowed path {path} leads out of the root through a link")
    return PathRefused(f"allowed path {path}: {error.strerror}")


def _check(root: str, path: str, place: str) -> None:
    """Refuse the root itself, farro's own entries, .git, devices and sockets, and files with several hard links."""
    if within(root, place):
        raise PathRefused(f"allowed path {path} holds the root of the queue itself")
    inside = place[len(root) + 1 :].split("/") if within(place, root) else []
    if inside and is_own(inside[0]):
        raise PathRefused(f"allowed path {path} is farro's own ({inside[0]})")
    if GIT in place.split("/"):
        raise PathRefused(f"allowed path {path} lies in {GIT}")
    if os.path.lexists(place):
        status = os.lstat(place)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            raise PathRefused(f"allowed path {path} is neither a file nor a folder")
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            raise PathRefused(f"allowed path {path} has {status.st_nlink} names: writing to it would change the others")


def _is_plain(path: str) -> bool:
    mode = os.lstat(path).st_mode
    return stat.S_ISDIR(mode) or stat.S_ISREG(mode)


def _repositories(writable: list[str]) -> list[str]:
    """Return the .git of each folder, and of each of its direct subfolders."""
    found = []
    for folder in writable:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name == GIT and not entry.is_symlink():
                    found.append(entry.path)
                elif entry.is_dir(follow_symlinks=False) and _is_there(f"{entry.path}/{GIT}"):
                    found.append(f"{entry.path}/{GIT}")
    return found


def _is_there(path: str) -> bool:
    return os.path.lexists(path) and not os.path.islink(path)
