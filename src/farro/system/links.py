"""The same file under a second name, or a copy of it where the filesystem has no such thing.

What may be linked is the caller's to know: both names show every later write.
"""

from __future__ import annotations

import errno
import os

from farro.system import fs

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


def stand(source: str, path: str) -> None:
    """`path` is the same file as `source`, whatever stood there before. A crash may leave a temporary name."""
    try:
        fs.link(source, path)
    except FileExistsError:
        if fs.lstat(source).st_ino != fs.lstat(path).st_ino:
            name = fs.temporary(path.rsplit("/", 1)[0])
            fs.link(source, name)
            fs.replace(name, path)


def place(source: str, path: str) -> None:
    """`path`, which must not exist, has what `source` has. A crash may leave a copy half made."""
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
