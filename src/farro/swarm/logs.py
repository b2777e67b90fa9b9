"""The logs of a swarm's components: which there are, how each ends, and what is written while somebody looks on.

Who writes them, and when one is set aside, lives in runtimes.process.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence

from farro.errors import InputError
from farro.host import fs
from farro.lazy_dataclass import dataclass
from farro.swarm.files import Place

_LAST, _LINES = 4096, 8
_SUFFIX = ".log"
_BLOCK = 1 << 20  # bytes that one look takes of a log
_TAIL = 16 << 20  # … and that are searched for its last lines
_LONGEST = 1 << 16  # bytes of one line


def last_words(path: str, lines: int = _LINES) -> str:
    """The end of a log; nothing where there is none."""
    try:
        fd = fs.open_read(path)
    except OSError:
        return ""
    try:
        data = fs.read_at(fd, _LAST, max(0, os.fstat(fd).st_size - _LAST))
    finally:
        os.close(fd)
    return "\n".join(data.decode("utf-8", "replace").strip().splitlines()[-lines:])


def last_line(path: str) -> tuple[str, str | None]:
    """The end of a log: what it says, and its level where it is a line as farro's own services write them."""
    line = last_words(path, lines=1)
    with contextlib.suppress(ValueError):
        told = json.loads(line)
        if isinstance(told, dict) and isinstance(told.get("message"), str):
            return told["message"], str(told.get("level"))
    return line, None


def logs(place: Place, swarm: str, instance: str | None = None) -> dict[str, str]:
    """The log of each component, in the order of the plan, then of others: its controller, and those of plans before.
    InputError: that one has none."""
    folder = f"{place.of(swarm)}/logs"
    try:
        there = {name.removesuffix(_SUFFIX) for name in fs.listdir(folder) if name.endswith(_SUFFIX)}
    except FileNotFoundError:
        there = set()
    plan = place.plan(swarm)
    members = [] if plan is None else [member.instance for member in plan.members()]
    ordered = [name for name in members if name in there] + sorted(there.difference(members))
    if instance is None:
        return {name: f"{folder}/{name}{_SUFFIX}" for name in ordered}
    if instance not in there:
        known = f"there is {', '.join(ordered)}" if ordered else "none of its components was ever started"
        raise InputError(f"{instance[:100]} has no log in swarm {swarm}; {known}")
    return {instance: f"{folder}/{instance}{_SUFFIX}"}


@dataclass
class Reading:
    """One log, read on where it was. Begun anew where it is another file, or shorter than it was: it was set aside."""

    path: str
    offset: int = 0
    _file: int | None = None
    _rest: bytes = b""  # of a line that is not written to its end

    @classmethod
    def at_end(cls, path: str, lines: int) -> Reading:
        """So that its last lines come first."""
        from farro.queue.logs import tail_offset  # here: `farro up` needs none of what that needs

        with contextlib.suppress(FileNotFoundError):
            return cls(path, tail_offset(path, lines, _TAIL)[0])
        return cls(path)

    def run_once(self) -> Sequence[str]:
        """The lines that came since the last look; more may be there when some are."""
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
        """What stands behind the last end of a line."""
        return self._rest.decode("utf-8", "replace")
