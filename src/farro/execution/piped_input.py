"""A step that reads what another says while that still runs: the file, from its beginning, as it grows, into a pipe.

When that is done is decided in run.py: hardly ever, for a step starts when what it reads has succeeded. But who says
without end (`yes`) is read by one who has enough (`head`), and nobody would ever tell it so.
"""

from __future__ import annotations

import contextlib
import os
import threading

from farro.host import fs

_PIECE = 1 << 20
_PAUSE_S = 0.01  # at the end of what was said so far


class Along:
    """The pipe and the thread that fills it. `fd` is for the reader, and is closed by whoever started it."""

    def __init__(self, path: str) -> None:
        self._source = fs.open_read(path)
        self.fd, self._pipe = os.pipe()
        self.passed_on = 0  # bytes
        self._whole = threading.Event()  # nothing more is said
        self._left = False
        self._thread = threading.Thread(target=self._fill, name="along", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """What it reads is over: the reader gets the rest, then the end."""
        self._whole.set()

    def leave(self) -> None:
        """Nobody reads any more."""
        self._left = True
        self._whole.set()

    def _fill(self) -> None:
        try:
            with contextlib.suppress(BrokenPipeError):
                while not self._left:
                    whole = self._whole.is_set()  # before the look: what came until then is in it
                    piece = os.read(self._source, _PIECE)
                    if piece:
                        self._pass_on(piece)
                    elif whole:
                        return
                    else:
                        self._whole.wait(_PAUSE_S)
        finally:
            os.close(self._pipe)
            os.close(self._source)

    def _pass_on(self, piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            # Not fs.write: a pipe is no file, and no place for a crash to be injected.
            written = os.write(self._pipe, view)  # noqa: TID251
            self.passed_on += written
            view = view[written:]
