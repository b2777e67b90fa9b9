"""System calls by which a thread gives rights up, and paths that are opened beneath a folder: plain functions.

When they are made lives in landlock, threads and paths. Nothing here changes a file, so nothing passes system/fs.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

from farro.sandbox.syscall_numbers import NUMBERS, machine

_NO_NEW_PRIVS, _CAPBSET_DROP, _SECUREBITS, _CAP_AMBIENT = 38, 24, 28, 47
_AMBIENT_CLEAR_ALL = 4
_LAST_CAPABILITY = 63
# Being uid 0 gives an executed program nothing back (NOROOT), for good (the locks).
_ROOT_IS_NOBODY = 0b00101111
_CAPABILITY_VERSION_3 = 0x20080522
_SECCOMP_FILTER = 1
_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_BENEATH_WITHOUT_MAGIC = 0x08 | 0x02

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_machine = machine() if sys.platform == "linux" else None


def available() -> bool:
    """Whether this machine's calls are known."""
    return _libc is not None and _machine is not None


def landlock_abi() -> int:
    """The version of Landlock that the kernel speaks; 0: none."""
    try:
        return _call("landlock_create_ruleset", None, 0, _RULESET_VERSION)
    except OSError:
        return 0


def landlock_ruleset(fs: int, net: int, scoped: int, abi: int) -> int:
    """A ruleset that refuses these kinds of access wherever no rule grants them. The caller closes it."""
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    return _call("landlock_create_ruleset", struct.pack("=QQQ", fs, net, scoped)[:size], size, 0)


def landlock_allow(ruleset: int, path_fd: int, access: int) -> None:
    """Grant `access` to what `path_fd` is, and to all that lies in it."""
    _call("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", access, path_fd), 0)


def landlock_enter(ruleset: int) -> None:
    """From now on this thread, and what it starts, is held to the ruleset."""
    _call("landlock_restrict_self", ruleset, 0)


def no_new_privileges() -> None:
    """setuid programs give this thread, and what it starts, nothing any more."""
    _prctl(_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """This thread, and what it starts, has none and gets none; for uid 0 also."""
    if not _has_capabilities():
        return
    _prctl(_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    _prctl(_SECUREBITS, _ROOT_IS_NOBODY)
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            _prctl(_CAPBSET_DROP, capability)
        except OSError:  # the kernel has no more of them
            break
    _call("capset", struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), struct.pack("=6I", 0, 0, 0, 0, 0, 0))


def load_filter(program: bytes) -> None:
    """From now on this thread, and what it starts, is held to the seccomp program."""
    code = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    _call("seccomp", _SECCOMP_FILTER, 0, head)


def open_beneath(folder_fd: int, path: str, flags: int) -> int:
    """Open `path` from the folder, through links only where they stay beneath it (EXDEV else). ENOSYS: old kernel."""
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, _BENEATH_WITHOUT_MAGIC)
    return _call("openat2", folder_fd, os.fsencode(path), how, len(how))


def _has_capabilities() -> bool:
    with open("/proc/thread-self/status", "rb") as file:
        held = [line.split()[1] for line in file if line.startswith((b"CapPrm:", b"CapBnd:"))]
    # Without any that it may use it cannot drop the bounding set either, nor use what is in it: no_new_privileges.
    return int(held[0], 16) != 0


def _prctl(option: int, value: int) -> None:
    assert _libc is not None
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        raise _trouble()


def _call(name: str, *args: int | bytes | None) -> int:
    if _libc is None or _machine is None:
        raise OSError(38, "this system call is not known here", name)
    wrapped = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result: int = _libc.syscall(ctypes.c_long(NUMBERS[_machine][name]), *wrapped)
    if result < 0:
        raise _trouble()
    return result


def _trouble() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))
