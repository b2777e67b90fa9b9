"""Choose which files of an attempt are kept: small ones by content, large ones in the shared directory, or cut.

docs/decisions/attempt-files-travel-with-the-commit.md has the reasons.

Kept are the files that the result names, the step records (`steps.jsonl`, from which a later attempt resumes), the
config and policies of the attempt (`.snapshot`), and the answers of agents. Other files that a step left are dropped.
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

from farro.documents.json_text import encoder
from farro.host import fs, links
from farro.jobs.outcomes import Report
from farro.store.workspace import PostedFiles

SNAPSHOT = ".snapshot"
RECORDS, CALLS, RUNNER_LOG = "steps.jsonl", "calls", "runner.log"
ANSWER, EXCHANGES = ".json", ".exchanges.gz"  # of agents' calls
TASKS = ("task.json", "task.md")  # in the job's own snapshot, shared by all of its attempts
TOTAL = 8 << 20  # bytes of all files of an attempt that are kept by content …
LEAST = 1024  # … but each file keeps at least this much of its beginning
RECORDS_LIMIT = 4 << 20  # beyond this size a later attempt repeats the steps
_SNAPSHOT_LIMIT = 1 << 20  # bytes of one file
# The file is missing, or a step put something else in its place: steps can write into their attempt.
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EACCES, errno.EPERM})
_SYNCED = b'{"synced": true}\n'
_STREAM = re.compile(r"steps/[A-Za-z0-9_-][A-Za-z0-9_.-]*/(stdout|stderr)")
_encode = encoder()


class SharedFiles:
    """The directory `<shared>/<name>` of this queue. Each machine may mount `<shared>` elsewhere, so files in it are
    named by their path below it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def path(self, place: str) -> str:
        return f"{self._folder}/{place}"

    def put(self, source: str, place: str) -> None:
        """Copy or hard-link `source` to `place`. The content is synced before the file gets its name."""
        path = self.path(place)
        home = os.path.dirname(path)
        made = _folders(home)
        name = fs.temporary(home)
        try:
            links.place(source, name)
            fs.sync_all([name])
            fs.replace(name, path)
            fs.sync_all([home, *made])
        finally:  # if both names are hard links to one file, rename leaves both
            with contextlib.suppress(OSError):
                fs.unlink(name)


def result_files(report: Report, result: Mapping[str, Any], *, good: bool) -> dict[str, bytes]:
    """Return all that remains of an attempt that never used its folder."""
    return {
        "result.json": _encode(result).encode("utf-8", "replace") + b"\n",
        "result.md" if good else "error.md": report.markdown.encode("utf-8", "replace"),
    }


def _folders(path: str) -> list[str]:
    """Create a folder and its missing parents; return the folders that got a new entry."""
    missing = []
    while not fs.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another attempt was quicker
            fs.mkdir(folder)
    return [os.path.dirname(folder) for folder in missing]


class AttemptFiles:
    """Collect the files of one attempt. Memory is bounded by TOTAL, LEAST for each named file, and the result itself,
    whose size execution bounds."""

    def __init__(self, folder: str, *, inline_bytes: int, shared_files: SharedFiles | None) -> None:
        self._folder = folder
        self._inline_bytes = inline_bytes
        self._shared_files = shared_files
        self._left = max(TOTAL, inline_bytes)
        self._files: dict[str, bytes] = {}
        self._elsewhere: dict[str, str] = {}
        self._cut: dict[str, int] = {}

    def collect(self, report: Report, *, good: bool) -> PostedFiles:
        for name in report.files:
            self._take(name)
        self._take_records()
        self._take_snapshot()
        self._files.update(result_files(report, _with_cuts(report.result, self._elsewhere, self._cut), good=good))
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
        if not whole and self._shared_files is not None:
            job, attempt = self._folder.rsplit("/", 3)[1::2]
            place = f"{job}/{attempt}/{name}"
            with contextlib.suppress(OSError):  # full or not mounted: cut the file rather than lose the work
                self._shared_files.put(f"{self._folder}/{name}", place)
                self._elsewhere[name] = place
                return
        self._files[name] = data if whole else data[:limit]
        self._left -= len(self._files[name])
        if not whole:
            self._cut[name] = status.st_size

    def _take_records(self) -> None:
        """Keep the step records, marked as synced because they are stored whole, and the log of a separate runner."""
        there: list[str] = []
        with contextlib.suppress(FileNotFoundError):  # the agent left; its commit will be refused
            there = fs.listdir(self._folder)
        if RUNNER_LOG in there:
            self._take(RUNNER_LOG)
        if RECORDS in there:
            with contextlib.suppress(OSError):  # not a regular file: a later attempt repeats the steps
                data = fs.read_bytes(f"{self._folder}/{RECORDS}", RECORDS_LIMIT)
                if len(data) <= RECORDS_LIMIT:
                    self._files[RECORDS] = data + _SYNCED
                    self._take_recorded(data)

    def _take_recorded(self, data: bytes) -> None:
        """Keep the streams that the records name and no result does: those of an attempt that was handed back before it
        had a result. A step could have forged the records, so only names of step streams are accepted."""
        for line in data.splitlines():
            with contextlib.suppress(ValueError, AttributeError, RecursionError):
                record = json.loads(line)
                for name in (record.get("stdout_path"), record.get("stderr_path")):
                    known = name in self._files or name in self._elsewhere
                    if isinstance(name, str) and _STREAM.fullmatch(name) and not known:
                        self._take(name)

    def _take_snapshot(self) -> None:
        """Keep the job's task, and the config and policies of this attempt. A job without agents has no `.snapshot`
        folder."""
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
        """Keep the answers of agents (`steps/<id>/calls/<n>.json`), for replay and so that a later attempt does not ask
        again; then what their programs said to models. A cut file is useless, so it is dropped."""
        for step in fs.subdirectories(f"{self._folder}/steps"):
            with contextlib.suppress(FileNotFoundError):
                for name in sorted(fs.listdir(f"{self._folder}/steps/{step}/{CALLS}"), key=_answers_first):
                    if name.endswith((ANSWER, EXCHANGES)):
                        path = f"steps/{step}/{CALLS}/{name}"
                        self._take(path)
                        if self._cut.pop(path, None) is not None:
                            del self._files[path]


def _answers_first(name: str) -> tuple[bool, str]:
    return not name.endswith(ANSWER), name


def _with_cuts(result: Mapping[str, Any], elsewhere: Mapping[str, str], cut: Mapping[str, int]) -> Mapping[str, Any]:
    """Return the result with the cuts noted in it: `truncated` has a stream's full size, `elsewhere` its path in the
    shared directory. Files that are no step's stream are noted at the top."""
    if not elsewhere and not cut:
        return result
    left_cut, left_elsewhere = dict(cut), dict(elsewhere)
    steps = []
    for step in result.get("step_results") or ():
        noted = dict(step)
        for stream in ("stdout", "stderr"):
            path = step.get(f"{stream}_path")
            if path in cut:
                noted["truncated"] = {**noted.get("truncated", {}), stream: left_cut.pop(path, cut[path])}
                noted[f"{stream}_truncated"] = True
            if path in elsewhere:
                noted["elsewhere"] = {**noted.get("elsewhere", {}), stream: left_elsewhere.pop(path, elsewhere[path])}
        steps.append(noted)
    return {
        **result,
        **({"step_results": steps} if steps else {}),
        **({"truncated": left_cut} if left_cut else {}),
        **({"elsewhere": left_elsewhere} if left_elsewhere else {}),
    }
