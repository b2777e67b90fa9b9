"""Find a program, and run one: read a bounded answer within a time limit, or let it share this terminal."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from farro.host import fs
from farro.host.process_tree import GRACE_S, MARKER, end_marked
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


TIMED_OUT = 124  # the exit code of timeout(1)


def run_here(
    argv: Sequence[str],
    *,
    executable: str | None,
    stdin: str | None,
    stdout: int | None,
    cwd: str,
    env: Mapping[str, str],
    timeout_s: float,
    grace_s: float = GRACE_S,
) -> int:
    """Return the exit code as a shell reports it; 124 after a timeout: SIGTERM to the tree, `grace_s`, SIGKILL.

    `stdin` is a file; None is empty input. `stdout` replaces our own. Raises OSError if the command cannot be started.
    """
    marker = f"here-{os.getpid()}-{os.urandom(8).hex()}"
    source = subprocess.DEVNULL if stdin is None else fs.open_read(stdin)
    try:
        process = subprocess.Popen(
            argv, executable=executable, stdin=source, stdout=stdout, cwd=cwd, env={**env, MARKER: marker}
        )
    finally:
        if stdin is not None:
            os.close(source)
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        end_marked(marker, grace_s=grace_s)
        process.wait()
        return TIMED_OUT
    except BaseException:  # Ctrl-C: the command received it too; end what is left of its tree
        end_marked(marker, grace_s=1.0)
        process.wait()
        raise
    end_marked(marker, grace_s=1.0)
    return 128 - code if code < 0 else code


def which(name: str, path: str | None, cwd: str) -> str | None:
    """Return the file that `name` executes, as execvp finds it: a path as it is, a bare name along `path`, both from
    `cwd`."""
    if os.sep in name:
        places = [name]
    else:
        places = [f"{folder or '.'}/{name}" for folder in (os.defpath if path is None else path).split(os.pathsep)]
    for place in places:
        file = place if place.startswith(os.sep) else os.path.join(cwd, place)
        if os.access(file, os.X_OK) and os.path.isfile(file):  # in this order: most folders do not have it
            return file
    return None
