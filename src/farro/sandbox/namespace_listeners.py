"""Level A: make listening sockets in the network namespace of a sandbox, and let the worker accept on them.

A forked child makes the socket and passes it here, because only a process of one thread may enter the user namespace
to which the network belongs. The child makes a few system calls and ends; it runs no other code of this process, whose
other threads may hold any lock. It is killed if it does not answer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Sequence

from farro.host import process_tree, waiting
from farro.sandbox import syscalls
from farro.sandbox.confinement import LocalService

if sys.platform != "win32":
    import fcntl

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_OWNER = 0xB701  # NS_GET_USERNS
_ANSWER_S = 5.0
_HOST = b"127.0.0.1"  # bytes: for text, Python would import a module in the child
_forking = threading.Lock()


def serve_inside(pid: int, services: Sequence[LocalService]) -> Callable[[], None]:
    """Let every service listen in the network of a process, too; return what ends that. OSError: none listens there.

    An open listener keeps the network of a process that has ended: close it with the process."""
    with contextlib.ExitStack() as opened:
        for service in services:
            opened.callback(service.serve(_listener(pid, service.port)))
        return opened.pop_all().close


def _listener(pid: int, port: int) -> socket.socket:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.ExitStack() as closed:
        closed.callback(here.close)
        closed.callback(there.close)
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)  # noqa: TID251 - a namespace, no file
        closed.callback(os.close, network)
        owner = fcntl.ioctl(network, _OWNER)
        closed.callback(os.close, owner)
        with process_tree.starting():
            child = _fork()
            if child == 0:
                _answer(owner, network, port, there)
            process_tree.started(child)
        try:
            if not waiting.readable([here.fileno()], _ANSWER_S):
                raise OSError(f"no listener in the sandbox's network within {_ANSWER_S:g} s")
            said, fds, _, _ = socket.recv_fds(here, 1000, 1)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            process_tree.reaped(child)
    if not fds:
        raise OSError(f"no listener in the sandbox's network: {said.decode(errors='replace')}")
    return socket.socket(fileno=fds[0])


def _fork() -> int:
    with _forking, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside other threads; see the head
        return os.fork()


def _answer(owner: int, network: int, port: int, there: socket.socket) -> None:
    """Make the listener and pass it on. Never returns."""
    try:
        syscalls.die_with_parent()
        syscalls.enter_namespace(owner, _NEW_USER)
        syscalls.enter_namespace(network, _NEW_NET)
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((_HOST, port))
        listener.listen(128)
        socket.send_fds(there, [b"1"], [listener.fileno()])
    except BaseException as error:  # noqa: BLE001 - nothing may run on in this process
        there.send(str(error).encode()[:1000])
    finally:
        os._exit(0)
