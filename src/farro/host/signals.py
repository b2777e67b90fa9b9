"""Hearing a signal whichever thread the kernel gives it to.

What a signal means is its handler's, in cli.

Python runs handlers in the first thread, when that next runs any code; and a signal that another thread got wakes
nobody. A stopped process that is continued gets its SIGTERM in any thread, and its first one slept on for ever. So
whoever waits there waits on this descriptor too: C writes to it in whatever thread the signal comes.
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
    """A descriptor that is readable after a signal; None in another thread than the first, which hears none anyway."""
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
    """Empty it, so that it tells of the next."""
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 64):
            pass


def keep_exit_codes() -> None:
    """Of what this process starts. Who was started with SIGCHLD ignored (a supervisor's way to have no zombies, and
    inherited) is told how none of its children ended: every step would be a failure. In the first thread only."""
    number = getattr(signal, "SIGCHLD", None)
    if number is not None and signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def terminated_politely() -> Iterator[None]:
    """SIGTERM ends what runs here as Ctrl-C does: it cleans up behind itself."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
