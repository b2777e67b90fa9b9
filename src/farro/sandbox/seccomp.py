"""Build the seccomp program that refuses system calls of a confined process. Pure: it returns bytes.

On level A bubblewrap loads the program; on level B farro loads it with `syscalls.load_filter`.

It is a deny-list, not an allow-list: steps run arbitrary programs, and if one failed because of a harmless new system
call, users would switch the sandbox off. Calls that could lead out of the sandbox are refused with an error that
programs can handle. Calls that need capabilities are refused too, although a confined process has none. Socket families
are an allow-list.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator

from farro.sandbox.syscalls import AUDIT_ARCH, NUMBERS

# Programs that do not try to leave the sandbox do not need these.
_REFUSED = {
    errno.EPERM: (
        # other roots, other mounts, other namespaces
        *("mount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr", "move_mount", "fsopen"),
        *("fsconfig", "fsmount", "fspick", "mount_setattr", "unshare", "setns"),
        # other processes' memory and descriptors
        *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "process_madvise"),
        # the kernel itself
        *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "bpf", "perf_event_open"),
        *("userfaultfd", "reboot", "swapon", "swapoff", "quotactl", "quotactl_fd", "acct", "syslog", "iopl", "ioperm"),
        *("add_key", "request_key", "keyctl", "vhangup", "sethostname", "setdomainname", "lookup_dcookie"),
        *("settimeofday", "clock_settime", "adjtimex", "clock_adjtime"),
        # files by number instead of by path, and watching the files of others
        *("name_to_handle_at", "open_by_handle_at", "fanotify_init"),
    ),
    # After ENOSYS, programs fall back to the older call, whose arguments a filter can check. io_uring makes calls that
    # no filter sees.
    errno.ENOSYS: ("clone3", "openat2", "io_uring_setup", "io_uring_enter", "io_uring_register"),
}
# On level B no read-only mount protects attributes. Programs that copy them (cp -a, tar) continue without.
_ATTRIBUTES = (
    *("setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr"),
    *("setxattrat", "removexattrat", "file_setattr"),
)
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_IOCTLS = {
    0x5412: errno.EPERM,  # TIOCSTI: types on the terminal from which the worker was started
    0x541C: errno.EPERM,  # TIOCLINUX: pastes there
    0x40086602: errno.EOPNOTSUPP,  # FS_IOC_SETFLAGS: works on a read-only descriptor
    0x401C5820: errno.EOPNOTSUPP,  # FS_IOC_FSSETXATTR
    0x40806685: errno.EOPNOTSUPP,  # FS_IOC_ENABLE_VERITY: makes the file read-only for ever
    0x800C6613: errno.EOPNOTSUPP,  # FS_IOC_SET_ENCRYPTION_POLICY
}
# The ioctls of btrfs and bcachefs: with a read-only descriptor a step could put a snapshot of its files into any folder
# that its user may write, for example as a job into the queue. Landlock does not check this. Cloning, which cp uses on
# every filesystem, has numbers in the range of btrfs; it is allowed (_CLONES).
_SNAPSHOTS = (0x9400, 0xBC00)
_IOCTL_KIND = 0xFF00
_CLONES = (0x40049409, 0x4020940D, 0xC0189436)  # FICLONE, FICLONERANGE, FIDEDUPERANGE: need a writable descriptor
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_SOCKET_KIND, _STREAM, _SEQPACKET = 0xF, 1, 5  # the other bits are flags
_TCP = 6
_FAST_OPEN = 0x20000000  # MSG_FASTOPEN: sends to an address, without connect
_S_IFMT, _S_IFCHR, _S_IFBLK = 0o170000, 0o020000, 0o060000
_S_ISUID, _S_ISGID = 0o4000, 0o2000
_O_CREAT, _O_TMPFILE = 0o100, 0o20000000  # on both machines
_X32 = 0x40000000

# Opcodes of classic BPF.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _ERRNO, _NOTIFY = 0x7FFF0000, 0x00050000, 0x7FC00000
_NR, _ARCH, _ARG = 0, 4, 16  # offsets in struct seccomp_data; both machines are little-endian


def program(machine: str, *, inet: bool, attributes: bool, supervised: bool = False) -> bytes:
    """Return the filter for a machine. `inet`: allow internet sockets. `attributes`: allow setting extended ones.
    `supervised`: allow TCP, without servers, and ask a supervisor about every connection."""
    lines = [
        _line(_LOAD, _ARCH),
        *_unless(_EQUAL, AUDIT_ARCH[machine], errno.ENOSYS),  # 32-bit calls have other numbers; none is needed
        _line(_LOAD, _NR),
    ]
    if machine == "x86_64":
        lines += _when(_AT_LEAST, _X32, errno.ENOSYS)
    for code, names in _refused(attributes):
        for name in names:
            if name in NUMBERS[machine]:
                lines += _when(_EQUAL, NUMBERS[machine][name], code)
    for name, checks in (*_looked_into(inet, supervised), *(_supervised() if supervised else ())):
        if name in NUMBERS[machine]:
            # For any other call, jump over these checks. The last line of the checks allows the call.
            lines += [_line(_EQUAL, NUMBERS[machine][name], 0, len(checks)), *checks]
    lines.append(_line(_RETURN, _ALLOW))
    return b"".join(lines)


def _refused(attributes: bool) -> Iterator[tuple[int, tuple[str, ...]]]:
    yield from _REFUSED.items()
    if not attributes:
        yield errno.EOPNOTSUPP, _ATTRIBUTES


def _supervised() -> Iterator[tuple[str, list[bytes]]]:
    """Close each way to another host, or to be reached, that is not connect(2)."""
    yield "connect", [_line(_RETURN, _NOTIFY)]
    yield "listen", [_line(_RETURN, _ERRNO | errno.EOPNOTSUPP)]  # without bind it takes a port on every address
    for name, place in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
        refused = _when(_ANY_BIT, _FAST_OPEN, errno.EOPNOTSUPP)
        yield name, [_line(_LOAD, _ARG + 8 * place), *refused, _line(_RETURN, _ALLOW)]


def _looked_into(inet: bool, supervised: bool) -> Iterator[tuple[str, list[bytes]]]:
    allow = _line(_RETURN, _ALLOW)
    yield "clone", [_line(_LOAD, _ARG), *_when(_ANY_BIT, _NEW_NAMESPACES, errno.EPERM), allow]
    ioctls = [line for number, code in _IOCTLS.items() for line in _when(_EQUAL, number, code)]
    for number in _CLONES:
        ioctls += [_line(_EQUAL, number, 0, 1), allow]
    ioctls.append(_line(_AND, _IOCTL_KIND))
    for kind in _SNAPSHOTS:
        ioctls += _when(_EQUAL, kind, errno.EOPNOTSUPP)
    yield "ioctl", [_line(_LOAD, _ARG + 8), *ioctls, allow]
    # A setuid or setgid file that a step leaves in a writable folder would give its rights to a later user of the file.
    as_owner = _when(_ANY_BIT, _S_ISUID | _S_ISGID, errno.EPERM)
    for name, place in (("mknod", 1), ("mknodat", 2)):
        devices = [line for kind in (_S_IFCHR, _S_IFBLK) for line in _when(_EQUAL, kind, errno.EPERM)]
        yield name, [_line(_LOAD, _ARG + 8 * place), *as_owner, _line(_AND, _S_IFMT), *devices, allow]
    for name, place in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2), ("creat", 1)):
        yield name, [_line(_LOAD, _ARG + 8 * place), *as_owner, allow]
    for name, place in (("open", 1), ("openat", 2)):
        made = [_line(_LOAD, _ARG + 8 * place), _line(_ANY_BIT, _O_CREAT | _O_TMPFILE, 1, 0), allow]
        yield name, [*made, _line(_LOAD, _ARG + 8 * (place + 1)), *as_owner, allow]
    # Lowering another process's limits (open files, CPU time) can kill it. PID 0 is the calling process.
    yield "prlimit64", [_line(_LOAD, _ARG), *_unless(_EQUAL, 0, errno.EPERM), allow]
    # A Unix socket connects by path to any server on the machine (docker's runs as root), and no mount prevents it.
    families = [_line(_LOAD, _ARG)]
    if inet or supervised:
        for family in (_NETLINK,) if supervised else (_INET, _INET6, _NETLINK):
            families += [_line(_EQUAL, family, 0, 1), allow]
    if supervised:
        # TCP only: UDP needs no connection, and other protocols, such as MPTCP, connect past the checks of TCP.
        tcp = [_line(_LOAD, _ARG + 8), _line(_AND, _SOCKET_KIND), *_unless(_EQUAL, _STREAM, errno.EPROTONOSUPPORT)]
        tcp += [_line(_LOAD, _ARG + 16), _line(_EQUAL, 0, 2, 0), *_unless(_EQUAL, _TCP, errno.EPROTONOSUPPORT), allow]
        families += [_line(_EQUAL, _INET, 1, 0), _line(_EQUAL, _INET6, 0, len(tcp)), *tcp]
    elif not inet:
        for family in (_INET, _INET6):
            families += _when(_EQUAL, family, errno.ENETUNREACH)
    yield "socket", [*families, _line(_RETURN, _ERRNO | errno.EAFNOSUPPORT)]
    # A pair of sockets is connected to itself. But a datagram (or raw) socket of a pair can later connect to any path.
    pairs = [_line(_LOAD, _ARG), *_unless(_EQUAL, _UNIX, errno.EAFNOSUPPORT), _line(_LOAD, _ARG + 8)]
    pairs.append(_line(_AND, _SOCKET_KIND))
    for kind in (_STREAM, _SEQPACKET):
        pairs += [_line(_EQUAL, kind, 0, 1), allow]
    yield "socketpair", [*pairs, _line(_RETURN, _ERRNO | errno.EAFNOSUPPORT)]


def _when(test: int, value: int, code: int) -> list[bytes]:
    return [_line(test, value, 0, 1), _line(_RETURN, _ERRNO | code)]


def _unless(test: int, value: int, code: int) -> list[bytes]:
    return [_line(test, value, 1, 0), _line(_RETURN, _ERRNO | code)]


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
