"""The logs of components: how each of them ends. Which component has which log lives in swarm_place and the runtime."""

from __future__ import annotations

import os

from farro.system import fs

_LAST, _LINES = 4096, 8


def last_words(path: str, lines: int = _LINES) -> str:
    """The end of a log; nothing where there is none."""
    try:
        fd = fs.open_read(path)
    except OSError:
        return ""
    try:
        data = os.pread(fd, _LAST, max(0, os.fstat(fd).st_size - _LAST))
    finally:
        os.close(fd)
    return "\n".join(data.decode("utf-8", "replace").strip().splitlines()[-lines:])
