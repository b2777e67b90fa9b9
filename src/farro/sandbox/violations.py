"""Detect violations after a confined process and everything it started has ended.

A write that the kernel refused is a violation only if the process failed because of it: Python tries to write
__pycache__ next to every module, and git its index, and both continue without. Where the kernel does not protect
everything (levels B and none), the tree under the root is compared with a snapshot from before.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence

from farro.host import fs
from farro.lazy_dataclass import dataclass
from farro.sandbox.confinement import within

ENTRIES = 50_000  # of a tree that are compared; the rest is not
OWN_ENTRIES = 5_000  # of farro's own folders
_OWN = ("agents", "jobs", "logs")  # farro changes them all the time, but never a mode or an owner
# Left out: TMPDIR of a step, and the private homes of agents' programs, where several may run at a time.
_OF_STEPS = ("attempts", ".homes")
_TAIL = 64 * 1024
_REFUSED = re.compile(
    rb"read-only file system|permission denied|operation not permitted|\bEROFS\b|\bEACCES\b|\bEPERM\b|"
    rb"cross-device link|\bEXDEV\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class FileState:
    """The status of a file, without opening it."""

    kind: int
    inode: int
    mode: int
    owner: tuple[int, int]
    links: int
    size: int
    mtime_ns: int
    ctime_ns: int
    attributes: tuple[str, ...]
    own: bool = False  # in farro's own folders: only mode and owner are compared


Snapshot = Mapping[str, FileState]


def snapshot(root: str, beside: Collection[str], limit: int = ENTRIES) -> Snapshot:
    """Return the state of every file under the root, except in the folders `beside` (the allowed ones)."""
    found = dict(_walk(root, root, frozenset(beside), [limit]))
    left = [OWN_ENTRIES]
    for name in _OWN:
        found.update(_walk_own(root, f"{root}/{name}", left))
    return found


def changed(before: Snapshot, after: Snapshot, *, only_attributes: bool) -> list[str]:
    """Return the names that have changed.

    `only_attributes` (level B): the kernel protects contents, names and links, so a difference there is the work of
    another process; only changed attributes of an otherwise unchanged file count.
    """
    names = before.keys() & after.keys() if only_attributes else before.keys() | after.keys()
    return sorted(name for name in names if _differs(before.get(name), after.get(name), only_attributes))


def _differs(old: FileState | None, new: FileState | None, only_attributes: bool) -> bool:
    if old == new:
        return False
    if any(one is not None and one.own for one in (old, new)):
        return old is not None and new is not None and old.inode == new.inode
    if old is None or new is None or not only_attributes:
        return True
    if old.inode != new.inode or old.kind != new.kind:
        return False  # another file took its place: a rename, which the kernel prevents
    if (old.mode, old.owner, old.attributes) != (new.mode, new.owner, new.attributes):
        return True
    # A write, or a new name in a folder, sets both times to the same moment; utime sets one to any value.
    return old.links == new.links and new.mtime_ns != new.ctime_ns and old.mtime_ns != new.mtime_ns


def refused(stderr: str) -> str | None:
    """Return the line in which a failed process reports that a write was refused; None if there is none."""
    try:
        fd = fs.open_read(stderr)
    except OSError:
        return None
    try:
        said = fs.read_at(fd, _TAIL, max(os.fstat(fd).st_size - _TAIL, 0))
    finally:
        os.close(fd)
    return refused_in(said)


def refused_in(said: bytes) -> str | None:
    """Find that line in the end of its output."""
    for line in reversed(said.splitlines()):
        if _REFUSED.search(line) and not line.startswith(b"bwrap: "):  # an error of the sandbox itself
            return " ".join("".join(c if c.isprintable() else " " for c in line.decode("utf-8", "replace")).split())[
                :300
            ]
    return None


def listed(paths: Sequence[str]) -> str:
    """List at most five paths for people."""
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return ", ".join(paths[:5]) + more


def _walk(root: str, folder: str, beside: frozenset[str], left: list[int]) -> Iterator[tuple[str, FileState]]:
    try:
        with os.scandir(folder) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if left[0] <= 0:
            return
        if entry.path in beside or (folder == root and entry.name in _OWN):
            continue
        left[0] -= 1
        try:
            seen = _seen(entry.path, entry.stat(follow_symlinks=False))
        except OSError:
            continue
        holds_allowed = seen.kind == stat.S_IFDIR and any(within(path, entry.path) for path in beside)
        if not holds_allowed:  # its times change with the files made in the allowed folder
            yield entry.path[len(root) + 1 :], seen
        if seen.kind == stat.S_IFDIR and not entry.path.endswith("/.git/objects"):
            yield from _walk(root, entry.path, beside, left)


def _walk_own(root: str, path: str, left: list[int]) -> Iterator[tuple[str, FileState]]:
    """Yield farro's own folders level by level, at most `left[0]` entries."""
    level = [path]
    while level and left[0] > 0:
        below: list[str] = []
        for one in level:
            left[0] -= 1
            try:
                status = os.lstat(one)
                yield one[len(root) + 1 :], _seen(one, status, own=True)
                if stat.S_ISDIR(status.st_mode):
                    names = (name for name in os.listdir(one)[: max(left[0], 0)] if name not in _OF_STEPS)
                    below += [f"{one}/{name}" for name in names]
            except OSError:
                continue
            if left[0] <= 0:
                return
        level = below


def _seen(path: str, status: os.stat_result, *, own: bool = False) -> FileState:
    attributes: tuple[str, ...] = ()
    if hasattr(os, "listxattr") and not own:
        try:
            attributes = tuple(sorted(os.listxattr(path, follow_symlinks=False)))
        except OSError:
            attributes = ()
    return FileState(
        kind=stat.S_IFMT(status.st_mode),
        inode=status.st_ino,
        mode=stat.S_IMODE(status.st_mode),
        owner=(status.st_uid, status.st_gid),
        links=0 if own else status.st_nlink,
        size=0 if own else status.st_size,
        mtime_ns=0 if own else status.st_mtime_ns,
        ctime_ns=0 if own else status.st_ctime_ns,
        attributes=attributes,
        own=own,
    )
