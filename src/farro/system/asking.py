"""Asking a program a question: run it, read a bounded answer, wait no longer than promised. Never raises for its sake.

Steps of plans are run by processes.py; this is for short questions, such as `tool --describe`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_BLOCK = 64 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What came of it. `trouble` is set when it gave no whole answer: it could not start, hung, or said too much."""

    stdout: bytes = b""
    code: int | None = None
    trouble: str | None = None


def ask(argv: Sequence[str], *, timeout_s: float, limit: int, cwd: str, env: Mapping[str, str]) -> Said:
    """stdin is empty, stderr is dropped; all that it started in its session is over when this returns."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Said(trouble=f"could not be started: {getattr(error, 'strerror', None) or error}")
    assert process.stdout is not None
    try:
        return _read(process, process.stdout.fileno(), time.monotonic() + timeout_s, timeout_s, limit)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its id is still its own: nobody has waited for it, or its group
        process.stdout.close()
        process.wait()


def _read(process: subprocess.Popen[bytes], fd: int, until_s: float, timeout_s: float, limit: int) -> Said:
    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while True:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not selector.select(left_s):
                return Said(stdout=data, trouble=f"gave no answer within {timeout_s:g} s")
            block = os.read(fd, _BLOCK)
            if not block:
                break
            data += block
            if len(data) > limit:
                return Said(stdout=data[:limit], trouble=f"said more than {limit} bytes")
    try:
        code = process.wait(max(0.0, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        return Said(stdout=data, trouble=f"gave no answer within {timeout_s:g} s")
    if code != 0:
        ended = f"exit code {code}" if code > 0 else f"signal {-code}"
        return Said(stdout=data, code=code, trouble=f"ended with {ended}")
    return Said(stdout=data, code=code)
