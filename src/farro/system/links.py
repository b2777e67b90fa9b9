"""The same file under a second name, or a copy of it where the filesystem has no such thing.

What may be linked is the caller's to know: both names show every later write.
"""

from __future__ import annotations

import errno
import os

from farro.system import fs

_PIECE = 1 << 20
_CANNOT = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)


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
