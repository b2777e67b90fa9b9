"""Choose the folders of the benchmark: environments, scratch folders, the tally.

Queues are on the filesystem of the repository, because that is what is measured. Nothing is removed during a
measurement: ext4 creates files 10-40 times slower during mass deletes. Rounds use new folders, which are removed slowly
at the end.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPTS = os.path.join(ROOT, "scripts")
BUILD = os.path.join(ROOT, ".build", "bench")
WORK = os.path.join(BUILD, "work")
PYTHON = sys.executable
FARRO = os.path.join(os.path.dirname(PYTHON), "farro")

_PIECE = 200  # removed between two pauses
_PAUSE_S = 0.01


def environment_python(package: str) -> str:
    return os.path.join(BUILD, package, "venv", "bin", "python")


def memory_folder() -> str:
    """A folder in memory for tally and logs: on the measured filesystem a sync would flush them with the queue's."""
    parent = "/dev/shm"
    usable = os.path.isdir(parent) and os.access(parent, os.W_OK)
    return tempfile.mkdtemp(prefix="farro-bench-", dir=parent if usable else None)


class Scratch:
    """Fresh folders for one run."""

    def __init__(self) -> None:
        self.folder = os.path.join(WORK, time.strftime("%Y%m%d-%H%M%S") + f"-{os.getpid()}")
        self.memory = memory_folder()
        self._count = 0
        os.makedirs(self.folder)

    def fresh(self) -> tuple[str, str]:
        """Return a home on the measured filesystem, and a folder in memory."""
        self._count += 1
        home = os.path.join(self.folder, f"{self._count:04d}")
        memory = os.path.join(self.memory, f"{self._count:04d}")
        os.mkdir(home)
        os.mkdir(memory)
        return home, memory


def remove_gently(path: str) -> int:
    """Remove a tree in small pieces with pauses; return how many names were removed."""
    removed = 0

    def one_more() -> None:
        nonlocal removed
        removed += 1
        if removed % _PIECE == 0:
            time.sleep(_PAUSE_S)

    for folder, folders, files in os.walk(path, topdown=False):
        for name in files:
            os.unlink(os.path.join(folder, name))
            one_more()
        for name in folders:
            inner = os.path.join(folder, name)
            if os.path.islink(inner):
                os.unlink(inner)
            else:
                os.rmdir(inner)
            one_more()
    os.rmdir(path)
    return removed
