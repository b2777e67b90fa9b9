"""The process runner: one child process for each job. No crash of the job's code can end the worker.

The worker alone holds the lease, heartbeats and commits: the child leaves its outcome in a file (hand_off).

- The child carries the claim's marker in its environment, as every step does: kill and recovery find it (R6).
- The worker sends a stop through the child's standard input; the end of that input means that the worker is dead.
- Its output goes through a pipe into the attempt's runner.log, which is bounded.
- It is not forked from the worker: a fork of a process with threads inherits their locks, and the job would share its
  worker's memory, modules and open files. It is forked from a template that has run no job, and where there is none it
  is a new interpreter: docs/decisions/a-runner-is-a-fork-of-a-template.md.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farro.errors import InputError
from farro.execution.runner import TICK_S, Work
from farro.execution.runners import hand_off, limits
from farro.execution.runners.hand_off import RunnerOrder
from farro.execution.runners.runner_slots import RunnerSlot, RunnerSlots
from farro.execution.stop import Stop
from farro.execution.work import failed
from farro.host import fs, process_identity, process_tree, waiting
from farro.host.clock import Clock
from farro.host.process_limits import ProcessLimits
from farro.host.process_template import Fork, ProcessTemplate
from farro.host.processes import Exit, Process
from farro.jobs.outcomes import Outcome, Released
from farro.log.structured import printable

NAME = "runner.log"
LIMIT = 1 << 20  # bytes from the beginning; of the rest, only the end is kept
TAIL = 4096


class RunnerLog:
    """The runner's own output (a tool's `print`, a traceback, a crash): `runner.log` in the attempt's folder.

    Written by the worker and bounded: a runner that writes forever fills neither disk nor memory. Created with the
    first byte, because most runners write nothing.
    """

    def __init__(self, folder: str, *, limit: int = LIMIT) -> None:
        self._path = f"{folder}/{NAME}"
        self._room = limit
        self._fd: int | None = None
        self._broken = False
        self._left_out = 0
        self._tail = b""

    def say(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL:]
        kept = data[: self._room]
        self._room -= len(kept)
        self._left_out += len(data) - len(kept)
        self._write(kept)

    def close(self) -> None:
        if self._left_out:
            end = self._tail[-min(len(self._tail), self._left_out) :]
            self._write(b"\n... %d bytes are left out here ...\n" % (self._left_out - len(end)) + end)
            self._left_out = 0
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            self._broken = True

    @property
    def files(self) -> tuple[str, ...]:
        """Return the log if it exists, relative to the attempt's folder."""
        return (NAME,) if fs.exists(self._path) else ()

    @property
    def last_words(self) -> str:
        return self._tail.decode("utf-8", "replace").strip()

    def _write(self, data: bytes) -> None:
        """Write to the log. A full disk, or a job that was taken away, is reported elsewhere."""
        if not data or self._broken:
            return
        try:
            if self._fd is None:
                self._fd = fs.create_file(self._path)
            fs.write(self._fd, data)
        except OSError:
            self._broken = True


DIED = "runner_died"
# A stop gives steps their grace (5 s), then two seconds more; a runner that is still there is ended by force, and the
# worker is gone within its ten seconds.
HARD_S = 3.5
_CHUNK = 64 * 1024
_TURN = 16  # chunks of a runner's output before other work

# The runner imports from where the worker does, whatever its cwd and environment are.
_BOOT = "import sys;sys.path[:]={path!r};from farro.__main__ import main;main()"
_TEMPLATE = (
    "import sys;sys.path[:]={path!r};from farro.execution.runners import run_job;"
    "from farro.host import process_template;run_job.warm_up();process_template.serve(run_job.main)"
)


class ProcessRun:
    """The handle of one run: one child, and the pipes to it."""

    def __init__(self, work: Work, outcome: Outcome | None = None) -> None:
        self.work = work
        self.outcome = outcome  # of a run that could not begin
        self.log = RunnerLog(work.folder)
        self.process: Process | None = None
        self.place: RunnerSlot | None = None
        self.terminated = False
        self.outgoing = b""
        self.control_fd: int | None = None
        self.log_fd: int | None = None
        self.events: waiting.EventPoll | None = None

    def say(self, data: bytes) -> None:
        """Queue data for the runner; `pump` sends it."""
        self.outgoing += data
        if self.control_fd is not None and self.events is not None:
            self.events.modify(self.control_fd, waiting.WRITES)

    def pump(self) -> None:
        """Pass on what there is in both directions, without waiting."""
        if self.events is not None and self.control_fd is not None:
            for fd, mask in self.events.poll(0):
                if fd == self.control_fd and mask & waiting.BROKEN:
                    self._close_control()  # it has closed its side: epoll would report that again and again
                    break
        if self.control_fd is not None and self.outgoing:
            self._send(self.control_fd)
        for _ in range(_TURN):
            if self.log_fd is None:
                return
            try:
                data = os.read(self.log_fd, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                self._close_log()
                return
            self.log.say(data)

    def _send(self, fd: int) -> None:
        try:
            self.outgoing = self.outgoing[os.write(fd, self.outgoing[:_CHUNK]) :]  # noqa: TID251 - a pipe, no file
        except BlockingIOError:
            return
        except BrokenPipeError:  # it is about to end: its exit says why
            self.outgoing = b""
        if not self.outgoing and self.events is not None:
            self.events.modify(fd, 0)

    def _close_control(self) -> None:
        if self.control_fd is not None:
            os.close(self.control_fd)  # also removes it from `events`
            self.control_fd = None

    def _close_log(self) -> None:
        if self.log_fd is not None:
            os.close(self.log_fd)
            self.log_fd = None

    def close(self) -> None:
        self.pump()
        self._close_log()
        self._close_control()
        if self.events is not None:
            self.events.close()
            self.events = None
        self.log.close()
        if self.place is not None:
            self.place.free()
            self.place = None


class ProcessRunner:
    """Port: Runner, in child processes."""

    def __init__(
        self,
        *,
        tools: Mapping[str, Any],
        environ: Mapping[str, str],
        places: RunnerSlots,
        limits: ProcessLimits,
        clock: Clock,
        tick_every_s: float = TICK_S,
    ) -> None:
        if not waiting.HAS_EVENT_POLL:
            raise InputError("runner processes need Linux; set runners.kind to inline")
        self._tools = tools
        self._environ = environ  # the runner's own, with markers; its steps get the work's environment
        self._places = places
        self._limits = limits
        self._clock = clock
        self._tick_every_s = tick_every_s
        self._template = ProcessTemplate(_TEMPLATE.format(path=sys.path), word="run-job", env=environ)

    def run(self, batch: Sequence[Work]) -> list[Outcome | ProcessRun]:
        """Begin none: the start of a process takes longer than a moment."""
        return []

    def spawn(self, work: Work, *, tick: Callable[[], None], stop: Stop) -> ProcessRun:
        try:
            place = self._places.take(tick=tick, every_s=self._tick_every_s, stop=stop)
        except OSError as error:
            return ProcessRun(work, failed(work.job_id, "storage", str(error), retryable=True))
        if place is None:
            return ProcessRun(work, Released(note="the worker was stopped before a runner was free"))
        run = ProcessRun(work)
        run.place = place
        try:
            work.make()
            self._start(run, place)
        except OSError as error:  # no processes, descriptors or memory left
            run.close()
            run.outcome = failed(work.job_id, DIED, f"no runner could be started: {error}", retryable=True)
        except BaseException:
            run.close()
            raise
        return run

    def _start(self, run: ProcessRun, place: RunnerSlot) -> None:
        work = run.work
        child_in, run.control_fd = os.pipe()
        run.log_fd, child_out = os.pipe()
        try:
            for fd in (run.control_fd, run.log_fd):
                os.set_blocking(fd, False)
            run.events = waiting.event_poll()
            run.events.register(run.control_fd, waiting.ERRORS_ONLY)
            run.events.register(run.log_fd, waiting.READS)
            started_s = time.monotonic()
            with process_tree.starting():
                run.process = self._forked(work, place, child_in, child_out, started_s) or self._new(
                    work, place, child_in, child_out, started_s
                )
        finally:
            os.close(child_in)
            os.close(child_out)
        place.note({"job_id": work.job_id, "claim": work.marker, **process_identity.identity_of(run.process.pid)})
        run.say(RunnerOrder(work=work, tools=self._tools, limits=self._limits, place_fd=place.lease.fd).to_line())
        run.pump()

    def _forked(self, work: Work, place: RunnerSlot, child_in: int, child_out: int, started_s: float) -> Process | None:
        """Start it as a fork of the template; None where that is not possible."""
        fds = {0: child_in, 1: child_out, 2: child_out, place.lease.fd: place.lease.fd}
        pid = self._template.fork(Fork(name=work.job_id, env=_marks(work), cwd=work.cwd, fds=fds))
        return None if pid is None else Process(pid, started_s)

    def _new(self, work: Work, place: RunnerSlot, child_in: int, child_out: int, started_s: float) -> Process:
        """Start it as a new interpreter."""
        popen = subprocess.Popen(
            # -u: what a tool printed before a crash must not be lost in a buffer.
            [sys.executable, "-P", "-u", "-c", _BOOT.format(path=sys.path), "run-job", work.job_id],
            stdin=child_in,
            stdout=child_out,
            stderr=child_out,
            cwd=work.cwd,
            env={**self._environ, **_marks(work)},
            pass_fds=(place.lease.fd,),
            start_new_session=True,
        )
        return Process(popen.pid, started_s, popen)

    def is_alive(self, run: ProcessRun) -> bool:
        return run.process is not None and run.process.exit is None

    def terminate(self, run: ProcessRun) -> None:
        run.terminated = True
        if self.is_alive(run):  # by its marker: the pid may be another process's by now
            process_tree.end_marked(run.work.marker)

    def wait(self, run: ProcessRun, *, tick: Callable[[], None], stop: Stop) -> Outcome:
        if run.outcome is not None:
            return run.outcome
        process = run.process
        assert process is not None
        try:
            self._until_end(run, process, tick, stop)
            # Whatever ended it: its plan was over when it left its outcome, and nothing needs to be repeated.
            came = None if process.exit is None else hand_off.take(run.work.folder)
            # A runner that left its outcome has ended its processes; what it could not end cannot be found cheaply.
            if came is None or (not process_tree.childless() and process_tree.any_left()):
                process_tree.end_marked(run.work.marker, while_waiting=tick, every_s=self._tick_every_s)
        except BaseException:
            process.end(run.work.marker, grace_s=0)
            raise
        finally:
            run.close()
        if came is not None:
            return came
        if stop.requested:
            return Released(note="the worker was stopped")
        return self._died(run, process)

    def _until_end(self, run: ProcessRun, process: Process, tick: Callable[[], None], stop: Stop) -> None:
        assert run.events is not None
        ticked_s = self._clock.monotonic_s()
        sent_s: float | None = None
        stop_fd: int | None = stop.fd
        run.events.register(stop.fd, waiting.READS)
        while True:
            now_s = self._clock.monotonic_s()
            if now_s - ticked_s >= self._tick_every_s:
                ticked_s = now_s
                tick()
            until_s = ticked_s + self._tick_every_s
            stop_at_s = stop.deadline_s
            if stop_at_s is not None:
                if stop_fd is not None:  # it stays readable: polling it again would spin
                    run.events.unregister(stop_fd)
                    stop_fd = None
                if sent_s is None or stop_at_s < sent_s:  # a second stop shortens the first
                    sent_s = stop_at_s
                    run.say(f"stop {max(stop_at_s - now_s, 0.0)}\n".encode())
                until_s = min(until_s, stop_at_s + HARD_S)
            if run.terminated or (stop_at_s is not None and now_s >= stop_at_s + HARD_S):
                process.end(run.work.marker, grace_s=0, while_waiting=tick, every_s=self._tick_every_s)
                return
            run.pump()
            if process.wait(until_s - now_s, run.events.fileno()) is not None:
                return

    def _died(self, run: ProcessRun, process: Process) -> Outcome:
        ended = process.exit
        said = printable(run.log.last_words, keep="\n\t")
        message = _how(ended)
        why = None if ended is None else limits.hit_by_runner(self._limits, ended, said)
        if run.terminated:
            message = "the runner was terminated"
        elif why is not None:
            message += f": {why}"
        elif said:
            message += f"; it said last: {said.splitlines()[-1][:200]}"
        return failed(run.work.job_id, DIED, message, retryable=True, detail=said, files=run.log.files)


def _marks(work: Work) -> dict[str, str]:
    """Return the variables by which kill and recovery find a runner."""
    agent = {name: work.env[name] for name in ("FARRO_AGENT",) if name in work.env}
    return {process_tree.MARKER: work.marker, **agent, "FARRO_JOB": work.job_id, "FARRO_ROOT": work.root}


def _how(ended: Exit | None) -> str:
    if ended is None:
        return "the runner could not be ended"
    if ended.signal is not None:
        name = f"signal {ended.signal}"
        with contextlib.suppress(ValueError):
            name += f" ({signal.Signals(ended.signal).name})"
        return f"the runner was ended by {name} before its plan was over"
    return f"the runner ended with exit code {ended.code} before its plan was over"
