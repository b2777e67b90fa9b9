"""Make the system calls that Python does not offer: drop a thread's rights, and open a path beneath a folder; and list
the numbers of system calls.

None of them changes a file, so they bypass host.fs.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import sys

_NO_NEW_PRIVS, _CAPBSET_DROP, _SECUREBITS, _CAP_AMBIENT = 38, 24, 28, 47
_AMBIENT_CLEAR_ALL = 4
_LAST_CAPABILITY = 63
# uid 0 gains no capability when it executes a program (NOROOT), and cannot undo that (the lock bits).
_ROOT_IS_NOBODY = 0b00101111
_CAPABILITY_VERSION_3 = 0x20080522
_SECCOMP_FILTER, _ACTION_AVAILABLE = 1, 2
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
_USER_NOTIF = 0x7FC00000
_DEATH_SIGNAL = 1
_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_BENEATH_WITHOUT_MAGIC = 0x08 | 0x02


# The numbers of system calls on the machines that farro supports.
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_MACHINES = ("x86_64", "aarch64")  # the columns of the table
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "open": (2, None),
    "ioctl": (16, 29),
    "socket": (41, 198),
    "connect": (42, 203),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "listen": (50, 201),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "creat": (85, None),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "ptrace": (101, 117),
    "syslog": (103, 116),
    "capset": (126, 91),
    "mknod": (133, None),
    "vhangup": (153, 58),
    "pivot_root": (155, 41),
    "adjtimex": (159, 171),
    "chroot": (161, 51),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "lookup_dcookie": (212, 18),
    "clock_settime": (227, 112),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "openat": (257, 56),
    "mknodat": (259, 33),
    "fchmodat": (268, 53),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "prlimit64": (302, 261),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "clock_adjtime": (305, 266),
    "sendmmsg": (307, 269),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "finit_module": (313, 273),
    "seccomp": (317, 277),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
}
# From 424 on every machine has the same numbers.
_ALL = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "openat2": 437,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
    "fchmodat2": 452,
    "setxattrat": 463,
    "removexattrat": 466,
    "open_tree_attr": 467,
    "file_setattr": 469,
}
NUMBERS: dict[str, dict[str, int]] = {
    name: {call: number for call, row in _NUMBERS.items() if (number := row[column]) is not None} | _ALL
    for column, name in enumerate(_MACHINES)
}


def machine() -> str | None:
    """Return the name of this machine in these tables; None if farro does not know its numbers."""
    name = platform.machine().lower()
    name = {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)
    return name if name in NUMBERS else None


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_machine = machine() if sys.platform == "linux" else None


def available() -> bool:
    """Return whether this machine's system call numbers are known."""
    return _libc is not None and _machine is not None


def landlock_abi() -> int:
    """Return the version of Landlock that the kernel supports; 0 if it has none."""
    try:
        return _call("landlock_create_ruleset", None, 0, _RULESET_VERSION)
    except OSError:
        return 0


def landlock_ruleset(fs: int, net: int, scoped: int, abi: int) -> int:
    """Create a ruleset that refuses these kinds of access where no rule grants them. The caller closes it."""
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    return _call("landlock_create_ruleset", struct.pack("=QQQ", fs, net, scoped)[:size], size, 0)


def landlock_allow(ruleset: int, path_fd: int, access: int) -> None:
    """Grant `access` to the file or folder of `path_fd`, and to everything inside it."""
    _call("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", access, path_fd), 0)


def landlock_enter(ruleset: int) -> None:
    """Apply the ruleset to this thread and all that it starts, for good."""
    _call("landlock_restrict_self", ruleset, 0)


def no_new_privileges() -> None:
    """Prevent this thread, and all that it starts, from gaining rights through setuid programs."""
    _prctl(_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Drop all capabilities of this thread and all that it starts, for good, also for uid 0."""
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
    """Apply the seccomp program to this thread and all that it starts, for good."""
    _load_filter(program, 0)


def load_supervised_filter(program: bytes) -> int:
    """Like `load_filter`. Return a descriptor that reports the calls that the program passes on to a supervisor."""
    try:
        return _load_filter(program, _NEW_LISTENER | _WAIT_KILLABLE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return _load_filter(program, _NEW_LISTENER)  # Linux before 5.19: a signal repeats a call that is being answered


def _load_filter(program: bytes, flags: int) -> int:
    code = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    return _call("seccomp", _SECCOMP_FILTER, flags, head)


def supervises() -> bool:
    """Return whether calls of confined processes can be passed on to this process, which makes them itself."""
    try:
        _call("seccomp", _ACTION_AVAILABLE, 0, struct.pack("=I", _USER_NOTIF))
        own = os.pidfd_open(os.getpid())
        try:
            os.close(take_descriptor(own, own))
        finally:
            os.close(own)
    except OSError:
        return False
    return True


def take_descriptor(pidfd: int, fd: int) -> int:
    """Return a copy of a descriptor of another process."""
    return _call("pidfd_getfd", pidfd, fd, 0)


def enter_namespace(fd: int, kind: int) -> None:
    """Move this process (a user namespace; it must have one thread) or this thread into a namespace."""
    _call("setns", fd, kind)


def die_with_parent() -> None:
    """Let the kernel kill this process when the thread that forked it ends."""
    _prctl(_DEATH_SIGNAL, signal.SIGKILL)


def open_beneath(folder_fd: int, path: str, flags: int) -> int:
    """Open `path` below the folder. OSError: EXDEV if a link leads out of the folder, ENOSYS on an old kernel."""
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, _BENEATH_WITHOUT_MAGIC)
    return _call("openat2", folder_fd, os.fsencode(path), how, len(how))


def _has_capabilities() -> bool:
    with open("/proc/thread-self/status", "rb") as file:
        held = [line.split()[1] for line in file if line.startswith((b"CapPrm:", b"CapBnd:"))]
    # Without a permitted capability a thread cannot drop its bounding set, and after no_new_privileges cannot use it.
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
