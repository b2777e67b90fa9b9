"""Level B: let a confined process connect to single addresses.

Landlock knows ports, not addresses. So the filter passes every connect(2) on to a thread of the worker. That copies
the address out of the caller, compares it, takes the caller's socket and connects it itself, with its copy: what the
caller does with its memory meanwhile changes nothing. The filter closes the other ways out (seccomp._supervised).
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import sys
import threading
from collections.abc import Collection

from farro.sandbox import syscalls

if sys.platform != "win32":
    import fcntl

_RECEIVE, _VALID, _SEND = 0xC0502100, 0x40082102, 0xC0182101
_REQUEST = struct.Struct("=QIIiIQ6Q")  # id, thread, flags, and struct seccomp_data
_REFUSED = errno.ENETUNREACH  # as without a network
_LONGEST = 128  # bytes of an address
_IPV4_IN_IPV6 = bytes(10) + b"\xff\xff"

Address = tuple[str, int]


def supervise(fd: int, allowed: Collection[Address]) -> None:
    """Answer the calls that the filter of this descriptor passes on, until no process has that filter any more."""
    threading.Thread(target=_answer_all, args=(fd, frozenset(allowed)), name="connects", daemon=True).start()


def _answer_all(fd: int, allowed: Collection[Address]) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    try:
        while poll.poll()[0][1] & select.POLLIN:
            request = bytearray(_REQUEST.size)
            with contextlib.suppress(OSError):  # the caller has gone, or a signal interrupted its call
                fcntl.ioctl(fd, _RECEIVE, request)
                call, thread, _, _, _, _, number, pointer, length, *_ = _REQUEST.unpack(request)
                code = _connected(fd, call, thread, number & 0xFFFFFFFF, (pointer, length), allowed)
                fcntl.ioctl(fd, _SEND, struct.pack("=Qqii", call, 0, -code, 0))
    finally:
        os.close(fd)


def _connected(
    fd: int, call: int, thread: int, number: int, place: tuple[int, int], allowed: Collection[Address]
) -> int:
    """Connect the caller's socket if it may go there; return the error number, 0 if it is connected."""
    try:
        with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
            memory.seek(place[0])
            address = _address(memory.read(min(place[1], _LONGEST)))
        if address is None or address not in allowed:
            return _REFUSED
        process = os.pidfd_open(_process_of(thread))
        try:
            fcntl.ioctl(fd, _VALID, struct.pack("=Q", call))  # the thread is still the one that called
            copy = syscalls.take_descriptor(process, number)
        finally:
            os.close(process)
        return _connect(copy, address)
    except (OSError, ValueError, OverflowError) as error:
        return (error.errno if isinstance(error, OSError) else None) or _REFUSED


def _address(data: bytes) -> Address | None:
    """Return the address and port of an internet address; one of IPv4 in IPv6 is that of IPv4."""
    family = struct.unpack_from("=H", data)[0] if len(data) >= 2 else 0
    if family == socket.AF_INET and len(data) >= 8:
        raw = data[4:8]
    elif family == socket.AF_INET6 and len(data) >= 24 and data[8:20] == _IPV4_IN_IPV6:
        raw = data[20:24]
    else:
        return None
    return socket.inet_ntoa(raw), int(struct.unpack_from(">H", data, 2)[0])


def _connect(fd: int, address: Address) -> int:
    """Connect it as the caller would have: without waiting if its socket does not wait."""
    try:
        taken = socket.socket(fileno=fd)
    except OSError:
        os.close(fd)
        raise
    with taken:
        host, port = address
        if taken.type != socket.SOCK_STREAM or taken.family not in (socket.AF_INET, socket.AF_INET6):
            return errno.EAFNOSUPPORT
        text = host if taken.family == socket.AF_INET else f"::ffff:{host}"
        return taken.connect_ex((text.encode(), port))  # bytes: text is looked up as a name, by another module


def _process_of(thread: int) -> int:
    with open(f"/proc/{thread}/status", "rb") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(b"Tgid:"))
