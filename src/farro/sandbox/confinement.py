"""Describe what one process may access, in the same way for every level of the sandbox."""

from __future__ import annotations

from farro.host.process_limits import ProcessLimits
from farro.lazy_dataclass import dataclass, field

PROCESSES = 512  # at once, of one step: more than a build needs, less than a machine has


@dataclass(frozen=True, kw_only=True, slots=True)
class Confinement:
    """The access rights of a process. Paths are absolute and physical (without links), without a slash at the end."""

    writable: tuple[str, ...] = ()  # files and folders; a folder with all that is in it
    protected: tuple[str, ...] = ()  # read-only though inside writable folders
    readable: tuple[str, ...] = ()  # visible though in a folder that is emptied (/tmp, /run)
    hidden: tuple[str, ...] = ()  # not even readable
    network: bool = False
    tmp: str | None = None  # a private writable folder: TMPDIR, and /tmp where mounts can be made
    memory_bytes: int | None = None  # of each process; of all of them where there is a cgroup
    processes: int | None = PROCESSES  # at once
    file_bytes: int | None = None  # of each file
    env: dict[str, str] = field(default_factory=dict)  # added to the process's own

    @property
    def limits(self) -> ProcessLimits:
        return ProcessLimits(address_space=self.memory_bytes, file_size=self.file_bytes, processes=self.processes)


def within(path: str, folder: str) -> bool:
    """Return whether `path` is `folder` or inside it."""
    return path == folder or folder == "/" or path.startswith(f"{folder}/")
