"""What is said while a broker is away: one line when it goes, one when it is back, instead of what aio-pika says.

aio-pika and aiormq log each of their attempts, five a second, and a traceback for the connection that was lost. What
fails because of it is told by whoever asked for it (`amqp`). The lines go to the logger `farro.bus`: to stderr, unless
the program that runs here wants them elsewhere.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aio_pika.abc import AbstractRobustConnection

LOGGER = logging.getLogger("farro.bus")
_THEIRS = ("aio_pika", "aiormq")


def _let_through(record: logging.LogRecord) -> bool:
    """A filter: of their words only what a person can do something about, in one line. That is a broker which takes
    nothing, as its disk or memory is full."""
    if "blocked" in str(record.msg):
        LOGGER.log(record.levelno, record.getMessage().splitlines()[0])
    return False


def quieten() -> None:
    """After they were imported. Whoever has said what shall become of their words gets them as before."""
    said = [logger for logger in map(logging.getLogger, _THEIRS) if logger.handlers or logger.level != logging.NOTSET]
    for name in [] if said else list(logging.root.manager.loggerDict):
        if name.split(".")[0] in _THEIRS:
            logging.getLogger(name).addFilter(_let_through)  # the same one again is the same


class Presence:
    """Whether the broker of one connection is there, and telling when that changes."""

    def __init__(self, connection: AbstractRobustConnection, address: str) -> None:
        self._address = address
        self._away = False
        self._over = False
        connection.close_callbacks.add(self._lost)
        connection.reconnect_callbacks.add(self._back)

    def leave(self) -> None:
        """The connection is closed by us: that is nothing to tell."""
        self._over = True

    def _lost(self, _: Any, why: BaseException | None = None) -> None:
        if not self._away and not self._over:
            self._away = True
            said = " ".join(str(why or "").split())[:200] or "it closed the connection"
            LOGGER.warning("the broker at %s is away: %s; it is asked again until it is back", self._address, said)

    def _back(self, *_: Any) -> None:
        if self._away:
            self._away = False
            LOGGER.warning("the broker at %s is back", self._address)
