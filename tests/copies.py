"""A process that has imported what many tests need, and makes a copy of itself for each: a process like any other.

What a copy does lives with its suite (sandbox/drive.py, flows/ready.py), which is started here by its path. Importing
costs more than most of what is then done.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

_MOST = 1 << 20


class Original:
    """The tests' side: one for each test process. It ends when that ends."""

    def __init__(self, script: str, *args: str, env: Mapping[str, str], python: str = sys.executable) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [python, script, str(theirs.fileno()), *args],
                pass_fds=[theirs.fileno()],
                # A copy's streams will mostly be pipes, and Python asks at its start whether it may seek in them.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env=env,
            )

    def copy(self, order: bytes, streams: Sequence[int]) -> int:
        """Its process id. `streams` are its stdin, stdout and stderr. No other before `ended` was called."""
        with contextlib.suppress(BrokenPipeError):
            socket.send_fds(self._orders, [order], streams)
        pid = self._orders.recv(100)
        if not pid:
            raise AssertionError(self._process.communicate()[1].decode())
        return int(pid)

    def ended(self, timeout_s: float) -> int | None:
        """The copy's exit code, negative for a signal; None: it still runs."""
        self._orders.settimeout(max(timeout_s, 0.001))
        try:
            return int(self._orders.recv(100))
        except TimeoutError:
            return None
        finally:
            self._orders.settimeout(None)

    def kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._orders.recv(100)

    def close(self) -> None:
        self._orders.close()
        self._process.communicate()


def await_order(fd: int) -> bytes:
    """The other side: returns in a copy, with its order and with its streams in place; else ends with the tests."""
    gc.collect()
    gc.freeze()  # a copy need not look at what was imported, and so need not copy its pages
    with socket.socket(fileno=fd) as orders:
        while True:
            order, streams, _, _ = socket.recv_fds(orders, _MOST, 3)
            if not order:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                for wanted, stream in enumerate(streams):
                    os.dup2(stream, wanted)
                    os.close(stream)
                return order
            for stream in streams:
                os.close(stream)
            orders.send(str(pid).encode())
            orders.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
