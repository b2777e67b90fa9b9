"""The same file under a second name, or a copy of it where the filesystem has no such thing.

What may be linked is the caller's to know: both names show every later write.
"""

from __future__ import annotations

import errno
import os

from farro.host import fs

_PIECE = 1 << 20
_CANNOT = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)


def again(source: str, path: str) -> None:
    """The symbolic link `source` once more, complete when it appears; EEXIST when `path` is taken. The same one under a
    second name, or where there is no such thing a new one that says the same."""
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
    """`path` is the same file as `source`, whatever stood there before; or a copy of it, where it can have no more
    names (ext4: 65,000). Whether it is a copy, which is not synced. A crash may leave a temporary name."""
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
    """`path`, which must not exist, has what `source` has. Whether it is a copy; a crash may leave one half made."""
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
