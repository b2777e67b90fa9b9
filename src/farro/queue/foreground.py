"""Run one job in the foreground: submit, claim and perform it here, and pass its output on while it runs, with a
shell's exit code; or follow a job that another process runs.

The job is claimed in the same step in which it is submitted, so it runs here, with this environment, and not in
whichever worker is faster. If this process dies, the job is recovered like any worker's: it becomes stale, and then any
worker may claim it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farro.errors import FarroError, Lost, StorageTrouble, TryAgain
from farro.execution.progress import Over, begun, step_results
from farro.execution.stop import Stop
from farro.host import fs
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Failed, Outcome, Released, Succeeded
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass, replace
from farro.store.port import Claim, JobView, Store, Submission, commit_one
from farro.worker.perform import Performer

_LOOKS, _PAUSE_S = 100, 0.02
BEAT_S = 1.0
LOOK_S, LATER_S = 0.01, 0.03  # how often its output is polled: in the first second, and later


class Foreground:
    """Run one submission to its end in this process."""

    def __init__(self, *, store: Store, performer: Performer, stop: Stop, name: str = "run") -> None:
        self._store = store
        self._performer = performer
        self._stop = stop
        self._name = name

    def run(self, submission: Submission, tail: Tail) -> RunResult | None:
        """Return the result. None: a job with that chosen id exists already and was not touched; follow it."""
        agent = self._store.join(self._name, role=submission.role)
        try:
            claim = self._store.enqueue_claimed(agent, submission)
            return None if claim is None else self._work(claim, tail)
        finally:
            self._store.leave(agent)

    def _work(self, claim: Claim, tail: Tail) -> RunResult:
        """Work the job to its end. An outcome is committed even if passing on the output failed."""
        outcome: Outcome | None = None
        result: Mapping[str, Any] = {}
        try:
            outcome, trouble = self._performed(claim, tail)
            if isinstance(outcome, Released) and outcome.wait is not None:  # the user waits here, and not for hours
                from farro.execution.work import failed

                outcome = failed(claim.job_id, "account_paused", outcome.note)
            if isinstance(outcome, Released):  # stopped: no worker may start it again
                lifecycle = self._killed(
                    claim.job_id, "stopped by the user who ran it" if trouble is None else f"stopped: {trouble}"
                )
            else:
                if isinstance(outcome, Failed):
                    outcome = replace(outcome, retryable=False)  # the user waits here for the result
                lifecycle, result = commit_one(self._store, claim, outcome), outcome.report.result
        except Lost as lost:
            found = self._end_elsewhere(claim.job_id)
            if found is None:
                raise type(lost)(f"{lost}. {_unrecorded(claim.job_id, outcome)}") from lost
            return run_result(found, {})
        except TryAgain as error:
            if outcome is None:
                raise
            raise StorageTrouble(f"{_unrecorded(claim.job_id, outcome)}. What went wrong: {error}") from error
        if trouble is not None:
            raise trouble
        return run_result(lifecycle, result)

    def _end_elsewhere(self, job_id: str) -> Lifecycle | None:
        """Return how a job ended that was taken from this process: an operator ends its processes first, and then
        decides."""
        for _ in range(_LOOKS):
            found = self._store.find(job_id)
            if found is not None and found.lifecycle.terminal:
                return found.lifecycle
            self._performer.clock.sleep(_PAUSE_S)
        return None

    def _performed(self, claim: Claim, tail: Tail) -> tuple[Outcome, BaseException | None]:
        """Perform the job in a thread, so that output is passed on and signals are handled meanwhile.

        Returns the outcome, and why its output could not be passed on: a reader that has left ends the job, as a
        shell's pipe would.
        """
        over, passed_on = threading.Event(), threading.Event()
        came: list[Outcome | BaseException] = []

        def perform() -> None:
            try:
                came.append(self._performer.perform(claim, lambda: self._beat(claim), self._stop))
            except BaseException as error:  # noqa: BLE001 - handed to the waiting thread
                came.append(error)
            finally:
                over.set()
            # A slow reader (a pager) may take long for the last output: keep the lease meanwhile.
            while not passed_on.wait(BEAT_S):
                with contextlib.suppress(FarroError):  # the commit reports it
                    self._store.heartbeat(claim.agent, claim)

        thread = threading.Thread(target=perform, name="foreground")
        thread.start()
        trouble: BaseException | None = None
        turns = 0
        while trouble is None and not over.wait(LOOK_S if turns < 100 else LATER_S):
            trouble = _passed_on(tail, claim)
            turns += 1
        if trouble is not None:
            self._stop.request(0.0)  # its process tree ends before the job is released (R6)
            over.wait()
        if trouble is None and not isinstance(came[0], BaseException):
            trouble = _passed_on(tail, claim, ended=True)
        passed_on.set()
        thread.join()
        (result,) = came
        if isinstance(result, BaseException):
            raise result
        return result, trouble

    def _beat(self, claim: Claim) -> None:
        """Send a heartbeat. An unreachable store is no reason to end the command: the commit reports it."""
        with contextlib.suppress(TryAgain):
            self._store.heartbeat(claim.agent, claim)

    def _killed(self, job_id: str, note: str) -> Lifecycle:
        agent = self._store.join(self._name, role=None)
        try:
            return self._store.kill(agent, job_id, note=note)
        finally:
            self._store.leave(agent)


def _passed_on(tail: Tail, claim: Claim, *, ended: bool = False) -> BaseException | None:
    try:
        tail.pump(claim.folder, ended=ended)
    except BaseException as error:  # noqa: BLE001 - raised after the job is committed
        return error
    return None


def _unrecorded(job_id: str, outcome: Outcome | None) -> str:
    """Say what happens to a job whose end could not be recorded."""
    if isinstance(outcome, Succeeded):
        ended = "its command succeeded"
    elif isinstance(outcome, Failed):
        ended = f"its command failed ({outcome.error.message})"
    else:
        ended = "its command was ended"
    return (
        f"{job_id}: {ended}, but that could not be recorded: the job counts as in progress until a watchdog finds it, "
        f"and then its command is run again. To keep it from that: `farro kill {job_id}`, or `farro force-complete "
        f"{job_id}` if it shall count as succeeded"
    )


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
    listed = step_results(result)
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
