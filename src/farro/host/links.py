"""Give a file a second name, or copy it where the filesystem has no hard links.

Only for files that are never written again: with a hard link both names show every later write.
"""

from __future__ import annotations

import errno
import os

from farro.host import fs

_PIECE = 1 << 20
_CANNOT = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)


def again(source: str, path: str) -> None:
    """Give the symbolic link `source` the second name `path`, or create an equal link where that is not possible.
    Complete when it appears; EEXIST when `path` is taken."""
    try:
        fs.link(source, path)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        target = fs.readlink(source)
        if target is None:
            raise
        fs.symlink(target, path)


def stand(source: str, path: str) -> bool:
    """Make `path` a hard link to `source`, replacing what was there; make a copy if `source` has the most links that
    the filesystem allows (ext4: 65,000). Return whether it is a copy, which is not synced. A crash may leave a
    temporary name."""
    try:
        fs.link(source, path)
        return False
    except FileExistsError:
        if fs.lstat(source).st_ino == fs.lstat(path).st_ino:
            return False
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    name = fs.temporary(path.rsplit("/", 1)[0])
    copied = place(source, name)
    fs.replace(name, path)
    return copied


def place(source: str, path: str) -> bool:
    """Link or copy `source` to `path`, which must not exist. Return whether it is a copy; a crash may leave it half
    written."""
    try:
        fs.link(source, path)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        fd, new = fs.open_read(source), fs.create_file(path)
        try:
            while piece := os.read(fd, _PIECE):
                fs.write(new, piece)
        finally:
            os.close(fd)
            os.close(new)
        return True
    return False
