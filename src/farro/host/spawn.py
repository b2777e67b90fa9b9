"""Start a program by posix_spawn(3) of the GNU C library, while other threads of this process go on.

The kernel suspends the thread that starts a program until the program is mapped. `subprocess.Popen` and
`os.posix_spawn` keep Python's interpreter lock for that time; a call through ctypes releases it. Measured and decided
in docs/decisions/a-program-starts-beside-other-slots.md.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from farro.host.thread_turns import RESTING

_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
_SETSIGDEF, _SETSID = 0x04, 0x80  # of spawn.h
_SIZE = 512  # bytes; the library's two structures have 80 and 336

_libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
AVAILABLE = hasattr(_libc, "posix_spawn_file_actions_addclosefrom_np")  # since 2.34; other C libraries lack it


class Streams(NamedTuple):
    """The open files of a program; `stdin` None: /dev/null."""

    stdin: int | None
    stdout: int
    stderr: int


def posix_spawn(file: str, argv: Sequence[str], streams: Streams, *, cwd: str, env: Mapping[str, str]) -> int:
    """Execute `file` in a new session, with these streams (descriptors greater than 2) and no other descriptor; return
    its PID. Raises OSError, or ValueError for text that cannot be passed on."""
    if "=" in "".join(env):
        raise ValueError("illegal environment variable name")
    arguments = _texts(argv)
    variables = _texts([f"{name}={value}" for name, value in env.items()])
    pid = ctypes.c_int()
    actions = ctypes.create_string_buffer(_SIZE)
    _check(_libc.posix_spawn_file_actions_init(actions))
    try:
        for target, fd in enumerate(streams):
            if fd is None:
                _check(_libc.posix_spawn_file_actions_addopen(actions, target, b"/dev/null", os.O_RDWR, 0))
            else:
                _check(_libc.posix_spawn_file_actions_adddup2(actions, fd, target))
        _check(_libc.posix_spawn_file_actions_addchdir_np(actions, _encoded(cwd)))
        _check(_libc.posix_spawn_file_actions_addclosefrom_np(actions, 3))
        name = _encoded(file)
        with RESTING:
            code = _libc.posix_spawn(ctypes.byref(pid), name, actions, _ATTRIBUTES, arguments, variables)
        _check(code)
    finally:
        _libc.posix_spawn_file_actions_destroy(actions)
    return pid.value


def _texts(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    """Return an array of C strings that ends with a null pointer. Encoded at once: one by one takes three times as
    long."""
    encoded = "\0".join(texts).encode(_ENCODING, _ERRORS).split(b"\0") if texts else []
    if len(encoded) != len(texts):
        raise ValueError("embedded null byte")
    return (ctypes.c_char_p * (len(encoded) + 1))(*encoded)


def _encoded(path: str) -> bytes:
    encoded = path.encode(_ENCODING, _ERRORS)
    if b"\0" in encoded:
        raise ValueError("embedded null byte")
    return encoded


def _check(code: int) -> None:
    if code != 0:
        raise OSError(code, os.strerror(code))


def _attributes() -> ctypes.Array[ctypes.c_char]:
    """Return the attributes of every program: a session of its own, and the signals that Python ignores as usual."""
    attributes, usual = ctypes.create_string_buffer(_SIZE), ctypes.create_string_buffer(128)
    _check(_libc.posix_spawnattr_init(attributes))
    _libc.sigemptyset(usual)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        _libc.sigaddset(usual, number)
    _check(_libc.posix_spawnattr_setsigdefault(attributes, usual))
    _check(_libc.posix_spawnattr_setflags(attributes, ctypes.c_short(_SETSIGDEF | _SETSID)))
    return attributes


_ATTRIBUTES = _attributes() if AVAILABLE else None
