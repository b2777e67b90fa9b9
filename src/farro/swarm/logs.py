"""Read the logs of a swarm's components: list them, and follow them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from farro.errors import InputError
from farro.host import fs
from farro.lazy_dataclass import dataclass
from farro.swarm.files import SwarmFiles

_SUFFIX = ".log"
_BLOCK = 1 << 20  # bytes that one read takes of a log
_TAIL = 16 << 20  # bytes that are searched for its last lines
_LONGEST = 1 << 16  # bytes of one line


def logs(files: SwarmFiles, swarm: str, instance: str | None = None) -> dict[str, str]:
    """Return the log of each component in the order of the plan, then the others: the controller's and those of earlier
    plans. Raises InputError if `instance` has none."""
    folder = f"{files.swarm_folder(swarm)}/logs"
    try:
        found_ = {name.removesuffix(_SUFFIX) for name in fs.listdir(folder) if name.endswith(_SUFFIX)}
    except FileNotFoundError:
        found_ = set()
    plan = files.plan(swarm)
    members = [] if plan is None else [member.instance for member in plan.members()]
    ordered = [name for name in members if name in found_] + sorted(found_.difference(members))
    if instance is None:
        return {name: f"{folder}/{name}{_SUFFIX}" for name in ordered}
    if instance not in found_:
        known = f"known: {', '.join(ordered)}" if ordered else "none of its components was ever started"
        raise InputError(f"{instance[:100]} has no log in swarm {swarm}; {known}")
    return {instance: f"{folder}/{instance}{_SUFFIX}"}


@dataclass
class LogReader:
    """Follow one log. Reading starts over when the file was rotated: it is another file, or shorter than before."""

    path: str
    offset: int = 0
    _file: int | None = None
    _rest: bytes = b""  # an incomplete last line

    @classmethod
    def at_end(cls, path: str, lines: int) -> LogReader:
        """Start so that the last lines come first."""
        from farro.queue.logs import tail_offset  # here: `farro up` does not need what it imports

        with contextlib.suppress(FileNotFoundError):
            return cls(path, tail_offset(path, lines, _TAIL)[0])
        return cls(path)

    def run_once(self) -> Sequence[str]:
        """Return the lines since the last call; after a non-empty answer there may be more."""
        try:
            fd = fs.open_read(self.path)
        except OSError:
            return ()
        try:
            status = os.fstat(fd)
            if (self._file is not None and status.st_ino != self._file) or status.st_size < self.offset:
                self.offset, self._rest = 0, b""
            self._file = status.st_ino
            data = fs.read_at(fd, _BLOCK, self.offset)
        finally:
            os.close(fd)
        self.offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST:
            lines, self._rest = [*lines, self._rest], b""
        return [line.decode("utf-8", "replace") for line in lines]

    def rest(self) -> str:
        """Return the incomplete last line."""
        return self._rest.decode("utf-8", "replace")
