"""Counting the folders in a folder without reading it. Nothing here writes.

What the number means (the load of a queue) lives in the stores.
"""

from __future__ import annotations

import os

from farro.host import fs

_counted: dict[int, bool] = {}  # device → whether the links of a folder tell how many folders are in it


def count_subdirectories(path: str) -> int:
    """How many directories are in `path`, hidden ones among them, without reading it where its filesystem keeps count:
    ext4 and xfs link every folder's `..` to its parent. One link: not counted (btrfs; ext4 beyond 65,000). Whether a
    filesystem counts at all is tried once, on the folder above, which has at least this one in it.
    """
    try:
        found = fs.lstat(path)
    except FileNotFoundError:
        return 0
    if found.st_nlink >= 2:
        if found.st_dev not in _counted:
            above = os.path.dirname(path)
            beyond = fs.lstat(above)
            if beyond.st_dev != found.st_dev or beyond.st_nlink < 2:
                return _read_directories(path)  # a mount point, or a folder above that is too full to tell
            _counted[found.st_dev] = beyond.st_nlink - 2 == _read_directories(above)
        if _counted[found.st_dev]:
            return found.st_nlink - 2
    return _read_directories(path)


def _read_directories(path: str) -> int:
    try:
        with os.scandir(path) as entries:
            return sum(1 for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return 0
