"""Inspect the filesystem of a path: kind, source, options, free space, and whether ext4 has a journal. Reads only."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection

from farro.lazy_dataclass import dataclass

_MOUNTS = "/proc/self/mountinfo"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    point: str
    kind: str  # as the kernel calls it: ext4, nfs4, fuse.sshfs; "" when unknown
    source: str = ""
    options: frozenset[str] = frozenset()  # of the mount and of the filesystem
    device: str = ""  # major:minor


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskSpace:
    """The free space on the filesystem of a path, for this user."""

    free_bytes: int
    files: int  # inodes; 0: the filesystem does not count them
    free_files: int
    read_only: bool


def disk_space(path: str) -> DiskSpace:
    """Return what is free on the filesystem of `path`. Raises OSError when the path is absent."""
    if not hasattr(os, "statvfs"):  # Windows
        import shutil  # noqa: TID251 - `disk_usage` reads, it changes nothing

        return DiskSpace(free_bytes=shutil.disk_usage(path).free, files=0, free_files=0, read_only=False)
    status = os.statvfs(path)
    return DiskSpace(
        free_bytes=status.f_bavail * status.f_frsize,
        files=status.f_files,
        free_files=status.f_favail,
        read_only=bool(status.f_flag & os.ST_RDONLY),
    )


def mount_of(path: str) -> Mount:
    """Return the mount of a path: the longest mount point above it; of several mounts at one point the last, which
    covers the others. Without /proc nothing is known of it."""
    real = os.path.realpath(path)
    found: Mount | None = None
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                mount = parse(line)
                if (
                    mount is not None
                    and _holds(mount.point, real)
                    and (not found or len(mount.point) >= len(found.point))
                ):
                    found = mount
    except OSError:
        found = None
    return found or Mount(point=real, kind="")


def points_below(path: str) -> list[str]:
    """Return the mount points inside a folder."""
    real = os.path.realpath(path)
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            found = [_plain(line.split(" ", 5)[4]) for line in file]
    except (OSError, IndexError):
        return []
    return [point for point in found if point.startswith(f"{real.rstrip('/')}/")]


def in_lower_layer(mount: Mount, root: str, folders: Collection[str]) -> list[str]:
    """Return the entries of the innermost `folders` of the root that only a lower layer of an overlay has: the kernel
    cannot rename such a folder. [] also where the upper layer is not visible, as from inside a container."""
    upper = next((option.removeprefix("upperdir=") for option in mount.options if option.startswith("upperdir=")), "")
    real = os.path.realpath(root)
    home = os.path.normpath(f"{_plain(upper)}/{os.path.relpath(real, mount.point)}")
    if not upper or not os.path.isdir(_plain(upper)):
        return []
    found = []
    above = {os.path.dirname(name) for name in folders}
    for name in (name for name in folders if name not in above):
        with contextlib.suppress(FileNotFoundError), os.scandir(f"{real}/{name}") as entries:
            inside = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            found += [f"{name}/{each}" for each in inside if not os.path.lexists(f"{home}/{name}/{each}")]
    return found


def _holds(point: str, path: str) -> bool:
    return point == "/" or path == point or path.startswith(point + "/")


def parse(line: str) -> Mount | None:
    """Parse a line of mountinfo: `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`."""
    words = line.rstrip("\n").split(" ")
    try:
        dash = words.index("-", 6)
        kind, source, options = words[dash + 1 : dash + 4]
    except ValueError:
        return None
    return Mount(
        point=_plain(words[4]),
        kind=_plain(kind),
        source=_plain(source),
        options=frozenset([*words[5].split(","), *options.split(",")]),
        device=words[2],
    )


def _plain(text: str) -> str:
    """Decode the octal escapes of mountinfo, such as \\040 for a blank."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text) if "\\" in text else text


def has_journal(mount: Mount) -> bool | None:
    """Return whether an ext3 or ext4 filesystem has a journal; None when the kernel does not say."""
    block = f"/sys/dev/block/{mount.device}"
    if not os.path.exists(block):
        return None
    name = os.path.basename(os.path.realpath(block))
    with contextlib.suppress(OSError), open(f"/sys/fs/ext4/{name}/journal_task", encoding="ascii") as file:
        return file.read().strip() not in ("", "<none>")
    with contextlib.suppress(OSError):
        return any(entry.rsplit("-", 1)[0] == name for entry in os.listdir("/proc/fs/jbd2"))
    return None
