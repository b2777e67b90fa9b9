"""Follow a job while it runs: pass its output on as it comes, and derive the exit code that a shell would give."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farro.execution.progress import Over, begun
from farro.host import fs
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.store.port import JobView, Store

Write = Callable[[bytes], None]

TIMED_OUT, NOT_EXECUTABLE, NOT_FOUND, KILLED = 124, 126, 127, 137  # as shells and timeout(1) report them
_CHUNK = 64 * 1024
_RESULT_LIMIT = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """The end of a job that was followed."""

    job_id: str
    status: Status
    exit_code: int
    message: str | None = None  # what its output cannot say: not found, timed out, killed, which step


class Tail:
    """Pass on the output of a plan's steps, byte for byte, in the order of the steps; each stream to its own writer.

    Of steps that run in parallel, the later ones wait for those before them; their output is in their files meanwhile.
    Files are followed by descriptor: the job's folder may be moved while they are read.
    """

    def __init__(self, steps: Sequence[str], out: Write, err: Write) -> None:
        self._plan = tuple(steps)
        self._steps = list(steps)
        self._known = set(steps)
        self._attempt: str | None = None
        self._sinks = (out, err)
        self._streams: list[_Stream] | None = None
        self._over = Over()

    def pump(self, attempt_dir: str, *, ended: bool = False) -> None:
        """Pass on what there is. `ended`: nothing more will come. A new attempt is followed from its beginning."""
        attempt = attempt_dir.rsplit("/", 1)[1]
        if attempt != self._attempt:
            self.close()
            self._attempt, self._steps = attempt, list(self._plan)
            self._known = set(self._plan)
        while True:
            if not self._steps:
                self._look_for_added(attempt_dir)
            if not self._steps:
                return
            over = ended or self._over.has(
                attempt_dir, self._steps[0]
            )  # checked before the files are read to their ends
            if self._streams is None:
                self._streams = [
                    _Stream(name, sink) for name, sink in zip(("stdout", "stderr"), self._sinks, strict=True)
                ]
            for stream in self._streams:
                stream.pump(f"{attempt_dir}/steps/{self._steps[0]}")
            if not over:
                return
            self._close_streams()
            del self._steps[0]

    def _look_for_added(self, attempt_dir: str) -> None:
        """Add steps that other steps added while the plan ran."""
        folder, _, attempt = attempt_dir.rsplit("/", 2)
        added = [name for name in begun(folder, int(attempt)) if name not in self._known]
        self._known.update(added)
        self._steps += added

    def close(self) -> None:
        self._close_streams()
        self._over.close()
        self._over = Over()

    def _close_streams(self) -> None:
        for stream in self._streams or ():
            stream.close()
        self._streams = None


class _Stream:
    """Read one stream of one step. The output of a failed try was renamed to `stdout.1` and so on; it comes first."""

    def __init__(self, name: str, write: Write) -> None:
        self._name = name
        self._write = write
        self._try = 1
        self._fd: int | None = None

    def pump(self, folder: str) -> None:
        path = f"{folder}/{self._name}"
        while True:
            aside = _inode(f"{path}.{self._try}")
            if self._fd is None:
                try:
                    self._fd = fs.open_read(path if aside is None else f"{path}.{self._try}")
                except FileNotFoundError:
                    return
                aside = _inode(f"{path}.{self._try}")
                if aside not in (None, os.fstat(self._fd).st_ino):
                    self.close()  # renamed while the next try's file was opened
                    continue
            while data := os.read(self._fd, _CHUNK):
                self._write(data)
            if aside is None:
                return
            self.close()
            self._try += 1

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _inode(path: str) -> int | None:
    try:
        return os.lstat(path).st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None


def run_result(lifecycle: Lifecycle, result: Mapping[str, Any]) -> RunResult:
    """Return what a finished job means to the caller that waited for it."""
    error = lifecycle.error or {}
    total = result.get("steps_total")
    # The exit code of a command that ran says enough. With several steps, the message says which one failed.
    ran = str((failed_step(result) or {}).get("error", "exit code")).startswith(("exit code", "signal"))
    enough = error.get("category") is None or (
        error.get("category") == "step_failed" and ran and not (isinstance(total, int) and total > 1)
    )
    return RunResult(
        job_id=lifecycle.job_id,
        status=lifecycle.status,
        exit_code=exit_code(lifecycle.status, error.get("category"), result),
        message=None if enough else error.get("message"),
    )


def exit_code(status: Status, category: str | None, result: Mapping[str, Any]) -> int:
    """Return the exit code that a shell would give."""
    if status is Status.SUCCEEDED:
        return 0
    if status is Status.KILLED:
        return KILLED
    if category == "timeout":
        return TIMED_OUT
    if category == "missing_tool":
        return NOT_FOUND
    code = (failed_step(result) or {}).get("exit_code")
    return code if isinstance(code, int) and 0 < code < 256 else 1


def failed_step(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the step that failed first. Steps that ran in parallel may have ended later, and successfully."""
    steps = result.get("step_results")
    listed = [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return next((step for step in listed if step.get("success") is False), listed[-1] if listed else None)


def follow(store: Store, job_id: str, tail: Tail, stopped: Callable[[float], bool]) -> RunResult | None:
    """Follow a job that another process works on, or has finished. `stopped` waits a moment and says whether to give
    up; then the result is None."""
    while True:
        view = store.find(job_id)
        if view is not None:
            folder = _attempt(store, view)
            tail.pump(folder, ended=view.lifecycle.terminal)
            if view.lifecycle.terminal:
                return run_result(view.lifecycle, _result(folder))
        if stopped(0.05):
            return None


def _attempt(store: Store, view: JobView) -> str:
    return f"{store.folder(view)}/attempts/{view.lifecycle.attempt:04d}"


def _result(folder: str) -> Mapping[str, Any]:
    try:
        data = json.loads(fs.read_bytes(f"{folder}/result.json", _RESULT_LIMIT))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
