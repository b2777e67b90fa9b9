"""Run the seccomp programs in a small interpreter: the answer to each system call, on both architectures."""

from __future__ import annotations

import errno
import struct

import pytest

from farro.sandbox.seccomp import program
from farro.sandbox.syscalls import AUDIT_ARCH, NUMBERS

ALLOW = 0x7FFF0000
ERRNO = 0x00050000


def run(code: bytes, arch: int, number: int, *args: int) -> int:
    """Interpret classic BPF as the kernel does, limited to the instructions that are used."""
    args = (*args, *[0] * (6 - len(args)))
    data = struct.pack("<IIQ6Q", number, arch, 0, *(value & (2**64 - 1) for value in args))
    lines = [struct.unpack_from("<HBBI", code, at) for at in range(0, len(code), 8)]
    at = accumulator = 0
    while True:
        op, if_true, if_false, value = lines[at]
        at += 1
        if op == 0x06:
            return value
        if op == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif op == 0x54:
            accumulator &= value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[op]
            at += if_true if holds else if_false


@pytest.fixture(params=sorted(NUMBERS))
def machine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def answer(
    machine: str, name: str, *args: int, inet: bool = True, attributes: bool = True, supervised: bool = False
) -> int:
    code = program(machine, inet=inet, attributes=attributes, supervised=supervised)
    return run(code, AUDIT_ARCH[machine], NUMBERS[machine][name], *args)


def test_a_program_is_short_enough_for_the_kernel(machine: str) -> None:
    assert len(program(machine, inet=False, attributes=False)) // 8 < 4096


@pytest.mark.parametrize(
    "name", ["mount", "unshare", "setns", "ptrace", "bpf", "keyctl", "open_by_handle_at", "reboot"]
)
def test_system_calls_that_lead_out_are_refused(machine: str, name: str) -> None:
    assert answer(machine, name) == ERRNO | errno.EPERM


@pytest.mark.parametrize("name", ["clone3", "io_uring_setup", "openat2"])
def test_system_calls_with_uncheckable_arguments_are_reported_as_missing(machine: str, name: str) -> None:
    assert answer(machine, name) == ERRNO | errno.ENOSYS


def test_other_calls_are_allowed(machine: str) -> None:
    code = program(machine, inet=False, attributes=False)
    for number in (0 if machine == "x86_64" else 63, 1 if machine == "x86_64" else 64, 439, 444, 448):
        assert run(code, AUDIT_ARCH[machine], number) == ALLOW


def test_another_architecture_is_not_served(machine: str) -> None:
    code = program(machine, inet=True, attributes=True)
    for arch in (0x40000003, 0x40000028, *(set(AUDIT_ARCH.values()) - {AUDIT_ARCH[machine]})):
        assert run(code, arch, 1) == ERRNO | errno.ENOSYS


def test_calls_of_x32_are_not_served() -> None:
    code = program("x86_64", inet=True, attributes=True)
    assert run(code, AUDIT_ARCH["x86_64"], 0x40000000 | 1) == ERRNO | errno.ENOSYS


@pytest.mark.parametrize("bit", [17, 25, 26, 27, 28, 29, 30])
def test_a_clone_into_a_new_namespace_is_refused_and_others_are_not(machine: str, bit: int) -> None:
    assert answer(machine, "clone", 1 << bit | 17) == ERRNO | errno.EPERM
    assert answer(machine, "clone", 0x003D0F00) == ALLOW  # a thread
    assert answer(machine, "clone", 0x4111) == ALLOW  # vfork


def test_devices_are_not_made_and_pipes_are(machine: str) -> None:
    for kind, wanted in ((0o020666, ERRNO | errno.EPERM), (0o060666, ERRNO | errno.EPERM), (0o010666, ALLOW)):
        assert answer(machine, "mknodat", 3, 0, kind) == wanted
        if machine == "x86_64":
            assert answer(machine, "mknod", 0, kind) == wanted


def test_typing_into_a_terminal_is_refused(machine: str) -> None:
    assert answer(machine, "ioctl", 0, 0x5412) == ERRNO | errno.EPERM
    assert answer(machine, "ioctl", 0, 0x5412 | 1 << 40) == ERRNO | errno.EPERM  # the kernel reads 32 bits
    assert answer(machine, "ioctl", 0, 0x5401) == ALLOW


def test_snapshots_are_refused_and_file_clones_allowed(machine: str) -> None:
    refused = ERRNO | errno.EOPNOTSUPP
    for number in (0x5000940E, 0x50009401, 0x50009417, 0x50009418, 0x5000940F, 0x4008941A, 0x4020BC10, 0x40806685):
        assert answer(machine, "ioctl", 3, number) == refused
        assert answer(machine, "ioctl", 3, number | 1 << 40) == refused
    for number in (0x40049409, 0x4020940D, 0xC0189436, 0x5413, 0x9401 << 8):
        assert answer(machine, "ioctl", 3, number) == ALLOW


def test_only_sockets_of_allowed_families_are_created(machine: str) -> None:
    families = {"unix": 1, "inet": 2, "inet6": 10, "netlink": 16, "packet": 17, "vsock": 40, "alg": 38}
    open_ = {name for name, family in families.items() if answer(machine, "socket", family) == ALLOW}
    assert open_ == {"inet", "inet6", "netlink"}
    closed = {name for name, family in families.items() if answer(machine, "socket", family, inet=False) == ALLOW}
    assert closed == set()


def test_a_supervised_process_has_tcp_only_and_asks_for_each_connection(machine: str) -> None:
    def opened(family: int, kind: int, protocol: int) -> bool:
        return answer(machine, "socket", family, kind, protocol, inet=False, supervised=True) == ALLOW

    for family in (2, 10):
        assert opened(family, 1, 0)
        assert opened(family, 1 | 0o2000000 | 0o4000, 6)  # SOCK_CLOEXEC, SOCK_NONBLOCK
        for kind, protocol in ((1, 262), (1, 132), (2, 0), (2, 17), (3, 6), (5, 0), (5, 132)):
            assert not opened(family, kind, protocol)
    assert opened(16, 3, 0)  # netlink
    assert not any(opened(family, 1, 0) for family in (1, 17, 38, 40, 43))
    assert answer(machine, "connect", 3, inet=False, supervised=True) == 0x7FC00000
    assert answer(machine, "connect", 3, inet=False) == answer(machine, "connect", 3) == ALLOW
    assert answer(machine, "listen", 3, inet=False, supervised=True) == ERRNO | errno.EOPNOTSUPP
    for name, place in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
        for flags, wanted in ((0, ALLOW), (0x4000, ALLOW), (0x20000000, ERRNO | errno.EOPNOTSUPP)):
            args = [0] * place + [flags]
            assert answer(machine, name, *args, inet=False, supervised=True) == wanted


def test_only_socket_pairs_that_stay_connected_are_created(machine: str) -> None:
    kinds = {"stream": 1, "datagram": 2, "raw": 3, "seqpacket": 5}
    for flags in (0, 0o2000000 | 0o4000):  # SOCK_CLOEXEC, SOCK_NONBLOCK
        open_ = {name for name, kind in kinds.items() if answer(machine, "socketpair", 1, kind | flags) == ALLOW}
        assert open_ == {"stream", "seqpacket"}
    assert answer(machine, "socketpair", 30, 1) == ERRNO | errno.EAFNOSUPPORT


def test_extended_attributes_are_allowed_where_mounts_protect_them(machine: str) -> None:
    assert answer(machine, "fsetxattr") == ALLOW
    assert answer(machine, "fsetxattr", attributes=False) == ERRNO | errno.EOPNOTSUPP


def test_setuid_and_setgid_files_are_refused(machine: str) -> None:
    refused = ERRNO | errno.EPERM
    for mode, wanted in ((0o4755, refused), (0o2755, refused), (0o1777, ALLOW), (0o755, ALLOW)):
        assert answer(machine, "fchmod", 3, mode) == wanted
        assert answer(machine, "fchmodat", -100, 0, mode) == wanted
        assert answer(machine, "fchmodat2", -100, 0, mode, 0) == wanted
        assert answer(machine, "mknodat", -100, 0, 0o100000 | mode) == wanted
        assert answer(machine, "openat", -100, 0, 0o101, mode) == wanted  # O_CREAT
        assert answer(machine, "openat", -100, 0, 0o20200001, mode) == wanted  # O_TMPFILE
        assert answer(machine, "openat", -100, 0, 0o1, mode) == ALLOW  # the mode is ignored: no file is created
        if machine == "x86_64":
            assert answer(machine, "chmod", 0, mode) == wanted
            assert answer(machine, "creat", 0, mode) == wanted
            assert answer(machine, "open", 0, 0o101, mode) == wanted
            assert answer(machine, "open", 0, 0, mode) == ALLOW
            assert answer(machine, "mknod", 0, 0o100000 | mode) == wanted


def test_a_process_may_limit_only_itself(machine: str) -> None:
    assert answer(machine, "prlimit64", 0, 7) == ALLOW
    assert answer(machine, "prlimit64", 4711, 7) == ERRNO | errno.EPERM
