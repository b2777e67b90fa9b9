"""Run a program and read a bounded answer within a time limit, such as `tool --describe`. The program's failures are
returned, not raised."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from farro.lazy_dataclass import dataclass

_BLOCK = 64 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramAnswer:
    """The output of a program. `trouble`: why there is no whole answer (it did not start, hung, or wrote too much)."""

    stdout: bytes = b""
    code: int | None = None
    trouble: str | None = None


def ask(
    argv: Sequence[str], *, timeout_s: float, limit: int, cwd: str, env: Mapping[str, str], errors: bool = False
) -> ProgramAnswer:
    """Run `argv` with empty stdin; stderr is dropped, or with `errors` read like stdout. Everything that it started in
    its session has ended when this returns."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return ProgramAnswer(trouble=f"could not be started: {getattr(error, 'strerror', None) or error}")
    assert process.stdout is not None
    try:
        return _read(process, process.stdout.fileno(), time.monotonic() + timeout_s, timeout_s, limit)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the PID is still its own
        process.stdout.close()
        process.wait()


def _read(process: subprocess.Popen[bytes], fd: int, until_s: float, timeout_s: float, limit: int) -> ProgramAnswer:
    """Read until the program ends, not until its output is closed: a process it left may keep the pipe open."""
    data = b""
    os.set_blocking(fd, False)
    with contextlib.ExitStack() as opened, selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        end = os.pidfd_open(process.pid)
        opened.callback(os.close, end)
        selector.register(end, selectors.EVENT_READ)
        while True:
            left_s = until_s - time.monotonic()
            ready = [key.fd for key, _ in selector.select(max(0.0, left_s))] if left_s > 0 else []
            if not ready:
                return ProgramAnswer(stdout=data, trouble=f"gave no answer within {timeout_s:g} s")
            with contextlib.suppress(BlockingIOError):
                while block := os.read(fd, _BLOCK):
                    data += block
                    if len(data) > limit:
                        return ProgramAnswer(stdout=data[:limit], trouble=f"said more than {limit} bytes")
                if fd in selector.get_map():  # closed: it would stay readable for ever
                    selector.unregister(fd)
            if end in ready:
                break
    return _judged(process, data)


def _judged(process: subprocess.Popen[bytes], data: bytes) -> ProgramAnswer:
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie: its PID is not reused
    assert ended is not None
    if ended.si_code != os.CLD_EXITED:
        return ProgramAnswer(stdout=data, trouble=f"ended with signal {ended.si_status}")
    if ended.si_status != 0:
        return ProgramAnswer(stdout=data, code=ended.si_status, trouble=f"ended with exit code {ended.si_status}")
    return ProgramAnswer(stdout=data, code=0)
