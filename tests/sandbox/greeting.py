"""Serve what a confined process may reach: it says hello to everyone who connects."""

from __future__ import annotations

import contextlib
import socket
import threading


def greet_callers(server: socket.socket) -> None:
    """Say hello to everyone who connects, until the server is closed."""

    def greet() -> None:
        with contextlib.suppress(OSError):
            while True:
                with server.accept()[0] as caller:
                    caller.sendall(b"hello")

    threading.Thread(target=greet, daemon=True).start()
