"""Level B: a new thread drops its rights with Landlock and seccomp, starts the process, and ends.

Rights belong to a thread, and a child has those of the thread that forked it. So no program is needed between the
worker and the step, and no Python code runs between fork and exec.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from typing import NoReturn

from farro.host import processes
from farro.host.processes import NotStarted, Process
from farro.sandbox import landlock, seccomp, syscalls
from farro.sandbox import limits as bounding
from farro.sandbox.confinement import Confinement, Launch
from farro.sandbox.limits import SharedLimits
from farro.sandbox.syscall_numbers import machine


def start(abi: int, launch: Launch, bounds: SharedLimits | None = None) -> Process | NotStarted:
    """Like processes.start, confined. PathRefused: nothing was started, and stdin is not closed."""
    confinement = launch.confinement
    ruleset = landlock.ruleset(confinement, abi)

    def prepare() -> None:
        if bounds is not None:
            bounds.enter()
        _give_up(ruleset, network=confinement.network)

    def spawn(fork: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        return _on_a_thread_of_its_own(prepare, fork)

    try:
        process = processes.start(
            launch.argv,
            executable=launch.file,
            stdin=launch.stdin,
            stdout=launch.stdout,
            stderr=launch.stderr,
            cwd=launch.cwd,
            env=launch.env,
            limits=(bounds or bounding).limits(confinement, alone=False),
            spawn=spawn,
        )
        if bounds is not None and isinstance(process, Process):
            bounds.attach_started(process.pid)
        return process
    except RightsNotDropped as unconfined:
        return NotStarted(reason="not_supported", message=f"the sandbox could not be entered: {unconfined}")
    finally:
        os.close(ruleset)


def give_up_rights(confinement: Confinement, abi: int) -> None:
    """Drop this thread's rights for good."""
    ruleset = landlock.ruleset(confinement, abi)
    try:
        _give_up(ruleset, network=confinement.network)
    finally:
        os.close(ruleset)


def _give_up(ruleset: int, *, network: bool) -> None:
    syscalls.no_new_privileges()
    syscalls.drop_capabilities()
    syscalls.landlock_enter(ruleset)
    name = machine()
    assert name is not None
    syscalls.load_filter(seccomp.program(name, inet=network, attributes=False))  # last: it refuses these calls


class RightsNotDropped(Exception):
    """A right could not be dropped: nothing was started."""


def _on_a_thread_of_its_own(
    prepare: Callable[[], None], fork: Callable[[], subprocess.Popen[bytes]]
) -> subprocess.Popen[bytes]:
    came: list[subprocess.Popen[bytes]] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            try:
                prepare()
            except OSError as error:
                raise RightsNotDropped(str(error)) from error
            came.append(fork())
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits
            failed.append(error)

    thread = threading.Thread(target=run, name="confined")
    thread.start()
    thread.join()
    return came[0] if came else _raise(failed[0])


def _raise(error: BaseException) -> NoReturn:
    raise error
