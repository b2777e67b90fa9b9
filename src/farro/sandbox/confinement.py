"""What one process may touch: a value, the same for every level of the sandbox.

How it is kept lives in sandbox; which paths a job asked for and whether they are good, in paths.
"""

from __future__ import annotations

from collections.abc import Mapping

from farro.host.process_limits import ProcessLimits
from farro.lazy_dataclass import dataclass, field

PROCESSES = 512  # at once, of one step: more than any build of a program needs here, less than a machine has


@dataclass(frozen=True, kw_only=True, slots=True)
class Confinement:
    """Paths are absolute and physical (no link in them), without a slash at the end."""

    writable: tuple[str, ...] = ()  # files and folders; a folder with all that is in it
    protected: tuple[str, ...] = ()  # inside writable folders, and yet not to be written
    readable: tuple[str, ...] = ()  # to be seen though they lie in a folder that is emptied (/tmp, /run)
    hidden: tuple[str, ...] = ()  # not even to be read
    network: bool = False
    tmp: str | None = None  # a private writable folder: TMPDIR, and /tmp where mounts can be made
    memory_bytes: int | None = None  # of each process; of all of them where there is a cgroup
    processes: int | None = PROCESSES  # at once
    file_bytes: int | None = None  # of each file
    env: dict[str, str] = field(default_factory=dict)  # added to the process's own

    @property
    def limits(self) -> ProcessLimits:
        return ProcessLimits(address_space=self.memory_bytes, file_size=self.file_bytes, processes=self.processes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One process that is to be started, as processes.start wants it."""

    argv: tuple[str, ...]
    file: str  # what is executed
    stdin: int | None  # never of a file: see sandbox.start
    stdout: str
    stderr: str
    cwd: str  # physical
    env: Mapping[str, str]
    confinement: Confinement


def within(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or lies in it."""
    return path == folder or folder == "/" or path.startswith(f"{folder}/")
