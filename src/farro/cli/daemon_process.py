"""Start and end a daemon: checks, log, signals, a clean exit."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType

from farro.cli.options import App, asked_store
from farro.cli.terminal import forget_stdout
from farro.config.settings import RunnersSettings
from farro.errors import FarroError, Refused
from farro.host.clock import SystemClock
from farro.log.structured import Log, lines
from farro.store.port import Store

ENDING = (signal.SIGTERM, signal.SIGINT)


def admit(app: App, store: Store, service: str, *, strict: bool) -> None:
    """Close the store and raise where the service may not start here. `strict`: also where doctor finds something."""
    try:
        try:
            store.check_ready()
        except Refused as error:
            raise Refused(f"{service} does not start: {error}") from error
        if strict:
            app.check_strictly(store.root, service, store=asked_store())
    except FarroError:
        store.close()  # which writes the refusal to the audit log
        raise


def log_to_stdout(actor: str, as_json: bool, runners: RunnersSettings) -> Log:
    """Make the log of a daemon: JSON lines with --json, else the form in the config, else short lines at a terminal."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    short = not as_json and (terminal if runners.log_format is None else runners.log_format == "text")
    return lines(actor, SystemClock().now, sys.stdout, short=short, level=runners.log_level)


def end_well() -> None:
    """Exit cleanly after the work: ignore further signals, and a log that has lost its reader or whose disk is full."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        forget_stdout()


class Signals:
    """Handle SIGTERM and Ctrl-C from the start of a daemon. A signal that comes before its loop runs is kept for the
    loop; a second one ends the process at once."""

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None
        self._early = False
        for number in ENDING:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._stop is not None:
            self._stop()
        elif self._early:
            raise KeyboardInterrupt
        else:
            self._early = True

    def end(self, stop: Callable[[], None]) -> None:
        """Call `stop` for each signal from here on, and for one that came before."""
        self._stop = stop
        if self._early:
            stop()
