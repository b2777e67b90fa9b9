"""What is kept of an attempt's files where no folder of it stays: small ones by content, large ones in the shared
directory, or cut and noted.

The folders themselves live in workspace; docs/decisions/attempt-files-travel-with-the-commit.md has the reasons.

What the result names is kept, with the records of its steps (`steps.jsonl`, by which a later attempt goes on) and the
config and policies that it worked under (`.snapshot`), and what agents answered. Anything else that a step left beside
them is not.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Mapping
from typing import Any

from farro.documents.encoding import encoder
from farro.host import fs, links
from farro.jobs.outcomes import Report
from farro.store.workspace import PostedFiles

SNAPSHOT = ".snapshot"
RECORDS, CALLS, RUNNER_LOG = "steps.jsonl", "calls", "runner.log"
TASKS = ("task.json", "task.md")  # in the job's own snapshot: for all of its attempts
TOTAL = 8 << 20  # bytes of all files of an attempt that are kept by content …
LEAST = 1024  # … beside which each has this much of its beginning
RECORDS_LIMIT = 4 << 20  # more steps than this tells are run again by a later attempt
_SNAPSHOT_LIMIT = 1 << 20  # bytes of one file
# Not there, or something else stands there: a step can write in its own attempt.
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EACCES, errno.EPERM})
_SYNCED = b'{"synced": true}\n'
_STREAM = re.compile(r"steps/[A-Za-z0-9_-][A-Za-z0-9_.-]*/(stdout|stderr)")
_encode = encoder()


class Shelf:
    """The part of the shared directory that is this queue's: `<shared>/<name>`. Every machine may mount it elsewhere,
    so what lies in it is called by its path below that."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def path(self, place: str) -> str:
        return f"{self._folder}/{place}"

    def put(self, source: str, place: str) -> None:
        """A copy of `source`, or the same file where that can be; on the disk before it has its name."""
        path = self.path(place)
        home = os.path.dirname(path)
        made = _folders(home)
        name = fs.temporary(home)
        try:
            links.place(source, name)
            fs.sync_all([name])
            fs.replace(name, path)
            fs.sync_all([home, *made])
        finally:  # where both are the same file already, a rename leaves both names
            with contextlib.suppress(OSError):
                fs.unlink(name)


def result_files(report: Report, result: Mapping[str, Any], *, good: bool) -> dict[str, bytes]:
    """What an attempt that never asked for its folder leaves: nothing but these."""
    return {
        "result.json": _encode(result).encode("utf-8", "replace") + b"\n",
        "result.md" if good else "error.md": report.markdown.encode("utf-8", "replace"),
    }


def _folders(path: str) -> list[str]:
    """Make a folder with those above it; answers the folders whose names are new there."""
    missing = []
    while not fs.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another attempt's was quicker
            fs.mkdir(folder)
    return [os.path.dirname(folder) for folder in missing]


class Posting:
    """One attempt's files on their way. Memory is bounded by TOTAL, LEAST for each named file, and the result itself,
    which execution bounds."""

    def __init__(self, folder: str, *, inline_bytes: int, shelf: Shelf | None) -> None:
        self._folder = folder
        self._inline_bytes = inline_bytes
        self._shelf = shelf
        self._left = max(TOTAL, inline_bytes)
        self._files: dict[str, bytes] = {}
        self._elsewhere: dict[str, str] = {}
        self._cut: dict[str, int] = {}

    def posted(self, report: Report, *, good: bool) -> PostedFiles:
        for name in report.files:
            self._take(name)
        self._take_records()
        self._take_snapshot()
        self._files.update(result_files(report, _noted(report.result, self._elsewhere, self._cut), good=good))
        return PostedFiles(files=self._files, elsewhere=self._elsewhere, cut=self._cut)

    def _take(self, name: str) -> None:
        limit = min(self._inline_bytes, max(self._left, LEAST))
        try:
            data, status = fs.read_with_status(f"{self._folder}/{name}", limit)
        except OSError as error:
            if error.errno in _ABSENT:
                return
            raise
        whole = len(data) <= limit
        if not whole and self._shelf is not None:
            job, attempt = self._folder.rsplit("/", 3)[1::2]
            place = f"{job}/{attempt}/{name}"
            with contextlib.suppress(OSError):  # full, or not mounted: cut, but the work is not lost for it
                self._shelf.put(f"{self._folder}/{name}", place)
                self._elsewhere[name] = place
                return
        self._files[name] = data if whole else data[:limit]
        self._left -= len(self._files[name])
        if not whole:
            self._cut[name] = status.st_size

    def _take_records(self) -> None:
        """Whoever reads them there has them whole: for them they are on the disk. And what a runner of its own said."""
        there: list[str] = []
        with contextlib.suppress(FileNotFoundError):  # of an agent that left: whoever commits for it is told so
            there = fs.listdir(self._folder)
        if RUNNER_LOG in there:
            self._take(RUNNER_LOG)
        if RECORDS in there:
            with contextlib.suppress(OSError):  # something else of that name: the steps are run again then
                data = fs.read_bytes(f"{self._folder}/{RECORDS}", RECORDS_LIMIT)
                if len(data) <= RECORDS_LIMIT:
                    self._files[RECORDS] = data + _SYNCED
                    self._take_recorded(data)

    def _take_recorded(self, data: bytes) -> None:
        """What the records name and no result does: of an attempt that was handed back before it had one. They lie
        where steps can write, so they may name nothing but streams of steps."""
        for line in data.splitlines():
            with contextlib.suppress(ValueError, AttributeError, RecursionError):
                told = json.loads(line)
                for name in (told.get("stdout_path"), told.get("stderr_path")):
                    known = name in self._files or name in self._elsewhere
                    if isinstance(name, str) and _STREAM.fullmatch(name) and not known:
                        self._take(name)

    def _take_snapshot(self) -> None:
        """The task that the job follows, and what this attempt worked under. A job without agents has neither: one
        look at its own folder says so."""
        above, home = f"{self._folder.rsplit('/', 2)[0]}/{SNAPSHOT}", f"{self._folder}/{SNAPSHOT}"
        try:
            tasks = [name for name in fs.listdir(above) if name in TASKS]
        except FileNotFoundError:
            return
        own: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            own = [name for name in fs.listdir(home) if name not in TASKS]
            self._take_calls()
        for folder, names in ((above, tasks), (home, own)):
            for name in names:
                with contextlib.suppress(OSError):
                    if stat.S_ISREG(fs.lstat(f"{folder}/{name}").st_mode):
                        data = fs.read_bytes(f"{folder}/{name}", _SNAPSHOT_LIMIT)
                        if len(data) <= _SNAPSHOT_LIMIT:
                            self._files[f"{SNAPSHOT}/{name}"] = data

    def _take_calls(self) -> None:
        """What agents answered (`steps/<id>/calls/<n>.json`): for replay, and so that a later attempt asks for nothing
        twice. Half of one tells nothing."""
        for step in fs.subdirectories(f"{self._folder}/steps"):
            with contextlib.suppress(FileNotFoundError):
                for name in sorted(fs.listdir(f"{self._folder}/steps/{step}/{CALLS}")):
                    if name.endswith(".json"):
                        path = f"steps/{step}/{CALLS}/{name}"
                        self._take(path)
                        if self._cut.pop(path, None) is not None:
                            del self._files[path]


def _noted(result: Mapping[str, Any], elsewhere: Mapping[str, str], cut: Mapping[str, int]) -> Mapping[str, Any]:
    """The result, which says of each stream what is not there with it: `truncated` has its whole size, `elsewhere` its
    path in the shared directory. Of files that are no step's stream, at the top."""
    if not elsewhere and not cut:
        return result
    left_cut, left_elsewhere = dict(cut), dict(elsewhere)
    steps = []
    for step in result.get("step_results") or ():
        told = dict(step)
        for stream in ("stdout", "stderr"):
            path = step.get(f"{stream}_path")
            if path in cut:
                told["truncated"] = {**told.get("truncated", {}), stream: left_cut.pop(path, cut[path])}
                told[f"{stream}_truncated"] = True
            if path in elsewhere:
                told["elsewhere"] = {**told.get("elsewhere", {}), stream: left_elsewhere.pop(path, elsewhere[path])}
        steps.append(told)
    return {
        **result,
        **({"step_results": steps} if steps else {}),
        **({"truncated": left_cut} if left_cut else {}),
        **({"elsewhere": left_elsewhere} if left_elsewhere else {}),
    }
