"""Level B: a new thread drops its rights with Landlock and seccomp, starts the process, and ends.

Rights belong to a thread, and a child has those of the thread that forked it. So no program is needed between the
worker and the step, and no Python code runs between fork and exec.

A right granted for a folder cannot be revoked below it. To keep `hidden` and `protected` paths closed inside an open
folder, rights are granted to the folder's other entries one by one; then no new entries can be made in that folder.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from farro.host import processes
from farro.host.processes import Launch, NotStarted, Process
from farro.sandbox import paths, seccomp, syscalls
from farro.sandbox.confinement import Confinement, SharedLimits, limits_of, within
from farro.sandbox.supervised_connects import supervise
from farro.sandbox.syscalls import machine

T = TypeVar("T")

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK, _REFER, _TRUNCATE, _IOCTL_DEV = 1 << 6, 1 << 11, 1 << 13, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_TCP = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEV = "/dev"


def start(
    abi: int, launch: Launch, confinement: Confinement, bounds: SharedLimits | None = None
) -> Process | NotStarted:
    """Like processes.start, confined. PathRefused: nothing was started, and no descriptor is closed."""
    served = bool(confinement.services) and not confinement.network
    rules = ruleset_of(confinement, abi)
    connects: list[int | None] = []

    def spawn(fork: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        return on_a_new_thread(lambda: confined(fork))

    def confined(fork: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        try:
            if bounds is not None:
                bounds.enter()
            connects.append(_give_up(rules, network=confinement.network, supervised=served))
        except OSError as error:
            raise RightsNotDropped(str(error)) from error
        return fork()

    try:
        limits = limits_of(confinement, bounds, alone=False)
        process = processes.start(launch, limits=limits, spawn=spawn)
        if bounds is not None and isinstance(process, Process):
            bounds.attach_started(process.pid)
        return process
    except RightsNotDropped as unconfined:
        return NotStarted(reason="not_supported", message=f"the sandbox could not be entered: {unconfined}")
    finally:
        os.close(rules)
        for fd in connects:
            if fd is not None:  # not on the thread without rights: its threads have none either
                supervise(fd, [("127.0.0.1", service.port) for service in confinement.services])


def give_up_rights(confinement: Confinement, abi: int) -> None:
    """Drop this thread's rights for good."""
    rules = ruleset_of(confinement, abi)
    try:
        _give_up(rules, network=confinement.network)
    finally:
        os.close(rules)


def _give_up(ruleset: int, *, network: bool, supervised: bool = False) -> int | None:
    """Return the descriptor of supervised connections if there are any."""
    syscalls.no_new_privileges()
    syscalls.drop_capabilities()
    syscalls.landlock_enter(ruleset)
    name = machine()
    assert name is not None
    program = seccomp.program(name, inet=network, attributes=False, supervised=supervised)
    if supervised:
        return syscalls.load_supervised_filter(program)  # last: it refuses these calls
    syscalls.load_filter(program)
    return None


class RightsNotDropped(Exception):
    """A right could not be dropped: nothing was started."""


def on_a_new_thread(call: Callable[[], T]) -> T:
    """Return what the call returns, or raise what it raises, on a thread that ends with it: rights that it drops are
    dropped for good."""
    returned: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            returned.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            raised.append(error)

    thread = threading.Thread(target=run, name="confined", daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return returned[0]


def handled(abi: int) -> int:
    """Return every kind of file access that this version can refuse."""
    bits = 13 if abi < 2 else 14 if abi < 3 else 15 if abi < 5 else 16
    return (1 << bits) - 1


def ruleset_of(confinement: Confinement, abi: int) -> int:
    """Return the confinement as a ruleset; the caller closes it."""
    every = handled(abi)
    net = _TCP if abi >= 4 and not confinement.network else 0
    fd = syscalls.landlock_ruleset(every, net, _ABSTRACT_SOCKETS_AND_SIGNALS if abi >= 6 else 0, abi)
    try:
        for folder in ("/",) if confinement.reads is None else confinement.reads:
            parts = list(_open_parts(folder, (*confinement.hidden, _DEV)))
            if parts != [folder]:  # names may be seen: a rule for the folder alone cannot be written
                _allow(fd, folder, _READ_DIR)
            for path in parts:
                _allow(fd, path, _READ | _READ_DIR)
        for name in _DEVICES:
            _allow(fd, f"{_DEV}/{name}", (_READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV) & every)
        write = every & ~(_MAKE_CHAR | _MAKE_BLOCK)
        tmp = () if confinement.tmp is None else (confinement.tmp,)
        for folder in (*confinement.writable, *tmp):
            for path in _open_parts(folder, (*confinement.protected, *confinement.hidden)):
                if path == folder or not os.path.islink(path):  # a link itself grants nothing; its target may
                    _allow(fd, path, write)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_parts(folder: str, closed: Sequence[str]) -> Iterator[str]:
    """Yield `folder`, or recursively those of its entries that contain nothing closed."""
    inside = [path for path in closed if within(path, folder)]
    if not inside:
        yield folder
    elif folder not in inside:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                yield from _open_parts(f"{folder.rstrip('/')}/{name}", inside)


def _allow(ruleset_fd: int, path: str, access: int) -> None:
    """Grant access to a path. PathRefused: a writable path is not the one that was allowed."""
    if access & _WRITE_FILE and not within(path, _DEV):
        fd = paths.pin(path)
    else:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)  # noqa: TID251 - opens nothing
        except OSError:  # gone meanwhile, or not to be entered by us either
            return
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISLNK(mode):  # its target may be hidden; if not, it is granted by its own path
            return
        if not stat.S_ISDIR(mode):
            access &= _OF_FILES
        if access:
            syscalls.landlock_allow(ruleset_fd, fd, access)
    finally:
        os.close(fd)
