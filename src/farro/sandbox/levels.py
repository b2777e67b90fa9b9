"""The sandbox: find the level that this machine supports, and start processes in it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from functools import cache, partial
from typing import Literal

from farro.host import fs, processes
from farro.host.processes import Launch, NotStarted, Process
from farro.host.programs import which
from farro.lazy_dataclass import dataclass, replace
from farro.sandbox import bubblewrap, landlock, seccomp, syscalls
from farro.sandbox.confinement import Confinement, SharedLimits, limits_of
from farro.sandbox.paths import PathRefused
from farro.sandbox.reading import closed_list
from farro.sandbox.syscalls import machine

Level = Literal["A", "B", "none"]
SandboxChoice = Literal["auto", "A", "B", "none"]

_PROBE_S = 20.0
_PIECE = 1 << 20
_NO_SERVICES = "level B cannot let a process reach single hosts here: the container or the kernel refuses pidfd_getfd"
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """Whether one level works here: `why` says why not, or how that was tested."""

    level: Level
    works: bool
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sandbox:
    """One for a worker; it starts any number of processes, from any thread."""

    level: Level
    probes: tuple[Probe, ...]
    bwrap: str = ""
    abi: int = 0

    @staticmethod
    def available(wanted: SandboxChoice = "auto") -> Sandbox:
        """Return the best level that works here, or the `wanted` one if it works, else none. Cached per process."""
        return _available(wanted, os.geteuid() if hasattr(os, "geteuid") else -1)

    def gaps(self) -> tuple[str, ...]:
        """Describe what this level cannot prevent."""
        if self.level == "A":
            return (*_OF_A, *_EVERY_LEVEL)
        if self.level == "none":
            return _OF_NONE
        return (*_OF_B, *(words for needed, words in _BY_ABI if self.abi < needed), *_EVERY_LEVEL)

    @property
    def compares(self) -> bool:
        """Return whether the tree must be compared before and after: the kernel does not protect all of it."""
        return self.level != "A"

    def serves(self) -> bool:
        """Return whether a process without a network can reach single services."""
        return self.level != "B" or syscalls.supervises()

    def start(
        self, launch: Launch, *, confinement: Confinement, bounds: SharedLimits | None = None
    ) -> Process | NotStarted:
        """Like processes.start. An input file is passed through a pipe: a descriptor of the file itself could be opened
        again for writing, through /proc, and its mode and times could be set. `bounds`: limits shared by several.

        Call it from a thread that lives as long as the process: on level A the process dies with that thread."""
        env, cwd = {**launch.env, **confinement.env}, launch.cwd
        if confinement.tmp is not None:
            env |= dict.fromkeys(("TMPDIR", "TMP", "TEMP"), confinement.tmp)
        source = _piped(launch.stdin) if isinstance(launch.stdin, str) else launch.stdin
        file = launch.executable or which(launch.argv[0], env.get("PATH"), cwd)
        if file is None or not os.path.isdir(cwd) or not os.access(cwd, os.X_OK):
            _close(source, launch.stdout)
            if file is None:
                return NotStarted(reason="not_found", message=f"{launch.argv[0]}: command not found")
            return NotStarted(reason="bad_cwd", message=f"cwd {cwd}: not a folder that can be entered")
        if confinement.services and not confinement.network and not self.serves():
            _close(source, launch.stdout)
            return NotStarted(reason="not_supported", message=_NO_SERVICES)
        cwd = os.path.realpath(cwd)
        launch = replace(launch, executable=os.path.join(cwd, file), stdin=source, cwd=cwd, env=env)
        if confinement.reads is not None:
            confinement = replace(confinement, reads=closed_list(launch, confinement))
        try:
            if self.level == "A":
                return bubblewrap.start(self.bwrap, launch, confinement, bounds)
            if self.level == "B":
                return landlock.start(self.abi, launch, confinement, bounds)
        except PathRefused as refused:
            _close(source, launch.stdout)
            return NotStarted(reason="refused", message=str(refused))
        return processes.start(launch, limits=limits_of(confinement, bounds, alone=False))


@cache
def _available(wanted: SandboxChoice, _user: int) -> Sandbox:
    bwrap, abi = find_bwrap() or "", syscalls.landlock_abi()
    probes: list[Probe] = []
    if wanted in ("auto", "A"):
        why_not = _no_namespaces(bwrap)
        how = "bubblewrap started a program in namespaces of its own"
        probes.append(Probe(level="A", works=why_not is None, why=why_not or how))
    if wanted in ("auto", "B") and not any(probe.works for probe in probes):
        why_not = _no_landlock(abi)
        how = f"a thread gave its rights up (Landlock {abi}, seccomp)"
        probes.append(Probe(level="B", works=why_not is None, why=why_not or how))
    level: Level = next((probe.level for probe in probes if probe.works), "none")
    return Sandbox(level=level, probes=tuple(probes), bwrap=bwrap, abi=abi)


def find_bwrap() -> str | None:
    folders = [*os.environ.get("PATH", os.defpath).split(os.pathsep), *_SBIN, "/usr/bin"]
    places = (os.path.join(folder, "bwrap") for folder in folders if folder.startswith("/"))
    return next((place for place in places if os.path.isfile(place) and os.access(place, os.X_OK)), None)


def _no_namespaces(bwrap: str) -> str | None:
    """Return why level A does not work here, None if it does."""
    name = machine()
    if name is None:
        return "the system calls of this machine are not known to farro (Linux on x86_64 and aarch64 are)"
    if not bwrap:
        return "bubblewrap is not installed (Debian, Ubuntu, Fedora: the package bubblewrap)"
    probe = partial(_probed, bwrap, name)
    return bubblewrap.rebuilt(probe(), probe, lambda error: error)


def _probed(bwrap: str, name: str) -> str | None:
    """Start a program as a step is started; return bubblewrap's error, None if it works. Paths are bound by descriptor,
    which bubblewrap before 0.8 cannot do."""
    probe = Confinement(protected=("/",))
    with bubblewrap.Pipes() as pipes, bubblewrap.PinnedPaths(probe) as pinned:
        filter_r, filter_w = pipes.make()
        os.write(filter_w, seccomp.program(name, inet=True, attributes=True))  # noqa: TID251 - a pipe, no file
        pipes.close(filter_w)
        words = bubblewrap.arguments(probe, pinned.fds, file="/bin/sh", cwd="/")
        try:
            done = subprocess.run(
                [bwrap, *words, "--seccomp", str(filter_r), "--", "/bin/sh", "-c", ":"],
                pass_fds=(filter_r, *pinned.fds.values()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=_PROBE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{bwrap}: {error}"
    if done.returncode == 0:
        return None
    said = done.stderr.decode("utf-8", "replace").strip().split("\n")[0] or f"exit code {done.returncode}"
    hint = "; namespaces are switched off for ordinary users" if "namespace" in said or "uid map" in said else ""
    return f"{said}{hint}"


def _no_landlock(abi: int) -> str | None:
    """Return why level B does not work here, None if it does."""
    if not syscalls.available():
        return "the system calls of this machine are not known to farro (Linux on x86_64 and aarch64 are)"
    if abi < 1:
        return "the kernel has no Landlock, or it is switched off (Linux 5.13 and newer; boot with lsm=landlock,…)"
    try:
        landlock.on_a_new_thread(lambda: landlock.give_up_rights(Confinement(), abi))
    except OSError as error:
        return f"a right could not be given up: {error}"
    return None


_EVERY_LEVEL = (
    "what a step may read: everything that the worker's user can, except what is hidden from it; not so an agent's "
    "program, which reads a closed list",
    "what it does with the CPU; its time is bounded by the step's timeout",
)
_OF_A = ("the programs that it may run: those under /tmp, /run and /dev/shm are not seen",)
_OF_B = (
    "chmod, chown and utime of files of the worker's own user: under the root this is seen afterwards and fails the "
    "job (not when times are set to now, nor times in farro's own folders, nor beyond 50000 names); elsewhere not",
    "what other processes show of themselves in /proc (names, arguments), and names and sizes of files everywhere",
    "priority and processors of an ordinary user's other processes, and System V shared memory of the same user",
    "locks of farro's own files: while it holds one, whoever needs that one waits",
    "a folder that is allowed and holds .git or farro's own folders: nothing new can be made directly in it",
)
_OF_NONE = (
    "writing anywhere: under the root this is seen afterwards and fails the job; elsewhere it is not seen",
    "the network, sockets, signals to other processes of the same user, and whatever else the worker's user may do",
)
_BY_ABI = (
    (2, "moving a file from one allowed folder to another: it is always refused"),
    (3, "truncate(2) of files of the worker's own user"),
    (5, "ioctl on devices that can be opened for reading"),
    (6, "signals to other processes of the same user"),
)


def _close(*ends: str | int | None) -> None:
    for fd in ends:
        if isinstance(fd, int):
            os.close(fd)


def _piped(path: str) -> int:
    """Return the reading end of a pipe into which the file is copied; a reader may stop early."""
    source = fs.open_read(path)
    reading, writing = os.pipe()

    def pass_on() -> None:
        try:
            with contextlib.suppress(BrokenPipeError):
                while os.splice(source, writing, _PIECE):
                    pass
        finally:
            os.close(writing)
            os.close(source)

    threading.Thread(target=pass_on, name="stdin", daemon=True).start()
    return reading
