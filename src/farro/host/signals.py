"""Notice a signal whichever thread the kernel delivers it to, and name signals that not every platform has.

Python runs handlers in the first thread, when that next runs any code; a signal that another thread received does not
wake it. A stopped process that is continued may get its SIGTERM in any thread, while its first thread sleeps for ever.
So the first thread also polls a descriptor, to which the interpreter writes whichever thread gets the signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

# Signals by which a person or the system asks a program in a terminal to end.
ENDING: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
KILL: signal.Signals = getattr(signal, "SIGKILL", signal.SIGTERM)
CPU_LIMIT = int(getattr(signal, "SIGXCPU", 24))
FILE_SIZE_LIMIT = int(getattr(signal, "SIGXFSZ", 25))


@contextlib.contextmanager
def wakeup() -> Iterator[int | None]:
    """Yield a descriptor that is readable after a signal; None in threads other than the first: they run none."""
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


def heard(fd: int) -> None:
    """Empty the descriptor, so that the next signal makes it readable again."""
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 64):
            pass


def keep_exit_codes() -> None:
    """Reset an ignored SIGCHLD. A supervisor that ignores it passes that on, and then the kernel discards the exit
    codes of this process's children: every step would count as failed. Call it in the first thread."""
    number = getattr(signal, "SIGCHLD", None)
    if number is not None and signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def terminated_politely() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, as on Ctrl-C, so that the code inside cleans up."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
